"""Routes: the Brokers, KafkaChannels and KafkaSinks that a receiver serves, each with its topic,
writer, checks and counts.

Not here: which route a request is for (`ingest`, by the rules of `address`).
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

from knafka.core.contract import Ingress
from knafka.core.errors import LogError, LogFull
from knafka.core.events.kafka_binding import Draft, RecordHeaders, in_structured_mode
from knafka.observability import Histogram, RateLimitedFilter
from knafka.ports.log import Append, AppendAll, LogWriter, Reported
from knafka.receiver import answers
from knafka.receiver.answers import Answer
from knafka.receiver.authentication import SenderCheck, TokenVerifier
from knafka.receiver.encryption import EncryptedOnly, RequestCheck

log = logging.getLogger(__name__)
log.addFilter(RateLimitedFilter())

Respond: TypeAlias = Callable[[Answer], None]
"""Sends the answer to a request; is called once."""


class WaitingEvents:
    """The events of one route that wait for Kafka."""

    __slots__ = ("bytes", "events")

    def __init__(self) -> None:
        """Begin without events."""
        self.events = 0
        """Their number."""
        self.bytes = 0
        """Their bytes, as `Limits.in_flight_bytes` counts them."""


class BrokerRoute:
    """One Broker, KafkaChannel or KafkaSink that is served: its topic, its writer, its checks and
    its counts."""

    __slots__ = (
        "answered",
        "append",
        "append_all",
        "check",
        "duration",
        "ingress",
        "max_event_bytes",
        "too_large",
        "topic",
        "waiting",
        "writer",
    )

    def __init__(
        self,
        ingress: Ingress,
        writer: LogWriter,
        previous_route: BrokerRoute | None = None,
        verifier: TokenVerifier | None = None,
    ) -> None:
        """`writer` appends the events. `previous_route`: the route that this one replaces and whose
        counts it continues; None: the counts begin at 0. `verifier` verifies senders' tokens if the
        Broker has an audience; None: no keys are known, and such a Broker's events are answered
        503."""
        self.ingress = ingress
        self.writer = writer
        self.append: Append = writer.append
        """Appends one event in the Ingress's content mode."""
        self.append_all: AppendAll = writer.append_all
        """Appends several events in the Ingress's content mode."""
        if ingress.content_mode == "structured":
            self.append = partial(_append_structured, writer)
            self.append_all = partial(_append_all_structured, writer)
        self.topic = ingress.topic
        self.check: RequestCheck | None = None
        """The check that a request must pass; None: everybody may send."""
        if ingress.audience is not None:
            self.check = SenderCheck(ingress, ingress.audience, verifier)
        if ingress.encrypted_only:
            self.check = EncryptedOnly(self.check)
        self.max_event_bytes = ingress.max_event_bytes
        # Not a Counter, to which adding takes three times as long.
        self.answered: dict[int, int] = (
            defaultdict(int) if previous_route is None else previous_route.answered
        )
        """Number of answers by status code: one for each event, and one for a request that holds no
        valid event."""
        self.duration: Histogram = (
            Histogram() if previous_route is None else previous_route.duration
        )
        """Seconds from the receipt of a whole request to its answer, for requests whose events were
        handed to Kafka."""
        self.waiting: WaitingEvents = (
            WaitingEvents() if previous_route is None else previous_route.waiting
        )
        """The route's events that wait for Kafka."""
        self.too_large = answers.event_too_large(ingress.max_event_bytes)
        """The answer to an event that is larger than `max_event_bytes`."""

    def respond(self, answer: Answer, respond: Respond, events: int = 1) -> None:
        """Send the answer to a request by its `respond`, and count it in `answered` once for each
        of the request's events (`events`: their number)."""
        self.answered[answer.status] += events
        respond(answer)


def answer_to_error(route: BrokerRoute, error: LogError) -> Answer:
    """Return the answer to an event that was not stored because of `error`: 413 if the event is too
    large, else 503. Logs the error, unless the event is too large or the writer is only full."""
    if error.too_large:
        return route.too_large
    if isinstance(error, LogFull):
        return answers.BUSY
    log.warning("an event for %s was not stored: %s", route.ingress.path, error)
    return answers.UNAVAILABLE


def _append_structured(
    writer: LogWriter,
    topic: str,
    key: bytes | None,
    value: bytes | None,
    headers: RecordHeaders,
    reported: Reported,
) -> None:
    """Append a record as `LogWriter.append` does, after converting it to structured mode. The
    conversion comes this late because tracing must set the record's headers before it. Data other
    than JSON become base64, so they grow by a third over the size that was counted."""
    record = in_structured_mode(Draft(key, headers, value))
    writer.append(topic, record.key, record.value, record.headers, reported)


def _append_all_structured(
    writer: LogWriter, topic: str, records: Sequence[Draft], reported: Reported
) -> None:
    """Append records as `LogWriter.append_all` does, each converted to structured mode."""
    writer.append_all(topic, list(map(in_structured_mode, records)), reported)
