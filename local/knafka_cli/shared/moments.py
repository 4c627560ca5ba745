"""Reads the durations and moments that options take. A moment is a time, a duration ago or from
now, or the start of a topic."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final

from knafka_cli.shared.event_input import BadInput

START_OF_TOPIC: Final = 0.0
"""The moment before every event."""

_SECONDS_BY_UNIT: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_match_duration = re.compile(r"(\d+(?:\.\d+)?)([smhd])").fullmatch
"""Matches a duration such as `1.5h`, with groups for its number and its unit."""


def parse_duration(text: str) -> float | None:
    """Return the seconds of a duration such as `90s`, `15m`, `1.5h` or `3d`; None if `text` is no
    duration. A number too large for a float gives infinity."""
    if (duration := _match_duration(text)) is None:
        return None
    number, unit = duration.groups()
    return float(number) * _SECONDS_BY_UNIT[unit]


def parse_moment(text: str, now: float) -> float:
    """Return the moment that `text` names: a duration before `now` such as `2h`, `start` or an ISO
    8601 time.

    The result and `now` are in seconds since the Unix epoch; a time without an offset is local.
    Raises `BadInput` for any other text.
    """
    if text == "start":
        return START_OF_TOPIC
    if (seconds := parse_duration(text)) is not None:
        return max(START_OF_TOPIC, now - seconds)
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        raise BadInput(
            f"{text!r} is not a time: give one such as 2026-01-31T12:00, 15m (ago), or start"
        ) from None


def parse_end(text: str, now: float) -> float:
    """Return the future moment that `text` names: a duration after `now` such as `3d`, or an ISO
    8601 time.

    The result and `now` are in seconds since the Unix epoch; a time without an offset is local.
    Raises `BadInput` for any other text, and for a time that isn't after `now`.
    """
    if (seconds := parse_duration(text)) is not None:
        return now + seconds
    try:
        end = datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        raise BadInput(
            f"{text!r} is not a time: give one such as 2026-01-31T12:00, or 3d (from now)"
        ) from None
    if end <= now:
        raise BadInput(f"{text!r} is over: give a time to come, or 3d (from now)")
    return end
