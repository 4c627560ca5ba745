"""Traces from a POST to the subscriber: real receiver, Kafka and dispatcher, and a real Zipkin
(DSP-13) or OTLP collector (DSP-12)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.functions import FunctionProcess
from support.kafka import Kafka, MakeTopic
from support.otlp import otlp_collector
from support.receiver_requests import ingress
from support.scripted import Arrival, ScriptedServer, raw
from support.trigger_world import TriggerWorld, drained
from support.waiting import until
from support.wire import connected
from support.zipkin import zipkin

from knafka.core.contract import Delivery
from knafka.core.documents import dump
from knafka.core.drain import DrainRequest
from knafka.core.filters.declared_filters import AttributesFilter
from knafka.settings import EGRESS, INGRESSES
from knafka_cli.events.zipkin import fetch_spans, steps_of

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"
SERVER = 2
"""OTLP's SPAN_KIND_SERVER."""
START = "00-11111111111111111111111111111111-2222222222222222-01"


@pytest.mark.conformance("KN-DP-10", "KN-DP-16", "DSP-13")
async def test_zipkin_has_the_whole_way_of_an_event(
    kafka: Kafka, topic: MakeTopic, tmp_path: Path
) -> None:
    """Delivered at the second attempt; replied to; dead-lettered; with a sender's trace."""
    refused = set[str]()

    async def script(arrival: Arrival) -> bytes:
        if arrival.id == "buried" or (arrival.id == "1" and not refused):
            refused.add(arrival.id)
            return raw(503)
        if arrival.id == "asks":
            return raw(200, b"", ce_specversion="1.0", ce_id="r", ce_source="/r", ce_type="answer")
        return raw(200)

    world = TriggerWorld(kafka, topic, tmp_path)
    async with zipkin(tmp_path / "zipkin.log") as collector, ScriptedServer(script) as server:
        environment = {
            "OTEL_TRACES_EXPORTER": "zipkin",
            "OTEL_EXPORTER_ZIPKIN_ENDPOINT": collector.endpoint,
            "OTEL_BSP_SCHEDULE_DELAY": "100",
        }
        egress = world.egress(
            server.url,
            delivery=Delivery(retry=1, backoff_delay=0.05),
            filter=AttributesFilter(attributes={"type": "t"}),
        )
        ingresses = json.dumps([dump(ingress(kafka.bootstrap_servers, world.topic))])
        receiver = FunctionProcess(
            "knafka.receiver", {INGRESSES: ingresses, **environment}, tmp_path / "receiver.log"
        )
        dispatcher = FunctionProcess(
            "knafka.dispatcher",
            {EGRESS: json.dumps(dump(egress)), **environment},
            tmp_path / "dispatcher.log",
        )
        async with receiver, dispatcher:
            await receiver.ready()
            assert await post(receiver.port, "1") == 202
            assert await post(receiver.port, "2", traceparent=PARENT, ce_traceparent=START) == 202
            assert await post(receiver.port, "asks") == 202
            assert await post(receiver.port, "buried") == 202
            assert await post(receiver.port, "3", traceparent=f"{PARENT[:-2]}00") == 202
            await drained(dispatcher, DrainRequest(idle=2.0))
            await until(lambda: len(server.arrivals) == 7)
            last = {each.id: each.headers for each in server.arrivals}

            spans = await collector.trace(trace_of(last["1"]), 5)
            assert tree(spans) == {
                "receive": None, "append": "receive", "filter": "receive", "attempt": "filter",
            }  # fmt: skip
            first, second = sorted(of(spans, "attempt"), key=lambda each: each["timestamp"])
            assert first["tags"]["error"] == "status 503"
            assert "error" not in second["tags"]
            assert last["1"]["traceparent"].split("-")[2] == second["id"]
            (receive,) = of(spans, "receive")
            assert receive["kind"] == "SERVER"
            assert receive["localEndpoint"]["serviceName"] == "knafka-receiver"
            assert receive["tags"]["messaging.system"] == "knative"
            assert receive["tags"]["messaging.destination"] == "broker:broker.ns"
            assert receive["tags"]["messaging.message_id"] == "1"
            assert second["localEndpoint"]["serviceName"] == "knafka-dispatcher"
            assert second["tags"]["messaging.destination"] == "trigger:trigger.ns"

            assert trace_of(last["2"]) == TRACE
            assert last["2"]["ce-traceparent"] == START
            spans = await collector.trace(TRACE, 4)
            assert of(spans, "receive")[0]["parentId"] == "b7ad6b7169203331"
            assert tree(spans)["attempt"] == "filter"

            spans = await collector.trace(trace_of(last["asks"]), 6)
            assert sorted(each["name"] for each in spans) == [
                "append", "attempt", "filter", "filter", "receive", "reply",
            ]  # fmt: skip
            assert tree(spans)["reply"] == "attempt"

            spans = await collector.trace(trace_of(last["buried"]), 6)
            assert len(of(spans, "attempt")) == 2
            assert tree(spans)["dead-letter"] == "filter"
            found = fetch_spans(collector.url, trace_of(last["buried"]))
            steps = steps_of(found, egress)
            assert sorted(each.what for each in steps) == ["attempt", "attempt", "dead letter"]
            assert {each.result.partition(" in ")[0] for each in steps} == {
                f"status 503 at {server.url}", f"at {egress.dead_letter_topic}",
            }  # fmt: skip

            assert last["3"]["traceparent"] == f"{PARENT[:-2]}00"
            assert len(await collector.trace(TRACE, 4)) == 4
            await receiver.terminate()
            await dispatcher.terminate()


@pytest.mark.go
@pytest.mark.conformance("DSP-12")
async def test_an_otlp_collector_has_the_whole_way_by_http_and_by_grpc(
    kafka: Kafka, topic: MakeTopic, tmp_path: Path
) -> None:
    """The receiver sends its spans by HTTP, the dispatcher by gRPC: they are one trace."""
    refused = set[str]()

    async def script(arrival: Arrival) -> bytes:
        if arrival.id not in refused:
            refused.add(arrival.id)
            return raw(503)
        return raw(200)

    world = TriggerWorld(kafka, topic, tmp_path)
    async with otlp_collector(tmp_path) as collector, ScriptedServer(script) as server:
        soon = {"OTEL_BSP_SCHEDULE_DELAY": "100"}
        ingresses = json.dumps([dump(ingress(kafka.bootstrap_servers, world.topic))])
        receiver = FunctionProcess(
            "knafka.receiver",
            {INGRESSES: ingresses, "OTEL_EXPORTER_OTLP_ENDPOINT": collector.http, **soon},
            tmp_path / "receiver.log",
        )
        egress = world.egress(server.url, delivery=Delivery(retry=1, backoff_delay=0.05))
        by_grpc = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.grpc,
            "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
        }
        dispatcher = FunctionProcess(
            "knafka.dispatcher",
            {EGRESS: json.dumps(dump(egress)), **by_grpc, **soon},
            tmp_path / "dispatcher.log",
        )
        async with receiver, dispatcher:
            await receiver.ready()
            assert await post(receiver.port, "1", traceparent=PARENT) == 202
            await drained(dispatcher, DrainRequest(idle=2.0))
            await until(lambda: len(server.arrivals) == 2)
            spans = await collector.trace(TRACE, 5)
            assert tree(spans) == {
                "receive": None, "append": "receive", "filter": "receive", "attempt": "filter",
            }  # fmt: skip
            (receive,) = of(spans, "receive")
            assert (receive["parentId"], receive["kind"]) == (PARENT.split("-")[2], SERVER)
            assert receive["service"] == "knafka-receiver"
            assert receive["tags"]["messaging.destination"] == "broker:broker.ns"
            first, second = sorted(of(spans, "attempt"), key=lambda each: each["timestamp"])
            assert (first["error"], second["error"]) == ("status 503", None)
            assert second["service"] == "knafka-dispatcher"
            assert server.arrivals[-1].headers["traceparent"].split("-")[2] == second["id"]
            await receiver.terminate()
            await dispatcher.terminate()


async def post(port: int, id: str, **headers: str) -> int:  # noqa: A002  it is the attribute's name
    named = {"ce_specversion": "1.0", "ce_id": id, "ce_source": "/s", "ce_type": "t", **headers}
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in named.items())
    async with connected(port) as wire:
        wire.send(
            f"POST /ns/broker HTTP/1.1\r\nhost: x\r\n{lines}content-length: 0\r\n\r\n".encode()
        )
        return (await wire.response()).status


def trace_of(headers: dict[str, str]) -> str:
    return headers["traceparent"].split("-")[1]


def of(spans: Sequence[Any], name: str) -> list[Any]:
    return [each for each in spans if each["name"] == name]


def tree(spans: Sequence[Any]) -> dict[str, str | None]:
    """The name of each span's parent by its own name; None: the parent isn't there."""
    names = {each["id"]: each["name"] for each in spans}
    return {each["name"]: names.get(each.get("parentId", "")) for each in spans}
