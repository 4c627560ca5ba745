"""View: who shows what happens in a `knafka up`. The command line has them (`terminal_views`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from knafka_client.state.snapshot import Snapshot

Snap = Callable[[], Snapshot]


class View(Protocol):
    """Shows a person what happens in a `knafka up`."""

    def say(self, line: str) -> None:
        """Something happened, for a person."""
        ...

    def printed(self, program: str, line: str) -> None:
        """A subscriber's program printed a line."""
        ...

    async def follow(self, snapshot: Snap) -> None:
        """Show how everything stands, until cancelled."""
        ...
