"""The wait before a task that must run for ever is restarted after a failure."""

from __future__ import annotations

from typing import Final

FIRST_RESTART: Final = 1.0
LAST_RESTART: Final = 10.0
"""Seconds before a restart: doubled with each failure, from the first wait up to the last."""


def restart_after(failures: int) -> float:
    """Return the seconds to wait before a task whose run has failed is restarted. `failures`: how
    many runs in a row had failed before this one."""
    # The exponent is limited, as the power would overflow after a thousand failures.
    return min(FIRST_RESTART * 2.0 ** min(failures, 16), LAST_RESTART)
