"""Moments that a user names in an option: a time, how long ago, or the start."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final

from knafka_cli.shared.event_input import BadInput

START_OF_TOPIC: Final = 0.0
"""The moment before every event."""

_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_ago = re.compile(r"(\d+(?:\.\d+)?)([smhd])").fullmatch


def moment(text: str, now: float) -> float:
    """Seconds since the Unix epoch of `2h` (ago), `start`, or a time in ISO 8601, by local time
    unless it says otherwise. Raises `BadInput`."""
    if text == "start":
        return START_OF_TOPIC
    if ago := _ago(text):
        return max(START_OF_TOPIC, now - float(ago[1]) * _SECONDS[ago[2]])
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        raise BadInput(
            f"{text!r} is not a time: give one such as 2026-01-31T12:00, 15m (ago), or start"
        ) from None
