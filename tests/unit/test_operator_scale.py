"""What one Trigger costs the operator doesn't depend on how many others there are.

Times aren't measured here but what is looked at; `tools/bench/idle_triggers.py` measures.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import pytest
from support.lookups import only_look_ups
from support.operator_world import OperatorWorld, running_operator

from knafka.core import names
from knafka.observability import prometheus_text
from knafka_operator.model.identity import Identity, Key
from knafka_operator.model.resources import SERVING
from knafka_operator.runtime.metrics import operator_metrics
from knafka_operator.scale import scaled_groups
from knafka_operator.scale.decide import ScalingStatus
from knafka_operator.triggers import publishing

BROKERS = 10
TRIGGERS = 100
RECEIVER = "-kn-receiver"

# In real time a slow machine has the operator's own rounds come between a test's steps.
pytestmark = pytest.mark.looptime


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[OperatorWorld]:
    """100 Triggers on 10 Brokers."""
    async with running_operator(monkeypatch) as world:
        for number in range(BROKERS):
            world.declare_broker("shop", f"b{number}", config=None)
            await world.reconcile_broker("shop", f"b{number}")
        for number in range(TRIGGERS):
            world.declare_trigger("shop", f"t{number}", f"b{number % BROKERS}")
            await world.reconcile_trigger("shop", f"t{number}")
        yield world


class Statuses:
    """Counts the Triggers' statuses that are built."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.built = 0
        monkeypatch.setattr(scaled_groups, "ScalingStatus", self._build)

    def _build(self, **fields: Any) -> ScalingStatus:
        self.built += 1
        return ScalingStatus(**fields)


@pytest.fixture
def statuses(world: OperatorWorld, monkeypatch: pytest.MonkeyPatch) -> Statuses:
    return Statuses(monkeypatch)


async def test_one_triggers_status_is_built_alone(world: OperatorWorld, statuses: Statuses) -> None:
    assert world.operator.triggers.scaling_status(Identity("shop", "t1")) is not None
    assert statuses.built == 1


async def test_a_reconciliation_builds_one_status(world: OperatorWorld, statuses: Statuses) -> None:
    await world.reconcile_trigger("shop", "t1")
    assert statuses.built == 1


async def test_a_scrape_of_metrics_builds_each_status_once(
    world: OperatorWorld, statuses: Statuses
) -> None:
    prometheus_text(operator_metrics(world.operator))
    assert statuses.built == TRIGGERS


async def test_telling_what_the_scaler_knows_builds_each_status_once(
    world: OperatorWorld, statuses: Statuses
) -> None:
    await world.operator.publishing.publish_lags()
    assert statuses.built == TRIGGERS


async def test_others_get_their_turn_while_statuses_are_told(
    world: OperatorWorld, statuses: Statuses
) -> None:
    built_by_turn = [0]

    async def others() -> None:
        while True:
            built_by_turn.append(statuses.built)
            await asyncio.sleep(0)

    task = asyncio.create_task(others())
    await world.operator.publishing.publish_lags()
    task.cancel()
    built_by_turn.append(statuses.built)
    stretches = [after - before for before, after in pairwise(built_by_turn)]
    assert max(stretches) <= publishing.TRIGGERS_AT_ONCE


async def test_a_trigger_comes_and_goes_without_a_look_at_the_others(world: OperatorWorld) -> None:
    operator = world.operator
    for part in (operator, operator.states):
        only_look_ups(part)
    world.declare_trigger("shop", "new", "b1")
    await world.reconcile_trigger("shop", "new")
    assert operator.triggers.scaling_status(Identity("shop", "new")) is not None
    await operator.triggers.delete(world.document("Trigger", "shop", "new"))
    operator.on_trigger(world.document("Trigger", "shop", "new"), gone=True)
    assert operator.triggers.scaling_status(Identity("shop", "new")) is None


async def test_a_broker_changes_and_goes_without_a_look_at_the_others(world: OperatorWorld) -> None:
    operator = world.operator
    for part in (operator, operator.states):
        only_look_ups(part)
    labels = {"knafka.dev/broker": "b1"}
    operator.on_receiver({"metadata": {"namespace": "shop", "name": "pod", "labels": labels}})
    await world.reconcile_broker("shop", "b1")
    await operator.delete_broker(world.document("Broker", "shop", "b1"))
    operator.on_broker(world.document("Broker", "shop", "b1"), gone=True)
    assert operator.states.brokers.get(Identity("shop", "b1")) is None


async def test_only_the_triggers_of_a_broker_are_woken_with_it(
    world: OperatorWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator = world.operator
    woken: list[Key] = []
    moved = {**world.document("Trigger", "shop", "t1"), "spec": {"broker": "b2"}}
    operator.on_trigger(moved, gone=False)
    operator.on_trigger(world.document("Trigger", "shop", "t11"), gone=True)
    monkeypatch.setattr(operator.queue, "enqueue", woken.append)
    operator.on_broker(world.document("Broker", "shop", "b1"), gone=True)
    of_b1 = {f"t{number}" for number in range(1, TRIGGERS, BROKERS)}
    triggers = [("Trigger", "shop", each) for each in of_b1 - {"t1", "t11"}]
    assert sorted(woken) == sorted([("Broker", "shop", "b1"), *triggers])
    woken.clear()
    operator.on_broker(world.document("Broker", "shop", "b2"), gone=True)
    assert ("Trigger", "shop", "t1") in woken


@pytest.mark.parametrize("broker", ["b1", "named.with-dots"])
async def test_a_receivers_new_pod_wakes_the_triggers_of_its_own_broker(
    world: OperatorWorld, monkeypatch: pytest.MonkeyPatch, broker: str
) -> None:
    operator = world.operator
    world.declare_broker("shop", broker)
    await world.reconcile_broker("shop", broker)
    receiver = await world.cluster.get(SERVING, "Service", "shop", names.child(broker, RECEIVER))
    assert receiver is not None
    labels = receiver["spec"]["template"]["metadata"]["labels"]
    expected: list[str] = []
    scaler = operator.brokers.states_with_topic[Identity("shop", broker)].kafka.scaler
    monkeypatch.setattr(scaler, "prewarm", lambda topic, _: expected.append(topic))
    for namespace in ("shop", "other"):
        pod = {"metadata": {"namespace": namespace, "name": "pod", "labels": labels}}
        operator.on_receiver(pod)
    assert expected == [operator.brokers.states_with_topic[Identity("shop", broker)].topic.name]


async def test_a_topic_is_looked_at_while_any_trigger_reads_it(world: OperatorWorld) -> None:
    operator = world.operator
    side = operator.brokers.states_with_topic[Identity("shop", "b1")].kafka
    topic = operator.brokers.states_with_topic[Identity("shop", "b1")].topic.name
    of_b1 = [f"t{number}" for number in range(1, TRIGGERS, BROKERS)]
    for each in of_b1:
        assert topic in side.watched
        await operator.triggers.stop_delivery(Identity("shop", each))
    assert topic not in side.watched


async def test_nothing_is_kept_of_what_is_gone(world: OperatorWorld) -> None:
    operator = world.operator
    reference = {"apiVersion": "v1", "kind": "Service", "name": "there"}
    world.cluster.put({**reference, "metadata": {"namespace": "shop", "name": "there"}})
    for number in range(TRIGGERS):
        name = f"t{number}"
        world.declare_trigger("shop", name, f"b{number % BROKERS}", subscriber={"ref": reference})
        await world.reconcile_trigger("shop", name)
    assert len(operator.states.triggers_by_reference[Identity("shop", "there")]) == TRIGGERS
    for number in range(TRIGGERS):
        document = world.document("Trigger", "shop", f"t{number}")
        await operator.triggers.delete(document)
        operator.on_trigger(document, gone=True)
    for number in range(BROKERS):
        document = world.document("Broker", "shop", f"b{number}")
        await operator.delete_broker(document)
        operator.on_broker(document, gone=True)
    kept = {name: kept for name, kept in vars(operator.states).items() if kept}
    assert kept.keys() == {"family", "naming"}
