"""Spans through OpenTelemetry's SDK: what a collector gets, and that nobody waits for it."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from knafka.tracing import starting
from knafka.tracing.context import SpanContext
from knafka.tracing.exporter import OpenTelemetryExporter
from knafka.tracing.spans import Span, SpanKind

PATIENCE = 20.0
"""Seconds, on whatever machine."""

PARENT = SpanContext(0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331, True)
OTLP = "OTEL_EXPORTER_OTLP_ENDPOINT"
MS = 1_000_000


def span(name: str = "attempt", error: str | None = None) -> Span:
    context = SpanContext(PARENT.trace_id, 2, True)
    begun = 1_700_000_000_000 * MS
    attributes: dict[str, str | int | bool] = {"messaging.system": "knative", "tries": 1}
    return Span(name, SpanKind.CLIENT, context, PARENT, begun, attributes, begun + 5 * MS, error)


class Collector(ThreadingHTTPServer):
    """Keeps the bodies of POSTs by path."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[tuple[str, bytes]] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.requests.append((self.path, body))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def collector() -> Iterator[Collector]:
    server = Collector()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_collector_gets_a_span_as_otlp_has_it(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OTLP, collector.url)
    exporter = OpenTelemetryExporter("otlp", "knafka-dispatcher")
    exporter.export(span(error="status 503"))
    exporter.close(5.0)
    ((path, body),) = collector.requests
    assert path == "/v1/traces"
    (resource,) = ExportTraceServiceRequest.FromString(body).resource_spans
    named = {each.key: each.value.string_value for each in resource.resource.attributes}
    assert named["service.name"] == "knafka-dispatcher"
    (got,) = resource.scope_spans[0].spans
    assert got.trace_id.hex() == "0af7651916cd43dd8448eb211c80319c"
    assert (got.parent_span_id.hex(), got.span_id.hex()) == ("b7ad6b7169203331", "0" * 15 + "2")
    assert (got.name, got.kind) == ("attempt", got.SPAN_KIND_CLIENT)
    assert got.end_time_unix_nano - got.start_time_unix_nano == 5 * MS
    assert {each.key for each in got.attributes} == {"messaging.system", "tries"}
    assert (got.status.code, got.status.message) == (got.status.STATUS_CODE_ERROR, "status 503")


def test_a_service_is_named_as_its_environment_says(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OTLP, collector.url)
    monkeypatch.setenv("OTEL_SERVICE_NAME", "orders")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
    exporter = OpenTelemetryExporter("otlp", "knafka-dispatcher")
    exporter.export(span())
    exporter.close(5.0)
    (resource,) = ExportTraceServiceRequest.FromString(collector.requests[0][1]).resource_spans
    named = {each.key: each.value.string_value for each in resource.resource.attributes}
    assert (named["service.name"], named["deployment.environment.name"]) == ("orders", "test")


def test_nobody_waits_for_a_collector_that_isnt_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """More spans than the queue holds, and the end of the process, which has a second for them."""
    monkeypatch.setenv(OTLP, "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "600")
    exporter = OpenTelemetryExporter("otlp", "knafka-receiver")
    begun = time.perf_counter()
    for _ in range(2000):
        exporter.export(span())
    # To wait would last for as long as the collector is tried, for each 600 of them.
    assert time.perf_counter() - begun < PATIENCE
    exporter.close(0.2)
    assert time.perf_counter() - begun < 2 * PATIENCE


async def test_tracing_starts_where_the_environment_wants_it(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert starting.start_tracing({}, "knafka-receiver") is None
    monkeypatch.setenv(OTLP, collector.url)
    tracing = starting.start_tracing({OTLP: collector.url}, "knafka-receiver")
    assert tracing is not None
    begun = tracing.tracer.start("receive", SpanKind.SERVER, PARENT)
    tracing.tracer.end(begun)
    await tracing.close()
    assert collector.requests


def test_without_the_extra_events_go_on_without_traces(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "knafka.tracing.exporter", None)
    environment = {OTLP: "http://127.0.0.1:1"}
    assert starting.start_tracing(environment, "knafka-receiver") is None
    assert "install knafka[tracing]" in caplog.text


def test_without_the_extra_for_grpc_it_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is not in the functions' image."""
    name = "opentelemetry.exporter.otlp.proto.grpc.trace_exporter"
    monkeypatch.setitem(sys.modules, name, None)
    environment = {OTLP: "http://127.0.0.1:1", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
    assert starting.start_tracing(environment, "knafka-receiver") is None
    assert "install knafka[tracing-grpc]" in caplog.text


def test_what_the_sdk_refuses_is_said_and_events_go_on_without_traces(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    environment = {OTLP: "http://127.0.0.1:1", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}
    assert starting.start_tracing(environment, "knafka-receiver") is None
    assert "want http/protobuf or grpc" in caplog.text
    monkeypatch.setenv("OTEL_EXPORTER_ZIPKIN_TIMEOUT", "soon")
    assert starting.start_tracing({"OTEL_TRACES_EXPORTER": "zipkin"}, "knafka-receiver") is None
    assert "the exporter can't be started" in caplog.text
