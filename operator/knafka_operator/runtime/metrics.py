"""Metrics: what the operator knows, for Prometheus, and how it is, for the kubelet.

    :9090/metrics    :8081/metrics    :8080/healthz    :8080/readyz

Not here: keeping anything; the scaler's counts are asked when somebody asks us.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from aiohttp import web

from knafka.core.drain import outcomes
from knafka.observability import (
    CONTENT_TYPE,
    Metric,
    consumed,
    egress_labels,
    produced,
    prometheus_text,
)
from knafka_operator.model.family import BROKERS, CHANNELS
from knafka_operator.operator import Operator

PORT: Final = 9090
HEALTH_PORT: Final = 8080
CHANNEL_PORT: Final = 8081
"""Where the metrics of eventing-kafka's KafkaChannels are scraped (DSP-15)."""
EVERY_PRODUCER: Final = "all"
"""The `producer` of what is counted by the ends of a topic, whoever wrote it."""


def metrics(operator: Operator) -> Iterator[Metric]:
    """Brokers and channels by readiness; lag, replicas and outcomes of what they deliver to."""
    for name, kind, of in (
        ("knafka_broker_ready", "Broker", BROKERS),
        ("knafka_channel_ready", "KafkaChannel", CHANNELS),
    ):
        label = kind.removeprefix("Kafka").lower()
        ready = [
            ({"namespace": who.namespace, label: who.name}, int(each.ready == "True"))
            for beside in operator.all
            if beside.family is of
            for who, each in beside.brokers.found.items()
        ]
        if ready or of is BROKERS:
            yield Metric(name, f"Whether the {kind} is Ready", ready, "gauge")
    watched = [
        (beside.family.trigger_id(who), each, beside.triggers.status(who))
        for beside in operator.all
        for who, each in beside.triggers.watched.items()
    ]
    scaled = [
        (egress_labels(each.egress), status) for _, each, status in watched if status is not None
    ]
    yield Metric(
        "knafka_trigger_lag",
        "Records that the Trigger's group has not committed",
        [(labels, status.lag) for labels, status in scaled if status.lag is not None],
        "gauge",
    )
    yield Metric(
        "knafka_trigger_replicas",
        "Drains held open",
        [(labels, status.replicas) for labels, status in scaled],
        "gauge",
    )
    yield Metric(
        "knafka_trigger_events_total",
        "Events by what became of them, as drains reported",
        [
            ({**labels, "outcome": name}, count)
            for labels, status in scaled
            for name, count in outcomes(status.counts)
        ],
    )
    yield consumed(
        (each.egress.group, each.egress.topic, each.kafka.scaler.settled(trigger_id))
        for trigger_id, each, _ in watched
    )
    ends = {each.egress.topic: each.kafka.ends.get(each.egress.topic, {}) for _, each, _ in watched}
    yield produced((EVERY_PRODUCER, topic, counts) for topic, counts in ends.items())


class HttpServer:
    """Serves until it is closed."""

    def __init__(self, runner: web.AppRunner) -> None:
        self._runner = runner

    @classmethod
    async def start(
        cls,
        operator: Operator,
        leads: Callable[[], bool],
        is_ready: Callable[[], bool],
        ports: Sequence[int] = (PORT, HEALTH_PORT, CHANNEL_PORT),
    ) -> HttpServer:
        async def answer(_: web.Request) -> web.Response:
            # A thousand Triggers are 20,000 samples: written on a thread, others have their turn.
            found = [*metrics(operator), _leader(leads())]
            text = await asyncio.to_thread(prometheus_text, found)
            return web.Response(body=text, headers={"content-type": CONTENT_TYPE})

        async def lives(_: web.Request) -> web.Response:
            return web.Response(text="ok")

        async def ready(_: web.Request) -> web.Response:
            return web.Response(text="ok") if is_ready() else web.Response(status=503)

        app = web.Application()
        app.router.add_get("/metrics", answer)
        app.router.add_get("/healthz", lives)
        app.router.add_get("/readyz", ready)
        # Each connection that is kept has a task, for which kopf would wait when it ends.
        runner = web.AppRunner(app, access_log=None, keepalive_timeout=0)
        await runner.setup()
        for port in ports:
            await web.TCPSite(runner, port=port).start()
        return cls(runner)

    async def close(self) -> None:
        await self._runner.cleanup()


def _leader(leads: bool) -> Metric:
    what = "Whether this replica is the one that acts"
    return Metric("knafka_operator_leader", what, [({}, int(leads))], "gauge")
