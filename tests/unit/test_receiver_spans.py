"""What a receiver makes of trace context, and the spans it records (KN-DP-10, KN-DP-16)."""

from __future__ import annotations

import asyncio

import pytest
from support.memory.log import MemoryLog, MemoryWriter
from support.receiver_requests import MINIMAL, PATH, Headers, ingress
from support.spans import Recorded

from knafka.core.contract import Ingress
from knafka.receiver.answers import Answer
from knafka.receiver.ingest import IngestHandler
from knafka.receiver.limits import Limits
from knafka.receiver.observing import ReceiverObservers
from knafka.receiver.tracing import IngestTracing
from knafka.tracing.context import SpanContext, decode
from knafka.tracing.spans import SpanKind

START = b"00-11111111111111111111111111111111-2222222222222222-01"
HOP = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
UNSAMPLED = HOP[:-2] + b"00"


class World:
    """A traced ingest handler on a log in memory."""

    def __init__(
        self, recorded: Recorded, declared: Ingress | None = None, limits: Limits | None = None
    ) -> None:
        self.log = MemoryLog()
        self.log.create("events")
        self.ingest = IngestHandler(
            [declared or ingress()],
            [MemoryWriter(self.log)],
            limits or Limits(),
            observers=ReceiverObservers(tracing=IngestTracing(recorded.tracer)),
        )

    async def send(self, *headers: tuple[bytes, bytes], base: Headers = MINIMAL.headers) -> Answer:
        answers: list[Answer] = []
        self.ingest.handle(b"POST", PATH, (*base, *headers), b"", answers.append)
        await asyncio.sleep(0)
        (answer,) = answers
        return answer

    @property
    def stored(self) -> dict[str, bytes]:
        """Headers of the one record, none of them twice."""
        (record,) = self.log.topics["events"][0]
        headers = record.headers() or []
        assert len(dict(headers)) == len(headers)
        return dict(headers)


@pytest.mark.conformance("KN-DP-16")
async def test_an_event_without_a_trace_begins_one_of_receive_and_append() -> None:
    recorded = Recorded()
    world = World(recorded)
    assert (await world.send()).status == 202
    assert recorded.names == ["append", "receive"]
    receive = recorded.one("receive")
    assert (receive.kind, receive.parent, receive.error) == (SpanKind.SERVER, None, None)
    assert receive.attributes == {
        "messaging.system": "knative",
        "messaging.protocol": "HTTP",
        "messaging.destination": "broker:broker.ns",
        "messaging.message_id": world.stored["ce_id"].decode(),
        "http.response.status_code": 202,
    }
    assert decode(world.stored["traceparent"]) == receive.context
    assert recorded.parent_of("append") == "receive"
    assert recorded.one("append").attributes["messaging.destination"] == "events"
    assert receive.start <= recorded.one("append").start < recorded.one("append").end < receive.end


async def test_a_channels_span_says_so() -> None:
    recorded = Recorded()
    declared = ingress().model_copy(update={"kind": "KafkaChannel"})
    await World(recorded, declared).send()
    assert recorded.one("receive").attributes["messaging.destination"] == "channel:broker.ns"


@pytest.mark.conformance("KN-DP-10")
async def test_the_header_carries_the_hop_and_the_extension_the_starting_trace() -> None:
    recorded = Recorded(rate=0.0)
    world = World(recorded)
    await world.send(
        (b"traceparent", HOP), (b"tracestate", b"a=b"), (b"ce-traceparent", START),
        (b"ce-tracestate", b"c=d"),
    )  # fmt: skip
    receive = recorded.one("receive")
    assert receive.parent == decode(HOP)
    assert decode(world.stored["traceparent"]) == receive.context
    assert receive.context.trace_id == SpanContext(*decode(HOP) or ()).trace_id
    assert world.stored["tracestate"] == b"a=b"
    assert world.stored["ce_traceparent"] == START
    assert world.stored["ce_tracestate"] == b"c=d"


@pytest.mark.conformance("KN-DP-10")
async def test_without_a_header_the_trace_of_the_extension_goes_on() -> None:
    recorded = Recorded(rate=0.0)
    world = World(recorded)
    await world.send((b"ce-traceparent", START))
    assert recorded.one("receive").parent == decode(START)
    assert world.stored["ce_traceparent"] == START
    assert decode(world.stored["traceparent"]) == recorded.one("receive").context


async def test_what_isnt_sampled_elsewhere_passes_as_it_came() -> None:
    recorded = Recorded(rate=1.0)
    world = World(recorded)
    await world.send((b"traceparent", UNSAMPLED), (b"tracestate", b"a=b"))
    assert recorded.spans == []
    assert world.stored["traceparent"] == UNSAMPLED
    assert world.stored["tracestate"] == b"a=b"


async def test_whoever_gets_an_event_that_isnt_sampled_is_told() -> None:
    recorded = Recorded(rate=0.0)
    world = World(recorded)
    await world.send()
    assert recorded.spans == []
    context = decode(world.stored["traceparent"])
    assert context is not None
    assert not context.sampled


async def test_an_invalid_traceparent_is_replaced_and_its_tracestate_goes() -> None:
    recorded = Recorded()
    world = World(recorded)
    await world.send((b"traceparent", b"00-abc-def-01"), (b"tracestate", b"a=b"))
    assert recorded.one("receive").parent is None
    assert decode(world.stored["traceparent"]) == recorded.one("receive").context
    assert "tracestate" not in world.stored


async def test_a_sampler_that_follows_nobody_says_what_it_decided() -> None:
    recorded = Recorded(rate=0.0, follows_parent=False)
    world = World(recorded)
    await world.send((b"traceparent", HOP))
    assert recorded.spans == []
    assert world.stored["traceparent"] == UNSAMPLED


async def test_an_event_that_is_refused_has_no_append() -> None:
    recorded = Recorded()
    world = World(recorded, limits=Limits(in_flight=0))
    assert (await world.send()).status == 503
    (receive,) = recorded.spans
    assert receive.attributes["http.response.status_code"] == 503
    assert receive.error
