"""Triggers that are edited, and what is left when Brokers and Triggers go, in every world.

On this machine with shared dispatchers alone: those of one Trigger are the cluster's, and
tests/e2e/test_local_mode.py edits, starts again and kills them under `knafka up`.
"""

from __future__ import annotations

import pytest
from support.behaviour import (
    BROKER,
    TRIGGER,
    World,
    broker,
    expect,
    only_in,
    trigger,
    until_arrived,
)
from support.gate import only_chaos

WAITING = "Unknown Waiting"


@only_in("memory", "local-shared", "cluster")
@pytest.mark.conformance("KN-TRG-05", "KN-TRG-06")
def test_an_edited_trigger_delivers_by_what_it_says_now_from_ready_on(world: World) -> None:
    mail, fax = world.subscriber("mail"), world.subscriber("fax")
    world.apply(broker(), trigger(mail, filters=[{"exact": {"type": "order"}}]))
    expect(world, "Trigger", "orders", TRIGGER)
    world.send("shop", "other-1", type_="other")
    world.send("shop", "order-1", type_="order")
    until_arrived(world, "mail", "order-1")
    world.apply(trigger(fax, filters=[{"cesql": "type LIKE 'in%'"}]))
    world.until(lambda: world.observes_newest("Trigger", "orders"), lambda: "the edit is seen")
    expect(world, "Trigger", "orders", TRIGGER)
    world.send("shop", "order-2", type_="order")
    world.send("shop", "invoice-1", type_="invoice")
    until_arrived(world, "fax", "invoice-1")
    assert world.arrived("mail") == ["order-1"]
    assert world.arrived("fax") == ["invoice-1"]


@only_in("memory", "local-shared", cluster=only_chaos)
@pytest.mark.conformance("KN-TRG-03")
def test_a_trigger_whose_subscriber_goes_stops_and_misses_nothing(world: World) -> None:
    mail = world.subscriber("mail")
    world.apply(broker(), trigger(mail))
    expect(world, "Trigger", "orders", TRIGGER)
    nobody = {"ref": {"apiVersion": "v1", "kind": "Service", "name": "nobody"}}
    world.apply(trigger(nobody))
    lost = {"SubscriberResolved": "False NotFound", "SubscriptionReady": "Unknown Waiting"}
    expected = {each: said for each, said in TRIGGER.items() if each != "Delivering"}
    expect(world, "Trigger", "orders", {**expected, **lost, "Ready": "False NotFound"})
    world.send("shop", "waits")
    world.apply(trigger(mail))
    expect(world, "Trigger", "orders", TRIGGER)
    until_arrived(world, "mail", "waits")


@only_in("memory", "local-shared", cluster=only_chaos)
def test_nothing_is_left_in_kafka_in_whatever_order_brokers_and_triggers_go(world: World) -> None:
    world.apply(
        broker(),
        trigger(world.subscriber("mail")),
        broker("mall"),
        trigger(world.subscriber("fax"), "bills", broker="mall"),
    )
    for name, of, subscriber in (("orders", "shop", "mail"), ("bills", "mall", "fax")):
        expect(world, "Trigger", name, TRIGGER)
        world.send(of, "first")
        until_arrived(world, subscriber, "first")
    assert len(world.kept_in_kafka()) >= 4
    world.delete("Trigger", "orders")
    world.delete("Broker", "mall")
    unsaid = ("Delivering", "OIDCIdentityCreated")
    without = {"BrokerReady": "False BrokerDoesNotExist", "DeadLetterSinkResolved": WAITING}
    without |= {"SubscriptionReady": WAITING, "Ready": "False BrokerDoesNotExist"}
    expected = {each: said for each, said in TRIGGER.items() if each not in unsaid}
    expect(world, "Trigger", "bills", {**expected, **without})
    world.delete("Broker", "shop")
    world.delete("Trigger", "bills")
    world.until(lambda: not world.kept_in_kafka(), lambda: f"left: {world.kept_in_kafka()}")


@only_in("memory", "local-shared", cluster=only_chaos)
def test_what_comes_back_under_its_name_is_another_one(world: World) -> None:
    """Its topic is a new one, so that nothing of the first Broker is delivered again."""
    mail = world.subscriber("mail")
    world.apply(broker(), trigger(mail))
    expect(world, "Trigger", "orders", TRIGGER)
    world.send("shop", "first")
    until_arrived(world, "mail", "first")
    world.delete("Broker", "shop")
    world.apply(broker())
    expect(world, "Broker", "shop", BROKER)
    expect(world, "Trigger", "orders", TRIGGER)
    world.send("shop", "second")
    until_arrived(world, "mail", "second")
    assert world.arrived("mail") == ["first", "second"]


@only_in("memory", "local-shared")
def test_triggers_go_on_where_they_were_when_the_operator_starts_again(world: World) -> None:
    """An own Trigger on one machine: see tests/e2e."""
    mail, fax = world.subscriber("mail"), world.subscriber("fax")
    world.apply(broker(), trigger(mail), trigger(fax, "copies"))
    for name in ("orders", "copies"):
        expect(world, "Trigger", name, TRIGGER)
    world.send("shop", "before")
    for each in ("mail", "fax"):
        until_arrived(world, each, "before")
    world.restart()
    for name in ("orders", "copies"):
        expect(world, "Trigger", name, TRIGGER)
    world.send("shop", "after")
    for each in ("mail", "fax"):
        until_arrived(world, each, "after")
        # What was delivered before isn't again; a busy machine may deliver the other one twice.
        assert world.arrived(each).count("before") == 1
        assert list(dict.fromkeys(world.arrived(each))) == ["before", "after"]
