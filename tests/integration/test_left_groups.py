"""The scaler beside dispatchers of a real Kafka: one that it doesn't hold is over before an edit is
(KN-TRG-05). Without a Service nobody refuses it, so it ends here by the test."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest
from support.kafka import Kafka, MakeTopic
from support.trigger_world import Held, TriggerWorld
from support.waiting import until, until_found

from knafka.clients.kafka.admin.kafka_admin import KafkaAdmin
from knafka.core.filters.declared_filters import Exact
from knafka_operator.model.autoscaling import Autoscaling
from knafka_operator.scale.drains import HttpDrains
from knafka_operator.scale.scaler import Scaler

pytestmark = pytest.mark.kafka


async def test_an_edit_waits_for_a_dispatcher_that_another_one_has_asked(
    kafka: Kafka, topic: MakeTopic, tmp_path: Path
) -> None:
    world = TriggerWorld(kafka, topic, tmp_path, partitions=2)
    egress = world.egress("http://127.0.0.1:9/")
    admin = KafkaAdmin({"bootstrap.servers": kafka.bootstrap_servers})
    await admin.ensure_committed(egress.group, world.topic, "earliest")
    async with (
        world.dispatcher("http://127.0.0.1:9/") as ours,
        world.dispatcher("http://127.0.0.1:9/") as other,
    ):
        await asyncio.gather(ours.ready(), other.ready())
        drains = HttpDrains({"mail": ours.url})
        scaler = Scaler(admin, drains)
        running = asyncio.create_task(scaler.run())
        unseen = Held(other)
        try:
            await scaler.watch("mail", egress, Autoscaling())
            world.send("a1", "b1")

            async def are_both_there() -> bool:
                return len(await admin.members(egress.group)) == 2

            await until_found(are_both_there)
            edited = egress.model_copy(update={"filters": (Exact(exact={"type": "new"}),)})
            editing = asyncio.create_task(scaler.watch("mail", edited, Autoscaling()))

            async def is_ours_gone() -> bool:
                return len(await admin.members(egress.group)) == 1

            await until_found(is_ours_gone)
            await asyncio.wait({editing}, timeout=1.5)
            assert not editing.done(), "the other one goes on by the old filter"
            await other.terminate(30)
            await until(editing.done, within=30)
            assert await admin.members(egress.group) == []
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running
            await drains.close()
            await unseen.hang_up()
            await admin.close()
