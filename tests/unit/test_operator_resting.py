"""What of Kafka is asked for seldom, and what ends that: nothing is missed by it (issue 14, 4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from support.controlled import controller_of
from support.operator_world import OperatorWorld, running_operator

from knafka_operator.functions import services
from knafka_operator.kafka.clusters import KafkaCluster
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import EVENTING, EXTERNAL_TOPIC
from knafka_operator.runtime.controller import ClusterController
from knafka_operator.runtime.selections import PODS

pytestmark = pytest.mark.looptime


def _pod(broker: str, uid: str, role: str = services.RECEIVER_ROLE) -> Mapping[str, Any]:
    labels = {services.BROKER_LABEL: broker, services.ROLE_LABEL: role}
    return {"metadata": {"namespace": "shop", "name": uid, "uid": uid, "labels": labels}}


async def _brokers(world: OperatorWorld, *names: str) -> KafkaCluster:
    for name in names:
        world.declare_broker("shop", name)
        await world.reconcile_broker("shop", name)
    (kafka,) = world.operator._kafkas.all()
    return kafka


def _resting(controller: ClusterController, kafka: KafkaCluster) -> set[str]:
    found = controller._operator.brokers.states_with_topic.items()
    topics = controller._operator.states.unwritten_topics(kafka)
    return {broker.name for broker, state in found if state.topic.name in topics}


async def test_a_topic_rests_while_its_broker_is_known_to_have_no_receiver() -> None:
    async with running_operator() as world:
        controller, kafka = controller_of(world), await _brokers(world, "first", "second")
        controller.on_objects(
            PODS, (_pod("first", "a"), _pod("second", "x", services.DISPATCHER_ROLE)), ()
        )
        assert _resting(controller, kafka) == set()  # there may be more that weren't told of yet
        controller.set_synced(PODS, True)
        assert _resting(controller, kafka) == {"second"}
        controller.on_objects(PODS, (_pod("first", "b"),), ())
        controller.on_objects(PODS, (), (_pod("first", "a"),))
        assert _resting(controller, kafka) == {"second"}
        controller.on_objects(
            PODS, (), (_pod("first", "b"), _pod("second", "x", services.DISPATCHER_ROLE))
        )
        assert _resting(controller, kafka) == {"first", "second"}
        assert world.operator.states.receiver_pods == {}
        controller.set_synced(PODS, False)
        assert _resting(controller, kafka) == set()


async def test_an_external_topic_does_not_rest_as_anybody_may_write_to_it() -> None:
    async with running_operator() as world:
        world.allow("theirs")
        controller, kafka = controller_of(world), await _brokers(world, "own")
        await kafka.topics.ensure_topic("theirs", 1, 1, {})
        world.declare_broker("shop", "external", {EXTERNAL_TOPIC: "theirs"})
        await world.reconcile_broker("shop", "external")
        controller.set_synced(PODS, True)
        assert Identity("shop", "external") in world.operator.brokers.states_with_topic
        assert _resting(controller, kafka) == {"own"}


async def test_a_change_of_a_trigger_has_its_group_asked_anew_but_not_of_its_status(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who sets a group back by hand annotates its Trigger, and need not wait."""
    async with running_operator() as world:
        kafka = await _brokers(world, "default")
        world.declare_trigger("shop", "mail")
        await world.reconcile_trigger("shop", "mail")
        world.operator.on_trigger(world.document("Trigger", "shop", "mail"), gone=False)
        forgotten: list[str] = []
        monkeypatch.setattr(
            type(kafka.topics._inner),  # type: ignore[attr-defined]
            "forget_group",
            lambda _, group: forgotten.append(group),
        )
        stored = world.cluster.objects[EVENTING, "Trigger", "shop", "mail"]
        stored["status"]["annotations"]["knafka.dev/lag"] = "7"
        stored["metadata"]["resourceVersion"] += "1"
        world.operator.on_trigger(world.document("Trigger", "shop", "mail"), gone=False)
        assert forgotten == []
        stored["metadata"]["annotations"]["rewound"] = "today"
        world.operator.on_trigger(world.document("Trigger", "shop", "mail"), gone=False)
        assert forgotten == ["knative-trigger-shop-mail"]
