"""One receiver process for many KafkaChannels on a real Kafka: they come and go while it runs."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from support.contracts import COMPACTED, KafkaContract, ingress_record
from support.functions import FunctionProcess
from support.kafka import Kafka, MakeTopic
from support.receiver_requests import MINIMAL, channel
from support.waiting import until
from support.wire import Wire, connected

from knafka.clients.kafka.admin.kafka_admin import KafkaAdmin
from knafka.core import contract
from knafka.core.contract import Ingress
from knafka.core.documents import dump
from knafka.settings import RECEIVER

pytestmark = pytest.mark.kafka

CHANNELS = 50
SENDERS = 4
SOON = 20.0


class World:
    """A process, its contract's topic, and senders that never stop."""

    def __init__(self, process: FunctionProcess, rules: KafkaContract, stack: AsyncExitStack):
        self.process = process
        self.rules = rules
        self.answered: list[bytes] = []
        """Events to those that were answered 202 once, ready for the wire."""
        self.statuses: Counter[int] = Counter()
        self.accepted = 0
        self._stack = stack
        self._sending = True

    async def connect(self) -> Wire:
        return await self._stack.enter_async_context(connected(self.process.port))

    def put(self, ingress: Ingress) -> None:
        self.rules.put(*ingress_record(ingress))

    async def status(self, wire: Wire, data: bytes) -> int:
        wire.send(data)
        status = (await wire.response()).status
        self.accepted += status == 202
        return status

    async def until(self, wire: Wire, data: bytes, status: int) -> None:
        async with asyncio.timeout(SOON):
            while await self.status(wire, data) != status:  # noqa: ASYNC110  # another process
                await asyncio.sleep(0.005)

    async def send(self) -> None:
        """An event to each of those that have answered, one after the other, on one connection."""
        wire = await self.connect()
        while self._sending:
            for each in list(self.answered):
                self.statuses[await self.status(wire, each)] += 1
            await asyncio.sleep(0.005)

    def stop(self) -> None:
        self._sending = False


def by_path(ingress: Ingress) -> bytes:
    return MINIMAL.wire(path=ingress.path.encode())


def by_host(ingress: Ingress) -> bytes:
    wire = MINIMAL.wire(path=b"/")
    return wire.replace(b"host: x", b"host: " + ingress.hosts[0].encode(), 1)


@pytest.fixture
async def world(kafka: Kafka, topic: MakeTopic, tmp_path: Path) -> AsyncIterator[World]:
    rules = topic(**COMPACTED)
    declared = contract.Receiver(
        kafka=contract.Kafka(bootstrap_servers=kafka.bootstrap_servers), contract_topic=rules
    )
    environment = {RECEIVER: json.dumps(dump(declared))}
    log = tmp_path / "receiver.log"
    async with AsyncExitStack() as stack:
        process = FunctionProcess("knafka.receiver", environment, log)
        await stack.enter_async_context(process)
        await process.ready()
        yield World(process, KafkaContract(kafka.bootstrap_servers, rules), stack)
        assert process.process.returncode is None
        assert "Traceback" not in process.log


@pytest.mark.conformance("KN-CHN-01", "KN-CHN-02", "CHN-6", "CHN-10", "CHN-11", "CHN-23", "CHN-29")
async def test_channels_come_and_go_and_none_that_has_answered_is_ever_unknown(
    world: World, kafka: Kafka, topic: MakeTopic
) -> None:
    """CHN-11, CHN-23, KN-CHN-08, KN-CHN-11: fifty, one after the other, in one process."""
    events = topic(4)
    channels = [channel(f"c-{number}", events) for number in range(CHANNELS)]
    pid = world.process.process.pid
    wire = await world.connect()
    async with asyncio.TaskGroup() as group:
        for _ in range(SENDERS):
            group.create_task(world.send())
        for each in channels:
            assert await world.status(wire, by_path(each)) == 404
            world.put(each)
            await world.until(wire, by_path(each), 202)
            world.answered.append(by_path(each))
            assert await world.status(wire, by_host(each)) == 202, "both at once"
            world.answered.append(by_host(each))
        before = world.statuses.total()
        for each in channels:  # each changes, and stays
            world.put(each.model_copy(update={"max_event_bytes": 1000}))
        await until(lambda: world.statuses.total() > before + 4 * CHANNELS)
        world.stop()
    assert set(world.statuses) == {202}
    assert world.process.process.pid == pid

    gone, rest = channels[: CHANNELS // 2], channels[CHANNELS // 2 :]
    for each in gone:
        world.rules.put(each.path.encode(), None)
    await world.until(wire, by_path(gone[-1]), 404)
    for each in gone:
        assert await world.status(wire, by_path(each)) == 404
        assert await world.status(wire, by_host(each)) == 404
    for each in rest:
        assert await world.status(wire, by_path(each)) == 202
        assert await world.status(wire, by_host(each)) == 202
    wire.send(b"GET /contract HTTP/1.1\r\nhost: x\r\n\r\n")
    assert json.loads((await wire.response()).body) == {
        "position": 2 * CHANNELS + len(gone),
        "ingresses": len(rest),
        "refused": {},
    }

    # What was answered 202 is stored, once each.
    admin = KafkaAdmin({"bootstrap.servers": kafka.bootstrap_servers})
    stored = len(list(await admin.read_last(events, 100_000)))
    await admin.close()
    assert stored == world.accepted


async def test_a_topic_that_takes_small_batches_only_may_come_at_any_time(
    world: World, topic: MakeTopic
) -> None:
    """The writer's limit of a batch is made before any topic is known."""
    small = channel("small", topic(max_message_bytes=20_000), max_event_bytes=15_000)
    world.put(small)
    wire = await world.connect()
    await world.until(wire, by_path(small), 202)
    event = by_path(small).replace(b"content-length: 0", b"content-length: 10000") + b"x" * 10_000
    for _ in range(50):
        wire.send(event)
    assert set(await wire.statuses(50)) == {202}
