"""Reads a sampled trace from Zipkin: attempts to deliver an event, replies and dead letters.

Not here: recording spans (`knafka.tracing`), and which trace an event belongs to (`tracing`).
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final, TypeAlias

from knafka.core.contract import Egress
from knafka.core.dead_letter import timestamp
from knafka.core.errors import KnafkaError
from knafka_cli.events.steps import TraceStep
from knafka_client.topics.dead_letters import preview_text

ZIPKIN_TIMEOUT: Final = 5.0
"""Seconds for Zipkin to answer."""
LARGEST_ZIPKIN_ANSWER: Final = 16 * 1024 * 1024
"""The most bytes that are read of an answer."""
_STEP_KINDS: Final = {"attempt": "attempt", "reply": "reply", "dead-letter": "dead letter"}
"""The kind of step (`TraceStep.what`) by the span's name; other spans aren't shown."""

Span: TypeAlias = Mapping[str, Any]
"""A span in Zipkin's JSON format, version 2."""


class ZipkinError(KnafkaError):
    """Zipkin has not answered with spans; the text says why."""


def fetch_spans(url: str, trace_id: str) -> Sequence[Span]:
    """Return the spans of a trace, from the Zipkin at this URL; none if Zipkin doesn't have the
    trace. Raises `ZipkinError`, also if it doesn't answer within `ZIPKIN_TIMEOUT` seconds."""
    address = f"{url.rstrip('/')}/api/v2/trace/{trace_id}"
    try:
        with urllib.request.urlopen(address, timeout=ZIPKIN_TIMEOUT) as answer:
            spans = json.loads(answer.read(LARGEST_ZIPKIN_ANSWER))
    except urllib.error.HTTPError as error:
        with error:  # which holds the connection, and closes it
            if error.code == HTTPStatus.NOT_FOUND:
                return []
        raise ZipkinError(f"{address}: {error}") from error
    except (OSError, ValueError) as error:
        raise ZipkinError(f"{address}: {error}") from error
    if not isinstance(spans, list):
        raise ZipkinError(f"{address}: the answer is no list of spans")
    return [span for span in spans if isinstance(span, dict)]


def steps_of(spans: Sequence[Span], egress: Egress) -> Sequence[TraceStep]:
    """Return the attempts, replies and dead letters of an event at the Trigger or Subscription of
    this Egress, from the spans of the event's trace."""
    destination = f"{egress.kind.lower()}:{egress.trigger}.{egress.namespace}"
    steps = []
    for span in spans:
        tags = span.get("tags") or {}
        kind = _STEP_KINDS.get(span.get("name", ""))
        if kind is None or tags.get("messaging.destination") != destination:
            continue
        # Zipkin counts in microseconds.
        time = timestamp(int(span.get("timestamp", 0)) / 1_000_000)
        steps.append(TraceStep(time, kind, _result_text(tags, int(span.get("duration", 0)))))
    return steps


def _result_text(tags: Mapping[str, str], microseconds: int) -> str:
    """Return a text about a span's result: its status code and error, destination, and duration.
    `tags` are the span's tags, and `microseconds` is its duration."""
    code, error = tags.get("http.response.status_code", ""), tags.get("error", "")
    # The text of the error may contain the code, which isn't shown twice.
    outcome = error if not code or code in error else f"{code} {error}".strip()
    destination = tags.get("messaging.kafka.topic") or tags.get("url.full", "")
    duration = f"in {microseconds / 1000:.0f} ms"
    return preview_text(
        " ".join(filter(None, [outcome, "at" if destination else "", destination, duration]))
    )
