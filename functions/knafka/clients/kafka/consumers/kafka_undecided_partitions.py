"""Holds back partitions until Kafka has said whether their commits' metadata still hold.

A Sensor can't begin without the metadata, or events would count twice, nor with metadata that
describe lost records, or events in their place would be skipped (`kafka_elections`). Nor can it
begin without the state that it holds for the partition, which it reads from another topic
(`Claims.find_unready`). If Kafka doesn't answer in time, as for a partition without a leader, the
partition stays assigned, but it is paused and its member doesn't own it yet. Kafka is asked again
between reads, less and less often, while the other partitions are read.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, TypeAlias

from confluent_kafka import OFFSET_INVALID, Consumer, TopicPartition

from knafka.clients.kafka.consumers.kafka_cut_logs import assign_checked
from knafka.clients.kafka.consumers.kafka_elections import (
    NO_ELECTION,
    REACH_TIMEOUT,
    LeaderElection,
    elections_since,
)
from knafka.clients.kafka.consumers.kafka_group_consumer import start_position_of
from knafka.clients.kafka.consumers.kafka_stalled_partitions import names_of
from knafka.clients.kafka.kafka_client import Connection, raising_log_errors
from knafka.ports.transactions import Partition

log = logging.getLogger(__name__)

MIN_ASK_INTERVAL: Final = 1.0
"""Seconds until Kafka is asked again for the first time; the interval doubles each time."""
MAX_ASK_INTERVAL: Final = 60.0
"""Most seconds until Kafka is asked again."""
MAX_REACH_TIMEOUT: Final = 15.0
"""Most seconds for which a repeated request waits for a new consumer's answers, which take long
over a slow connection. Other partitions aren't read meanwhile."""

_Decided: TypeAlias = Sequence[tuple[TopicPartition, LeaderElection]]
"""Commits whose partitions may be read, as it is known whether the commits' metadata hold
(`LeaderElection.holds`)."""


class UndecidedPartitions:
    """The assigned partitions of one consumer that it may not read yet; used on its thread."""

    def __init__(
        self,
        connection: Connection,
        find_unready: Callable[[Collection[Partition]], Collection[Partition]],
    ) -> None:
        """Begin without partitions. `connection`: the consumer's. `find_unready` gets partitions,
        and returns the ones whose state can't be read now (`Claims.find_unready`)."""
        self._connection = connection
        self._find_unready = find_unready
        self._commits: dict[Partition, TopicPartition] = {}
        """The commit of each partition that is held back."""
        self._interval = MIN_ASK_INTERVAL
        """Seconds from the next request at `_ask_at` to the one after it."""
        self._ask_at = 0.0
        """When Kafka is asked the next time (`time.monotonic`)."""

    @property
    def partitions(self) -> Sequence[Partition]:
        """The partitions that are held back."""
        return list(self._commits)

    def hold_back_undecided(
        self, consumer: Consumer, committed: Sequence[TopicPartition]
    ) -> _Decided:
        """Ask whether partitions that were just started may be read from these commits, and return
        the decided commits. The other partitions are held back: they are logged and paused, and
        `ask_again` asks about them again. Blocks as long as `elections_since`."""
        self.drop(committed)
        decided = self._take_decided(consumer, committed, REACH_TIMEOUT)
        undecided = [entry for entry in committed if _partition_of(entry) in self._commits]
        for entry in undecided:
            log.warning(
                "partition %d of %s isn't read yet: Kafka doesn't say whether its log has lost its "
                "end, or what is held for it can't be read; Kafka is asked again",
                entry.partition,
                entry.topic,
            )
        if undecided:
            consumer.pause([TopicPartition(*_partition_of(entry)) for entry in undecided])
            self._interval = MIN_ASK_INTERVAL
            self._ask_at = time.monotonic() + self._interval
        return decided

    def ask_again(self, consumer: Consumer) -> _Decided:
        """If it is time (`_ask_at`), ask again whether the partitions that are held back may be
        read. Make the consumer read those that are decided now, from their commits, and return
        these commits; empty if there are none. Blocks as long as `elections_since`. Raises
        `LogError` if one of the decided partitions can't be started; then all stay held back."""
        if not self._commits or time.monotonic() < self._ask_at:
            return []
        # The longer Kafka hasn't answered, the longer and the rarer the requests get.
        timeout = min(REACH_TIMEOUT + self._interval, MAX_REACH_TIMEOUT)
        self._interval = min(2 * self._interval, MAX_ASK_INTERVAL)
        decided = self._take_decided(consumer, list(self._commits.values()), timeout)
        self._ask_at = time.monotonic() + self._interval
        starts = [start_position_of(entry) for entry, _ in decided]
        if starts:
            # These partitions are assigned already, but paused: assigned anew, they start at their
            # commits, and `assign_checked` ends the pause.
            with raising_log_errors():
                consumer.incremental_unassign(
                    [TopicPartition(*_partition_of(start)) for start in starts]
                )
            assign_checked(consumer, starts)
            log.info("Kafka has answered: %s are read now", names_of(starts))
            self.drop(starts)  # comes last: if a call above raises, they stay held back
        return decided

    def forget_commit(self, partition: Partition) -> bool:
        """Forget the commit of a partition that is held back, as that commit is of another topic:
        the partition will begin at its start, and the next `ask_again` asks about it. Returns
        True; or, if the partition isn't held back, does nothing and returns False."""
        if partition not in self._commits:
            return False
        self._commits[partition] = TopicPartition(*partition, OFFSET_INVALID)
        self._interval = MIN_ASK_INTERVAL
        self._ask_at = time.monotonic()
        return True

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop holding these partitions back. They stay paused in librdkafka until they are
        resumed."""
        for partition in partitions:
            self._commits.pop(_partition_of(partition), None)

    def _take_decided(
        self, consumer: Consumer, committed: Sequence[TopicPartition], reach_timeout: float
    ) -> _Decided:
        """Ask Kafka whether a leader was elected since each commit (`elections_since`, with
        `reach_timeout`), and `Claims` whether it is ready. Return the decided commits, and store
        the others in `_commits`."""
        elections = elections_since(consumer, self._connection, committed, reach_timeout)
        unready = self._find_unready([_partition_of(entry) for entry in committed])
        decided: list[tuple[TopicPartition, LeaderElection]] = []
        for entry in committed:
            partition = _partition_of(entry)
            election = elections.get(partition, NO_ELECTION)
            if not election.is_answered or partition in unready:
                self._commits[partition] = entry
                continue
            # A Kafka that answers without leader epochs will never say more.
            holds = True if election.holds is None else election.holds
            decided.append((entry, election._replace(holds=holds)))
        return decided


def _partition_of(partition: TopicPartition) -> Partition:
    """Return topic and number of a partition."""
    return Partition(partition.topic, partition.partition)
