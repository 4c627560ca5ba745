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

import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Final, NamedTuple, TypeAlias

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from knafka.clients.kafka.consumers.kafka_cut_logs import assign_checked
from knafka.clients.kafka.kafka_client import LOST_OFFSET_ERRORS, READING, Connection, open_client
from knafka.clients.kafka.kafka_commits import NO_EPOCH, end_epochs, epoch_of, metadata_of
from knafka.core.commit_metadata import described_until
from knafka.core.errors import LogError
from knafka.ports.log import OffsetAndMetadata

ELECTION_TIMEOUT: Final = 2.0
"""Seconds that Kafka may take to say in which leader epochs the logs of new partitions end; it
takes milliseconds."""
REACH_TIMEOUT: Final = 3.0
"""Seconds in which a consumer must hear whether logs reach up to the ends of what is known of
them."""
PROBE_GROUP_PREFIX: Final = "knafka-election-probe"
"""Prefix of the group id that librdkafka requires; Kafka never sees it."""

_Place: TypeAlias = tuple[str, int]
"""Topic and partition."""


class LeaderElection(NamedTuple):
    """A leader was, or may have been, elected since a commit."""

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


def elections_since(
    consumer: Consumer,
    connection: Connection,
    committed: Sequence[TopicPartition],
    reach_timeout: float = REACH_TIMEOUT,
) -> Mapping[_Place, LeaderElection]:
    """Return the partitions, of these commits of a group, since which a leader was or may have been
    elected. Commits without a leader epoch are left out, and those that say nothing of records
    above their offsets. Blocks for `ELECTION_TIMEOUT` and `reach_timeout` seconds at most."""
    reaches: dict[_Place, int | None] = {}
    asked: list[TopicPartition] = []
    for entry in committed:
        if entry.error is None and metadata_of(entry) and epoch_of(entry) != NO_EPOCH:
            reach = described_until(entry.offset, metadata_of(entry))
            if reach != entry.offset:
                asked.append(entry)
                reaches[entry.topic, entry.partition] = reach
    ends = end_epochs(consumer, asked, ELECTION_TIMEOUT) if asked else {}
    elections: dict[_Place, LeaderElection] = {}
    places: list[TopicPartition] = []
    for entry in asked:
        key, epoch = (entry.topic, entry.partition), epoch_of(entry)
        end, reach = ends.get(key, NO_EPOCH), reaches[entry.topic, entry.partition]
        if end == epoch:
            continue
        elections[key] = LeaderElection(end, None if end == NO_EPOCH else False, key in ends)
        if end > epoch and reach is not None:
            places.append(TopicPartition(*key, reach, "", epoch))
    if places:
        answers = _reached(connection, places, reach_timeout)
        for place in places:
            key = place.topic, place.partition
            elections[key] = LeaderElection(ends[key], answers.get(key), key in answers)
    return elections


def _reached(
    connection: Connection, places: Sequence[TopicPartition], timeout: float
) -> dict[_Place, bool]:
    """Return whether the leader epochs of these positions end there or later, as far as a new
    consumer hears of it within `timeout` seconds. Raises nothing."""
    group = f"{PROBE_GROUP_PREFIX}-{uuid.uuid4().hex[:8]}"
    configuration = {**READING, **connection, "group.id": group, "log_level": 0}
    reached: dict[_Place, bool] = {}
    deadline = time.monotonic() + timeout
    try:
        with closing(open_client(Consumer, configuration)) as consumer:
            assign_checked(consumer, places)
            while len(reached) < len(places) and (left := deadline - time.monotonic()) > 0:
                if (message := consumer.poll(left)) is None:
                    break
                error, key = message.error(), (str(message.topic()), message.partition() or 0)
                is_lost = error is not None and error.code() in LOST_OFFSET_ERRORS
                if error is None or is_lost or error.code() == KafkaError._PARTITION_EOF:
                    reached.setdefault(key, not is_lost)
                    consumer.pause([TopicPartition(*key)])  # its other records hide the others
    except (LogError, KafkaException):
        pass
    return reached
