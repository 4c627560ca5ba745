"""What a user meets first, in every world: conditions, reasons and messages, compared literally."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.behaviour import (
    BROKER,
    TRIGGER,
    World,
    broker,
    config_map,
    expect,
    message,
    only_in,
    reference,
    trigger,
    until_arrived,
)
from support.gate import only_chaos

from knafka_operator.model.resources import BROKER_CLASS, CORE, PAUSED_ANNOTATION

WAITING = "Unknown Waiting"
NO_BROKER = {
    "BrokerReady": "False BrokerDoesNotExist",
    "DependencyReady": "True",
    "SubscriberResolved": "True",
    "DeadLetterSinkResolved": WAITING,
    "SubscriptionReady": WAITING,
    "Ready": "False BrokerDoesNotExist",
}
NOTHING_YET = dict.fromkeys(BROKER.keys() - {"TopicAsDeclared"}, WAITING) | {
    "Addressable": "Unknown NoReceiver",
    "DeadLetterSinkResolved": "True DeadLetterSinkNotConfigured",
}
NOBODY = reference("Service", "nobody", CORE)


@only_in("memory", "cluster")
@pytest.mark.conformance("KN-TRG-01", "KN-TRG-06")
def test_a_trigger_waits_for_its_broker_and_both_become_ready(world: World) -> None:
    """On one machine: each half is in the next tests (a class of another, what isn't there)."""
    world.apply(trigger(world.subscriber("mail")))
    expect(world, "Trigger", "orders", NO_BROKER)
    assert message(world, "Trigger", "orders", "BrokerReady") == 'Broker "shop" does not exist'
    world.apply(broker())
    expect(world, "Broker", "shop", BROKER)
    expect(world, "Trigger", "orders", TRIGGER)
    world.send("shop", "first")
    until_arrived(world, "mail", "first")


@only_in("memory", "local", cluster=only_chaos)
def test_a_broker_whose_config_map_is_missing_says_so_until_it_is_there(world: World) -> None:
    config = {"apiVersion": CORE, "kind": "ConfigMap", "name": "own"}
    world.apply(broker(config=config))
    missing = {"ConfigParsed": "False ConfigMapNotFound", "Ready": "False ConfigMapNotFound"}
    expect(world, "Broker", "shop", {**NOTHING_YET, **missing})
    told = message(world, "Broker", "shop", "ConfigParsed")
    assert told == f"ConfigMap {world.namespace}/own does not exist"
    world.apply(config_map("own", {"default.topic.partitions": "many"}))
    wrong = {"ConfigParsed": "False Invalid", "Ready": "False Invalid"}
    expect(world, "Broker", "shop", {**NOTHING_YET, **wrong})
    assert "data.default.topic.partitions" in message(world, "Broker", "shop", "ConfigParsed")
    world.apply(config_map("own", {"default.topic.partitions": "3"}))
    expect(world, "Broker", "shop", BROKER)


@only_in("memory", "local", cluster=only_chaos)
@pytest.mark.conformance("KN-TRG-03", "KN-DST-04")
def test_what_a_trigger_refers_to_and_is_not_there_is_named_by_its_condition(world: World) -> None:
    """Subscriber, dead letter sink and dependency: each says what it misses, and delivers once it
    is there."""
    mail = world.subscriber("mail")
    depends = json.dumps(reference("Broker", "first")["ref"])
    world.apply(
        broker(),
        trigger(NOBODY, "lost"),
        trigger(reference("Broker", "late"), "early"),
        trigger(mail, "sunk", delivery={"deadLetterSink": NOBODY}),
        trigger(mail, "depending", {"knative.dev/dependency": depends}),
        broker("late", config={"apiVersion": CORE, "kind": "ConfigMap", "name": "own"}),
    )
    for name, type_, reason, told in (
        ("lost", "SubscriberResolved", "NotFound", "Service {}/nobody (v1) does not exist"),
        (
            "early",
            "SubscriberResolved",
            "NotAddressable",
            "Broker {}/late (eventing.knative.dev/v1) has no address: its status.address.url is "
            "empty",
        ),
        ("sunk", "DeadLetterSinkResolved", "NotFound", "Service {}/nobody (v1) does not exist"),
        (
            "depending",
            "DependencyReady",
            "DependencyDoesNotExist",
            "Broker {}/first does not exist",
        ),
    ):
        stands = {
            type_: f"False {reason}",
            "SubscriptionReady": WAITING,
            "Ready": f"False {reason}",
        }
        expected = {each: said for each, said in TRIGGER.items() if each != "Delivering"}
        expect(world, "Trigger", name, {**expected, **stands})
        assert message(world, "Trigger", name, type_) == told.format(world.namespace)
    world.apply(
        config_map("own", {}),
        broker("first"),
        trigger(mail, "lost"),
        trigger(mail, "sunk"),
    )
    for name in ("lost", "early", "sunk", "depending"):
        expect(world, "Trigger", name, TRIGGER)
    world.send("shop", "at-last")
    world.until(
        lambda: world.arrived("mail").count("at-last") == 3,
        lambda: f"three Triggers deliver: {world.arrived('mail')}",
    )


@only_in("memory", cluster=only_chaos)
def test_kafka_that_is_away_is_a_condition_until_it_is_back(world: World) -> None:
    """On one machine no Broker has a Kafka of its own: see tests/unit/test_local_cluster."""
    config = {"apiVersion": CORE, "kind": "ConfigMap", "name": "own"}
    with world.kafka_is_away() as data:
        world.apply(config_map("own", data), broker(config=config))
        away = {
            "ConfigParsed": "True",
            "TopicReady": "False KafkaNotReachable",
            "Ready": "False KafkaNotReachable",
        }
        expect(world, "Broker", "shop", {**NOTHING_YET, **away})
        assert message(world, "Broker", "shop", "TopicReady").startswith("Kafka: ")
    world.apply(config_map("own", {}))
    expect(world, "Broker", "shop", BROKER)


@pytest.mark.conformance("KN-BRK-04")
def test_a_broker_of_another_class_and_its_triggers_are_left_alone(world: World) -> None:
    """Also a Trigger that came before it, and so was taken for ours."""
    mail = world.subscriber("mail")
    world.apply(trigger(mail, broker="theirs"))
    expect(world, "Trigger", "orders", NO_BROKER)
    world.apply(broker("theirs", {BROKER_CLASS: "MTChannelBasedBroker"}))
    expect(world, "Trigger", "orders", {})
    assert world.conditions("Broker", "theirs") == []
    assert world.kept_in_kafka() == set()


WRONG: list[tuple[dict[str, Any], dict[str, str], str]] = [
    ({"filters": [{"exact": {"Type": "a"}}]}, {}, "spec.filters[0].exact"),
    ({"filters": [{"cesql": "type ="}]}, {}, "spec.filters[0].cesql"),
    ({"delivery": {"retry": -1}}, {}, "spec.delivery.retry"),
    ({}, {PAUSED_ANNOTATION: "1"}, f"metadata.annotations[{PAUSED_ANNOTATION}]"),
]
"""Specs and annotations of Triggers, and the field that each is refused for."""


@pytest.mark.conformance("KN-TRG-10", "KN-DLV-06")
def test_a_mistake_in_a_trigger_is_refused_by_the_name_of_its_field(world: World) -> None:
    mail = world.subscriber("mail")
    refusal = world.refusal(
        *(
            trigger(mail, f"wrong-{number}", annotations, **spec)
            for number, (spec, annotations, _) in enumerate(WRONG)
        )
    )
    for _, _, field in WRONG:
        assert field in refusal
    assert 'want "true" or "false"' in refusal
    assert world.refusal(trigger(mail)) == ""
