"""Finds out whether a commit's metadata still hold after a leader was elected.

    commit: offset 3, epoch 0, "9 to 19 are settled"       log: 0 ... 4 | 5 ... 99
                                                                epoch 0 | epoch 1

The metadata describe records above the commit's offset. An unclean election may have taken these
away though all records below the offset are still there: in the example, other records are at 9 to
19 now. After a clean election, the records are the same. Kafka says where the commit's leader epoch
ends: the metadata hold only if that is behind the last record that they describe.

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
    """What is known of a partition in which a leader was, or may have been, elected since its
    commit."""

    end_epoch: int
    """The leader epoch in which the log ends now; `NO_EPOCH`: Kafka doesn't say."""
    holds: bool | None
    """Whether the commit's metadata describe only records that are still there; None: Kafka doesn't
    say."""
    is_answered: bool = True
    """Whether Kafka has answered in time. False: ask again, as a later answer may say more."""

    def commit_of(self, committed: TopicPartition) -> OffsetAndMetadata | None:
        """Return the partition's commit, `committed`, as an `OffsetAndMetadata`; its metadata are
        empty unless they hold. None: the group has committed nothing."""
        if committed.offset < 0:
            return None
        return OffsetAndMetadata(committed.offset, metadata_of(committed) if self.holds else "")


NO_ELECTION: Final = LeaderElection(NO_EPOCH, True)
"""Stands for each partition that `elections_since` leaves out: its commit's metadata hold."""


def elections_since(
    consumer: Consumer,
    connection: Connection,
    committed: Sequence[TopicPartition],
    reach_timeout: float = REACH_TIMEOUT,
) -> Mapping[PartitionKey, LeaderElection]:
    """Return, by topic and partition, the partitions in which a leader was, or may have been,
    elected since these commits of a group. Left out are commits without a leader epoch, and commits
    whose metadata describe no records above their offsets. `consumer` has read the commits;
    `connection` opens a new consumer. Blocks for `ELECTION_TIMEOUT` + `reach_timeout` seconds at
    most. Never raises."""
    # Commits whose metadata may describe records above their offsets.
    describing: list[TopicPartition] = []
    # The offset after the last record that each of them describes; None: the metadata aren't ours.
    described_ends: dict[PartitionKey, int | None] = {}
    for entry in committed:
        if entry.error is None and metadata_of(entry) and epoch_of(entry) != NO_EPOCH:
            described_end = described_until(entry.offset, metadata_of(entry))
            if described_end != entry.offset:
                describing.append(entry)
                described_ends[entry.topic, entry.partition] = described_end
    epochs_at_end = end_epochs(consumer, describing, ELECTION_TIMEOUT) if describing else {}
    elections: dict[PartitionKey, LeaderElection] = {}
    probes: list[TopicPartition] = []
    for entry in describing:
        key, epoch = (entry.topic, entry.partition), epoch_of(entry)
        end_epoch, described_end = epochs_at_end.get(key, NO_EPOCH), described_ends[key]
        if end_epoch == epoch:
            continue  # no leader was elected since the commit
        # The metadata don't hold, unless a probe shows below that they do.
        holds = None if end_epoch == NO_EPOCH else False
        elections[key] = LeaderElection(end_epoch, holds, key in epochs_at_end)
        if end_epoch > epoch and described_end is not None:
            # The epoch has ended: its log may end below the records that the metadata describe.
            probes.append(TopicPartition(*key, described_end, "", epoch))
    if probes:
        answers = _find_reached(connection, probes, reach_timeout)
        for probe in probes:
            key = probe.topic, probe.partition
            elections[key] = LeaderElection(epochs_at_end[key], answers.get(key), key in answers)
    return elections


def _find_reached(
    connection: Connection, probes: Sequence[TopicPartition], timeout: float
) -> dict[PartitionKey, bool]:
    """Return for each position in `probes`, by topic and partition, whether the position's leader
    epoch ends at the position's offset or later; if so, all records below the offset are still
    there. Positions for which a new consumer doesn't find that out within `timeout` seconds are
    left out. Never raises."""
    positions = {(probe.topic, probe.partition): probe for probe in probes}
    with suppress(LogError, KafkaException):
        return ask_new_consumer(connection, positions, timeout, assign_checked, _reach_answer)
    return {}


def _reach_answer(key: PartitionKey, message: Message) -> bool | None:
    """Return what a new consumer's message shows of the position at which the consumer began: does
    the position's leader epoch reach up to it? True for a record or the partition's end; False for
    the error of a cut log; None for another error, which doesn't show it."""
    error = message.error()
    if error is None or error.code() == KafkaError._PARTITION_EOF:
        return True
    return False if error.code() in LOST_OFFSET_ERRORS else None
