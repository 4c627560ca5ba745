"""What idle Triggers cost the operator: `python loadtests/idle_triggers.py [--triggers 300]`.

The operator's scaler and its look at all topics, with that many Triggers on one Broker's topic, on
a real Kafka that it starts; nothing arrives. Prints CPU by what was done, and what one event in the
quiet costs until a Trigger is woken.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import resource
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

from knafka.clients.kafka_admin import KafkaAdmin
from knafka.clients.kafka_connection import connection
from knafka.clients.kafka_log import KafkaWriter
from knafka.core import names
from knafka.core.contract import Egress, Kafka, Sink
from knafka.core.drain import DrainProgress, DrainRequest, Ended
from knafka.local.kafka_distribution import obtain
from knafka.local.kafka_server import KafkaServer
from knafka_operator.kafkas import Kafkas
from knafka_operator.scaler import Autoscaling

TOPIC = "idle"
PARTITIONS = 10


class Drains:
    """Ends each drain at once, and keeps when the first was held."""

    def __init__(self) -> None:
        self.held = asyncio.Event()

    async def hold(
        self, trigger_id: str, egress: Egress, request: DrainRequest
    ) -> AsyncIterator[DrainProgress]:
        self.held.set()
        yield DrainProgress(ended=Ended.IDLE)


def _cpu() -> float:
    """CPU seconds of this process so far, its threads included."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _egress(number: int, kafka: Kafka) -> Egress:
    return Egress(
        namespace="load",
        broker="default",
        trigger=f"t{number}",
        topic=TOPIC,
        group=names.trigger_group("load", f"t{number}"),
        dead_letter_topic="unused",
        kafka=kafka,
        subscriber=Sink(url="http://unused"),
    )


async def measure(triggers: int, seconds: float) -> None:
    with tempfile.TemporaryDirectory() as directory:
        server = KafkaServer(obtain(), Path(directory))
        await server.start()
        try:
            await _measure(server.bootstrap_servers, triggers, seconds)
        finally:
            await server.stop()


async def _measure(servers: str, triggers: int, seconds: float) -> None:
    drains = Drains()
    kafkas = Kafkas(KafkaAdmin, drains)
    side = kafkas.at(servers, None)
    kafka = Kafka(bootstrap_servers=servers)
    await side.topics.ensure_topic(TOPIC, PARTITIONS, 1, {})
    began, cpu = time.monotonic(), _cpu()
    for number in range(triggers):
        egress = _egress(number, kafka)
        await side.topics.ensure_committed(egress.group, TOPIC)
        await side.scaler.watch(egress.group, egress, Autoscaling())
    side.watched.add(TOPIC)
    print(
        f"{triggers} Triggers made ready: {time.monotonic() - began:.1f} s, "
        f"{(_cpu() - cpu) / triggers * 1e3:.1f} ms of CPU each"
    )
    await asyncio.sleep(15)  # the first look asks for every group
    began, cpu = time.monotonic(), _cpu()
    await asyncio.sleep(seconds)
    lasted, used = time.monotonic() - began, _cpu() - cpu
    print(
        f"idle for {lasted:.0f} s: {used / lasted * 100:.2f} % of one core, "
        f"{used / lasted / triggers * 1e6:.1f} us of CPU a second for each Trigger"
    )
    drains.held.clear()
    began, cpu = time.monotonic(), _cpu()
    writer = KafkaWriter(connection(kafka))
    writer.append(TOPIC, None, b"{}", [], lambda _: None)
    await drains.held.wait()
    print(
        f"one event: the first Trigger is woken after {time.monotonic() - began:.2f} s, "
        f"{_cpu() - cpu:.2f} s of CPU"
    )
    await writer.close(5)
    with contextlib.suppress(asyncio.CancelledError):
        await kafkas.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--triggers", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=60.0, help="of idleness to measure")
    chosen = parser.parse_args()
    asyncio.run(measure(chosen.triggers, chosen.seconds))
