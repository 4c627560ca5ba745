"""Finds partitions of which a consumer gets nothing although a new consumer would.

librdkafka keeps the leader epoch that it saw of a partition. If the topic is deleted and created
again, the new topic's epochs begin at 0, and librdkafka asks with the old epoch for ever, without
an error (confluentinc/librdkafka#4898, in 2.16.0). Even a new assignment doesn't help, only a new
consumer does. A position that stands still proves nothing: the partition may have no new record, or
only records of an open transaction. So a partition counts as stalled only if a new consumer, which
begins at the same position, gets something of it.

Not here: replacing the consumer (`kafka_membership`, `kafka_positioned`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeAlias

from confluent_kafka import (
    OFFSET_END,
    OFFSET_INVALID,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from knafka.clients.kafka.consumers.kafka_new_consumer import ask_new_consumer
from knafka.clients.kafka.kafka_client import LOST_OFFSET_ERRORS, Connection, PartitionKey
from knafka.clients.kafka.kafka_commits import NO_EPOCH, epoch_of
from knafka.core.errors import LogError

STALL_CHECK_INTERVAL: Final = 15.0
"""Seconds from one check of all positions to the next. Kafka is asked only for the ends of
partitions whose positions haven't moved meanwhile."""
SUSPECT_CHECK_INTERVAL: Final = 5.0
"""Seconds to the next check after a partition was assigned, or was found suspect: by then, a
consumer that works has long read on."""
MAX_STALL_CHECK_INTERVAL: Final = 60.0
"""Most seconds to the next check, after checks that blocked and found nothing, as with a partition
without a leader."""
STALL_REQUEST_TIMEOUT: Final = 2.0
"""Seconds that Kafka may take to say where partitions end; it takes milliseconds."""
NEW_CONSUMER_TIMEOUT: Final = 3.0
"""Seconds in which a new consumer must get something of a partition that counts as stalled."""

_State: TypeAlias = tuple[int, int | None]
"""The consumer's position in a partition, and the end of the partition that it has reported last;
None: it has reported none."""


class StalledPartitions:
    """Watches the partitions of one consumer; used on the consumer's thread."""

    def __init__(self, connection: Connection) -> None:
        """Begin without partitions. `connection`: the consumer's; it also opens the new
        consumers."""
        self._connection = connection
        self._starts: dict[PartitionKey, TopicPartition] = {}
        """The position at which the consumer began in each partition that it reads."""
        self._paused: set[PartitionKey] = set()
        """Partitions that aren't watched, as the consumer has paused them."""
        self._ends: dict[PartitionKey, int] = {}
        """The end of each partition that the consumer has reported last."""
        self._states: dict[PartitionKey, _State] = {}
        """State of each partition at the last check."""
        self._suspects: set[PartitionKey] = set()
        """Partitions of which the consumer should have read more before the last check."""
        self._interval = STALL_CHECK_INTERVAL
        """Seconds between two checks at present."""
        self._check_at = time.monotonic() + STALL_CHECK_INTERVAL
        """When the next check is due (`time.monotonic`)."""

    def begin(self, partitions: Iterable[TopicPartition]) -> None:
        """Watch partitions that the consumer reads from these positions, and that aren't paused."""
        for partition in partitions:
            self.drop([partition])
            key = _key(partition)
            self._starts[key] = partition
            # What `_unmoved_positions` finds if the consumer gets neither a record nor an end.
            self._states[key] = (OFFSET_INVALID, None)
        self._interval = STALL_CHECK_INTERVAL
        self._check_at = min(self._check_at, time.monotonic() + SUSPECT_CHECK_INTERVAL)

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop watching partitions that the consumer no longer reads."""
        for key in map(_key, partitions):
            self._starts.pop(key, None)
            self._ends.pop(key, None)
            self._states.pop(key, None)
            self._paused.discard(key)
            self._suspects.discard(key)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Don't watch these partitions until `resume`."""
        self._paused.update(map(_key, partitions))

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Watch paused partitions again, from now on."""
        for key in map(_key, partitions):
            if key in self._paused:
                self._paused.discard(key)
                self._states.pop(key, None)

    def note_end(self, message: Message) -> None:
        """Remember a partition's end. `message` is the event `_PARTITION_EOF`, which the consumer
        got instead of a record."""
        # confluent-kafka declares all three as optional; this event has them.
        topic, number, offset = message.topic(), message.partition(), message.offset()
        if topic is not None and number is not None and offset is not None:
            self._ends[topic, number] = offset

    def positions(self, consumer: Consumer) -> list[TopicPartition]:
        """Return the position at which the consumer goes on in each partition that it reads, paused
        ones included."""
        starts = list(self._starts.values())
        return [
            start if position.offset < 0 else position  # negative: no record was read yet
            for start, position in zip(starts, _positions(consumer, starts), strict=True)
        ]

    @property
    def paused(self) -> list[TopicPartition]:
        """Those of the consumer's assigned partitions that it has paused."""
        # `pause` may have named others, too.
        return [TopicPartition(*key) for key in self._paused & self._starts.keys()]

    def find(self, consumer: Consumer) -> list[TopicPartition]:
        """Return the partitions that have stalled; empty if the next check isn't due, or if Kafka
        doesn't answer. Call this only when no record waits in the consumer's queue. May block for
        `STALL_REQUEST_TIMEOUT` + `NEW_CONSUMER_TIMEOUT` seconds.

        A partition has stalled if it is a suspect in two checks in a row, and a new consumer gets
        something of it.
        """
        now = time.monotonic()
        if now < self._check_at:
            return []
        self._check_at = now + self._interval
        previous_suspects, self._suspects = self._suspects, set()
        unmoved = self._unmoved_positions(consumer)
        if not unmoved:
            return []
        try:
            suspects = self._select_suspects(consumer, unmoved)
            if suspects_again := suspects.keys() & previous_suspects:
                stalled = self._confirm_by_new_consumer(
                    {key: suspects[key] for key in suspects_again}
                )
                if not stalled:
                    self._check_less_often()
                return stalled
        except (KafkaException, LogError):  # Kafka doesn't answer, or refuses new clients
            self._check_less_often()
            return []
        if suspects:
            self._suspects = set(suspects)
            self._check_at = now + SUSPECT_CHECK_INTERVAL
        else:
            self._interval = STALL_CHECK_INTERVAL
        return []

    def _check_less_often(self) -> None:
        """Double the interval of checks, as the last check has blocked, found nothing, and delayed
        the reading of all partitions."""
        self._interval = min(2 * self._interval, MAX_STALL_CHECK_INTERVAL)
        self._check_at = time.monotonic() + self._interval

    def _unmoved_positions(self, consumer: Consumer) -> dict[PartitionKey, TopicPartition]:
        """Return the positions of partitions of which the consumer has got neither a record nor
        another end since the last check, without paused partitions. Also store the states of all
        watched partitions for the next check."""
        watched = [start for key, start in self._starts.items() if key not in self._paused]
        unmoved: dict[PartitionKey, TopicPartition] = {}
        for start, position in zip(watched, _positions(consumer, watched), strict=True):
            key = _key(start)
            state = (position.offset, self._ends.get(key))
            if self._states.get(key) == state:
                unmoved[key] = start if position.offset < 0 else position
            self._states[key] = state
        return unmoved

    def _select_suspects(
        self, consumer: Consumer, positions: Mapping[PartitionKey, TopicPartition]
    ) -> dict[PartitionKey, TopicPartition]:
        """Return the partitions, with their `positions`, of which the consumer should have read
        more: Kafka names another end of the partition than the consumer knows, or an earlier leader
        epoch, or answers with an error. Raises `KafkaException`."""
        end_queries = [TopicPartition(*key, OFFSET_END) for key in positions]
        suspects: dict[PartitionKey, TopicPartition] = {}
        for answer in consumer.offsets_for_times(end_queries, timeout=STALL_REQUEST_TIMEOUT):
            key = _key(answer)
            position = positions[key]
            if (
                answer.error is not None
                or answer.offset != self._known_end(key, position)
                or NO_EPOCH < epoch_of(answer) < epoch_of(position)
            ):
                suspects[key] = position
        return suspects

    def _known_end(self, key: PartitionKey, position: TopicPartition) -> int:
        """Return the partition's end as far as the consumer knows: its position, or the last end
        that it got if that is higher, as markers of transactions are no records. Negative if the
        consumer began at the partition's start and has got neither a record nor an end."""
        return max(position.offset, self._ends.get(key, position.offset))

    def _confirm_by_new_consumer(
        self, positions: Mapping[PartitionKey, TopicPartition]
    ) -> list[TopicPartition]:
        """Open a new consumer at these positions for at most `NEW_CONSUMER_TIMEOUT` seconds. Return
        the partitions of which it gets a record, an end or an error that the watched consumer
        didn't get. Raises `LogError` and `KafkaException`."""
        stalled = ask_new_consumer(
            self._connection,
            positions,
            NEW_CONSUMER_TIMEOUT,
            lambda consumer, starts: consumer.assign(starts),
            # None instead of False, so that only news count as an answer.
            lambda key, message: self._is_news(message, key, positions[key]) or None,
        )
        return [TopicPartition(*key) for key in stalled]

    def _is_news(self, message: Message, key: PartitionKey, position: TopicPartition) -> bool:
        """Whether the watched consumer, at its `position` in the partition `key`, should have got
        this message to the new consumer, too: a record, a lost offset, or an end of the partition
        that the watched consumer doesn't know."""
        error = message.error()
        if error is not None and error.code() == KafkaError._PARTITION_EOF:
            return message.offset() != self._known_end(key, position)
        return error is None or error.code() in LOST_OFFSET_ERRORS


def names_of(partitions: Iterable[TopicPartition]) -> str:
    """Return these partitions as text, such as `orders/0, orders/3`, for a log or an error."""
    return ", ".join(f"{partition.topic}/{partition.partition}" for partition in partitions)


def _key(partition: TopicPartition) -> PartitionKey:
    """Return topic and number of a partition."""
    return partition.topic, partition.partition


def _positions(consumer: Consumer, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
    """Return the consumer's positions in these partitions, in the same order; an offset is negative
    if no record was read."""
    return consumer.position(list(partitions)) if partitions else []
