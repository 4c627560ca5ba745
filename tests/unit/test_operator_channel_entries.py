"""Entries of `spec.subscribers` that others write."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.certificates import PEM
from support.channel_entries import (
    CHANNEL,
    SHOP,
    TOPIC,
    committed,
    delivered,
    group,
    kept,
    later,
    reported,
    send,
)
from support.channel_world import UID, VERSION, ChannelWorld, running_channels
from support.operator_world import condition

from knafka.core import names
from knafka_operator.model.channels import DECLARED, PROMISE
from knafka_operator.model.identity import Identity
from knafka_operator.receivers import receivers

OTHER = "11111111-7d9c-4b5e-8f3f-6a4a1a6f0f11"


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ChannelWorld]:
    monkeypatch.setattr(receivers, "REPLICA_POLL_INTERVAL", 0.01)
    async with running_channels() as world:
        world.declare_channel(SHOP, CHANNEL)
        await world.look()
        yield world


async def test_an_entry_that_others_write_is_delivered_by_its_uid(world: ChannelWorld) -> None:
    """KN-CHN-05, KN-CHN-11, DSP-10: no Subscription has to be there."""
    delivery = {"retry": 3, "deadLetterSink": {"uri": "http://dead/", "CACerts": PEM}}
    world.declare_entry(
        SHOP, CHANNEL, UID, "https://there/", replyUri="http://reply/", delivery=delivery,
        generation=7, subscriberCACerts=PEM,
    )  # fmt: skip
    await world.look()
    assert reported(world) == {UID: {"uid": UID, "observedGeneration": 7, "ready": "True"}}
    assert delivered(world) == {group(): "https://there/"}
    assert committed(world) == [0]
    (egress,) = [each.egress for each in world.channels.triggers.watched.values()]
    assert (egress.kind, egress.broker, egress.trigger) == (
        "Subscription",
        CHANNEL,
        f"{CHANNEL}.{UID}",
    )
    assert egress.reply is not None
    assert egress.reply.url == "http://reply/"
    assert egress.subscriber.ca_certs == PEM
    assert egress.delivery.retry == 3
    assert egress.dead_letter_sink is not None
    assert egress.dead_letter_sink.url == "http://dead/"
    assert [each["uid"] for each in world.entries_of(SHOP, CHANNEL)] == [UID]
    assert list(world.cluster.of("Subscription")) == []


async def test_an_entry_is_ready_only_once_a_dispatcher_has_answered(world: ChannelWorld) -> None:
    """DSP-10."""
    world.cluster.unready.add("k-shop-orders")
    for name in world.cluster.services():
        world.cluster.unready.add(name)
    apply = world.cluster.apply

    async def unready(manifest: Any) -> Any:
        if manifest["kind"] == "Service":
            world.cluster.unready.add(manifest["metadata"]["name"])
        return await apply(manifest)

    world.cluster.apply = unready  # type: ignore[method-assign]
    world.declare_entry(SHOP, CHANNEL, UID)
    await world.look()
    assert reported(world)[UID]["ready"] == "Unknown"
    assert reported(world)[UID]["message"]


async def test_an_entry_without_a_subscriber_sends_events_to_its_reply(world: ChannelWorld) -> None:
    """As upstream: the event itself goes there."""
    world.list_entries(SHOP, CHANNEL, [{"uid": UID, "generation": 1, "replyUri": "http://reply/"}])
    await world.look()
    assert delivered(world) == {group(): "http://reply/"}
    assert reported(world)[UID]["ready"] == "True"


@pytest.mark.parametrize(
    ("entry", "uid"),
    [
        ({"uid": UID, "generation": 1}, UID),
        ({"uid": UID, "subscriberUri": "there"}, UID),
        ({"uid": UID, "subscriberUri": "http://there/", "delivery": {"retry": -1}}, UID),
        ({"subscriberUri": "http://there/"}, ""),
        ({"uid": "A/b", "subscriberUri": "http://there/"}, "A/b"),
        ({"uid": "a" * 300, "subscriberUri": "http://there/"}, "a" * 300),
    ],
)
async def test_an_entry_that_can_not_be_delivered_says_why_and_harms_no_other(
    world: ChannelWorld, entry: dict[str, Any], uid: str
) -> None:
    world.list_entries(
        SHOP, CHANNEL, [entry, {"uid": OTHER, "generation": 1, "subscriberUri": "http://o/"}]
    )
    await world.look()
    assert reported(world)[uid]["ready"] == "False"
    assert reported(world)[uid]["message"]
    assert delivered(world) == {group(OTHER): "http://o/"}
    status = world.stored("KafkaChannel", SHOP, CHANNEL)["status"]
    assert condition(status, "Ready")["status"] == "True"


async def test_of_two_entries_with_one_uid_the_later_generation_is_delivered(
    world: ChannelWorld,
) -> None:
    old = {"uid": UID, "generation": 1, "subscriberUri": "http://old/"}
    new = {"uid": UID, "generation": 2, "subscriberUri": "http://new/"}
    world.list_entries(SHOP, CHANNEL, [new, old])
    await world.look()
    assert delivered(world) == {group(): "http://new/"}
    assert list(reported(world)) == [UID]
    assert reported(world)[UID]["observedGeneration"] == 2


async def test_one_uid_on_two_channels_is_delivered_from_both(world: ChannelWorld) -> None:
    world.declare_channel(SHOP, "more")
    world.declare_entry(SHOP, CHANNEL, UID)
    world.declare_entry(SHOP, "more", UID)
    await world.look()
    groups = {each.egress.group for each in world.channels.triggers.watched.values()}
    assert groups == {group(), names.subscription_group(SHOP, "more", UID)}


async def test_an_entry_that_is_edited_goes_on_where_it_was(world: ChannelWorld) -> None:
    world.declare_entry(SHOP, CHANNEL, UID)
    await world.look()
    send(world)
    world.declare_entry(SHOP, CHANNEL, UID, "http://another/", generation=2)
    await world.look()
    assert delivered(world) == {group(): "http://another/"}
    assert committed(world) == [0]
    assert reported(world)[UID]["observedGeneration"] == 2


async def test_an_entry_that_was_missing_loses_nothing(world: ChannelWorld) -> None:
    """Knative Eventing's controller patches the whole list as it last read it: of two that it adds
    together one may be missing until it looks again."""
    world.declare_entry(SHOP, CHANNEL, UID)
    await world.look()
    world.remove_entry(SHOP, CHANNEL, UID)
    await world.look()
    assert delivered(world) == {}
    assert reported(world) == {}
    send(world)
    await world.restart()
    await world.look()
    world.declare_entry(SHOP, CHANNEL, UID)
    await world.look()
    assert delivered(world) == {group(): f"http://{UID}/"}
    assert committed(world) == [0]


async def test_an_entry_that_stays_away_leaves_nothing(world: ChannelWorld) -> None:
    world.declare_entry(SHOP, CHANNEL, UID)
    await world.look()
    world.remove_entry(SHOP, CHANNEL, UID)
    await world.look()
    assert group() in world.log.groups
    later(world)
    await world.look()
    assert group() not in world.log.groups
    assert PROMISE + UID not in kept(world)
    await world.look()
    assert world.channels.triggers.watched == {}
    assert world.channels.states.triggers == {}
    assert world.channels.entries is not None
    assert not world.channels.entries._places
    assert not world.channels.entries._missing


async def test_an_operator_that_starts_resumes_entries_before_it_reconciles(
    world: ChannelWorld,
) -> None:
    world.declare_entry(SHOP, CHANNEL, UID)
    await world.look()
    await world.restart()
    assert await world.channels.resume() == 1
    world.hear()
    assert list(world.channels.triggers.watched) == [Identity(SHOP, f"{CHANNEL}.{UID}")]
    before = reported(world)
    await world.reconcile_channel(SHOP, CHANNEL)
    assert reported(world) == before


async def test_nothing_stays_of_entries_whose_channel_is_deleted(world: ChannelWorld) -> None:
    """Also of one that was missing."""
    world.declare_entry(SHOP, CHANNEL, UID)
    world.declare_entry(SHOP, CHANNEL, OTHER)
    await world.look()
    world.remove_entry(SHOP, CHANNEL, OTHER)
    await world.restart()
    await world.look()
    await world.delete_channel(SHOP, CHANNEL)
    for kind, *who in list(world.channels.queue._items):
        if kind == "Subscription":
            await world._look(Identity(*who))
    assert world.log.groups == {}
    assert TOPIC not in world.log.topics
    left = {name for name, each in vars(world.channels.states).items() if each}
    assert left == {"family", "naming"}
    assert world.channels.entries is not None
    assert not world.channels.entries._names
    assert not world.channels.entries._leaving


# Subscriptions that are ours beside entries that aren't.


async def test_entries_of_others_stay_beside_those_of_our_subscriptions(
    world: ChannelWorld,
) -> None:
    """KN-CHN-05: and both are delivered."""
    world.declare_entry(SHOP, CHANNEL, UID, name="theirs", auth={"serviceAccountName": "x"})
    theirs = world.entries_of(SHOP, CHANNEL)
    world.declare_subscription(SHOP, "audit", CHANNEL)
    await world.look()
    own = str(world.stored("Subscription", SHOP, "audit")["metadata"]["uid"])
    listed = world.entries_of(SHOP, CHANNEL)
    assert [each["uid"] for each in listed] == [UID, own]
    assert listed[0] == theirs[0]
    assert set(delivered(world)) == {group(), group(own)}
    assert kept(world)[DECLARED] == own
    await world.delete_subscription(SHOP, "audit")
    await world.look()
    assert world.entries_of(SHOP, CHANNEL) == theirs
    assert DECLARED not in kept(world)
    assert set(delivered(world)) == {group()}


async def test_an_entry_of_ours_is_nobody_elses_once_its_subscription_is_gone(
    world: ChannelWorld,
) -> None:
    """An operator died before it took the entry away: it isn't delivered as somebody else's."""
    world.declare_subscription(SHOP, "audit", CHANNEL)
    await world.look()
    own = str(world.stored("Subscription", SHOP, "audit")["metadata"]["uid"])
    (entry,) = world.entries_of(SHOP, CHANNEL)
    await world.delete_subscription(SHOP, "audit")
    world.list_entries(SHOP, CHANNEL, [entry])
    await world.restart()
    await world.look()
    assert world.entries_of(SHOP, CHANNEL) == []
    assert delivered(world) == {}
    assert group(own) not in world.log.groups


async def test_an_entry_that_is_added_while_ours_are_written_is_not_lost(
    world: ChannelWorld,
) -> None:
    """Two writers: ours names the version that it read, and reads again."""
    world.declare_subscription(SHOP, "audit", CHANNEL)
    await world.look()
    apply, added = world.cluster.apply, list[str]()

    async def beside(manifest: Any) -> Any:
        if manifest["kind"] == "KafkaChannel" and not added:
            added.append(UID)
            world.declare_entry(SHOP, CHANNEL, UID)
        return await apply(manifest)

    world.cluster.apply = beside  # type: ignore[method-assign]
    world.declare_subscription(SHOP, "mail", CHANNEL)
    await world.look()
    assert added
    own = {str(each["metadata"]["uid"]) for each in world.cluster.of("Subscription")}
    assert {each["uid"] for each in world.entries_of(SHOP, CHANNEL)} == {UID, *own}
    assert set(delivered(world)) == {group(each) for each in (UID, *own)}


async def test_an_entry_that_comes_back_while_it_is_stopped_is_reported(
    world: ChannelWorld,
) -> None:
    """It is heard of before its shard has let go."""
    world.declare_entry(SHOP, CHANNEL, UID)
    await world.look()
    stop = world.channels.triggers.stop_delivery
    world.remove_entry(SHOP, CHANNEL, UID)
    world.hear()

    async def back(who: Identity) -> None:
        await stop(who)
        world.declare_entry(SHOP, CHANNEL, UID)
        world.hear()

    world.channels.triggers.stop_delivery = back  # type: ignore[method-assign,assignment]
    await world.channels.suspend_absent(Identity(SHOP, f"{CHANNEL}.{UID}"))
    world.channels.triggers.stop_delivery = stop  # type: ignore[method-assign]
    await world.look()
    assert delivered(world) == {group(): f"http://{UID}/"}
    assert reported(world)[UID]["ready"] == "True"


@pytest.mark.integration
@pytest.mark.slow
async def test_a_thousand_entries_fit_into_an_object_and_few_writes(world: ChannelWorld) -> None:
    """etcd takes 1.5 MiB: spec, status and what was promised."""
    count, whole = 200, 1000
    uids = [f"{number:08}-7d9c-4b5e-8f3f-6a4a1a6f0f11" for number in range(count)]
    listed = [
        {"uid": uid, "generation": 1, "name": f"subscription-{uid}",
         "subscriberUri": f"http://subscriber-{uid}.shop.svc.cluster.local/a/path",
         "delivery": {"retry": 10, "backoffPolicy": "exponential", "backoffDelay": "PT0.2S"}}
        for uid in uids
    ]  # fmt: skip
    world.list_entries(SHOP, CHANNEL, listed)
    await world.look()
    assert {each["ready"] for each in reported(world).values()} == {"True"}
    assert len(reported(world)) == count
    assert set(delivered(world)) == {group(each) for each in uids}
    stored = world.stored("KafkaChannel", SHOP, CHANNEL)
    assert len(json.dumps(stored)) * whole / count < 1_000_000


async def test_what_entries_are_promised_together_is_written_together(world: ChannelWorld) -> None:
    found = world.channels.entries
    assert found is not None
    channel = Identity(SHOP, CHANNEL)
    world.cluster.requests.clear()
    await asyncio.gather(
        *(found._write_annotations(channel, {f"{PROMISE}{n}": "{}"}) for n in range(100))
    )
    assert world.cluster.requests["write_status"] <= 2
    assert sum(each.startswith(PROMISE) for each in kept(world)) == 100


async def test_entries_of_a_channel_that_is_gone_are_not_written_down(world: ChannelWorld) -> None:
    world.declare_entry(SHOP, CHANNEL, UID)
    world.hear()
    assert world.channels.entries is not None
    document = world.channels.entries.find_subscription(Identity(SHOP, f"{CHANNEL}.{UID}"))
    assert document is not None
    world.cluster.remove(VERSION, "KafkaChannel", SHOP, CHANNEL)
    await world.channels.cluster.write_status(document, {"annotations": {"group.id": group()}})
