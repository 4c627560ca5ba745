"""Resets by time: when the events that a trigger holds stop counting (BUS-4, BUS-S5)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from knafka.core.errors import InvalidDocument
from knafka.core.times import utc_datetime

_SECOND = timedelta(seconds=1)
_CLOCK_CHANGE = timedelta(hours=3)
"""Longer than the largest step by which a clock is set back."""
_QUESTION_MARK = re.compile(r"(?<![^\s,])\?(?![^\s,/])")
"""A `?` where a `*` may stand: Argo's parser reads it as `*` in every field."""


class Reset:
    """The times of a cron expression of five fields, in a time zone, at which held events stop
    counting. All times are milliseconds since the Unix epoch."""

    def __init__(self, cron: str, timezone: str = "UTC") -> None:
        """Parse the cron expression, and look the time zone up by its name, such as Europe/Berlin.
        Raises `InvalidDocument`."""
        try:
            self._zone = ZoneInfo(timezone)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise InvalidDocument(
                "timezone", f"unknown time zone {timezone!r:.80}: want one as Europe/Berlin"
            ) from None
        if len(cron.split()) != 5:
            raise InvalidDocument(
                "cron", f"invalid cron expression {cron!r:.80}: want five fields, as 59 23 * * *"
            )
        self._cron = _QUESTION_MARK.sub("*", cron)
        try:
            CronSim(self._cron, datetime(2000, 1, 1, tzinfo=UTC))  # only to check the expression
        except CronSimError as error:
            raise InvalidDocument(
                "cron", f"invalid cron expression {cron!r:.80}: {str(error).lower()}"
            ) from None
        # The result of the last search is kept: events are mostly in order, so the next call mostly
        # has the same result.
        self._last: int | None = None
        """The last reset at or before `_from`; None: there was none."""
        self._next: int | None = None
        """The first reset after `_from`; None: there is none."""
        self._from = self._until = 0
        """The cache is valid for times (ms) from `_from` on and before `_until`; no reset is
        between these two."""

    def last(self, time: int) -> int | None:
        """Return the last reset at or before this time (both in ms); None: there was none."""
        if not self._from <= time < self._until:
            self._last, self._next = self._search_backwards(time), self._search_forwards(time)
            self._from = time if self._last is None else self._last
            self._until = time + 1 if self._next is None else self._next
        return self._last

    def next(self, time: int) -> int | None:
        """Return the first reset at or after this time (both in ms); None: there is none."""
        # `last` also sets `_next`, the first reset strictly after this time.
        return time if self.last(time) == time else self._next

    def _search_backwards(self, time: int) -> int | None:
        """Return the last reset at or before this time (ms); None: there is none."""
        # CronSim searches strictly before the second that it starts from.
        start = _whole_second(time) + _SECOND
        resets = self._resets_from(start + self._margin(start), reverse=True)
        return next((reset for reset in resets if reset <= time), None)

    def _search_forwards(self, time: int) -> int | None:
        """Return the first reset after this time (ms); None: there is none."""
        start = _whole_second(time)
        resets = self._resets_from(start - self._margin(start), reverse=False)
        return next((reset for reset in resets if reset > time), None)

    def _margin(self, start: datetime) -> timedelta:
        """Return how far from `start` a search has to begin: a forward one before `start`, a
        backward one after it. Zero unless the clocks change near `start`: in an hour that they
        repeat, CronSim can't tell the first pass from the second."""
        offsets = {
            (start + margin).astimezone(self._zone).utcoffset()
            for margin in (-_CLOCK_CHANGE, _CLOCK_CHANGE)
        }
        return _CLOCK_CHANGE if len(offsets) > 1 else timedelta()

    def _resets_from(self, start: datetime, *, reverse: bool) -> Iterator[int]:
        """Yield the times (ms) of the resets after this moment in ascending order; with `reverse`,
        of those before it in descending order."""
        moments = CronSim(self._cron, start.astimezone(self._zone), reverse=reverse)
        with suppress(OverflowError):  # the search left the years that datetime knows
            for reset_time in moments:
                yield round(reset_time.timestamp() * 1000)


def _whole_second(time: int) -> datetime:
    """Return the start of the second that contains this time (ms since the Unix epoch), in UTC."""
    return utc_datetime(time // 1000)
