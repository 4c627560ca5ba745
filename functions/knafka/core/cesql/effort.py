"""Effort: what one evaluation may read and make, whatever the expression and the event are.

Text costs what it is long, each time that an operation reads or makes it, but for pieces up to
`FREE_LENGTH`, of which an expression can't have enough to matter. So an ordinary evaluation counts
nothing. Beyond `MAX_EFFORT` the evaluation fails like any other: a filter doesn't match.

What was spent is kept in a context variable, as one expression serves many threads, and forgotten
when the next evaluation begins. Not here: what is spent on what (`evaluation`, `functions`).
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final

from knafka.core.cesql.errors import Exhausted

MAX_EFFORT: Final = 8 * 1024 * 1024
"""Characters that one evaluation may read and make: eight times what an event has, some 30 ms."""

FREE_LENGTH: Final = 1024
"""Characters that an operation reads or makes for nothing."""

SPENT: Final[list[bool]] = []
"""Not empty once an evaluation in this process has read a large text; until then `forget_spent`
isn't needed."""

_spent: Final = ContextVar("spent", default=0)
"""Characters that the evaluation under way has read and made."""


def forget_spent() -> None:
    """Reset the effort at the start of an evaluation; needed only if `SPENT` isn't empty."""
    _spent.set(0)


def spend(characters: int) -> None:
    """Add characters to the effort of the evaluation under way. Raises `Exhausted` beyond
    `MAX_EFFORT`."""
    if not SPENT:
        SPENT.append(True)
    spent = _spent.get() + characters
    _spent.set(spent)
    if spent > MAX_EFFORT:
        raise Exhausted(f"the expression reads and makes more than {MAX_EFFORT} characters")
