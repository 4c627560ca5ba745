"""The real receiver while its Kafka is killed, frozen, or not there yet (issue 13, item 0)."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.functions import FunctionProcess, receiver
from support.http_cases import EVENT
from support.receiver_requests import ingress
from support.second_broker import second_broker
from support.waiting import until_frozen
from support.wire import connected

from knafka.clients.kafka.admin.kafka_admin import KafkaAdmin
from knafka.clients.kafka.producers.kafka_writer import KafkaWriter
from knafka_local.kafka.kafka_distribution import KafkaDistribution
from knafka_local.kafka.kafka_server import KafkaServer

pytestmark = pytest.mark.kafka

SOON = 30.0


class Served:
    """A receiver and its Kafka."""

    def __init__(self, process: FunctionProcess, kafka: KafkaServer) -> None:
        self.process = process
        self.kafka = kafka

    async def post(self) -> tuple[int, str]:
        async with connected(self.process.port) as wire:
            wire.send(EVENT)
            response = await wire.response()
        if response.status == 503:
            assert int(response.headers[b"retry-after"]) > 0
        return response.status, response.body.decode()

    async def known(self, *, away: bool) -> None:
        """Wait, without sending any event, until the receiver knows."""
        line = f'knafka_receiver_kafka_away{{broker="broker",namespace="ns"}} {float(away)}'
        async with asyncio.timeout(SOON):
            while line not in (await self.process.get("/metrics"))[1].decode().splitlines():  # noqa: ASYNC110  # nobody tells
                await asyncio.sleep(0.05)

    async def answers_503_at_once(self) -> None:
        """What is answered so isn't appended: the record would wait for `DELIVERY_TIMEOUT`."""
        status, body = await self.post()
        assert (status, body.strip()) == (503, "Kafka is away: send the event again")
        assert (await self.process.get("/health/readiness"))[0] == 200
        assert (await self.process.get("/health/liveness"))[0] == 200

    async def accepts(self) -> None:
        async with asyncio.timeout(SOON):
            status, body = await self.post()
        assert status == 202, body


@asynccontextmanager
async def served(
    distribution: KafkaDistribution, directory: Path, *, started: bool = True
) -> AsyncIterator[Served]:
    kafka = KafkaServer(distribution, directory / "kafka")
    await kafka.start()
    admin = KafkaAdmin({"bootstrap.servers": kafka.bootstrap_servers})
    await admin.ensure_topic("events", 3, 1, {})
    await admin.close()
    if not started:
        await kafka.stop()
    declared = ingress(kafka.bootstrap_servers, "events")
    try:
        async with receiver([declared], directory / "log") as process:
            yield Served(process, kafka)
            assert "Traceback" not in process.log
    finally:
        await kafka.stop()


async def test_while_kafka_is_killed_events_are_503_at_once_and_202_when_it_is_back(
    kafka_distribution: KafkaDistribution, tmp_path: Path
) -> None:
    """Nobody need send an event for the receiver to hear that it is back."""
    async with served(kafka_distribution, tmp_path) as world:
        await world.process.ready()
        await world.accepts()
        assert world.kafka.pid is not None
        os.kill(world.kafka.pid, signal.SIGKILL)
        await world.kafka.wait()
        await world.known(away=True)
        await world.answers_503_at_once()
        await world.kafka.start()
        await world.known(away=False)
        await world.accepts()


async def test_while_kafka_is_frozen_events_are_503_at_once_and_202_when_it_thaws(
    kafka_distribution: KafkaDistribution, tmp_path: Path
) -> None:
    """It takes connections and answers nothing: only an event without an answer tells."""
    async with served(kafka_distribution, tmp_path) as world:
        await world.process.ready()
        await world.accepts()
        pid = world.kafka.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        await until_frozen(pid)
        try:
            waiting = asyncio.create_task(world.post())
            await world.known(away=True)
            await world.answers_503_at_once()
        finally:
            os.kill(pid, signal.SIGCONT)
        await world.known(away=False)
        await world.accepts()
        assert (await waiting)[0] in (202, 503)


async def test_a_receiver_that_starts_while_kafka_is_away_is_ready_and_answers_503_by_itself(
    kafka_distribution: KafkaDistribution, tmp_path: Path
) -> None:
    """Or Knative would start more of them."""
    async with served(kafka_distribution, tmp_path, started=False) as world:
        await world.process.ready()
        await world.known(away=True)
        await world.answers_503_at_once()
        await world.kafka.start()
        await world.known(away=False)
        await world.accepts()


async def test_one_broker_of_two_that_is_killed_or_frozen_is_not_kafka_away(
    kafka_distribution: KafkaDistribution, tmp_path: Path
) -> None:
    first = KafkaServer(kafka_distribution, tmp_path / "kafka")
    await first.start()
    try:
        async with second_broker(kafka_distribution, first, tmp_path / "second") as second:
            admin = KafkaAdmin({"bootstrap.servers": first.bootstrap_servers})
            await admin.ensure_topic("events", 8, 1, {})
            writer = KafkaWriter({"bootstrap.servers": first.bootstrap_servers})
            await writer.reach(SOON)
            stored, failed = 0, 0

            def reported(error: object) -> None:
                nonlocal stored, failed
                stored, failed = stored + (error is None), failed + (error is not None)

            for harm in (signal.SIGSTOP, signal.SIGKILL):
                os.kill(second.pid, harm)
                before, loop = stored, asyncio.get_running_loop()
                until = loop.time() + 12  # longer than it takes to know of a Kafka that is away
                while loop.time() < until or stored == before:
                    writer.append("events", None, b"x", [], reported)
                    assert writer.away is None, writer.away
                    await asyncio.sleep(0.05)
                assert stored > before
            await writer.close(1)
            await admin.close()
    finally:
        await first.stop()
