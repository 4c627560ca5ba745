"""A dispatcher that runs goes on with a topic that was deleted and created again, and delivers all
of it.

Kafka forgets a group's offsets with the topic. What the process knows of the old topic must not be
committed for the new one: it would hide as many of its first records.
"""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest
from support.kafka import Kafka, MakeTopic
from support.scripted import Arrival, ScriptedServer, raw
from support.trigger_world import Held, TriggerWorld
from support.waiting import until, until_found

from knafka.clients.kafka.admin.kafka_admin import KafkaAdmin

pytestmark = pytest.mark.kafka

OLD = ("a1", "b2", "c3")
NEW = ("d1", "e2", "f3", "g4", "h5", "i6", "j7")


@pytest.fixture
def world(kafka: Kafka, topic: MakeTopic, tmp_path: Path) -> TriggerWorld:
    return TriggerWorld(kafka, topic, tmp_path)


async def recreate(world: TriggerWorld) -> None:
    """Delete the topic and create it again."""
    admin = KafkaAdmin({"bootstrap.servers": world.kafka.bootstrap_servers})
    await admin.delete_topic(world.topic)
    await until_found(partial(admin.ensure_topic, world.topic, 1, 1, {}))


@pytest.mark.parametrize("in_flight", [False, True], ids=["settled", "in flight"])
async def test_a_running_dispatcher_delivers_all_of_a_topic_that_was_created_again(
    world: TriggerWorld, in_flight: bool
) -> None:
    answered = asyncio.Event()
    if not in_flight:
        answered.set()

    async def answer(arrival: Arrival) -> bytes:
        await answered.wait()
        return raw(200)

    async with ScriptedServer(answer) as server, world.dispatcher(server.url) as function:
        held = Held(function)

        def arrived(*ids: str) -> bool:
            return {arrival.id for arrival in server.arrivals} >= set(ids)

        world.send(*OLD)
        await until(partial(arrived, *OLD), within=60)
        if not in_flight:
            await until_found(partial(has_no_lag, world))
        # A topic that is replaced before its id was first read isn't noticed.
        await until(lambda: f"reading the topic {world.topic}," in function.log)
        await recreate(world)
        await asyncio.to_thread(world.send, *NEW)
        answered.set()
        try:
            await until(partial(arrived, *NEW))
            await until_found(partial(has_no_lag, world))
        finally:
            await held.hang_up()


async def has_no_lag(world: TriggerWorld) -> bool:
    return await world.lag() == 0
