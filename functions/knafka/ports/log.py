"""The log: the operations on Kafka that the planes need, as Protocols without any IO.

`LogWriter` appends records, `LogReader` reads a topic as a member of a consumer group, `LogAdmin`
manages topics and groups. Two implementations pass one contract suite: real Kafka in
`knafka.clients` (`kafka_writer`, `kafka_reader`, `kafka_admin`), and one in memory for tests.

Not here: CloudEvents. A record is a key, a value and headers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

from knafka.core.errors import LogError
from knafka.core.events.kafka_binding import Draft, RecordHeaders
from knafka.core.progress import settled_ahead

Positions: TypeAlias = Mapping[int, int]
"""Offsets by partition number."""


class OffsetAndMetadata(NamedTuple):
    """A group's commit for a partition."""

    offset: int
    """The offset to read next."""
    metadata: str = ""
    """A text of at most `core.progress.MAX_METADATA` characters: with a longer one, Kafka refuses
    the whole commit."""


Commits: TypeAlias = Mapping[int, OffsetAndMetadata]
"""Commits by partition number."""

Start: TypeAlias = Literal["earliest", "latest"] | int
"""Where a new group starts: at the first record (`earliest`), or after the last one (`latest`). A
number is a time in milliseconds since the Unix epoch: at the first record since then, or after the
last one if all records are older."""

Reported: TypeAlias = Callable[[LogError | None], None]
"""Callback that is called on the event loop once for each appended record, or once for all records
of an `append_all`: with None after they were stored durably, else with the error that prevented
it."""

AppendAll: TypeAlias = Callable[[str, Sequence[Draft], Reported], None]
"""`LogWriter.append_all`, or a function that calls it."""

Append: TypeAlias = Callable[[str, bytes | None, bytes | None, RecordHeaders, Reported], None]
"""`LogWriter.append`, or a function that calls it."""


class Record(Protocol):
    """A record that was read. The methods are those of confluent-kafka's Message, so that the hot
    path passes it on without a copy."""

    def topic(self) -> str:
        """Return the topic's name."""
        ...

    def partition(self) -> int:
        """Return the partition's number."""
        ...

    def offset(self) -> int:
        """Return the record's offset."""
        ...

    def key(self) -> bytes | None:
        """Return the record's key; None: it has none."""
        ...

    def value(self) -> bytes | None:
        """Return the record's value; None: the record is a tombstone."""
        ...

    def headers(self) -> RecordHeaders | None:
        """Return the headers; None: the record has none. Raises `SystemError` or another error if
        they can't be read, so call `kafka_binding.headers_of` instead."""
        ...

    def timestamp(self) -> tuple[int, int]:
        """Return the type of the timestamp, a number of confluent-kafka's, and the timestamp in
        milliseconds since the Unix epoch (`core.times.taken_at`)."""
        ...


class LogWriter(Protocol):
    """Appends records durably (acks=all), at least once: a record may be stored twice, or stored
    although a failure was reported. In the latter case, records that were appended after the report
    may come before it."""

    def append(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: RecordHeaders,
        reported: Reported,
    ) -> None:
        """Take one record for the topic, and call `reported` later. Raises `LogFull`, or `LogError`
        if the record is too large; then nothing is taken.

        Records with equal keys go to one partition (CE-K9), records without a key to any.
        """
        ...

    def append_all(self, topic: str, records: Sequence[Draft], reported: Reported) -> None:
        """Take `records`, at least one, in their order. Call `reported` once, when the last of them
        is durable or has failed: with the first error, or None. A record that can't be taken counts
        as an error, and no record after it is taken."""
        ...

    @property
    def in_flight(self) -> int:
        """Number of records that were taken and aren't reported yet."""
        ...

    @property
    def stored(self) -> Mapping[tuple[str, int], int]:
        """Number of records that were reported as durable so far, by topic and partition
        (DSP-22)."""
        ...

    @property
    def failure(self) -> LogError | None:
        """The error that ends all appending until the process is restarted; None: there is none."""
        ...

    @property
    def away(self) -> LogError | None:
        """Why Kafka is known to be unavailable, so that an appended record would wait in vain;
        None: Kafka is available, or its state is unknown. The writer tries Kafka until it answers,
        even while nothing is appended."""
        ...

    async def reach(self, timeout: float) -> None:
        """Wait for any answer of Kafka, at most `timeout` seconds. Raises `LogError` with the
        reason if there is none.

        The error is not `retriable` if Kafka refuses this client; otherwise `away` soon says
        whether Kafka is unavailable.
        """
        ...

    async def close(self, timeout: float) -> None:
        """Wait up to `timeout` seconds for the records in flight, then close the connections."""
        ...


def failure_of(writers: Iterable[LogWriter]) -> LogError | None:
    """Return the failure of the first writer that has one; None: no writer has failed."""
    return next((writer.failure for writer in writers if writer.failure is not None), None)


class Assignment(Protocol):
    """Receives the partitions that a reader is assigned and loses; called on the event loop."""

    def on_assigned(self, partitions: Mapping[int, OffsetAndMetadata | None]) -> None:
        """Take over these partitions. The values are the group's commits; None: the group has no
        commit for the partition."""
        ...

    async def on_revoked(self, partitions: Sequence[int]) -> Commits:
        """Take no more records of these partitions, and let the attempts under way end, for a
        limited time that the implementation knows. Return the partitions' last commits, which the
        reader makes before another member gets the partitions."""
        ...

    def on_lost(self, partitions: Sequence[int]) -> None:
        """Forget these partitions without a commit. Either they belong to another member already,
        or their log was replaced or lost its end. In the second case `on_assigned` follows, without
        commits, and they are read from where the log was cut, or from their start."""
        ...


class LogReader(Protocol):
    """A member of a consumer group on one topic. It starts at the group's commit, else at the
    beginning of a partition. (A Trigger's first offset is committed before it is Ready, so that no
    event is missed.)"""

    ends: Positions
    """Partitions whose end the last read has reached, each with the offset from which on it is read
    next. This may lie beyond the last record, as markers and aborted records of transactions have
    offsets, too. Each end is reported by one read only."""

    @property
    def pause_is_free(self) -> bool:
        """Whether a pause costs nothing: prefetched records are kept, and `resume` ends a waiting
        read. If False, it is better to wait a little before pausing a partition."""
        ...

    async def read(self, limit: int, timeout: float) -> Sequence[Record]:
        """Return up to `limit` records as soon as there are any, in order for each partition; an
        empty sequence if none came within `timeout` seconds. Raises `LogError`, also if Kafka
        refuses this client before it owns a partition."""
        ...

    def pause(self, partitions: Sequence[int]) -> None:
        """Let reads return no records of these partitions until `resume`. If the pause fails, the
        next read raises the error."""
        ...

    def resume(self, partitions: Sequence[int]) -> None:
        """Let reads return records of these partitions again."""
        ...

    def commit(self, commits: Commits) -> None:
        """Commit these offsets without waiting for Kafka; the partitions must still be owned. A
        commit that fails in a rebalance is repeated; any other failure is ignored, as the next
        commit makes up for it."""
        ...

    async def close(self, timeout: float) -> None:
        """Revoke all partitions, make their last commits, and leave the group, within `timeout`
        seconds, which include `Assignment.on_revoked`. Records behind the last commits are read
        again by other members."""
        ...


@runtime_checkable
class ConfirmingReader(LogReader, Protocol):
    """A `LogReader` whose commits can be waited for."""

    async def commit_now(self, commits: Commits) -> None:
        """Commit these offsets and return when Kafka has confirmed all of them.

        Raises `LogError` if a partition isn't owned (nothing is committed then), or if it isn't
        known which offsets were committed. Earlier commits of these partitions that failed aren't
        repeated any more.
        """
        ...


def lag_of(committed: OffsetAndMetadata | None, start: int, end: int) -> int:
    """Return how many records of a partition a group hasn't settled yet: those from its committed
    offset on, without those above it that the commit's metadata record as settled.

    Without a commit (`committed` None), or with one beyond the log's end, these are all records.
    `start` and `end`: the log's first and end offset.
    """
    if committed is None or committed.offset > end:
        return end - start
    unread = end - max(committed.offset, start)
    # If any record is unread, the one at the committed offset isn't settled, whatever the metadata
    # say about the others.
    least_lag = min(unread, 1)
    return max(least_lag, unread - settled_ahead(committed.offset, committed.metadata))


@dataclass(frozen=True, slots=True)
class Lag:
    """A group's lag on one topic."""

    by_partition: Mapping[int, int]
    """The lag in records by partition (`lag_of`)."""
    beyond_end: frozenset[int] = frozenset()
    """Partitions whose committed offset is beyond the log's end, because the topic was recreated or
    lost its end. Their lag is all of the log, as they may be read from its start."""
    ends: Positions = field(default_factory=dict, compare=False)
    """The offset up to which the lag was counted, by partition whose end is known."""
    metadata: Mapping[int, str] = field(default_factory=dict, compare=False)
    """Metadata of the group's last commits, by partition."""

    @property
    def settled(self) -> Positions:
        """Number of offsets from 0 on that the group has settled, by partition. Offsets of records
        that expired, or that came before the group began, count as settled (DSP-16)."""
        return {
            number: max(0, end - self.by_partition.get(number, 0))
            for number, end in self.ends.items()
        }

    @property
    def total(self) -> int:
        """The lag over all partitions, in records."""
        return sum(self.by_partition.values())


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """An existing topic as Kafka describes it now."""

    id: str
    """Kafka's id: a topic that was deleted and created again has another one."""
    partitions: int
    """Number of partitions."""
    replication: int
    """Number of replicas of the partition that has fewest."""
    config: Mapping[str, str]
    """The topic's own settings, without the cluster's defaults."""


@dataclass(frozen=True, slots=True)
class Range:
    """The first and end offsets of a topic's partitions, as far as they can be read now."""

    starts: Positions
    """The offset of each partition's first record."""
    ends: Positions
    """The offset after each partition's last record."""

    @property
    def records(self) -> int:
        """Number of offsets between start and end, including markers of transactions."""
        return sum(max(0, end - self.starts.get(number, end)) for number, end in self.ends.items())


class TopicMaker(Protocol):
    """Creates topics; every `LogAdmin` is one."""

    async def ensure_topic(
        self, topic: str, partitions: int, replication: int, config: Mapping[str, str]
    ) -> bool:
        """Create the topic unless it exists. Return True if it was created, False if it existed.
        `replication` -1 means the cluster's default. Raises `LogError`."""
        ...


class TopicTail(Protocol):
    """Reads a topic without a group: each call continues where the last one ended. Calls must not
    overlap."""

    def begin(self, since: int) -> None:
        """Continue at the topic's first record since a time (milliseconds since the Unix epoch)."""
        ...

    async def read_on(self, limit: int) -> Sequence[Record]:
        """Return the next records, at most `limit`. The result is empty if there are no further
        records at the time of the call, or if the topic doesn't exist. Raises `LogError`."""
        ...

    async def close(self, timeout: float) -> None:
        """Close the consumer within `timeout` seconds."""
        ...


class LagSource(Protocol):
    """Source of consumer lag; every `LogAdmin` is one."""

    async def lags(self, groups: Sequence[str], topic: str) -> Mapping[str, Lag]:
        """Return the lag of each group on one topic, reading the topic's offsets once.

        A partition without a leader keeps its last known end, as nothing is appended to it; its lag
        counts as 0 if no end is known. Raises `LogError` if no partition's end is known. Frequent
        calls are cheap: Kafka isn't asked again about groups that were at the end of a topic, as
        long as the topic doesn't grow.
        """
        ...

    def note_committed(
        self, groups: Collection[str], topic: str, positions: Positions, seconds: float
    ) -> None:
        """Note that these groups have committed `positions`, by the report of the dispatcher that
        has made all of their commits for the last `seconds`. While the topic ends at `positions`,
        `lags` sends no request for these groups."""
        ...


class GroupSource(LagSource, Protocol):
    """Source of lag and of the members of groups; every `LogAdmin` is one."""

    async def members(self, group: str) -> Collection[str]:
        """Return the client ids of a group's members, including dead ones until their session ends;
        empty for a group that doesn't exist. Raises `LogError`."""
        ...

    def forget_group(self, group: str) -> None:
        """Drop the cached offsets of a group, because somebody may have changed them."""
        ...


class LogAdmin(TopicMaker, GroupSource, Protocol):
    """Manages topics and groups. Every method answers within a bounded time, and raises
    `LogError`."""

    async def cluster_id(self) -> str:
        """Return the Kafka cluster's id."""
        ...

    async def describe_topic(self, topic: str) -> TopicDescription | None:
        """Return a topic's description; None: there is no such topic."""
        ...

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic, if it exists."""
        ...

    async def topics(self) -> Mapping[str, int]:
        """Return the number of partitions of every topic, by name."""
        ...

    async def end_offsets(self, topic: str) -> Positions:
        """Return the end offset of each partition of a topic."""
        ...

    async def end_offsets_of_all(self, topics: Collection[str]) -> Mapping[str, Positions]:
        """Return the end offsets of many topics with one request, to see which topics have grown.

        Topics that don't exist and partitions without a leader are left out. Raises `LogError` if
        no partition can be read. New partitions may be missing for some seconds.
        """
        ...

    async def ranges_of_all(self, topics: Collection[str]) -> Mapping[str, Range]:
        """Return the start and end offsets of many topics with two requests. Topics and partitions
        that `end_offsets_of_all` leaves out are missing. Raises `LogError`."""
        ...

    async def first_timestamps(self, topics: Collection[str]) -> Mapping[str, float]:
        """Return the time of each topic's first record, in seconds since the Unix epoch; topics
        without records are left out. This is one request, for which Kafka opens a file of each
        topic. Raises `LogError`."""
        ...

    async def set_topic_config(self, topic: str, config: Mapping[str, str]) -> None:
        """Change these settings of a topic and no others. Raises `LogError`."""
        ...

    async def ensure_committed(self, group: str, topic: str, start: Start = "latest") -> None:
        """Commit the offsets at which a new group starts: the topic's end (KN-TRG-06), unless
        `start` says otherwise.

        A group is new if it has no offset on any partition; for any other group, nothing is
        committed. A partition on which such a group has no offset was added later, and the group
        reads all of it. Either all offsets are committed or none, so that a crash never makes a new
        group look like an old one.
        """
        ...

    async def has_group(self, group: str) -> bool:
        """Whether a group of this name exists, with members or offsets. Raises `LogError`."""
        ...

    async def has_committed(self, group: str, topic: str) -> bool:
        """Whether a group has an offset on any partition of a topic, even of one that doesn't
        exist any more. Raises `LogError`."""
        ...

    async def delete_group(self, group: str) -> None:
        """Delete a group with its offsets, if it exists. Raises `LogError` if it has members."""
        ...

    async def read_last(self, topic: str, limit: int) -> Sequence[Record]:
        """Return a topic's last `limit` records, ordered by timestamp (oldest first), without a
        group.

        May return fewer than `limit` although the topic has more, if offsets are missing between
        the last records, as after compaction.
        """
        ...

    async def last_with_key(self, topic: str, key: bytes) -> Record | None:
        """Return the last record of a topic that has this key; None: no record has it. Raises
        `LogError`."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...
