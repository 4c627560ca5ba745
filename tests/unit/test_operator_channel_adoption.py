"""A KafkaChannel goes from eventing-kafka-broker to Knafka and back: its topic and groups stay."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from support.channel_adoption import HOST, NAMES, RIVAL_HOST, PeersChannel
from support.channel_entries import CHANNEL, SHOP, TOPIC, eventing, group
from support.channel_world import running_channels
from support.controlled import controller_of
from support.operator_world import condition

from knafka.core import names
from knafka_operator.kafka.topics import TOPIC_ID
from knafka_operator.model.channels import PEERS_CHANNEL_FINALIZER
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import FINALIZER, ISOLATION, TOPIC_STATUS

pytestmark = pytest.mark.looptime


@pytest.fixture(params=[True, False], ids=["Knative Eventing's", "our own"])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[PeersChannel]:
    async with running_channels() as inner:
        inner.add_gateway()
        yield PeersChannel(inner, by_eventing=request.param)


async def test_a_channel_that_the_peer_has_claimed_is_left_alone(world: PeersChannel) -> None:
    before, offsets = dict(world.stored), world.committed()
    await world.leave()
    assert world.stored == before
    assert world.watched() == {}
    assert world.committed() == offsets
    assert world.host() == RIVAL_HOST
    assert world.inner.cluster.services() == set()


async def test_beside_the_peer_a_channel_that_nobody_has_claimed_gets_no_finalizer_of_ours(
    world: PeersChannel,
) -> None:
    world.claim()
    channels = world.inner.channels.brokers
    assert not await channels.needs_finalizer(world.stored)
    status = await world.inner.reconcile_channel(SHOP, CHANNEL)
    assert condition(status, "ServedByKnafka")["reason"] == "OtherImplementation"
    # Once it was ours, it is until the peer claims it.
    world.stored["status"]["annotations"][TOPIC_ID] = world.inner.log.descriptions[TOPIC].id
    assert await channels.needs_finalizer(world.stored)
    world.claim(FINALIZER, PEERS_CHANNEL_FINALIZER)
    assert not await channels.needs_finalizer(world.stored)


async def test_what_adopt_has_written_stays_until_it_takes_the_channel(world: PeersChannel) -> None:
    """An operator that looks at the channel in between would make new groups of old ones."""
    world.promise()
    before = dict(world.stored["status"]["annotations"])
    await world.leave()
    assert world.stored["status"]["annotations"] == before


async def test_an_adopted_channel_goes_on_with_its_topic_and_its_subscriptions_offsets(
    world: PeersChannel,
) -> None:
    offsets = world.committed()
    await world.adopt()
    status = world.stored["status"]
    assert condition(status, "Ready")["status"] == "True", status["conditions"]
    assert "ConfigMapUpdated" not in {each["type"] for each in status["conditions"]}
    assert [each["ready"] for each in status["subscribers"]] == ["True", "True"]
    assert world.watched() == {name: group(uid) for name, uid in world.uids.items()}
    assert world.committed() == offsets
    assert world.host() != RIVAL_HOST, "senders go on at the same host"


@pytest.mark.parametrize("isolation", ["shared", "own"])
async def test_a_released_channel_keeps_topic_groups_and_offsets_and_has_nothing_of_ours(
    world: PeersChannel, isolation: str
) -> None:
    world.stored["metadata"]["annotations"] = {ISOLATION: isolation}
    await world.adopt()
    inner, offsets = world.inner, world.committed()
    assert len(inner.cluster.services()) == (2 if isolation == "shared" else 3)
    world.claim(PEERS_CHANNEL_FINALIZER)
    for _ in range(2):  # it may end between any two of these, and begins again
        await world.leave()
        status = world.stored["status"]
        assert status["annotations"][TOPIC_STATUS] == TOPIC
        assert not [key for key in status["annotations"] if key.startswith("knafka.dev/")]
        assert (status.get("address"), status["conditions"]) == (None, [])
        assert status["subscribers"] == []
    assert inner.cluster.services() == {"kafka-channel-receiver"}, "other channels' is left"
    assert inner.ingresses() == {}
    assert world.host() == RIVAL_HOST, "senders go on at the same host"
    assert not [key for key in inner.cluster.objects if key[1:3] == ("Ingress", SHOP)]
    assert world.watched() == {}
    assert Identity(SHOP, CHANNEL) not in inner.channels.states.brokers
    assert names.contract_topic(SHOP, f"KafkaChannel-{CHANNEL}") not in inner.log.topics
    assert world.committed() == offsets
    for name in NAMES:
        status = inner.stored("Subscription", SHOP, name).get("status") or {}
        kept = status.get("annotations") or {}
        assert not [key for key in kept if key.startswith("knafka.dev/")]
        assert not status.get("conditions"), "nobody of ours delivers to it"
    # And once more.
    await world.adopt()
    assert condition(world.stored["status"], "Ready")["status"] == "True"
    assert world.watched() == {name: group(uid) for name, uid in world.uids.items()}
    assert world.committed() == offsets


async def test_an_operator_that_starts_anew_lets_go_of_what_was_released_meanwhile(
    world: PeersChannel,
) -> None:
    await world.adopt()
    world.claim(PEERS_CHANNEL_FINALIZER)
    await world.inner.restart()
    eventing(world.inner, world.by_eventing)
    world.inner.add_gateway()
    assert await world.inner.channels.resume() == 0
    await world.leave()
    assert not [key for key in world.stored["status"]["annotations"] if "knafka.dev" in key]
    assert world.inner.cluster.services() == {"kafka-channel-receiver"}


async def test_the_controller_takes_over_and_lets_go_with_every_offset_as_it_is(
    world: PeersChannel,
) -> None:
    """It writes finalizers before it reconciles: what is stored then has no channel's promise."""
    offsets, controller = world.committed(), controller_of(world.inner)
    eventing(world.inner, world.by_eventing)
    keys = [("KafkaChannel", SHOP, CHANNEL), *(("Subscription", SHOP, name) for name in NAMES)]

    async def reconcile() -> None:
        world.inner.hear()
        for key in (*keys, keys[0]):
            await controller.reconcile(key)

    await reconcile()
    world.promise()
    await reconcile()  # still the peer's
    world.claim()
    await reconcile()
    assert world.stored["metadata"]["finalizers"] == [FINALIZER]
    assert condition(world.stored["status"], "Ready")["status"] == "True"
    assert world.watched() == {name: group(uid) for name, uid in world.uids.items()}
    assert world.committed() == offsets
    world.claim(PEERS_CHANNEL_FINALIZER)
    await reconcile()
    for name in NAMES:
        metadata = world.inner.stored("Subscription", SHOP, name)["metadata"]
        assert not metadata.get("finalizers")
    assert not [key for key in world.stored["status"]["annotations"] if "knafka.dev" in key]
    assert world.committed() == offsets


async def test_without_a_receiver_of_the_peers_a_released_channel_has_no_host(
    world: PeersChannel,
) -> None:
    await world.adopt()
    del world.inner.cluster.objects["v1", "Service", "knative-eventing", "kafka-channel-ingress"]
    world.claim(PEERS_CHANNEL_FINALIZER)
    await world.leave()
    assert ("v1", "Service", SHOP, HOST) not in world.inner.cluster.objects
