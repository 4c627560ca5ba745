"""Dispatchers' processes: one for each drain, which outlives a request whose budget is spent."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.waiting import until

from knafka import settings
from knafka.core.contract import Egress, Kafka, Shard, Sink
from knafka.core.drain import DrainRequest, Ended
from knafka_client.sockets import listen, port_of
from knafka_local.processes import dispatchers
from knafka_local.processes.children import Child, Command
from knafka_local.processes.dispatchers import DispatcherProcesses

DISPATCHER = """
import os, socket, sys
listener = socket.socket(fileno=int(sys.argv[1]))
while True:
    connection, _ = listener.accept()
    connection.recv(65536)
    if "ENDED" == "killed":
        os.kill(os.getpid(), 9)
    body = b'{"PROGRESS": %d, "ended": "ENDED"}\\n' % os.getpid()
    connection.sendall(b"HTTP/1.1 200 OK\\r\\ncontent-length: %d\\r\\n\\r\\n%b" % (len(body), body))
    connection.close()
"""
"""Ends each request at once, and tells its pid as what it has read; or dies."""

KAFKA = Kafka(bootstrap_servers="a:1")
EGRESS = Egress(
    namespace="default",
    broker="shop",
    trigger="orders",
    topic="topic",
    group="group",
    dead_letter_topic="dead",
    kafka=KAFKA,
    subscriber=Sink(url="http://there/"),
)
ANOTHER = EGRESS.model_copy(update={"group": "another"})


class Processes(DispatcherProcesses):
    """Real processes of a dispatcher that needs no Kafka, and ends its requests as `ends` says."""

    ends: str = Ended.BUDGET

    async def _start(
        self, function: dispatchers._DispatcherFunction, log: Path
    ) -> dispatchers._DispatcherProcess:
        progress = "read" if function.variable == settings.EGRESS else "contract"
        code = DISPATCHER.replace("ENDED", self.ends).replace("PROGRESS", progress)
        with listen() as listener:
            arguments = (sys.executable, "-c", code, str(listener.fileno()))
            child = await Child.start(Command(arguments, log, listener=listener))
            return dispatchers._DispatcherProcess(child, port_of(listener))

    async def pid(self, egress: Egress = EGRESS) -> int:
        """Of the process that answers the next request."""
        holding = self.hold("id", egress, DrainRequest(), asyncio.Event())
        return [each async for each in holding][-1].read

    async def pid_of_shard(self, shard: Shard) -> int:
        holding = self.hold_shard(shard, DrainRequest(), asyncio.Event())
        return [each async for each in holding][-1].contract


@asynccontextmanager
async def processes(logs: Path) -> AsyncIterator[Processes]:
    found = Processes(logs)
    try:
        yield found
    finally:
        await found.close()


def runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_the_next_request_goes_on_with_the_drain_of_one_whose_budget_is_spent(
    tmp_path: Path,
) -> None:
    async with processes(tmp_path) as it:
        first = await it.pid()
        assert await it.pid() == first
        other = await it.pid(ANOTHER)
        assert other != first, "another Egress has another drain"
    assert not runs(first)
    assert not runs(other)


async def test_the_drains_of_a_shard_have_one_process(tmp_path: Path) -> None:
    shard = Shard(group="knafka-shard-default-shop-0-ab", kafka=KAFKA, contract_topic="contract")
    async with processes(tmp_path) as it:
        own = await it.pid()
        shared = await it.pid_of_shard(shard)
        assert shared != own
        assert await it.pid_of_shard(shard) == shared
        assert await it.pid_of_shard(shard.model_copy(update={"group": "another"})) != shared
    assert (tmp_path / "shard-default-shop-0-ab.log").exists()


async def test_a_trigger_with_the_longest_name_has_a_process_and_a_log(tmp_path: Path) -> None:
    longest = EGRESS.model_copy(update={"namespace": "n" * 63, "trigger": "t" * 253})
    async with processes(tmp_path) as it:
        assert await it.pid(longest)
        assert await it.pid(longest.model_copy(update={"kind": "Subscription"}))
    assert len(os.listdir(tmp_path)) == 2


async def test_a_process_ends_with_its_drain(tmp_path: Path) -> None:
    async with processes(tmp_path) as it:
        it.ends = Ended.IDLE
        assert not runs(await it.pid())


async def test_a_process_that_dies_is_an_error_with_its_signal_and_its_log(tmp_path: Path) -> None:
    async with processes(tmp_path) as it:
        it.ends = "killed"
        with pytest.raises(OSError, match=r"was ended by SIGKILL .*: see .*default\.orders\.log"):
            await it.pid()


async def test_a_process_that_nobody_asks_again_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatchers, "NEXT_REQUEST_TIMEOUT", 0.05)
    async with processes(tmp_path) as it:
        first = await it.pid()
        await until(lambda: not runs(first))
        assert await it.pid() != first
