"""A Sensor's partitions of which Kafka doesn't say whether their logs have lost their ends.

The metadata of their commits speak of records above the commits' offsets. Without them events would
count twice, and with them events in the place of lost ones would be skipped, so these partitions
wait; the others are read (BRK-14).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_INVALID,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from support.logs import SOON
from support.transactions import Holder

from knafka.clients.kafka.consumers import (
    kafka_elections,
    kafka_group_consumer,
    kafka_replaced_topics,
    kafka_transactional_member,
    kafka_undecided_partitions,
)
from knafka.clients.kafka.consumers.kafka_group_consumer import GroupProtocol
from knafka.clients.kafka.consumers.kafka_transactional_member import TransactionalMember
from knafka.clients.kafka.kafka_commits import NO_EPOCH
from knafka.core.commit_metadata import mark
from knafka.core.sensor.order import Place, Taken
from knafka.core.sensor.records import commit_metadata
from knafka.ports.log import OffsetAndMetadata, Record
from knafka.ports.transactions import Partition

TOPIC = "triggers"
METADATA = commit_metadata({}, None, Taken(20, Place(7, 0, 19)))
"""Says that records up to the offset 20 were taken."""
COMMITTED = OffsetAndMetadata(3, METADATA)
FIRST, SECOND = Partition(TOPIC, 0), Partition(TOPIC, 1)
OLD, NEW = "old45678901", "new45678901"
"""Marks of topics."""


class SensorConsumer:
    """A consumer of confluent-kafka that is assigned two partitions at its first poll. `silent`
    ones have no leader: no request that asks for them gets an answer."""

    def __init__(self) -> None:
        self.silent = {1}
        self.end_epoch = 1
        self.mark = ""
        self.asked: list[list[int]] = []
        self.paused: set[int] = set()
        self.starts: dict[int, int] = {}
        """Offset at which each partition was last assigned."""
        self.fetched: set[int] = set()
        """Partitions of which a record waits."""
        self.events: list[Callable[[], None]] = []
        self._on_assign: Any = None
        self._on_revoke: Any = None

    def subscribe(self, topics: list[str], on_assign: Any, on_revoke: Any, **others: Any) -> None:
        if self._on_assign is None:
            self._on_assign, self._on_revoke = on_assign, on_revoke
            both = [TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)]
            self.events.append(lambda: self._on_assign(self, both))

    def revoke(self, number: int) -> None:
        self.events.append(lambda: self._on_revoke(self, [TopicPartition(TOPIC, number)]))

    def consume(self, limit: int, timeout: float) -> list[Any]:
        time.sleep(0.001)
        for event in self.events:
            event()
        self.events = []
        fetched = self.fetched - self.paused
        self.fetched -= fetched
        return [
            SimpleNamespace(
                topic=lambda: TOPIC,
                partition=lambda number=number: number,
                offset=lambda: 20,
                error=lambda: None,
            )
            for number in sorted(fetched)
        ]

    def poll(self, timeout: float) -> None:
        """Return nothing: only who leaves the group polls."""

    def committed(self, partitions: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        metadata = mark(METADATA, self.mark)
        return [TopicPartition(TOPIC, each.partition, 3, metadata, 1) for each in partitions]

    def offsets_for_times(
        self, partitions: list[TopicPartition], timeout: float
    ) -> list[TopicPartition]:
        self.asked.append([each.partition for each in partitions])
        if self.silent & {each.partition for each in partitions}:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return [
            TopicPartition(TOPIC, each.partition, 90, "", self.end_epoch) for each in partitions
        ]

    def list_topics(self, topic: str, timeout: float) -> Any:
        leaders = {number: -1 if number in self.silent else 7 for number in (0, 1)}
        partitions = {number: SimpleNamespace(leader=each) for number, each in leaders.items()}
        return SimpleNamespace(topics={topic: SimpleNamespace(partitions=partitions)})

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        assert not self.starts.keys() & {each.partition for each in partitions}
        self.starts.update({each.partition: each.offset for each in partitions})

    def incremental_unassign(self, partitions: list[TopicPartition]) -> None:
        for each in partitions:
            del self.starts[each.partition]

    def pause(self, partitions: list[TopicPartition]) -> None:
        self.paused.update(each.partition for each in partitions)

    def resume(self, partitions: list[TopicPartition]) -> None:
        self.paused.difference_update(each.partition for each in partitions)

    def get_watermark_offsets(self, place: TopicPartition, *, cached: bool) -> tuple[int, int]:
        return (OFFSET_INVALID, OFFSET_INVALID)

    def position(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        return partitions

    def seek(self, partition: TopicPartition) -> None: ...
    def memberid(self) -> str:
        return "member"

    def close(self) -> None: ...


@pytest.fixture
def consumer(monkeypatch: pytest.MonkeyPatch) -> SensorConsumer:
    scripted = SensorConsumer()
    monkeypatch.setattr(kafka_group_consumer, "open_client", lambda *arguments: scripted)
    monkeypatch.setattr(kafka_transactional_member, "identity_of", lambda consumer: None)
    monkeypatch.setattr(kafka_elections, "ELECTION_TIMEOUT", 0.3)
    monkeypatch.setattr(kafka_undecided_partitions, "MIN_ASK_INTERVAL", 0.01)
    monkeypatch.setattr(kafka_replaced_topics, "FIRST_TOPIC_ID_DELAY", 3600.0)  # no real client
    return scripted


@pytest.fixture
def holder() -> Holder:
    return Holder()


@pytest.fixture
def member(consumer: SensorConsumer, holder: Holder) -> Iterator[TransactionalMember]:
    opened = TransactionalMember({}, "group", [TOPIC], holder, GroupProtocol.CLASSIC)
    yield opened
    opened.close()


def read_until(member: TransactionalMember, condition: Callable[[], object]) -> list[Record]:
    """Read until the condition holds."""
    records: list[Record] = []
    give_up_at = time.monotonic() + SOON
    while not condition() and time.monotonic() < give_up_at:
        records += member.read(10, 0.01)
    assert condition()
    return records


def test_a_partition_that_is_not_decided_holds_up_no_other(
    consumer: SensorConsumer, member: TransactionalMember, holder: Holder
) -> None:
    consumer.fetched = {0, 1}
    records = read_until(member, lambda: consumer.fetched == {1})
    assert [record.partition() for record in records] == [0]
    assert holder.committed == {FIRST: COMMITTED}
    assert consumer.paused == {1}

    consumer.silent = set()
    records = read_until(member, lambda: not consumer.fetched)
    assert [record.partition() for record in records] == [1]
    assert holder.committed == {FIRST: COMMITTED, SECOND: COMMITTED}
    assert (consumer.paused, consumer.starts) == (set(), {0: 3, 1: 3})
    asked = len(consumer.asked)
    member.read(10, 0.05)
    assert len(consumer.asked) == asked


def test_a_kafka_that_answers_without_leader_epochs_holds_up_nothing(
    consumer: SensorConsumer, member: TransactionalMember, holder: Holder
) -> None:
    """It will never say more. Its logs count as uncut."""
    consumer.silent, consumer.end_epoch = set(), NO_EPOCH
    read_until(member, lambda: holder.held)
    assert holder.committed == {FIRST: COMMITTED, SECOND: COMMITTED}
    assert consumer.paused == set()


def test_a_consumer_that_hears_nothing_in_time_is_asked_again_with_more_time(
    consumer: SensorConsumer,
    member: TransactionalMember,
    holder: Holder,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As over a slow connection, when a leader was elected since."""
    consumer.silent, consumer.end_epoch = set(), 2
    timeouts: list[float] = []

    def reached(connection: Any, places: Any, timeout: float) -> dict[Any, bool]:
        timeouts.append(timeout)
        return {} if len(timeouts) < 3 else {(each.topic, each.partition): True for each in places}

    monkeypatch.setattr(kafka_elections, "_find_reached", reached)
    read_until(member, lambda: holder.held)
    assert holder.committed == {FIRST: COMMITTED, SECOND: COMMITTED}
    assert timeouts == sorted(set(timeouts))


def test_a_partition_that_is_revoked_undecided_is_forgotten(
    consumer: SensorConsumer, member: TransactionalMember, holder: Holder
) -> None:
    read_until(member, lambda: holder.held)
    consumer.revoke(1)
    read_until(member, lambda: 1 not in consumer.starts)
    consumer.silent = set()
    asked = len(consumer.asked)
    member.read(10, 0.05)
    member.read(10, 0.05)
    assert (holder.held, holder.revocations) == ({FIRST}, [])
    assert len(consumer.asked) == asked


def test_an_undecided_partition_whose_commit_is_of_another_topic_is_read_from_its_start(
    consumer: SensorConsumer, member: TransactionalMember, holder: Holder
) -> None:
    """Its metadata don't matter then."""
    consumer.mark = OLD
    read_until(member, lambda: holder.held)
    member._replaced._ids.current[TOPIC] = f"{NEW}rest-of-it"
    read_until(member, lambda: SECOND in holder.held)
    assert holder.committed == {FIRST: None, SECOND: None}
    assert consumer.starts == {0: OFFSET_BEGINNING, 1: OFFSET_BEGINNING}
    assert consumer.paused == set()


def test_a_partition_of_a_replaced_topic_is_not_taken_over_before_it_is_ready(
    consumer: SensorConsumer, member: TransactionalMember, holder: Holder
) -> None:
    """As while its changelog has no leader: `Claims` would fail, and so would all partitions."""
    consumer.silent, consumer.mark = set(), OLD
    holder.missing = {SECOND}
    read_until(member, lambda: holder.held)
    member._replaced._ids.current[TOPIC] = f"{NEW}rest-of-it"
    read_until(member, lambda: holder.revocations)
    asked = holder.asked
    read_until(member, lambda: holder.asked > asked)
    assert (holder.held, consumer.paused) == ({FIRST}, {1})

    member._replaced.note_replaced(TOPIC)
    read_until(member, lambda: len(holder.revocations) == 2)
    assert (holder.held, consumer.paused) == ({FIRST}, {1})

    holder.missing = set()
    read_until(member, lambda: SECOND in holder.held)
    assert holder.committed == {FIRST: None, SECOND: None}
    assert consumer.starts == {0: OFFSET_BEGINNING, 1: OFFSET_BEGINNING}
    assert consumer.paused == set()
    commits = member.offsets_of({SECOND: OffsetAndMetadata(1)})
    assert [each.metadata for each in commits] == [mark("", NEW)]
    assert len(holder.revocations) == 2


def test_commits_of_a_partition_assigned_soon_after_its_topic_was_replaced_name_the_topic(
    consumer: SensorConsumer, member: TransactionalMember, holder: Holder
) -> None:
    """The member hears of the replacement after it has begun at a commit of the new topic."""
    consumer.silent, consumer.mark = set(), NEW
    member._replaced._ids.current[TOPIC] = f"{NEW}rest-of-it"
    read_until(member, lambda: len(holder.held) == 2)
    member._replaced.note_replaced(TOPIC)
    read_until(member, lambda: holder.revocations)
    commits = member.offsets_of({FIRST: OffsetAndMetadata(1), SECOND: OffsetAndMetadata(1)})
    assert [each.metadata for each in commits] == [mark("", NEW)] * 2
