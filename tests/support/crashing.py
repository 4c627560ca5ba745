"""An operator that dies before or after one of its effects."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from typing import TypeVar

from support.examples import SHARE

Moment = TypeVar("Moment")

EFFECTS = frozenset(
    {
        *("create", "apply", "write_status", "delete"),
        *("ensure_topic", "delete_topic", "ensure_committed", "delete_group"),
        *("append", "probe"),
    }
)


class Crash(BaseException):
    """The process is gone."""


class Crashing:
    """Dies before or after one effect of those to come."""

    def __init__(self, check: Callable[[], None]) -> None:
        """`check` is called after each effect."""
        self.at: tuple[str, int] | None = None
        """`before` or `after`, and which of those to come."""
        self._check = check

    def __call__(self, when: str, call: str) -> None:
        if call not in EFFECTS:
            return
        if when == "after":
            self._check()
        if self.at is not None and self.at[0] == when:
            left = self.at[1] - 1
            self.at = (when, left) if left else None
            if not left:
                raise Crash


def moments() -> Iterator[tuple[str, int]]:
    """Each moment at which a process can die, for `Crashing.at`: before its first effect, and after
    each. Before an effect is after the one that came before it: outside nothing differs."""
    yield "before", 1
    for number in count(1):
        yield "after", number


def sampled(moments: Iterable[Moment]) -> Iterator[Moment]:
    """This run's share of the moments (`support.examples`): the first, and of the others every
    n-th, from a random one on. Not for parameters, which all workers have to agree on."""
    step = max(1, round(1 / SHARE))
    left = 0
    for number, moment in enumerate(moments):
        if number == 1:
            left = random.randrange(step)
        if left:
            left -= 1
            continue
        left = step - 1 if number else 0
        yield moment


def crashes_at_least(number: int) -> int:
    """How often an operator must have died, if `number` times where every moment is tried."""
    return number if SHARE >= 1 else 1
