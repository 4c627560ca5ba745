"""What a drain does with replies: stored before their event is settled, or a failure. Fake time."""

from __future__ import annotations

import asyncio

import pytest
from support.drains import (
    DEAD,
    TOPIC,
    Request,
    World,
    always,
    at_first,
    id_of,
    response,
    unless_sink,
    until,
)

from knafka.core.contract import Delivery
from knafka.core.errors import LogError
from knafka.ports.subscriber import Response

pytestmark = pytest.mark.looptime

REPLY = {"ce_specversion": "1.0", "ce_id": "r", "ce_source": "/reply", "ce_type": "answer"}


@pytest.mark.conformance("KN-BRK-11", "KN-BRK-12")
async def test_a_reply_is_stored_before_its_event_is_settled() -> None:
    """KN-BRK-11, KN-BRK-12."""

    async def reply_once(request: Request) -> Response:
        return response(200, b"hello", **REPLY) if id_of(request) == "1" else response()

    world = World(reply_once)
    world.send("1", "k")
    world.log.hold()
    drain = world.drain()
    running = world.begin(drain)
    await until(lambda: world.log.held)
    await asyncio.sleep(5)
    assert (drain.progress().delivered, world.committed.get(0, 0)) == (0, 0)
    world.log.release()
    progress = await running
    assert (progress.delivered, progress.replied) == (2, 1), "the reply passes this Trigger, too"
    assert world.events_of(TOPIC)[1].data == b"hello"
    assert world.events_of(TOPIC)[1].attributes["type"] == "answer"
    assert world.committed == {0: 2}


async def test_a_reply_in_structured_mode_is_stored_as_an_event() -> None:
    document = b'{"specversion":"1.0","id":"r","source":"/r","type":"answer","data":{"a": 1}}'
    answer = response(200, document, content_type="application/cloudevents+json")
    world = World(at_first(answer))
    world.send("1")
    await world.run()
    assert world.events_of(TOPIC)[1].data == b'{"a": 1}'


BINARY = {name.replace("_", "-"): value for name, value in REPLY.items()}
STRUCTURED = {"content-type": "application/cloudevents+json"}


@pytest.mark.conformance("KN-DP-08")
@pytest.mark.parametrize(
    "headers",
    [
        pytest.param({**BINARY, "content-encoding": "gzip"}, id="gzip, binary"),
        pytest.param({**STRUCTURED, "content-encoding": "gzip"}, id="gzip, structured"),
        pytest.param({**BINARY, "content-encoding": " GZip "}, id="in any case"),
        pytest.param({**BINARY, "content-encoding": "deflate"}, id="deflate"),
        pytest.param({**BINARY, "content-encoding": "br"}, id="br"),
        pytest.param({**BINARY, "content-encoding": "zstd"}, id="zstd"),
        pytest.param({**BINARY, "content-encoding": "identity, gzip"}, id="one of two"),
        pytest.param({**BINARY, "content-encoding": "of-our-own"}, id="unknown"),
        pytest.param({**BINARY, "transfer-encoding": "gzip, chunked"}, id="on the way"),
    ],
)
async def test_a_reply_whose_body_is_encoded_is_malformed(headers: dict[str, str]) -> None:
    """KN-DP-08: stored as it came, the next subscriber would take gzip for the data."""
    answer = Response(200, [(name.encode(), text.encode()) for name, text in headers.items()], b"x")
    world = World(at_first(answer), delivery=Delivery(retry=3))
    world.send("1")
    await world.run()
    assert world.subscriber.ids == ["1"]
    assert [each.attributes["id"] for each in world.events_of(TOPIC)] == ["1"]
    assert world.events_of(DEAD)[0].attributes["knafkareason"] == "malformed-reply"


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param({"content-encoding": "identity"}, id="identity"),
        pytest.param({"content-encoding": "Identity"}, id="Identity"),
        pytest.param({"content-encoding": ""}, id="nothing"),
        pytest.param({"transfer-encoding": "chunked"}, id="in chunks"),
        pytest.param({"vary": "accept-encoding"}, id="another header"),
    ],
)
async def test_a_reply_whose_body_is_as_it_is_is_stored(headers: dict[str, str]) -> None:
    pairs = [(name.encode(), text.encode()) for name, text in {**BINARY, **headers}.items()]
    world = World(at_first(Response(200, pairs, b"hello")))
    world.send("1")
    await world.run()
    assert world.events_of(TOPIC)[1].data == b"hello"


async def test_an_encoded_body_that_is_no_reply_is_a_success() -> None:
    """KN-DP-08: a proxy may have compressed the `OK`."""
    world = World(at_first(response(200, b"\x1f\x8b", content_encoding="gzip")))
    world.send("1")
    assert (await world.run()).delivered == 1


async def test_a_reply_whose_headers_are_iso_8859_1_is_stored() -> None:
    """An event that was processed well is no dead letter for it."""
    answer = response(200, b"hello", **REPLY)
    answer.headers.append((b"ce-note", b"caf\xe9"))
    world = World(at_first(answer))
    world.send("1")
    await world.run()
    assert world.events_of(TOPIC)[1].attributes["note"] == "café"
    assert world.events_of(DEAD) == []


@pytest.mark.conformance("KN-BRK-12")
async def test_a_reply_that_is_not_stored_is_stored_later_without_the_subscriber() -> None:
    """KN-BRK-12, with retries of the reply's own: the delivery ends when it is stored."""
    answer = response(200, b"", **REPLY)
    world = World(at_first(answer), delivery=Delivery(retry=3, backoff_delay=1))
    world.send("1")
    world.log.fail(LogError("Kafka is away"))
    drain = world.drain()
    running = world.begin(drain)
    await until(lambda: drain.counts.events.retried)
    world.log.fail(None)
    progress = await running
    assert world.subscriber.ids == ["1", "r"]
    assert drain.counts.failures == {"reply-not-stored 200": 1}
    assert (progress.replied, progress.delivered) == (1, 2)


@pytest.mark.conformance("KN-BRK-12", "KN-DLV-07")
async def test_a_reply_too_large_for_the_topic_fails_its_event_at_once() -> None:
    """KN-BRK-12, KN-DLV-07: no other attempt could end differently."""
    answer = response(200, b"x" * 2_000_000, **REPLY)
    world = World(always(answer), delivery=Delivery(retry=10, backoff_delay=1))
    world.send("1")
    assert (await world.run()).dead_lettered == 1
    assert world.subscriber.ids == ["1"]
    assert world.events_of(DEAD)[0].attributes["knafkareason"] == "reply-not-stored"


@pytest.mark.conformance("KN-BRK-12")
@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(response(200, b"x", **REPLY), id="binary"),
        pytest.param(response(200, b"{", content_type="application/cloudevents+json"), id="JSON"),
    ],
)
async def test_a_reply_larger_than_is_read_fails_its_event_at_once(answer: Response) -> None:
    """KN-BRK-12: it can't be stored, as no topic takes it; what was read of it is no event."""
    world = World(always(answer._replace(cut=True)), delivery=Delivery(retry=10))
    world.send("1")
    assert (await world.run()).dead_lettered == 1
    assert world.subscriber.ids == ["1"]
    assert world.events_of(DEAD)[0].attributes["knafkareason"] == "reply-not-stored"


async def test_a_reply_that_kafka_refuses_for_good_fails_its_event_at_once() -> None:
    """Such as one without a key for a compacted topic."""
    world = World(always(response(200, b"", **REPLY)), delivery=Delivery(retry=10))
    world.send("1")
    world.log.fail(LogError("Broker: Invalid record", retriable=False))
    drain = world.drain()
    running = world.begin(drain)
    await until(lambda: drain.counts.failures)
    world.log.fail(None)
    assert (await running).dead_lettered == 1
    assert world.subscriber.ids == ["1"]


@pytest.mark.conformance("KN-DP-08")
@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(response(200, b"OK", content_type="text/html"), id="200 OK (trap 1)"),
        pytest.param(response(200), id="200 empty"),
        pytest.param(response(200, b'{"a": 1}', content_type="application/json"), id="200 json"),
        pytest.param(response(202, b"hello", **REPLY), id="202 with an event"),
        pytest.param(response(202, b"", ce_id="", ce_broken=""), id="202 with a malformed event"),
        pytest.param(response(204), id="204"),
        pytest.param(response(200, b"x")._replace(cut=True), id="200 with a large body"),
        pytest.param(response(202, b"x", **REPLY)._replace(cut=True), id="202, large"),
    ],
)
async def test_a_success_without_a_reply_stores_nothing(answer: Response) -> None:
    """KN-DP-08; a 202's body is no reply (data-plane table)."""
    world = World(always(answer))
    world.send("1")
    progress = await world.run()
    assert (progress.delivered, progress.replied, progress.dead_lettered) == (1, 0, 0)
    assert len(world.records_of(TOPIC)) == 1


@pytest.mark.conformance("KN-DP-08")
@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(response(200, b"", ce_id="1"), id="attributes missing"),
        pytest.param(
            response(200, b"{", content_type="application/cloudevents+json"), id="broken JSON"
        ),
        pytest.param(
            response(200, b"[]", content_type="application/cloudevents-batch+json"), id="a batch"
        ),
    ],
)
async def test_a_malformed_reply_is_a_failure_that_no_retry_mends(answer: Response) -> None:
    """KN-DP-08, CE-H13."""
    world = World(always(answer), delivery=Delivery(retry=5))
    world.send("1")
    progress = await world.run()
    assert world.subscriber.ids == ["1"]
    assert (progress.dead_lettered, progress.delivered) == (1, 0)
    attributes = world.events_of(DEAD)[0].attributes
    assert attributes["knafkareason"] == "malformed-reply"
    assert attributes["knativeerrorcode"] == "200"


async def test_a_sinks_reply_is_ignored() -> None:
    world = World(unless_sink(response(400), response(200, b"hello", **REPLY)), sink=True)
    world.send("1")
    assert (await world.run()).replied == 0
    assert len(world.records_of(TOPIC)) == 1
