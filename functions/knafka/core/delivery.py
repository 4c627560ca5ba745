"""Decides after an attempt whether the event is delivered, tried again (and when) or dead-lettered.

    Outcome --decide--> Done | Retry(after) | DeadLetter(reason)

`decide` returns the decision as data, and the dispatcher carries it out. Not here: clocks (`now` is
an argument), sockets, and randomness: waits are exactly those of the delivery spec, never less.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import Final, assert_never

from knafka.core.contract import BackoffPolicy, Delivery

MAX_BACKOFF: Final = 3600.0
"""Longest wait in seconds, unless the declared delay is longer: exponential backoff soon exceeds
any useful wait."""

RETRIED_4XX: Final = frozenset({404, 408, 409, 429})
"""Statuses of clients' errors after which an attempt is repeated, as the cause may go away."""
RETRY_AFTER_STATUSES: Final = frozenset({429, 503})
"""Statuses whose Retry-After header may lengthen the wait."""


class Reason(StrEnum):
    """Why an event could not be delivered; a closed list, kept with each dead letter."""

    TIMEOUT = "timeout"
    """The attempt took longer than the delivery's timeout."""
    REFUSED = "refused"
    """No connection was made."""
    BROKEN = "broken"
    """The connection or the response broke."""
    STATUS = "status"
    """The response's status isn't 2xx."""
    MALFORMED_REPLY = "malformed-reply"
    """The response claims to hold an event, which isn't valid."""
    REPLY_NOT_STORED = "reply-not-stored"
    """Kafka did not take the reply."""
    UNDECODABLE = "undecodable-record"
    """The record holds no valid event."""
    INTERNAL_ERROR = "internal-error"
    """Knafka itself failed on this event; the event can be replayed once the fault is fixed."""
    # Append new reasons at the end: committed progress refers to them by number (`core.progress`).
    REPLY_NOT_DELIVERED = "reply-not-delivered"
    """A Subscription's reply destination did not take the reply (KN-SUB-07)."""
    TOO_LARGE = "record-too-large"
    """A record that a Sensor had to write for the event is larger than its topic takes."""
    STATE_FULL = "state-full"
    """A Sensor reached its limit of held events and dropped its oldest ones."""
    NO_TOKEN = "no-token"
    """There was no token, so nothing was sent: this doesn't count as an attempt, and no dead letter
    has this reason."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one attempt: the response's status, and the reason of a failure that the status
    doesn't show."""

    status: int | None = None
    """Status of the response; None: there was no response."""
    failure: Reason | None = None
    """Why the attempt failed; None: the status alone says whether it did."""
    retry_after: float | None = None
    """Seconds that the subscriber's Retry-After header asks for; None if there is none."""
    permanent: bool = False
    """Whether a further attempt would certainly fail, too."""
    extensions: Sequence[tuple[str, str]] = ()
    """Attributes that the subscriber asks for, in case the event becomes a dead letter
    (KN-DLV-08)."""

    @property
    def text(self) -> str:
        """Reason and status as text, as far as known: `503`, `timeout`."""
        return f"{self.failure or ''} {self.status or ''}".strip()


@dataclass(frozen=True, slots=True)
class Done:
    """The event counts as delivered."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Try again in `after` seconds."""

    after: float


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Stop trying: the event becomes a dead letter."""

    reason: Reason


Decision = Done | Retry | DeadLetter
"""What follows an attempt."""
DONE: Final = Done()


def decide(outcome: Outcome, attempt: int, delivery: Delivery) -> Decision:
    """Return what follows an attempt that ended with `outcome`: nothing, as the event is delivered;
    another attempt; or a dead letter. `attempt`: the attempt's number, 0 for the first. `delivery`:
    the declared retry policy (KN-DLV-01, data-plane table)."""
    if outcome.failure is None and is_delivered(outcome.status or 0):
        return DONE
    reason = outcome.failure or Reason.STATUS
    if attempt >= delivery.retry or not _is_retriable(outcome):
        return DeadLetter(reason)
    wait = backoff(attempt + 1, delivery)
    if outcome.retry_after is not None and outcome.status in RETRY_AFTER_STATUSES:
        # The header may lengthen the wait up to the declared limit; without a limit it is ignored.
        wait = max(wait, min(outcome.retry_after, delivery.retry_after_max or 0.0))
    return Retry(wait)


def is_delivered(status: int) -> bool:
    """Whether a status means that the event was delivered: any 2xx (data-plane table)."""
    return 200 <= status <= 299


def _is_retriable(outcome: Outcome) -> bool:
    """Whether another attempt may succeed after this outcome. False if the outcome is permanent or
    the reply was malformed. True after any other failure, or without a response. If there is only a
    status, `is_retried_status` decides."""
    if outcome.permanent or outcome.failure is Reason.MALFORMED_REPLY:
        return False
    status = outcome.status
    if outcome.failure is not None or status is None:
        return True
    return is_retried_status(status)


def is_retried_status(status: int) -> bool:
    """Whether an attempt that ended with this status (other than 2xx) is repeated: after those in
    `RETRIED_4XX`, and after every number below 100 or above 499."""
    return status in RETRIED_4XX or not 100 <= status <= 499


def backoff(retry: int, delivery: Delivery) -> float:
    """Return the seconds before the `retry`-th retry, counted from 1: linear d·n, exponential
    d·2^(n-1).

    KN-DLV-02 lists three formulas that implementations use; with this one, the first wait of both
    policies is the declared delay. The result is at most `MAX_BACKOFF`, or the declared delay if
    that is longer.
    """
    delay = delivery.backoff_delay
    ceiling = max(MAX_BACKOFF, delay)
    match delivery.backoff_policy:
        case BackoffPolicy.LINEAR:
            return min(delay * retry, ceiling)
        case BackoffPolicy.EXPONENTIAL:
            # The exponent is limited, as the power would overflow after a thousand retries.
            return min(delay * 2.0 ** min(retry - 1, 64), ceiling)
        case _:
            assert_never(delivery.backoff_policy)


def retry_after_seconds(header_value: bytes, now: float) -> float | None:
    """Convert a Retry-After header to seconds from `now` (Unix time); None if it is invalid.

    A date may have any of the three forms of RFC 9110, 5.6.7, and is in GMT in all of them.
    """
    text = header_value.decode("latin-1").strip()
    if text.isascii() and text.isdigit():
        return float(text[:12])  # 12 digits exceed any useful wait; 309 would be infinite
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    if moment.tzinfo is None:  # asctime's form names no zone
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, moment.timestamp() - now)
