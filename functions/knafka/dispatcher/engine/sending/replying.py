"""Handle a subscriber's reply before its event is settled.

    A reply to a Trigger's event is stored in its Broker's topic (KN-BRK-11, KN-BRK-12). A reply to
    a Subscription's event is sent to its reply destination (KN-SUB-07), or discarded (KN-SUB-02).

A reply that could not be stored or sent is retried as often as its event may be; meanwhile the
event is not sent to the subscriber again. The last failed retry fails the delivery, with a reason
of its own. A reply that ends too long a chain of replies, as in a loop (`core.events.hops`;
KN-BRK-13), fails the delivery at once.

Not here: what the failure means for the event (`sender`).
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Protocol

from knafka.core.contract import Delivery, Egress, Sink
from knafka.core.dead_letter import extensions_of
from knafka.core.delivery import (
    Outcome,
    Reason,
    is_delivered,
    is_retried_status,
    retry_after_seconds,
)
from knafka.core.errors import DeliveryError, InvalidEvent
from knafka.core.events.hops import DEEP, FIRST_TTL, HopLimit, count_reply
from knafka.core.events.http_binding import reply_of, request_of
from knafka.core.events.kafka_binding import Draft, read
from knafka.dispatcher.engine.clients import Clients
from knafka.dispatcher.engine.counts import DrainCounts
from knafka.dispatcher.engine.pending import PendingEvent, PendingReply
from knafka.dispatcher.engine.sending.appending import append
from knafka.dispatcher.engine.sending.destinations import delivery_head, target_of
from knafka.dispatcher.engine.tracing import DeliveryTrace, log_ids
from knafka.observability import RateLimitedFilter
from knafka.ports.log import LogWriter
from knafka.ports.subscriber import Response, Subscriber

log = logging.getLogger(__name__)
log.addFilter(RateLimitedFilter(by_wording=True))


class Replies(Protocol):
    """Handles the replies of one Egress's subscriber."""

    async def handle(self, response: Response, event: PendingEvent) -> tuple[Outcome, bytes]:
        """Store or send the reply that a subscriber's response holds.

        Call this only for a 2xx response other than 202 (which never holds a reply) that claims to
        hold an event, by a `ce-` header or a CloudEvents content type (see
        `http_binding.claims_event`). Returns the attempt's outcome, and the body that explains it
        in a dead letter. A reply whose failure may be temporary is kept in `event.reply`.
        """
        ...

    async def retry(self, event: PendingEvent) -> tuple[Outcome, bytes]:
        """Try again to store or send the reply that is kept in `event.reply`. Returns the attempt's
        outcome, and the body that explains it in a dead letter."""
        ...


class _RetriedReplies(ABC):
    """Base of handlers that store or send replies, and retry them."""

    failure_reason: Reason
    """Why the delivery fails if the reply can't be stored or sent."""

    def __init__(self, egress: Egress, counts: DrainCounts) -> None:
        """`counts` counts the replies that were stored or sent."""
        self._subscriber_url = egress.subscriber.url
        self._events = counts.events  # kept apart from `_counts`, as each reply is counted here
        self._counts = counts

    async def handle(self, response: Response, event: PendingEvent) -> tuple[Outcome, bytes]:
        """Store or send the reply that the response claims to hold; keep the reply in the event if
        another attempt may succeed. Returns the outcome, and the body that explains a failure in a
        dead letter: the response's body, or a sentence."""
        if response.cut:
            log.warning("a reply from %s is larger than any event may be", self._subscriber_url)
            return Outcome(response.status, self.failure_reason, permanent=True), response.body
        try:
            reply = reply_of(response.headers, response.body)
            reply, ttl = count_reply(event.headers, event.record.value(), reply)
            # `FIRST_TTL - ttl` replies in a row, each to the one before, have led to this one.
            if ttl <= FIRST_TTL - DEEP:
                self._report_deep_reply(FIRST_TTL - ttl)
        except HopLimit as error:
            self._report_deep_reply(FIRST_TTL)
            explanation = str(error).encode()
            return Outcome(response.status, self.failure_reason, permanent=True), explanation
        except InvalidEvent as error:
            log.info("a malformed reply from %s: %s", self._subscriber_url, error)
            return Outcome(response.status, failure=Reason.MALFORMED_REPLY), response.body
        pending_reply = PendingReply(reply, response.status, response.body)
        if (failure := await self._forward(pending_reply, event.trace)) is not None:
            outcome, body = failure
            if not outcome.permanent:
                event.keep_reply(pending_reply)
            return outcome, body
        self._events.replied += 1
        return Outcome(response.status), response.body

    async def retry(self, event: PendingEvent) -> tuple[Outcome, bytes]:
        """Try again to store or send the event's kept reply. Returns the outcome, and the body that
        explains it in a dead letter."""
        assert event.reply is not None
        if (failure := await self._forward(event.reply, event.trace)) is not None:
            return failure
        self._events.replied += 1
        return Outcome(event.reply.status), event.reply.body

    def _report_deep_reply(self, replies: int) -> None:
        """Log that replies seem to go in a loop. `replies` is the length of this chain of replies
        that answer one another; the counts keep that of the longest."""
        counts = self._counts
        counts.replies_in_a_row = max(counts.replies_in_a_row, replies)
        log.warning(
            "%s answers events that are replies themselves, %d in a row or more: a loop ends at %d",
            self._subscriber_url,
            DEEP,
            FIRST_TTL,
        )

    @abstractmethod
    async def _forward(
        self, reply: PendingReply, trace: DeliveryTrace | None
    ) -> tuple[Outcome, bytes] | None:
        """Store or send the reply, in a span of `trace` (None: the event isn't traced). Returns
        None if that succeeded, else the outcome of the event's attempt, and the body that explains
        it in a dead letter. Subclasses say where the reply goes."""


class StoredReplies(_RetriedReplies):
    """Stores a Trigger's replies in its Broker's topic."""

    failure_reason = Reason.REPLY_NOT_STORED

    def __init__(self, egress: Egress, counts: DrainCounts, writer: LogWriter) -> None:
        """Replies go to the Egress's reply topic; without one, to the topic that it reads."""
        super().__init__(egress, counts)
        self._writer = writer
        self._topic = egress.reply_topic or egress.topic

    async def _forward(
        self, reply: PendingReply, trace: DeliveryTrace | None
    ) -> tuple[Outcome, bytes] | None:
        """Append the reply to the Broker's topic, in a span if the event is traced. Returns None
        once Kafka has stored it, else the outcome and the body of the subscriber's response."""
        if trace is None:
            problem = await append(self._writer, self._topic, reply.draft)
        else:
            write = partial(append, self._writer, self._topic)
            problem = await trace.append("reply", self._topic, write, reply.draft)
        if problem is None:
            return None
        ids = log_ids(trace, None)
        log.warning("a reply from %s was not stored: %s", self._subscriber_url, problem, extra=ids)
        permanent = not problem.retriable
        return Outcome(reply.status, self.failure_reason, permanent=permanent), reply.body


class SentReplies(_RetriedReplies):
    """Sends a Subscription's replies to its reply destination, encoded as its events are; `now`
    returns Unix time."""

    failure_reason = Reason.REPLY_NOT_DELIVERED

    def __init__(
        self,
        egress: Egress,
        counts: DrainCounts,
        destination: Sink,
        subscriber: Subscriber,
        now: Callable[[], float],
    ) -> None:
        """Parse the reply destination's URL; replies are posted by `subscriber`. Raises
        `InvalidDocument`."""
        super().__init__(egress, counts)
        self._target = target_of(destination)
        self._delivery: Delivery = egress.delivery
        self._subscriber = subscriber
        self._now = now
        self._head = delivery_head(egress)

    async def _forward(
        self, reply: PendingReply, trace: DeliveryTrace | None
    ) -> tuple[Outcome, bytes] | None:
        """Send the reply once to its destination, in a span if the event is traced. Returns None if
        it was delivered, else the outcome and the body that explains it."""
        if trace is None:
            return await self._send(reply.draft)
        return await trace.send(self._target, self._send, reply.draft)

    async def _send(self, reply: Draft) -> tuple[Outcome, bytes] | None:
        """Send a reply once. Returns None if it was delivered, else the outcome and the body that
        explains it: the body of the destination's response, or a sentence without a response. The
        failure's reason is `NO_TOKEN` if there is no token for the destination."""
        envelope = read(reply.headers, reply.value)
        head, body = request_of(envelope, self._delivery.format)
        try:
            response = await self._subscriber.post(
                self._target, self._head + head, body, self._delivery.timeout
            )
        except DeliveryError as error:
            log.warning("a reply was not delivered to %s: %s", self._target.url, error)
            no_token = error.reason == Reason.NO_TOKEN
            failure = Reason.NO_TOKEN if no_token else self.failure_reason
            return Outcome(failure=failure), str(error).encode(errors="replace")
        status = response.status
        if is_delivered(status):
            return None
        log.warning("a reply was not delivered to %s: status %d", self._target.url, status)
        value = response.header(b"retry-after")
        failed_outcome = Outcome(
            status,
            self.failure_reason,
            None if value is None else retry_after_seconds(value, self._now()),
            permanent=not is_retried_status(status),
            extensions=extensions_of(response.headers),
        )
        return failed_outcome, response.body


def make_reply_handler(
    egress: Egress, counts: DrainCounts, clients: Clients, now: Callable[[], float]
) -> Replies | None:
    """Return the handler of this Egress's replies: a Trigger's are stored in its Broker's topic, a
    Subscription's are sent to its reply destination. None: it is a Subscription without a reply
    destination, so replies are discarded unread."""
    if egress.kind == "Trigger":
        return StoredReplies(egress, counts, clients.writer)
    if egress.reply is None:
        return None
    return SentReplies(egress, counts, egress.reply, clients.subscriber, now)
