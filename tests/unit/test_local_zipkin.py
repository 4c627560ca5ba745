"""What a Zipkin tells of attempts; its answers are made up here, and real in test_traces.py."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from knafka.core.contract import Egress, Kafka, Sink
from knafka_cli.events.steps import TraceStep
from knafka_cli.events.zipkin import ZipkinError, fetch_spans, steps_of
from knafka_client.sockets import free_port

EGRESS = Egress(
    namespace="shop", broker="main", trigger="mail", topic="t", group="g", dead_letter_topic="d",
    kafka=Kafka(bootstrap_servers="k:1"), subscriber=Sink(url="http://s/"),
)  # fmt: skip


def span(name: str, destination: str = "trigger:mail.shop", **tags: str) -> dict[str, Any]:
    tags = {"messaging.destination": destination} | {
        key.replace("__", "."): value for key, value in tags.items()
    }
    return {"name": name, "timestamp": 1_500_000, "duration": 2_400, "tags": tags}


@pytest.fixture
def zipkin() -> Iterator[tuple[str, dict[str, tuple[int, bytes]]]]:
    """Its URL, and what it answers at each path; 404 elsewhere."""
    answers = dict[str, tuple[int, bytes]]()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = answers.get(self.path, (404, b""))
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/", answers
    server.shutdown()
    server.server_close()
    thread.join()


def test_spans_are_those_of_the_trace(zipkin: tuple[str, dict[str, tuple[int, bytes]]]) -> None:
    url, answers = zipkin
    assert fetch_spans(url, "ab") == []
    answers["/api/v2/trace/ab"] = 200, json.dumps([span("attempt"), "no span"]).encode()
    assert fetch_spans(url, "ab") == [span("attempt")]


@pytest.mark.parametrize("answer", [(500, b""), (200, b"<html>"), (200, b"{}")])
def test_what_is_no_answer_of_zipkins_says_so(
    zipkin: tuple[str, dict[str, tuple[int, bytes]]], answer: tuple[int, bytes]
) -> None:
    url, answers = zipkin
    answers["/api/v2/trace/ab"] = answer
    with pytest.raises(ZipkinError, match="/api/v2/trace/ab: "):
        fetch_spans(url, "ab")


def test_one_that_is_not_there_says_so() -> None:
    with pytest.raises(ZipkinError, match="refused"):
        fetch_spans(f"http://127.0.0.1:{free_port()}", "ab")


def test_only_what_happened_to_the_event_there_is_a_step() -> None:
    spans = [
        span("receive", "broker:main.shop"),
        span("filter"),
        span(
            "attempt", http__response__status_code="503", error="status 503", url__full="http://s/"
        ),
        span("attempt", error="timeout", url__full="http://s/"),
        span("attempt", "trigger:audit.shop"),
        span("attempt", "subscription:mail.shop"),
        span("reply", messaging__kafka__topic="t"),
        span("dead-letter", messaging__kafka__topic="d"),
        {"name": "attempt"},
    ]
    at = "1970-01-01T00:00:01.500Z"
    assert steps_of(spans, EGRESS) == [
        TraceStep(at, "attempt", "status 503 at http://s/ in 2 ms"),
        TraceStep(at, "attempt", "timeout at http://s/ in 2 ms"),
        TraceStep(at, "reply", "at t in 2 ms"),
        TraceStep(at, "dead letter", "at d in 2 ms"),
    ]
