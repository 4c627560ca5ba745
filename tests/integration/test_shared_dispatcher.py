"""Many Triggers in one process on a real Kafka: order, nothing lost, moves between processes."""

from __future__ import annotations

import asyncio
import json
import struct
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from itertools import pairwise
from pathlib import Path
from typing import cast

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from support.contracts import COMPACTED, KafkaContract
from support.functions import FunctionProcess
from support.kafka import Kafka, MakeTopic, fill
from support.traffic import Behaviour, CountingSubscriber, succeed

from knafka.clients.kafka.admin.kafka_admin import KafkaAdmin
from knafka.core import contract
from knafka.core.contract import Delivery, Egress, Shard, Sink
from knafka.core.documents import dump
from knafka.core.drain import ShardProgress
from knafka.core.events.event import Event
from knafka.core.events.kafka_binding import to_record
from knafka.settings import DRAIN_AT_START, EGRESS, SHARD

pytestmark = pytest.mark.kafka

KEYS, PER_KEY = 30, 20
ALL = KEYS * PER_KEY
SOON = 60.0


class World:
    """A topic, a Trigger for each behaviour, and the processes that deliver."""

    def __init__(
        self, bootstrap: str, topic: str, rules: str, folder: Path, stack: AsyncExitStack
    ) -> None:
        self.bootstrap = bootstrap
        self.contract = KafkaContract(bootstrap, rules)
        self.topic = topic
        self.subscribers: list[CountingSubscriber] = []
        self.egresses: list[Egress] = []
        self.admin = KafkaAdmin({"bootstrap.servers": bootstrap})
        self._folder = folder
        self._stack = stack
        self._started = 0

    async def triggers(self, *behaviours: Behaviour) -> None:
        for number, behave in enumerate(behaviours):
            subscriber = await self._stack.enter_async_context(CountingSubscriber(behave))
            self.subscribers.append(subscriber)
            egress = Egress(
                namespace="test", broker="b", trigger=f"t-{number}", topic=self.topic,
                group=f"{self.topic}-{number}", dead_letter_topic="unused",
                subscriber=Sink(url=subscriber.url),
                delivery=Delivery(retry=1000, backoff_delay=0.2),
                kafka=contract.Kafka(bootstrap_servers=self.bootstrap),
            )  # fmt: skip
            self.egresses.append(egress)

    def fill(self, per_key: int = PER_KEY) -> None:
        fill(self.bootstrap, self.topic, KEYS, per_key)

    @property
    def shard(self) -> str:
        return f"{self.topic}-shard"

    async def shared(self, egresses: Sequence[Egress] | None = None) -> FunctionProcess:
        """One that delivers these, or all."""
        wanted = self.egresses if egresses is None else egresses
        self.contract.write(self.shard, *wanted)
        self.contract.remove(*(each for each in self.egresses if each not in wanted))
        return await self.following()

    async def following(self, **environment: str) -> FunctionProcess:
        """One that delivers what stands in the contract's topic."""
        shard = Shard(
            group=self.shard,
            kafka=contract.Kafka(bootstrap_servers=self.bootstrap),
            contract_topic=self.contract.topic,
        )
        return await self._start({SHARD: json.dumps(dump(shard)), **environment})

    async def own(self, egress: Egress) -> FunctionProcess:
        return await self._start({EGRESS: json.dumps(dump(egress))})

    async def _start(self, environment: dict[str, str]) -> FunctionProcess:
        self._started += 1
        log = self._folder / f"log-{self._started}"
        whole = {DRAIN_AT_START: "true", **environment}
        process = FunctionProcess("knafka.dispatcher", whole, log)
        await self._stack.enter_async_context(process)
        await process.ready()
        return process

    async def arrived(self, *which: int, count: int = ALL) -> None:
        """Each of these has got all events, in order per key."""
        for number in which:
            arrivals = self.subscribers[number].arrivals
            await arrivals.reach(count, within=SOON)
            for key in arrivals.by_key:
                first = arrivals.first(key)
                assert first == sorted(first)

    async def lag(self, number: int) -> int:
        group = self.egresses[number].group
        return (await self.admin.lags([group], self.topic))[group].total

    async def without_lag(self, *which: int) -> None:
        async with asyncio.timeout(SOON):
            for number in which:
                while await self.lag(number):  # noqa: ASYNC110  # Kafka tells nobody
                    await asyncio.sleep(0.2)


@pytest.fixture
async def world(kafka: Kafka, topic: MakeTopic, tmp_path: Path) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        rules = topic(**COMPACTED)
        world = World(kafka.bootstrap_servers, topic(partitions=3), rules, tmp_path, stack)
        yield world
        await world.admin.close()


async def fail(key: str, number: int) -> int:
    return 500


async def hang(key: str, number: int) -> int:
    await asyncio.sleep(SOON)
    return 200


async def hesitate(key: str, number: int) -> int:
    await asyncio.sleep(0.02)
    return 200


@pytest.mark.conformance("KN-CHN-03", "CHN-2", "CHN-13", "CHN-27", "CHN-31", "DSP-1", "DSP-3")
async def test_triggers_that_fail_or_hang_keep_no_other_from_its_events(world: World) -> None:
    """DSP-2, DSP-3: one dispatcher for many, each with its own group and offsets."""
    world.fill()
    await world.triggers(succeed, fail, hesitate, hang, succeed)
    process = await world.shared()
    await world.arrived(0, 2, 4)
    await world.without_lag(0, 2, 4)
    assert await world.lag(1) == ALL
    assert await world.lag(3) == ALL
    for number in (0, 2, 4):
        assert world.subscribers[number].arrivals.count == ALL, "each once"
    await process.terminate(30)


@pytest.mark.conformance("CHN-31")
async def test_what_a_killed_process_had_not_committed_is_delivered_again_in_order(
    world: World,
) -> None:
    world.fill()
    await world.triggers(hesitate, hesitate, succeed)
    process = await world.shared()
    await world.subscribers[0].arrivals.reach(ALL // 3, within=SOON)
    await process.kill()
    await process.start()
    await world.arrived(0, 1, 2)
    await world.without_lag(0, 1, 2)


@pytest.mark.conformance("CHN-3", "DSP-5")
async def test_partitions_move_to_another_process_without_a_repetition(world: World) -> None:
    await world.triggers(hesitate, hesitate)
    first = await world.shared()
    world.fill()
    await world.subscribers[0].arrivals.reach(ALL // 4, within=SOON)
    second = await world.shared()
    await world.arrived(0, 1)
    await first.terminate(30)
    fill(world.bootstrap, world.topic, KEYS, PER_KEY * 2)
    await world.arrived(0, 1, count=ALL * 2)
    await world.without_lag(0, 1)
    await second.terminate(30)
    for each in world.subscribers:
        assert each.arrivals.count == ALL * 3


async def test_a_trigger_moves_out_and_back_in_under_load(world: World) -> None:
    await world.triggers(hesitate, succeed)
    both = await world.shared()
    world.fill()
    await world.subscribers[0].arrivals.reach(ALL // 4, within=SOON)
    await both.terminate(30)
    rest = await world.shared(world.egresses[1:])
    own = await world.own(world.egresses[0])
    await world.subscribers[0].arrivals.reach(ALL // 2, within=SOON)
    await own.terminate(30)
    await rest.terminate(30)
    both = await world.shared()
    await world.arrived(0, 1)
    await world.without_lag(0, 1)
    await both.terminate(30)
    assert [each.arrivals.count for each in world.subscribers] == [ALL, ALL]


async def test_a_trigger_that_a_dispatcher_of_its_own_still_delivers_is_left_to_it(
    world: World,
) -> None:
    await world.triggers(succeed, succeed)
    own = await world.own(world.egresses[0])
    world.fill()
    await world.arrived(0)
    both = await world.shared()
    await world.arrived(1)
    await world.without_lag(0, 1)
    assert [each.arrivals.count for each in world.subscribers] == [ALL, ALL]
    await own.terminate(30)
    fill(world.bootstrap, world.topic, KEYS, PER_KEY * 2)
    await world.arrived(0, 1, count=ALL * 2)
    await both.terminate(30)


# The contract's topic


async def tell(process: FunctionProcess, shard: str) -> Progress:
    """Ask for a drain of the shard, and follow what is told of it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", process.port)
    body = json.dumps({"shard": shard, "idle": "PT1H"}).encode()
    writer.write(
        b"POST /drain HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    )
    return Progress(reader, writer)


class Progress:
    """The lines of one request, as they come."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.lines: list[ShardProgress] = []
        self._writer = writer
        self._grown = asyncio.Event()
        self._reading = asyncio.create_task(self._read(reader))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        async for line in reader:
            if line.startswith(b"{"):  # between the lines are the sizes of the chunks
                self.lines.append(ShardProgress.model_validate_json(line))
                self._grown.set()

    async def reach(self, position: int) -> None:
        """Until it says that it delivers by the contract up to there."""
        async with asyncio.timeout(SOON):
            while not self.lines or self.lines[-1].contract < position:
                self._grown.clear()
                await self._grown.wait()

    def close(self) -> None:
        self._writer.close()
        self._reading.cancel()


class Clock:
    """A subscriber's behaviour that notes when its events came."""

    def __init__(self) -> None:
        self.times: list[float] = []

    async def __call__(self, key: str, number: int) -> int:
        self.times.append(asyncio.get_running_loop().time())
        await asyncio.sleep(0.005)
        return 200

    def gap(self, since: float, until: float) -> float:
        """The longest time without an event."""
        within = [since, *(each for each in self.times if since < each < until), until]
        return max(b - a for a, b in pairwise(within))


async def send_steadily(world: World, stop: asyncio.Event) -> int:
    """About 100 events a second over all keys, until it is to stop; how many for each key."""
    producer = Producer({"bootstrap.servers": world.bootstrap, "enable.idempotence": True})
    number = 0
    while not stop.is_set():
        for key in range(KEYS):
            named = {"specversion": "1.0", "id": f"{key}-{number}", "source": "/s", "type": "t"}
            draft = to_record(Event({**named, "subject": str(key)}, b"x"))
            headers: list[tuple[str, str | bytes | None]] = [*draft.headers]
            producer.produce(world.topic, draft.value, draft.key, headers=headers)
            if key % 3 == 0:
                producer.poll(0)
                await asyncio.sleep(0.03)
        number += 1
    assert await asyncio.to_thread(producer.flush, 60) == 0
    return number


async def test_triggers_come_change_and_go_and_their_neighbours_do_not_notice(
    world: World,
) -> None:
    """DSP-2: none of a neighbour's events is lost, repeated or held up."""
    clocks = [Clock(), Clock()]
    await world.triggers(*clocks, succeed)
    neighbours, third = world.egresses[:2], world.egresses[2]
    world.contract.write(world.shard, *neighbours)
    process = await world.following(**{DRAIN_AT_START: "false"})
    progress = await tell(process, world.shard)
    stop = asyncio.Event()
    sending = asyncio.create_task(send_steadily(world, stop))
    await world.subscribers[0].arrivals.reach(100, within=SOON)
    loop = asyncio.get_running_loop()
    began = loop.time()
    await progress.reach(world.contract.write(world.shard, third))
    await world.subscribers[2].arrivals.reach(200, within=SOON)
    other = Egress.model_validate({**dump(third), "filters": [{"suffix": {"id": "-7"}}]})
    await progress.reach(world.contract.write(world.shard, other))
    changed_at = world.subscribers[2].attempts
    await asyncio.sleep(3)
    await progress.reach(world.contract.remove(third))
    removed_at = world.subscribers[2].attempts
    await asyncio.sleep(2)
    ended = loop.time()
    stop.set()
    per_key = await sending
    await world.arrived(0, 1, count=KEYS * per_key)
    await world.without_lag(0, 1)
    for number in (0, 1):
        assert world.subscribers[number].arrivals.count == KEYS * per_key, "each once"
    gaps = [each.gap(began, ended) for each in clocks]
    print("longest gaps:", gaps)
    assert max(gaps) < 1.5
    assert removed_at - changed_at < 50, "few end with -7"
    assert world.subscribers[2].attempts == removed_at
    progress.close()
    await process.terminate(30)


async def test_a_process_after_kill_9_reads_the_same_contract(world: World) -> None:
    await world.triggers(hesitate, succeed, succeed)
    world.contract.write(world.shard, *world.egresses)
    world.contract.remove(world.egresses[2])
    world.fill()
    process = await world.following()
    await world.subscribers[0].arrivals.reach(ALL // 3, within=SOON)
    await process.kill()
    await process.start()
    await world.arrived(0, 1)
    await world.without_lag(0, 1)
    assert world.subscribers[2].attempts == 0


async def test_it_is_ready_when_its_contract_can_be_read_and_not_before(
    world: World, kafka: Kafka
) -> None:
    await world.triggers(succeed)
    world.fill()
    world.contract = KafkaContract(kafka.bootstrap_servers, f"{world.topic}-rules")
    starting = asyncio.create_task(world.following())
    await asyncio.sleep(5)
    assert not starting.done()
    assert await world.admin.ensure_topic(world.contract.topic, 1, 1, {"cleanup.policy": "compact"})
    end = world.contract.write(world.shard, *world.egresses)
    process = await starting
    await world.arrived(0)
    progress = await tell(process, world.shard)
    await progress.reach(end)
    progress.close()
    await process.terminate(30)
    await world.admin.delete_topic(world.contract.topic)


async def test_a_contract_that_is_deleted_and_written_anew_is_read_again(world: World) -> None:
    await world.triggers(succeed, succeed)
    world.contract.write(world.shard, *world.egresses, *world.egresses)
    world.fill()
    process = await world.following()
    await world.arrived(0, 1)
    await world.admin.delete_topic(world.contract.topic)
    async with asyncio.timeout(SOON):
        while not await world.admin.ensure_topic(world.contract.topic, 1, 1, {}):  # noqa: ASYNC110
            await asyncio.sleep(0.2)
    world.contract.write(world.shard, world.egresses[1])
    fill(world.bootstrap, world.topic, KEYS, PER_KEY * 2)
    await world.arrived(1, count=ALL * 2)
    async with asyncio.timeout(SOON):
        while b'trigger="t-0"' in (await process.get("/metrics"))[1]:  # noqa: ASYNC110
            await asyncio.sleep(0.2)
    await process.terminate(30)


async def test_a_poisonous_record_takes_its_trigger_away_and_no_other(world: World) -> None:
    await world.triggers(succeed, succeed)
    world.contract.write(world.shard, *world.egresses)
    world.contract.put(b"junk", b"\xff{")
    world.contract.put(world.egresses[0].group.encode(), b'{"shard": "x", "newer": true}')
    world.fill()
    process = await world.following()
    await world.arrived(1)
    assert world.subscribers[0].attempts == 0
    world.contract.write(world.shard, world.egresses[0])
    await world.arrived(0)
    await process.terminate(30)


async def test_each_drain_of_a_shard_commits_every_partition_though_nothing_has_changed(
    world: World,
) -> None:
    """Kafka forgets what a group without members has committed by the age of its last commit."""
    await world.triggers(succeed)
    world.fill()
    process = await world.shared()
    await world.arrived(0)
    await world.without_lag(0)
    await process.terminate(30)
    group = world.egresses[0].group
    before = await asyncio.to_thread(commits_of, world.bootstrap, group)
    process = await world.following()
    async with asyncio.timeout(SOON):
        while True:
            now = await asyncio.to_thread(commits_of, world.bootstrap, group)
            if all(now[number] > before[number] for number in range(3)):
                break
            await asyncio.sleep(0.5)
    await process.terminate(30)


def commits_of(bootstrap: str, group: str) -> Counter[int]:
    """How many commits of the group Kafka has stored, by partition."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "unused", "enable.partition.eof": True,
                "enable.auto.commit": False, "auto.offset.reset": "earliest"}  # fmt: skip
    consumer = Consumer(settings)
    parts = consumer.list_topics("__consumer_offsets", 30).topics["__consumer_offsets"].partitions
    consumer.assign([TopicPartition("__consumer_offsets", n, OFFSET_BEGINNING) for n in parts])
    found: Counter[int] = Counter()
    left = set(parts)
    while left:
        for message in consumer.consume(500, 1.0):
            if message.error() is not None:
                left.discard(cast(int, message.partition()))  # its end
                continue
            key = message.key() or b""
            version, size = struct.unpack_from(">hh", key)
            if version <= 1 and key[4 : 4 + size].decode() == group and message.value():
                found[struct.unpack(">i", key[-4:])[0]] += 1
    consumer.close()
    return found
