"""What a Zipkin has of a sampled trace: attempts to deliver an event, its replies, its dead letter.

Not here: recording spans (`knafka.tracing`), and which trace an event belongs to (`tracing`).
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from knafka.core.contract import Egress
from knafka.core.dead_letter import timestamp
from knafka.core.errors import KnafkaError
from knafka_cli.events.steps import TraceStep
from knafka_client.topics.dead_letters import shown

ZIPKIN_TIMEOUT: Final = 5.0
"""Seconds for the answer."""
LARGEST_ZIPKIN_ANSWER: Final = 16 * 1024 * 1024
"""Bytes of an answer."""
_SHOWN: Final = {"attempt": "attempt", "reply": "reply", "dead-letter": "dead letter"}
"""Names of spans to what a step is called."""

Span: TypeAlias = Mapping[str, Any]
"""One of Zipkin's JSON format, version 2."""


class NoSpans(KnafkaError):
    """Zipkin has not answered with spans; the text says why."""


def spans_of(url: str, trace_id: str) -> Sequence[Span]:
    """The spans of a trace, none if Zipkin doesn't have it. Raises `NoSpans`."""
    address = f"{url.rstrip('/')}/api/v2/trace/{trace_id}"
    try:
        with urllib.request.urlopen(address, timeout=ZIPKIN_TIMEOUT) as answer:
            spans = json.loads(answer.read(LARGEST_ZIPKIN_ANSWER))
    except urllib.error.HTTPError as error:
        with error:
            if error.code == 404:
                return []
        raise NoSpans(f"{address}: {error}") from error
    except (OSError, ValueError) as error:
        raise NoSpans(f"{address}: {error}") from error
    if not isinstance(spans, list):
        raise NoSpans(f"{address}: want a list of spans")
    return [span for span in spans if isinstance(span, dict)]


def steps_of(spans: Sequence[Span], egress: Egress) -> Sequence[TraceStep]:
    """The steps of an event at one Trigger or Subscription, from the spans of its trace."""
    destination = f"{egress.kind.lower()}:{egress.trigger}.{egress.namespace}"
    steps = []
    for span in spans:
        tags = span.get("tags") or {}
        name = _SHOWN.get(span.get("name", ""))
        if name is None or tags.get("messaging.destination") != destination:
            continue
        time = timestamp(int(span.get("timestamp", 0)) / 1_000_000)
        steps.append(TraceStep(time, name, _result(tags, int(span.get("duration", 0)))))
    return steps


def _result(tags: Mapping[str, str], microseconds: int) -> str:
    code, error = tags.get("http.response.status_code", ""), tags.get("error", "")
    said = error if not code or code in error else f"{code} {error}".strip()
    where = tags.get("messaging.kafka.topic") or tags.get("url.full", "")
    took = f"in {microseconds / 1000:.0f} ms"
    return shown(" ".join(filter(None, [said, "at" if where else "", where, took])))
