"""Subscriptions of Knative Eventing's controller, whose entries are delivered beside ours."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from support.channel_entries import (
    CHANNEL,
    SHOP,
    committed,
    delivered,
    eventing,
    group,
    kept,
    later,
    reported,
    send,
    subscription,
)
from support.channel_world import ChannelWorld, running_channels
from support.operator_world import condition

from knafka_operator.installation.handler import Handler
from knafka_operator.model.channels import DECLARED, MESSAGING, PROMISE
from knafka_operator.model.cluster import ClusterError
from knafka_operator.model.identity import Identity
from knafka_operator.receivers import receivers


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ChannelWorld]:
    monkeypatch.setattr(receivers, "REPLICA_POLL_INTERVAL", 0.01)
    async with running_channels() as world:
        world.declare_channel(SHOP, CHANNEL)
        await world.look()
        yield world


async def test_subscriptions_of_knative_eventing_are_delivered_and_never_written(
    world: ChannelWorld,
) -> None:
    """ "with Knative Eventing present its Subscription controller fills spec.subscribers, never
    both": and the Subscription's own annotations count."""
    eventing(world)
    uid = subscription(
        world, "mail", annotations={"kafka.eventing.knative.dev/delivery.order": "unordered"}
    )
    world.declare_subscription(SHOP, "waiting", CHANNEL)
    stored = [dict(each) for each in world.cluster.of("Subscription")]
    listed = world.entries_of(SHOP, CHANNEL)
    await world.look()
    assert list(world.cluster.of("Subscription")) == stored
    assert world.entries_of(SHOP, CHANNEL) == listed
    assert delivered(world) == {group(uid): "http://mail/"}
    assert world.egress_of(SHOP, "mail").order == "none"
    assert reported(world)[uid]["ready"] == "True"
    assert DECLARED not in kept(world)
    status = world.stored("KafkaChannel", SHOP, CHANNEL)["status"]
    handled = condition(status, "SubscriptionsHandled")
    assert (handled["status"], handled["reason"]) == ("True", "ByKnativeEventing")
    assert "KNAFKA_SUBSCRIPTIONS" in handled["message"]
    assert condition(status, "Ready")["status"] == "True"


async def test_a_subscription_to_a_channel_with_a_template_is_delivered(
    world: ChannelWorld,
) -> None:
    """Its Channel's KafkaChannel has the entry."""
    eventing(world)
    to = {"apiVersion": MESSAGING, "kind": "Channel", "name": CHANNEL}
    uid = subscription(world, "mail")
    stored = world.stored("Subscription", SHOP, "mail")
    world.cluster.put({**stored, "spec": {**stored["spec"], "channel": to}})
    await world.look()
    assert delivered(world) == {group(uid): "http://mail/"}
    assert world.egress_of(SHOP, "mail").broker == CHANNEL


async def test_a_subscription_to_a_channel_says_why_nothing_comes_of_it_without_eventing(
    world: ChannelWorld,
) -> None:
    to = {"apiVersion": MESSAGING, "kind": "Channel", "name": CHANNEL}
    world.declare_subscription(SHOP, "mail", CHANNEL)
    stored = world.stored("Subscription", SHOP, "mail")
    world.cluster.put({**stored, "spec": {**stored["spec"], "channel": to}})
    document = world.stored("Subscription", SHOP, "mail")
    assert not world.channels.may_be_ours(document)
    await world.channels.triggers.hand_over(document)
    status = world.stored("Subscription", SHOP, "mail")["status"]
    assert condition(status, "ChannelReady")["reason"] == "ChannelNotServed"
    assert condition(status, "Ready")["status"] == "False"
    version = world.stored("Subscription", SHOP, "mail")["metadata"]["resourceVersion"]
    await world.channels.triggers.hand_over(world.stored("Subscription", SHOP, "mail"))
    again = world.stored("Subscription", SHOP, "mail")
    assert again["metadata"]["resourceVersion"] == version
    eventing(world)
    world.cluster.put({**again, "status": {}})
    await world.channels.triggers.hand_over(world.stored("Subscription", SHOP, "mail"))
    assert world.stored("Subscription", SHOP, "mail")["status"] == {}


@pytest.mark.parametrize(
    ("setting", "seen", "shown"),
    [
        ("auto", False, None),
        ("own", False, None),
        ("auto", True, ("True", "ByKnativeEventing")),
        ("own", True, ("True", "ByKnafka")),
        ("eventing", True, ("True", "ByKnativeEventing")),
        ("eventing", False, ("False", "KnativeEventingNotSeen")),
        ("auto", None, ("Unknown", "Waiting")),
    ],
)
async def test_a_channel_says_who_handles_subscriptions_and_what_was_seen(
    world: ChannelWorld, setting: str, seen: bool | None, shown: tuple[str, str] | None
) -> None:
    assert world.channels.entries is not None
    world.channels.entries.handling.declared = Handler(setting)
    eventing(world, seen)
    status = await world.reconcile_channel(SHOP, CHANNEL)
    found = [
        (each["status"], each["reason"])
        for each in status["conditions"]
        if each["type"] == "SubscriptionsHandled"
    ]
    assert found == ([] if shown is None else [shown])
    assert condition(status, "Ready")["status"] == "True"


async def test_nothing_is_decided_while_it_is_not_known_whose_subscriptions_are(
    world: ChannelWorld,
) -> None:
    eventing(world, None)
    world.declare_subscription(SHOP, "mail", CHANNEL)
    world.hear()
    with pytest.raises(ClusterError, match="known"):
        await world.channels.cluster.get(MESSAGING, "Subscription", SHOP, "mail")
    await world.reconcile_channel(SHOP, CHANNEL)
    assert world.entries_of(SHOP, CHANNEL) == []


async def test_what_knafka_delivered_goes_on_when_knative_eventing_comes_and_goes(
    world: ChannelWorld,
) -> None:
    """Neither the offsets nor the name change, in either direction."""
    world.declare_subscription(SHOP, "mail", CHANNEL)
    await world.look()
    uid = str(world.stored("Subscription", SHOP, "mail")["metadata"]["uid"])
    send(world)
    topics = set(world.log.topics)
    eventing(world)
    await world.look()
    world.declare_entry(SHOP, CHANNEL, uid, "http://eventing/", name="mail", generation=2)
    await world.look()
    assert delivered(world) == {group(uid): "http://eventing/"}
    assert committed(world, uid) == [0]
    # Its controller writes the status anew: nothing of ours is left there.
    stored = world.stored("Subscription", SHOP, "mail")
    world.cluster.put({**stored, "status": {}})
    await world.restart()
    await world.look()
    assert committed(world, uid) == [0]
    assert delivered(world) == {group(uid): "http://there/"}
    assert set(world.log.topics) == topics
    status = world.stored("Subscription", SHOP, "mail")["status"]
    assert condition(status, "Ready")["status"] == "True"


async def test_an_entry_whose_subscription_is_there_keeps_its_group_while_it_is_missing(
    world: ChannelWorld,
) -> None:
    """However long: Knative Eventing's controller may be away."""
    eventing(world)
    uid = subscription(world, "mail")
    await world.look()
    world.remove_entry(SHOP, CHANNEL, uid)
    await world.look()
    send(world)
    later(world)
    await world.look()
    assert delivered(world) == {}
    assert committed(world, uid) == [0]
    world.declare_entry(SHOP, CHANNEL, uid, "http://mail/", name="mail")
    await world.look()
    assert committed(world, uid) == [0]
    assert delivered(world) == {group(uid): "http://mail/"}


async def test_a_subscription_of_knative_eventing_that_is_deleted_leaves_nothing(
    world: ChannelWorld,
) -> None:
    """Its controller takes the entry away, then lets the Subscription go."""
    eventing(world)
    uid = subscription(world, "mail")
    await world.look()
    world.remove_entry(SHOP, CHANNEL, uid)
    document = world.stored("Subscription", SHOP, "mail")
    world.cluster.remove(MESSAGING, "Subscription", SHOP, "mail")
    world.channels.on_change(document, gone=True)
    await world.channels.triggers.abandon(Identity(SHOP, "mail"))
    world.channels.forget(document)
    await world.look()
    assert delivered(world) == {}
    later(world)
    await world.look()
    assert group(uid) not in world.log.groups
    assert PROMISE + uid not in kept(world)


async def test_an_entry_whose_subscription_went_without_it_goes_on_under_another_name(
    world: ChannelWorld,
) -> None:
    """Somebody took its finalizer away: what spec.subscribers says is delivered, once."""
    eventing(world)
    uid = subscription(world, "mail")
    await world.look()
    send(world)
    document = world.stored("Subscription", SHOP, "mail")
    world.cluster.remove(MESSAGING, "Subscription", SHOP, "mail")
    world.channels.on_change(document, gone=True)
    assert world.channels.entries is not None
    with pytest.raises(ClusterError, match="still"):
        await world.channels.entries.get(MESSAGING, "Subscription", SHOP, f"{CHANNEL}.{uid}")
    await world._look(Identity(SHOP, "mail"))
    await world.look()
    assert delivered(world) == {group(uid): "http://mail/"}
    assert committed(world, uid) == [0]
    assert list(world.channels.triggers.watched) == [Identity(SHOP, f"{CHANNEL}.{uid}")]


@pytest.mark.parametrize("first", ["KafkaChannel", "Subscription"])
async def test_what_eventing_took_over_is_delivered_whatever_is_heard_of_first(
    world: ChannelWorld, first: str
) -> None:
    """The list of entries that we wrote still names it."""
    world.declare_subscription(SHOP, "mail", CHANNEL)
    await world.look()
    uid = str(world.stored("Subscription", SHOP, "mail")["metadata"]["uid"])
    assert kept(world)[DECLARED] == uid
    await world.restart()
    eventing(world)
    kinds = ["KafkaChannel", "Subscription"]
    for kind in kinds if first == kinds[0] else reversed(kinds):
        for each in list(world.cluster.of(kind)):
            world.channels.on_change(each, gone=False)
    await world.look()
    assert delivered(world) == {group(uid): "http://there/"}
    assert reported(world)[uid]["ready"] == "True"
    # And it leaves nothing, though we wrote it once.
    world.remove_entry(SHOP, CHANNEL, uid)
    document = world.stored("Subscription", SHOP, "mail")
    world.cluster.set_finalizers(MESSAGING, "Subscription", SHOP, "mail")
    world.cluster.remove(MESSAGING, "Subscription", SHOP, "mail")
    world.channels.on_change(document, gone=True)
    await world.look()
    later(world)
    await world.look()
    assert group(uid) not in world.log.groups
    assert PROMISE + uid not in kept(world)


async def test_a_subscription_that_is_made_anew_is_another_entry(world: ChannelWorld) -> None:
    """While the entry of the one before lingers: each is delivered by its own UID."""
    eventing(world)
    before = subscription(world, "mail")
    await world.look()
    document = world.stored("Subscription", SHOP, "mail")
    world.cluster.remove(MESSAGING, "Subscription", SHOP, "mail")
    world.channels.on_change(document, gone=True)
    after = subscription(world, "mail")
    assert before != after
    world.hear()
    await world.channels.triggers.abandon(Identity(SHOP, "mail"))  # as the controller does
    world.channels.forget(document)
    await world.look()
    assert delivered(world) == {group(before): "http://mail/", group(after): "http://mail/"}
    assert {each["ready"] for each in reported(world).values()} == {"True"}
