"""At most once never repeats, whatever is killed (BUS-5, BUS-S7)."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from pathlib import Path

import pytest
from chaos.test_no_event_is_lost import keep_draining
from support import functions, traffic
from support.waiting import until_settled

from knafka.clients.kafka.admin.kafka_admin import KafkaAdmin
from knafka.core.contract import Delivery, Egress, Ingress, Kafka, Sink
from knafka.ports.log import Record
from knafka_local.kafka.kafka_server import KafkaServer

KEYS = [f"key-{number}" for number in range(50)]
PER_KEY = 40
EVENTS = len(KEYS) * PER_KEY
PARTITIONS = 4
MAX_IN_FLIGHT = 20
KILLS = 4


@pytest.mark.conformance("BUS-5", "BUS-38", "BUS-39", "BUS-40", "BUS-S7")
@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_no_event_is_begun_twice_while_dispatchers_are_killed(
    kafka: KafkaServer, tmp_path: Path
) -> None:
    """2,000 events over 50 keys, each with one attempt; two dispatchers, one after the other killed
    four times while it delivers. What the kills lose is bounded."""
    chance = random.Random(11)

    attempts: Counter[tuple[str, int]] = Counter()

    async def behave(key: str, number: int) -> int:
        attempts[key, number] += 1
        await asyncio.sleep(chance.random() * 0.02)
        return 200

    connection = Kafka(bootstrap_servers=kafka.bootstrap_servers)
    admin = KafkaAdmin({"bootstrap.servers": kafka.bootstrap_servers})
    names = [f"at-most-once-{each}-{tmp_path.name}" for each in ("events", "dead", "group")]
    topic, dead, group = names
    await admin.ensure_topic(topic, PARTITIONS, 1, {})
    await admin.ensure_topic(dead, 1, 1, {})
    await admin.ensure_committed(group, topic)
    ingress = Ingress(namespace="test", broker="chaos", topic=topic, kafka=connection)

    async with contextlib.AsyncExitStack() as stack:
        subscriber = await stack.enter_async_context(traffic.CountingSubscriber(behave))
        egress = Egress(
            namespace="test", broker="chaos", trigger="once", topic=topic, group=group,
            dead_letter_topic=dead, kafka=connection, subscriber=Sink(url=subscriber.url),
            delivery=Delivery(timeout=10), max_in_flight=MAX_IN_FLIGHT, at_most_once=True,
        )  # fmt: skip
        receiver = await stack.enter_async_context(
            functions.receiver([ingress], tmp_path / "receiver.log")
        )
        dispatchers = [
            await stack.enter_async_context(
                functions.dispatcher(egress, tmp_path / f"dispatcher-{number}.log")
            )
            for number in range(2)
        ]
        await receiver.ready()
        draining = [asyncio.create_task(keep_draining(each)) for each in dispatchers]
        sender = traffic.Sender(f"{receiver.url}{ingress.path}", KEYS, PER_KEY, pause=0.1)
        sending = asyncio.create_task(sender.run())
        for number in range(KILLS):
            await subscriber.arrivals.reach(EVENTS * (number + 1) // 10, within=60)
            await dispatchers[number % 2].kill()
        await asyncio.wait_for(sending, 60)
        await until_settled(admin, group, topic, within=90)
        for each in draining:
            each.cancel()
        for process in dispatchers:
            await process.terminate()

        # A request that the sender repeats, as it heard no answer, may be stored twice (KN-BRK-07).
        stored = Counter(map(_numbered, await admin.read_last(topic, 2 * EVENTS)))
        assert set(stored) == {(key, number) for key in KEYS for number in range(PER_KEY)}
        assert attempts - stored == Counter()
        lost = (stored - attempts).total()
        print(f"{lost} of {stored.total()} records of {EVENTS} events were lost in {KILLS} kills")
        assert lost <= KILLS * 2 * MAX_IN_FLIGHT + PARTITIONS * MAX_IN_FLIGHT
        for key in KEYS:
            arrived = subscriber.arrivals.by_key[key]
            assert arrived == sorted(arrived), f"{key} arrived out of order"
        assert await admin.read_last(dead, 10) == []
    await admin.close()


def _numbered(record: Record) -> tuple[str, int]:
    key, _, number = dict(record.headers() or ())["ce_id"].decode().rpartition("-")
    return key, int(number)
