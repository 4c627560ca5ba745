"""What a writer reports as stored is in the log, whatever becomes of its requests (KN-BRK-07)."""

from __future__ import annotations

import asyncio
import ctypes
import random
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path

import confluent_kafka
import pytest
import pytest_asyncio
from confluent_kafka import KafkaError, Producer
from support.fault_proxy import TOPIC, Fault, FaultProxy
from support.waiting import until

from knafka.clients.kafka.admin.kafka_admin import KafkaAdmin
from knafka.clients.kafka.producers import kafka_producer, kafka_writer_producers
from knafka.clients.kafka.producers.kafka_writer import KafkaWriter
from knafka.core.errors import LogError
from knafka.core.events.kafka_binding import Draft
from knafka_jobs.io.kafka_connection import KafkaConnection
from knafka_jobs.replay.send import ReplaySender
from knafka_local.kafka.kafka_distribution import KafkaDistribution
from knafka_local.kafka.kafka_server import KafkaServer

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.asyncio(loop_scope="module"),
]

NAME = TOPIC.decode()
SOON = 30.0
PARTITIONS = 4


class World:
    """A Kafka that makes topics by itself, as many do, behind a proxy that can do harm."""

    def __init__(self, proxy: FaultProxy, admin: KafkaAdmin) -> None:
        self.proxy = proxy
        self.admin = admin

    def writer(self) -> KafkaWriter:
        return KafkaWriter({"bootstrap.servers": self.proxy.bootstrap_servers})

    async def anew(self, partitions: int = 1) -> None:
        """Make the topic anew: no producer has stored anything in it."""
        self.proxy.faults.clear()
        await self.admin.delete_topic(NAME)
        async with asyncio.timeout(SOON):
            while not await self.admin.ensure_topic(NAME, partitions, 1, {}):
                pass

    async def stored(self) -> set[bytes | None]:
        return {record.value() for record in await self.admin.read_last(NAME, 100_000)}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(
    kafka_distribution: KafkaDistribution, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[World]:
    async with FaultProxy() as proxy:
        server = KafkaServer(
            kafka_distribution,
            tmp_path_factory.mktemp("behind-a-proxy"),
            port=proxy.kafka_port,
            properties={**proxy.advertised, "auto.create.topics.enable": "true"},
        )
        await server.start()
        admin = KafkaAdmin({"bootstrap.servers": proxy.bootstrap_servers})
        yield World(proxy, admin)
        await admin.close()
        await server.stop()


class Reports:
    """What became of each record."""

    def __init__(self) -> None:
        self.by_value: dict[bytes, LogError | None] = {}

    def append(self, writer: KafkaWriter, value: bytes, topic: str = NAME) -> None:
        def reported(error: LogError | None) -> None:
            assert value not in self.by_value, "reported twice"
            self.by_value[value] = error

        writer.append(topic, None, value, [], reported)

    def append_all(self, writer: KafkaWriter, values: Sequence[bytes]) -> None:
        def reported(error: LogError | None) -> None:
            assert values[0] not in self.by_value, "reported twice"
            self.by_value.update(dict.fromkeys(values, error))

        writer.append_all(NAME, [Draft(None, [], value) for value in values], reported)

    async def append_until_stored(self, writer: KafkaWriter, count: int) -> set[bytes]:
        """Append as many records together, again and again until they are acknowledged, and return
        their values. On a slow machine the delivery timeout of a test may be over before the first
        are sent."""
        while True:
            values = [b"after %d, %d" % (len(self.by_value), place) for place in range(count)]
            self.append_all(writer, values)
            await until(partial(self.by_value.__contains__, values[0]))
            if self.by_value[values[0]] is None:
                return {*values}

    @property
    def acknowledged(self) -> set[bytes]:
        return {value for value, error in self.by_value.items() if error is None}


def fail_for_good(producer: Producer) -> None:
    """Give it a fatal error by librdkafka's own means for tests."""
    (library,) = Path(confluent_kafka.__file__).parent.parent.glob(
        "confluent_kafka.libs/librdkafka-*.so*"
    )
    # The first field of a client, after Python's own two, is librdkafka's handle.
    handle = ctypes.c_void_p.from_address(id(producer) + object.__basicsize__)
    fail = ctypes.CDLL(str(library)).rd_kafka_test_fatal_error
    fail.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p]
    assert fail(handle, KafkaError.CLUSTER_AUTHORIZATION_FAILED, b"a test") == 0


async def test_a_rejected_record_is_not_acknowledged_by_the_success_of_the_next(
    world: World,
) -> None:
    """An idempotent producer did so in a partition in which it had stored nothing yet: Kafka takes
    any sequence number there, and librdkafka took the later one's success for the earlier one's."""
    await world.anew()
    writer, reports = world.writer(), Reports()
    await writer.reach(SOON)
    before = world.proxy.produced
    world.proxy.then(Fault.REJECT)
    reports.append(writer, b"first")
    await until(lambda: world.proxy.produced > before)
    reports.append(writer, b"second")
    await until(lambda: len(reports.by_value) == 2)
    assert reports.acknowledged == {b"first", b"second"}
    assert await world.stored() == {b"first", b"second"}
    await writer.close(SOON)


@pytest.mark.parametrize("together", [False, True], ids=["one by one", "appended together"])
async def test_whatever_becomes_of_requests_what_is_acknowledged_is_stored(
    world: World, monkeypatch: pytest.MonkeyPatch, together: bool
) -> None:
    """Many young writers, as after an outage in which receivers were started."""
    monkeypatch.setattr(kafka_producer, "DELIVERY_TIMEOUT", 2.0)
    await world.anew(PARTITIONS)
    chances = random.Random(12)
    faults = [Fault.NONE, Fault.REJECT, Fault.SWALLOW_ANSWER, Fault.CUT_BEFORE, Fault.CUT_AFTER]
    world.proxy.then(*chances.choices(faults, weights=[6, 4, 1, 1, 1], k=300))
    reports = Reports()

    async def write(number: int) -> None:
        writer = world.writer()
        await asyncio.sleep(chances.random())
        for batch in range(10):
            values = [b"%d %d %d" % (number, batch, place) for place in range(5)]
            if together:
                reports.append_all(writer, values)
            else:
                for value in values:
                    reports.append(writer, value)
            await asyncio.sleep(chances.random() / 20)
        await writer.close(SOON)

    await asyncio.gather(*(write(number) for number in range(20)))
    world.proxy.faults.clear()
    assert len(reports.by_value) == 20 * 10 * 5
    last = world.writer()
    await reports.append_until_stored(last, 5)
    await last.close(SOON)
    assert reports.acknowledged
    assert reports.acknowledged - await world.stored() == set()


async def test_a_replay_appends_each_event_though_kafka_rejects_a_request(world: World) -> None:
    """Transactional producers are idempotent; theirs have one request under way at a time."""
    await world.anew()
    connection = KafkaConnection(world.proxy.bootstrap_servers)
    large = b"x" * 600_000  # two of them don't fit into one request
    trigger = ("shop", "main", "mail")
    events: list[object] = [(str(each), *trigger, None, large, ()) for each in range(4)]
    sender = ReplaySender(connection, "a-replay", {trigger: NAME}, {}, None)
    world.proxy.then(Fault.REJECT)
    assert (await asyncio.to_thread(sender.send, 0, events)).sent == 4
    async with asyncio.timeout(SOON):  # a commit is seen a moment after it was acknowledged
        while len(await world.admin.read_last(NAME, 10)) < 4:
            pass


async def test_a_missing_topic_is_an_error_and_is_not_made(world: World) -> None:
    """With the cluster's defaults it would be kept for seven days, in one copy."""
    writer, reports = world.writer(), Reports()
    reports.append(writer, b"x", "nobody-made-this")
    await until(lambda: reports.by_value)
    assert reports.acknowledged == set()
    assert "nobody-made-this" not in await world.admin.topics()
    await writer.close(SOON)


async def test_a_producer_that_fails_for_good_is_replaced(world: World) -> None:
    """librdkafka says so in a poll alone; its `produce` goes on taking records, and sends none."""
    await world.anew()
    writer, reports = world.writer(), Reports()
    before = world.proxy.produced
    world.proxy.then(Fault.SWALLOW_ANSWER)
    reports.append(writer, b"held")
    await until(lambda: world.proxy.produced > before)
    fail_for_good(writer._producers.prompt._producer)
    await until(lambda: reports.by_value)
    assert reports.acknowledged == set()
    reports.append(writer, b"after")
    await until(lambda: len(reports.by_value) == 2)
    assert reports.acknowledged == {b"after"}
    assert b"after" in await world.stored()
    await until(lambda: not writer._producers.prompt._replaced)
    assert (writer.in_flight, writer.failure) == (0, None)
    await writer.close(SOON)


async def test_a_writer_whose_producer_cannot_be_replaced_says_so_until_it_can(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Liveness fails then, as a new process may do better."""
    monkeypatch.setattr(kafka_writer_producers, "POLL_IDLE", 0.01)
    await world.anew()
    writer, reports = world.writer(), Reports()
    await writer.reach(SOON)
    unusable = {"security.protocol": "SSL", "ssl.ca.pem": "no certificate"}
    with monkeypatch.context() as broken:
        prompt = writer._producers.prompt
        broken.setattr(prompt, "_connection", {**prompt._connection, **unusable})
        fail_for_good(prompt._producer)
        await until(lambda: writer.failure is not None)
        with pytest.raises(LogError):
            reports.append(writer, b"refused")
    await until(lambda: writer.failure is None)
    reports.append(writer, b"taken")
    await until(lambda: reports.by_value)
    assert reports.acknowledged == {b"taken"}
    await writer.close(SOON)


async def test_what_kafka_takes_none_of_is_refused_together_and_the_next_is_stored(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_producer, "DELIVERY_TIMEOUT", 2.0)
    await world.anew()
    writer, reports = world.writer(), Reports()
    await writer.reach(SOON)
    world.proxy.then(*[Fault.REJECT] * 10_000)
    reports.append_all(writer, refused := [b"refused %d" % place for place in range(100)])
    await until(lambda: len(reports.by_value) == 100)
    assert all(isinstance(reports.by_value[value], LogError) for value in refused)
    world.proxy.faults.clear()
    stored = await reports.append_until_stored(writer, 100)
    assert reports.acknowledged == stored
    uncertain = reports.by_value.keys() - stored - {*refused}  # not acknowledged after the faults
    assert await world.stored() - uncertain == stored
    assert writer.in_flight == 0
    await writer.close(SOON)
