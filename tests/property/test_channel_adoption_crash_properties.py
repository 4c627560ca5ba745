"""An operator that dies while it takes a KafkaChannel over, or lets go of it: no offset is lost.

As of Brokers (`test_adoption_crash_properties`), with the promises that a channel keeps.
"""

from __future__ import annotations

import pytest
from support.channel_adoption import NAMES, PeersChannel
from support.channel_entries import SHOP, TOPIC, eventing, group
from support.channel_world import ChannelWorld
from support.crashing import Crash, Crashing, crashes_at_least, moments, sampled
from support.operator_world import condition

from knafka.core import names
from knafka_operator.model.channels import PEERS_CHANNEL_FINALIZER
from knafka_operator.model.resources import ISOLATION

pytestmark = pytest.mark.looptime


class World:
    """A KafkaChannel as `knafka adopt` hands it over, and an operator that may die."""

    def __init__(self, isolation: str, *, by_eventing: bool) -> None:
        self.crashing = Crashing(self.check)
        self.inner = ChannelWorld(self.crashing)
        self.inner.add_gateway()
        self.channel = PeersChannel(self.inner, by_eventing=by_eventing)
        self.channel.stored["metadata"]["annotations"] = {ISOLATION: isolation}
        self.channel.promise()
        self.channel.claim()
        self.offsets = self.channel.committed()
        self.id = self.inner.log.descriptions[TOPIC].id

    def check(self) -> None:
        """What holds after every effect."""
        assert self.channel.committed() == self.offsets
        assert self.inner.log.descriptions[TOPIC].id == self.id

    async def act(self, phase: str) -> None:
        await (self.channel.take_over() if phase == "take over" else self.channel.leave())

    async def restart(self) -> None:
        await self.inner.restart()
        eventing(self.inner, self.channel.by_eventing)
        await self.inner.channels.resume()

    def check_taken(self) -> None:
        status = self.channel.stored["status"]
        assert condition(status, "Ready")["status"] == "True"
        groups = {name: group(uid) for name, uid in self.channel.uids.items()}
        assert self.channel.watched() == groups

    def check_left(self) -> None:
        annotations = self.channel.stored["status"]["annotations"]
        assert not [key for key in annotations if key.startswith("knafka.dev/")]
        for name in NAMES:
            status = self.inner.stored("Subscription", SHOP, name).get("status") or {}
            kept = status.get("annotations") or {}
            assert not [key for key in kept if key.startswith("knafka.dev/")]
        assert self.inner.cluster.services() == {"kafka-channel-receiver"}
        contract = names.contract_topic(SHOP, "KafkaChannel-orders")
        assert contract not in self.inner.log.topics
        assert self.inner.ingresses() == {}


@pytest.mark.parametrize("by_eventing", [True, False], ids=["Knative Eventing's", "our own"])
@pytest.mark.parametrize("isolation", ["own", "shared"])
@pytest.mark.parametrize("phase", ["take over", "let go"])
async def test_an_operator_that_dies_while_it_takes_over_or_lets_go_loses_nothing(
    phase: str, isolation: str, *, by_eventing: bool
) -> None:
    number = 0
    for moment in sampled(moments()):
        world = World(isolation, by_eventing=by_eventing)
        try:
            if phase == "let go":
                await world.act("take over")
                world.channel.claim(PEERS_CHANNEL_FINALIZER)
            world.crashing.at = moment
            try:
                await world.act(phase)
                died = False
            except Crash:
                died = True
                world.crashing.at = None
                await world.restart()
                await world.act(phase)
            world.crashing.at = None
            world.check()
            (world.check_taken if phase == "take over" else world.check_left)()
        finally:
            await world.inner.operator.close()
        if not died:
            break
        number += 1
    assert number >= crashes_at_least(2), "it has several effects"
