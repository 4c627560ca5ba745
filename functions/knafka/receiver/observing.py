"""Observing: what a receiver shows of its work (spans, event types, its contract, metrics), and who
may read it.

Not here: the counts, which routes and writers keep; the contents of spans (`tracing`) and of the
list of event types (`event_types`).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from knafka.contract_topic import Contract
from knafka.core.contract import Ingress
from knafka.core.tokens.caller_tokens import EVERYBODY, Callers
from knafka.observability import (
    CONTENT_TYPE,
    Metric,
    ingress_labels,
    produced_metric,
    prometheus_text,
)
from knafka.ports.log import LogWriter
from knafka.receiver import answers
from knafka.receiver.event_types import SeenTypes
from knafka.receiver.routes import BrokerRoute, Respond
from knafka.receiver.tracing import IngestTracing


@dataclass(frozen=True, slots=True)
class ReceiverObservers:
    """The objects that record a receiver's work, and the callers who may read the records."""

    tracing: IngestTracing | None = None
    """Records spans; None: no spans are recorded."""
    types: SeenTypes | None = None
    """Collects new event types; None: they aren't collected."""
    client_metrics: Callable[[], Iterable[Metric]] = tuple
    """Returns the metrics of the writers' Kafka clients."""
    callers: Callers = EVERYBODY
    """Who may read the contract and the event types."""
    scrapers: Callers = EVERYBODY
    """Who may read the metrics."""


UNOBSERVED: Final = ReceiverObservers()
"""Observers that record nothing, and let everybody read the contract and the metrics."""


def respond_with_metrics(metrics: Iterable[Metric], respond: Respond) -> None:
    """Answer a request with these metrics as Prometheus text, or with 503 if that fails. Returns at
    once; `respond` is called later, on the event loop. The metrics are formatted on a thread, as
    that takes as long as thousands of events if there are hundreds of channels."""

    def on_formatted(text: asyncio.Future[bytes]) -> None:
        """Answer with the formatted metrics, or with 503 if formatting has failed."""
        if text.cancelled() or (error := text.exception()) is not None:
            problem = "cancelled" if text.cancelled() else repr(error)
            respond(answers.not_storing(problem))
        else:
            respond(answers.plain_text(text.result(), CONTENT_TYPE.encode()))

    snapshot = list(metrics)  # on the event loop, which changes the counts
    loop = asyncio.get_running_loop()
    loop.run_in_executor(None, prometheus_text, snapshot).add_done_callback(on_formatted)


def contract_document(contract: Contract[Ingress], ingresses: int) -> str:
    """Return, as JSON, the position up to which the contract's topic is read, the number of served
    Ingresses (`ingresses`), and the reasons of refused entries."""
    return json.dumps(
        {
            "position": contract.position,
            "ingresses": ingresses,
            "refused": dict(contract.refused),
        }
    )


def ingest_metrics(
    routes: Collection[BrokerRoute],
    unrouted: Mapping[int, int],
    waiting_bytes: int,
    writers: Sequence[LogWriter],
) -> Iterator[Metric]:
    """Yield the metrics of a receiver's events (KN-DP-15): accepted and refused events by Broker
    and status code, the time until their answers, and the records that are stored.

    `unrouted`: number of requests to no route, by status code; `waiting_bytes`: bytes of the events
    that wait for Kafka.
    """
    yield Metric(
        "knafka_receiver_events_total",
        "Requests to a Broker's path by the status code they were answered with, "
        "and each event of a batch",
        [
            ({**ingress_labels(route.ingress), "code": str(code)}, count)
            for route in routes
            for code, count in sorted(route.answered.items())
        ],
    )
    yield Metric(
        "knafka_receiver_unrouted_total",
        "Requests to no Broker's path by the status code they were answered with",
        [({"code": str(code)}, count) for code, count in sorted(unrouted.items())],
    )
    yield Metric(
        "knafka_receiver_kafka_away",
        "Whether a Broker's Kafka is known to be away: its events are answered 503 at once",
        [
            (ingress_labels(route.ingress), 0 if route.writer.away is None else 1)
            for route in routes
        ],
        kind="gauge",
    )
    yield Metric(
        "knafka_receiver_waiting_bytes",
        "Bytes of events that wait for Kafka's acknowledgement",
        [({}, waiting_bytes)],
        kind="gauge",
    )
    yield Metric(
        "http_server_request_duration_seconds",
        "From a request that is whole to its answer, of events that Kafka was given",
        [
            (ingress_labels(route.ingress), route.duration)
            for route in routes
            if route.duration.count
        ],
        kind="histogram",
    )
    yield produced_metric(_stored_record_counts(writers))


def _stored_record_counts(
    writers: Sequence[LogWriter],
) -> Iterator[tuple[str, str, Mapping[int, int]]]:
    """For each writer and topic, yield the name of the writer's Kafka client (as librdkafka names
    clients by default), the topic, and the number of stored records by partition."""
    for number, writer in enumerate(writers, 1):
        topics: dict[str, dict[int, int]] = {}
        for (topic, partition), count in writer.stored.items():
            topics.setdefault(topic, {})[partition] = count
        for topic, counts in sorted(topics.items()):
            yield f"rdkafka#producer-{number}", topic, counts
