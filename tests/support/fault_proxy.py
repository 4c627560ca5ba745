"""A proxy between clients and a real Kafka that does to chosen produce requests what networks,
restarts and elections do.

    async with FaultProxy() as proxy:                # clients are told its address as Kafka's own
        server = KafkaServer(..., port=proxy.kafka_port, properties=proxy.advertised)
        proxy.then(Fault.REJECT)                     # with the next produce request

Everything but produce requests passes through untouched.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from enum import Enum
from types import TracebackType
from typing import Final, Self

from support.loopback import LoopbackServer

from knafka_client.sockets import HOST, free_port
from knafka_local.kafka.kafka_server import CLIENTS

PRODUCE: Final = 0
"""The key of a produce request, as Kafka's protocol numbers them."""

TOPIC: Final = b"fault-proxy-topic"
"""The topic that produce requests are rejected for; they must name no other."""
_NOWHERE: Final = b"fault-proxy-none!"
assert len(_NOWHERE) == len(TOPIC)


HELD: Final = 1.0
"""Seconds for which a rejection waits for the next request's answer, so that both are under way."""


class Fault(Enum):
    """What becomes of one produce request."""

    NONE = "passed through"
    REJECT = "rejected, as by a node that doesn't have the partition yet"
    SWALLOW_ANSWER = "stored, and its answer is lost"
    CUT_BEFORE = "the connection ends before Kafka sees it"
    CUT_AFTER = "the connection ends when Kafka has it"


class FaultProxy:
    """Listens on a free port of loopback; one event loop owns it."""

    def __init__(self) -> None:
        self.port = 0
        self.kafka_port = free_port()
        """Where Kafka itself is to listen."""
        self.faults: deque[Fault] = deque()
        self.produced = 0
        """Produce requests so far."""
        self._server = LoopbackServer(self._connected)

    @property
    def bootstrap_servers(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def advertised(self) -> Mapping[str, str]:
        """Kafka's properties that send its clients here."""
        return {"advertised.listeners": f"{CLIENTS}://{self.bootstrap_servers}"}

    def then(self, *faults: Fault) -> None:
        """Do this to the next produce requests."""
        self.faults.extend(faults)

    async def __aenter__(self) -> Self:
        await self._server.__aenter__()
        self.port = self._server.port
        return self

    async def __aexit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        await self._server.__aexit__()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            to_kafka = await asyncio.open_connection(HOST, self.kafka_port)
            await _Connection(self, (reader, writer), to_kafka).run()


class _Connection:
    """One client's connection and the one to Kafka that belongs to it."""

    def __init__(
        self,
        proxy: FaultProxy,
        client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        kafka: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        self._proxy = proxy
        self._from_client, self._to_client = client
        self._from_kafka, self._to_kafka = kafka
        self._faults: dict[int, Fault] = {}
        """By the correlation id of a request that isn't answered yet."""
        self._rejections: list[bytes] = []
        """Answers held back, see `HELD`."""

    async def run(self) -> None:
        tasks = [asyncio.create_task(each) for each in (self._requests(), self._answers())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.gather(*tasks, return_exceptions=True)
            self._to_client.close()
            self._to_kafka.close()

    async def _requests(self) -> None:
        while True:
            frame = await _frame(self._from_client)
            key, _, correlation = struct.unpack(">hhi", frame[:8])
            fault = Fault.NONE
            if key == PRODUCE:
                self._proxy.produced += 1
                if self._proxy.faults:
                    fault = self._proxy.faults.popleft()
            if fault is Fault.CUT_BEFORE:
                return
            if fault is Fault.REJECT:
                frame = frame.replace(TOPIC, _NOWHERE)
            if key == PRODUCE:
                self._faults[correlation] = fault
            self._to_kafka.write(_framed(frame))

    async def _answers(self) -> None:
        while True:
            frame = await _frame(self._from_kafka)
            (correlation,) = struct.unpack(">i", frame[:4])
            match self._faults.pop(correlation, None):
                case Fault.SWALLOW_ANSWER:
                    continue
                case Fault.CUT_AFTER:
                    return
                case Fault.REJECT:
                    self._rejections.append(frame.replace(_NOWHERE, TOPIC))
                    asyncio.get_running_loop().call_later(HELD, self._reject)
                    continue
                case Fault.NONE:
                    self._reject()
            self._to_client.write(_framed(frame))

    def _reject(self) -> None:
        """Send what was held back: answers come in the order of their requests."""
        for frame in self._rejections:
            self._to_client.write(_framed(frame))
        self._rejections.clear()


async def _frame(reader: asyncio.StreamReader) -> bytes:
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    return await reader.readexactly(size)


def _framed(frame: bytes) -> bytes:
    return struct.pack(">i", len(frame)) + frame
