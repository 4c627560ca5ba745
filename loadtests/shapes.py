"""Load shapes for locust: how many users there are at what time.

    SHAPE=ramp    from none to SHAPE_USERS over the whole time
    SHAPE=spike   a tenth of the users; in the middle fifth of the time, all of them
    SHAPE=soak    all of them, all the time

SHAPE_USERS is 50 and SHAPE_SECONDS 60 unless set. Without SHAPE, locust's own -u, -r and -t count.
Not here: what a user does (see `locustfile`).
"""

from __future__ import annotations

import os
from math import ceil
from typing import ClassVar, Final

from locust import LoadTestShape


class _Shape(LoadTestShape):
    """A shape that ends after `seconds`."""

    abstract = True
    users: ClassVar[int] = int(os.environ.get("SHAPE_USERS", "50"))
    """The most users at once."""
    seconds: ClassVar[float] = float(os.environ.get("SHAPE_SECONDS", "60"))
    """Length of the whole run."""

    def tick(self) -> tuple[int, float] | None:
        """Return the number of users now, and how many may be started or stopped a second; None
        ends the run."""
        elapsed = self.get_run_time() / self.seconds  # type: ignore[no-untyped-call]
        if elapsed >= 1:
            return None
        return max(1, ceil(self.users * self.share(elapsed))), float(self.users)

    def share(self, elapsed: float) -> float:
        """Return the share of `users` that run at the moment `elapsed`; both from 0 to 1, `elapsed`
        as a share of `seconds`."""
        raise NotImplementedError


class Ramp(_Shape):
    """Ever more users: shows where latency begins to rise, or the receiver to answer 503."""

    def share(self, elapsed: float) -> float:
        """Return a share that grows from 0 to 1."""
        return elapsed


class Spike(_Shape):
    """Ten times the load at once, and back: shows whether drains start and end, and nothing is
    lost."""

    def share(self, elapsed: float) -> float:
        """Return all users in the middle fifth of the run, else a tenth."""
        return 1.0 if 0.4 <= elapsed < 0.6 else 0.1


class Soak(_Shape):
    """Steady load: shows whether memory and latency stay the same."""

    def share(self, elapsed: float) -> float:
        """Return all users, always."""
        return 1.0


SHAPES: Final[dict[str, type[LoadTestShape]]] = {"ramp": Ramp, "spike": Spike, "soak": Soak}


def chosen() -> type[LoadTestShape] | None:
    """Return the shape that SHAPE names; None without one. Raises SystemExit for an unknown
    name."""
    name = os.environ.get("SHAPE")
    if not name:
        return None
    if name not in SHAPES:
        raise SystemExit(f"error: SHAPE={name}: want one of {', '.join(SHAPES)}")
    return SHAPES[name]
