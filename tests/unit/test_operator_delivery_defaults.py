"""How Triggers deliver whose Broker doesn't say: upstream's `config-br-defaults`."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import yaml
from support.operator_world import OperatorWorld, condition, running_operator

from knafka_operator.model.identity import Identity

pytestmark = pytest.mark.looptime

SHOP = "shop"


@pytest.fixture
async def world() -> AsyncIterator[OperatorWorld]:
    async with running_operator() as world:
        yield world


async def test_a_broker_that_declares_no_delivery_has_that_of_its_class_and_namespace(
    world: OperatorWorld,
) -> None:
    """Upstream's `config-br-defaults`; a Trigger's own wins over it, as over a Broker's."""
    sink = {"uri": "http://dead/"}
    defaults = {
        "clusterDefault": {"brokerClass": "kafka", "delivery": {"retry": 3}},
        "namespaceDefaults": {
            SHOP: {"brokerClass": "kafka", "delivery": {"retry": 7, "deadLetterSink": sink}}
        },
    }
    text = yaml.safe_dump(defaults)
    world.configure("knative-eventing", "config-br-defaults", **{"default-br-config": text})
    for namespace, retry in ((SHOP, 7), ("other", 3)):
        world.declare_broker(namespace)
        status = await world.reconcile_broker(namespace)
        assert condition(status, "Ready")["status"] == "True"
        assert status["deadLetterSinkUri"] == ("http://dead/" if namespace == SHOP else None)
        world.declare_trigger(namespace, "orders")
        status = await world.reconcile_trigger(namespace, "orders")
        assert status["deadLetterSinkUri"] == ("http://dead/" if namespace == SHOP else None)
        egress = world.operator.triggers.watched[Identity(namespace, "orders")].egress
        assert egress.delivery.retry == retry
    world.declare_trigger(SHOP, "orders", delivery={"retry": 0})
    assert (await world.reconcile_trigger(SHOP, "orders"))["deadLetterSinkUri"] is None


async def test_defaults_that_cannot_be_read_are_named_in_the_condition(
    world: OperatorWorld,
) -> None:
    text = yaml.safe_dump({"clusterDefault": {"delivery": {"retry": "many"}}})
    world.configure("knative-eventing", "config-br-defaults", **{"default-br-config": text})
    world.declare_broker(SHOP)
    found = condition(await world.reconcile_broker(SHOP), "ConfigParsed")
    assert found["reason"] == "Invalid"
    assert "knative-eventing/config-br-defaults" in found["message"]
    world.declare_broker(SHOP, delivery={"retry": 1})
    assert condition(await world.reconcile_broker(SHOP), "Ready")["status"] == "True"
