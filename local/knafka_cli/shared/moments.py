"""Reads the moments that options take: a time, a duration ago or from now, the start of a topic."""

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


def parse_moment(text: str, now: float) -> float:
    """Return the moment that `text` names: a duration before `now` such as `2h`, `start` or an ISO
    8601 time.

    Both moments are in seconds since the Unix epoch. A time without an offset is local time. Raises
    `BadInput` for any other text.
    """
    if text == "start":
        return START_OF_TOPIC
    if duration := _match_duration(text):
        return max(START_OF_TOPIC, now - float(duration[1]) * _SECONDS_BY_UNIT[duration[2]])
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        raise BadInput(
            f"{text!r} is not a time: give one such as 2026-01-31T12:00, 15m (ago), or start"
        ) from None


def parse_end(text: str, now: float) -> float:
    """Return the future moment that `text` names: a duration after `now` such as `3d`, or an ISO
    8601 time.

    Both moments are in seconds since the Unix epoch. A time without an offset is local time. Raises
    `BadInput` for any other text, and for a time that isn't after `now`.
    """
    if duration := _match_duration(text):
        return now + float(duration[1]) * _SECONDS_BY_UNIT[duration[2]]
    try:
        end = datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        raise BadInput(
            f"{text!r} is not a time: give one such as 2026-01-31T12:00, or 3d (from now)"
        ) from None
    if end <= now:
        raise BadInput(f"{text!r} is over: give a time to come, or 3d (from now)")
    return end
