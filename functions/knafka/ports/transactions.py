"""Transactions: the operations on Kafka that a Sensor needs, as one Protocol.

A member of a consumer group reads several topics. In one transaction, it appends the resulting
records and commits the offsets of those that it has read: all of it is stored, or nothing (BUS-23).
Two implementations pass one contract suite: real Kafka (`kafka_transactions` in `knafka.clients`),
and one in memory for tests.

Every call blocks, and all calls come from one thread, as the caller has nothing else to wait for:
between two transactions it only computes. Not here: the records' contents.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from knafka.core.errors import LogError
from knafka.core.events.kafka_binding import RecordHeaders
from knafka.ports.log import OffsetAndMetadata, Positions, Record


class Partition(NamedTuple):
    """One partition of one topic."""

    topic: str
    number: int


class Output(NamedTuple):
    """A record to append in a transaction."""

    topic: str
    key: bytes | None
    """The record's key; None: it has none, so it may go to any partition."""
    value: bytes | None
    """The record's value; None: a tombstone, in a compacted topic."""
    headers: RecordHeaders
    partition: int | None = None
    """Number of the partition to append to; None: chosen by the key, as all writers do (CE-K9)."""
    timestamp: int | None = None
    """Milliseconds since the Unix epoch; None: now."""


Offsets: TypeAlias = Mapping[Partition, OffsetAndMetadata]
"""Offsets to commit, with their metadata, by partition."""


class TransactionAborted(LogError):
    """Raised if nothing of a transaction was stored. The next `read` returns the records after the
    last commit once more."""


class RecordTooLarge(TransactionAborted):
    """Raised if an output is larger than its topic takes, so that the transaction can never
    succeed. `topic` and `key` are those of the output."""

    def __init__(self, topic: str, key: bytes | None) -> None:
        super().__init__(
            f"a record with the key {key!r:.80} is too large for {topic}",
            retriable=False,
            too_large=True,
        )
        self.topic = topic
        self.key = key


class Claims(Protocol):
    """Receives the partitions that a member is assigned and loses; called within `read` and
    `close`, never while a transaction is under way."""

    def find_unready(self, partitions: Collection[Partition]) -> Collection[Partition]:
        """Return which of these newly assigned partitions can't be taken over yet, because data
        that are needed for them can't be read now. The log doesn't read the returned partitions,
        and calls this method again later. Never raises."""
        ...

    def on_assigned(self, partitions: Mapping[Partition, OffsetAndMetadata | None]) -> None:
        """Take over these partitions. The values are the group's commits; None: the group has no
        commit for the partition. No transaction that changes these offsets is under way any
        more."""
        ...

    def on_revoked(self, partitions: Collection[Partition]) -> None:
        """Forget these partitions, which belong to another member or soon will."""
        ...


class TransactionalLog(Protocol):
    """A member of a consumer group that reads only committed records (`read_committed`)."""

    reached: Mapping[Partition, int]
    """Partitions whose end the last read has reached, each with the offset from which on it is read
    next, as in `LogReader.ends`. Commit this offset even if no record came: a topic that is written
    in transactions ends with a marker, so otherwise the group would always have a lag. Each end is
    reported by one read only."""

    def read(self, limit: int, timeout: float) -> Sequence[Record]:
        """Return up to `limit` records of all topics of the member, in order for each partition,
        gathered for up to `timeout` seconds; an empty sequence if none came. Raises `LogError`."""
        ...

    def commit(self, outputs: Sequence[Output], offsets: Offsets) -> None:
        """Append the records `outputs` and commit these offsets for the group, in one transaction;
        return once it is committed.

        Raises `TransactionAborted` if nothing was stored. Raises another `LogError` if this member
        can't go on, because another process has its transactional id or the result isn't known;
        then close the member and open another.
        """
        ...

    def read_all(self, topic: str, partition: int) -> Iterator[Sequence[Record]]:
        """Yield in batches all committed records of a partition, up to the end that the partition
        had at the call. Waits until a transaction under way there has ended. Raises `LogError`."""
        ...

    def ensure_topic(
        self, topic: str, partitions: int, replication: int, config: Mapping[str, str]
    ) -> None:
        """Create a topic unless it exists. `replication` -1 means the cluster's default; `config`:
        settings of the topic. Raises `LogError`."""
        ...

    def ends(self, topic: str) -> Positions:
        """Return the end offset of each partition of this topic; the records of open transactions
        are before it. Raises `LogError`."""
        ...

    def committed(self, topic: str) -> Positions:
        """Return the offsets that any members of the group have committed for this topic; a
        partition without a commit is left out. Waits until transactions under way have ended.
        Raises `LogError`."""
        ...

    def reachable_ends(self, topic: str) -> Mapping[int, int | None]:
        """Return the end offset of each partition of this topic, as `ends` does, but without
        waiting long: the value is None for a partition that has no leader or doesn't answer soon.
        Raises `LogError` if the topic's partitions aren't known."""
        ...

    def committed_now(self, topic: str) -> Mapping[int, OffsetAndMetadata]:
        """Return the group's commits for this topic by partition, without those of transactions
        under way. Raises `LogError`."""
        ...

    def set_paused(self, partitions: Collection[Partition], *, paused: bool) -> None:
        """Pause these owned partitions (`paused` True), or resume them (False). A few records that
        were fetched before the pause may still be returned. A partition that was revoked and
        assigned again isn't paused."""
        ...

    def close(self, timeout: float) -> None:
        """Leave the group within `timeout` seconds; `Claims.on_revoked` is called for owned
        partitions."""
        ...
