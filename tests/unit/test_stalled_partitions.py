"""Which partitions count as stalled, on consumers that are scripts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from knafka.clients.kafka.consumers import kafka_new_consumer, kafka_stalled_partitions
from knafka.clients.kafka.consumers.kafka_stalled_partitions import StalledPartitions
from knafka.clients.kafka.kafka_statistics import ClientStatistics

TOPIC = "events"


class Heard:
    """A message of partition 0: a record, an end or an error."""

    def __init__(self, offset: int, code: int | None = None) -> None:
        self._offset, self._code = offset, code

    def error(self) -> KafkaError | None:
        return None if self._code is None else KafkaError(self._code)

    def topic(self) -> str:
        return TOPIC

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._offset


class World:
    """A consumer that reads partition 0, and what a new consumer hears of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.position_ = TopicPartition(TOPIC, 0, 5, "", 2)
        self.end, self.end_epoch = 5, 2
        self.ends_asked = 0
        self.assigned: list[TopicPartition] = []
        self.heard_by_new: list[Heard] = []
        monkeypatch.setattr(kafka_stalled_partitions, "STALL_CHECK_INTERVAL", 0.0)
        monkeypatch.setattr(kafka_stalled_partitions, "SUSPECT_CHECK_INTERVAL", 0.0)
        monkeypatch.setattr(kafka_new_consumer, "open_client", lambda *arguments: self)
        self.stalled = StalledPartitions({})
        self.stalled.begin([TopicPartition(TOPIC, 0, OFFSET_BEGINNING)])

    # The consumer that is watched

    def position(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        return [self.position_ for _ in partitions]

    def offsets_for_times(self, partitions: list[TopicPartition], timeout: float) -> Any:
        self.ends_asked += 1
        return [TopicPartition(TOPIC, 0, self.end, "", self.end_epoch) for _ in partitions]

    # The new one

    def assign(self, partitions: list[TopicPartition]) -> None:
        self.assigned = partitions

    def poll(self, timeout: float) -> Heard | None:
        return self.heard_by_new.pop(0) if self.heard_by_new else None

    def pause(self, partitions: list[TopicPartition]) -> None: ...

    def close(self) -> None: ...

    def looks(self, count: int = 3) -> bool:
        """Look so often; returns whether the partition counts as stalled."""
        return any([self.stalled.find(cast(Consumer, self)) for _ in range(count)])


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_one_whose_end_has_moved_has_stalled_if_a_new_consumer_hears_of_it(world: World) -> None:
    world.end = 7
    world.heard_by_new = [Heard(5)]
    assert not world.looks(2)
    assert world.looks(1)
    assert [(each.offset, each.leader_epoch) for each in world.assigned] == [(5, 2)]


def test_one_of_which_a_new_consumer_hears_nothing_either_has_not(world: World) -> None:
    world.end = 7
    assert not world.looks()
    assert world.assigned


def test_a_new_log_that_ends_where_the_old_one_was_read_to_is_known_by_its_epoch(
    world: World,
) -> None:
    world.end_epoch = 0
    world.heard_by_new = [Heard(5, KafkaError._AUTO_OFFSET_RESET)]
    assert world.looks()


def test_one_that_was_never_heard_of_is_read_by_a_new_consumer_from_where_it_began(
    world: World,
) -> None:
    """As a group that gets the new topic assigned by KIP-848."""
    world.position_ = TopicPartition(TOPIC, 0)
    world.end = 0
    world.heard_by_new = [Heard(0, KafkaError._PARTITION_EOF)]
    assert world.looks()
    assert [each.offset for each in world.assigned] == [OFFSET_BEGINNING]


def test_one_that_is_at_its_end_or_before_a_marker_is_not_read_by_a_new_consumer(
    world: World,
) -> None:
    assert not world.looks()
    world.end = 6
    world.stalled.note_end(cast(Message, Heard(6, KafkaError._PARTITION_EOF)))
    assert not world.looks(5)
    assert not world.assigned


def test_of_one_that_moves_or_is_paused_the_end_is_not_asked_for(world: World) -> None:
    world.end = 100
    for offset in (5, 6, 7):
        world.position_ = TopicPartition(TOPIC, 0, offset, "", 2)
        assert not world.looks(1)
    paused = [TopicPartition(TOPIC, 0)]
    world.stalled.pause(paused)
    assert not world.looks()
    world.stalled.resume(paused)
    assert not world.looks(1)
    assert world.ends_asked == 0
    assert not world.looks(1)
    assert world.ends_asked == 1


def test_a_new_consumer_goes_on_where_the_former_one_was(world: World) -> None:
    world.stalled.pause([TopicPartition(TOPIC, 0)])
    assert [each.offset for each in world.stalled.positions(cast(Consumer, world))] == [5]
    assert [each.partition for each in world.stalled.paused] == [0]
    world.position_ = TopicPartition(TOPIC, 0)
    positions = world.stalled.positions(cast(Consumer, world))
    assert [each.offset for each in positions] == [OFFSET_BEGINNING]


def test_after_looks_that_blocked_in_vain_it_looks_less_often(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as at a partition without a leader: each look delays the other partitions' records."""
    seconds = [0.0]
    clock = SimpleNamespace(monotonic=lambda: seconds[0])
    monkeypatch.setattr(kafka_stalled_partitions, "time", clock)
    monkeypatch.setattr(kafka_stalled_partitions, "STALL_CHECK_INTERVAL", 10.0)
    asked_at: list[float] = []

    def ask(partitions: object, timeout: float) -> None:
        asked_at.append(seconds[0])
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    monkeypatch.setattr(world, "offsets_for_times", ask)
    world.stalled = StalledPartitions({})
    world.stalled.begin([TopicPartition(TOPIC, 0, 5)])
    for second in range(150):
        seconds[0] = float(second)
        assert not world.looks(1)
    assert asked_at == [10.0, 30.0, 70.0, 130.0]


def test_a_new_consumer_reports_no_statistics(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its end would leave a client's figures behind that nobody has."""
    opened: list[dict[str, Any]] = []

    def open_one(_: object, configuration: dict[str, Any]) -> World:
        opened.append(configuration)
        return world

    monkeypatch.setattr(kafka_new_consumer, "open_client", open_one)
    connection = {"client.id": "reader", **ClientStatistics(1.0).connection}
    world.stalled = StalledPartitions(connection)
    world.stalled.begin([TopicPartition(TOPIC, 0, OFFSET_BEGINNING)])
    world.end = 7
    world.looks()
    (configuration,) = opened
    assert configuration["client.id"] == "reader"
    assert not configuration.keys() & ClientStatistics(1.0).connection.keys()
