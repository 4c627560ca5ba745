"""A real Prometheus, with the monitors and rules of operator/deploy/monitoring, between a receiver
process, a dispatcher process and the operator (issue 16, "What it must show", 5).

What rules and dashboard ask for is there, and each alert fires when its condition is made true. How
long a condition must last is left out (`for`): tests/integration/test_alert_rules.py has it.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.channel_world import ChannelWorld, running_channels
from support.functions import FunctionProcess, receiver
from support.gate import only_chaos
from support.http_cases import EVENT
from support.kafka import Kafka, MakeTopic
from support.operator_world import QuietDrains
from support.prometheus import (
    METRIC,
    Programs,
    dashboard,
    objections,
    rule_groups,
    running_prometheus,
)
from support.receiver_requests import ingress
from support.scripted import Arrival, ScriptedServer, raw
from support.trigger_world import Held, TriggerWorld
from support.waiting import until
from support.wire import connected

from knafka.clients.kafka.admin.kafka_admin import KafkaAdmin
from knafka.core.contract import BackoffPolicy, Delivery, Egress
from knafka.core.drain import DrainProgress, DrainRequest
from knafka.core.errors import LogError
from knafka.observability import CONSUMED, PRODUCED
from knafka.settings import STATISTICS_INTERVAL
from knafka_client.sockets import free_port
from knafka_local.kafka.kafka_server import KafkaServer
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import ISOLATION
from knafka_operator.runtime.metrics import MetricsServer

pytestmark = pytest.mark.kafka

SOON = {"autoscaling.eventing.knative.dev/polling-interval": "1"}
BROKER = {"namespace": "ns", "broker": "broker"}
TRIGGER = {**BROKER, "trigger": "trigger"}
MISSING = {"ref": {"apiVersion": "v1", "kind": "Service", "name": "nowhere"}}
OBJECTIONS = {
    f'{name} non-histogram and non-summary metrics should not have "_count" suffix'
    for name in (CONSUMED, PRODUCED)
}
"""promtool's: the names are eventing-kafka's (DSP-16, DSP-22)."""
NAMES = "label/__name__/values"
SHOWN_NOWHERE = {
    "knafka_kafka_queue_bytes",
    "knafka_shard_desired_replicas",
    "knafka_shard_lag",
    "knafka_shard_replicas",
}
"""Metrics that neither a rule nor the dashboard asks for."""
REFUSED = "refused"
"""The id of an event that the subscriber answers 400."""


class Reported(QuietDrains):
    """Drains that report a dead letter whenever they are asked to."""

    def __init__(self) -> None:
        super().__init__()
        self.dead_lettered = asyncio.Semaphore(0)

    async def hold(
        self, trigger_id: str, egress: Egress, request: DrainRequest, stop: asyncio.Event
    ) -> AsyncIterator[DrainProgress]:
        for count in itertools.count(1):
            await self.dead_lettered.acquire()
            yield DrainProgress(dead_lettered=count, dead_letters={"status 400": count})


class Operated:
    """An operator with a Broker, a Trigger, a KafkaChannel and a Subscription, and its metrics."""

    def __init__(self, world: ChannelWorld, drains: Reported) -> None:
        self.world = world
        self.drains = drains
        self.port = free_port()
        self.leads = True

    async def declare(self) -> None:
        world = self.world
        world.declare_broker("shop", config=None)
        await world.reconcile_broker("shop")
        world.declare_trigger("shop", "one", annotations=SOON)
        await world.reconcile_trigger("shop", "one")
        world.declare_channel("shop", "orders")
        await world.reconcile_channel("shop", "orders")
        world.declare_subscription("shop", "each", "orders")
        await world.reconcile_subscription("shop", "each")

    async def declare_shared(self) -> None:
        """Another Broker whose Trigger has a shared dispatcher."""
        self.world.declare_broker("shop", "sharing")
        await self.world.reconcile_broker("shop", "sharing")
        annotations = {ISOLATION: "shared", **SOON}
        self.world.declare_trigger("shop", "shared", "sharing", annotations)
        await self.world.reconcile_trigger("shop", "shared")

    def store(self, events: int, trigger: str = "one") -> None:
        """In its Broker's topic: nobody delivers them."""
        topic = self.world.operator.triggers.watched[Identity("shop", trigger)].egress.topic
        for _ in range(events):
            self.world.log.store(topic, None, b"", [])

    def dead_letter(self, days: float) -> None:
        """One that is so old, as its dispatcher stores and reports it."""
        egress = self.world.operator.triggers.watched[Identity("shop", "one")].egress
        topic, settings = egress.dead_letter_topic, egress.dead_letter_settings
        self.world.log.create(topic, settings.partitions, 1, settings.config)
        at = round((time.time() - days * 86_400) * 1000)
        self.world.log.store(topic, None, b"", [], timestamp=at)
        self.drains.dead_lettered.release()

    @property
    def lag(self) -> int | None:
        status = self.world.operator.triggers.scaling_status(Identity("shop", "one"))
        return status.lag if status else None

    async def declare_other(self, **spec: Any) -> None:
        """Another Broker, or other words for it."""
        self.world.declare_broker("shop", "other", **spec)
        await self.world.reconcile_broker("shop", "other")


@asynccontextmanager
async def operated() -> AsyncIterator[Operated]:
    async with running_channels() as world:
        world.drains = drains = Reported()
        await world.restart()
        running = Operated(world, drains)
        await running.declare()
        server = await MetricsServer.start(
            world.operator, lambda: running.leads, lambda: True, [running.port]
        )
        try:
            yield running
        finally:
            await server.close()
            await world.channels.close()


async def post(process: FunctionProcess, count: int, id_: str = "1") -> list[int]:
    """Status of each."""
    request = EVENT.replace(b"ce-id: 1", b"ce-id: " + id_.encode())
    async with connected(process.port) as wire:
        wire.send(request * count)
        return await wire.statuses(count)


@pytest.fixture
def trigger(kafka: Kafka, topic: MakeTopic, tmp_path: Path) -> TriggerWorld:
    return TriggerWorld(kafka, topic, tmp_path)


def ingress_of(trigger: TriggerWorld, log: Path) -> FunctionProcess:
    return receiver([ingress(trigger.kafka.bootstrap_servers, trigger.topic)], log)


async def test_prometheus_scrapes_all_that_rules_and_dashboard_ask_for(
    prometheus_programs: Programs,
    trigger: TriggerWorld,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Issue 16; DSP-15 to DSP-22. A Broker's namespace is its own and not that of the pod."""

    monkeypatch.setenv(STATISTICS_INTERVAL, "1")

    async def script(arrival: Arrival) -> bytes:
        return raw(400 if arrival.id == REFUSED else 200)

    async with (
        operated() as operator,
        ScriptedServer(script) as subscriber,
        ingress_of(trigger, tmp_path / "receiver.log") as process,
        trigger.dispatcher(subscriber.url) as dispatcher,
    ):
        await asyncio.gather(process.ready(), dispatcher.ready())
        held = Held(dispatcher)
        ports = {
            "knafka-operator": [operator.port],
            "knafka-functions": [process.port, dispatcher.port],
        }
        async with running_prometheus(prometheus_programs, tmp_path / "own", ports) as prometheus:
            assert await post(process, 5) == [202] * 5
            assert await post(process, 1, REFUSED) == [202]
            await until(lambda: len(subscriber.answered) == 6)
            operator.store(3)
            operator.dead_letter(days=0)
            await operator.declare_shared()
            operator.store(4, "shared")

            ours = '{namespace="ns",broker="broker"'
            await prometheus.until(f'knafka_receiver_events_total{ours},code="202"}}', 6)
            await prometheus.until(f"http_server_request_duration_seconds_count{ours}}}", 6)
            ours += ',trigger="trigger"'
            for name, value in {
                f'knafka_dispatcher_events_total{ours},outcome="delivered"}}': 5,
                f'knafka_dispatcher_events_total{ours},outcome="dead_lettered"}}': 1,
                f'knafka_delivery_failures_total{ours},reason="status",code="400"}}': 1,
                f"kn_eventing_dispatch_latency_seconds_count{ours}}}": 6,
                f'kn_eventing_dispatch_latency_seconds_bucket{ours},le="+Inf"}}': 6,
                f"kn_eventing_process_latency_seconds_count{ours}}}": 5,
                'knafka_trigger_lag{namespace="shop",broker="default",trigger="one"}': 3,
                'sum(eventing_kafka_consumed_msg_count{job=~".*functions"})': 6,
                'knafka_channel_ready{namespace="shop",channel="orders"}': 1,
                'sum(eventing_kafka_produced_msg_count{producer="all"})': 7,
                'knafka_trigger_desired_replicas{namespace="shop",trigger="one"}': 1,
                'knafka_trigger_lag_known{namespace="shop",trigger="one"}': 1,
                'knafka_trigger_wakes_total{trigger="one",reason="lag"}': 1,
                'knafka_shard_triggers{namespace="shop",broker="sharing"}': 1,
                'sum(knafka_shard_wakes_total{broker="sharing"})': 1,
                'knafka_dead_letters{namespace="shop",trigger="one"}': 1,
                'knafka_dead_lettered_total{trigger="one",reason="status",code="400"}': 1,
                "count(count by (client) (knafka_kafka_throttle_seconds))": 2,
                'count(up{namespace="of-the-pod"} == 1)': 3,
            }.items():
                await prometheus.until(name, value)

            # What a counter begins with is no increase of it.

            targets = await prometheus.targets()
            assert [(each["health"], each["lastError"]) for each in targets] == [("up", "")] * 3

            shown = [each.replace("$__rate_interval", "30s") for each in dashboard()]
            asked = {name for each in rule_groups() for name in METRIC.findall(str(each))}
            asked |= {name for each in shown for name in METRIC.findall(each)}
            assert (asked | SHOWN_NOWHERE) - set(await prometheus.ask(NAMES)) == set()
            # `rate` wants two samples, and some come into being with the first failure.
            operator.dead_letter(days=0)
            for expression in shown:
                try:
                    async with asyncio.timeout(20):
                        while not await prometheus.query(expression):  # noqa: ASYNC110
                            await asyncio.sleep(0.1)
                except TimeoutError:
                    pytest.fail(f"nothing is shown by {expression}")

            found = [
                await asyncio.to_thread(objections, prometheus_programs, each["scrapeUrl"])
                for each in targets
            ]
            assert set[str]().union(*found) == OBJECTIONS
        await held.hang_up()


async def test_alerts_fire_when_a_subscriber_a_broker_and_the_operator_fail(
    prometheus_programs: Programs, trigger: TriggerWorld, tmp_path: Path
) -> None:
    """Issue 16: each by its own condition, with the labels of what it is about, and no other."""
    status = 200

    async def script(arrival: Arrival) -> bytes:
        return raw(status)

    delivery = Delivery(retry=1000, backoff_delay=0.2, backoff_policy=BackoffPolicy.LINEAR)
    async with (
        operated() as operator,
        ScriptedServer(script) as subscriber,
        trigger.dispatcher(subscriber.url, delivery=delivery) as dispatcher,
    ):
        await dispatcher.ready()
        held = Held(dispatcher)
        operator.store(1)
        await until(lambda: operator.lag == 1)
        ports = {"knafka-operator": [operator.port], "knafka-functions": [dispatcher.port]}
        async with running_prometheus(prometheus_programs, tmp_path / "own", ports) as prometheus:
            trigger.send("a")
            await prometheus.until("kn_eventing_dispatch_latency_seconds_count", 1)
            await prometheus.until("knafka_trigger_lag{trigger='one'}", 1)
            await prometheus.evaluated()
            assert await prometheus.firing() == {}

            status = 503
            trigger.send(*"bcdefghijklmnopq")
            away = {"KnafkaDeliveryFails": TRIGGER, "KnafkaSubscriberAway": TRIGGER}
            await prometheus.until_firing(away)
            status = 200
            trigger.send(*(f"r{number}" for number in range(500)))  # so that few of all have failed
            await prometheus.until_firing({})

            await operator.declare_other(delivery={"deadLetterSink": MISSING})
            other = {"namespace": "shop", "broker": "other"}
            await prometheus.until_firing({"KnafkaBrokerNotReady": other})
            await operator.declare_other()
            await prometheus.until_firing({})

            operator.leads = False
            await prometheus.until_firing({"KnafkaOperatorDown": {}})
            operator.leads = True
            await prometheus.until_firing({})

            operator.store(5)
            one = {"namespace": "shop", "broker": "default", "trigger": "one"}
            grows = {"KnafkaLagGrows": one}
            await prometheus.until_firing(grows)
            operator.dead_letter(days=16)
            kept = ("KnafkaDeadLetters", "KnafkaDeadLettersWait", "KnafkaDeadLettersExpire")
            await prometheus.until_firing({**grows, **dict.fromkeys(kept, one)})

            # Of the Trigger and of the Subscription: one Kafka is asked for both.
            operator.world.kafka_failures["lags"] = LogError("away")
            unknown = 'count(ALERTS{alertname="KnafkaLagUnknown",alertstate="firing"})'
            await prometheus.until(unknown, 2, within=30)
        await held.hang_up()


@only_chaos
async def test_alerts_fire_while_kafka_is_away(
    prometheus_programs: Programs, own_kafka: KafkaServer, tmp_path: Path
) -> None:
    """Issue 16: the receiver knows without an event; those it refuses are another alert."""
    admin = KafkaAdmin({"bootstrap.servers": own_kafka.bootstrap_servers})
    await admin.ensure_topic("events", 1, 1, {})
    await admin.close()
    declared = ingress(own_kafka.bootstrap_servers, "events")
    async with operated() as operator, receiver([declared], tmp_path / "log") as process:
        await process.ready()
        ports = {"knafka-operator": [operator.port], "knafka-functions": [process.port]}
        async with running_prometheus(prometheus_programs, tmp_path / "own", ports) as prometheus:
            assert await post(process, 1) == [202]
            await prometheus.until('knafka_receiver_events_total{code="202"}', 1)
            await prometheus.evaluated()
            assert await prometheus.firing() == {}

            await own_kafka.stop()
            away = {"KnafkaKafkaAway": BROKER}
            await prometheus.until_firing(away)
            # Of a counter that comes into being with its first sample `rate` sees the next ones.
            assert await post(process, 1) == [503]
            await prometheus.until('knafka_receiver_events_total{code="503"}', 1)
            assert await post(process, 5) == [503] * 5
            refuses = {"KnafkaReceiverRefuses": BROKER}
            await prometheus.until_firing({**away, **refuses})

            await own_kafka.start()
            await prometheus.until_firing(refuses)
            assert await post(process, 1) == [202]
