"""The spans of an event at its Trigger, and the context its subscriber gets (KN-DP-10)."""

from __future__ import annotations

import asyncio

import pytest
from support.drains import (
    SINK,
    SUBSCRIBER,
    TOPIC,
    TRACEPARENT,
    Request,
    World,
    always,
    at_first,
    response,
    unless_sink,
)
from support.spans import Recorded

from knafka.core.contract import Delivery
from knafka.core.filters.declared_filters import AttributesFilter
from knafka.dispatcher.engine.sending import dead_letter_delivery, sender
from knafka.observability import RateLimitedFilter
from knafka.ports.subscriber import Response
from knafka.tracing.context import decode
from knafka.tracing.spans import SpanKind

pytestmark = pytest.mark.looptime

PARENT = TRACEPARENT.encode()
TRACE = [("traceparent", PARENT)]


@pytest.fixture
def lines(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> pytest.LogCaptureFixture:
    """Log lines, whatever was written by tests before."""
    for module in (sender, dead_letter_delivery):
        monkeypatch.setattr(module.log, "filters", [RateLimitedFilter(by_wording=True)])
    return caplog


def traced(world: World, rate: float = 0.0) -> Recorded:
    """By the parent, unless it has none."""
    recorded = Recorded(rate)
    world.tracer = recorded.tracer
    return recorded


@pytest.mark.conformance("KN-DP-10", "KN-DP-16")
async def test_an_events_attempt_is_below_its_filter_below_the_receiver() -> None:
    world = World()
    recorded = traced(world)
    world.send("1", passed=TRACE)
    await world.run()
    assert recorded.names == ["filter", "attempt"]
    assert recorded.parent_of("filter") == decode(PARENT)
    assert recorded.parent_of("attempt") == "filter"
    attempt = recorded.one("attempt")
    assert (attempt.kind, attempt.error) == (SpanKind.CLIENT, None)
    assert attempt.attributes == {
        "messaging.system": "knative",
        "messaging.destination": "trigger:trigger.ns",
        "messaging.message_id": "1",
        "messaging.protocol": "HTTP",
        "http.request.method": "POST",
        "http.request.resend_count": 0,
        "http.response.status_code": 200,
        "url.full": SUBSCRIBER,
    }
    (post,) = world.subscriber.posts
    assert decode(post.request.header(b"traceparent")) == attempt.context
    assert post.request.head.count(b"traceparent") == 1


@pytest.mark.conformance("KN-DP-10")
@pytest.mark.parametrize("form", ["binary", "json", None])
async def test_the_extension_is_as_it_came_also_if_it_equals_the_header(form: str | None) -> None:
    world = World(delivery=Delivery.model_validate({"format": form}))
    recorded = traced(world)
    world.send("1", passed=TRACE, traceparent=TRACEPARENT)
    await world.run()
    (post,) = world.subscriber.posts
    assert decode(post.request.header(b"traceparent")) == recorded.one("attempt").context
    assert PARENT in post.request.head + post.request.body


async def test_each_attempt_has_its_own_span_and_tells_its_subscriber() -> None:
    world = World(at_first(response(503), response(500)), delivery=Delivery(retry=3))
    recorded = traced(world)
    world.send("1", passed=TRACE)
    await world.run()
    attempts = [each for each in recorded.spans if each.name == "attempt"]
    assert [each.error for each in attempts] == ["status 503", "status 500", None]
    assert [each.attributes["http.request.resend_count"] for each in attempts] == [0, 1, 2]
    sent = [decode(post.request.header(b"traceparent")) for post in world.subscriber.posts]
    assert sent == [each.context for each in attempts]


async def test_a_filter_that_lets_nothing_pass_has_a_span_too() -> None:
    world = World(filter=AttributesFilter(attributes={"type": "other"}))
    recorded = traced(world)
    world.send("1", passed=TRACE)
    await world.run()
    (span,) = recorded.spans
    assert span.attributes["knafka.filter.passes"] is False


@pytest.mark.parametrize("passed", [[], [("traceparent", PARENT[:-2] + b"00")]])
async def test_what_isnt_sampled_has_no_spans_and_passes_as_it_is(
    passed: list[tuple[str, bytes]],
) -> None:
    world = World()
    recorded = traced(world, rate=1.0)
    world.send("1", passed=passed)
    await world.run()
    assert recorded.spans == []
    (post,) = world.subscriber.posts
    assert post.request.header(b"traceparent") == (passed[0][1] if passed else None)


async def test_a_reply_goes_on_with_the_trace_of_its_attempt() -> None:
    reply = response(200, b"{}", ce_specversion="1.0", ce_id="r", ce_type="r", ce_source="/r")
    world = World(always(reply), filter=AttributesFilter(attributes={"type": "t"}))
    recorded = traced(world)
    world.send("1", passed=TRACE)
    await world.run()
    assert recorded.parent_of("reply") == "attempt"
    filters = [each.parent for each in recorded.spans if each.name == "filter"]
    assert filters == [decode(PARENT), recorded.one("reply").context]
    (stored,) = (each for each in world.events_of(TOPIC) if each.attributes["id"] == "r")
    assert decode(dict(stored.passed)["traceparent"]) == recorded.one("reply").context


async def test_a_dead_letter_in_the_topic_is_below_the_filter() -> None:
    world = World(always(response(500)))
    recorded = traced(world)
    world.send("1", passed=TRACE)
    await world.run()
    assert recorded.names == ["filter", "attempt", "dead-letter"]
    assert recorded.parent_of("dead-letter") == "filter"
    assert recorded.one("dead-letter").kind is SpanKind.PRODUCER


async def test_a_dead_letter_to_a_sink_tells_the_sink() -> None:
    world = World(unless_sink(response(500), response(200)), sink=True)
    recorded = traced(world)
    world.send("1", passed=TRACE)
    await world.run()
    span = recorded.one("dead-letter")
    assert (span.kind, span.attributes["url.full"]) == (SpanKind.CLIENT, SINK)
    assert recorded.parent_of("dead-letter") == "filter"
    post = world.subscriber.posts[-1]
    assert decode(post.request.header(b"traceparent")) == span.context


async def test_a_first_failure_and_a_burial_are_a_line_each_with_the_ids_of_the_trace(
    lines: pytest.LogCaptureFixture,
) -> None:
    """Of a hundred events that fail, one line each; the next ones after ten seconds."""
    world = World(always(response(500)), delivery=Delivery(retry=1, backoff_delay=0.1))
    recorded = traced(world)
    for number in range(100):
        world.send(str(number), passed=TRACE)
    await world.run()
    names = sender.log.name, dead_letter_delivery.log.name
    failure, burial = (each for each in lines.records if each.name in names)
    assert failure.getMessage().startswith(f"{SUBSCRIBER} answered 500 to an event, of partition 0")
    assert burial.getMessage().endswith("after 2 attempts: status 500")
    spans = {f"{each.context.span_id:016x}": each.name for each in recorded.spans}
    found = [
        (each.__dict__["trace_id"], spans[each.__dict__["span_id"]]) for each in (failure, burial)
    ]
    trace_id = TRACEPARENT.split("-")[1]
    assert found == [(trace_id, "attempt"), (trace_id, "dead-letter")]


async def test_a_line_about_an_event_that_isnt_sampled_has_the_ids_that_came_with_it(
    lines: pytest.LogCaptureFixture,
) -> None:
    world = World(at_first(response(500)), delivery=Delivery(retry=1, backoff_delay=0.1))
    world.send("1", passed=TRACE)
    await world.run()
    (line,) = (each for each in lines.records if each.name == sender.log.name)
    assert line.__dict__["trace_id"] == TRACEPARENT.split("-")[1]
    assert line.__dict__["span_id"] == TRACEPARENT.split("-")[2]


async def test_the_span_of_an_attempt_without_a_response_tells_why() -> None:
    async def never(request: Request) -> Response:
        await asyncio.sleep(1000.0)
        return response()

    world = World(never, delivery=Delivery.model_validate({"timeout": "PT2S", "retry": 0}))
    recorded = traced(world)
    world.send("1", passed=TRACE)
    await world.run()
    attempt = recorded.one("attempt")
    assert attempt.error == "timeout"
    assert "http.response.status_code" not in attempt.attributes


async def test_an_attempt_that_is_abandoned_has_its_span_all_the_same() -> None:
    async def never(request: Request) -> Response:
        await asyncio.sleep(1000.0)
        return response()

    world = World(never)
    recorded = traced(world)
    world.send("1", passed=TRACE)
    await world.run(stop_after=1.0)
    assert recorded.one("attempt").error == "CancelledError"
