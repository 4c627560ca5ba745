"""View: how `knafka up` shows what happens. The command line implements it (`terminal_views`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from knafka_client.state.snapshot import Snapshot

TakeSnapshot = Callable[[], Snapshot]
"""Takes a snapshot of everything that runs."""


class View(Protocol):
    """Shows a person what happens in a `knafka up`."""

    def say(self, line: str) -> None:
        """Show one line of text about something that happened."""
        ...

    def show_program_line(self, program: str, line: str) -> None:
        """Show one line that the program of a subscriber printed to stdout."""
        ...

    async def follow(self, snapshot: TakeSnapshot) -> None:
        """Call `snapshot` repeatedly and show the snapshots that it takes, until cancelled."""
        ...
