"""Makes the spans of a Sensor's firings, in the trace of the event that completed the condition
(KN-DP-10).

    receive (the receiver's) > fire > filter > attempt (the dispatcher's)
                               links: the other events that it fired with

An event's `traceparent` is kept with it for as long as it is held, if its trace is sampled. A span
ends when its transaction is committed; an aborted transaction leaves no span.
"""

from __future__ import annotations

from knafka.core.events.kafka_binding import Envelope
from knafka.core.sensor import records
from knafka.core.sensor.contract import SensorContract
from knafka.core.sensor.held import Firing
from knafka.tracing.context import TRACEPARENT, decode
from knafka.tracing.spans import KNATIVE, Span, SpanKind, Tracer


class SensorTracing:
    """Makes the spans of one Sensor, whose triggers fire when their conditions become true."""

    def __init__(self, tracer: Tracer, sensor: SensorContract) -> None:
        """`tracer` starts the spans of `sensor`, and exports them when they end."""
        self.tracer = tracer
        self._destination = f"sensor:{sensor.name}.{sensor.namespace}"

    def traceparent_of(self, envelope: Envelope) -> bytes:
        """Return the header `traceparent` of an event of the bus, to be kept with the event. Empty
        if the event has no valid one, or if its trace isn't sampled."""
        for name, value in envelope.passed:
            if name == TRACEPARENT:
                context = decode(value)
                return value if context is not None and self.tracer.is_sampled(context) else b""
        return b""

    def start_span(self, key: str, identity: str, firing: Firing) -> Span | None:
        """Start and return the span of a firing. Its parent is the span of the last event to arrive
        whose trace is sampled; None: no event's trace is. `key`: the trigger and its correlation
        key (`records.key_of`); `identity`: the id of the action, the event that announces the
        firing."""
        by_arrival = sorted(firing.events, key=lambda event: event.offset)
        decoded = [decode(event.trace) for event in by_arrival if event.trace]
        contexts = [context for context in decoded if context is not None]
        if not contexts:
            return None
        attributes: dict[str, str | int | bool] = {
            "messaging.system": KNATIVE,
            "messaging.destination": self._destination,
            "messaging.message_id": identity,
            "knafka.sensor.trigger": records.trigger_of(key),
            "knafka.sensor.events": len(by_arrival),
        }
        *earlier_contexts, last = contexts
        span = self.tracer.start("fire", SpanKind.PRODUCER, last, attributes)
        span.links = tuple(earlier_contexts)
        return span
