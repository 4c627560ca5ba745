"""The functions as real processes: start, wait until ready, end, kill, start again.

The listening socket belongs to the test, as it belongs to the supervisor in local mode: a process
that is killed and started again is found at the same address.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

from knafka.core.addresses import LOCAL_ADDRESSES
from knafka.core.contract import Egress, Ingress
from knafka.core.documents import dump
from knafka.core.drain import DrainProgress, DrainRequest
from knafka.core.sensor.contract import SensorContract
from knafka.settings import EGRESS, INGRESSES, LOG_LEVEL, SENSOR


class FunctionProcess:
    """One `python -m knafka.receiver`, `.dispatcher` or `.sensor`; an async context manager."""

    def __init__(self, module: str, environment: Mapping[str, str], log: Path) -> None:
        self._module = module
        local = {LOG_LEVEL: "info", LOCAL_ADDRESSES: "allowed"}
        self.environment = {**os.environ, **local, **environment}
        self._log = log
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.port: int = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.process: asyncio.subprocess.Process

    @staticmethod
    def of(process: asyncio.subprocess.Process, port: int) -> FunctionProcess:
        """A process that somebody else started and that serves `port` by itself."""
        function = FunctionProcess.__new__(FunctionProcess)
        function.process = process
        function.port = port
        function.url = f"http://127.0.0.1:{port}"
        return function

    @property
    def log(self) -> str:
        """What the process wrote to stderr, over all its starts."""
        return self._log.read_text()

    async def start(self) -> None:
        """Start (again); returns as soon as the process exists, see `ready`."""
        with self._log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", self._module, "--fd", str(self._socket.fileno()),
                env=self.environment, pass_fds=[self._socket.fileno()],
                stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    async def ready(self, within: float = 30.0) -> None:
        """Wait for GET /health/readiness to say 200; fails if the process ends instead."""
        async with asyncio.timeout(within):
            while (await self.get("/health/readiness"))[0] != 200:
                assert self.process.returncode is None, f"{self.url} ended"
                await asyncio.sleep(0.05)

    async def get(self, path: str) -> tuple[int, bytes]:
        """Status and body of a GET; status 0 while nobody answers."""
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            return 0, b""
        try:
            writer.write(f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
            response = await reader.read()
        except ConnectionError:  # it is killed
            return 0, b""
        finally:
            writer.close()
        head, _, body = response.partition(b"\r\n\r\n")
        return int(head.split(b" ")[1]) if head else 0, body

    async def kill(self) -> None:
        """`kill -9`, if it runs."""
        await self._end(signal.SIGKILL)

    async def terminate(self, within: float = 10.0) -> int:
        """SIGTERM; returns the exit code, fails if it takes longer than `within` seconds."""
        async with asyncio.timeout(within):
            return await self._end(signal.SIGTERM)

    async def _end(self, number: signal.Signals) -> int:
        if self.process.returncode is None:
            self.process.send_signal(number)
        return await self.process.wait()

    async def __aenter__(self) -> FunctionProcess:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill()
        self._socket.close()


def receiver(ingresses: Sequence[Ingress], log: Path) -> FunctionProcess:
    contract = json.dumps([dump(each) for each in ingresses])
    return FunctionProcess("knafka.receiver", {INGRESSES: contract}, log)


def dispatcher(egress: Egress, log: Path) -> FunctionProcess:
    return FunctionProcess("knafka.dispatcher", {EGRESS: json.dumps(dump(egress))}, log)


def sensor(of: SensorContract, log: Path) -> FunctionProcess:
    return FunctionProcess("knafka.sensor", {SENSOR: json.dumps(dump(of))}, log)


async def drain(function: FunctionProcess, request: DrainRequest) -> AsyncIterator[DrainProgress]:
    """Ask a dispatcher to drain; yields its progress until it ends or the connection breaks."""
    reader, writer = await asyncio.open_connection("127.0.0.1", function.port)
    try:
        body = request.model_dump_json(by_alias=True).encode()
        writer.write(
            b"POST /drain HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
        )
        await reader.readuntil(b"\r\n\r\n")
        async for line in reader:
            if line.startswith(b"{"):  # between the lines are the sizes of the chunks
                yield DrainProgress.model_validate_json(line)
            if line == b"0\r\n":
                return
    finally:
        writer.close()
