"""An operator that dies before or after one of its effects."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

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
