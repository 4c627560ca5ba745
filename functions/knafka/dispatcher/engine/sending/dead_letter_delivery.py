"""Dead letters: the stages of an event after its delivery to the subscriber has failed for good.

    SINK  --delivered--> settled    --failed for good--> TOPIC, or come back too often
    TOPIC --stored-----> settled    --not stored-------> TOPIC again, later

A record that holds no event goes to its Broker's dead-letter topic instead, once for all Triggers
(`broker_letters`), and never to the SINK, which takes events. An event stays unsettled while the
dead-letter topic doesn't take it (KN-DLV-09); if it is too large for the topic, a stub is stored.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import Final

from knafka.core.contract import Egress
from knafka.core.dead_letter import Failure, Origin, dead_letter_of, event_of_dead_letter, stub_of
from knafka.core.delivery import Done, Outcome, Reason, Retry, decide
from knafka.core.errors import LogError
from knafka.core.events.hops import HOPS, MAX_HOPS
from knafka.core.events.http_binding import request_of
from knafka.core.events.kafka_binding import Draft, RecordHeaders
from knafka.core.progress import DeliveryStage
from knafka.dispatcher.engine.clients import Clients
from knafka.dispatcher.engine.counts import DrainCounts
from knafka.dispatcher.engine.pending import PendingEvent
from knafka.dispatcher.engine.sending.appending import DeadLetterTopic
from knafka.dispatcher.engine.sending.destinations import delivery_head, target_of
from knafka.dispatcher.engine.tracing import Post
from knafka.observability import REPEAT_INTERVAL, RateLimitedFilter

log = logging.getLogger(__name__)
log.addFilter(RateLimitedFilter(by_wording=True))

DEAD_LETTER_DELAYS: Final = (0.5, 1.0, 2.0, 5.0, 10.0)
"""Seconds between attempts to write a dead letter; the last delay repeats."""
NO_TOKEN_DELAY: Final = 1.0
"""Seconds until an event without a token is attempted again; the issuer is asked less often."""


class DeadLetterDelivery:
    """Delivers one Trigger's dead letters to its sink or into a topic; `now` returns Unix time."""

    def __init__(
        self,
        egress: Egress,
        clients: Clients,
        counts: DrainCounts,
        post: Post[PendingEvent],
        now: Callable[[], float],
    ) -> None:
        """Parse the sink's URL. `post` makes one attempt there, `clients` store dead letters in
        topics, and `counts` counts them. Raises `InvalidDocument` if the URL is invalid."""
        self._egress = egress
        self._counts = counts
        self._post = post
        self._now = now
        self._topic = DeadLetterTopic(
            egress.dead_letter_topic, egress.dead_letter_settings, clients.writer, clients.topics
        )
        self._broker_letters = clients.broker_dead_letters
        sink = egress.dead_letter_sink
        self._sink = None if sink is None else target_of(sink)  # None: the Trigger has no sink
        self._logged_until = 0.0
        """Unix time until which no further dead letter is logged."""

    def make_dead_letter(self, event: PendingEvent, outcome: Outcome, body: bytes) -> Retry:
        """Make a dead letter of an event whose delivery has failed for good with this outcome;
        `body` explains the outcome. Returns the `Retry` of the first attempt to deliver it: now."""
        event.drop_reply()
        event.failed = outcome
        event.response_body = body
        self._move(event, DeliveryStage.TOPIC if self._sink is None else DeliveryStage.SINK)
        return Retry(0.0)

    def resume(self, event: PendingEvent) -> None:
        """Prepare an event that an earlier owner of its partition left. One at the stage SINK
        continues there, or at the TOPIC if the Trigger has no sink any more; one at another stage
        needs no preparation."""
        if event.stage is DeliveryStage.SINK:
            if self._sink is None:
                event.stage = DeliveryStage.TOPIC
            else:
                self._encode_for_sink(event)

    def attempt(self, event: PendingEvent) -> Coroutine[None, None, Done | Retry]:
        """Return the coroutine of one attempt at the sink or the topic; it returns `Done` once the
        event is settled, else the `Retry` of its next attempt."""
        if event.stage is DeliveryStage.SINK:
            return self._deliver_to_sink(event)
        return self._deliver_to_topic(event)

    def skip_sink(self, event: PendingEvent) -> Retry:
        """Move an event whose handling has raised an exception to the stage TOPIC, past the sink.
        Returns the `Retry` of its next attempt: now, or after a delay if the event was at the stage
        TOPIC already."""
        if event.stage is DeliveryStage.TOPIC:
            # The dead letter could not be built: leave out the event's headers next time.
            event.headers = None
            return self._retry(event)
        event.drop_reply()
        event.stage = DeliveryStage.TOPIC
        event.tries = 0
        return Retry(0.0)

    async def _deliver_to_sink(self, event: PendingEvent) -> Done | Retry:
        """Make one attempt at the dead letter sink. Returns `Done` if the sink took the event, else
        the `Retry` of the next attempt: at the sink, or at the topic once the sink has failed for
        good. An attempt without a token is made again, however often."""
        assert self._sink is not None
        if event.trace is None:
            outcome, _ = await self._post(self._sink, event, False)  # a sink's reply is ignored
        else:
            outcome, _ = await event.trace.post(
                "dead-letter", self._post, self._sink, event, wants_reply=False
            )
        if outcome.failure is Reason.NO_TOKEN:
            self._counts.count_failure(outcome)
            return Retry(NO_TOKEN_DELAY)
        decision = decide(outcome, event.tries, self._egress.delivery)
        if isinstance(decision, Done):
            self._count_dead_letter(event, self._sink.url)
            return decision
        self._counts.count_failure(outcome)
        event.tries += 1
        if isinstance(decision, Retry):
            return decision
        # The sink has failed for good.
        self._move(event, DeliveryStage.TOPIC)
        return Retry(0.0)

    async def _deliver_to_topic(self, event: PendingEvent) -> Done | Retry:
        """Write the event's dead letter: into its Broker's topic if the record holds no event, else
        into the Trigger's. Returns `Done` also if another dispatcher has written it."""
        broker_letters = self._broker_letters
        failed_outcome = event.failed
        assert failed_outcome is not None
        if broker_letters is None or failed_outcome.failure is not Reason.UNDECODABLE:
            return await self._write(event, self._topic)
        try:
            decision = await broker_letters.write_once(
                event.record, partial(self._write, event, broker_letters.topic)
            )
        except LogError as error:
            return self._retry_write(event, broker_letters.topic, error)
        if decision is None:
            self._counts.events.filtered += 1  # the record held no event for the Trigger
            return Done()
        return decision

    async def _write(self, event: PendingEvent, topic: DeadLetterTopic) -> Done | Retry:
        """Write the event's dead letter into `topic`; if it is too large, write a stub without the
        event's data. Returns `Done` once it is durable, else the `Retry` of the next attempt."""
        record = event.record
        headers, value = self._build_dead_letter(event, is_of_trigger=topic is self._topic)
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
            return self._retry_write(event, topic, error)
        self._count_dead_letter(event, topic.name)
        return Done()

    def _retry_write(self, event: PendingEvent, topic: DeadLetterTopic, error: LogError) -> Retry:
        """Count and log a failed attempt to write a dead letter; returns the `Retry` of the next
        attempt."""
        retry = self._retry(event)
        log.error(
            "no dead letter could be written to %s, so offset %d of partition %d stays uncommitted"
            "; next attempt in %g s: %s",
            topic.name,
            event.offset,
            event.partition.number,
            retry.after,
            error,
            extra=event.log_ids,
        )
        return retry

    def _retry(self, event: PendingEvent) -> Retry:
        """Count a failed attempt at the stage TOPIC; returns the `Retry` of the next attempt, whose
        delay grows with each one (`DEAD_LETTER_DELAYS`)."""
        event.tries += 1
        return Retry(DEAD_LETTER_DELAYS[min(event.tries, len(DEAD_LETTER_DELAYS)) - 1])

    def _move(self, event: PendingEvent, stage: DeliveryStage) -> None:
        """Move an event to another stage, with no try counted yet. An event that has come back from
        the sink `MAX_HOPS` times goes to the topic instead of the sink."""
        if stage is DeliveryStage.SINK and event.hops >= MAX_HOPS:
            stage = DeliveryStage.TOPIC
            self._counts.dead_letters_in_a_row = MAX_HOPS
            log.warning(
                "partition %d, offset %d came back from its sink %d times: it goes to the topic",
                event.partition.number,
                event.offset,
                MAX_HOPS,
            )
        event.stage = stage
        event.tries = 0
        if stage is DeliveryStage.SINK:
            self._encode_for_sink(event)

    def _encode_for_sink(self, event: PendingEvent) -> None:
        """Encode the request that sends the event's dead letter to the sink, with the event's hops
        raised by 1."""
        headers, value = self._build_dead_letter(event)
        counted_headers = [*headers, (f"ce_{HOPS}", b"%d" % (event.hops + 1))]
        envelope = event_of_dead_letter(counted_headers, value)
        head, event.body = request_of(envelope, self._egress.delivery.format)
        event.head = delivery_head(self._egress) + head

    def _build_dead_letter(
        self, event: PendingEvent, *, is_of_trigger: bool = True
    ) -> tuple[RecordHeaders, bytes | None]:
        """Return headers and value of the event's dead letter. If it can't be built with the
        event's headers, it is built without them. `is_of_trigger` False: it is the Broker's dead
        letter, and names no Trigger and no destination."""
        failed_outcome = event.failed
        assert failed_outcome is not None
        record = event.record
        reply, destination = self._egress.reply, self._egress.subscriber.url
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
            event.partition.kafka_number,
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

    def _count_dead_letter(self, event: PendingEvent, destination: str) -> None:
        """Count a dead letter that the sink or topic `destination` has taken. Log at most one of
        them in `REPEAT_INTERVAL`."""
        failed_outcome = event.failed
        assert failed_outcome is not None
        self._counts.count_dead_letter(failed_outcome)
        if (now := self._now()) < self._logged_until:
            return
        self._logged_until = now + REPEAT_INTERVAL
        log.warning(
            "a dead letter, to %s, of partition %d, offset %d, after %d attempts: %s",
            destination,
            event.partition.number,
            event.offset,
            event.attempts,
            failed_outcome.failure or f"status {failed_outcome.status}",
            extra=event.log_ids,
        )
