"""Finds out whether what a commit's metadata say still holds after a leader was elected.

    commit: offset 3, epoch 0, "9 to 19 are settled"       log: 0 ... 4 | 5 ... 99
                                                                epoch 0 | epoch 1

The metadata speak of records above the commit's offset, which an unclean election may have taken
away though all below it are still there: in the example, other records are at 9 to 19 now. After a
clean election they are the same. Kafka tells by the end of the commit's leader epoch: only if that
is behind the last record that the metadata speak of, they hold.

Not here: whether the log reaches up to the commit's own offset (`kafka_cut_logs`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from knafka.clients.kafka.consumers.kafka_cut_logs import assign_checked
from knafka.clients.kafka.consumers.kafka_new_consumer import ask_new_consumer
from knafka.clients.kafka.kafka_client import LOST_OFFSET_ERRORS, Connection, PartitionKey
from knafka.clients.kafka.kafka_commits import NO_EPOCH, end_epochs, epoch_of, metadata_of
from knafka.core.commit_metadata import described_until
from knafka.core.errors import LogError
from knafka.ports.log import OffsetAndMetadata

ELECTION_TIMEOUT: Final = 2.0
"""Seconds that Kafka may take to say in which leader epochs the logs of new partitions end; it
takes milliseconds."""
REACH_TIMEOUT: Final = 3.0
"""Seconds in which a consumer must learn whether logs still have all records that the commits'
metadata describe."""


class LeaderElection(NamedTuple):
    """Says of a partition that a leader was, or may have been, elected since its commit."""

    end_epoch: int
    """The leader epoch in which the log ends now; `NO_EPOCH`: Kafka doesn't say."""
    holds: bool | None
    """Whether the commit's metadata speak only of records that are still there; None: Kafka doesn't
    say."""
    is_answered: bool = True
    """False: Kafka has not answered in time, so it may say more when it is asked again."""

    def commit(self, committed: TopicPartition) -> OffsetAndMetadata | None:
        """Return the commit, with its metadata if they hold; None: the group has committed
        nothing."""
        if committed.offset < 0:
            return None
        return OffsetAndMetadata(committed.offset, metadata_of(committed) if self.holds else "")


NO_ELECTION: Final = LeaderElection(NO_EPOCH, True)
"""Stands for a partition that `elections_since` leaves out: its commit's metadata hold."""


def elections_since(
    consumer: Consumer,
    connection: Connection,
    committed: Sequence[TopicPartition],
    reach_timeout: float = REACH_TIMEOUT,
) -> Mapping[PartitionKey, LeaderElection]:
    """Return the elections of a leader since a group's commits, which `consumer` has read, by topic
    and partition; also those that may have happened. Commits without a leader epoch are left out,
    and so are commits whose metadata say nothing of records above their offsets. Blocks for
    `ELECTION_TIMEOUT` and `reach_timeout` seconds at most. Raises nothing."""
    reaches: dict[PartitionKey, int | None] = {}
    asked: list[TopicPartition] = []
    for entry in committed:
        if entry.error is None and metadata_of(entry) and epoch_of(entry) != NO_EPOCH:
            reach = described_until(entry.offset, metadata_of(entry))
            if reach != entry.offset:
                asked.append(entry)
                reaches[entry.topic, entry.partition] = reach
    ends = end_epochs(consumer, asked, ELECTION_TIMEOUT) if asked else {}
    elections: dict[PartitionKey, LeaderElection] = {}
    probes: list[TopicPartition] = []
    for entry in asked:
        key, epoch = (entry.topic, entry.partition), epoch_of(entry)
        end, reach = ends.get(key, NO_EPOCH), reaches[entry.topic, entry.partition]
        if end == epoch:
            continue
        elections[key] = LeaderElection(end, None if end == NO_EPOCH else False, key in ends)
        if end > epoch and reach is not None:
            # The epoch has ended: its log may end below the records that the metadata describe.
            probes.append(TopicPartition(*key, reach, "", epoch))
    if probes:
        answers = _reached(connection, probes, reach_timeout)
        for probe in probes:
            key = probe.topic, probe.partition
            elections[key] = LeaderElection(ends[key], answers.get(key), key in answers)
    return elections


def _reached(
    connection: Connection, probes: Sequence[TopicPartition], timeout: float
) -> dict[PartitionKey, bool]:
    """Return, by topic and partition, whether the leader epoch of each position in `probes` ends at
    that offset or later, so that all records below it are still there. Left out: what a new
    consumer doesn't learn within `timeout` seconds. Raises nothing."""
    positions = {(probe.topic, probe.partition): probe for probe in probes}
    with suppress(LogError, KafkaException):
        return ask_new_consumer(connection, positions, timeout, assign_checked, _is_reached)
    return {}


def _is_reached(key: PartitionKey, message: Message) -> bool | None:
    """Return whether a new consumer has found a position's epoch to reach up to it, by a message of
    its partition: a record or the partition's end, or the error of a cut log. None: another
    error."""
    error = message.error()
    if error is None or error.code() == KafkaError._PARTITION_EOF:
        return True
    return False if error.code() in LOST_OFFSET_ERRORS else None
