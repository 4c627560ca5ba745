"""Spans of what a Sensor fires: in the trace of its last event, linked to those of the others."""

from __future__ import annotations

from support.memory.transactions import Interruption
from support.memory_sensors import ACTION, CHANGELOG, TRIGGER, MemorySensor, Send
from support.spans import Recorded

from knafka.core.events.kafka_binding import read
from knafka.tracing.context import SpanContext

ONE, OTHER = SpanContext(0xA, 1, True), SpanContext(0xB, 2, True)
UNSAMPLED = SpanContext(0xC, 3, False)


def traced(recorded: Recorded | None = None) -> MemorySensor:
    world = MemorySensor(1)
    world.tracer = None if recorded is None else recorded.tracer
    world.without = ("three", "late")
    return world


def traceparents(world: MemorySensor, topic: str) -> list[bytes | None]:
    return [dict(each.headers() or ()).get("traceparent") for each in world.read(topic)]


def test_a_firing_goes_on_with_the_trace_of_its_last_event_and_names_the_others() -> None:
    recorded = Recorded()
    world = traced(recorded)
    world.send(Send("a", "x", 0), ONE.encode())
    for _ in range(4):
        world.run(0)
    world.end(0, expelled=False)  # the changelog has the trace of what is held
    world.send(Send("b", "x", 0), OTHER.encode())
    world.rest()
    span = recorded.one("fire")
    assert (span.parent, span.links) == (OTHER, (ONE,))
    assert span.context.trace_id == OTHER.trace_id
    assert span.attributes["knafka.sensor.trigger"] == "two"
    assert span.attributes["messaging.destination"] == "sensor:sensor.shop"
    (action,) = world.read(ACTION)
    envelope = read(action.headers(), action.value())
    assert envelope.passed == [("traceparent", span.context.encode())]
    assert span.attributes["messaging.message_id"] == envelope.attributes["id"]


def test_a_firing_of_events_that_are_not_sampled_has_no_span() -> None:
    recorded = Recorded()
    world = traced(recorded)
    world.send(Send("a", "x", 0), UNSAMPLED.encode())
    world.send(Send("b", "x", 0))
    world.send(Send("c", "x", 0), b"nonsense")
    world.rest()
    assert world.actions().total() == 2
    assert recorded.spans == []
    assert set(traceparents(world, ACTION)) == {None}


def test_an_aborted_transaction_has_no_span_and_the_next_one_has_one() -> None:
    recorded = Recorded()
    world = traced(recorded)
    world.send(Send("c", "x", 0), ONE.encode())
    world.opened(0)[1].interrupt(Interruption.ABORT)
    world.rest()
    assert recorded.names == ["fire"]
    assert recorded.one("fire").parent == ONE


def test_without_tracing_nothing_is_kept_of_it() -> None:
    world = traced()
    world.send(Send("a", "x", 0), ONE.encode())
    world.send(Send("b", "x", 0), OTHER.encode())
    world.rest()
    for topic in (TRIGGER, CHANGELOG, ACTION):
        assert set(traceparents(world, topic)) <= {None}
