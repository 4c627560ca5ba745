"""A Trigger's dead-letter topic on real Kafka: made when first needed, and once it is gone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
import pytest_asyncio
from support.kafka import Kafka, MakeTopic
from support.scripted import ScriptedServer, raw
from support.trigger_world import Held, TriggerWorld, drained
from support.waiting import until

from knafka.clients.kafka.admin.kafka_admin import KafkaAdmin
from knafka.core.contract import DEAD_LETTER_TOPIC_CONFIG, TopicSettings
from knafka.core.events.kafka_binding import read
from knafka.ports.log import Record

pytestmark = pytest.mark.kafka

LIMIT = 2_000_000
"""Bytes that the Broker's topic takes in these tests: more than Kafka's default."""


@pytest.fixture
def world(kafka: Kafka, tmp_path: Path, topic: MakeTopic) -> TriggerWorld:
    def make(partitions: int = 1) -> str:
        return topic(partitions, max_message_bytes=LIMIT)

    world = TriggerWorld(kafka, make, tmp_path)
    world.dead = f"{world.topic}-dead"
    return world


@pytest_asyncio.fixture
async def admin(kafka: Kafka, world: TriggerWorld) -> AsyncIterator[KafkaAdmin]:
    admin = KafkaAdmin({"bootstrap.servers": kafka.bootstrap_servers})
    yield admin
    await admin.delete_topic(world.dead)
    await admin.close()


async def letters(admin: KafkaAdmin, world: TriggerWorld) -> Sequence[Record]:
    return await admin.read_last(world.dead, 100)


async def refuse(arrival: object) -> bytes:
    return raw(400, b"no")


async def test_the_first_burial_makes_the_topic_with_room_for_the_largest_event(
    world: TriggerWorld, admin: KafkaAdmin
) -> None:
    config = {**DEAD_LETTER_TOPIC_CONFIG, "max.message.bytes": str(LIMIT + 16_384)}
    settings = TopicSettings(partitions=1, replication=1, config=config)
    data = b"x" * (LIMIT - 500)
    async with ScriptedServer(refuse) as server:
        world.send("1", data=data)
        async with world.dispatcher(server.url, dead_letter_settings=settings) as function:
            assert await admin.describe_topic(world.dead) is None
            assert (await drained(function)).dead_lettered == 1
    found = await admin.describe_topic(world.dead)
    assert found is not None
    assert (found.partitions, found.config) == (1, config)
    (letter,) = await letters(admin, world)
    assert letter.value() == data


async def test_of_an_event_too_large_for_the_topic_a_stub_is_dead_lettered_and_the_next_follow(
    world: TriggerWorld, admin: KafkaAdmin
) -> None:
    """Such as a topic that was there before, or one whose limit somebody has lowered."""
    await admin.ensure_topic(world.dead, 1, 1, {"max.message.bytes": "20000"})
    async with ScriptedServer(refuse) as server:
        world.send("1", data=b"x" * 1_500_000)
        async with world.dispatcher(server.url) as function:
            assert (await drained(function)).dead_lettered == 1
            world.send("2")
            assert (await drained(function)).dead_lettered == 1
    stub, whole = [read(each.headers(), each.value()) for each in await letters(admin, world)]
    assert (stub.data, whole.data) == (None, b"data")
    assert stub.attributes.items() >= {
        "id": "1", "knafkaomitted": "data", "knafkatopic": world.topic, "knafkaoffset": "0",
    }.items()  # fmt: skip
    assert await world.lag() == 0


async def test_a_topic_deleted_under_way_is_made_anew_by_the_next_burial(
    world: TriggerWorld, admin: KafkaAdmin
) -> None:
    async with ScriptedServer(refuse) as server, world.dispatcher(server.url) as function:
        held = Held(function)
        world.send("1")
        await until(lambda: held.lines and held.lines[-1].dead_lettered == 1)
        await admin.delete_topic(world.dead)
        world.send("2")
        await until(lambda: held.lines[-1].dead_lettered == 2, within=60)
        await held.hang_up()
    (letter,) = await letters(admin, world)
    assert dict(letter.headers() or ())["ce_id"] == b"2"
    found = await admin.describe_topic(world.dead)
    assert found is not None
    assert found.config == DEAD_LETTER_TOPIC_CONFIG


async def test_small_dead_letters_in_one_batch_are_never_stubs(
    world: TriggerWorld, admin: KafkaAdmin
) -> None:
    """Kafka calls each record of a batch too large that is larger than the topic's limit."""
    await admin.ensure_topic(world.dead, 1, 1, {"max.message.bytes": "20000"})
    async with ScriptedServer(refuse) as server:
        world.send(*(f"{number}" for number in range(200)), data=b"x" * 2000)
        async with world.dispatcher(server.url) as function:
            assert (await drained(function)).dead_lettered == 200
    found = await admin.read_last(world.dead, 1000)
    assert {dict(each.headers() or ())["ce_id"] for each in found} == {
        b"%d" % number for number in range(200)
    }
    assert [each for each in found if each.value() != b"x" * 2000] == []
