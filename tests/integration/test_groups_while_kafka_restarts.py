"""Questions about groups while their Kafka is killed and started: no process may end by them.

They are asked in a process of their own, as librdkafka would abort it (4605).
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import pytest

from knafka_local.kafka.kafka_server import KafkaServer

pytestmark = pytest.mark.kafka

SOON = 30.0
ASKING = """
import asyncio, sys
from knafka.clients.kafka.admin.kafka_admin import KafkaAdmin
from knafka.clients.kafka.admin.kafka_offsets import KafkaOffsets
from knafka.core.errors import LogError

async def repeat(ask):
    while True:
        try:
            await ask()
            print("answered", flush=True)
        except LogError:
            print("away", flush=True)
        await asyncio.sleep(0.05)

async def main(servers):
    connection = {"bootstrap.servers": servers}
    admin, offsets = KafkaAdmin(connection, request_timeout=1.0), KafkaOffsets(connection)
    async with asyncio.TaskGroup() as tasks:
        for ask in (
            lambda: admin.members("group"),
            lambda: admin.has_group("group"),
            lambda: admin.delete_group("group"),
            lambda: offsets.committed("group", "topic", [0]),
        ):
            tasks.create_task(repeat(ask))

asyncio.run(main(sys.argv[1]))
"""


async def test_questions_about_groups_that_kafka_leaves_unanswered_end_no_process(
    own_kafka: KafkaServer,
) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", ASKING, own_kafka.bootstrap_servers), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None

    async def said(line: str, times: int) -> None:
        for _ in range(times):
            async with asyncio.timeout(SOON):
                while (told := await process.stdout.readline()) != f"{line}\n".encode():  # type: ignore[union-attr]
                    assert told, f"it has ended: {await process.wait()}"

    try:
        await said("answered", 20)
        for _ in range(2):
            assert own_kafka.pid is not None
            os.kill(own_kafka.pid, signal.SIGKILL)
            await own_kafka.wait()
            await said("away", 9)
            await own_kafka.start()
            await said("answered", 20)
        process.terminate()
        assert await process.wait() == -signal.SIGTERM
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
