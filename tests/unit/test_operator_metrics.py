"""The operator's metrics: what it counts by Kafka's offsets, under eventing-kafka's names."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest
from support.operator_world import OperatorWorld, running_operator

from knafka.observability import Metric
from knafka_operator.model.identity import Identity
from knafka_operator.runtime.metrics import metrics

CONSUMED = "eventing_kafka_consumed_msg_count"
PRODUCED = "eventing_kafka_produced_msg_count"
PARTITIONS = 4


def family(world: OperatorWorld, name: str) -> Metric:
    (found,) = (each for each in metrics(world.operator) if each.name == name)
    return found


def counts(world: OperatorWorld, name: str) -> Mapping[tuple[str, str], float]:
    """By partition, and consumer or producer."""
    return {
        (labels["partition"], labels.get("consumer", labels.get("producer", ""))): value
        for labels, value in family(world, name).samples
        if isinstance(value, (int, float))
    }


@pytest.mark.conformance("KN-DP-15")
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
