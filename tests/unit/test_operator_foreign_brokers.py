"""Triggers of Brokers that another implementation has: nothing of ours is left on them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from support.operator_world import OperatorWorld, condition, running_operator

from knafka_operator.model.identity import Key
from knafka_operator.model.resources import BROKER_CLASS, EVENTING

pytestmark = pytest.mark.looptime

SHOP = "shop"


@pytest.fixture
async def world() -> AsyncIterator[OperatorWorld]:
    async with running_operator() as world:
        yield world


async def test_a_trigger_that_came_before_a_foreign_broker_loses_our_status(
    world: OperatorWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kopf takes our finalizer off with the event that this write makes."""
    world.declare_trigger(SHOP, "orders", broker="theirs")
    status = await world.reconcile_trigger(SHOP, "orders")
    assert condition(status, "BrokerReady")["reason"] == "BrokerDoesNotExist"
    world.declare_broker(SHOP, "theirs", {BROKER_CLASS: "MTChannelBasedBroker"})
    woken: list[Key] = []
    monkeypatch.setattr(world.operator.queue, "enqueue", woken.append)
    world.operator.on_broker(world.document("Broker", SHOP, "theirs"), gone=False)
    assert ("Trigger", SHOP, "orders") in woken
    trigger = world.document("Trigger", SHOP, "orders")
    assert not world.operator.may_be_ours(trigger)
    assert await world.operator.triggers.reconcile(trigger) is None
    assert world.document("Trigger", SHOP, "orders")["status"] == {"annotations": {}}


async def test_what_a_foreign_broker_wrote_into_a_triggers_status_stays(
    world: OperatorWorld,
) -> None:
    world.declare_broker(SHOP, "theirs", {BROKER_CLASS: "MTChannelBasedBroker"})
    world.declare_trigger(SHOP, "orders", broker="theirs")
    types = ("Ready", "BrokerReady", "SubscriptionReady", "OIDCIdentityCreated")
    theirs = {
        "conditions": [{"type": each, "status": "True"} for each in types],
        "subscriberUri": "http://there/",
        "annotations": {"group.id": "theirs"},
    }
    world.cluster.objects[EVENTING, "Trigger", SHOP, "orders"]["status"] = theirs
    await world.operator.triggers.reconcile(world.document("Trigger", SHOP, "orders"))
    assert world.document("Trigger", SHOP, "orders")["status"] == theirs
