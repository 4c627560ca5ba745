"""An operator that dies while it takes a Broker over, or lets go of it: nobody loses an offset.

Whatever it has done by then, the next operator ends where one that lives does; offsets never move
meanwhile, as nothing runs in the functions, and topic and groups are never made anew.
"""

from __future__ import annotations

from typing import Any

import pytest
from support.crashing import Crash, Crashing, moments
from support.operator_world import OperatorWorld, condition

from knafka.core import names
from knafka.ports.log import OffsetAndMetadata
from knafka_operator.kafka.topics import TOPIC_ID
from knafka_operator.model.resources import (
    EVENTING,
    FINALIZER,
    GROUP_STATUS,
    ISOLATION,
    PEERS_FINALIZER,
    SERVING,
    TOPIC_STATUS,
)

pytestmark = pytest.mark.looptime

SHOP = "shop"
TOPIC = names.broker_topic(SHOP, "default")
GROUP = names.trigger_group(SHOP, "mail")
OFFSETS = {(TOPIC, 0): 2, (TOPIC, 1): 0}


class World:
    """A Broker and a Trigger as `knafka adopt` hands them over."""

    def __init__(self, isolation: str) -> None:
        self.crashing = Crashing(self.check)
        self.inner = OperatorWorld(self.crashing)
        self.inner.log.create(TOPIC, 2)
        for _ in range(5):
            self.inner.log.store(TOPIC, None, b"{}", [])
        self.id = self.inner.log.descriptions[TOPIC].id
        self.inner.declare_broker(SHOP, annotations={ISOLATION: isolation})
        self.inner.declare_trigger(SHOP, "mail")
        kept = {TOPIC_STATUS: TOPIC, TOPIC_ID: self.id}
        self.stored("Broker", "default")["status"] = {"annotations": kept}
        self.stored("Trigger", "mail")["status"] = {"annotations": {GROUP_STATUS: GROUP}}
        for place, offset in OFFSETS.items():
            self.inner.log.group(GROUP).committed[place] = OffsetAndMetadata(offset, "")

    def stored(self, kind: str, name: str) -> dict[str, Any]:
        return self.inner.cluster.objects[EVENTING, kind, SHOP, name]

    def check(self) -> None:
        """What holds after every effect."""
        committed = self.inner.log.group(GROUP).committed
        assert {place: each.offset for place, each in committed.items()} == OFFSETS
        assert self.inner.log.descriptions[TOPIC].id == self.id
        annotations = self.stored("Trigger", "mail")["status"]["annotations"]
        assert annotations[GROUP_STATUS] == GROUP

    async def take_over(self) -> None:
        """As the controller does, with a Broker that nobody has claimed, or that is ours."""
        await self.inner.reconcile_broker(SHOP)
        self.stored("Broker", "default")["metadata"]["finalizers"] = [FINALIZER]
        await self.inner.reconcile_trigger(SHOP, "mail")

    async def let_go(self) -> None:
        """As the controller does, in either order, with a Broker that the peer has claimed."""
        document = self.inner.document("Broker", SHOP)
        self.inner.operator.on_broker(document, gone=False)
        trigger = self.inner.document("Trigger", SHOP, "mail")
        self.inner.operator.on_trigger(trigger, gone=False)
        await self.inner.operator.brokers.hand_over(document)
        await self.inner.operator.triggers.hand_over(trigger)

    def check_taken(self) -> None:
        status = self.stored("Broker", "default")["status"]
        assert condition(status, "Ready")["status"] == "True"
        watched = self.inner.operator.triggers.watched
        assert [each.egress.group for each in watched.values()] == [GROUP]

    def check_left(self) -> None:
        for kind, name in (("Broker", "default"), ("Trigger", "mail")):
            annotations = self.stored(kind, name)["status"]["annotations"]
            assert not [each for each in annotations if each.startswith("knafka.dev/")]
        assert not [key for key in self.inner.cluster.objects if key[0] == SERVING]
        assert names.contract_topic(SHOP, "default") not in self.inner.log.topics
        assert self.inner.entries() == {}


@pytest.mark.slow
@pytest.mark.parametrize("isolation", ["own", "shared"])
async def test_an_operator_that_dies_while_it_takes_over_or_lets_go_loses_nothing(
    isolation: str,
) -> None:
    for phase in ("take over", "let go"):
        for moment in moments():
            world = World(isolation)
            try:
                if phase == "let go":
                    await world.take_over()
                    claim = [PEERS_FINALIZER]
                    world.stored("Broker", "default")["metadata"]["finalizers"] = claim
                act = world.take_over if phase == "take over" else world.let_go
                world.crashing.at = moment
                try:
                    await act()
                    died = False
                except Crash:
                    died = True
                    world.crashing.at = None
                    await world.inner.restart()
                    await world.inner.operator.resume()
                    await (world.take_over() if phase == "take over" else world.let_go())
                world.crashing.at = None
                world.check()
                if phase == "take over":
                    if died:
                        await world.take_over()
                    world.check_taken()
                else:
                    world.check_left()
            finally:
                await world.inner.operator.close()
            if not died:
                break
        assert moment[1] > 2, "it has several effects"
