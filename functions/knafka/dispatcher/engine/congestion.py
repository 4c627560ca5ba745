"""Congestion control for one subscriber: how many attempts it may get at once (KN-DP-05).

    CLOSED --many failures in a row, of several events--> OPEN --any answer but "not now"--> CLOSED

Closed, the limit adapts as TCP's window does: failures in a row halve it, answers raise it, first
quickly and then slowly, between 1 and the Egress's `maxInFlight`. Open, a few events *probe* the
subscriber, each with its own declared retries, and all others wait without an attempt: an hour
without a subscriber uses up the retries of a few events, not of the backlog. A Retry-After that the
delivery spec honours pauses all attempts until then.

A failure counts if the subscriber could not have taken the event: no connection, no response in
time, no token, or status 429, 502, 503 or 504; the same holds for a Subscription's reply
destination, without which no delivery succeeds. Any other response counts as an answer. Times are
the event loop's, in seconds.
"""

from __future__ import annotations

from typing import Final

from knafka.core.contract import RateLimit
from knafka.core.delivery import Outcome, Reason
from knafka.dispatcher.engine.rate import AttemptRate

FAILURES_TO_OPEN: Final = 10
"""Failed attempts in a row after which only probes are sent."""
EVENTS_TO_OPEN: Final = 3
"""Different events among these failures, at least: a single event that always fails proves nothing
about the subscriber."""
FAILURES_TO_SLOW_DOWN: Final = 3
"""Failed attempts in a row that halve the limit; fewer failures between successes don't."""
SLOW_DOWN_INTERVAL: Final = 0.5
"""Seconds between two halvings: attempts that were under way together fail together."""
PROBES: Final = 3
"""Number of events that may probe without slowing down new probes; with n times as many, new probes
begin n times less often."""
FIRST_PROBE_INTERVAL: Final = 1.0
"""Seconds between the last attempt and the next probe, at first."""
MAX_PROBE_INTERVAL: Final = 30.0
"""Seconds between the last attempt and the next probe, at most; each failed probe doubles the
interval."""

_UNAVAILABLE_STATUSES: Final = frozenset({429, 502, 503, 504})
"""Statuses of a subscriber that could not have taken the event now."""
_NO_RESPONSE: Final = frozenset({Reason.REFUSED, Reason.TIMEOUT, Reason.BROKEN, Reason.NO_TOKEN})
"""Reasons of failures without a response."""


class CongestionControl:
    """Decides how many attempts one drain may have under way at its subscriber."""

    def __init__(self, max_in_flight: int, rate_limit: RateLimit | None = None) -> None:
        """Begin without congestion: `max_in_flight` attempts may be under way at once.
        `rate_limit`: how many may begin in a unit of time; None: any number."""
        self.rate = None if rate_limit is None else AttemptRate(rate_limit)
        """The declared rate limit, for which attempts wait as well; None: none is declared."""
        self.is_open = False
        """Whether the subscriber is away, so that only probes are sent."""
        self.is_calm = True
        """Whether there is no congestion: the limit is the highest, and no attempt has failed
        lately."""
        self.limit = max_in_flight
        """Attempts that may be under way at once while `is_open` is False."""
        self.paused_until = 0.0
        """When attempts may begin again after a Retry-After, on the event loop's clock."""
        self.reason = ""
        """Why the last attempt failed; empty without congestion."""
        self._max = max_in_flight
        """The highest value of `limit`."""
        self._window = float(max_in_flight)
        """`limit` with its fraction, as it grows by less than 1 for each answer."""
        self._threshold = float(max_in_flight)
        """From this value on, `_window` grows slowly."""
        self._failures = 0
        """Failed attempts in a row."""
        self._failed_events: set[int] = set()
        """Numbers (`record_failure`) of the events that these attempts were for."""
        self._slowed_down_at = 0.0
        """When the limit was last halved."""
        self._probed_at = 0.0
        """When a probe last began or an attempt last failed."""
        self._probe_interval = FIRST_PROBE_INTERVAL
        """Seconds from `_probed_at` to the next probe."""

    def set_max_in_flight(self, max_in_flight: int) -> None:
        """Change the highest number of attempts that may be under way at once. The limit follows if
        it was at the previous highest number; otherwise it is only cut to the new one."""
        was_at_max = self._window == self._max
        self._max = max_in_flight
        self._window = float(self._max) if was_at_max else min(self._window, self._max)
        self.limit = int(self._window)

    def record_answer(self) -> None:
        """Note that the subscriber answered an attempt, whatever the status: it can take
        requests."""
        self._failures = 0
        self._failed_events.clear()
        if self.is_open:
            self.is_open = False
            self._window = float(min(PROBES, self._max))
        elif self.limit < self._max:
            # As in TCP: by 1 for each answer or, from the threshold on, for each window of answers.
            growth = 1.0 if self._window < self._threshold else 1.0 / self._window
            self._window = min(self._max, self._window + growth)
        self.limit = int(self._window)
        if self.limit == self._max:
            self.is_calm = True
            self.reason = ""

    def record_failure(self, outcome: Outcome, event: int, now: float) -> None:
        """Note that an attempt failed at the time `now`; `event` is any number that identifies its
        event. An outcome that shows that the subscriber can take requests counts as an answer."""
        failure = outcome.failure
        is_unanswered = failure in _NO_RESPONSE or (
            failure is Reason.REPLY_NOT_DELIVERED and outcome.status is None
        )
        if not is_unanswered and outcome.status not in _UNAVAILABLE_STATUSES:
            self.record_answer()
            return
        self.is_calm = False
        self._failures += 1
        self._failed_events.add(event)
        self.reason = str(outcome.failure or f"status {outcome.status}")
        self._probed_at = now
        if self.is_open:
            self._probe_interval = min(self._probe_interval * 2, MAX_PROBE_INTERVAL)
        elif self._failures >= FAILURES_TO_OPEN and len(self._failed_events) >= EVENTS_TO_OPEN:
            self.is_open = True
            self._probe_interval = FIRST_PROBE_INTERVAL
            self._threshold = max(1.0, self._window / 2)
        elif self._failures >= FAILURES_TO_SLOW_DOWN:
            self._slow_down(now)

    def pause(self, seconds: float, now: float) -> None:
        """Begin no attempt until `seconds` after `now`, as the subscriber's Retry-After asks."""
        self.paused_until = max(self.paused_until, now + seconds)

    def record_probe(self, now: float) -> None:
        """Note that another event began to probe the subscriber at the time `now`."""
        self._probed_at = now

    def next_probe_at(self, probes: int) -> float:
        """Return when another event may begin to probe, on the event loop's clock, while `probes`
        probing events are unsettled."""
        interval = self._probe_interval * max(1, probes // PROBES)
        return max(self.paused_until, self._probed_at + interval)

    def describe(self) -> str:
        """Return a sentence that says why only probes are sent; empty if `is_open` is False."""
        if self.is_open:
            return f"{self._failures} attempts in a row failed, the last one with: {self.reason}"
        return ""

    def _slow_down(self, now: float) -> None:
        """Halve the limit, unless it was halved within `SLOW_DOWN_INTERVAL`."""
        if now - self._slowed_down_at >= SLOW_DOWN_INTERVAL:
            self._slowed_down_at = now
            self._window = self._threshold = max(1.0, self._window / 2)
            self.limit = int(self._window)
