"""What a drain does with what fails: retries and dead letters; on fake time."""

from __future__ import annotations

import asyncio
import base64
from itertools import pairwise

import pytest
from support.drains import (
    DEAD,
    SINK,
    SUBSCRIBER,
    TOPIC,
    TRACEPARENT,
    NoTopics,
    Request,
    World,
    always,
    at_first,
    id_of,
    response,
    unless_sink,
)

from knafka.core.contract import BackoffPolicy, Delivery
from knafka.core.errors import DeliveryError
from knafka.ports.subscriber import Response

pytestmark = pytest.mark.looptime


def gaps(world: World) -> list[float]:
    return [later - earlier for earlier, later in pairwise(world.subscriber.times)]


@pytest.mark.conformance("KN-DLV-01", "KN-DLV-02")
@pytest.mark.parametrize(
    ("policy", "waits"),
    [
        (BackoffPolicy.EXPONENTIAL, [0.2 * 2**n for n in range(10)]),
        (BackoffPolicy.LINEAR, [0.2 * n for n in range(1, 11)]),
    ],
)
async def test_ten_retries_wait_as_the_delivery_says(
    policy: BackoffPolicy, waits: list[float]
) -> None:
    """KN-DLV-01, KN-DLV-02: attempts are retry + 1, waits at least what is declared."""
    delivery = Delivery(retry=10, backoff_policy=policy, backoff_delay=0.2)
    world = World(always(response(500)), delivery=delivery)
    world.send("1")
    progress = await world.run()
    assert len(world.subscriber.ids) == 11
    for gap, wait in zip(gaps(world), waits, strict=True):
        assert wait - 1e-6 <= gap < wait + 0.1
    assert (progress.retried, progress.dead_lettered) == (10, 1)


@pytest.mark.conformance("KN-DLV-04", "KN-DP-05")
@pytest.mark.parametrize(
    ("status", "most", "wait"),
    [
        pytest.param(429, 60, 30, id="429"),
        pytest.param(503, 60, 30, id="503"),
        pytest.param(503, 10, 10, id="more than retryAfterMax"),
        pytest.param(503, None, 1, id="no retryAfterMax"),
        pytest.param(500, 60, 1, id="500 does not ask"),
    ],
)
async def test_retry_after_is_honoured_where_it_may(
    status: int, most: float | None, wait: float
) -> None:
    """KN-DLV-04."""
    delivery = Delivery(retry=1, backoff_delay=1, retry_after_max=most)
    world = World(at_first(response(status, retry_after="30")), delivery=delivery)
    world.send("1")
    await world.run()
    assert wait - 1e-6 <= gaps(world)[0] < wait + 0.1


@pytest.mark.conformance("KN-DLV-04")
@pytest.mark.parametrize(
    "value",
    [
        pytest.param("Fri, 31 Dec 99999999999 23:59:59 GMT", id="a year that no calendar has"),
        pytest.param(f"Fri, 31 Dec 1999 {'9' * 20}:59:59 GMT", id="an hour beyond C's long"),
        pytest.param("soon", id="a word"),
        pytest.param("", id="nothing"),
    ],
)
async def test_a_retry_after_that_cant_be_used_is_as_none(value: str) -> None:
    """KN-DLV-04: the declared retries are made all the same."""
    delivery = Delivery(retry=3, backoff_delay=1, retry_after_max=60)
    world = World(at_first(response(503, retry_after=value)), delivery=delivery)
    world.send("1")
    progress = await world.run()
    assert world.subscriber.ids == ["1", "1"]
    assert 1 - 1e-6 <= gaps(world)[0] < 1.1
    assert (progress.delivered, progress.dead_lettered) == (1, 0)


async def test_a_timer_that_fires_just_before_a_pause_ends_is_started_again_for_a_millisecond() -> (
    None
):
    """asyncio's timers fire early by the clock's resolution: the drain asked its clock without
    end."""
    loop = asyncio.get_running_loop()

    async def answer(request: Request) -> Response:
        if len(world.subscriber.posts) > 1:
            return response()
        await asyncio.sleep(3.012 - loop.time())
        assert loop.time() + 1.0 > 4.012, "the pause ends between two times that the clock shows"
        return response(503, retry_after="1")

    delivery = Delivery(retry=1, backoff_delay=0.1, retry_after_max=10)
    world = World(answer, delivery=delivery)
    world.send("1")
    progress = await world.run()
    assert progress.delivered == 1
    assert 4.0129 < world.subscriber.times[1] < 4.1


@pytest.mark.conformance("KN-DLV-03", "KN-DLV-08")
async def test_an_attempt_that_times_out_is_retried_and_dead_lettered_without_a_code() -> None:
    """KN-DLV-03, KN-DLV-08."""

    async def never(request: Request) -> Response:
        await asyncio.sleep(1000)
        return response()

    delivery = Delivery(retry=2, backoff_delay=1, timeout=5)
    world = World(never, delivery=delivery)
    world.send("1")
    drain = world.drain()
    await world.begin(drain)
    assert world.subscriber.ids == ["1"] * 3
    assert drain.counts.failures == {"timeout": 3}
    assert drain.progress().dead_letters == {"timeout": 1}
    drain.reset_reported_counts()
    assert drain.progress().dead_letters == {}, "each request counts from where the last ended"
    attributes = world.events_of(DEAD)[0].attributes
    assert attributes["knafkareason"] == "timeout"
    assert "knativeerrorcode" not in attributes


@pytest.mark.parametrize("reason", ["refused", "broken"])
async def test_an_attempt_without_a_response_is_retried(reason: str) -> None:
    errors = [DeliveryError(reason, "gone")]

    async def answer(request: Request) -> Response:
        if errors:
            raise errors.pop()
        return response()

    world = World(answer, delivery=Delivery(retry=1))
    world.send("1")
    assert (await world.run()).delivered == 1


@pytest.mark.conformance("KN-DLV-07", "KN-DLV-08", "CHN-32")
async def test_what_fails_for_good_goes_to_the_sink() -> None:
    """KN-DLV-07, KN-DLV-08: the event as it was, and how it failed."""
    world = World(unless_sink(response(422, b"no \xff"), response(202)), sink=True)
    world.send(
        "1", "k", b'{"a": 1}', [("traceparent", TRACEPARENT.encode())], datacontenttype="a/b"
    )
    progress = await world.run()
    first, second = world.subscriber.posts
    assert first.request.target.url == SUBSCRIBER
    sent = second.request
    assert (sent.target.url, sent.body) == (SINK, b'{"a": 1}')
    assert sent.header(b"ce-knativeerrordest") == SUBSCRIBER.encode()
    assert sent.header(b"ce-knativeerrorcode") == b"422"
    assert sent.header(b"ce-knativeerrordata") == base64.b64encode(b"no \xff")
    assert sent.header(b"ce-id") == b"1"
    assert sent.header(b"content-type") == b"a/b"
    assert sent.header(b"traceparent") == TRACEPARENT.encode()
    assert sent.header(b"kn-namespace") == b"ns"
    assert sent.header(b"prefer") is None
    assert (progress.dead_lettered, world.records_of(DEAD)) == (1, [])
    assert world.committed == {0: 1}


@pytest.mark.conformance("KN-DLV-07", "KN-DLV-09")
async def test_the_sink_is_retried_as_the_subscriber_is_and_then_the_topic_takes_it() -> None:
    """KN-DLV-07: a dead letter's delivery is retried, too; KN-DLV-09: it is never dropped."""
    delivery = Delivery(retry=2, backoff_delay=1)
    world = World(unless_sink(response(400), response(500)), sink=True, delivery=delivery)
    world.send("1")
    progress = await world.run()
    targets = [post.request.target.url for post in world.subscriber.posts]
    assert targets == [SUBSCRIBER, SINK, SINK, SINK]
    assert gaps(world)[1:] == pytest.approx([1, 2], abs=0.1)
    assert progress.dead_lettered == 1
    letter = world.events_of(DEAD)[0].attributes
    assert letter["knativeerrordest"] == SUBSCRIBER
    assert letter["knativeerrorcode"] == "400", "the subscriber's, not the sink's"


async def test_a_dead_letter_tells_its_story() -> None:
    delivery = Delivery(retry=2, backoff_delay=10)
    world = World(always(response(503, b"busy")), delivery=delivery)
    world.send("1", "k", b"\x00data")
    await world.run()
    letter = world.events_of(DEAD)[0]
    assert letter.data == b"\x00data"
    assert letter.attributes == {
        "specversion": "1.0", "id": "1", "source": "/s", "type": "t", "subject": "k",
        "knativeerrordest": SUBSCRIBER, "knativeerrorcode": "503",
        "knativeerrordata": base64.b64encode(b"busy").decode(),
        "knafkareason": "status", "knafkaattempts": "3",
        "knafkafirsttime": "1970-01-01T00:00:00.000Z",
        "knafkalasttime": "1970-01-01T00:00:30.000Z",
        "knafkaattemptlog": "1970-01-01T00:00:00.000Z 503,1970-01-01T00:00:10.000Z 503,"
        "1970-01-01T00:00:30.000Z 503",
        "knafkanamespace": "ns", "knafkabroker": "broker", "knafkatrigger": "trigger",
        "knafkatopic": TOPIC, "knafkapartition": "0", "knafkaoffset": "0",
    }  # fmt: skip
    assert world.records_of(DEAD)[0].key() == b"k"


@pytest.mark.conformance("KN-DLV-09")
async def test_what_no_dead_letter_topic_takes_stays_unsettled_until_one_does() -> None:
    """KN-DLV-09: the offset does not move."""
    world = World(always(response(400)))
    world.send("1")
    world.topics = NoTopics()
    drain = world.drain()
    running = world.begin(drain)
    await asyncio.sleep(100)
    assert drain.progress().unsettled == 1
    assert world.committed.get(0, 0) == 0
    world.log.create(DEAD)
    progress = await running
    assert (progress.dead_lettered, len(world.records_of(DEAD))) == (1, 1)
    assert world.committed == {0: 1}
    assert world.subscriber.ids == ["1"], "the subscriber is not asked again"


async def test_a_drain_that_ends_before_it_could_bury_leaves_the_event_to_the_next() -> None:
    world = World(always(response(400)))
    world.send("1")
    world.topics = NoTopics()
    assert (await world.run(stop_after=30)).dead_lettered == 0
    assert world.committed.get(0, 0) == 0
    world.log.create(DEAD)
    assert (await world.run()).dead_lettered == 1
    assert world.committed == {0: 1}


@pytest.mark.parametrize("sink", [False, True], ids=["no sink", "sink"])
async def test_an_undecodable_record_is_dead_lettered_as_it_is_and_sent_to_nobody(
    sink: bool,
) -> None:
    """CE-K8."""
    world = World(sink=sink)
    headers = [("ce_id", b"1"), ("other", b"\xff")]
    world.log.store(TOPIC, b"k", b"\x00\xffraw", headers)
    world.send("2", "k")
    progress = await world.run()
    assert world.subscriber.ids == ["2"]
    assert (progress.read, progress.delivered, progress.dead_lettered) == (2, 1, 1)
    letter = world.records_of(DEAD)[0]
    assert (letter.key(), letter.value()) == (b"k", b"\x00\xffraw")
    found = dict(letter.headers() or [])
    assert found.items() >= dict(headers).items()
    assert found["ce_knafkareason"] == b"undecodable-record"
    assert b"required" in base64.b64decode(found["ce_knativeerrordata"])
    assert world.committed == {0: 2}


async def test_events_behind_a_dead_lettered_one_follow_in_order() -> None:
    async def answer(request: Request) -> Response:
        return response(400 if id_of(request) == "1" else 200)

    world = World(answer, delivery=Delivery(retry=3))
    for each in "123":
        world.send(each, "k")
    await world.run()
    assert world.subscriber.ids == ["1", "2", "3"]
    assert world.committed == {0: 3}
