"""A line of the conformance table: one thing that is asked, and how much."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How much a line asks."""

    MUST = "M"
    SHOULD = "S"
    MAY = "y"
    UPSTREAM = "-"
    """No specification's, but what users of upstream's Brokers and channels know."""


@dataclass(frozen=True, slots=True)
class Line:
    """One thing that is asked. It has tests, or one of both reasons."""

    id: str
    level: Level
    what: str
    on_absent: str = ""
    """Why the whole of it is not offered; empty: it is."""
    note: str = ""
    """What is not offered of it, or how it is kept where there was a choice."""
    no_behaviour: str = ""
    """Why no test can show it: a goal, a layout of folders, a remark."""

    @property
    def family(self) -> str:
        """`KN-BRK`."""
        return self.id.rpartition("-")[0]
