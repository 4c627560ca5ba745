"""The courier: takes one event one step further, and says what is next.

    SUBSCRIBER --delivered--> settled          --failed for good--> SINK, or TOPIC without one
    SINK       --delivered--> settled          --failed for good--> TOPIC
    TOPIC      --stored-----> settled          --not stored-------> TOPIC again, later

One step is one attempt; the waiting in between is the drain's. A reply is stored in the Broker's
topic before its event is settled (KN-BRK-11, KN-BRK-12). An event that even the dead-letter topic
does not take stays unsettled for as long as that lasts (KN-DLV-09). Whatever one event raises, at
any step, it goes to the TOPIC: nobody knows whether a sink could take it.

Refused here: order, offsets and clocks.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Final

from knafka.clients.log import LogWriter
from knafka.clients.subscriber import Response, Subscriber, Target
from knafka.core.contract import Egress, Sink
from knafka.core.dead_letter import Failure, Origin, dead_letter_of
from knafka.core.delivery import (
    Done,
    Outcome,
    Reason,
    Retry,
    decide,
    is_delivered,
    retry_after_seconds,
)
from knafka.core.errors import DeliveryError, InvalidEvent, LogError
from knafka.core.http_binding import reply_of, request_of
from knafka.core.kafka_binding import Draft, Envelope, RecordHeaders, read
from knafka.dispatcher.unsettled import Stage, Unsettled
from knafka.observability import Seldom

log = logging.getLogger(__name__)
log.addFilter(Seldom(by_wording=True))

BURY_AGAIN: Final = (0.5, 1.0, 2.0, 5.0, 10.0)
"""Seconds between attempts to write a dead letter; the last one repeats."""


@dataclass(slots=True)
class Counts:
    """What became of the events of one drain."""

    read: int = 0
    filtered: int = 0
    delivered: int = 0
    retried: int = 0
    buried: int = 0
    replied: int = 0
    failures: dict[str, int] = field(default_factory=dict)
    """Failed attempts, and events that are given up for another reason than a failed attempt, by
    reason and status: `status 503`, `timeout`, `undecodable-record`."""


class Courier:
    """Carries the events of one Trigger; `now` gives Unix time for the dead letters' story."""

    def __init__(
        self,
        egress: Egress,
        subscriber: Subscriber,
        writer: LogWriter,
        counts: Counts,
        now: Callable[[], float],
    ) -> None:
        self._egress = egress
        self._delivery = egress.delivery
        self._subscriber = subscriber
        self._writer = writer
        self._counts = counts
        self._now = now
        self._target = _target(egress.subscriber)
        self._sink = _target(egress.dead_letter_sink) if egress.dead_letter_sink else None
        self._head = b"kn-namespace: %s\r\n" % egress.namespace.encode()
        self._wanting_reply = b"prefer: reply\r\n" + self._head

    def prepare(self, event: Unsettled, envelope: Envelope) -> None:
        """Make the request once, for every attempt to deliver the event (KN-DP-06, KN-DP-11)."""
        head, event.body = request_of(envelope, self._delivery.format)
        event.head = self._wanting_reply + head
        event.size = len(event.head) + len(event.body)

    def carry(self, event: Unsettled) -> Coroutine[None, None, Done | Retry]:
        """One attempt in the event's stage; `Retry` says when the next is due, in any stage."""
        if event.stage is Stage.SUBSCRIBER:
            return self._deliver(event)
        if event.stage is Stage.SINK:
            return self._deliver_to_sink(event)
        return self._bury(event)

    def give_up(self, event: Unsettled, error: Exception) -> Retry:
        """`error` was raised for this one record: bury it.

        An `InvalidEvent` says that it holds no event (CE-K8); anything else is a bug.
        """
        undecodable = isinstance(error, InvalidEvent)
        failed = Outcome(failure=Reason.UNDECODABLE if undecodable else Reason.INTERNAL_ERROR)
        told = str(error) if undecodable else f"{type(error).__name__}: {error}"
        self._failed(failed)
        where = (event.record.topic(), event.partition.number, event.offset)
        if undecodable:
            log.warning("a dead letter, from %s, partition %d, offset %d: %s", *where, told)
        else:
            log.error(
                "an event of %s, partition %d, offset %d, is given up for an error of our own",
                *where,
                exc_info=error,
            )
        if event.failed is None:
            event.failed, event.response_body = failed, _encoded(told)
            event.last_attempt = event.last_attempt or self._now()
            event.first_attempt = event.first_attempt or event.last_attempt
        if event.stage is Stage.TOPIC:
            # Whatever breaks about its dead letter: the next has none of its headers.
            event.headers = None
            event.tries += 1
            return Retry(_until_buried_again(event))
        event.stage = Stage.TOPIC
        event.tries = 0
        return Retry(0.0)

    async def _deliver(self, event: Unsettled) -> Done | Retry:
        event.last_attempt = self._now()
        if not event.attempts:
            event.first_attempt = event.last_attempt
        event.attempts += 1
        outcome, body = await self._post(self._target, event)
        decision = decide(outcome, event.tries, self._delivery)
        if isinstance(decision, Done):
            self._counts.delivered += 1
            return decision
        self._failed(outcome)
        event.tries += 1
        if isinstance(decision, Retry):
            self._counts.retried += 1
            return decision
        event.failed = outcome
        event.response_body = body
        self._move(event, Stage.TOPIC if self._sink is None else Stage.SINK)
        return Retry(0.0)

    async def _deliver_to_sink(self, event: Unsettled) -> Done | Retry:
        assert self._sink is not None
        outcome, _ = await self._post(self._sink, event, wants_reply=False)
        decision = decide(outcome, event.tries, self._delivery)
        if isinstance(decision, Done):
            self._counts.buried += 1
            return decision
        self._failed(outcome)
        event.tries += 1
        if isinstance(decision, Retry):
            return decision
        self._move(event, Stage.TOPIC)
        return Retry(0.0)

    async def _bury(self, event: Unsettled) -> Done | Retry:
        record = event.record
        headers, value = self._dead_letter(event)
        draft = Draft(record.key(), headers, value)
        error = await self._append(self._egress.dead_letter_topic, draft)
        if error is None:
            self._counts.buried += 1
            return Done()
        event.tries += 1
        wait = _until_buried_again(event)
        log.error(
            "%s is not written, so offset %d of partition %d stays uncommitted; again in %g s: %s",
            self._egress.dead_letter_topic,
            event.offset,
            event.partition.number,
            wait,
            error,
        )
        return Retry(wait)

    def _move(self, event: Unsettled, stage: Stage) -> None:
        event.stage = stage
        event.tries = 0
        if stage is Stage.SINK:
            envelope = read(*self._dead_letter(event))
            head, event.body = request_of(envelope, self._delivery.format)
            event.head = self._head + head

    def _dead_letter(self, event: Unsettled) -> tuple[RecordHeaders, bytes | None]:
        failed = event.failed
        assert failed is not None
        record = event.record
        failure = Failure(
            destination=self._target.url,
            reason=failed.failure or Reason.STATUS,
            attempts=event.attempts,
            first_attempt=event.first_attempt,
            last_attempt=event.last_attempt,
            status=failed.status,
            body=event.response_body,
        )
        origin = Origin(
            self._egress.namespace,
            self._egress.broker,
            self._egress.trigger,
            record.topic(),
            record.partition(),
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
            # Without them it is no event.
            bare = replace(failure, reason=Reason.UNDECODABLE)
            return dead_letter_of([], record.value(), bare, origin)

    async def _post(
        self, target: Target, event: Unsettled, wants_reply: bool = True
    ) -> tuple[Outcome, bytes]:
        try:
            response = await self._subscriber.post(
                target, event.head, event.body, self._delivery.timeout
            )
        except DeliveryError as error:
            log.warning("no response from %s (%s): %s", target.url, error.reason, error)
            return Outcome(failure=Reason(error.reason)), _encoded(str(error))
        status = response.status
        if not is_delivered(status):
            return Outcome(status, retry_after=self._retry_after(response)), response.body
        # A 202's body is no reply whatever it holds (data-plane table).
        if not wants_reply or status == 202:
            return _DELIVERED[status], b""
        return await self._reply(response), response.body

    async def _reply(self, response: Response) -> Outcome:
        try:
            reply = reply_of(response.headers, response.body)
        except InvalidEvent as error:
            log.info("a malformed reply from %s: %s", self._target.url, error)
            return Outcome(response.status, failure=Reason.MALFORMED_REPLY)
        if reply is None:
            return Outcome(response.status)
        if problem := await self._append(self._egress.reply_topic or self._egress.topic, reply):
            log.warning("a reply from %s was not stored: %s", self._target.url, problem)
            return Outcome(response.status, failure=Reason.REPLY_NOT_STORED)
        self._counts.replied += 1
        return Outcome(response.status)

    async def _append(self, topic: str, draft: Draft) -> LogError | None:
        stored: asyncio.Future[LogError | None] = asyncio.get_running_loop().create_future()

        def reported(error: LogError | None) -> None:
            if not stored.done():
                stored.set_result(error)

        try:
            self._writer.append(topic, draft.key, draft.value, draft.headers, reported)
        except LogError as error:
            return error
        return await stored

    def _retry_after(self, response: Response) -> float | None:
        if (value := response.header(b"retry-after")) is None:
            return None
        return retry_after_seconds(value, self._now())

    def _failed(self, outcome: Outcome) -> None:
        status = "" if outcome.status is None else f" {outcome.status}"
        what = f"{outcome.failure or Reason.STATUS}{status}"
        self._counts.failures[what] = self._counts.failures.get(what, 0) + 1


_DELIVERED: Final = {status: Outcome(status) for status in range(200, 300)}


def _until_buried_again(event: Unsettled) -> float:
    return BURY_AGAIN[min(event.tries, len(BURY_AGAIN)) - 1]


def _encoded(sentence: str) -> bytes:
    return sentence.encode(errors="replace")


def _target(sink: Sink) -> Target:
    return Target.parse(sink.url, sink.ca_certs)
