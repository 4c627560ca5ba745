"""Seconds between two tries of something that is to go on for ever."""

from __future__ import annotations

from typing import Final

FIRST_RESTART: Final = 1.0
LAST_RESTART: Final = 10.0
"""Doubled from the first up to the last."""


def restart_after(failures: int) -> float:
    """Seconds after a try that failed, the `failures` before it having failed too."""
    return min(FIRST_RESTART * 2.0 ** min(failures, 16), LAST_RESTART)
