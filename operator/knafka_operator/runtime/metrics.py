"""Metrics: serves the operator's metrics to Prometheus, and its health probes to the kubelet.

    :9090/metrics    :8081/metrics    :8080/healthz    :8080/readyz

Nothing is counted here: each request reads the scaler's counts.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from aiohttp import web

from knafka.core.drain import outcomes
from knafka.core.numbering import Numbering
from knafka.core.tokens.caller_tokens import EVERYBODY, NO_SCRAPER, Callers, bearer_of
from knafka.observability import (
    CONTENT_TYPE,
    Metric,
    consumed_metric,
    egress_labels,
    failure_labels,
    produced_metric,
    prometheus_text,
)
from knafka.ports.log import Positions
from knafka_operator.model.family import BROKERS, CHANNELS
from knafka_operator.operator import Operator
from knafka_operator.records.state import Watched
from knafka_operator.scale.decide import ScalingStatus, ShardStatus
from knafka_operator.sensors.kind import Sensors

METRICS_PORT: Final = 9090
"""Port of the metrics."""
HEALTH_PORT: Final = 8080
"""Port of the kubelet's probes."""
CHANNEL_PORT: Final = 8081
"""Port at which eventing-kafka's users scrape the metrics of KafkaChannels (DSP-15)."""
EVERY_PRODUCER: Final = "all"
"""The `producer` label of counts that are derived from a topic's ends, for all its writers
together."""


class _DeliveredTrigger(NamedTuple):
    """A Trigger, Subscription or KafkaSource whose events are delivered."""

    id: str
    """The id by which the scaler knows the Trigger."""
    delivery: Watched
    """How the Trigger is delivered, and by which Kafka."""
    status: ScalingStatus | None
    """None: the scaler doesn't scale the Trigger."""


def operator_metrics(operator: Operator) -> Iterator[Metric]:
    """Yield the operator's metrics: readiness of Brokers, channels and sinks; lag, replicas and
    outcomes of Triggers; dead letters, scaling, Sensors and shards; records consumed and produced,
    by topic."""
    yield from _readiness_metrics(operator)
    triggers = [
        _DeliveredTrigger(
            kind.states.family.trigger_id(identity), delivery, kind.scaling_status(identity)
        )
        for kind in operator.delivering_kinds
        for identity, delivery in kind.watched.items()
    ]
    scaled = [
        (egress_labels(trigger.delivery.egress), trigger.status)
        for trigger in triggers
        if trigger.status is not None
    ]
    yield from _trigger_metrics(scaled)
    yield from _dead_letter_metrics(operator, scaled)
    yield from _scaling_metrics(scaled, triggers)
    if operator.sensors is not None:
        yield from _sensor_metrics(operator.sensors)
    # A dict, not a set, for a stable order.
    kafka_clusters = dict.fromkeys(trigger.delivery.kafka for trigger in triggers)
    yield from _shard_metrics(
        [shard for kafka in kafka_clusters for shard in kafka.scaler.shards()]
    )
    yield consumed_metric(
        (trigger.delivery.egress.group, topic, settled)
        for trigger in triggers
        for topic, settled in _settled_by_topic(trigger).items()
    )
    ends = {
        topic: trigger.delivery.kafka.ends.get(topic, {})
        for trigger in triggers
        for topic in trigger.delivery.egress.topics
    }
    yield produced_metric((EVERY_PRODUCER, topic, counts) for topic, counts in ends.items())


def _settled_by_topic(trigger: _DeliveredTrigger) -> Mapping[str, Positions]:
    """Return how many records a Trigger's group has settled, by topic and partition."""
    egress, scaler = trigger.delivery.egress, trigger.delivery.kafka.scaler
    # The scaler numbers the partitions of all topics of an Egress together, by `Numbering`.
    settled_by_number = scaler.settled(trigger.id)
    return Numbering(egress.topics).by_topic(settled_by_number)


def _readiness_metrics(operator: Operator) -> Iterator[Metric]:
    """Yield the metrics about which Brokers, channels and sinks are Ready; that of channels only if
    there are any, that of sinks only if the operator serves KafkaSinks."""
    for name, kind, family in (
        ("knafka_broker_ready", "Broker", BROKERS),
        ("knafka_channel_ready", "KafkaChannel", CHANNELS),
    ):
        label = kind.removeprefix("Kafka").lower()
        ready = [
            ({"namespace": identity.namespace, label: identity.name}, int(state.ready == "True"))
            for family_operator in operator.all_operators
            if family_operator.family is family
            for identity, state in family_operator.brokers.states_with_topic.items()
        ]
        if ready or family is BROKERS:
            yield Metric(name, f"Whether the {kind} is Ready", ready, "gauge")
    if operator.sinks is not None:
        ready = [
            ({"namespace": identity.namespace, "sink": identity.name}, int(record.is_ready))
            for identity, record in operator.sinks.records.items()
            if record.is_ready is not None
        ]
        yield Metric("knafka_sink_ready", "Whether the KafkaSink is Ready", ready, "gauge")


def _trigger_metrics(
    scaled: Sequence[tuple[Mapping[str, str], ScalingStatus]],
) -> Iterator[Metric]:
    """Yield the metrics about lag, drains and events of scaled Triggers, which are given as their
    labels and status."""
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
        "Events by their outcome, as drains reported",
        [
            ({**labels, "outcome": name}, count)
            for labels, status in scaled
            for name, count in outcomes(status.counts)
        ],
    )


def _dead_letter_metrics(
    operator: Operator, scaled: Sequence[tuple[Mapping[str, str], ScalingStatus]]
) -> Iterator[Metric]:
    """Yield metrics of the dead letters that wait in Triggers' dead-letter topics, and of those
    that drains have reported. `scaled` has labels and status of each scaled Trigger."""
    now = time.time()
    waiting = [
        (egress_labels(delivery.egress), waiting_dead_letters)
        for kind in operator.delivering_kinds
        for identity, delivery in kind.watched.items()
        if (waiting_dead_letters := kind.dead_letters.waiting(identity)) is not None
    ]
    yield Metric(
        "knafka_dead_letters",
        "Dead letters in the Trigger's dead-letter topic",
        [(labels, dead_letters.records) for labels, dead_letters in waiting],
        "gauge",
    )
    yield Metric(
        "knafka_dead_letters_oldest_age_seconds",
        "Seconds since the oldest dead letter in the Trigger's topic; 0: there is none",
        [(labels, dead_letters.oldest_age(now)) for labels, dead_letters in waiting],
        "gauge",
    )
    yield Metric(
        "knafka_dead_letters_retention_seconds",
        "Seconds after which Kafka may delete the Trigger's dead letters; absent: never or unknown",
        [
            (labels, dead_letters.retention)
            for labels, dead_letters in waiting
            if dead_letters.retention is not None
        ],
        "gauge",
    )
    yield Metric(
        "knafka_dead_lettered_total",
        "Events that became dead letters, in a topic or at a sink, by the last attempt's failure",
        [
            ({**labels, **failure_labels(failure)}, count)
            for labels, status in scaled
            for failure, count in sorted(status.counts.dead_letters.items())
        ],
    )


def _sensor_metrics(sensors: Sensors) -> Iterator[Metric]:
    """Yield metrics of the lag, the open drains and the wake-ups of each scaled Sensor."""
    sensor_rows = [
        ({"namespace": identity.namespace, "sensor": identity.name}, status, wakes)
        for identity, (status, wakes) in sensors.scaled_sensors().items()
    ]
    yield Metric(
        "knafka_sensor_lag",
        "Records that the Sensor's group has not committed, of its bus and its trigger topic",
        [(labels, status.lag) for labels, status, _ in sensor_rows if status.lag is not None],
        "gauge",
    )
    yield Metric(
        "knafka_sensor_replicas",
        "Drains held open",
        [(labels, status.replicas) for labels, status, _ in sensor_rows],
        "gauge",
    )
    yield Metric(
        "knafka_sensor_wakes_total",
        "Times that drains were opened where none was held, by the reason",
        [
            ({**labels, "reason": cause}, count)
            for labels, _, wakes in sensor_rows
            for cause, count in sorted(wakes.items())
        ],
    )


def _scaling_metrics(
    scaled: Sequence[tuple[Mapping[str, str], ScalingStatus]],
    triggers: Sequence[_DeliveredTrigger],
) -> Iterator[Metric]:
    """Yield metrics of the scaler's decisions about each of `triggers`. `scaled` has the labels and
    the status of those that are scaled."""
    yield Metric(
        "knafka_trigger_desired_replicas",
        "Drains that the last decision about the Trigger wants, in a shared dispatcher 1 at most",
        [(labels, status.scale.replicas) for labels, status in scaled],
        "gauge",
    )
    counts = [
        (egress_labels(trigger.delivery.egress), scaling_counts)
        for trigger in triggers
        if (scaling_counts := trigger.delivery.kafka.scaler.counts(trigger.id)) is not None
    ]
    yield Metric(
        "knafka_trigger_lag_known",
        "Whether the last request for the lag was answered; if not, the last decision stays",
        [(labels, int(scaling_counts.lag_known)) for labels, scaling_counts in counts],
        "gauge",
    )
    yield Metric(
        "knafka_trigger_decisions_total",
        "Decisions about how many drains a Trigger needs, by their reason",
        [
            ({**labels, "reason": cause}, count)
            for labels, scaling_counts in counts
            for cause, count in sorted(scaling_counts.decisions.items())
        ],
    )
    yield Metric(
        "knafka_trigger_wakes_total",
        "Times that drains were opened where none was held, by the reason",
        [
            ({**labels, "reason": cause}, count)
            for labels, scaling_counts in counts
            for cause, count in sorted(scaling_counts.wakes.items())
        ],
    )


def _shard_metrics(shards: Sequence[ShardStatus]) -> Iterator[Metric]:
    """Yield metrics of `shards`, the shared dispatchers."""
    shard_rows = [(_shard_labels(shard), shard) for shard in shards]
    gauges: Sequence[tuple[str, str, Callable[[ShardStatus], int]]] = (
        (
            "knafka_shard_triggers",
            "Triggers in a shared dispatcher",
            lambda status: status.triggers,
        ),
        (
            "knafka_shard_lag",
            "Records that the Triggers of the shared dispatcher have not committed",
            lambda status: status.lag,
        ),
        (
            "knafka_shard_desired_replicas",
            "Drains that the shared dispatcher needs: 0 or 1",
            lambda status: status.desired_requests,
        ),
        (
            "knafka_shard_replicas",
            "Drains held open for the shared dispatcher",
            lambda status: status.held,
        ),
    )
    for name, help_text, value_of in gauges:
        yield Metric(
            name, help_text, [(labels, value_of(shard)) for labels, shard in shard_rows], "gauge"
        )
    yield Metric(
        "knafka_shard_wakes_total",
        "Times that a drain of the shared dispatcher was opened, by the decision's reason",
        [
            ({**labels, "reason": cause}, count)
            for labels, shard in shard_rows
            for cause, count in sorted(shard.wakes.items())
        ],
    )


def _shard_labels(shard: ShardStatus) -> dict[str, str]:
    """Return the labels of a shard's metrics; a shard of Subscriptions belongs to a channel."""
    owner_label = "channel" if shard.kind == CHANNELS.trigger else "broker"
    return {"namespace": shard.namespace, owner_label: shard.broker, "shard": shard.group}


class MetricsServer:
    """The HTTP server of metrics and health probes."""

    def __init__(self, runner: web.AppRunner) -> None:
        self._runner = runner

    @classmethod
    async def start(
        cls,
        operator: Operator,
        leads: Callable[[], bool],
        is_ready: Callable[[], bool],
        ports: Sequence[int] = (METRICS_PORT, HEALTH_PORT, CHANNEL_PORT),
        scrapers: Callers = EVERYBODY,
    ) -> MetricsServer:
        """Start to listen on all `ports`; each of them serves metrics and probes. `leads` and
        `is_ready` are called for each request; `scrapers` checks the tokens of requests for
        metrics."""

        async def answer_metrics(request: web.Request) -> web.Response:
            """Answer a scrape with the metrics as text; 401 unless its bearer token is a
            scraper's."""
            if not scrapers.accepts(bearer_of(request.raw_headers)):
                challenge = {"www-authenticate": "Bearer"}
                return web.Response(status=401, text=f"{NO_SCRAPER}\n", headers=challenge)
            # A thousand Triggers have 20,000 samples: format them in a thread, so that the event
            # loop goes on.
            metrics = [*operator_metrics(operator), _leader_metric(leads())]
            text = await asyncio.to_thread(prometheus_text, metrics)
            return web.Response(body=text, headers={"content-type": CONTENT_TYPE})

        async def answer_liveness(_: web.Request) -> web.Response:
            """Answer a liveness probe: any answer shows that the event loop runs."""
            return web.Response(text="ok")

        async def answer_readiness(_: web.Request) -> web.Response:
            """Answer a readiness probe: 200 if this replica is ready, else 503."""
            return web.Response(text="ok") if is_ready() else web.Response(status=503)

        app = web.Application()
        app.router.add_get("/metrics", answer_metrics)
        app.router.add_get("/healthz", answer_liveness)
        app.router.add_get("/readyz", answer_readiness)
        # Keep no connection open: each has a task that shutdown would wait for.
        runner = web.AppRunner(app, access_log=None, keepalive_timeout=0)
        await runner.setup()
        for port in ports:
            await web.TCPSite(runner, port=port).start()
        return cls(runner)

    async def close(self) -> None:
        """Stop listening on all ports."""
        await self._runner.cleanup()


def _leader_metric(leads: bool) -> Metric:
    """Return the metric that shows whether this replica leads."""
    help_text = "Whether this replica is the leader, which alone acts"
    return Metric("knafka_operator_leader", help_text, [({}, int(leads))], "gauge")
