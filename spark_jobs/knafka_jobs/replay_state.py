"""Replay state: decides in which state a replay is, and how fast it sends, from its rows in the
tables. Pure.

begun ──> running ──────────────────> finished
             │ ──> cancelling ──> cancelled
             └─ no note for a while ──> interrupted (the same command continues it)
"""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

SILENCE: Final = timedelta(minutes=5)
"""Time without a note of progress after which an unfinished replay counts as interrupted. A running
replay makes a note every fifteen seconds at first, and this interval grows by about a minute with
each hour that it runs."""


class ReplayState(StrEnum):
    """The state of a replay."""

    RUNNING = "running"
    """Not finished, and with a recent note of its progress."""
    CANCELLING = "cancelling"
    """Somebody cancelled it, and it has not ended yet."""
    INTERRUPTED = "interrupted"
    """Not finished, and without a note for a while: the same command continues it."""
    CANCELLED = "cancelled"
    """It has ended because somebody cancelled it."""
    FINISHED = "finished"
    """It has ended by itself, or because another replay began."""


def replay_state(
    started: datetime,
    finished: datetime | None,
    noted: datetime | None,
    cancelled: datetime | None,
    now: datetime,
) -> ReplayState:
    """Return the state of a replay at `now`, from the times at which it started, finished, last
    noted its progress, and was cancelled. A time is None if that has not happened."""
    if finished is not None:
        return ReplayState.FINISHED if cancelled is None else ReplayState.CANCELLED
    last_sign = max(started, noted or started)
    # The interval of notes grows with the time that the replay runs, by less than a tenth.
    if now - last_sign > max(SILENCE, (last_sign - started) / 10):
        return ReplayState.INTERRUPTED
    return ReplayState.RUNNING if cancelled is None else ReplayState.CANCELLING


def events_a_second(
    sent: int, first_noted: tuple[datetime, int] | None, until: datetime | None
) -> float | None:
    """Return how many events a replay sends in a second, measured from its first note of progress.
    None if that is not known: less than a second has passed since then, or nothing was sent.

    `first_noted` is the time of that note, and the number of events that were sent by then; None:
    there is no note. `until` is when the replay had sent `sent` events; None: unknown.
    """
    if first_noted is None or until is None:
        return None
    noted_at, sent_before = first_noted
    seconds = (until - noted_at).total_seconds()
    if seconds < 1 or sent <= sent_before:
        return None
    return round((sent - sent_before) / seconds, 1)
