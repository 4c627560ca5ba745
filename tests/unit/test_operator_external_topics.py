"""A Broker on a topic that Knafka did not make: only while the installation allows it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.memory.admin import MemoryAdmin
from support.operator_world import OperatorWorld, condition, running_operator

from knafka.core import names
from knafka_operator.kafka.topics import TOPIC_ID
from knafka_operator.model.identity import Key
from knafka_operator.model.resources import (
    EVENTING,
    EXTERNAL_TOPIC,
    ISOLATION,
    SERVING,
    TOPIC_STATUS,
)
from knafka_operator.triggers.started_topics import STARTED_TOPICS

NOT_ALLOWED = "ExternalTopicNotAllowed"

pytestmark = pytest.mark.looptime


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[OperatorWorld]:
    async with running_operator(monkeypatch) as world:
        world.log.create("legacy", 3)
        yield world


async def _ready(world: OperatorWorld, namespace: str, name: str = "default") -> dict[str, Any]:
    status = dict(await world.reconcile_broker(namespace, name))
    assert condition(status, "Ready")["status"] == "True", status["conditions"]
    return status


async def _stopped(world: OperatorWorld, namespace: str, name: str = "default") -> str:
    """What the condition says of a Broker that may not have its topic, with all that follows."""
    status = await world.reconcile_broker(namespace, name)
    ready, topic = condition(status, "Ready"), condition(status, "TopicReady")
    assert (ready["status"], ready["reason"]) == ("False", NOT_ALLOWED)
    assert (topic["status"], topic["reason"]) == ("False", NOT_ALLOWED)
    assert status["address"] is None
    assert "address" not in world.document("Broker", namespace, name)["status"]
    assert f"{name}-kn-receiver" not in world.cluster.services()
    assert not [who for who in world.operator.brokers.states_with_topic if who == (namespace, name)]
    return topic["message"]


async def test_a_broker_cannot_name_another_brokers_topic(world: OperatorWorld) -> None:
    """Issue 12, item 2: it was Ready, and its Trigger sent the other's events outside."""
    world.allow("*")
    world.declare_broker("victim")
    owned = (await _ready(world, "victim"))["annotations"][TOPIC_STATUS]
    world.declare_broker("thief", "mine", {EXTERNAL_TOPIC: owned})
    world.declare_trigger("thief", "copies", "mine")
    assert owned in await _stopped(world, "thief", "mine")
    status = await world.reconcile_trigger("thief", "copies")
    assert condition(status, "BrokerReady")["status"] == "False"
    assert NOT_ALLOWED in condition(status, "BrokerReady")["message"]
    assert world.operator.triggers.watched == {}
    await _ready(world, "victim")


async def test_a_topic_is_kept_for_the_broker_whose_own_it_will_be(world: OperatorWorld) -> None:
    world.allow("*")
    name = names.broker_topic("later", "default")
    world.log.create(name, 1)
    world.declare_broker("early", annotations={EXTERNAL_TOPIC: name})
    await _stopped(world, "early")
    await MemoryAdmin(world.log).delete_topic(name)
    world.declare_broker("later")
    await _ready(world, "later")


async def test_the_annotation_alone_allows_nothing_and_the_condition_names_the_key(
    world: OperatorWorld,
) -> None:
    world.declare_broker("shop", annotations={EXTERNAL_TOPIC: "legacy"})
    message = await _stopped(world, "shop")
    assert "external.topics" in message
    assert "knafka/kafka-broker-config" in message


async def test_a_config_map_of_the_brokers_own_allows_nothing_either(world: OperatorWorld) -> None:
    """Not even for servers that it names itself."""
    given = {"external.topics": "*", "bootstrap.servers": "mine:9092"}
    world.configure("shop", "mine", **given)
    config = {"apiVersion": "v1", "kind": "ConfigMap", "name": "mine"}
    world.declare_broker("shop", annotations={EXTERNAL_TOPIC: "legacy"}, config=config)
    await _stopped(world, "shop")


async def test_an_allowed_topic_is_used_by_two_brokers_and_let_be_when_they_go(
    world: OperatorWorld,
) -> None:
    world.allow("orders.*, legacy")
    for namespace in ("one", "two"):
        world.declare_broker(namespace, annotations={EXTERNAL_TOPIC: "legacy"})
        world.declare_trigger(namespace, "all")
        await _ready(world, namespace)
        status = await world.reconcile_trigger(namespace, "all")
        assert condition(status, "Ready")["status"] == "True"
    await world.operator.delete_broker(world.document("Broker", "one"))
    assert "legacy" in world.log.topics
    await _ready(world, "two")


async def test_a_topic_that_is_allowed_no_more_is_let_go_and_its_triggers_wait(
    world: OperatorWorld,
) -> None:
    world.allow("legacy")
    world.declare_broker("shop", annotations={EXTERNAL_TOPIC: "legacy"})
    world.declare_trigger("shop", "all")
    await _ready(world, "shop")
    group = (await world.reconcile_trigger("shop", "all"))["annotations"]["group.id"]
    assert world.cluster.services() == {"default-kn-receiver", "all-kn-dispatcher"}
    committed = dict(world.log.groups[group].committed)

    world.allow("")
    await _stopped(world, "shop")
    status = await world.reconcile_trigger("shop", "all")
    assert condition(status, "Ready")["reason"] == "BrokerNotReady"
    assert world.operator.triggers.watched == {}
    assert world.cluster.services() == set()
    assert world.log.groups[group].committed == committed

    world.allow("leg*")
    await _ready(world, "shop")
    assert condition(await world.reconcile_trigger("shop", "all"), "Ready")["status"] == "True"
    assert world.log.groups[group].committed == committed


async def test_its_triggers_are_woken_when_it_is_stopped(
    world: OperatorWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by an operator that has never seen it run, which an upgrade is."""
    world.allow("legacy")
    world.declare_broker("shop", annotations={EXTERNAL_TOPIC: "legacy"})
    world.declare_trigger("shop", "all")
    await _ready(world, "shop")
    await world.reconcile_trigger("shop", "all")
    world.allow("")
    await world.restart()
    woken: list[Key] = []
    world.operator.on_trigger(world.document("Trigger", "shop", "all"), gone=False)
    monkeypatch.setattr(world.operator.queue, "enqueue", woken.append)
    await _stopped(world, "shop")
    assert ("Trigger", "shop", "all") in woken
    await world.reconcile_trigger("shop", "all")
    assert world.cluster.services() == set()


@pytest.mark.parametrize(
    ("spec", "topic"),
    [
        ({"delivery": {"retry": "no number"}}, "legacy"),
        ({"unknown": 1}, "legacy"),
        ({}, ["legacy"]),
        ({}, 1),
    ],
    ids=str,
)
async def test_a_broker_that_cannot_be_read_does_not_keep_what_it_may_not_have(
    world: OperatorWorld, spec: dict[str, Any], topic: Any
) -> None:
    world.allow("legacy")
    world.declare_broker("shop", annotations={EXTERNAL_TOPIC: "legacy"})
    await _ready(world, "shop")
    world.declare_broker("shop", annotations={EXTERNAL_TOPIC: "legacy"}, **spec)
    stored = world.cluster.objects[EVENTING, "Broker", "shop", "default"]
    stored["status"]["annotations"][TOPIC_STATUS] = topic
    world.allow("")
    status = await world.reconcile_broker("shop")
    assert condition(status, "TopicReady")["reason"] == NOT_ALLOWED
    assert status["address"] is None
    assert world.cluster.services() == set()


async def test_a_trigger_that_cannot_be_read_does_not_go_on_either(world: OperatorWorld) -> None:
    world.allow("legacy")
    world.declare_broker("shop", annotations={EXTERNAL_TOPIC: "legacy"})
    world.declare_trigger("shop", "all")
    await _ready(world, "shop")
    await world.reconcile_trigger("shop", "all")
    world.declare_trigger("shop", "all", unknown=1)
    world.allow("")
    await _stopped(world, "shop")
    await world.reconcile_trigger("shop", "all")
    assert world.operator.triggers.watched == {}
    assert world.cluster.services() == set()


async def test_the_topic_of_before_is_let_go_though_the_new_one_cannot_be_had(
    world: OperatorWorld,
) -> None:
    """Or one would keep what isn't allowed by taking the annotation away and breaking the rest."""
    world.allow("legacy")
    world.declare_broker("shop", annotations={EXTERNAL_TOPIC: "legacy"})
    await _ready(world, "shop")
    config = {"apiVersion": "v1", "kind": "ConfigMap", "name": "missing"}
    world.declare_broker("shop", config=config)
    world.allow("")
    status = await world.reconcile_broker("shop")
    assert condition(status, "Ready")["reason"] == "ConfigMapNotFound"
    assert status["address"] is None
    assert world.cluster.services() == set()


async def test_without_the_annotation_it_has_a_topic_of_its_own_and_never_the_external_one(
    world: OperatorWorld,
) -> None:
    world.allow("legacy")
    world.declare_broker("shop", annotations={EXTERNAL_TOPIC: "legacy"})
    await _ready(world, "shop")
    world.declare_broker("shop")
    status = await _ready(world, "shop")
    assert status["annotations"][TOPIC_STATUS] == names.broker_topic("shop", "default")


@pytest.mark.parametrize("known", ["", "its id"], ids=["about-to-be-made", "made"])
@pytest.mark.parametrize("stolen", ["legacy", names.broker_topic("victim", "default")])
async def test_a_status_gives_a_broker_no_topic_but_its_own(
    world: OperatorWorld, stolen: str, known: str
) -> None:
    """Who may write the status of its Broker still gets, and deletes, nobody's topic."""
    world.allow("*")
    world.declare_broker("victim")
    await _ready(world, "victim")
    id_ = known and world.log.descriptions[stolen].id
    world.declare_broker("thief", "mine")
    thief = world.cluster.objects[EVENTING, "Broker", "thief", "mine"]
    thief["status"] = {"annotations": {TOPIC_STATUS: stolen, TOPIC_ID: id_}}
    await world.operator.delete_broker(world.document("Broker", "thief", "mine"))
    assert stolen in world.log.topics
    await world.restart()
    status = await _ready(world, "thief", "mine")
    assert status["annotations"][TOPIC_STATUS] == names.broker_topic("thief", "mine")
    victim = (await _ready(world, "victim"))["annotations"]
    assert victim[TOPIC_STATUS] == names.broker_topic("victim", "default")


async def test_its_own_topic_waits_while_it_uses_another(world: OperatorWorld) -> None:
    """Kafka's id says that it is its own still."""
    world.allow("legacy")
    world.declare_broker("shop")
    own = (await _ready(world, "shop"))["annotations"]
    world.declare_broker("shop", annotations={EXTERNAL_TOPIC: "legacy"})
    assert (await _ready(world, "shop"))["annotations"][TOPIC_STATUS] == "legacy"
    world.declare_broker("shop")
    again = (await _ready(world, "shop"))["annotations"]
    assert (again[TOPIC_STATUS], again[TOPIC_ID]) == (own[TOPIC_STATUS], own[TOPIC_ID])


async def test_one_that_was_about_to_make_its_topic_does_not_get_an_external_one_by_that(
    world: OperatorWorld,
) -> None:
    """The empty id says that the Broker makes the topic, and belongs to the name beside it."""
    world.allow("legacy")
    world.declare_broker("shop")
    broker = world.cluster.objects[EVENTING, "Broker", "shop", "default"]
    own = names.broker_topic("shop", "default")
    broker["status"] = {"annotations": {TOPIC_STATUS: own, TOPIC_ID: ""}}
    world.declare_broker("shop", annotations={EXTERNAL_TOPIC: "legacy"})
    await _ready(world, "shop")
    world.declare_broker("shop")
    await world.operator.delete_broker(world.document("Broker", "shop"))
    assert "legacy" in world.log.topics


async def test_a_trigger_of_an_earlier_release_has_begun_once_it_is_delivered(
    world: OperatorWorld,
) -> None:
    """It goes on from the topic's start if Kafka drops its offsets while its Broker is refused."""
    world.allow("*")
    world.declare_broker("shop", annotations={EXTERNAL_TOPIC: "legacy"})
    await _ready(world, "shop")
    world.declare_trigger("shop", "all")
    group = (await world.reconcile_trigger("shop", "all"))["annotations"]["group.id"]
    stored = world.cluster.objects[EVENTING, "Trigger", "shop", "all"]
    del stored["status"]["annotations"][STARTED_TOPICS]
    await world.restart()
    await world.operator.resume()
    await _ready(world, "shop")
    await world.reconcile_trigger("shop", "all")
    world.allow("")
    await _stopped(world, "shop")
    await world.reconcile_trigger("shop", "all")
    world.log.group(group).committed.clear()
    world.log.store("legacy", None, b"any", None)
    world.allow("*")
    await _ready(world, "shop")
    await world.reconcile_trigger("shop", "all")
    assert not world.log.group(group).committed


@pytest.mark.parametrize("order", [("Broker", "Trigger"), ("Trigger", "Broker")], ids="-".join)
async def test_a_group_goes_with_its_trigger_though_the_broker_goes_first_and_nothing_is_delivered(
    world: OperatorWorld, order: tuple[str, str]
) -> None:
    """Only a delivery told the operator that took over in which Kafka the Trigger's group is."""
    world.allow("legacy")
    annotations = {EXTERNAL_TOPIC: "legacy", ISOLATION: "shared"}
    world.declare_broker("shop", annotations=annotations)
    await _ready(world, "shop")
    world.declare_trigger("shop", "all")
    group = (await world.reconcile_trigger("shop", "all"))["annotations"]["group.id"]
    missing = {"ref": {"apiVersion": SERVING, "kind": "Service", "name": "missing"}}
    world.declare_trigger("shop", "all", subscriber=missing)
    await world.reconcile_trigger("shop", "all")
    await world.restart()
    await world.operator.resume()
    await _ready(world, "shop")
    await world.reconcile_trigger("shop", "all")
    assert world.operator.triggers.watched == {}
    assert group in world.log.groups
    for kind in order:
        if kind == "Broker":
            await world.delete_broker("shop")
            assert (group in world.log.groups) == (order[0] == "Broker"), "a new Broker goes on"
        else:
            await world.delete_trigger("shop", "all")
    assert group not in world.log.groups
    assert "legacy" in world.log.topics
