"""The log as a shared dispatcher uses it: one read of a topic, and the offsets of many groups.

`GroupMember` says which partitions this process has, by a group that commits nothing of its own.
`PositionedReader` reads them from given positions. `GroupOffsets` keeps the position of each
Trigger's group, of which nobody is a member. Why not one `LogReader` for each group:
docs/decisions/0018-shared-dispatchers.md. Real Kafka and memory pass one contract suite.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from knafka.core.errors import LogError
from knafka.ports.log import OffsetAndMetadata, Positions, Record

NO_EPOCH: Final = -1
"""The leader epoch that nothing is known of."""
BEGINNING: Final = -2
"""The offset of a partition's first record, whichever that is."""


class Position(NamedTuple):
    """Where to read on."""

    offset: int
    """`BEGINNING` where nothing was committed."""
    epoch: int = NO_EPOCH
    """The leader's, by which it is noticed that the log has lost its end."""


class Commit(NamedTuple):
    """What a group commits of a partition, as `OffsetAndMetadata` with the leader's epoch."""

    offset: int
    metadata: str = ""
    epoch: int = NO_EPOCH

    @property
    def value(self) -> OffsetAndMetadata:
        return OffsetAndMetadata(self.offset, self.metadata)


class GroupHasMembers(LogError):
    """Another dispatcher has joined the group: nobody else may commit for it."""


class GroupOffsets(Protocol):
    """The offsets of groups that have no members. Every method raises `LogError`."""

    async def committed(
        self, group: str, topic: str, partitions: Collection[int]
    ) -> Mapping[int, Commit]:
        """What is committed, without those of which nothing is. Raises `GroupHasMembers`: what a
        member has delivered isn't all committed."""
        ...

    async def commit(self, group: str, topic: str, commits: Mapping[int, Commit]) -> None:
        """All of them are committed when it returns. Raises `GroupHasMembers`.

        Not twice at once for one group: which of the two would count is not known.
        """
        ...

    async def close(self) -> None: ...


class GroupMember(Protocol):
    """A member of a group that learns which partitions are this process's, and reads none.

    Its `Assignment` gets no commits, and those that `revoked` returns are not made.
    """

    async def serve(self, timeout: float) -> None:
        """Stay a member for about `timeout` seconds; `Assignment` is called in it. Raises
        `LogError`."""
        ...

    async def confirm(self, positions: Positions) -> bool:
        """Whether Kafka still takes commits from this member: these, for its own group. It refuses
        them when its session has run out, so that others may have its partitions."""
        ...

    async def close(self, timeout: float) -> None:
        """Revoke what it has, and leave."""
        ...


class PositionedReader(Protocol):
    """Reads partitions from given positions; a member of no group. No two calls at once."""

    ends: Positions
    """As `LogReader.ends`."""
    epochs: Mapping[int, int]
    """By partition, the leader epoch of the last record read."""
    restarted: Collection[int]
    """Partitions whose log has no such offset, as the last read has found; what it gave of them, if
    anything, is from the start of what is there."""

    def begin(self, positions: Mapping[int, Position]) -> None:
        """Read these partitions too."""
        ...

    def drop(self, partitions: Collection[int]) -> None:
        """Read these no more."""
        ...

    def pause(self, partitions: Collection[int]) -> None: ...

    def resume(self, partitions: Collection[int]) -> None: ...

    async def read(self, limit: int, timeout: float) -> Sequence[Record]:
        """As `LogReader.read`. Raises `LogError`."""
        ...

    async def close(self, timeout: float) -> None: ...
