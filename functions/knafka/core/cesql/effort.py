"""Limits how much text one evaluation may read and make, whatever the expression and the event are.

Each operation adds the length of every text that it reads or makes to the effort. Texts up to
`FREE_LENGTH` are free, as an expression can't have enough of them to matter; so an ordinary
evaluation counts nothing. Beyond `MAX_EFFORT` the evaluation fails, and the filter doesn't match.

The effort is kept in a context variable, as one expression serves many threads, and is reset when
the next evaluation begins, except within `shared_effort`, where many evaluations share one limit.
`evaluation`, `functions` and `values` call `spend`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from knafka.core.cesql.errors import Exhausted

MAX_EFFORT: Final = 8 * 1024 * 1024
"""Most characters that one evaluation may read and make: eight times as many as the largest event
has by default. To read and make so many takes some 30 ms."""

FREE_LENGTH: Final = 1024
"""Longest text, in characters, that an operation reads or makes without counting it."""

EFFORT_SPENT: Final[list[bool]] = []
"""A flag: the list isn't empty once an evaluation in this process has read a large text. Until then
the effort is 0, and `forget_spent` isn't needed. (Modules that import a list share it; they would
not see another value of a bool.)"""

_spent: Final = ContextVar("spent", default=0)
"""Characters that the evaluation under way has read and made."""

_is_shared: Final = ContextVar("is_shared", default=False)
"""Whether the evaluations under way share one limit, so that none of them resets the effort."""


def forget_spent() -> None:
    """Reset the effort to 0 at the start of an evaluation, unless that shares its limit with
    others; needed only if `EFFORT_SPENT` isn't empty."""
    if not _is_shared.get():
        _spent.set(0)


@contextmanager
def shared_effort() -> Iterator[None]:
    """Have all evaluations in the body share one `MAX_EFFORT`. Raises `Exhausted` after the body if
    they went beyond it: evaluations turn that error into False, which `not` turns into True."""
    token = _is_shared.set(True)
    _spent.set(0)
    try:
        yield
        spend(0)
    finally:
        _is_shared.reset(token)
        _spent.set(0)


def spend(characters: int) -> None:
    """Add this number of characters to the effort of the evaluation under way. Raises `Exhausted`
    beyond `MAX_EFFORT`."""
    if not EFFORT_SPENT:
        EFFORT_SPENT.append(True)
    spent = _spent.get() + characters
    _spent.set(spent)
    if spent > MAX_EFFORT:
        raise Exhausted(f"the expression reads and makes more than {MAX_EFFORT} characters")
