"""The sender: makes one attempt to send one event, and returns when the next is due, if any.

    SUBSCRIBER --delivered--> settled          --failed for good--> SINK, or TOPIC without one
    SINK       --delivered--> settled          --failed for good--> TOPIC, or come back too often
    TOPIC      --stored-----> settled          --not stored-------> TOPIC again, later

A record that holds no event goes to its Broker's dead-letter topic instead, once for all Triggers
(`broker_letters`), and never to the SINK, which takes events.

A reply is stored or sent before its event is settled (`replying`; KN-BRK-11, KN-SUB-07). A reply
that fails is retried alone, as often as an event, without another attempt at the SUBSCRIBER. It is
kept in memory only: the next owner of the partition sends the event to the SUBSCRIBER again. An
event stays unsettled while the dead-letter topic doesn't take it (KN-DLV-09); if it is too large
for the topic, a stub is stored. An event whose handling raises any exception, at any step, goes to
the TOPIC, as a sink may not be able to take it.

If there is no token for a destination that requires one, the event is not sent but waits in its
stage, and no attempt is counted (decision 0040).

Not here: order (`lanes`), offsets (`drain`), and waiting (`workers`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from knafka.core.contract import Egress, Sink
from knafka.core.dead_letter import Failure, Origin, dead_letter_of, extensions_of, stub_of
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
from knafka.core.errors import DeliveryError, InvalidEvent, LogError
from knafka.core.events.hops import HOPS, MAX_HOPS
from knafka.core.events.http_binding import request_of
from knafka.core.events.kafka_binding import Draft, Envelope, RecordHeaders, read
from knafka.core.numbering import partition_of
from knafka.core.progress import SUBSCRIBER, DeliveryStage, DeliveryState
from knafka.dispatcher.engine.appending import DeadLetterTopic
from knafka.dispatcher.engine.broker_letters import BrokerDeadLetters
from knafka.dispatcher.engine.congestion import CongestionControl
from knafka.dispatcher.engine.counts import DrainCounts
from knafka.dispatcher.engine.parsing import Format, Parser
from knafka.dispatcher.engine.pending import PendingEvent
from knafka.dispatcher.engine.replying import make_reply_handler
from knafka.dispatcher.engine.tracing import log_ids
from knafka.observability import REPEAT_INTERVAL, RateLimitedFilter
from knafka.ports.log import LogWriter, TopicMaker
from knafka.ports.subscriber import Response, Subscriber, Target

log = logging.getLogger(__name__)
log.addFilter(RateLimitedFilter(by_wording=True))

DEAD_LETTER_DELAYS: Final = (0.5, 1.0, 2.0, 5.0, 10.0)
"""Seconds between attempts to write a dead letter; the last delay repeats."""
NO_TOKEN_DELAY: Final = 1.0
"""Seconds until an event without a token is attempted again; the issuer is asked less often."""


class Sender:
    """Makes the attempts to send one Trigger's events; `now` returns Unix time."""

    def __init__(
        self,
        egress: Egress,
        subscriber: Subscriber,
        writer: LogWriter,
        counts: DrainCounts,
        congestion: CongestionControl,
        now: Callable[[], float],
        topics: TopicMaker,
        parser: Parser,
        broker_dead_letters: BrokerDeadLetters | None = None,
    ) -> None:
        """Parse the destinations' URLs; nothing is sent yet. `congestion` gets the results of
        attempts, and `counts` counts them. Raises `InvalidDocument`."""
        self._parser = parser
        self._egress = egress
        self._delivery = egress.delivery
        # Copied here, as the CPU's cache loses the Egress's objects when many Egresses take turns.
        self._timeout = egress.delivery.timeout
        self._record_position = egress.record_position
        self._format: Format = "batch" if egress.batch else egress.delivery.format
        self._subscriber = subscriber
        self._counts = counts
        self._events = counts.events
        self._observe_attempt, self._observe_latency = (
            counts.attempts.observe,
            counts.latency.observe,
        )
        self._congestion = congestion
        self._loop = asyncio.get_running_loop()
        self._now = now
        self._replies = make_reply_handler(egress, counts, writer, subscriber, now)
        self._dead_letters = DeadLetterTopic(
            egress.dead_letter_topic, egress.dead_letter_settings, writer, topics
        )
        self._broker_dead_letters = broker_dead_letters
        self._target = _target(egress.subscriber)
        self._sink = _target(egress.dead_letter_sink) if egress.dead_letter_sink else None
        self._failure_logged_until = self._dead_letter_logged_until = 0.0
        """Unix time until which no further dead letter is logged."""
        self._head = b"kn-namespace: %s\r\n" % egress.namespace.encode()
        self._subscriber_head = b"prefer: reply\r\n" + self._head

    def encode(self, event: PendingEvent, envelope: Envelope) -> None:
        """Encode the event's request, which all its attempts share (KN-DP-06, KN-DP-11)."""
        event.head, event.body = self._parser.request(
            event.record,
            envelope,
            self._format,
            self._subscriber_head,
            self._record_position,
        )
        event.size = len(event.head) + len(event.body)

    def resume(self, event: PendingEvent, state: DeliveryState, *, same_policy: bool) -> float:
        """Continue an event where an earlier owner of its partition left it; call `encode` first.

        Returns the seconds until the next attempt is due.
        """
        event.resume(state, same_policy=same_policy)
        if event.stage is DeliveryStage.SINK and self._sink is not None:
            self._encode_for_sink(event)
        elif event.stage is DeliveryStage.SINK:
            event.stage = DeliveryStage.TOPIC
        tries = max(event.tries, event.reply_tries)
        max_wait = max(backoff(tries, self._delivery), self._delivery.retry_after_max or 0.0)
        # Clocks differ, and a clock that was set back must not make the event wait for ever.
        return min(max(0.0, event.due - self._now()), max_wait)

    def attempt(self, event: PendingEvent) -> Coroutine[None, None, Done | Retry]:
        """Return the coroutine of one attempt in the event's stage; its `Retry` says when the next
        attempt is due, in any stage."""
        if event.stage is SUBSCRIBER:
            return self._attempt_delivery(event)
        if event.stage is DeliveryStage.SINK:
            return self._deliver_to_sink(event)
        return self._deliver_to_topic(event)

    def give_up(self, event: PendingEvent, error: Exception) -> Retry:
        """Turn an event whose handling raised `error` into a dead letter; returns when to write it.

        An `InvalidEvent` says that the record holds no event (CE-K8); anything else is a bug of
        ours.
        """
        undecodable = isinstance(error, InvalidEvent)
        failed_outcome = Outcome(
            failure=Reason.UNDECODABLE if undecodable else Reason.INTERNAL_ERROR
        )
        problem = str(error) if undecodable else f"{type(error).__name__}: {error}"
        self._count_failure(failed_outcome)
        place = (event.record.topic(), event.partition.number, event.offset)
        if undecodable:
            log.warning("a dead letter, from %s, partition %d, offset %d: %s", *place, problem)
        else:
            log.error(
                "an event of %s, partition %d, offset %d, is given up for an error of our own",
                *place,
                exc_info=error,
            )
        if event.failed is None:
            event.failed, event.response_body = failed_outcome, _encode(problem)
            event.last_attempt = event.last_attempt or self._now()
            event.first_attempt = event.first_attempt or event.last_attempt
            if event.attempts and not (event.log and event.log[-1].began == event.last_attempt):
                event.record_failed_attempt(failed_outcome)
        if event.stage is DeliveryStage.TOPIC:
            # The dead letter could not be built: leave out the event's headers next time.
            event.headers = None
            event.tries += 1
            return Retry(_dead_letter_delay(event))
        event.drop_reply()
        event.stage = DeliveryStage.TOPIC
        event.tries = 0
        return Retry(0.0)

    async def _attempt_delivery(self, event: PendingEvent) -> Done | Retry:
        """Make one attempt at the subscriber, or try the event's kept reply again. Returns `Done`
        if the event is settled, else the `Retry` of its next attempt, in any stage."""
        event.last_attempt = self._now()
        if event.reply is not None:
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
        is_reply = event.reply is not None
        if outcome.failure is Reason.NO_TOKEN:
            if not is_reply:
                event.attempts -= 1  # no request was sent
            self._report_to_congestion(outcome, event)
            return self._without_token(outcome)
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
        event.drop_reply()
        event.failed = outcome
        event.response_body = body
        self._move_to_stage(
            event, DeliveryStage.TOPIC if self._sink is None else DeliveryStage.SINK
        )
        return Retry(0.0)

    def _record_failure(self, event: PendingEvent, outcome: Outcome, *, is_reply: bool) -> None:
        """Count a failed attempt in the metrics and in the event's tries (of its reply, if that
        has failed), and report it to the congestion control."""
        self._count_failure(outcome)
        event.record_failed_attempt(outcome)
        self._report_to_congestion(outcome, event)
        if is_reply or outcome.failure in _REPLY_FAILURES:
            event.reply_tries += 1
        else:
            event.tries += 1

    def _without_token(self, outcome: Outcome) -> Retry:
        """Count an attempt that was not made because there is no token; returns its retry."""
        self._count_failure(outcome)
        return Retry(NO_TOKEN_DELAY)

    def _report_to_congestion(self, outcome: Outcome, event: PendingEvent) -> None:
        """Report a failed attempt, and its Retry-After, to the congestion control."""
        now = self._loop.time()
        self._congestion.record_failure(outcome, id(event), now)
        max_pause = self._delivery.retry_after_max
        if max_pause and outcome.retry_after and outcome.status in RETRY_AFTER_STATUSES:
            self._congestion.pause(min(outcome.retry_after, max_pause), now)

    async def _deliver_to_sink(self, event: PendingEvent) -> Done | Retry:
        """Make one attempt at the dead letter sink; returns what follows."""
        assert self._sink is not None
        if event.trace is None:
            outcome, _ = await self._post(self._sink, event, wants_reply=False)
        else:
            outcome, _ = await event.trace.post(
                "dead-letter", self._post, self._sink, event, wants_reply=False
            )
        if outcome.failure is Reason.NO_TOKEN:
            return self._without_token(outcome)
        decision = decide(outcome, event.tries, self._delivery)
        if isinstance(decision, Done):
            self._count_dead_letter(event)
            self._log_dead_letter(event, self._sink.url)
            return decision
        self._count_failure(outcome)
        event.tries += 1
        if isinstance(decision, Retry):
            return decision
        self._move_to_stage(event, DeliveryStage.TOPIC)
        return Retry(0.0)

    async def _deliver_to_topic(self, event: PendingEvent) -> Done | Retry:
        """Write the event's dead letter: into its Broker's topic if the record holds no event, else
        into the Trigger's. Returns `Done` also if another dispatcher has written it."""
        broker_letters = self._broker_dead_letters
        if broker_letters is None or not _holds_no_event(event):
            return await self._write_dead_letter(event, self._dead_letters)
        try:
            decision = await broker_letters.write_once(
                event.record, partial(self._write_dead_letter, event, broker_letters.topic)
            )
        except LogError as error:
            return self._retry_dead_letter(event, broker_letters.topic, error)
        if decision is None:
            self._events.filtered += 1  # the record held no event for the Trigger
        return decision or Done()

    async def _write_dead_letter(self, event: PendingEvent, topic: DeadLetterTopic) -> Done | Retry:
        """Write the event's dead letter into `topic`; if it is too large, write a stub without its
        data."""
        record = event.record
        headers, value = self._build_dead_letter(event, is_of_trigger=topic is self._dead_letters)
        draft = Draft(record.key(), headers, value)
        write = topic.append
        if event.trace is not None:
            write = partial(event.trace.append, "dead-letter", topic.name, write)
        error = await write(draft)
        if error is not None and error.too_large:
            log.warning(
                "%s takes no dead letter as large as that of partition %d, offset %d: it is stored "
                "without its data",
                topic.name,
                event.partition.number,
                event.offset,
            )
            error = await write(stub_of(draft))
        if error is not None:
            return self._retry_dead_letter(event, topic, error)
        self._count_dead_letter(event)
        self._log_dead_letter(event, topic.name)
        return Done()

    def _retry_dead_letter(
        self, event: PendingEvent, topic: DeadLetterTopic, error: LogError
    ) -> Retry:
        """Log that a dead letter could not be written; returns when to try again."""
        event.tries += 1
        delay = _dead_letter_delay(event)
        log.error(
            "%s is not written, so offset %d of partition %d stays uncommitted; again in %g s: %s",
            topic.name,
            event.offset,
            event.partition.number,
            delay,
            error,
            extra=_log_ids(event),
        )
        return Retry(delay)

    def _move_to_stage(self, event: PendingEvent, stage: DeliveryStage) -> None:
        """Move an event to another stage; a dead letter that has come back too often skips the
        sink."""
        if stage is DeliveryStage.SINK and event.hops >= MAX_HOPS:
            stage = DeliveryStage.TOPIC
            self._counts.dead_letters_in_a_row = MAX_HOPS
            log.warning(
                "partition %d, offset %d comes back from its sink for time %d: it is kept here",
                *(event.partition.number, event.offset, MAX_HOPS),
            )
        event.stage = stage
        event.tries = 0
        if stage is DeliveryStage.SINK:
            self._encode_for_sink(event)

    def _encode_for_sink(self, event: PendingEvent) -> None:
        """Encode the event as a dead letter for the sink, with its number of hops."""
        headers, value = self._build_dead_letter(event)
        envelope = read([*headers, (f"ce_{HOPS}", b"%d" % (event.hops + 1))], value)
        head, event.body = request_of(envelope, self._delivery.format)
        event.head = self._head + head

    def _build_dead_letter(
        self, event: PendingEvent, *, is_of_trigger: bool = True
    ) -> tuple[RecordHeaders, bytes | None]:
        """Return headers and value of the event's dead letter. `is_of_trigger` False: it is the
        Broker's, and names no Trigger and no destination."""
        failed_outcome = event.failed
        assert failed_outcome is not None
        record = event.record
        reply, destination = self._egress.reply, self._target.url
        if reply and failed_outcome.failure is Reason.REPLY_NOT_DELIVERED:
            destination = reply.url
        failure = Failure(
            destination=destination if is_of_trigger else "",
            reason=failed_outcome.failure or Reason.STATUS,
            attempts=event.attempts,
            first_attempt=event.first_attempt,
            last_attempt=event.last_attempt,
            status=failed_outcome.status,
            body=event.response_body,
            extensions=failed_outcome.extensions,
            log=event.log or (),
            reply_attempts=event.reply_tries,
        )
        egress = self._egress
        origin = Origin(
            egress.namespace,
            egress.name_of_broker,
            egress.trigger if is_of_trigger else "",
            record.topic(),
            partition_of(record.partition()),
            record.offset(),
        )
        try:
            return dead_letter_of(event.headers or [], record.value(), failure, origin)
        except Exception as error:
            log.error(
                "partition %d, offset %d: no dead letter with its headers, so one without",
                event.partition.number,
                event.offset,
                exc_info=error,
            )
            # Without its headers, the record holds no event.
            without_event = replace(failure, reason=Reason.UNDECODABLE)
            return dead_letter_of([], record.value(), without_event, origin)

    async def _post(
        self, target: Target, event: PendingEvent, wants_reply: bool = True
    ) -> tuple[Outcome, bytes]:
        """Send the event to `target`; returns the outcome, and the text that explains a failure.
        Unless `wants_reply` is False, a reply in the response is handled too."""
        try:
            response = await self._subscriber.post(target, event.head, event.body, self._timeout)
        except DeliveryError as error:
            log.warning(
                "no response from %s (%s): %s",
                target.url,
                error.reason,
                error,
                extra=_log_ids(event),
            )
            return Outcome(failure=Reason(error.reason)), _encode(str(error))
        status = response.status
        if status == 202:
            return _ACCEPTED  # by Knative's data-plane table, a 202 has no reply
        if not is_delivered(status):
            self._log_first_failure(target, event, status)
            retry_after = self._retry_after(response)
            extensions = extensions_of(response.headers)
            return Outcome(status, None, retry_after, extensions=extensions), response.body
        if not wants_reply:
            return Outcome(status), b""
        return await self._replies.handle(response, event)

    def _log_first_failure(self, target: Target, event: PendingEvent, status: int) -> None:
        """Log that the first attempt of an event failed, at most once in `REPEAT_INTERVAL`."""
        # Checked here, as formatting a line that isn't written costs as much as an attempt.
        if event.tries or (now := self._now()) < self._failure_logged_until:
            return
        self._failure_logged_until = now + REPEAT_INTERVAL
        log.warning(
            "%s answered %d to an event, of partition %d, offset %d",
            *(target.url, status, event.partition.number, event.offset),
            extra=_log_ids(event),
        )

    def _log_dead_letter(self, event: PendingEvent, destination: str) -> None:
        """Log that a dead letter was written, at most once in `REPEAT_INTERVAL`."""
        if (now := self._now()) < self._dead_letter_logged_until:
            return
        self._dead_letter_logged_until = now + REPEAT_INTERVAL
        failed_outcome = event.failed
        log.warning(
            "a dead letter, to %s, of partition %d, offset %d, after %d attempts: %s",
            *(destination, event.partition.number, event.offset, event.attempts),
            ""
            if failed_outcome is None
            else failed_outcome.failure or f"status {failed_outcome.status}",
            extra=_log_ids(event),
        )

    def _retry_after(self, response: Response) -> float | None:
        """Return the seconds of the response's Retry-After; None: the header is missing or
        malformed."""
        if (value := response.header(b"retry-after")) is None:
            return None
        return retry_after_seconds(value, self._now())

    def _count_failure(self, outcome: Outcome) -> None:
        """Count a failed attempt by its reason and status."""
        self._counts.failures[_failure_label(outcome)] += 1

    def _count_dead_letter(self, event: PendingEvent) -> None:
        """Count a dead letter by the reason and status of its last failure."""
        assert event.failed is not None
        self._events.dead_lettered += 1
        self._counts.dead_letters[_failure_label(event.failed)] += 1


def _holds_no_event(event: PendingEvent) -> bool:
    """Whether the record could not be parsed as an event."""
    return event.failed is not None and event.failed.failure is Reason.UNDECODABLE


def _failure_label(failed_outcome: Outcome) -> str:
    """Return reason and status of a failure as metrics count them: `status 503`."""
    status = "" if failed_outcome.status is None else f" {failed_outcome.status}"
    return f"{failed_outcome.failure or Reason.STATUS}{status}"


_ACCEPTED: Final = Outcome(202), b""
_REPLY_FAILURES: Final = frozenset({Reason.REPLY_NOT_STORED, Reason.REPLY_NOT_DELIVERED})


def _dead_letter_delay(event: PendingEvent) -> float:
    """Return the seconds until the event's dead letter is written again."""
    return DEAD_LETTER_DELAYS[min(event.tries, len(DEAD_LETTER_DELAYS)) - 1]


def _log_ids(event: PendingEvent) -> Mapping[str, str]:
    """Return the trace and span ids for `extra` of a log line about the event."""
    return log_ids(event.trace, event.headers)


def _encode(sentence: str) -> bytes:
    """Encode a sentence as UTF-8, replacing characters that can't be encoded."""
    return sentence.encode(errors="replace")


def _target(sink: Sink) -> Target:
    """Return the `Target` of a declared destination."""
    return Target.parse(sink.url, sink.ca_certs, sink.audience)
