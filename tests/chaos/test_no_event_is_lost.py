"""Nothing acknowledged is lost and nothing is out of order within a key, whatever is killed.

The gate has the order by key, and `make chaos` every order.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from pathlib import Path

import pytest
from support import functions, traffic
from support.gate import IN_GATE, only_chaos

from knafka.clients.kafka.admin.kafka_admin import KafkaAdmin
from knafka.core.contract import Delivery, Egress, Ingress, Kafka, Order, Sink
from knafka.core.drain import DrainRequest
from knafka_local.kafka.kafka_server import KafkaServer

KEYS = [f"key-{number}" for number in range(200)]
PER_KEY = 20 if IN_GATE else 50
EVENTS = len(KEYS) * PER_KEY
PARTITIONS = 8
DISPATCHERS = 2


async def keep_draining(function: functions.FunctionProcess) -> None:
    """What the scaler does: hold a drain, and start the process again when it dies."""
    while True:
        if function.process.returncode is not None:
            await function.start()
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            async for _ in functions.drain(function, DrainRequest(idle=60, budget=600)):
                pass
        await asyncio.sleep(0.1)  # as the scaler pauses: a dead process refuses at once


@pytest.mark.conformance("KN-BRK-07")
@pytest.mark.kafka
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "order",
    [pytest.param(each, marks=() if each is Order.KEY else only_chaos) for each in Order],
)
async def test_no_event_is_lost_while_dispatchers_are_killed_and_kafka_restarts(
    order: Order, own_kafka: KafkaServer, tmp_path: Path
) -> None:
    """4,000 events over 200 keys (10,000 in `make chaos`); the subscriber fails 10 % of its
    attempts at random; a dispatcher is killed three times and Kafka restarted once (BRK-14,
    KN-BRK-07, CHN-31)."""
    chance = random.Random(7)

    async def behave(key: str, number: int) -> int:
        return 503 if chance.random() < 0.1 else 200

    kafka = Kafka(bootstrap_servers=own_kafka.bootstrap_servers)
    admin = KafkaAdmin({"bootstrap.servers": own_kafka.bootstrap_servers})
    await admin.ensure_topic("events", PARTITIONS, 1, {})
    await admin.ensure_topic("dead", 1, 1, {})
    await admin.ensure_committed("group", "events")
    ingress = Ingress(namespace="test", broker="chaos", topic="events", kafka=kafka)

    async with contextlib.AsyncExitStack() as stack:
        subscriber = await stack.enter_async_context(traffic.CountingSubscriber(behave))
        egress = Egress(
            namespace="test", broker="chaos", trigger=order.value, topic="events", group="group",
            dead_letter_topic="dead", kafka=kafka, subscriber=Sink(url=subscriber.url), order=order,
            delivery=Delivery(retry=20, backoff_delay=0.02, timeout=10),
        )  # fmt: skip
        receiver = await stack.enter_async_context(
            functions.receiver([ingress], tmp_path / "receiver.log")
        )
        dispatchers = [
            await stack.enter_async_context(
                functions.dispatcher(egress, tmp_path / f"dispatcher-{number}.log")
            )
            for number in range(DISPATCHERS)
        ]
        await receiver.ready()
        draining = [asyncio.create_task(keep_draining(each)) for each in dispatchers]
        sender = traffic.Sender(f"{receiver.url}{ingress.path}", KEYS, PER_KEY, pause=0.15)
        sending = asyncio.create_task(sender.run())

        for number, threshold in enumerate((0.15, 0.4, 0.65)):
            await subscriber.arrivals.reach(int(EVENTS * threshold), within=90)
            await dispatchers[number % DISPATCHERS].kill()
            if number == 1:
                await own_kafka.stop()
                await own_kafka.start()

        await asyncio.wait_for(sending, 120)
        await subscriber.arrivals.reach(EVENTS, within=120)
        for task in draining:
            task.cancel()

        assert sender.accepted == EVENTS
        for key in KEYS:
            arrived = subscriber.arrivals.first(key)
            assert sorted(arrived) == list(range(PER_KEY))
            if order is not Order.NONE:
                assert arrived == list(range(PER_KEY)), f"{key} arrived out of order"
        assert await admin.read_last("dead", 10) == []
        assert subscriber.attempts > EVENTS, "the subscriber never failed: nothing was tested"
