"""What a receiver answers and stores, without sockets and without Kafka (KN-DP-09)."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.memory.log import MemoryLog, MemoryWriter
from support.receiver_requests import (
    EVERY,
    MINIMAL,
    PATH,
    Headers,
    Request,
    attributes,
    channel,
    ingress,
)
from support.waiting import until

from knafka.core.contract import MAX_EVENT_BYTES, Ingress
from knafka.core.errors import LogError
from knafka.observability import Histogram
from knafka.receiver.address import address_of
from knafka.receiver.answers import Answer
from knafka.receiver.ingest import IngestHandler
from knafka.receiver.limits import Limits

DEFAULT = Limits()


class World:
    """An ingest handler for the Broker ns/broker on a log in memory."""

    def __init__(self, limits: Limits = DEFAULT, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self.log = MemoryLog()
        self.log.create("events")
        declared = ingress(max_event_bytes=max_event_bytes)
        self.ingest = IngestHandler([declared], [MemoryWriter(self.log)], limits)
        self.answers: list[Answer] = []

    def ask(
        self,
        method: bytes = b"POST",
        path: bytes = PATH,
        headers: Headers = MINIMAL.headers,
        body: bytes = b"",
    ) -> None:
        self.ingest.handle(method, path, headers, body, self.answers.append)

    async def answer(
        self,
        method: bytes = b"POST",
        path: bytes = PATH,
        headers: Headers = MINIMAL.headers,
        body: bytes = b"",
    ) -> Answer:
        self.answers = []
        self.ask(method, path, headers, body)
        await asyncio.sleep(0)
        await until(lambda: self.answers)  # metrics are written on a thread
        (answer,) = self.answers
        return answer

    @property
    def statuses(self) -> list[int]:
        return [each.status for each in self.answers]

    def metric(self, name: str) -> dict[str, float]:
        """A family's samples by their status code."""
        (metric,) = (each for each in self.ingest.metrics() if each.name == name)
        return {
            labels.get("code", ""): value
            for labels, value in metric.samples
            if not isinstance(value, Histogram)
        }


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.conformance("KN-DP-09", "KN-CHN-08", "CHN-10")
@pytest.mark.parametrize("request_", EVERY, ids=lambda each: each.id)
async def test_each_request_is_answered_and_stored_as_the_table_says(
    world: World, request_: Request
) -> None:
    answer = await world.answer(headers=request_.headers, body=request_.body)
    assert answer.status == request_.status
    records = world.log.topics["events"][0]
    if request_.stored is None:
        assert records == []
        assert answer.body, "a refusal has its reason"
        assert len(answer.body) < 2100
    else:
        (record,) = records
        stored = request_.stored
        assert (record.key(), record.value()) == (stored.key, stored.value)
        assert record.headers() == stored.headers
    assert world.metric("knafka_receiver_events_total") == {str(request_.status): 1}


@pytest.mark.conformance("KN-BRK-07", "KN-DP-02", "KN-CHN-02", "CHN-29")
async def test_202_is_said_only_when_kafka_has_acknowledged(world: World) -> None:
    """KN-BRK-07."""
    world.log.hold()
    world.ask()
    await asyncio.sleep(0.01)
    assert world.answers == []
    world.log.release()
    assert world.statuses == [202]


@pytest.mark.conformance("KN-BRK-07", "KN-DP-02", "KN-DP-09")
@pytest.mark.parametrize(
    ("error", "status"),
    [
        (LogError("Kafka is away"), 503),
        (LogError("too large", retriable=False, too_large=True), 413),
        (LogError("not authorised", retriable=False), 503),
    ],
)
async def test_what_kafka_does_not_take_is_not_accepted(
    world: World, error: LogError, status: int
) -> None:
    world.log.fail(error)
    answer = await world.answer()
    assert answer.status == status
    assert (b"retry-after", b"2") in answer.headers or status != 503
    assert world.metric("knafka_receiver_waiting_bytes") == {"": 0}


async def test_a_missing_topic_is_a_failure_that_may_pass(world: World) -> None:
    del world.log.topics["events"]
    answer = await world.answer()
    assert answer.status == 503
    assert dict(answer.headers)[b"retry-after"]


async def test_a_full_writer_is_busy(world: World) -> None:
    world.log.capacity = 0
    answer = await world.answer()
    assert answer.status == 503
    assert (b"retry-after", b"1") in answer.headers


@pytest.mark.conformance("KN-DP-05")
async def test_more_events_in_flight_than_the_limit_are_busy() -> None:
    world = World(Limits(in_flight=3))
    world.log.hold()
    for _ in range(5):
        world.ask()
    assert world.statuses == [503, 503]
    assert (b"retry-after", b"1") in world.answers[0].headers
    world.log.release()
    assert world.statuses == [503, 503, 202, 202, 202]
    assert (await world.answer()).status == 202


async def test_more_bytes_in_flight_than_the_limit_are_busy() -> None:
    world = World(Limits(in_flight_bytes=2600))
    world.log.hold()
    for _ in range(3):
        world.ask(body=b"x" * 600)
    assert world.statuses == [503]
    assert world.metric("knafka_receiver_waiting_bytes")[""] > 1200
    world.log.release()
    assert world.metric("knafka_receiver_waiting_bytes") == {"": 0}
    assert (await world.answer(body=b"x" * 400)).status == 202


class OneSickTopicWriter(MemoryWriter):
    """Takes no events of the topic `sick`, which has no leader, until `recover` is called."""

    def __init__(self, memory: MemoryLog) -> None:
        super().__init__(memory)
        self._waiting: list[Callable[[LogError | None], None]] = []

    @property
    def in_flight(self) -> int:
        return super().in_flight + len(self._waiting)

    def append(self, topic: str, *record: Any) -> None:
        if topic == "sick":
            self._waiting.append(record[-1])
        else:
            super().append(topic, *record)

    def recover(self) -> None:
        while self._waiting:
            self._waiting.pop()(None)


class Neighbours:
    """Two Brokers of one receiver, of which one's topic is sick, and the answers of each."""

    def __init__(self, limits: Limits) -> None:
        memory = MemoryLog()
        memory.create("events")
        self.writer = OneSickTopicWriter(memory)
        self.sick = ingress(topic="sick").model_copy(update={"namespace": "sick"})
        self.well = ingress().model_copy(update={"namespace": "well"})
        self.ingest = IngestHandler([self.sick, self.well], [self.writer] * 2, limits)

    def ask(self, declared: Ingress, body: bytes = b"", events: int = 1) -> Counter[int]:
        """The answers, by status, that come at once or within a turn of the loop."""
        statuses: Counter[int] = Counter()
        path = declared.path.encode()
        for _ in range(events):
            self.ingest.handle(
                b"POST", path, MINIMAL.headers, body, lambda each: statuses.update([each.status])
            )
        return statuses


@pytest.mark.parametrize(
    ("limits", "body", "waiting"),
    [
        (Limits(in_flight=20), b"", 10),
        (Limits(in_flight_bytes=100_000), b"x" * 2_000, 19),
    ],
    ids=["events", "bytes"],
)
async def test_a_broker_whose_topic_takes_no_events_leaves_room_for_the_others(
    limits: Limits, body: bytes, waiting: int
) -> None:
    neighbours = Neighbours(limits)
    refused = neighbours.ask(neighbours.sick, body, 100)
    assert refused == {503: 100 - waiting}
    for _ in range(5):
        answers = neighbours.ask(neighbours.well, body, 3)
        await asyncio.sleep(0)
        assert answers == {202: 3}
    # The contract is read again: what waits still counts.
    again = [each.model_copy() for each in (neighbours.sick, neighbours.well)]
    neighbours.ingest.serve([(each, neighbours.writer) for each in again])
    assert neighbours.ask(neighbours.sick, body, 3) == {503: 3}
    neighbours.writer.recover()
    assert refused == {503: 100 - waiting, 202: waiting}
    assert neighbours.ask(neighbours.sick, body, 100) == {503: 100 - waiting}


async def test_a_batch_too_may_hold_only_what_it_leaves_to_other_brokers() -> None:
    neighbours = Neighbours(Limits(in_flight=20))
    statuses: list[int] = []
    event = b'{"specversion":"1.0","id":"1","source":"/s","type":"t"}'
    for _ in range(5):
        neighbours.ingest.handle(
            b"POST", b"/sick/broker",
            [(b"content-type", b"application/cloudevents-batch+json")],
            b"[" + b",".join([event] * 4) + b"]",
            lambda each: statuses.append(each.status),
        )  # fmt: skip
    assert statuses == [503, 503, 503]
    neighbours.writer.recover()
    assert statuses == [503, 503, 503, 202, 202]
    assert neighbours.ask(neighbours.sick, events=11) == {503: 1}


async def test_an_event_may_take_all_the_room_that_nobody_else_uses() -> None:
    neighbours = Neighbours(Limits(in_flight_bytes=100_000))
    assert neighbours.ask(neighbours.sick, b"x" * 90_000) == {}
    assert neighbours.ask(neighbours.sick, b"x") == {503: 1}
    assert neighbours.ask(neighbours.well, b"x" * 90_000) == {503: 1}, "memory is bounded"


async def test_attributes_count_for_the_bytes_in_flight() -> None:
    """Memory is bounded by what is kept, and headers are kept, each at a price of its own."""
    large = attributes(x="y" * 400)
    many = (*attributes(), *((b"ce-x%d" % number, b"") for number in range(4)))
    for headers in (large, many):
        world = World(Limits(in_flight_bytes=2600))
        world.log.hold()
        for _ in range(3):
            world.ask(headers=headers)
        assert world.statuses == [503]
        world.log.release()
        assert world.metric("knafka_receiver_waiting_bytes") == {"": 0}


@pytest.mark.conformance("KN-DP-12")
@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        (attributes(), b"x" * 100, 202),
        (attributes(), b"x" * 200, 413),
        (attributes(x="y" * 100), b"x" * 100, 413),
        (attributes(x="y" * 200), b"", 413),
        ((*attributes(), (b"user-agent", b"z" * 200)), b"x" * 100, 202),
    ],
)
async def test_an_events_data_and_attributes_together_have_a_limit(
    headers: Headers, body: bytes, status: int
) -> None:
    """KN-DP-12."""
    world = World(max_event_bytes=200)
    answer = await world.answer(headers=headers, body=body)
    assert answer.status == status
    assert status == 202 or b"200 bytes" in answer.body


@pytest.mark.parametrize("path", [b"/ns/broker", b"/ns/broker/"])
async def test_a_broker_is_served_with_and_without_a_trailing_slash(
    world: World, path: bytes
) -> None:
    assert (await world.answer(path=path)).status == 202
    assert world.ingest.body_limit(path)[0] == MAX_EVENT_BYTES
    world.ingest.count_refusal(path, world.answers[0])
    assert world.metric("knafka_receiver_events_total") == {"202": 2}


@pytest.mark.conformance("KN-DP-09")
@pytest.mark.parametrize(
    "path", [b"", b"/", b"/ns", b"/ns/other", b"/ns/broker//", b"/ns/broker/x", b"ns/broker", b"*"]
)
async def test_an_unknown_path_is_404(world: World, path: bytes) -> None:
    assert (await world.answer(path=path)).status == 404
    assert world.metric("knafka_receiver_unrouted_total") == {"404": 1}
    assert world.metric("knafka_receiver_events_total") == {}


@pytest.mark.conformance("KN-DP-09", "KN-CHN-08")
@pytest.mark.parametrize("method", [b"GET", b"HEAD", b"PUT", b"PATCH", b"DELETE", b"BREW"])
async def test_other_methods_are_405_and_told_what_is_allowed(world: World, method: bytes) -> None:
    answer = await world.answer(method)
    assert answer.status == 405
    assert (b"allow", b"POST, OPTIONS") in answer.headers
    assert world.log.topics["events"] == [[]]


@pytest.mark.conformance("KN-DP-07")
async def test_options_is_the_webhook_handshake(world: World) -> None:
    """KN-DP-07."""
    answer = await world.answer(b"OPTIONS")
    assert answer.status == 200
    assert dict(answer.headers) == {
        b"allow": b"POST, OPTIONS",
        b"webhook-allowed-origin": b"*",
        b"webhook-allowed-rate": b"*",
        b"content-length": b"0",
    }


@pytest.mark.conformance("KN-BRK-21")
async def test_the_network_probe_gets_its_hash_back(world: World) -> None:
    """KN-BRK-21."""
    headers = ((b"K-Network-Probe", b"probe"), (b"K-Network-Hash", b"abc"))
    answer = await world.answer(b"GET", headers=headers)
    assert answer.status == 200
    assert (b"k-network-hash", b"abc") in answer.headers
    assert (await world.answer(b"GET", b"/ns/unknown", headers)).status == 404
    assert (await world.answer(b"GET", headers=((b"k-network-probe", b"x"),))).status == 405


@pytest.mark.conformance("KN-DP-13")
@pytest.mark.parametrize("method", [b"GET", b"HEAD"])
async def test_liveness_and_readiness(world: World, method: bytes) -> None:
    """KN-DP-13: both spellings; ready once Kafka has answered."""
    for path in (b"/healthz", b"/health/liveness"):
        assert (await world.answer(method, path)).status == 200
    for path in (b"/readyz", b"/health/readiness"):
        assert (await world.answer(method, path)).status == 503
    world.ingest.waiting = None
    for path in (b"/readyz", b"/health/readiness"):
        assert (await world.answer(method, path)).status == 200
    assert (await world.answer(b"POST", b"/healthz")).status == 404


@pytest.mark.conformance("KN-DP-15")
async def test_metrics_count_by_broker_and_code(world: World) -> None:
    """KN-DP-15."""
    await world.answer()
    await world.answer()
    await world.answer(headers=())
    answer = await world.answer(b"GET", b"/metrics")
    lines = answer.body.decode().splitlines()
    assert 'knafka_receiver_events_total{broker="broker",code="202",namespace="ns"} 2.0' in lines
    assert 'knafka_receiver_events_total{broker="broker",code="400",namespace="ns"} 1.0' in lines
    assert answer.body.endswith(b"\n")


@pytest.mark.conformance("DSP-22")
async def test_what_was_produced_is_counted_by_topic_and_partition(world: World) -> None:
    """DSP-22: a gauge with exactly the labels partition, producer and topic."""
    await world.answer()
    await world.answer()
    (family,) = (
        each for each in world.ingest.metrics() if each.name == "eventing_kafka_produced_msg_count"
    )
    assert (family.help, family.kind) == ("Produced Message Count", "gauge")
    labels = {"partition": "0", "producer": "rdkafka#producer-1", "topic": "events"}
    assert list(family.samples) == [(labels, 2)]


async def test_the_duration_of_requests_is_measured_until_the_answer() -> None:
    """KN-DP-15, as OpenTelemetry's `http.server.request.duration`."""
    log = MemoryLog()
    log.create("events")
    times = iter([10.0, 10.3])
    ingest = IngestHandler([ingress()], [MemoryWriter(log)], clock=lambda: next(times))
    ingest.handle(b"POST", PATH, attributes(), b"", lambda _: None)
    await asyncio.sleep(0)
    name = "http_server_request_duration_seconds"
    (family,) = (each for each in ingest.metrics() if each.name == name)
    ((labels, histogram),) = family.samples
    assert labels == {"namespace": "ns", "broker": "broker"}
    assert isinstance(histogram, Histogram)
    assert histogram.count == 1
    assert histogram.sum == pytest.approx(0.3)


async def test_a_channels_metrics_are_labelled_by_channel() -> None:
    log = MemoryLog()
    log.create("events")
    declared = ingress().model_copy(update={"kind": "KafkaChannel"})
    ingest = IngestHandler([declared], [MemoryWriter(log)])
    ingest.handle(b"POST", PATH, attributes(), b"", lambda _: None)
    await asyncio.sleep(0)
    families = {each.name: list(each.samples) for each in ingest.metrics()}
    (labels, _), *_ = families["knafka_receiver_events_total"]
    assert labels == {"namespace": "ns", "channel": "broker", "code": "202"}


async def test_brokers_do_not_share_topics() -> None:
    log = MemoryLog()
    log.create("events")
    log.create("others")
    other = ingress(topic="others").model_copy(update={"broker": "other"})
    ingest = IngestHandler([ingress(), other], [MemoryWriter(log)] * 2)
    answers: list[Answer] = []
    ingest.handle(b"POST", b"/ns/other", attributes(), b"", answers.append)
    await asyncio.sleep(0)
    assert [each.status for each in answers] == [202]
    assert (len(log.topics["events"][0]), len(log.topics["others"][0])) == (0, 1)


def test_a_receiver_without_brokers_takes_nothing() -> None:
    ingest = IngestHandler([], [])
    answers: list[Answer] = []
    ingest.handle(b"POST", PATH, attributes(), b"", answers.append)
    assert [each.status for each in answers] == [404]
    limit, refusal = ingest.body_limit(PATH)
    assert (limit, refusal.status) == (0, 404)


TOKENS = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")


def names() -> st.SearchStrategy[bytes]:
    likely = [b"ce-id", b"CE-ID", b"ce-source", b"ce-time", b"content-type", b"ce-", b"traceparent"]
    return st.one_of(st.sampled_from(likely), st.from_regex(TOKENS, fullmatch=True))


def contents() -> st.SearchStrategy[bytes]:
    likely = [b"application/cloudevents+json", b"application/cloudevents-batch", b"1.0", b"%", b'"']
    return st.one_of(st.sampled_from(likely), st.binary(max_size=30))


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@given(
    method=st.sampled_from([b"POST", b"GET", b"\xff"]),
    path=st.one_of(st.just(PATH), st.binary(max_size=20)),
    headers=st.lists(st.tuples(names(), contents()), max_size=6),
    body=st.one_of(
        st.binary(max_size=50),
        st.recursive(
            st.one_of(st.none(), st.booleans(), st.integers(), st.text()),
            lambda inner: st.dictionaries(st.text(), inner),
        ).map(lambda value: str(value).replace("'", '"').encode(errors="surrogatepass")),
    ),
)
def test_whatever_comes_is_answered_once_and_nothing_is_raised(
    loop: asyncio.AbstractEventLoop,
    method: bytes,
    path: bytes,
    headers: list[tuple[bytes, bytes]],
    body: bytes,
) -> None:
    async def ask() -> None:
        world = World()
        world.ask(method, path, (*attributes(), *headers), body)
        world.ask(method, path, tuple(headers), body)
        await asyncio.sleep(0)
        assert set(world.statuses) <= {200, 202, 400, 404, 405, 415, 503}
        assert len(world.answers) == 2

    loop.run_until_complete(ask())


AT_A_HOST = address_of(b"/", [(b"host", b"knafka-receiver.default.example.com")])


def receiver_of(*ingresses: Ingress) -> World:
    """A world whose receiver has these Ingresses in its environment."""
    world = World()
    writer = MemoryWriter(world.log)
    world.ingest = IngestHandler(ingresses, [writer for _ in ingresses])
    return world


@pytest.mark.parametrize(
    ("ingresses", "status"),
    [
        pytest.param([ingress()], 202, id="one Broker"),
        pytest.param([ingress(), ingress().model_copy(update={"broker": "b"})], 404, id="two"),
        pytest.param([], 404, id="none"),
        pytest.param([channel("orders", "events")], 404, id="a channel, whose hosts decide"),
    ],
)
async def test_the_root_is_the_path_of_a_receiver_that_serves_no_other(
    ingresses: Sequence[Ingress], status: int
) -> None:
    """UX-1: `func invoke -f cloudevent` asks a function at `/`, whatever its host."""
    world = receiver_of(*ingresses)
    assert (await world.answer(path=AT_A_HOST)).status == status
    assert (await world.answer(path=b"/nowhere")).status == 404
    assert len(world.log.topics["events"][0]) == (status == 202)


async def test_at_the_root_everything_is_as_at_the_path() -> None:
    """Limits, methods, handshakes and counts of the Broker that is served there."""
    world = World(max_event_bytes=200)
    assert (await world.answer(path=AT_A_HOST, body=b"x" * 300)).status == 413
    assert (await world.answer(b"GET", path=AT_A_HOST)).status == 405
    assert (await world.answer(b"OPTIONS", path=AT_A_HOST)).status == 200
    assert world.ingest.body_limit(AT_A_HOST) == world.ingest.body_limit(PATH)
    assert world.metric("knafka_receiver_events_total") == {"413": 1, "405": 1, "200": 1}
    assert world.metric("knafka_receiver_unrouted_total") == {}
