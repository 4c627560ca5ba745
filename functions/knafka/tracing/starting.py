"""Starts a process's tracing, if its environment declares it."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from knafka.observability import RateLimitedFilter
from knafka.tracing.settings import tracing_settings
from knafka.tracing.spans import Span, Tracer

log = logging.getLogger(__name__)

EXPORTER_CLOSE_TIMEOUT: Final = 1.0
"""Seconds to send the last spans when the process ends; spans that aren't sent by then are lost."""

EXPORTER_LOGS: Final = (
    "opentelemetry.exporter.otlp.proto.grpc.exporter",
    "opentelemetry.exporter.otlp.proto.http",
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "opentelemetry.exporter.zipkin.json",
    "opentelemetry.sdk._shared_internal",
)
"""Loggers that report each batch that the endpoint refuses."""


class Exporter(Protocol):
    """Sends finished spans to the collector that the environment names."""

    def export(self, span: Span) -> None:
        """Queue a finished span; never waits."""
        ...

    def close(self, timeout: float) -> None:
        """Send the queued spans within `timeout` seconds; blocks meanwhile. Spans that aren't sent
        by then are lost."""
        ...


@dataclass(frozen=True, slots=True)
class Tracing:
    """A process's tracer, and the exporter of its spans, which must be closed at the end."""

    tracer: Tracer
    exporter: Exporter

    async def close(self) -> None:
        """Send the last spans in a thread, for at most `EXPORTER_CLOSE_TIMEOUT` seconds; spans that
        aren't sent by then are lost."""
        await asyncio.to_thread(self.exporter.close, EXPORTER_CLOSE_TIMEOUT)


def start_tracing(environment: Mapping[str, str], service: str) -> Tracing | None:
    """Start the export of traces as the environment declares it, and return the tracer with its
    exporter. None: tracing is off, or can't start, which is logged. `service`: the spans'
    `service.name` unless the environment sets one."""
    settings = tracing_settings(environment)
    for problem in settings.problems:
        log.warning("tracing: %s", problem)
    if settings.exporter is None:
        return None
    try:
        # Imported here, so that only processes with tracing load OpenTelemetry's SDK.
        from knafka.tracing.exporter import OpenTelemetryExporter

        exporter = OpenTelemetryExporter(settings.exporter, service)
    except ImportError as error:
        extra = "tracing-grpc" if settings.exporter == "otlp-grpc" else "tracing"
        log.warning("tracing is off: %s: install knafka[%s]", error, extra)
        return None
    except Exception as error:
        # The SDK refuses a setting, but the function must start all the same.
        log.warning("tracing is off: the exporter can't be started: %s", error)
        return None
    for name in EXPORTER_LOGS:
        logging.getLogger(name).addFilter(RateLimitedFilter(by_wording=True))
    tracer = Tracer(settings.sampler, exporter.export, time.time_ns, random.getrandbits)
    return Tracing(tracer, exporter)
