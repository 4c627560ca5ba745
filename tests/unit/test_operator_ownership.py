"""Whose is what: credentials, names that collide, and what goes when its object goes."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.operator_world import INSTALLATION, OperatorWorld, condition, running_operator

from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import (
    CORE,
    PAUSED_ANNOTATION,
    SERVING,
)

pytestmark = pytest.mark.looptime

SHOP = "shop"
RECEIVER = "default-kn-receiver"
MISSING = {"ref": {"apiVersion": SERVING, "kind": "Service", "name": "missing"}}
SLOW = {"ref": {"apiVersion": SERVING, "kind": "Service", "name": "slow"}}
MINE = {"apiVersion": CORE, "kind": "ConfigMap", "name": "mine"}


@pytest.fixture
async def world() -> AsyncIterator[OperatorWorld]:
    async with running_operator() as world:
        for name in ("slow", "odd"):
            world.declare_service(SHOP, name, {})
        yield world


# Credentials.

SASL = {
    "protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "user": "u",
    "password": "the installation's",
}


@pytest.mark.parametrize("project", [True, False])
async def test_the_installations_credentials_never_go_to_other_servers(
    world: OperatorWorld, project: bool
) -> None:
    """Else a user who may write a ConfigMap gets them by naming servers of their own."""
    world.declare_secret("knafka", "kafka", **SASL)
    given = {"bootstrap.servers": "kafka:9092", "auth.secret.ref.name": "kafka"}
    world.configure(*INSTALLATION, **given)
    await world.restart(project_secrets=project)
    world.configure(SHOP, "mine", **{"bootstrap.servers": "thief:9092"})
    world.declare_broker(SHOP, config=MINE)
    await world.reconcile_broker(SHOP)
    to_thief = [each for each in world.connected if each["bootstrap.servers"] == "thief:9092"]
    assert to_thief
    known = {"bootstrap.servers", "receive.message.max.bytes"}
    assert all(each.keys() == known for each in to_thief)
    template = world.cluster.objects[SERVING, "Service", SHOP, RECEIVER]["spec"]["template"]
    assert "volumes" not in template["spec"]
    assert not [
        each for each in world.cluster.of("Secret") if each["metadata"]["namespace"] == SHOP
    ]


async def test_the_installations_credentials_are_copied_only_where_that_is_allowed(
    world: OperatorWorld,
) -> None:
    world.declare_secret("knafka", "kafka", **SASL)
    given = {"bootstrap.servers": "kafka:9092", "auth.secret.ref.name": "kafka"}
    world.configure(*INSTALLATION, **given)
    await world.restart(project_secrets=True)
    world.declare_broker(SHOP)
    assert condition(await world.reconcile_broker(SHOP), "Ready")["status"] == "True"
    copied = world.cluster.objects[CORE, "Secret", SHOP, "default-kn-kafka"]
    assert base64.b64decode(copied["data"]["password"]).decode() == SASL["password"]
    await world.restart(project_secrets=False)
    found = condition(await world.reconcile_broker(SHOP), "ConfigParsed")
    assert found["reason"] == "SecretNotProjected"


# Names that collide: `a-b` with `c`, and `a` with `b-c`.


async def test_two_brokers_whose_names_join_to_the_same_have_topics_of_their_own(
    world: OperatorWorld,
) -> None:
    topics = set()
    for namespace, name in (("a-b", "c"), ("a", "b-c")):
        world.declare_broker(namespace, name)
        status = await world.reconcile_broker(namespace, name)
        assert condition(status, "Ready")["status"] == "True"
        topics.add(status["annotations"]["default.topic"])
    assert len(topics) == 2
    await world.restart()
    for namespace, name in (("a", "b-c"), ("a-b", "c")):  # in the other order
        world.operator.on_broker(world.document("Broker", namespace, name), gone=False)
    again = {
        (await world.reconcile_broker(*each))["annotations"]["default.topic"]
        for each in (("a", "b-c"), ("a-b", "c"))
    }
    assert again == topics
    kept = (await world.reconcile_broker("a-b", "c"))["annotations"]["default.topic"]
    await world.delete_broker("a", "b-c")
    assert topics & set(world.log.topics) == {kept}


async def test_two_triggers_whose_names_join_to_the_same_have_groups_of_their_own(
    world: OperatorWorld,
) -> None:
    groups = set()
    for namespace, name in (("a-b", "c"), ("a", "b-c")):
        world.declare_broker(namespace)
        await world.reconcile_broker(namespace)
        world.declare_trigger(namespace, name)
        status = await world.reconcile_trigger(namespace, name)
        groups.add(status["annotations"]["group.id"])
    assert len(groups) == 2
    await world.operator.triggers.delete(world.document("Trigger", "a-b", "c"))
    assert len(groups & set(world.log.groups)) == 1


async def test_two_paused_triggers_reconciled_together_have_groups_of_their_own(
    world: OperatorWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each claimed its group only after its functions were deleted, which takes requests."""
    for namespace, name in (("a-b", "c"), ("a", "b-c")):
        world.declare_broker(namespace)
        await world.reconcile_broker(namespace)
        world.declare_trigger(namespace, name, annotations={PAUSED_ANNOTATION: "true"})
    get = world.cluster.get

    async def slow_get(*name: str) -> Any:
        await asyncio.sleep(1)
        return await get(*name)

    monkeypatch.setattr(world.cluster, "get", slow_get)
    statuses = await asyncio.gather(
        world.reconcile_trigger("a-b", "c"), world.reconcile_trigger("a", "b-c")
    )
    assert len({status["annotations"]["group.id"] for status in statuses}) == 2


# Deletion.


@pytest.mark.parametrize("order", [("Broker", "Trigger"), ("Trigger", "Broker")], ids="-".join)
@pytest.mark.parametrize("restart", [False, True])
async def test_nothing_stays_in_kafka_or_in_the_operator_in_whatever_order_all_is_deleted(
    world: OperatorWorld, order: tuple[str, str], restart: bool
) -> None:
    world.declare_broker(SHOP)
    await world.reconcile_broker(SHOP)
    world.declare_trigger(SHOP, "orders")
    await world.reconcile_trigger(SHOP, "orders")
    if restart:
        await world.restart()
        await world.operator.resume()
        await world.reconcile_broker(SHOP)
        await world.reconcile_trigger(SHOP, "orders")
    for kind in order:
        if kind == "Broker":
            await world.delete_broker(SHOP)
        else:
            await world.delete_trigger(SHOP, "orders")
    assert world.entries() == {}
    assert [each for each in world.log.topics if "Brokers" not in each] == []
    assert world.log.groups == {}
    assert world.cluster.services() == {"slow", "odd"}
    kept = {name: kept for name, kept in vars(world.operator.states).items() if kept}
    assert kept.keys() == {"family", "naming"}


async def test_a_trigger_that_goes_while_it_is_delivered_to_is_forgotten_when_its_drains_are_over(
    world: OperatorWorld,
) -> None:
    """Its finalizer was taken off by hand: it is gone before it is deleted here."""
    world.declare_broker(SHOP)
    await world.reconcile_broker(SHOP)
    world.declare_trigger(SHOP, "orders")
    await world.reconcile_trigger(SHOP, "orders")
    world.operator.on_trigger(world.document("Trigger", SHOP, "orders"), gone=True)
    states = world.operator.states
    assert Identity(SHOP, "orders") in states.triggers
    await world.operator.triggers.stop_delivery(Identity(SHOP, "orders"))
    assert not states.triggers
    assert not states.groups


async def test_a_trigger_that_is_edited_leads_only_from_what_it_refers_to_now(
    world: OperatorWorld,
) -> None:
    """References only grew."""
    world.declare_broker(SHOP)
    await world.reconcile_broker(SHOP)
    for subscriber in (MISSING, SLOW):
        world.declare_trigger(SHOP, "orders", subscriber=subscriber)
        await world.reconcile_trigger(SHOP, "orders")
    assert set(world.operator.states.triggers_by_reference) == {Identity(SHOP, "slow")}
