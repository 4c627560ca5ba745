"""A Broker `default` whose Triggers may share dispatchers, in memory: names and short ways."""

from __future__ import annotations

from typing import Any

from support.operator_world import OperatorWorld, condition

from knafka.core import names
from knafka.core.contract import SharedEgress
from knafka_operator.kafka import shards
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import ISOLATION

SHOP = "shop"
ORDERS = Identity(SHOP, "orders")
GROUP = names.trigger_group(SHOP, "orders")
CONTRACT = names.contract_topic(SHOP, "default")
FIRST = names.shard_group(SHOP, "default", 0)
SHARED = {ISOLATION: "shared"}
OWN = {ISOLATION: "own"}
RECEIVER, SERVICE, DISPATCHER = "default-kn-receiver", "default-kn-shard-0", "orders-kn-dispatcher"
MIN_SCALE = "autoscaling.eventing.knative.dev/min-scale"


def contract(world: OperatorWorld) -> dict[str, SharedEgress]:
    """What the contract's topic says now."""
    return shards.read_shared_egresses(world.log.topics.get(CONTRACT, [[]])[0])


async def declare(
    world: OperatorWorld, annotations: dict[str, str], name: str = "orders", **spec: Any
) -> Any:
    """Have this Trigger declared, and reconciled; its status."""
    world.declare_trigger(SHOP, name, annotations=annotations, **spec)
    return await world.reconcile_trigger(SHOP, name)


def is_ready(status: Any) -> bool:
    return condition(status, "Ready")["status"] == "True"


def dispatcher(status: Any) -> str | None:
    found: str | None = status["annotations"].get(shards.DISPATCHER_KEY)
    return found
