"""The sender: makes one attempt to send one event, and returns when the next one is due, if any.

    SUBSCRIBER --delivered--> settled          --failed for good--> dead letter
    dead letter: SINK, then TOPIC (`dead_letter_delivery`)

A reply is stored or sent before its event is settled (`replying`; KN-BRK-11, KN-SUB-07). A reply
that fails is retried alone, as often as an event, without another attempt at the SUBSCRIBER. It is
kept in memory only: the next owner of the partition sends the event to the SUBSCRIBER again. An
event whose handling raises any exception, at any step, goes to the TOPIC, as a sink may not be able
to take it.

If there is no token for a destination that requires one, the event is not sent but waits in its
stage, and no attempt is counted (decision 0040).

Not here: order (`pending`), offsets (`drain`), and waiting (`workers`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Final

from knafka.core.contract import Egress
from knafka.core.dead_letter import extensions_of
from knafka.core.delivery import (
    RETRY_AFTER_STATUSES,
    Done,
    Outcome,
    Reason,
    Retry,
    backoff,
    decide,
    is_delivered,
    retry_after_seconds,
)
from knafka.core.errors import DeliveryError, InvalidEvent
from knafka.core.events.http_binding import claims_event
from knafka.core.progress import SUBSCRIBER, DeliveryState
from knafka.dispatcher.engine.clients import Clients
from knafka.dispatcher.engine.congestion import CongestionControl
from knafka.dispatcher.engine.counts import DrainCounts
from knafka.dispatcher.engine.pending import PendingEvent
from knafka.dispatcher.engine.sending.dead_letter_delivery import (
    NO_TOKEN_DELAY,
    DeadLetterDelivery,
)
from knafka.dispatcher.engine.sending.destinations import target_of
from knafka.dispatcher.engine.sending.replying import make_reply_handler
from knafka.observability import REPEAT_INTERVAL, RateLimitedFilter
from knafka.ports.subscriber import Target

log = logging.getLogger(__name__)
log.addFilter(RateLimitedFilter(by_wording=True))

_ACCEPTED: Final = Outcome(202), b""
"""Outcome and body of an attempt that was answered with 202."""
_REPLY_FAILURES: Final = frozenset({Reason.REPLY_NOT_STORED, Reason.REPLY_NOT_DELIVERED})
"""Failures of a reply, after the subscriber has taken the event."""


class Sender:
    """Makes the attempts to send one Trigger's events; `now` returns Unix time."""

    def __init__(
        self,
        egress: Egress,
        clients: Clients,
        counts: DrainCounts,
        congestion: CongestionControl,
        now: Callable[[], float],
    ) -> None:
        """Parse the destinations' URLs; nothing is sent yet. `congestion` gets the outcomes of
        attempts, and `counts` counts them. Raises `InvalidDocument` if a URL is invalid."""
        self._delivery = egress.delivery
        # Copied here, as the CPU's cache loses the Egress's objects when many Egresses take turns.
        self._timeout = egress.delivery.timeout
        self._subscriber = clients.subscriber
        self._counts = counts
        self._events = counts.events
        self._observe_attempt = counts.attempts.observe
        self._observe_latency = counts.latency.observe
        self._congestion = congestion
        self._loop = asyncio.get_running_loop()
        self._now = now
        self._replies = make_reply_handler(egress, counts, clients, now)
        self._dead_letters = DeadLetterDelivery(egress, clients, counts, self._post, now)
        self._target = target_of(egress.subscriber)
        self._failure_logged_until = 0.0
        """Unix time until which no further failed attempt is logged."""

    def resume(self, event: PendingEvent, state: DeliveryState, *, same_policy: bool) -> float:
        """Continue an event, whose request is encoded, where an earlier owner of its partition left
        it. `same_policy`: whether that owner had the same retry policy and destinations.

        Returns the seconds until the next attempt is due.
        """
        event.resume(state, same_policy=same_policy)
        self._dead_letters.resume(event)
        tries = max(event.tries, event.reply_tries)
        max_wait = max(backoff(tries, self._delivery), self._delivery.retry_after_max or 0.0)
        # Clocks differ, and a clock that was set back must not make the event wait for ever.
        return min(max(0.0, event.due - self._now()), max_wait)

    def attempt(self, event: PendingEvent) -> Coroutine[None, None, Done | Retry]:
        """Return the coroutine of one attempt in the event's stage. It returns `Done` if the event
        is settled then, else the `Retry` of the next attempt, which may be in another stage."""
        if event.stage is SUBSCRIBER:
            return self._attempt_delivery(event)
        return self._dead_letters.attempt(event)

    async def _attempt_delivery(self, event: PendingEvent) -> Done | Retry:
        """Make one attempt at the subscriber, or try again to deliver the event's kept reply.
        Returns `Done` if the event is settled, else the `Retry` of its next attempt, which is at
        the stage of the dead letter if the delivery has failed for good."""
        event.last_attempt = self._now()
        if event.reply is not None:
            assert self._replies is not None  # it has kept the reply in the event
            outcome, body = await self._replies.retry(event)
            now = self._now()
        else:
            if not event.attempts:
                event.first_attempt = event.last_attempt
            event.attempts += 1
            if event.trace is None:
                outcome, body = await self._post(self._target, event)
            else:
                outcome, body = await event.trace.post("attempt", self._post, self._target, event)
            now = self._now()
            self._observe_attempt(now - event.last_attempt)
        is_reply = event.reply is not None  # True also if the reply was kept just now
        if outcome.failure is Reason.NO_TOKEN:
            if not is_reply:
                event.attempts -= 1  # no request was sent
            self._report_to_congestion(outcome, event)
            self._counts.count_failure(outcome)
            return Retry(NO_TOKEN_DELAY)
        decision = decide(outcome, event.reply_tries if is_reply else event.tries, self._delivery)
        if isinstance(decision, Done):
            self._events.delivered += 1
            self._observe_latency(now - event.record.timestamp()[1] / 1000)
            if not self._congestion.is_calm:
                self._congestion.record_answer()
            return decision
        self._record_failure(event, outcome, is_reply=is_reply)
        if isinstance(decision, Retry):
            self._events.retried += 1
            return decision
        return self._dead_letters.make_dead_letter(event, outcome, body)

    async def _post(
        self, target: Target, event: PendingEvent, wants_reply: bool = True
    ) -> tuple[Outcome, bytes]:
        """Send the event to `target`; returns the outcome, and the body that explains a failure in
        a dead letter. `wants_reply`: whether a reply in the response is handled, too."""
        try:
            response = await self._subscriber.post(target, event.head, event.body, self._timeout)
        except DeliveryError as error:
            log.warning(
                "no response from %s (%s): %s",
                target.url,
                error.reason,
                error,
                extra=event.log_ids,
            )
            return Outcome(failure=Reason(error.reason)), _encode(str(error))
        status = response.status
        if status == 202:
            return _ACCEPTED  # by Knative's data-plane table, a 202 has no reply
        if not is_delivered(status):
            self._log_first_failure(target, event, status)
            value = response.header(b"retry-after")
            retry_after = None if value is None else retry_after_seconds(value, self._now())
            extensions = extensions_of(response.headers)
            return Outcome(status, None, retry_after, extensions=extensions), response.body
        if self._replies is None or not wants_reply or not claims_event(response.headers):
            return Outcome(status), b""
        return await self._replies.handle(response, event)

    def _log_first_failure(self, target: Target, event: PendingEvent, status: int) -> None:
        """Log the `status` by which an event's first attempt failed, at most once in
        `REPEAT_INTERVAL`; do nothing for further attempts."""
        # Checked here, as formatting a line that isn't written costs as much as an attempt.
        if event.tries or (now := self._now()) < self._failure_logged_until:
            return
        self._failure_logged_until = now + REPEAT_INTERVAL
        log.warning(
            "%s answered %d to an event, of partition %d, offset %d",
            target.url,
            status,
            event.partition.number,
            event.offset,
            extra=event.log_ids,
        )

    def _record_failure(self, event: PendingEvent, outcome: Outcome, *, is_reply: bool) -> None:
        """Count a failed attempt in the metrics and in the event's tries, and report it to the
        congestion control. An attempt that failed for its reply counts in `reply_tries`, any other
        in `tries`. `is_reply`: the attempt failed for a reply that the event keeps."""
        self._counts.count_failure(outcome)
        event.record_failed_attempt(outcome)
        self._report_to_congestion(outcome, event)
        if is_reply or outcome.failure in _REPLY_FAILURES:
            event.reply_tries += 1
        else:
            event.tries += 1

    def _report_to_congestion(self, outcome: Outcome, event: PendingEvent) -> None:
        """Report a failed attempt, and its Retry-After, to the congestion control."""
        now = self._loop.time()
        self._congestion.record_failure(outcome, id(event), now)
        max_pause = self._delivery.retry_after_max
        if max_pause and outcome.retry_after and outcome.status in RETRY_AFTER_STATUSES:
            self._congestion.pause(min(outcome.retry_after, max_pause), now)

    def give_up(self, event: PendingEvent, error: Exception) -> Retry:
        """Turn an event whose handling raised `error` into a dead letter, and return the `Retry`
        that says when to write it. An `InvalidEvent` says that the record holds no event (CE-K8);
        any other error is a bug of ours."""
        undecodable = isinstance(error, InvalidEvent)
        failed_outcome = Outcome(
            failure=Reason.UNDECODABLE if undecodable else Reason.INTERNAL_ERROR
        )
        problem = str(error) if undecodable else f"{type(error).__name__}: {error}"
        self._counts.count_failure(failed_outcome)
        position = (event.record.topic(), event.partition.number, event.offset)
        if undecodable:
            log.warning("a dead letter, from %s, partition %d, offset %d: %s", *position, problem)
        else:
            log.error(
                "an event of %s, partition %d, offset %d, is dead-lettered because of a bug of "
                "ours",
                *position,
                exc_info=error,
            )
        if event.failed is None:  # else the event failed for good before, for its own reason
            event.failed, event.response_body = failed_outcome, _encode(problem)
            event.last_attempt = event.last_attempt or self._now()
            event.first_attempt = event.first_attempt or event.last_attempt
            if event.attempts and not (event.log and event.log[-1].began == event.last_attempt):
                event.record_failed_attempt(failed_outcome)
        return self._dead_letters.skip_sink(event)


def _encode(sentence: str) -> bytes:
    """Encode a sentence as UTF-8, replacing characters that can't be encoded."""
    return sentence.encode(errors="replace")
