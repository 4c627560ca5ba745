"""The receiver as an ASGI function: the same answers as the fast way in (FN-2, FN-4)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping

import pytest
from support.hosting import Hosted
from support.memory.log import MemoryLog, MemoryWriter
from support.receiver_requests import EVERY, Request, attributes, ingress
from support.waiting import until

from knafka.core.contract import MAX_EVENT_BYTES
from knafka.core.documents import dump
from knafka.core.errors import InvalidDocument, LogError
from knafka.receiver import function
from knafka.receiver.function import ReceiverFunction
from knafka.receiver.limits import Limits

LIMIT = 1000


def environment(max_event_bytes: int = MAX_EVENT_BYTES) -> dict[str, str]:
    broker = ingress(max_event_bytes=max_event_bytes)
    return {"KNAFKA_INGRESSES": json.dumps([dump(broker)])}


@pytest.fixture
async def hosted(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Hosted]:
    log = MemoryLog()
    log.create("events")
    monkeypatch.setattr(function, "KafkaWriter", lambda _: MemoryWriter(log))
    receiver = ReceiverFunction()
    await receiver.start(environment())
    yield Hosted(log, receiver)
    await receiver.stop()


@pytest.fixture
async def small(hosted: Hosted) -> AsyncIterator[Hosted]:
    """With a limit of `LIMIT` bytes an event."""
    receiver = ReceiverFunction()
    await receiver.start(environment(max_event_bytes=LIMIT))
    yield Hosted(hosted.log, receiver)
    await receiver.stop()


@pytest.mark.parametrize("request_", EVERY, ids=lambda each: each.id)
async def test_each_request_is_answered_and_stored_as_the_table_says(
    hosted: Hosted, request_: Request
) -> None:
    assert await hosted.ask([request_.body], request_.headers) == request_.status
    records = hosted.log.topics["events"][0]
    assert [(each.key(), each.headers(), each.value()) for each in records] == (
        [(request_.stored.key, request_.stored.headers, request_.stored.value)]
        if request_.stored
        else []
    )


@pytest.mark.parametrize(("setting", "status"), [("enabled", 200), ("disabled", 404)])
async def test_it_tells_of_new_types_where_its_environment_says_so(
    hosted: Hosted, setting: str, status: int
) -> None:
    receiver = ReceiverFunction()
    await receiver.start({**environment(), "KNAFKA_EVENT_TYPES": setting})
    asked = Hosted(hosted.log, receiver)
    assert await asked.ask() == 202
    assert await asked.ask(method="GET", path="/event-types") == status
    await receiver.stop()


async def test_a_body_in_parts_is_one_body(hosted: Hosted) -> None:
    assert await hosted.ask([b"a", b"", b"bc"]) == 202
    assert hosted.log.topics["events"][0][0].value() == b"abc"


async def test_a_sender_that_hangs_up_mid_body_stores_nothing(hosted: Hosted) -> None:
    assert await hosted.ask([b"abc", None]) == 0
    assert (hosted.stored, hosted.receiving_bytes) == (0, 0)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/ns/broker", 405),
        ("OPTIONS", "/ns/broker", 200),
        ("POST", "/ns/broker/", 202),
        ("POST", "/ns/nobody", 404),
        ("GET", "/health/liveness", 200),
        ("GET", "/health/readiness", 200),
        ("GET", "/metrics", 200),
        ("GET", "/ü", 404),
    ],
)
async def test_methods_and_paths(hosted: Hosted, method: str, path: str, status: int) -> None:
    hosted.receiver.ingest.waiting = None
    assert await hosted.ask(method=method, path=path) == status


async def test_a_body_beyond_the_limit_is_413_and_not_read_to_its_end(small: Hosted) -> None:
    assert await small.ask([b"x" * 600] * 10) == 413
    assert small.left == 8
    assert (small.stored, small.receiving_bytes) == (0, 0)


async def test_an_announced_body_beyond_the_limit_is_not_read_at_all(small: Hosted) -> None:
    for length in (b"%d" % (LIMIT + 1), b"9" * 5000):
        headers = (*attributes(), (b"content-length", length))
        assert await small.ask([b"x", b"y"], headers) == 413
        assert small.left == 2


@pytest.mark.parametrize("length", [b"", b"-1", b"x", "²".encode(), b"2"])
async def test_an_announced_length_that_is_none_is_the_servers_business(
    small: Hosted, length: bytes
) -> None:
    headers = (*attributes(), (b"content-length", length))
    assert await small.ask([b"x", b"y"], headers) == 202


async def test_headers_beyond_the_limit_are_431(hosted: Hosted) -> None:
    assert await hosted.ask(headers=attributes(x="y" * 70_000)) == 431
    assert hosted.stored == 0


async def test_bodies_being_received_have_a_limit_together(
    hosted: Hosted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosted.receiver.ingest, "limits", Limits(in_flight_bytes=1000))
    assert await hosted.ask([b"x" * 2000]) == 503
    assert hosted.receiving_bytes == 0
    assert await hosted.ask([b"x"]) == 202


async def test_202_is_sent_only_when_kafka_has_acknowledged(hosted: Hosted) -> None:
    hosted.log.hold()
    asking = asyncio.create_task(hosted.ask())
    await until(lambda: bool(hosted.log.held))
    assert not asking.done()
    hosted.log.release()
    assert await asking == 202


async def test_an_answer_after_the_request_was_cancelled_harms_nobody(hosted: Hosted) -> None:
    hosted.log.hold()
    asking = asyncio.create_task(hosted.ask())
    await until(lambda: bool(hosted.log.held))
    asking.cancel()
    await asyncio.wait({asking})
    hosted.log.release()
    assert await hosted.ask() == 202


async def test_it_is_ready_once_kafka_has_answered(hosted: Hosted) -> None:
    """UX-3."""
    hosted.log.fail(LogError("away"))
    receiver = ReceiverFunction()
    assert receiver.alive()[0]
    await receiver.start(environment())
    assert receiver.ready() == (False, "Kafka has not answered yet")
    await until(lambda: receiver.ready() == (False, "Kafka has not answered yet: away"))
    hosted.log.fail(None)
    await until(lambda: receiver.ready()[0])
    await receiver.stop()


async def test_it_is_ready_while_kafka_is_known_to_be_away_and_answers_503_at_once(
    hosted: Hosted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Issue 13, item 0: as long as no pod is ready, Knative starts more of them."""
    hosted.log.fail(LogError("nobody listens"))
    writer = MemoryWriter(hosted.log)
    monkeypatch.setattr(function, "KafkaWriter", lambda _: writer)
    receiver = ReceiverFunction()
    await receiver.start(environment())
    fresh = Hosted(hosted.log, receiver)
    await until(lambda: receiver.ready() == (False, "Kafka has not answered yet: nobody listens"))
    writer.away = LogError("nobody listens")
    await until(lambda: receiver.ready()[0])
    hosted.log.fail(None)
    assert await fresh.ask() == 503
    assert writer.in_flight == 0
    writer.away = None
    assert await fresh.ask() == 202
    await receiver.stop()


async def test_it_is_alive_until_only_a_new_process_could_store_anything(
    hosted: Hosted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """UX-3."""
    writer = MemoryWriter(hosted.log)
    monkeypatch.setattr(function, "KafkaWriter", lambda _: writer)
    receiver = ReceiverFunction()
    await receiver.start(environment())
    fresh = Hosted(hosted.log, receiver)
    assert await fresh.ask(method="GET", path="/health/liveness") == 200
    writer.failure = LogError("no certificate")
    assert receiver.alive() == (False, "no certificate")
    assert await fresh.ask(method="GET", path="/health/liveness") == 503
    await receiver.stop()


async def test_one_connection_to_kafka_serves_all_brokers_of_it(
    hosted: Hosted, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[object] = []

    def make(connection: object) -> MemoryWriter:
        made.append(connection)
        return MemoryWriter(hosted.log)

    monkeypatch.setattr(function, "KafkaWriter", make)
    brokers = [ingress().model_copy(update={"broker": name}) for name in ("a", "b")]
    elsewhere = ingress("elsewhere:9092").model_copy(update={"broker": "c"})
    contract = json.dumps([dump(each) for each in (*brokers, elsewhere)])
    receiver = ReceiverFunction()
    await receiver.start({"KNAFKA_INGRESSES": contract, "KNAFKA_STATISTICS_INTERVAL": "0"})
    assert made == [
        {"bootstrap.servers": "nowhere:9092"},
        {"bootstrap.servers": "elsewhere:9092"},
    ]
    await receiver.stop()


async def test_batches_are_no_larger_than_the_smallest_topic_of_a_kafka_takes(
    hosted: Hosted, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Mapping[str, object]] = []

    def make(configuration: Mapping[str, object]) -> MemoryWriter:
        made.append(configuration)
        return MemoryWriter(hosted.log)

    monkeypatch.setattr(function, "KafkaWriter", make)
    brokers = [
        ingress(kafka).model_copy(update={"broker": name, "max_batch_bytes": limit})
        for name, kafka, limit in (
            ("a", "one:9092", None), ("b", "one:9092", 100_000), ("c", "one:9092", 5_000_000),
            ("d", "another:9092", 5_000_000),
        )
    ]  # fmt: skip
    receiver = ReceiverFunction()
    await receiver.start({"KNAFKA_INGRESSES": json.dumps([dump(each) for each in brokers])})
    assert [each.get("batch.size") for each in made] == [100_000, None]
    await receiver.stop()


@pytest.mark.parametrize(
    ("contract", "told"),
    [("", "is not set"), ("{", "JSON"), ("[{}]", "missing field"), ('{"a":1}', "list|array|tuple")],
)
async def test_a_broken_contract_is_told_by_name(contract: str, told: str) -> None:
    with pytest.raises(InvalidDocument, match=rf"KNAFKA_INGRESSES.*({told})"):
        await ReceiverFunction().start({"KNAFKA_INGRESSES": contract})


async def test_stop_waits_for_what_is_in_flight(hosted: Hosted) -> None:
    hosted.log.hold()
    asking = asyncio.create_task(hosted.ask())
    await until(lambda: bool(hosted.log.held))
    stopping = asyncio.create_task(hosted.receiver.stop())
    await asyncio.sleep(0.01)
    assert not stopping.done()
    hosted.log.release()
    assert await asking == 202
    await stopping
