"""Triggers of Sensors on a cluster in memory: what they declare, deliver and report."""

from __future__ import annotations

import copy
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import pytest
from support.sensors_world import BUS, CHILD, OWN, SensorsWorld, fired, ready_sensor, spec

from knafka.core import names
from knafka.core.contract import Order
from knafka.core.documents import parse
from knafka.core.errors import InvalidDocument
from knafka.core.filters.predicates import compile_trigger
from knafka_operator.kafka.egresses import replay_egress
from knafka_operator.model.cluster import Rejected
from knafka_operator.model.sensors import KNAFKA, SENSOR, Sensor
from knafka_operator.runtime.selections import TRIGGERS


@pytest.fixture
async def world() -> AsyncIterator[SensorsWorld]:
    async with ready_sensor() as world:
        yield world


@pytest.mark.conformance("BUS-21")
async def test_an_event_of_the_bus_becomes_an_action_that_its_trigger_delivers(
    world: SensorsWorld,
) -> None:
    log = world.inner.log
    event = fired(world.contract(), log, "order", "pay", "other")
    egress = world.egress()
    assert (egress.topic, egress.reply_topic) == (OWN[2], BUS)
    assert egress.broker_dead_letter_topic is None, "that topic is the Sensor's"
    assert replay_egress(egress).reply_topic == BUS, "what a replay is answered goes to the Broker"
    assert [each["type"] for each in json.loads(event.data or b"")] == ["order", "pay"]
    passes = compile_trigger(egress.filter, egress.filters)
    assert passes(event.attributes)
    assert not passes({**event.attributes, "sensortrigger": "another"})
    began = log.group(egress.group).committed
    assert {place[0] for place in began} == {OWN[2]}
    assert {each.offset for each in began.values()} == {0}, "no action is missed"


async def test_subscriber_and_delivery_are_the_triggers(world: SensorsWorld) -> None:
    world.declare(**spec(delivery={"retry": 3}))
    await world.settle()
    declared = world.found("Trigger", CHILD)["spec"]
    assert declared == {
        "broker": "default",
        "filters": [{"exact": {"sensortrigger": "ship"}}],
        "subscriber": {"uri": "http://ship/"},
        "delivery": {"retry": 3},
    }
    assert world.egress().delivery.retry == 3
    assert world.contract().generation == 2


async def test_an_action_may_be_sent_as_a_batch_of_its_events(world: SensorsWorld) -> None:
    assert not world.egress().batch
    world.declare(**spec(payload="batch"))
    await world.settle()
    egress = world.egress()
    assert egress.batch
    assert replay_egress(egress).batch
    world.inner.declare_trigger("shop", "mail", annotations={"knafka.dev/payload": "batch"})
    await world.turn("Trigger", "mail")
    assert not world.egress("mail").batch, "only an action's data are events"
    assert (world.egress().record_position, world.egress("mail").record_position) == (False, True)
    watched = world.inner.operator.triggers.watched.items()
    assert {who.name: each.autoscaling.may_rest for who, each in watched} == {
        CHILD: False,
        "mail": True,
    }


@pytest.mark.conformance("BUS-S13")
async def test_retries_rate_and_dead_letters_in_argos_words_are_its_triggers(
    world: SensorsWorld,
) -> None:
    world.declare(
        **spec(
            retryStrategy={"steps": 4, "duration": "1m30s", "factor": 2},
            rateLimit={"unit": "Minute", "requestsPerUnit": 30},
            dlqTrigger={"subscriber": {"uri": "http://dead/"}},
            delivery={"timeout": "PT5S"},
        )
    )
    await world.settle()
    assert world.says("Ready") == ("True", "")
    assert world.found("Trigger", CHILD)["spec"]["delivery"] == {
        "timeout": "PT5S",
        "retry": 3,
        "backoffDelay": "PT90S",
        "backoffPolicy": "exponential",
        "deadLetterSink": {"uri": "http://dead/"},
    }
    egress = world.egress()
    assert egress.rate_limit is not None
    assert egress.rate_limit.interval == 2.0
    assert egress.dead_letter_sink is not None
    assert egress.dead_letter_sink.url == "http://dead/"


@pytest.mark.parametrize(
    ("declared", "problem"),
    [
        ({"retryStrategy": {}, "delivery": {"retry": 1}}, "triggers[0].retryStrategy: say it once"),
        (
            {
                "dlqTrigger": {"subscriber": {"uri": "http://d/"}},
                "delivery": {"deadLetterSink": {"uri": "http://d/"}},
            },
            "triggers[0].dlqTrigger: say it once",
        ),
        (
            {"dlqTrigger": {"subscriber": {"uri": "http://d/"}}, "atLeastOnce": False},
            "triggers[0].dlqTrigger: wants atLeastOnce: true of its trigger",
        ),
        (
            {"dlqTrigger": {"subscriber": {"uri": "http://d/"}, "atLeastOnce": False}},
            "triggers[0].dlqTrigger.atLeastOnce",
        ),
        (
            {"dlqTrigger": {"subscriber": {"uri": "http://d/"}, "dlqTrigger": {}}},
            "triggers[0].dlqTrigger.dlqTrigger: unknown field",
        ),
        ({"retryStrategy": {"duration": "soon"}}, "invalid value: soon: want one as 10s or 1m30s"),
        ({"retryStrategy": {"factor": 3}}, "triggers[0].retryStrategy.factor"),
        ({"retryStrategy": {"jitter": 1}}, "triggers[0].retryStrategy.jitter"),
        ({"rateLimit": {"unit": "Day", "requestsPerUnit": 1}}, "triggers[0].rateLimit.unit"),
        ({"rateLimit": {}}, "triggers[0].rateLimit.requestsPerUnit"),
    ],
)
@pytest.mark.conformance("BUS-S13")
def test_what_delivery_can_not_do_is_refused_by_its_field(
    declared: Mapping[str, Any], problem: str
) -> None:
    document = {
        "apiVersion": KNAFKA,
        "kind": SENSOR,
        "metadata": {"name": "paid"},
        "spec": spec(**declared),
    }
    with pytest.raises(InvalidDocument) as refused:
        parse(Sensor, document)
    assert problem in str(refused.value)


async def test_a_trigger_that_is_declared_no_more_goes(world: SensorsWorld) -> None:
    other = spec()
    other["triggers"][0]["name"] = "Send_It"
    world.declare(**other)
    await world.settle()
    (left,) = world.there("Trigger")
    assert left == names.sensor_trigger("paid", "Send_It")
    assert world.says("Ready") == ("True", "")


async def test_a_trigger_that_is_not_ready_is_told(world: SensorsWorld) -> None:
    world.inner.cluster.unready.add(f"{CHILD}-kn-dispatcher")
    world.declare(**spec(delivery={"retry": 1}))
    await world.settle()
    assert world.says("TriggersReady") == ("Unknown", "TriggerNotReady")
    world.declare(**spec(subscriber={"ref": {"apiVersion": "v1", "kind": "Service", "name": "no"}}))
    await world.settle()
    assert world.says("TriggersReady") == ("False", "TriggerNotReady")


async def test_a_trigger_that_is_deleted_or_no_longer_ready_wakes_its_sensor(
    world: SensorsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its Sensor would make it anew, or say so, after up to six minutes."""
    trigger = copy.deepcopy(world.found("Trigger", CHILD))
    key = SENSOR, "shop", "paid"
    asked: list[Any] = []
    monkeypatch.setattr(world.inner.operator.queue, "enqueue", asked.append)
    world.controller.on_objects(TRIGGERS, [trigger], [])
    asked.clear()
    status = {**trigger["status"], "annotations": {"seen": "later"}}
    world.controller.on_objects(TRIGGERS, [_newer(trigger, status=status)], [])
    assert key not in asked, "it is as Ready as before"
    conditions = [{"type": "Ready", "status": "False", "reason": "SubscriberDoesNotExist"}]
    status = {**trigger["status"], "conditions": conditions}
    world.controller.on_objects(TRIGGERS, [_newer(trigger, status=status)], [])
    assert asked.count(key) == 1
    world.controller.on_objects(TRIGGERS, [_newer(trigger, spec={"broker": "other"})], [])
    assert asked.count(key) == 2
    unmarked = _newer(trigger)
    unmarked["metadata"]["annotations"] = {}
    world.controller.on_objects(TRIGGERS, [unmarked], [])
    assert asked.count(key) == 3, "its owner reference still names the Sensor"
    world.controller.on_objects(TRIGGERS, [], [trigger])
    assert asked.count(key) == 4
    other = {**trigger, "metadata": {"namespace": "shop", "name": "mail", "uid": "m"}}
    world.controller.on_objects(TRIGGERS, [other], [])
    assert asked.count(key) == 4, "it is no Sensor's"


def _newer(document: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
    """Return a changed object as its watch reports it."""
    version = str(int(document["metadata"].get("resourceVersion") or 0) + 1)
    return {**document, "metadata": {**document["metadata"], "resourceVersion": version}, **fields}


async def test_a_trigger_that_the_api_server_refuses_is_told(world: SensorsWorld) -> None:
    world.inner.cluster.refuse("apply", "Trigger", error=Rejected("validation failed: retry"))
    world.declare(**spec(delivery={"retry": 1}))
    await world.settle()
    assert world.says("TriggersReady") == ("False", "TriggerRejected")


async def test_its_trigger_waits_until_the_sensor_has_topics(world: SensorsWorld) -> None:
    world.found()["status"]["annotations"] = {}
    await world.turn("Trigger", CHILD)
    assert world.says("SubscriptionReady", "Trigger", CHILD) == ("Unknown", "SensorNotReady")


@pytest.mark.conformance("BUS-5", "BUS-S7")
async def test_what_may_not_be_repeated_is_delivered_at_most_once(world: SensorsWorld) -> None:
    """BUS-5, BUS-S7: an action is written once, and its attempts begin behind its commit."""
    assert not world.egress().at_most_once
    world.declare(**spec(atLeastOnce=False))
    await world.settle()
    assert world.egress().at_most_once
    assert world.says("Ready") == ("True", "")


@pytest.mark.parametrize(
    ("declared", "order"),
    [({}, Order.KEY), ({"order": "key"}, Order.KEY), ({"order": "partition"}, Order.PARTITION),
     ({"order": "unordered"}, Order.NONE)],
)  # fmt: skip
async def test_actions_are_delivered_in_the_order_that_its_trigger_says(
    world: SensorsWorld, declared: dict[str, str], order: Order
) -> None:
    world.declare(**spec(**declared))
    await world.settle()
    assert world.egress().order is order
    assert world.contract().triggers[0].order == declared.get("order")


async def test_a_trigger_of_that_name_which_a_user_made_stays_as_it_is() -> None:
    world = SensorsWorld()
    await world.start()
    world.inner.declare_broker("shop")
    world.inner.declare_trigger("shop", CHILD)
    before = world.found("Trigger", CHILD)["spec"]
    world.declare()
    await world.settle()
    assert world.says("TriggersReady") == ("False", "TriggerNotOurs")
    assert world.found("Trigger", CHILD)["spec"] == before
    await world.delete()
    assert world.there("Trigger") == {CHILD}
    await world.inner.operator.close()


def _owned_by(uid: str, **more: Any) -> list[dict[str, Any]]:
    of = {"apiVersion": KNAFKA, "kind": SENSOR, "name": "paid", "uid": uid, "controller": True}
    return [{**of, **more}]


@pytest.mark.parametrize(
    ("annotated", "owners"),
    [
        ("paid", lambda uid: []),
        ("nobody", lambda uid: []),
        ("paid", lambda uid: _owned_by("another")),
        ("paid", lambda uid: _owned_by(uid, controller=False)),
        ("paid", lambda uid: _owned_by(uid, apiVersion="v1")),
        (None, _owned_by),
    ],
    ids=["no owner", "no Sensor", "another UID", "no controller", "another kind", "no annotation"],
)
async def test_an_annotation_alone_delivers_nothing(
    world: SensorsWorld, annotated: str | None, owners: Callable[[str], Sequence[Any]]
) -> None:
    """Nobody reads a topic by saying so."""
    annotations = {"knafka.dev/sensor": annotated} if annotated else {}
    world.inner.declare_trigger("shop", "stray", annotations=annotations)
    uid = world.found()["metadata"]["uid"]
    world.found("Trigger", "stray")["metadata"]["ownerReferences"] = owners(uid)
    await world.turn("Trigger", "stray")
    assert world.says("SubscriptionReady", "Trigger", "stray") == ("False", "SensorNotOurs")
    assert "stray-kn-dispatcher" not in world.inner.cluster.services()


async def test_a_trigger_that_delivers_stops_when_it_is_annotated(world: SensorsWorld) -> None:
    world.inner.declare_trigger("shop", "mail")
    await world.turn("Trigger", "mail")
    assert "mail-kn-dispatcher" in world.inner.cluster.services()
    world.found("Trigger", "mail")["metadata"]["annotations"] = {"knafka.dev/sensor": "paid"}
    await world.turn("Trigger", "mail")
    assert "mail-kn-dispatcher" not in world.inner.cluster.services()
