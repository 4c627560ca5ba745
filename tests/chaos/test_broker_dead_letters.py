"""One record that holds no event, and a Broker with 38 Triggers, each with a dispatcher process.

In the gate four dispatchers show it (tests/integration/test_broker_dead_letters_in_kafka.py). Here
all are awake and read the record within a moment, which is when two may write at once.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from support.functions import FunctionProcess, dispatcher, drain
from support.gate import only_chaos
from support.kafka import Kafka, MakeTopic
from support.trigger_world import TriggerWorld
from support.waiting import until

from knafka.clients.kafka.admin.kafka_admin import KafkaAdmin
from knafka.core import names
from knafka.core.contract import Egress
from knafka.core.dead_letter import origin_of
from knafka.core.drain import DrainProgress, DrainRequest
from knafka.core.events.kafka_binding import headers_of

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(1200), only_chaos]

TRIGGERS = 38
RECORDS = 30
AWAKE = DrainRequest(idle=8.0)
"""For longer than a turn: nobody sleeps before all have had theirs."""


async def test_38_dispatchers_make_one_dead_letter_of_a_record_nine_times_in_ten(
    kafka: Kafka, topic: MakeTopic, tmp_path: Path
) -> None:
    """CE-K8, KN-DLV-09: in one topic, never more than two, and all 38 go on."""
    world = TriggerWorld(kafka, topic, tmp_path)
    admin = KafkaAdmin({"bootstrap.servers": kafka.bootstrap_servers})
    broker = f"b{uuid.uuid4().hex[:8]}"
    ours = names.broker_dead_letter_topic("ns", broker)
    egresses = [_egress(world, broker, number) for number in range(TRIGGERS)]
    for each in egresses:
        await admin.ensure_committed(each.group, world.topic, "earliest")
    try:
        async with AsyncExitStack() as stack:
            functions = [
                await stack.enter_async_context(dispatcher(each, tmp_path / f"{each.trigger}.log"))
                for each in egresses
            ]
            await asyncio.gather(*(each.ready(120) for each in functions))
            for number in range(RECORDS):
                progress = await _read_by_all(functions, world)
                assert all(each.ended is not None and not each.error for each in progress)
                written = sum(each.dead_lettered for each in progress)
                print(f"record {number}: {written} dead letters", flush=True)
        lags = await admin.lags([each.group for each in egresses], world.topic)
        assert {each.total for each in lags.values()} == {0}
        made = [each for each in await admin.topics() if f"-{broker}-" in each]
        assert made == [ours]
        letters = [origin_of(headers_of(each) or []) for each in await world.records(ours)]
        counts = [letters.count((world.topic, 0, number)) for number in range(RECORDS)]
        print(f"{TRIGGERS} dispatchers: {counts.count(1)} of {RECORDS} records have one letter")
        assert sum(counts) == len(letters)
        assert set(counts) <= {1, 2}
        assert counts.count(1) >= 0.7 * RECORDS, "wanted 0.9; fewer than 0.7 are no bad luck"
    finally:
        await admin.delete_topic(ours)
        await admin.close()


def _egress(world: TriggerWorld, broker: str, number: int) -> Egress:
    return world.egress("http://127.0.0.1:9/").model_copy(
        update={
            "broker": broker,
            "trigger": f"t{number}",
            "group": f"{world.topic}-{number}",
            "dead_letter_topic": names.dead_letter_topic("ns", broker, f"t{number}"),
            "shares_topic": True,
        }
    )


async def _read_by_all(
    functions: Sequence[FunctionProcess], world: TriggerWorld
) -> Sequence[DrainProgress]:
    """One drain of each, in which it reads one record that holds no event."""
    latest: list[DrainProgress] = [DrainProgress()] * len(functions)

    async def held(number: int) -> None:
        async for line in drain(functions[number], AWAKE):
            latest[number] = line

    drains = [asyncio.create_task(held(number)) for number in range(len(functions))]
    await until(lambda: all(each.partitions for each in latest), within=60)
    world.store(b"k", [("ce_specversion", b"1.0")], b"raw")
    world.flush()
    await asyncio.gather(*drains)
    return latest
