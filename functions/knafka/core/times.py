"""Times that came from outside, as datetimes: whatever a clock, a record or a declaration says.

A record's timestamp is any 64-bit number, and a duration may be ten thousand years. What no
datetime can hold is shown as the nearest time that every time zone has.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

EARLIEST: Final = -62_135_510_400
"""Seconds since the Unix epoch: 0001-01-02, a day within what a datetime can hold."""
LATEST: Final = 253_402_214_399
"""9999-12-30T23:59:59, a day within it as well."""


AHEAD: Final = 60_000
"""Milliseconds by which the clocks of Kafka and of our own processes may differ; more is wrong."""
LOG_APPEND_TIME: Final = 2
"""The kind of a record's timestamp that is the log's own, as confluent-kafka numbers them."""


def taken_at(timestamp: tuple[int, int], now: int) -> int:
    """Return when the log took a record (ms since the Unix epoch), from its timestamp and the time
    at which it is read. A sender's time later than that, or impossible, isn't believed."""
    kind, at = timestamp
    return at if 0 <= at <= now + (AHEAD if kind == LOG_APPEND_TIME else 0) else now


def written_at(at: int, now: int) -> int:
    """The time (ms) that one of our own processes wrote, unless it can't be: then that of
    reading."""
    return at if 0 <= at <= now + AHEAD else now


def moment(seconds: float) -> datetime:
    """The UTC datetime of a Unix time in seconds; one out of range is moved to the nearest."""
    return datetime.fromtimestamp(min(max(seconds, EARLIEST), LATEST), UTC)


def rfc3339(seconds: float) -> str:
    """A Unix time in seconds as RFC 3339 has it, in UTC, to the millisecond."""
    return moment(seconds).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def to_the_second(seconds: float) -> str:
    """A Unix time in seconds as Kubernetes writes times: 2026-01-31T12:00:00Z."""
    # Not strftime, whose %Y has no leading zeros on Linux.
    return moment(seconds).isoformat(timespec="seconds").replace("+00:00", "Z")
