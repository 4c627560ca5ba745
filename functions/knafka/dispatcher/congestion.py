"""Congestion control for one subscriber: how many attempts it may get at once (KN-DP-05).

    CLOSED --many failures in a row, of several events--> OPEN --any answer but "not now"--> CLOSED

Closed, the limit adapts as TCP's window does: failures in a row halve it, answers raise it, first
quickly and then slowly, between 1 and the Egress's `maxInFlight`. Open, a few events *probe* the
subscriber, each with its own declared retries, and all others wait without an attempt: an hour
without a subscriber costs some events and not the backlog. A Retry-After that the delivery spec
honours pauses all attempts until then.

What counts is what says that nobody could have taken the event: no connection, no response in
time, no token to show, 429, 502, 503 and 504, be it of a Subscription's reply destination, without
which no delivery succeeds. Any other answer is an answer. Times are the event loop's, in seconds.
"""

from __future__ import annotations

from typing import Final

from knafka.core.contract import RateLimit
from knafka.core.delivery import Outcome, Reason
from knafka.dispatcher.rate import AttemptRate

FAILURES_TO_OPEN: Final = 10
"""Failures in a row."""
EVENTS_TO_OPEN: Final = 3
"""Events among them: one that always fails says nothing about the subscriber."""
FAILURES_TO_SLOW_DOWN: Final = 3
"""Failures in a row that halve the limit; rare ones among successes leave it alone."""
SLOW_DOWN_INTERVAL: Final = 0.5
"""Seconds between two halvings: attempts that were under way together fail together."""
PROBES: Final = 3
"""Events that probe at the pace; with more of them unsettled the next ones come less often."""
FIRST_PACE: Final = 1.0
MAX_PACE: Final = 30.0
"""Seconds between an attempt and another event as a probe: doubled with each one that fails."""

_NOT_NOW: Final = frozenset({429, 502, 503, 504})
_NO_RESPONSE: Final = frozenset({Reason.REFUSED, Reason.TIMEOUT, Reason.BROKEN, Reason.NO_TOKEN})


class CongestionControl:
    """Of one subscriber, for one dispatcher."""

    def __init__(self, max_in_flight: int, rate_limit: RateLimit | None = None) -> None:
        self.rate = None if rate_limit is None else AttemptRate(rate_limit)
        """What attempts also wait for; None: nothing."""
        self.is_open = False
        self.is_calm = True
        """Whether an answer changes nothing: as many attempts as allowed, and no failure."""
        self.limit = max_in_flight
        """Attempts that may be under way at once while it is closed."""
        self.paused_until = 0.0
        self.reason = ""
        """What the last failure was, while there is congestion."""
        self._max = max_in_flight
        self._window = float(max_in_flight)
        self._threshold = float(max_in_flight)
        self._failures = 0
        self._failed_events: set[int] = set()
        self._slowed_down_at = 0.0
        self._probed_at = 0.0
        self._pace = FIRST_PACE

    def allow(self, max_in_flight: int) -> None:
        """It may get so many at once from now on."""
        was_max = self._window == self._max
        self._max = max_in_flight
        self._window = float(self._max) if was_max else min(self._window, self._max)
        self.limit = int(self._window)

    def answered(self) -> None:
        """The subscriber has answered: it is there, whatever it thinks of the event."""
        self._failures = 0
        self._failed_events.clear()
        if self.is_open:
            self.is_open = False
            self._window = float(min(PROBES, self._max))
        elif self.limit < self._max:
            grown = 1.0 if self._window < self._threshold else 1.0 / self._window
            self._window = min(self._max, self._window + grown)
        self.limit = int(self._window)
        if self.limit == self._max:
            self.is_calm = True
            self.reason = ""

    def failed(self, outcome: Outcome, event: int, now: float) -> None:
        """An attempt for this event, known by a number of its own, was not successful."""
        failure = outcome.failure
        unanswered = failure in _NO_RESPONSE or (
            failure is Reason.REPLY_NOT_DELIVERED and outcome.status is None
        )
        if not unanswered and outcome.status not in _NOT_NOW:
            self.answered()
            return
        self.is_calm = False
        self._failures += 1
        self._failed_events.add(event)
        self.reason = str(outcome.failure or f"status {outcome.status}")
        self._probed_at = now
        if self.is_open:
            self._pace = min(self._pace * 2, MAX_PACE)
        elif self._failures >= FAILURES_TO_OPEN and len(self._failed_events) >= EVENTS_TO_OPEN:
            self.is_open = True
            self._pace = FIRST_PACE
            self._threshold = max(1.0, self._window / 2)
        elif self._failures >= FAILURES_TO_SLOW_DOWN:
            self._slow_down(now)

    def pause(self, seconds: float, now: float) -> None:
        """The subscriber wants nothing for so long (Retry-After)."""
        self.paused_until = max(self.paused_until, now + seconds)

    def probe(self, now: float) -> None:
        """One more event begins to probe."""
        self._probed_at = now

    def next_probe_at(self, probes: int) -> float:
        """When another event may begin to probe while `probes` of them are unsettled."""
        return max(self.paused_until, self._probed_at + self._pace * max(1, probes // PROBES))

    def describe(self) -> str:
        """Why attempts are held back, for a person; empty: they aren't."""
        if self.is_open:
            return f"{self._failures} attempts in a row failed, the last one with: {self.reason}"
        return ""

    def _slow_down(self, now: float) -> None:
        if now - self._slowed_down_at >= SLOW_DOWN_INTERVAL:
            self._slowed_down_at = now
            self._window = self._threshold = max(1.0, self._window / 2)
            self.limit = int(self._window)
