"""Converts times from clocks, records and declarations, which may be out of range, to datetimes and
text.

A record's timestamp is any 64-bit number, and a duration may be ten thousand years. A time that no
datetime can hold becomes the nearest one that every time zone has.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

EARLIEST: Final = -62_135_510_400
"""Seconds since the Unix epoch: 0001-01-02, a day after the earliest datetime."""
LATEST: Final = 253_402_214_399
"""Seconds since the Unix epoch: 9999-12-30T23:59:59, a day before the latest datetime."""


MAX_CLOCK_SKEW_MS: Final = 60_000
"""Most milliseconds by which the clocks of Kafka and of our own processes may differ."""
LOG_APPEND_TIME: Final = 2
"""confluent-kafka's number of the timestamp type LogAppendTime."""


def taken_at(timestamp: tuple[int, int], now: int) -> int:
    """Return when the log took a record (ms since the Unix epoch), by the record's `timestamp`: its
    type and its value (ms), as confluent-kafka returns them. `now` (ms): when the record is read.

    A value that is negative or too late is replaced by `now`. One from Kafka's clock
    (`LOG_APPEND_TIME`) is too late if it is later than `now` by more than `MAX_CLOCK_SKEW_MS`; one
    from a sender's clock, if it is later than `now` at all.
    """
    timestamp_type, time = timestamp
    latest = now + MAX_CLOCK_SKEW_MS if timestamp_type == LOG_APPEND_TIME else now
    return time if 0 <= time <= latest else now


def written_at(time: int, now: int) -> int:
    """Return `time` (ms), which one of our own processes wrote in a record; but if `time` is
    negative, or later than `now` (ms) by more than `MAX_CLOCK_SKEW_MS`, return `now`."""
    return time if 0 <= time <= now + MAX_CLOCK_SKEW_MS else now


def utc_datetime(seconds: float) -> datetime:
    """Return the UTC datetime of a Unix time in seconds. A time that is out of range becomes the
    nearest possible datetime."""
    return datetime.fromtimestamp(min(max(seconds, EARLIEST), LATEST), UTC)


def rfc3339(seconds: float) -> str:
    """Format a Unix time in seconds as RFC 3339, in UTC, to the millisecond."""
    return utc_datetime(seconds).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def kubernetes_timestamp(seconds: float) -> str:
    """Format a Unix time in seconds as Kubernetes does: 2026-01-31T12:00:00Z."""
    # Not strftime, whose %Y has no leading zeros on Linux.
    return utc_datetime(seconds).isoformat(timespec="seconds").replace("+00:00", "Z")
