"""The operator's metrics: what it counts by Kafka's offsets, under eventing-kafka's names."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest
from support.operator_world import OperatorWorld, running_operator
from support.sharing import SHARED, SHOP, declare

from knafka.observability import Metric
from knafka_operator.model.identity import Identity
from knafka_operator.runtime.metrics import operator_metrics

CONSUMED = "eventing_kafka_consumed_msg_count"
PRODUCED = "eventing_kafka_produced_msg_count"
PARTITIONS = 4


def family(world: OperatorWorld, name: str) -> Metric:
    (found,) = (each for each in operator_metrics(world.operator) if each.name == name)
    return found


def counts(world: OperatorWorld, name: str) -> Mapping[tuple[str, str], float]:
    """By partition, and consumer or producer."""
    return {
        (labels["partition"], labels.get("consumer", labels.get("producer", ""))): value
        for labels, value in family(world, name).samples
        if isinstance(value, (int, float))
    }


@pytest.mark.conformance("KN-DP-15", "DSP-16", "DSP-17", "DSP-18", "DSP-20", "DSP-22")
@pytest.mark.looptime
async def test_each_consumer_has_a_series_for_each_partition_also_at_zero() -> None:
    """DSP-16 to DSP-18, DSP-20, DSP-22: two consumers on four partitions are eight series; one
    event more that is delivered is one more on one of the partitions."""
    async with running_operator() as world:
        world.declare_broker("shop", config=None)
        await world.reconcile_broker("shop")
        for name in ("one", "two"):
            world.declare_trigger("shop", name)
            await world.reconcile_trigger("shop", name)
        egress = world.operator.triggers.watched[Identity("shop", "one")].egress
        topic, log = egress.topic, world.log
        del log.topics[topic][PARTITIONS:]
        groups = [
            world.operator.triggers.watched[Identity("shop", name)].egress.group
            for name in ("one", "two")
        ]
        await asyncio.sleep(120)
        zeros = {(str(number), group): 0 for number in range(PARTITIONS) for group in groups}
        assert counts(world, CONSUMED) == zeros

        record = log.store(topic, b"key", b"", [])
        where = str(record.partition())
        admin = world.operator.triggers.watched[Identity("shop", "one")].kafka.topics
        log.groups.pop(groups[0])
        await admin.ensure_committed(groups[0], topic, "latest")
        await asyncio.sleep(120)
        assert counts(world, CONSUMED) == {**zeros, (where, groups[0]): 1}
        assert counts(world, PRODUCED) == {
            (str(number), "all"): int(str(number) == where) for number in range(PARTITIONS)
        }

        await world.restart()
        await world.reconcile_broker("shop")
        for name in ("one", "two"):
            await world.reconcile_trigger("shop", name)
        await asyncio.sleep(120)
        survived = counts(world, CONSUMED)
        assert survived == {**zeros, (where, groups[0]): 1}, "another operator finds the same"

        found = family(world, CONSUMED)
        assert (found.help, found.kind) == ("Consumed Message Count", "gauge")
        for labels, _ in found.samples:
            assert list(labels) == ["consumer", "partition", "topic"]
            assert labels["topic"] == topic
        found = family(world, PRODUCED)
        assert (found.help, found.kind) == ("Produced Message Count", "gauge")
        for labels, _ in found.samples:
            assert list(labels) == ["partition", "producer", "topic"]


def values(world: OperatorWorld, name: str) -> Mapping[tuple[str, ...], float]:
    """By the values of the labels behind the Trigger's or the Broker's."""
    return {
        tuple(value for label, value in labels.items() if label not in ("namespace", "broker")): n
        for labels, n in family(world, name).samples
        if isinstance(n, (int, float))
    }


@pytest.mark.looptime
async def test_what_the_scaler_decides_is_counted_by_what_it_went_by() -> None:
    """Issue 16: the scaler's decisions. Causes are there once there were any."""
    async with running_operator() as world:
        world.declare_broker("shop", config=None)
        await world.reconcile_broker("shop")
        world.declare_trigger("shop", "one")
        await world.reconcile_trigger("shop", "one")
        await asyncio.sleep(60)
        assert values(world, "knafka_trigger_desired_replicas") == {("one",): 0}
        assert values(world, "knafka_trigger_lag_known") == {("one",): 1}
        assert values(world, "knafka_trigger_wakes_total") == {}
        decisions = values(world, "knafka_trigger_decisions_total")
        assert decisions.keys() == {("one", "no_lag")}

        egress = world.operator.triggers.watched[Identity("shop", "one")].egress
        for _ in range(150):
            world.log.store(egress.topic, None, b"", [])
        await asyncio.sleep(60)
        assert values(world, "knafka_trigger_lag") == {("one",): 150}
        assert values(world, "knafka_trigger_desired_replicas") == {("one",): 2}
        assert values(world, "knafka_trigger_wakes_total") == {("one", "lag"): 1}
        now = values(world, "knafka_trigger_decisions_total")
        assert now.keys() == {("one", "no_lag"), ("one", "lag")}
        assert now["one", "no_lag"] >= decisions["one", "no_lag"]


@pytest.mark.looptime
async def test_a_shared_dispatcher_has_metrics_of_its_own() -> None:
    async with running_operator() as world:
        world.declare_broker(SHOP)
        await world.reconcile_broker(SHOP)
        await declare(world, SHARED)
        await asyncio.sleep(60)
        (shard,) = values(world, "knafka_shard_triggers")
        assert values(world, "knafka_shard_triggers") == {shard: 1}
        assert values(world, "knafka_shard_desired_replicas") == {shard: 0}
        assert values(world, "knafka_shard_wakes_total") == {}

        (watched,) = world.operator.triggers.watched.values()
        world.log.store(watched.egress.topic, None, b"", [])
        await asyncio.sleep(60)
        assert values(world, "knafka_shard_lag") == {shard: 1}
        assert values(world, "knafka_shard_desired_replicas") == {shard: 1}
        assert values(world, "knafka_shard_replicas") == {shard: 1}
        assert values(world, "knafka_shard_wakes_total") == {(*shard, "lag"): 1}
        assert values(world, "knafka_trigger_wakes_total") == {}
