"""Lease: each replica's rules for leading, from the stored Lease and the time. Pure: callers pass
the time.

    observe(stored Lease) -> may_claim -> write -> on_written -> leads for `RENEW_WITHIN` seconds

Times are by this process's monotonic clock, and never compared with another replica's clock: a
holder counts as dead when the stored Lease has not changed for its duration, counted from when we
saw the last change. A write only succeeds on the observed version, so of two concurrent claims one
succeeds.

    the leader: sends a renewal, and leads for RENEW_WITHIN seconds from then
    the others: see that renewal, never before it was sent, and wait DURATION seconds from then

Not here: reading, writing and waiting (`leadership`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

DURATION: Final = 15.0
"""Seconds without a renewal after which others may claim the Lease. `DURATION`, `RENEW_WITHIN` and
`LEASE_RENEW_INTERVAL` have the values of Kubernetes' own controllers: API servers under load fail
for longer than 4.5 s, and each restart of the operator reads everything again."""
RENEW_WITHIN: Final = 10.0
"""Seconds after sending the last renewal at which its holder stops acting: before `DURATION`, with
a margin for clock drift and for stopping."""
LEASE_RENEW_INTERVAL: Final = 2.0
"""Seconds between sending two renewals."""
RENEW_RETRY_INTERVAL: Final = 0.2
"""Seconds between a failed renewal and the next attempt."""
CLAIM_CHECK_INTERVAL: Final = 1.0
"""Most seconds between two reads of the Lease by a replica that doesn't lead."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The stored Lease."""

    holder: str
    """Identity of the leader; empty: the Lease was released."""
    duration: float
    """Seconds without a change after which other replicas count its holder as dead."""
    transitions: int
    """How often the Lease's holder has changed."""
    version: str
    """The resourceVersion, which changes with each write."""


class Election:
    """One replica's view of the Lease. Any thread may call `leads` and `leads_until`; the rest
    belongs to one thread."""

    def __init__(self, me: str) -> None:
        """`me` is this replica's identity, which no other running process has."""
        self._me = me
        self._stored: Lease | None = None
        """The Lease as last observed; None: there is none."""
        self._changed_at = 0.0
        """When the stored Lease was last seen to change (seconds, monotonic)."""
        self._claim_after = 0.0
        """When the holder of a Lease that was deleted counts as dead (seconds, monotonic)."""
        self._leads_until: float | None = None
        """Until when this replica leads (seconds, monotonic); None: it doesn't."""

    @property
    def stored(self) -> Lease | None:
        """The Lease as last observed, which a write must replace; None: there is none."""
        return self._stored

    def observe(self, stored: Lease | None, now: float) -> None:
        """Record the stored Lease, read at `now`; None: there is none. If another replica holds it,
        this one no longer leads."""
        previous = self._stored
        if previous is None or stored is None or stored.version != previous.version:
            self._stored, self._changed_at = stored, now
        if stored is None and previous is not None and previous.holder not in ("", self._me):
            # Somebody deleted the Lease: its holder acts until a renewal fails.
            self._claim_after = now + previous.duration
        if stored is not None and stored.holder != self._me:
            self._leads_until = None  # another replica has taken the Lease

    def may_claim(self, now: float) -> bool:
        """Whether this replica may claim or renew the Lease at `now`: nobody else holds it, or its
        holder counts as dead."""
        stored = self._stored
        if stored is None:
            return now >= self._claim_after
        if stored.holder in ("", self._me):
            return True
        return now >= self._changed_at + stored.duration

    def seconds_to_retry(self, now: float) -> float:
        """Return the seconds, from `now`, after which this replica, which doesn't lead, should read
        the Lease and try to claim it again."""
        if self._stored is None:
            return CLAIM_CHECK_INTERVAL
        seconds_to_expiry = self._changed_at + self._stored.duration - now
        if seconds_to_expiry <= 0:  # expired, and the claim just made has failed
            return CLAIM_CHECK_INTERVAL
        return min(CLAIM_CHECK_INTERVAL, seconds_to_expiry)

    def lease_to_claim(self) -> Lease:
        """Return the Lease that this replica writes to claim or renew it. `version` is
        that of the stored Lease, which the write must replace; empty: none is stored."""
        stored = self._stored
        if stored is None:
            return Lease(self._me, DURATION, transitions=0, version="")
        transitions = stored.transitions + (1 if stored.holder != self._me else 0)
        return replace(stored, holder=self._me, duration=DURATION, transitions=transitions)

    def lease_to_release(self) -> Lease | None:
        """Return the Lease to write so that nobody holds it; None: this replica doesn't hold it."""
        stored = self._stored
        if stored is None or stored.holder != self._me:
            return None
        return replace(stored, holder="")

    def on_written(self, stored: Lease, sent: float, now: float) -> None:
        """Record that a write was sent at `sent`, and answered at `now` with the Lease `stored`.
        If it names this replica, the replica leads for `RENEW_WITHIN` seconds from `sent`, not from
        the answer: other replicas may have seen this write as soon as it was sent, and count from
        then."""
        self.observe(stored, now)
        self._leads_until = None if stored.holder != self._me else sent + RENEW_WITHIN

    def leads(self, now: float) -> bool:
        """Whether this replica may act at `now`. One that no longer leads must restart."""
        leads_until = self._leads_until  # read once: another thread may set it to None
        return leads_until is not None and now < leads_until

    @property
    def leads_until(self) -> float | None:
        """Time at which this replica stops leading unless it renews; None: it doesn't lead."""
        return self._leads_until
