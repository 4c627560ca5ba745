"""Finds partitions of which a consumer gets nothing although a new one would.

librdkafka keeps the leader epoch that it saw of a partition. If the topic is deleted and created
again, the new one's epochs begin at 0, and librdkafka asks with the old one for ever, without an
error (confluentinc/librdkafka#4898, in 2.16.0). Even a new assignment doesn't help, only a new
consumer does. A position that stands still proves nothing: the partition may have no new record, or
one of an open transaction. So a partition counts as stalled only if a new consumer, begun at
the same position, gets something of it.

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
"""Seconds from one look at all positions to the next. Kafka is asked only for the ends of those
that haven't moved meanwhile."""
SUSPECT_CHECK_INTERVAL: Final = 5.0
"""Seconds to the next look after a partition was assigned, or had another end than its position:
a consumer that works has long read on."""
MAX_STALL_CHECK_INTERVAL: Final = 60.0
"""Seconds to the next look at most, after looks that blocked and found nothing, such as at a
partition without a leader."""
STALL_REQUEST_TIMEOUT: Final = 2.0
"""Seconds that Kafka may take to say where partitions end; it takes milliseconds."""
NEW_CONSUMER_TIMEOUT: Final = 3.0
"""Seconds in which a new consumer must get something of a partition that counts as stalled."""

_State: TypeAlias = tuple[int, int | None]
"""A partition's position and the end that the consumer has reported last."""


class StalledPartitions:
    """Watches the partitions of one consumer; used on the consumer's thread."""

    def __init__(self, connection: Connection) -> None:
        """Begin without partitions; `connection` is that of the consumer."""
        self._connection = connection
        self._starts: dict[PartitionKey, TopicPartition] = {}
        """Where the consumer began, by partition that it reads."""
        self._paused: set[PartitionKey] = set()
        self._ends: dict[PartitionKey, int] = {}
        """The end that the consumer has reported last."""
        self._states: dict[PartitionKey, _State] = {}
        """State of each partition at the last look."""
        self._suspects: set[PartitionKey] = set()
        """Partitions that had another end than their position at the last look."""
        self._interval = STALL_CHECK_INTERVAL
        """Seconds between two looks at present."""
        self._check_at = time.monotonic() + STALL_CHECK_INTERVAL
        """When the next look is due (`time.monotonic`)."""

    def begin(self, partitions: Iterable[TopicPartition]) -> None:
        """Watch partitions that the consumer reads from these positions, and that aren't paused."""
        for partition in partitions:
            self.drop([partition])
            key = _key(partition)
            self._starts[key] = partition
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
        """Note the end of a partition that the consumer reports in this message."""
        topic, number, offset = message.topic(), message.partition(), message.offset()
        if topic is not None and number is not None and offset is not None:
            self._ends[topic, number] = offset

    def positions(self, consumer: Consumer) -> list[TopicPartition]:
        """Return the position at which the consumer continues in each partition, also in paused
        ones."""
        starts = list(self._starts.values())
        return [
            start if position.offset < 0 else position
            for start, position in zip(starts, _positions(consumer, starts), strict=True)
        ]

    @property
    def paused(self) -> list[TopicPartition]:
        """The paused partitions that the consumer reads."""
        return [TopicPartition(*key) for key in self._paused & self._starts.keys()]

    def find(self, consumer: Consumer) -> list[TopicPartition]:
        """Return the partitions that have stalled, none before the next look is due; to be called
        only when no record waits in the consumer's queue. May block for `STALL_REQUEST_TIMEOUT` and
        `NEW_CONSUMER_TIMEOUT` seconds together."""
        now = time.monotonic()
        if now < self._check_at:
            return []
        self._check_at = now + self._interval
        previous_suspects, self._suspects = self._suspects, set()
        unmoved = self._positions_without_news(consumer)
        if not unmoved:
            return []
        try:
            suspects = self._with_another_end(consumer, unmoved)
            if confirmed := suspects.keys() & previous_suspects:
                stalled = self._heard_by_new_consumer({key: suspects[key] for key in confirmed})
                if not stalled:
                    self._look_less_often()
                return stalled
        except (KafkaException, LogError):  # Kafka doesn't answer, or refuses new clients
            self._look_less_often()
            return []
        if suspects:
            self._suspects = set(suspects)
            self._check_at = now + SUSPECT_CHECK_INTERVAL
        else:
            self._interval = STALL_CHECK_INTERVAL
        return []

    def _look_less_often(self) -> None:
        """Double the interval of looks: the last one blocked, found nothing, and delayed the
        reading of all partitions."""
        self._interval = min(2 * self._interval, MAX_STALL_CHECK_INTERVAL)
        self._check_at = time.monotonic() + self._interval

    def _positions_without_news(self, consumer: Consumer) -> dict[PartitionKey, TopicPartition]:
        """Return the positions of the partitions that gave the consumer neither a record nor
        another end since the last look."""
        watched = [start for key, start in self._starts.items() if key not in self._paused]
        unmoved: dict[PartitionKey, TopicPartition] = {}
        for start, position in zip(watched, _positions(consumer, watched), strict=True):
            key = _key(start)
            state = (position.offset, self._ends.get(key))
            if self._states.get(key) == state:
                unmoved[key] = start if position.offset < 0 else position
            self._states[key] = state
        return unmoved

    def _with_another_end(
        self, consumer: Consumer, positions: Mapping[PartitionKey, TopicPartition]
    ) -> dict[PartitionKey, TopicPartition]:
        """Return the positions from which more should have been read: Kafka names another end of
        the partition, or another leader epoch, than the consumer knows, or none. Raises
        `KafkaException`."""
        end_queries = [TopicPartition(*key, OFFSET_END) for key in positions]
        answers = consumer.offsets_for_times(end_queries, timeout=STALL_REQUEST_TIMEOUT)
        return {
            key: positions[key]
            for key, answer in ((_key(answer), answer) for answer in answers)
            if answer.error is not None
            or answer.offset != self._known_end(key, positions[key])
            or NO_EPOCH < epoch_of(answer) < epoch_of(positions[key])
        }

    def _known_end(self, key: PartitionKey, position: TopicPartition) -> int:
        """Return the partition's end as far as the consumer knows. It may be higher than the
        position, as markers of transactions are no records. Negative if the consumer has got
        neither a record nor an end."""
        return max(position.offset, self._ends.get(key, position.offset))

    def _heard_by_new_consumer(
        self, positions: Mapping[PartitionKey, TopicPartition]
    ) -> list[TopicPartition]:
        """Open a new consumer at these positions for at most `NEW_CONSUMER_TIMEOUT` seconds. Return
        the partitions of which it gets a record, an end or an error that the watched consumer
        didn't get. Raises `LogError` if no consumer can be opened."""
        heard = ask_new_consumer(
            self._connection,
            positions,
            NEW_CONSUMER_TIMEOUT,
            lambda consumer, starts: consumer.assign(starts),
            lambda key, message: self._is_new(message, key, positions[key]) or None,
        )
        return [TopicPartition(*key) for key in heard]

    def _is_new(self, message: Message, key: PartitionKey, position: TopicPartition) -> bool:
        """Whether this message of the new consumer is one that the watched consumer should have
        got, too: a record, a lost offset, or an end of the partition `key` that it doesn't know.
        `position` is that of the watched consumer."""
        error = message.error()
        if error is not None and error.code() == KafkaError._PARTITION_EOF:
            return message.offset() != self._known_end(key, position)
        return error is None or error.code() in LOST_OFFSET_ERRORS


def names_of(partitions: Iterable[TopicPartition]) -> str:
    """Return these partitions as text for a log or an error."""
    return ", ".join(f"{partition.topic}/{partition.partition}" for partition in partitions)


def _key(partition: TopicPartition) -> PartitionKey:
    """Return topic and number of a partition."""
    return partition.topic, partition.partition


def _positions(consumer: Consumer, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
    """Return the consumer's positions in these partitions, in their order; an offset is negative if
    no record was read."""
    return consumer.position(list(partitions)) if partitions else []
