"""The log: what the planes ask of Kafka, as three small Protocols.

`LogWriter` appends, `LogReader` reads one topic as a member of a consumer group, `LogAdmin` looks
after topics and groups. Two implementations pass one contract suite: real Kafka in
`knafka.clients` (`kafka_writer`, `kafka_reader`, `kafka_admin`), and one in memory for tests.

Not here: CloudEvents. A record is a key, a value and headers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

from knafka.core.errors import InvalidEvent, LogError
from knafka.core.kafka_binding import Draft, RecordHeaders
from knafka.core.progress import settled_ahead

Positions: TypeAlias = Mapping[int, int]
"""Partition to offset."""


class OffsetAndMetadata(NamedTuple):
    """What a group commits of a partition: where it goes on, and a text of its own beside it."""

    offset: int
    metadata: str = ""
    """At most `core.progress.MAX_METADATA` characters: with a longer one the offset isn't
    committed either."""


Commits: TypeAlias = Mapping[int, OffsetAndMetadata]
"""By partition."""

Start: TypeAlias = Literal["earliest", "latest"] | int
"""Where a new group begins: at the first record that is there, behind the last, or at the first
one since a time (milliseconds since the Unix epoch), behind the last if there is none."""

Reported: TypeAlias = Callable[[LogError | None], None]
"""Called once per appended record, on the event loop: None when it is durable."""

AppendAll: TypeAlias = Callable[[str, Sequence[Draft], Reported], None]
"""`LogWriter.append_all`, or what ends in it."""

Append: TypeAlias = Callable[[str, bytes | None, bytes | None, RecordHeaders, Reported], None]
"""`LogWriter.append`, or what ends in it."""


class Record(Protocol):
    """A record as it was read. The methods are those of confluent-kafka's Message, so that the
    hot path hands it through without a copy."""

    def topic(self) -> str: ...
    def partition(self) -> int: ...
    def offset(self) -> int: ...
    def key(self) -> bytes | None: ...
    def value(self) -> bytes | None: ...
    def headers(self) -> RecordHeaders | None: ...
    def timestamp(self) -> tuple[int, int]:
        """(kind, milliseconds since the Unix epoch)."""
        ...


def headers_of(record: Record) -> RecordHeaders | None:
    """Raises `InvalidEvent` for those that can't be read."""
    try:
        return record.headers()
    except Exception as error:  # a SystemError for a name that isn't UTF-8
        why = error.__cause__ or error
        raise InvalidEvent(f"the record's headers can't be read: {why}") from error


class LogWriter(Protocol):
    """Appends durably: acks=all. At least once: a record may be stored twice, or be stored though
    it was reported as failed, later than records that were appended after that report."""

    def append(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: RecordHeaders,
        reported: Reported,
    ) -> None:
        """Take one record; `reported` follows. Raises `LogFull`, or `LogError` if it's too large.

        Records with equal keys go to one partition (CE-K9), those without to any.
        """
        ...

    def append_all(self, topic: str, records: Sequence[Draft], reported: Reported) -> None:
        """Take records in their order, one at least. `reported` follows once, when all that were
        taken have been reported, with the first error. Behind one that isn't taken, which is
        reported too, none is."""
        ...

    @property
    def in_flight(self) -> int:
        """Records taken and not yet reported."""
        ...

    @property
    def stored(self) -> Mapping[tuple[str, int], int]:
        """Records that the log has reported as durable, by topic and partition (DSP-22)."""
        ...

    @property
    def failure(self) -> LogError | None:
        """Why nothing can be appended, where only a new process can mend that; else None."""
        ...

    @property
    def away(self) -> LogError | None:
        """Why the log is known to be away, so that what is appended now would wait in vain; None
        while it is there or that isn't known. It is asked until it answers, also while nothing is
        appended."""
        ...

    async def reach(self, timeout: float) -> None:
        """Ask for any answer within `timeout` seconds; raises `LogError` with what is wrong.

        It is not `retriable` if we are refused; else it is soon known whether the log is `away`.
        """
        ...

    async def close(self, timeout: float) -> None:
        """Wait up to `timeout` seconds for what is in flight, then let go."""
        ...


def failure_of(writers: Iterable[LogWriter]) -> LogError | None:
    """The failure of the first writer that has one."""
    return next((each.failure for each in writers if each.failure is not None), None)


class Assignment(Protocol):
    """Who is told which partitions a reader owns; called on the event loop."""

    def assigned(self, partitions: Mapping[int, OffsetAndMetadata | None]) -> None:
        """They are ours, and this is what the group has committed of each; None: nothing."""
        ...

    async def revoked(self, partitions: Sequence[int]) -> Commits:
        """Finish with these partitions and say what to commit before they go."""
        ...

    def lost(self, partitions: Sequence[int]) -> None:
        """They belong to somebody else already: nothing may be committed. Or their log is another
        one, which has no such offset: then `assigned` follows, with nothing committed, and what is
        there is read from its start."""
        ...


class LogReader(Protocol):
    """One member of a consumer group on one topic; starts where the group committed, else at the
    beginning (an offset is committed before a Trigger is Ready, so that nothing is missed)."""

    ends: Positions
    """Partitions whose end the last read has reached, behind the records it gave, and the offset at
    which each goes on. That may lie beyond the last record: a transaction's marker has an offset,
    and so have records of one that was aborted. An end is given by one read only."""

    @property
    def pause_is_free(self) -> bool:
        """Whether a pause throws nothing away that was read ahead, and `resume` ends a read that
        waits. Where it is not, a partition is better given some time before it is paused."""
        ...

    async def read(self, limit: int, timeout: float) -> Sequence[Record]:
        """Up to `limit` records, as soon as there are any, in order per partition; none after
        `timeout` seconds. Raises `LogError`, also if it is refused before it owns anything."""
        ...

    def pause(self, partitions: Sequence[int]) -> None:
        """Have the next read give nothing of these, until `resume`; it tells if that fails."""
        ...

    def resume(self, partitions: Sequence[int]) -> None: ...

    def commit(self, commits: Commits) -> None:
        """Commit what is owned still, without waiting, after a read under way. What fails because
        the group moves is committed again; another failure shows up as lag until the next one."""
        ...

    async def close(self, timeout: float) -> None:
        """Revoke what is owned (with its last commit) and leave the group. Returns after `timeout`
        seconds at the latest, what `Assignment.revoked` takes included: what couldn't be committed
        until then is read again by others."""
        ...


@runtime_checkable
class ConfirmingReader(LogReader, Protocol):
    """A `LogReader` for those who must know that a commit was taken before they go on."""

    async def commit_now(self, commits: Commits) -> None:
        """Commit these, and return when the log has confirmed all of them.

        Raises `LogError`: some aren't owned, and nothing was committed; or it can't be said which
        of them were. Earlier commits of these partitions aren't made again.
        """
        ...


def lag_of(committed: OffsetAndMetadata | None, start: int, end: int) -> int:
    """How many records of a partition a group has still to settle, as far as it has told."""
    if committed is None or committed.offset > end:
        return end - start
    unread = end - max(committed.offset, start)
    # At least one: whatever is told of the others, the one at the position isn't settled.
    return max(min(unread, 1), unread - settled_ahead(committed.offset, committed.metadata))


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a group is behind on one topic: records by partition, uncommitted ones counted from
    the log's start (see `lag_of`)."""

    by_partition: Mapping[int, int]
    beyond_end: frozenset[int] = frozenset()
    """Partitions whose commit lies behind the log's end: the topic was made anew, or has lost its
    end. They are read from the start of what is there, and that is their lag."""
    ends: Positions = field(default_factory=dict, compare=False)
    """Where the lags were counted to, of partitions whose end is known."""
    metadata: Mapping[int, str] = field(default_factory=dict, compare=False)
    """What the group's commits say beside their offsets, by partition, as they were read last."""

    @property
    def settled(self) -> Positions:
        """Records of each partition with which the group is done, counted from offset 0: those that
        expired or came before its beginning are among them (DSP-16)."""
        return {
            number: max(0, end - self.by_partition.get(number, 0))
            for number, end in self.ends.items()
        }

    @property
    def total(self) -> int:
        return sum(self.by_partition.values())


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic as it is, whatever was asked for when it was made."""

    id: str
    """Kafka's own: a topic that was deleted and made again has another."""
    partitions: int
    replication: int
    """Replicas of the partition that has fewest."""
    config: Mapping[str, str]
    """What is set on the topic itself; the cluster's defaults are left out."""


@dataclass(frozen=True, slots=True)
class Range:
    """What a topic has, as far as its offsets say."""

    starts: Positions
    ends: Positions
    """Both by partition, of those that can be read now."""

    @property
    def records(self) -> int:
        """Offsets between both; markers of transactions are among them."""
        return sum(max(0, end - self.starts.get(each, end)) for each, end in self.ends.items())


class TopicMaker(Protocol):
    """Makes topics; every `LogAdmin` is one."""

    async def ensure_topic(
        self, topic: str, partitions: int, replication: int, config: Mapping[str, str]
    ) -> bool:
        """Create the topic unless it exists; whether it was created. -1 replicas: as many as the
        cluster's default says. Raises `LogError`."""
        ...


class TopicTail(Protocol):
    """Reads a topic on from where it was, whenever it is asked; a member of no group, and idle in
    between. No two calls at once."""

    def begin(self, since: int) -> None:
        """Go on at the first record that the topic has since a time (milliseconds since the Unix
        epoch), wherever it was."""
        ...

    async def read_on(self, limit: int) -> Sequence[Record]:
        """The next records, `limit` at most; none: what the topic had when it was asked was read.
        So it is of a topic that doesn't exist. Raises `LogError`."""
        ...

    async def close(self, timeout: float) -> None: ...


class LagSource(Protocol):
    """Source of consumer lag; every `LogAdmin` is one."""

    async def lags(self, groups: Sequence[str], topic: str) -> Mapping[str, Lag]:
        """The lag of each group on one topic, with one look at the topic's offsets.

        A partition without a leader counts as it was when it had one, as nothing is added to it;
        0 if that was never seen. A `LogError` if nothing is known of any.
        Cheap to ask often: groups that were at the end of a topic that hasn't grown are known to
        be there still, and aren't asked for.
        """
        ...

    def note_committed(
        self, groups: Collection[str], topic: str, positions: Positions, since: float
    ) -> None:
        """What these groups have committed, by their dispatcher, which has done so for `since`
        seconds: `lags` need not ask for them while that is the topic's end."""
        ...


class GroupSource(LagSource, Protocol):
    """Source of lag, and of who is in a group; every `LogAdmin` is one."""

    async def members(self, group: str) -> Collection[str]:
        """By what their clients call themselves, those that are in a group, or were until their
        session runs out; none of a group that doesn't exist. Raises `LogError`."""
        ...

    def forget_group(self, group: str) -> None:
        """Somebody else may have set it back: the next `lags` doesn't go by what is known of it."""
        ...


class LogAdmin(TopicMaker, GroupSource, Protocol):
    """Topics and groups. Every method answers within a bounded time, and raises `LogError`."""

    async def cluster_id(self) -> str: ...

    async def describe_topic(self, topic: str) -> TopicDescription | None:
        """What this topic is like; None: it doesn't exist."""
        ...

    async def delete_topic(self, topic: str) -> None: ...

    async def topics(self) -> Mapping[str, int]:
        """Every topic and its number of partitions."""
        ...

    async def end_offsets(self, topic: str) -> Positions: ...

    async def end_offsets_of_all(self, topics: Collection[str]) -> Mapping[str, Positions]:
        """The ends of many topics at the cost of one request, to see which have grown.

        What can't be known now is left out: a topic that is missing, a partition without a leader;
        a `LogError` if nothing can. New partitions may show seconds late.
        """
        ...

    async def ranges_of_all(self, topics: Collection[str]) -> Mapping[str, Range]:
        """The starts and ends of many topics at the cost of two requests; left out is what
        `end_offsets_of_all` leaves out. Raises `LogError`."""
        ...

    async def first_timestamps(self, topics: Collection[str]) -> Mapping[str, float]:
        """The time of each topic's first record, in seconds since 1970, of those that have one:
        one request, for which Kafka opens a file of each. Raises `LogError`."""
        ...

    async def set_topic_config(self, topic: str, config: Mapping[str, str]) -> None:
        """Set these of a topic, and leave the others as they are. Raises `LogError`."""
        ...

    async def ensure_committed(self, group: str, topic: str, start: Start = "latest") -> None:
        """Have a new group begin at the topic's end (KN-TRG-06), unless `start` says otherwise.

        New is one that has no offset on any partition. Of one that has, a partition without came
        later: all of it is the group's, and that is where a reader begins without an offset. All
        are committed or none, so that no crash makes a new group look old.
        """
        ...

    async def has_group(self, group: str) -> bool:
        """Whether there is a group of this name, with members or offsets. Raises `LogError`."""
        ...

    async def has_committed(self, group: str, topic: str) -> bool:
        """Whether a group has an offset on any partition of a topic, which need not exist. Raises
        `LogError`."""
        ...

    async def delete_group(self, group: str) -> None:
        """Forget what it has committed; nothing if there is none. A `LogError` if it isn't empty:
        somebody reads."""
        ...

    async def read_all(self, topic: str, limit: int) -> Sequence[Record]:
        """The last `limit` records of a topic, oldest first, without joining a group."""
        ...

    async def close(self) -> None: ...
