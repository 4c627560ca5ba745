"""Records that hold no event: one dead letter each, in a topic of their Broker, however many
Triggers read them (decision 0031). Dispatchers of their own, in memory, on fake time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from support.drains import (
    BROKER_DEAD,
    DEAD,
    FAR,
    TOPIC,
    NoTopics,
    ScriptedSubscriber,
    World,
    accept,
    until,
)
from support.memory.admin import MemoryAdmin
from support.memory.log import MemoryLog, MemoryReader, MemoryWriter
from support.memory.tail import MemoryTail

from knafka.core.contract import DEAD_LETTER_TOPIC_CONFIG, MAX_RECORD_BYTES, Order, TopicSettings
from knafka.core.dead_letter import Failure, Origin, dead_letter_of, origin_of
from knafka.core.delivery import Done, Reason, Retry
from knafka.core.drain import DrainProgress
from knafka.core.errors import LogError
from knafka.core.events.kafka_binding import Draft
from knafka.dispatcher.engine.clients import Clients
from knafka.dispatcher.engine.drain import Drain
from knafka.dispatcher.engine.sending import broker_letters
from knafka.dispatcher.engine.sending.appending import DeadLetterTopic, append
from knafka.dispatcher.engine.sending.broker_letters import (
    DELAY_AFTER_OTHERS,
    TURN_WINDOW,
    BrokerDeadLetters,
)
from knafka.ports.log import Record

pytestmark = pytest.mark.looptime

NO_EVENT = [("ce_specversion", b"1.0")]
SETTINGS = TopicSettings(partitions=1, replication=3, config={**DEAD_LETTER_TOPIC_CONFIG, "x": "y"})
TRIGGERS = 38


class Trigger:
    """One with a dispatcher of its own, which is a process of its own."""

    def __init__(self, world: World, number: int, **egress: Any) -> None:
        names = {"trigger": f"t{number}", "group": f"g{number}", "dead_letter_topic": f"d{number}"}
        self.world = world
        self.egress = world.egress.model_copy(update={**names, **egress})
        self.writer = MemoryWriter(world.log)
        self.tail = MemoryTail(world.log, BROKER_DEAD)
        topic = DeadLetterTopic(BROKER_DEAD, SETTINGS, self.writer, world.topics)
        self.letters = BrokerDeadLetters(topic, self.tail)
        self.subscriber = ScriptedSubscriber(accept)

    def begin(self, idle: float = 2.0) -> asyncio.Task[DrainProgress]:
        egress, log = self.egress, self.world.log
        self.drain = Drain(
            egress,
            Clients(
                lambda assignment: MemoryReader(log, egress.group, egress.topic, assignment),
                self.writer,
                self.subscriber,
                self.world.topics,
                self.letters,
            ),
            asyncio.get_running_loop().time,
        )
        self.drain.idle = idle
        return asyncio.create_task(self.drain.run())

    @property
    def committed(self) -> int:
        found = self.world.log.group(self.egress.group).committed.get((TOPIC, 0))
        return found.offset if found else 0


def triggers(count: int, world: World | None = None) -> list[Trigger]:
    world = world or World()
    return [Trigger(world, number) for number in range(count)]


async def drained(some: Sequence[Trigger]) -> Sequence[DrainProgress]:
    return await asyncio.gather(*(each.begin() for each in some))


def letter(offset: int, topic: str = TOPIC, partition: int = 0, value: bytes = b"data") -> Draft:
    """As another dispatcher has written it."""
    failure = Failure("", Reason.UNDECODABLE, 0, 1.0, 1.0)
    origin = Origin("ns", "broker", "", topic, partition, offset)
    return Draft(None, *dead_letter_of(NO_EVENT, value, failure, origin))


def store_letter(log: MemoryLog, offset: int, timestamp: int | None = None, **of: Any) -> None:
    draft = letter(offset, **of)
    log.create(BROKER_DEAD)
    log.store(BROKER_DEAD, draft.key, draft.value, draft.headers, timestamp=timestamp)


async def test_38_triggers_have_one_dead_letter_of_a_record_and_one_topic() -> None:
    """CE-K8: they had 38 dead letters, in 38 topics."""
    every = triggers(TRIGGERS)
    world = every[0].world
    world.log.store(TOPIC, b"k", b"data", NO_EVENT)
    world.send("1")
    progress = await drained(every)
    assert len(world.records_of(BROKER_DEAD)) == 1
    assert set(world.log.topics) == {TOPIC, BROKER_DEAD}
    assert world.log.descriptions[BROKER_DEAD].config == SETTINGS.config
    assert [each.committed for each in every] == [2] * TRIGGERS
    assert sorted(each.dead_lettered for each in progress) == [0] * (TRIGGERS - 1) + [1]
    assert sorted(each.filtered for each in progress) == [0] + [1] * (TRIGGERS - 1)
    assert [each.dead_letters for each in progress if each.dead_letters] == [
        {"undecodable-record": 1}
    ]
    assert all(each.delivered == 1 for each in progress)


async def test_the_dead_letter_is_no_triggers_and_tells_where_its_record_lies() -> None:
    (one,) = triggers(1)
    one.world.log.store(TOPIC, b"k", b"data", [*NO_EVENT, ("ce_knafkatrigger", b"mine")])
    await drained([one])
    (record,) = one.world.records_of(BROKER_DEAD)
    headers = dict(record.headers() or ())
    assert (record.key(), record.value(), headers["ce_specversion"]) == (b"k", b"data", b"1.0")
    assert headers["ce_knafkareason"] == b"undecodable-record"
    assert (headers["ce_knafkanamespace"], headers["ce_knafkabroker"]) == (b"ns", b"broker")
    assert not {"ce_knafkatrigger", "ce_knativeerrordest"} & headers.keys()
    assert origin_of(record.headers() or []) == (TOPIC, 0, 0)


async def test_a_trigger_that_reads_it_later_writes_no_other_one() -> None:
    one, *others = triggers(4)
    one.world.log.store(TOPIC, b"k", b"data", NO_EVENT)
    await drained([one])
    for each in others:
        await drained([each])
    assert len(one.world.records_of(BROKER_DEAD)) == 1
    assert [each.committed for each in others] == [1] * 3


async def test_a_process_that_reads_its_record_again_finds_its_letter() -> None:
    one, again = triggers(2)
    again.egress = one.egress
    one.world.log.store(TOPIC, b"k", b"data", NO_EVENT)
    await drained([one])
    one.world.log.group(one.egress.group).committed.clear()
    await drained([again])
    await drained([one])
    assert len(one.world.records_of(BROKER_DEAD)) == 1


@pytest.mark.parametrize("order", Order)
async def test_nothing_waits_behind_a_record_that_holds_no_event(order: Order) -> None:
    """It has no order, though it may have an event's key."""
    one = Trigger(World(), 0, order=order)
    one.letters._draw = lambda: 1.0
    one.world.log.store(TOPIC, b"k", b"data", NO_EVENT)
    one.world.send("1", "k")
    running = one.begin(idle=FAR)
    await asyncio.sleep(TURN_WINDOW / 2)
    assert (one.subscriber.ids, one.committed) == (["1"], 0)
    await asyncio.sleep(TURN_WINDOW)
    assert one.committed == 2
    one.drain.stop()
    await running


async def test_one_that_has_written_waits_no_more_and_others_let_it_go_first() -> None:
    first, second = triggers(2)
    first.letters._draw, second.letters._draw = lambda: 0.1, lambda: 0.5
    log = first.world.log
    log.store(TOPIC, b"k", b"data", NO_EVENT)
    running = [first.begin(FAR), second.begin(FAR)]
    await until(lambda: first.drain.counts.events.dead_lettered == 1)
    await until(lambda: second.drain.counts.events.filtered == 1)
    for _ in range(1000):
        log.store(TOPIC, b"k", b"data", NO_EVENT)
    began = asyncio.get_running_loop().time()
    await until(lambda: first.drain.counts.events.dead_lettered == 1001)
    assert asyncio.get_running_loop().time() - began < 0.1
    await until(lambda: second.drain.counts.events.filtered == 1001)
    # Once the first is gone the second takes over.
    first.drain.stop()
    await running[0]
    log.store(TOPIC, b"k", b"data", NO_EVENT)
    began = asyncio.get_running_loop().time()
    await until(lambda: second.drain.counts.events.dead_lettered == 1)
    assert (
        DELAY_AFTER_OTHERS
        < asyncio.get_running_loop().time() - began
        < DELAY_AFTER_OTHERS + TURN_WINDOW
    )
    second.drain.stop()
    await running[1]
    assert len(first.world.records_of(BROKER_DEAD)) == 1002


@pytest.mark.conformance("KN-DLV-09")
async def test_nobody_settles_the_record_before_its_dead_letter_is_durable() -> None:
    every = triggers(3)
    log = every[0].world.log
    log.store(TOPIC, b"k", b"data", NO_EVENT)
    log.fail(LogError("Kafka is away"))
    running = [each.begin() for each in every]
    await asyncio.sleep(60)
    assert [each.committed for each in every] == [0] * 3
    log.fail(None)
    await asyncio.gather(*running)
    assert len(every[0].world.records_of(BROKER_DEAD)) == 1
    assert [each.committed for each in every] == [1] * 3


@pytest.mark.conformance("KN-DLV-09")
async def test_where_it_cant_be_looked_the_record_waits() -> None:
    (one,) = triggers(1)
    one.world.log.store(TOPIC, b"k", b"data", NO_EVENT)
    one.tail.failing = LogError("Kafka is away")
    running = one.begin()
    await asyncio.sleep(60)
    progress = one.drain.progress()
    assert (one.committed, progress.unsettled) == (0, 1)
    assert "internal-error" not in one.drain.counts.failures
    one.tail.failing = None
    await running
    assert (one.committed, len(one.world.records_of(BROKER_DEAD))) == (1, 1)


async def test_one_that_may_not_read_the_topic_writes_without_looking() -> None:
    """At least once: nothing is held up for a right that earlier releases didn't need."""
    one, other = triggers(2)
    one.world.log.store(TOPIC, b"k", b"data", NO_EVENT)
    other.tail.failing = LogError("Read on topic is refused", denied="topic")
    await drained([one])
    await drained([other])
    assert len(one.world.records_of(BROKER_DEAD)) == 2
    assert [one.committed, other.committed] == [1, 1]


@pytest.mark.conformance("KN-DLV-09")
async def test_where_no_topic_may_be_made_the_record_waits_for_one() -> None:
    world = World()
    world.topics = NoTopics()
    (one,) = triggers(1, world)
    world.log.store(TOPIC, b"k", b"data", NO_EVENT)
    running = one.begin()
    await asyncio.sleep(60)
    assert one.committed == 0
    world.log.create(BROKER_DEAD)
    await running
    assert (one.committed, len(world.records_of(BROKER_DEAD))) == (1, 1)


async def test_an_own_dead_letter_sink_gets_no_record_that_holds_no_event() -> None:
    """It takes events; where it was sent before decision 0031 it wasn't either."""
    world = World(sink=True)
    (one,) = triggers(1, world)
    world.log.store(TOPIC, b"k", b"data", NO_EVENT)
    await drained([one])
    assert (one.subscriber.ids, len(world.records_of(BROKER_DEAD))) == ([], 1)


async def test_a_contract_without_the_brokers_topic_keeps_it_as_any_dead_letter() -> None:
    """That of an earlier release, and that of a topic that one Trigger alone reads."""
    world = World()
    world.log.store(TOPIC, b"k", b"data", NO_EVENT)
    assert (await world.run()).dead_lettered == 1
    assert len(world.records_of(DEAD)) == 1


async def test_of_a_record_too_large_for_the_topic_a_stub_is_kept_and_found() -> None:
    one, other = triggers(2)
    one.world.log.store(TOPIC, None, b"\xff" * (MAX_RECORD_BYTES - 50), [("no", b"event")])
    await drained([one])
    await drained([other])
    (stub,) = one.world.records_of(BROKER_DEAD)
    assert (stub.value(), dict(stub.headers() or ())["ce_knafkaomitted"]) == (None, b"data")


# What is remembered, and from where it is read


class Alone:
    """`BrokerDeadLetters` that is asked without a drain, and writes at once."""

    def __init__(self, config: dict[str, str] | None = None) -> None:
        self.log = MemoryLog()
        self.log.create(TOPIC, config=config)
        self.writer = MemoryWriter(self.log)
        self.tail = MemoryTail(self.log, BROKER_DEAD)
        topic = DeadLetterTopic(BROKER_DEAD, SETTINGS, self.writer, MemoryAdmin(self.log))
        self.letters = BrokerDeadLetters(topic, self.tail, lambda: 0.0)

    def record(self, timestamp: int | None = None) -> Record:
        return self.log.store(TOPIC, None, b"data", NO_EVENT, timestamp=timestamp)

    async def keep(self, record: Record) -> Done | Retry | None:
        async def write() -> Done:
            draft = letter(record.offset())
            assert await append(self.writer, BROKER_DEAD, draft) is None
            return Done()

        return await self.letters.write_once(record, write)

    @property
    def stored(self) -> int:
        return len(self.log.topics[BROKER_DEAD][0])


BY_LOG = {"message.timestamp.type": "LogAppendTime"}
DAY = 86_400_000


async def test_it_reads_the_topic_from_a_while_before_its_record() -> None:
    alone = Alone(BY_LOG)
    for day in range(9):
        store_letter(alone.log, 1000 + day, timestamp=day * DAY)
    records = [alone.record(7 * DAY + 1000), alone.record(3 * DAY)]
    assert isinstance(await alone.keep(records[0]), Done)
    assert len(alone.tail.read) == 2, "letters of the seventh day and of the eighth"
    # An older record: its letter may lie before what was read.
    store_letter(alone.log, 1, timestamp=3 * DAY + 1)
    assert await alone.keep(records[1]) is None


async def test_of_a_senders_time_nothing_follows() -> None:
    alone = Alone()
    record = alone.record(99 * DAY)
    store_letter(alone.log, record.offset(), timestamp=1)
    assert await alone.keep(record) is None


async def test_it_reads_no_further_than_to_the_letter_and_then_on_from_there() -> None:
    alone = Alone()
    records = [alone.record() for _ in range(1500)]
    for record in records:
        store_letter(alone.log, record.offset())
    assert await alone.keep(records[0]) is None
    assert len(alone.tail.read) == broker_letters.LETTERS_PER_READ
    assert await alone.keep(records[-1]) is None
    assert len(alone.tail.read) == 1500


async def test_what_it_remembers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a letter that is forgotten a second one is written: at least once."""
    monkeypatch.setattr(broker_letters, "MAX_REMEMBERED_LETTERS", 10)
    alone = Alone()
    records = [alone.record() for _ in range(20)]
    for record in records:
        assert isinstance(await alone.keep(record), Done)
    assert len(alone.letters._known) == 10
    assert await alone.keep(records[-1]) is None
    assert isinstance(await alone.keep(records[0]), Done)
    assert alone.stored == 21


async def test_many_that_ask_at_once_look_once() -> None:
    alone = Alone()
    records = [alone.record() for _ in range(100)]
    await asyncio.gather(*map(alone.keep, records))
    assert (alone.stored, alone.tail.asked) == (100, 2), "one under way, and one that began after"


async def test_what_a_look_that_was_cut_short_has_read_is_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A drain that ends cancels its attempts; the next one asks the same process."""
    alone = Alone()
    record, given = alone.record(), asyncio.Event()
    store_letter(alone.log, record.offset())
    read_on = alone.tail.read_on

    async def read_and_hang(limit: int) -> Sequence[Record]:
        await read_on(limit)
        given.set()
        return await asyncio.Future()

    monkeypatch.setattr(alone.tail, "read_on", read_and_hang)
    asking = asyncio.create_task(alone.keep(record))
    await given.wait()
    asking.cancel()
    await asyncio.wait({asking})
    monkeypatch.undo()
    assert await alone.keep(record) is None


async def test_a_topic_that_was_deleted_is_read_anew() -> None:
    alone = Alone()
    first, second = alone.record(), alone.record()
    await alone.keep(first)
    await MemoryAdmin(alone.log).delete_topic(BROKER_DEAD)
    store_letter(alone.log, second.offset())
    assert await alone.keep(second) is None


Headers = list[tuple[str, bytes]]


@pytest.mark.parametrize(
    "change",
    [
        lambda headers: [],
        lambda headers: [each for each in headers if each[0] != "ce_knafkaoffset"],
        lambda headers: [*headers, ("ce_knafkaoffset", b"-1")],
        lambda headers: [*headers, ("ce_knafkaoffset", b"9" * 5000)],
        lambda headers: [*headers, ("ce_knafkaoffset", "²".encode())],
        lambda headers: [*headers, ("ce_knafkapartition", b"")],
        lambda headers: [*headers, ("ce_knafkatopic", b"\xff")],
    ],
)
async def test_what_says_nothing_of_an_origin_is_nobodys_letter(
    change: Callable[[Headers], Headers],
) -> None:
    """Whoever may write the topic may have written anything."""
    alone = Alone()
    record = alone.record()
    alone.log.create(BROKER_DEAD)
    alone.log.store(BROKER_DEAD, None, b"data", change(list(letter(record.offset()).headers)))
    assert isinstance(await alone.keep(record), Done)


@pytest.mark.parametrize(
    "other",
    [{"topic": "others"}, {"partition": 1}, {"offset": 1}, {"value": b"of one before"}],
)
async def test_a_letter_of_another_record_is_not_this_ones(other: dict[str, Any]) -> None:
    alone = Alone()
    record = alone.record()
    store_letter(alone.log, **{"offset": 0, **other})
    assert isinstance(await alone.keep(record), Done)


async def test_closing_it_closes_what_it_reads_with() -> None:
    alone = Alone()
    await alone.letters.close(1.0)
    assert alone.tail.is_closed
