"""`python -m knafka.receiver`, the real process on real Kafka: how it ends (issue 3, item 8)."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest
from support.functions import receiver
from support.http_cases import EVENT
from support.kafka import Kafka
from support.receiver_requests import (
    Request,
    attributes,
    ingress,
)
from support.receivers import LIMIT, running
from support.waiting import until, until_frozen
from support.wire import connected

from knafka_local.kafka.kafka_distribution import KafkaDistribution
from knafka_local.kafka.kafka_server import KafkaServer

pytestmark = [pytest.mark.kafka, pytest.mark.asyncio(loop_scope="module")]

END = 10.0
"""Seconds from SIGTERM to the end (issue 3, item 8)."""


class Sender:
    """Sends numbered events over one connection, each after the answer to the last."""

    def __init__(self) -> None:
        self.accepted: list[bytes] = []
        self.statuses: list[int] = []

    async def run(self, port: int, name: int, body: bytes = b"") -> None:
        """Until the connection ends."""
        try:
            async with connected(port) as wire:
                for number in range(1_000_000):
                    number_ = b"%d-%d" % (name, number)
                    wire.send(Request("", 202, attributes(id=number_), body).wire())
                    response = await wire.response()
                    self.statuses.append(response.status)
                    if response.status == 202:
                        self.accepted.append(number_)
                    elif response.status == 503:
                        assert int(response.headers[b"retry-after"]) > 0
                        await asyncio.sleep(0.05)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass


async def test_sigterm_under_load_answers_what_it_took_and_loses_nothing(
    kafka: Kafka, tmp_path: Path
) -> None:
    """Issue 3, item 8: it ends within 10 s, and every 202 is in the topic."""
    async with running(kafka.bootstrap_servers, tmp_path / "log") as served:
        senders = [Sender() for _ in range(20)]
        tasks = [
            asyncio.create_task(each.run(served.process.port, name))
            for name, each in enumerate(senders)
        ]
        await until(lambda: sum(len(each.accepted) for each in senders) >= 1000)
        code = await served.process.terminate(within=END)
        assert code in (0, -signal.SIGTERM), served.process.log
        for task in tasks:
            task.cancel()  # those whose connection waits for the next process
        await asyncio.wait(tasks)
        accepted = {number for each in senders for number in each.accepted}
        stored = {dict(each.headers() or [])["ce_id"] for each in await served.records(1_000_000)}
        assert accepted <= stored
        # One request a sender may have been stored and not answered: not lost, only repeated.
        assert len(stored - accepted) <= len(senders)
        assert {status for each in senders for status in each.statuses} <= {202, 503}
        assert "Traceback" not in served.process.log


async def test_without_kafka_it_is_alive_and_ready_says_503_and_ends_in_time(
    tmp_path: Path,
) -> None:
    """Ready, or Knative would start more of them (issue 13, item 0); what Kafka never acknowledged
    was never answered 202."""
    async with receiver([ingress("127.0.0.1:1")], tmp_path / "log") as process:
        await process.ready()
        assert (await process.get("/healthz"))[0] == 200
        async with connected(process.port) as wire:
            wire.send(EVENT)
            response = await wire.response()
            assert response.status == 503
            assert int(response.headers[b"retry-after"]) > 0
            wire.send(EVENT)
            await asyncio.sleep(0.2)
            await process.terminate(within=END)
            assert (await wire.response()).status == 503
        assert "Traceback" not in process.log


async def test_memory_stays_bounded_while_kafka_is_stopped_and_all_is_well_afterwards(
    kafka_distribution: KafkaDistribution, tmp_path: Path
) -> None:
    """A Kafka of its own, stopped with SIGSTOP: it takes connections and answers nothing."""
    server = KafkaServer(kafka_distribution, tmp_path / "kafka")
    await server.start()
    try:
        async with running(server.bootstrap_servers, tmp_path / "log") as served:
            assert await served.status(EVENT) == 202
            assert server.pid is not None
            os.kill(server.pid, signal.SIGSTOP)
            await until_frozen(server.pid)
            before = rss(served.process.process.pid)
            body = os.urandom(LIMIT - 1000)
            senders = [Sender() for _ in range(400)]
            tasks = [
                asyncio.create_task(each.run(served.process.port, name, body))
                for name, each in enumerate(senders)
            ]
            most = before
            deadline = time.monotonic() + 6
            while time.monotonic() < deadline:
                await asyncio.sleep(0.1)
                most = max(most, rss(served.process.process.pid))
            assert (await served.process.get("/healthz"))[0] == 200
            statuses = [status for each in senders for status in each.statuses]
            assert set(statuses) == {503}
            # 64 MiB wait for Kafka and as many are being received, beside buffers and fragments.
            assert most - before < 300 * 1024 * 1024, f"{(most - before) >> 20} MiB more"
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            os.kill(server.pid, signal.SIGCONT)
            async with asyncio.timeout(60):
                while await served.status(EVENT) != 202:  # noqa: ASYNC110  # Kafka wakes up
                    await asyncio.sleep(0.1)
            os.kill(server.pid, signal.SIGSTOP)
            await until_frozen(server.pid)
            async with served.connect() as wire:
                wire.send(EVENT)
                await asyncio.sleep(0.1)
                await served.process.terminate(within=END)
                assert (await wire.response()).status == 503
            os.kill(server.pid, signal.SIGCONT)
            assert "Traceback" not in served.process.log
    finally:
        if server.pid is not None:
            os.kill(server.pid, signal.SIGCONT)
        await server.stop()


def rss(pid: int) -> int:
    """Resident bytes of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(
    ("environment", "code", "told"),
    [
        ({}, 3, "KNAFKA_INGRESSES: is not set"),
        ({"KNAFKA_INGRESSES": "{"}, 3, "KNAFKA_INGRESSES"),
        ({"KNAFKA_INGRESSES": '[{"namespace":"n"}]'}, 3, "missing field(s): [0].broker"),
        ({"PORT": "many"}, 2, "PORT: invalid value: many"),
        ({"KNAFKA_LOG_LEVEL": "loud"}, 2, "KNAFKA_LOG_LEVEL: invalid value: loud"),
        ({"secret": "protocol=NONE"}, 3, "protocol: invalid value"),
        ({"secret": "protocol=SSL ca.crt=rubbish user.skip=true"}, 3, "ssl.ca.pem"),
    ],
    ids=lambda each: str(each)[:30],
)
async def test_a_start_that_can_not_work_says_why_in_one_line(
    environment: dict[str, str], code: int, told: str, tmp_path: Path
) -> None:
    environment = dict(environment)
    if secret := environment.pop("secret", None):
        for each in secret.split():
            key, _, value = each.partition("=")
            (tmp_path / key).write_text(value)
        kafka = {"bootstrapServers": "127.0.0.1:1", "secretPath": str(tmp_path)}
        declared = {"namespace": "n", "broker": "b", "topic": "t", "kafka": kafka}
        environment["KNAFKA_INGRESSES"] = json.dumps([declared])
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "knafka.receiver",
        env={**os.environ, "HOST": "127.0.0.1", "PORT": "0", **environment},
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    async with asyncio.timeout(30):
        _, output = await process.communicate()
    lines = output.decode().splitlines()
    assert process.returncode == code, lines
    (line,) = (line for line in lines if re.search("(^|: )error: ", line))
    assert told in line
    assert len(lines) <= 2, "nothing but uvicorn's own goodbye beside it"
