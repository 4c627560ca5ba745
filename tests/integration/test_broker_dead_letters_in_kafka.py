"""Dispatchers of their own on a real Kafka: one dead letter of a record that holds no event."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.kafka import Kafka, MakeTopic
from support.trigger_world import TriggerWorld

from knafka.clients.kafka.admin.kafka_admin import KafkaAdmin
from knafka.core import names
from knafka.core.contract import Egress
from knafka.core.dead_letter import origin_of
from knafka.core.drain import DrainProgress
from knafka.dispatcher.connecting import TAIL_CLOSE_TIMEOUT, connect
from knafka.dispatcher.served import ServedEgress


@pytest.fixture
def world(kafka: Kafka, topic: MakeTopic, tmp_path: Path) -> TriggerWorld:
    return TriggerWorld(kafka, topic, tmp_path)


@pytest.fixture
async def admin(kafka: Kafka) -> AsyncIterator[KafkaAdmin]:
    made = KafkaAdmin({"bootstrap.servers": kafka.bootstrap_servers})
    yield made
    await made.close()


async def drained(egress: Egress, turn: float) -> DrainProgress:
    """A process of its own, as far as Kafka knows; `turn` is what it draws, from 0 to 1."""
    clients = connect(egress, {}, None)
    assert clients.broker_dead_letters is not None
    clients.broker_dead_letters._draw = lambda: turn
    drain = ServedEgress(egress).new_drain(egress, clients)
    drain.idle = 1.0
    try:
        async with asyncio.timeout(60):
            return await drain.run()
    finally:
        await clients.broker_dead_letters.close(TAIL_CLOSE_TIMEOUT)
        await clients.subscriber.close()
        await clients.writer.close(1.0)


async def test_triggers_of_a_broker_have_one_dead_letter_of_a_record_and_one_topic(
    world: TriggerWorld, admin: KafkaAdmin
) -> None:
    """CE-K8, KN-DLV-09: at once, and where one of them comes late."""
    broker = f"b{uuid.uuid4().hex[:8]}"
    ours = names.broker_dead_letter_topic("ns", broker)
    egresses = [
        world.egress("http://127.0.0.1:9/").model_copy(
            update={
                "broker": broker,
                "trigger": f"t{number}",
                "group": f"{world.topic}-{number}",
                "dead_letter_topic": names.dead_letter_topic("ns", broker, f"t{number}"),
                "shares_topic": True,
            }
        )
        for number in range(4)
    ]
    for each in egresses:
        await admin.ensure_committed(each.group, world.topic, "earliest")
    world.store(b"k", [("ce_specversion", b"1.0")], b"raw")
    world.flush()
    try:
        *first, late = egresses
        progress = await asyncio.gather(*map(drained, first, (0.0, 0.5, 1.0)))
        progress.append(await drained(late, 0.0))
        (letter,) = await world.records(ours)
        assert origin_of(letter.headers()) == (world.topic, 0, 0)
        assert sorted(each.dead_lettered for each in progress) == [0, 0, 0, 1]
        lags = await admin.lags([each.group for each in egresses], world.topic)
        assert [each.total for each in lags.values()] == [0, 0, 0, 0]
        made = [each for each in await admin.topics() if f"-{broker}-" in each]
        assert made == [ours]
    finally:
        await admin.delete_topic(ours)
