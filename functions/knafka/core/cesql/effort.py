"""Effort: what one evaluation may read and make, whatever the expression and the event are.

Text costs what it is long, each time that an operation reads or makes it, but for pieces up to
`FREE_LENGTH`, of which an expression can't have enough to matter. So an ordinary evaluation counts
nothing. Beyond `MAX_EFFORT` the evaluation fails like any other: a filter doesn't match.

What was spent is kept by thread, as one expression serves many, and is forgotten when the thread's
next evaluation begins. Not here: what is spent on what (`evaluation`, `functions`).
"""

from __future__ import annotations

from threading import get_ident
from typing import Final

from knafka.core.cesql.errors import Exhausted

MAX_EFFORT: Final = 8 * 1024 * 1024
"""Characters that one evaluation may read and make: eight times what an event has, some 30 ms."""

FREE_LENGTH: Final = 1024
"""Characters that an operation reads or makes for nothing."""

SPENT: Final[dict[int, int]] = {}
"""Characters by thread, of the evaluation under way; empty unless large texts were read."""


def forget_spent() -> None:
    """An evaluation begins on this thread. To be called if there is anything in `SPENT`."""
    SPENT.pop(get_ident(), None)


def spend(characters: int) -> None:
    """Raises `Exhausted` when the evaluation has read and made too much."""
    thread = get_ident()
    spent = SPENT[thread] = SPENT.get(thread, 0) + characters
    if spent > MAX_EFFORT:
        raise Exhausted(f"the expression reads and makes more than {MAX_EFFORT} characters")
