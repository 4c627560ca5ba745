"""Metrics: what the operator knows, for Prometheus, at `/metrics` on a port of its own.

Refused here: keeping anything; the scaler's counts are asked when somebody asks us.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from aiohttp import web

from knafka.observability import Metric, prometheus_text
from knafka_operator.operator import Operator

PORT: Final = 9090

COUNTED: Final = ("read", "filtered", "delivered", "retried", "buried", "replied")


def metrics(operator: Operator) -> Iterator[Metric]:
    """Brokers by readiness; lag, replicas and outcomes of each Trigger."""
    brokers = operator.brokers.found.items()
    yield Metric(
        "knafka_broker_ready",
        "Whether the Broker is Ready",
        [
            ({"namespace": who[0], "broker": who[1]}, int(each.ready == "True"))
            for who, each in brokers
        ],
        "gauge",
    )
    scaled = [
        ({"namespace": who[0], "broker": watched.egress.broker, "trigger": who[1]}, status)
        for who, watched in operator.triggers.watched.items()
        if (status := operator.triggers.status(who)) is not None
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
        "Events by what became of them, as drains told",
        [
            ({**labels, "outcome": name}, getattr(status.counts, name))
            for labels, status in scaled
            for name in COUNTED
        ],
    )


class MetricsServer:
    """Serves until it is closed."""

    def __init__(self, runner: web.AppRunner) -> None:
        self._runner = runner

    @classmethod
    async def start(cls, operator: Operator, port: int = PORT) -> MetricsServer:
        async def answer(_: web.Request) -> web.Response:
            return web.Response(
                body=prometheus_text(metrics(operator)),
                headers={"content-type": "text/plain; version=0.0.4; charset=utf-8"},
            )

        app = web.Application()
        app.router.add_get("/metrics", answer)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, port=port).start()
        return cls(runner)

    async def close(self) -> None:
        await self._runner.cleanup()
