"""A receiver whose Ingresses stand in a topic that it follows (CHN-11, CHN-23, KN-CHN-11)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence

import pytest
import uvicorn
from support.contracts import MemoryContract, ingress_record
from support.hosting import Hosted
from support.memory.log import MemoryLog, MemoryWriter
from support.memory.shared import MemoryPositionedReader
from support.receiver_requests import MINIMAL, channel, ingress
from support.waiting import until
from support.wire import Wire, connected
from uvicorn.server import ServerState

from knafka import contract_topic
from knafka.core import contract
from knafka.core.contract import Ingress, Kafka
from knafka.core.documents import dump
from knafka.core.errors import InvalidDocument, LogError
from knafka.ports.log import Record
from knafka.receiver import function
from knafka.receiver.function import ReceiverFunction
from knafka.receiver.protocol import ReceiverProtocol

HOST = b"orders-kn-channel.shop.svc.cluster.local"
ORDERS = channel("orders", topic="orders")
BILLS = channel("bills", topic="bills")


class World:
    """A receiver on a log in memory, by both ways in."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log = MemoryLog()
        for topic in ("orders", "bills", "events"):
            self.log.create(topic)
        self.contract = MemoryContract(self.log)
        self.fails = ""
        self.made: list[object] = []
        monkeypatch.setattr(contract_topic, "restart_after", lambda failures: 0.01)
        monkeypatch.setattr(function, "KafkaWriter", self._writer)
        monkeypatch.setattr(function, "KafkaIdentifiedReader", self._reader)
        self.receiver = ReceiverFunction()
        self.hosted = Hosted(self.log, self.receiver)

    def _writer(self, configuration: object) -> MemoryWriter:
        self.made.append(configuration)
        self.writer = MemoryWriter(self.log)
        return self.writer

    def _reader(self, connection: object, topic: str) -> MemoryPositionedReader:
        world = self
        assert topic == self.contract.topic

        class Reader(MemoryPositionedReader):
            async def read(self, limit: int, timeout: float) -> Sequence[Record]:
                if world.fails:
                    raise LogError(world.fails)
                return await super().read(min(limit, 2), timeout)

        return Reader(self.log, topic)

    async def start(self, path: str | None = None) -> None:
        declared = contract.Receiver(
            kafka=Kafka(bootstrap_servers="kafka:9092"),
            contract_topic=self.contract.topic,
            path=path,
        )
        await self.receiver.start({"KNAFKA_RECEIVER": json.dumps(dump(declared))})
        loop, config = asyncio.get_running_loop(), uvicorn.Config("none:none", log_config=None)
        state = ServerState()
        self._server = await loop.create_server(
            lambda: ReceiverProtocol(config, state, dict(self.receiver.state())), "127.0.0.1", 0
        )
        self.port: int = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        self._server.close()
        await self.receiver.stop()

    async def serve(self, *ingresses: Ingress) -> None:
        for each in ingresses:
            self.contract.put(*ingress_record(each))
        await self.is_read()

    async def remove(self, *ingresses: Ingress) -> None:
        for each in ingresses:
            self.contract.put(each.path.encode(), None)
        await self.is_read()

    async def is_read(self) -> None:
        await until(lambda: self.position == self.contract.end, within=10)

    @property
    def position(self) -> int:
        read = self.receiver.ingest._contract
        assert read is not None
        return read.position

    def stored(self, topic: str) -> int:
        return len(self.log.topics[topic][0])

    async def statuses(self, wire: Wire, *ingresses: Ingress) -> list[int]:
        """Of an event by path and by host to each, on one connection."""
        for each in ingresses:
            wire.send(post(path=each.path.encode()))
            wire.send(post(host=each.hosts[0].encode()))
        return await wire.statuses(2 * len(ingresses))


def post(path: bytes = b"/", host: bytes = b"x", *more: tuple[bytes, bytes]) -> bytes:
    return request(b"POST", path, host, *MINIMAL.headers, *more)


def request(method: bytes, path: bytes, host: bytes, *headers: tuple[bytes, bytes]) -> bytes:
    lines = [b"%b %b HTTP/1.1" % (method, path), b"host: " + host]
    lines += [b"%b: %b" % header for header in headers]
    return b"\r\n".join([*lines, b"content-length: 0"]) + b"\r\n\r\n"


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    made = World(monkeypatch)
    await made.start()
    yield made
    await made.stop()


@pytest.mark.conformance("KN-CHN-08", "CHN-10", "CHN-23")
async def test_a_channel_is_served_as_soon_as_it_stands_in_the_topic_and_until_it_does_not(
    world: World,
) -> None:
    """KN-CHN-08: 404 for one that isn't known; no restart for one more (CHN-23)."""
    async with connected(world.port) as wire:
        await world.serve(ORDERS)
        assert await world.statuses(wire, ORDERS, BILLS) == [202, 202, 404, 404]
        await world.serve(BILLS)
        assert await world.statuses(wire, ORDERS, BILLS) == [202, 202, 202, 202]
        await world.remove(ORDERS)
        assert await world.statuses(wire, ORDERS, BILLS) == [404, 404, 202, 202]
    assert (world.stored("orders"), world.stored("bills")) == (4, 4)
    assert len(world.made) == 1, "one writer for all"


async def test_an_open_connection_goes_where_the_channel_goes(world: World) -> None:
    """Its last address is remembered: a change must be noticed."""
    await world.serve(ORDERS)
    async with connected(world.port) as wire:
        wire.send(post(path=b"/shop/orders"))
        assert (await wire.response()).status == 202
        await world.serve(ORDERS.model_copy(update={"topic": "bills"}))
        wire.send(post(path=b"/shop/orders"))
        assert (await wire.response()).status == 202
    assert (world.stored("orders"), world.stored("bills")) == (1, 1)


async def test_a_channel_whose_writer_can_not_be_opened_is_503_until_it_can_and_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as after a change of the Secret for Kafka, which open clients don't notice."""
    monkeypatch.setattr(function, "WRITER_RETRY_INTERVAL", 0.05)
    await world.serve(ORDERS)
    tuned_kafka = BILLS.kafka.model_copy(update={"producer": {"linger.ms": "5"}})
    tuned = channel("tuned", topic="events").model_copy(update={"kafka": tuned_kafka})
    attempts, is_broken = 0, True

    def open_writer(configuration: object) -> MemoryWriter:
        nonlocal attempts
        attempts += 1
        if is_broken:
            raise InvalidDocument("password", "missing in the Secret for Kafka")
        return MemoryWriter(world.log)

    monkeypatch.setattr(function, "KafkaWriter", open_writer)
    await world.serve(tuned, BILLS)
    await world.remove(ORDERS)
    async with connected(world.port) as wire:
        assert await world.statuses(wire, BILLS) == [202, 202]
        wire.send(post(path=ORDERS.path.encode()) + post(path=tuned.path.encode()))
        assert await wire.statuses(2) == [404, 503]
        wire.send(request(b"GET", b"/contract", b"x"))
        refused = json.loads((await wire.response()).body)["refused"]
        assert "missing in the Secret for Kafka" in refused[tuned.path]
        attempts = 0
        await until(lambda: attempts > 1, within=10)
        is_broken = False
        await until(lambda: world.receiver.ingest.find_route(tuned.path.encode()), within=10)
        assert await world.statuses(wire, tuned, BILLS) == [202, 202, 202, 202]
        attempts = 0
        await asyncio.sleep(0.2)
        assert not attempts, "nothing is left to try"


async def test_a_request_that_began_before_a_removal_is_finished(world: World) -> None:
    await world.serve(ORDERS)
    event = post(path=b"/shop/orders").replace(b"content-length: 0", b"content-length: 4")
    async with connected(world.port) as wire:
        before = world.receiver.state()["connections"]
        wire.send(event + b"ab")
        await until(lambda: before.receiving_bytes > 2)
        await world.remove(ORDERS)
        wire.send(b"cd" + post(path=b"/shop/orders"))
        assert await wire.statuses(2) == [202, 404]


async def test_an_event_that_waits_for_kafka_is_answered_after_a_removal(world: World) -> None:
    await world.serve(ORDERS)
    world.log.hold()
    asking = asyncio.create_task(world.hosted.ask(path="/shop/orders"))
    await until(lambda: bool(world.log.held))
    await world.remove(ORDERS)
    world.log.release()
    assert await asking == 202


async def test_it_is_ready_when_it_has_read_the_topic_and_not_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A 404 before that would be a lie: 503."""
    world = World(monkeypatch)
    world.contract.put(*ingress_record(ORDERS))
    world.fails = "Broker: Topic authorization failed"
    await world.start()
    waiting = f"the contract isn't read yet: {world.fails}"
    await until(lambda: world.receiver.ready() == (False, waiting))
    assert await world.hosted.ask(path="/shop/orders") == 503
    assert await world.hosted.ask(method="GET", path="/readyz") == 503
    world.fails = ""
    await until(lambda: world.receiver.ready()[0])
    assert await world.hosted.ask(path="/shop/orders") == 202
    world.fails = "Local: Broker transport failure"
    world.log.wake()
    await asyncio.sleep(0.05)
    assert world.receiver.ready()[0], "what was known counts"
    assert await world.hosted.ask(path="/shop/orders") == 202
    await world.stop()


@pytest.mark.parametrize(
    "poison",
    [
        lambda value: b"\xff",
        lambda value: b"",
        lambda value: json.dumps({**json.loads(value), "field of a newer operator": 1}).encode(),
        lambda value: value.replace(b'"orders"', b'"others"'),
    ],
    ids=["no-text", "empty", "newer", "another-path"],
)
async def test_a_record_that_can_not_be_used_takes_its_own_route_away_and_no_other(
    world: World, poison: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    await world.serve(ORDERS, BILLS)
    key, value = ingress_record(ORDERS)
    world.contract.put(key, poison(value))
    await world.is_read()
    async with connected(world.port) as wire:
        assert await world.statuses(wire, ORDERS, BILLS) == [503, 503, 202, 202]
        wire.send(post(path=b"/shop/others"))
        assert await wire.statuses(1) == [404], "which nobody declares"
        assert "/shop/orders can't be used" in caplog.text
        wire.send(request(b"GET", b"/contract", b"x"))
        told = json.loads((await wire.response()).body)
        assert (told["position"], told["ingresses"]) == (3, 1)
        assert set(told["refused"]) == {"/shop/orders"}
        await world.serve(ORDERS)
        assert await world.statuses(wire, ORDERS) == [202, 202]


@pytest.mark.conformance("KN-CHN-11", "DSP-19")
@pytest.mark.parametrize(
    ("path", "host", "original", "status"),
    [
        (b"/", HOST, None, 202),
        (b"/", HOST + b":8080", None, 202),
        (b"/", HOST.upper(), None, 202),
        (b"/?x=y", HOST, None, 202),
        (b"http://proxy/", HOST, None, 202),
        (b"/", b"kafka-channel-ingress", HOST, 202),
        (b"/", b"kafka-channel-ingress", HOST + b":80", 202),
        (b"/", HOST, b"another.example", 404),
        (b"/", b"x" + HOST, None, 404),
        (b"/", HOST + b".example", None, 404),
        (b"/", b"[::1]:8080", None, 404),
        (b"/shop", HOST, None, 404),
        (b"//" + HOST, b"x", None, 404),
        (b"/host:" + HOST, b"x", None, 404),
        (b"/shop/orders", b"another.example", b"third.example", 202),
        (b"/shop/bills", HOST, HOST, 404),
    ],
)
async def test_at_the_root_the_host_decides_and_elsewhere_the_path(
    world: World, path: bytes, host: bytes, original: bytes | None, status: int
) -> None:
    """KN-CHN-11, by both ways in; GET and POST find the same."""
    await world.serve(ORDERS)
    more = () if original is None else ((b"K-Original-Host", original),)
    probe = (b"K-Network-Probe", b"probe"), (b"K-Network-Hash", b"h"), *more
    async with connected(world.port) as wire:
        wire.send(post(path, host, *more) + request(b"GET", path, host, *probe))
        first, second = await wire.response(), await wire.response()
    assert first.status == status
    if status == 404:
        assert b"KafkaChannel's own host" in first.body
        assert second.status == 404
    else:
        assert second.headers[b"k-network-hash"] == b"h"
        assert second.headers[b"knafka-contract-position"] == b"1"
    if not path.startswith(b"http"):  # which is the server's business, in ASGI
        headers = ((b"host", host), *MINIMAL.headers, *more)
        plain = path.partition(b"?")[0].decode()
        assert await world.hosted.ask(headers=headers, path=plain) == status


async def test_requests_of_one_connection_may_each_have_a_host_of_their_own(world: World) -> None:
    await world.serve(ORDERS, BILLS)
    async with connected(world.port) as wire:
        for each in (ORDERS, BILLS, ORDERS, BILLS):
            wire.send(post(host=each.hosts[0].encode()))
        wire.send(post(host=b"nobody"))
        assert await wire.statuses(5) == [202, 202, 202, 202, 404]
    assert (world.stored("orders"), world.stored("bills")) == (2, 2)


async def test_of_two_channels_with_one_host_the_first_by_path_has_it(world: World) -> None:
    both = BILLS.model_copy(update={"hosts": ORDERS.hosts})
    for first, second in ((both, ORDERS), (ORDERS, both)):
        await world.serve(first, second)
        assert await world.hosted.ask(headers=((b"host", HOST), *MINIMAL.headers), path="/") == 202
    assert (world.stored("orders"), world.stored("bills")) == (0, 2)
    await world.remove(both)
    assert await world.hosted.ask(headers=((b"host", HOST), *MINIMAL.headers), path="/") == 202
    assert world.stored("orders") == 1


async def test_a_channels_own_limit_counts(world: World) -> None:
    await world.serve(ORDERS.model_copy(update={"max_event_bytes": 100}), BILLS)
    assert await world.hosted.ask([b"x" * 101], path="/shop/orders") == 413
    assert await world.hosted.ask([b"x" * 101], path="/shop/bills") == 202


async def test_metrics_of_a_channel_name_it_and_go_on_through_changes(world: World) -> None:
    """KN-DP-15."""
    await world.serve(ORDERS, BILLS)
    assert await world.hosted.ask(path="/shop/orders") == 202
    await world.serve(ORDERS.model_copy(update={"max_event_bytes": 100}))
    assert await world.hosted.ask(path="/shop/orders") == 202
    counted = 'knafka_receiver_events_total{channel="orders",code="202",namespace="shop"} 2.0'
    async with connected(world.port) as wire:
        wire.send(request(b"GET", b"/metrics", b"x"))
        assert counted in (await wire.response()).body.decode().splitlines()


async def test_without_a_topic_there_is_no_position(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    receiver = ReceiverFunction()
    broker = Ingress(
        namespace="ns", broker="b", topic="events", kafka=Kafka(bootstrap_servers="k:9092")
    )
    await receiver.start({"KNAFKA_INGRESSES": json.dumps([dump(broker)])})
    hosted = Hosted(world.log, receiver)
    assert await hosted.ask(method="GET", path="/contract") == 404
    probe = ((b"k-network-probe", b"probe"), (b"k-network-hash", b"h"))
    assert await hosted.ask(headers=probe, method="GET", path="/ns/b") == 200
    assert b"knafka-contract-position" not in dict(hosted.sent[0]["headers"])
    await receiver.stop()


async def test_it_is_not_alive_once_its_writer_can_store_nothing_without_any_channel(
    world: World,
) -> None:
    world.writer.failure = LogError("no certificate")
    assert await world.hosted.ask(method="GET", path="/healthz") == 503


@pytest.mark.conformance("KN-BRK-01")
async def test_a_receiver_of_one_broker_serves_that_and_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its neighbours stand in the same topic, readable or not."""
    world = World(monkeypatch)
    world.contract.put(b"/shop/orders", b"no contract")
    world.contract.put(b"/shop/mail", b"no contract")
    await world.start(path="/shop/bills")
    await world.serve(ORDERS, BILLS)
    async with connected(world.port) as wire:
        assert await world.statuses(wire, ORDERS, BILLS) == [404, 404, 202, 202]
        wire.send(request(b"GET", b"/contract", b"x"))
        told = json.loads((await wire.response()).body)
    assert told == {"position": 4, "ingresses": 1, "refused": {}}
    await world.stop()


@pytest.mark.conformance("KN-BRK-01")
async def test_a_receiver_whose_entry_is_lost_has_senders_try_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Somebody deleted the contract's topic, or Kafka lost it: 404 would be for good."""
    world = World(monkeypatch)
    await world.start(path="/shop/bills")
    await world.serve(ORDERS)
    async with connected(world.port) as wire:
        assert await world.statuses(wire, BILLS) == [503, 503]
        wire.send(post(path=b"/shop/orders"))
        assert await wire.statuses(1) == [404]
        await world.serve(BILLS)
        assert await world.statuses(wire, BILLS) == [202, 202]
        await world.remove(BILLS)
        assert await world.statuses(wire, BILLS) == [503, 503]
    await world.stop()


async def test_other_settings_of_its_producer_are_another_writer_and_lose_no_request(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(function, "UNUSED_WRITER_SECONDS", 0.0)
    await world.serve(ORDERS)
    first = world.writer
    set_otherwise = Kafka(bootstrap_servers="elsewhere:1", producer={"compression.type": "zstd"})
    await world.serve(ORDERS.model_copy(update={"kafka": set_otherwise}))
    assert len(world.made) == 2
    made = dict(world.made[1])  # type: ignore[call-overload]
    assert "zstd" in made.values()
    assert made["bootstrap.servers"] == "kafka:9092", "events go where the contract is"
    assert await world.hosted.ask(path="/shop/orders") == 202
    assert world.receiver.ingest.writers == [first, world.writer]
    await world.serve(ORDERS)
    await until(lambda: world.receiver.ingest.writers == [first])
    assert await world.hosted.ask(path="/shop/orders") == 202


async def test_settings_that_no_producer_may_have_are_refused(world: World) -> None:
    broken = Kafka(bootstrap_servers="kafka:9092", producer={"acks": "0"})
    await world.serve(ORDERS.model_copy(update={"kafka": broken}), BILLS)
    assert await world.hosted.ask(path="/shop/orders") == 503
    assert await world.hosted.ask(path="/shop/bills") == 202
    assert "acks" in world.receiver.ingest._contract.refused["/shop/orders"]  # type: ignore[union-attr]


async def test_one_that_starts_while_kafka_is_away_is_ready_and_refuses_what_it_cannot_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """KN-DP-09: another pod would do no better, and senders are to hear of it at once."""
    world = World(monkeypatch)
    world.fails = "no answer"
    await world.start(path="/shop/orders")
    assert await world.hosted.ask(method="GET", path="/health/readiness") == 503
    world.writer.away = LogError("no answer")
    await until(lambda: world.receiver.ready()[0], within=10)
    assert await world.hosted.ask(path="/shop/orders") == 503
    world.writer.away, world.fails = None, ""
    await world.serve(ORDERS)
    assert await world.hosted.ask(path="/shop/orders") == 202
    await world.stop()


async def test_the_root_of_a_brokers_own_receiver_is_its_path_once_it_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As where the environment has the Broker. One that follows all Brokers never has it, however
    few there are now: the next one would take the senders of `/` their Broker."""
    for only, status in (("/ns/broker", 202), (None, 404)):
        world = World(monkeypatch)
        await world.start(path=only)
        assert await world.hosted.ask(path="/") == 503
        await world.serve(ingress())
        async with connected(world.port) as wire:
            wire.send(post())
            assert await wire.statuses(1) == [status]
        assert await world.hosted.ask(path="/") == status
        await world.remove(ingress())
        assert await world.hosted.ask(path="/") == (503 if only else 404)
        await world.stop()
