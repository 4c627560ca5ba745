"""The port by which a shared dispatcher uses Kafka: it reads a topic once, and commits for many
groups.

`GroupMember` joins a group only to learn which partitions this process owns. `PositionedReader`
reads them from given positions. `GroupOffsets` keeps the position of each Trigger's group, of which
nobody is a member. Why not one `LogReader` for each group:
docs/decisions/0018-shared-dispatchers.md. Real Kafka and memory pass one contract suite.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from knafka.core.errors import LogError
from knafka.ports.log import OffsetAndMetadata, Positions, Record

NO_EPOCH: Final = -1
"""Stands for an unknown leader epoch."""
BEGINNING: Final = -2
"""Offset that stands for a partition's first record."""


class Position(NamedTuple):
    """Where to start reading a partition."""

    offset: int
    """The offset of the first record to read; `BEGINNING` if nothing was committed."""
    epoch: int = NO_EPOCH
    """The leader epoch of the last record before `offset`, by which a reader notices that the log
    has lost its end."""


class EpochStart(NamedTuple):
    """The first record of a leader epoch."""

    offset: int
    epoch: int


class Commit(NamedTuple):
    """A group's commit for a partition: `OffsetAndMetadata` with the leader epoch."""

    offset: int
    metadata: str = ""
    """Empty in a commit that was read from Kafka if a leader was elected since the commit was made:
    the metadata may describe records that the new leader doesn't have."""
    epoch: int = NO_EPOCH
    """The leader epoch with which the commit was made."""
    end_epoch: int = NO_EPOCH
    """The leader epoch at the log's end when this commit was read, if a leader was elected since
    the commit was made. The next commits must have this epoch or a later one, else their metadata
    would be dropped again."""
    topic: str = ""
    """Mark of the topic that the offset belongs to: the first 11 characters of Kafka's id of the
    topic (`core.commit_metadata.short_id`); empty if the id isn't known."""

    @property
    def offset_and_metadata(self) -> OffsetAndMetadata:
        """The commit without its epochs and topic."""
        return OffsetAndMetadata(self.offset, self.metadata)


class GroupHasMembers(LogError):
    """Raised if another dispatcher has joined the group, so that only its members may commit."""


class GroupOffsets(Protocol):
    """Reads and commits the offsets of groups without members. Every method raises `LogError`."""

    async def committed(
        self, group: str, topic: str, partitions: Collection[int]
    ) -> Mapping[int, Commit]:
        """Return the group's commits for these partitions of the topic; a partition without a
        commit is left out. Raises `GroupHasMembers`, as members may have delivered more than they
        have committed."""
        ...

    async def commit(self, group: str, topic: str, commits: Mapping[int, Commit]) -> None:
        """Commit all of these offsets for the group, and wait until Kafka has confirmed them.
        Raises `GroupHasMembers`.

        Calls for one group must not overlap, as it would be undefined which commit is the last.
        """
        ...

    async def present_topic(self, topic: str) -> str:
        """Ask Kafka for the id of the topic that has this name now, and return its mark
        (`Commit.topic`); empty if there is no such topic."""
        ...

    def known_topic(self, topic: str, since: float = -math.inf) -> str:
        """Return the mark of a topic (`Commit.topic`) from the last answer of Kafka, to a request
        of this client or of the topic's readers. Empty if no request that was sent at `since`
        (`time.monotonic`) or later was answered."""
        ...

    async def close(self) -> None:
        """Close the client."""
        ...


class GroupMember(Protocol):
    """A member of a group that learns which partitions this process owns, and reads none of them.

    Its `Assignment` gets no commits, and the commits that `on_revoked` returns are not made.
    """

    async def serve(self, timeout: float) -> None:
        """Stay a member for about `timeout` seconds, within which `Assignment` is called. Raises
        `LogError`."""
        ...

    async def confirm(self, positions: Positions) -> bool:
        """Commit these positions for the member's own group, to confirm that it owns the
        partitions. Return True if Kafka has accepted them, False if it refuses them, because the
        member's session has ended and others may own the partitions."""
        ...

    async def close(self, timeout: float) -> None:
        """Revoke all partitions and leave the group, within `timeout` seconds."""
        ...


class PositionedReader(Protocol):
    """Reads partitions from given positions, without a group. Calls must not overlap."""

    ends: Positions
    """Partitions whose end the last read has reached, each with the offset from which on it is read
    next. Each end is reported by one read only."""
    new_epochs: Mapping[int, Sequence[EpochStart]]
    """By partition, the leader epochs that begin in the records of the last read, in their order.
    Left out are partitions that go on with the epoch of the read before."""
    restarted: Mapping[int, Position]
    """Partitions whose log the last read found replaced or cut; they are read again from their
    beginning. The value is the position up to which the log is unchanged; its offset is `BEGINNING`
    if that isn't known."""

    def begin(self, positions: Mapping[int, Position]) -> None:
        """Read these partitions from the given positions on, besides those that are read already.
        If a position's leader epoch ends in the present log before the position's offset, the log
        was cut or replaced meanwhile: then a read reports the partition in `restarted`."""
        ...

    def drop(self, partitions: Collection[int]) -> None:
        """Stop reading these partitions."""
        ...

    def pause(self, partitions: Collection[int]) -> None:
        """Let reads return no records of these partitions until `resume`."""
        ...

    def resume(self, partitions: Collection[int]) -> None:
        """Let reads return records of these partitions again."""
        ...

    async def read(self, limit: int, timeout: float) -> Sequence[Record]:
        """Return up to `limit` records as soon as there are any, in order for each partition; an
        empty sequence if none came within `timeout` seconds. Raises `LogError`."""
        ...

    async def close(self, timeout: float) -> None:
        """Close the consumer within `timeout` seconds."""
        ...
