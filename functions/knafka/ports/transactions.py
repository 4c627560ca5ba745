"""Transactions: what a Sensor asks of Kafka, as one Protocol.

A member of a consumer group reads several topics, and what follows from the records is appended in
one transaction with the offsets behind them: all of it is stored, or nothing (BUS-23). Two
implementations pass one contract suite: real Kafka (`kafka_transactions` in `knafka.clients`), and
one in memory for tests.

Every call blocks, and all of them come from one thread: what is between two transactions is pure
computing, which has nothing to wait for. Not here: what the records say.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from knafka.core.errors import LogError
from knafka.core.kafka_binding import RecordHeaders
from knafka.ports.log import OffsetAndMetadata, Positions, Record


class Partition(NamedTuple):
    """One partition of one topic."""

    topic: str
    number: int


class Output(NamedTuple):
    """A record to be appended in a transaction."""

    topic: str
    key: bytes | None
    """None: any partition, as of a record that had none."""
    value: bytes | None
    """None: a tombstone, in a compacted topic."""
    headers: RecordHeaders
    partition: int | None = None
    """None: by the key, as all writers choose it (CE-K9)."""
    timestamp: int | None = None
    """Milliseconds since the Unix epoch; None: now."""


Offsets: TypeAlias = Mapping[Partition, OffsetAndMetadata]


class TransactionAborted(LogError):
    """Nothing of the transaction is stored, and what it was made of is read again: the next `read`
    gives the records behind the last commit once more."""


class RecordTooLarge(TransactionAborted):
    """An output is larger than its topic takes, so that this transaction never succeeds."""

    def __init__(self, topic: str, key: bytes | None) -> None:
        super().__init__(
            f"a record with the key {key!r:.80} is too large for {topic}",
            retriable=False,
            too_large=True,
        )
        self.topic = topic
        self.key = key


class Claims(Protocol):
    """Who hears which partitions are this member's. Called within `read` and `close`, never while
    a transaction is under way."""

    def assigned(self, partitions: Mapping[Partition, OffsetAndMetadata | None]) -> None:
        """They are ours, and this is what the group has committed of each; None: nothing. No
        transaction that changes these offsets is under way any more."""
        ...

    def revoked(self, partitions: Collection[Partition]) -> None:
        """They go to another member, or have gone already: what is known of them is forgotten."""
        ...


class TransactionalLog(Protocol):
    """One member of one group. Reads only what is committed (`read_committed`)."""

    reached: Mapping[Partition, int]
    """Partitions whose end the last read has reached, behind the records it gave, and the offset at
    which each goes on: as `LogReader.ends`. A topic that is written in transactions ends with a
    marker, so what is committed has to be this offset, or the group has a lag for ever. An end is
    given by one read only."""

    def read(self, limit: int, timeout: float) -> Sequence[Record]:
        """Records of all its topics, in order for each partition: up to `limit`, gathered for up to
        `timeout` seconds. Raises `LogError`."""
        ...

    def commit(self, outputs: Sequence[Output], offsets: Offsets) -> None:
        """Append these records, and commit these offsets for the group, in one transaction.

        Returns when it is committed. Raises `TransactionAborted`, or another `LogError` when this
        member can't go on: another process has its transactional id, or it isn't known whether the
        transaction was committed. Then it is to be closed, and another opened.
        """
        ...

    def read_all(self, topic: str, partition: int) -> Iterator[Sequence[Record]]:
        """Everything that is committed in this partition, in batches, up to its end as it is now.
        Waits for a transaction that is under way there. Raises `LogError`."""
        ...

    def ensure_topic(
        self, topic: str, partitions: int, replication: int, config: Mapping[str, str]
    ) -> None:
        """Make a topic unless it exists; `replication` -1 is the cluster's default. Raises
        `LogError`."""
        ...

    def ends(self, topic: str) -> Positions:
        """Where each partition of a topic ends, transactions under way included. Raises
        `LogError`."""
        ...

    def committed(self, topic: str) -> Positions:
        """What the group has committed, whichever member did, of partitions where it has. Waits
        for transactions under way. Raises `LogError`."""
        ...

    def reachable_ends(self, topic: str) -> Mapping[int, int | None]:
        """The same, at once: None for a partition that doesn't answer. Raises `LogError` where it
        isn't known which there are."""
        ...

    def committed_now(self, topic: str) -> Mapping[int, OffsetAndMetadata]:
        """What the group has committed, with its metadata; transactions under way are passed over.
        Raises `LogError`."""
        ...

    def pause(self, partitions: Collection[Partition], *, on: bool) -> None:
        """Give nothing more of these partitions of ours, but for a few records that were fetched
        already; `on` false: give it again. One that goes and comes back isn't paused."""
        ...

    def close(self, timeout: float) -> None:
        """Leave the group; `Claims.revoked` is called for what is held."""
        ...
