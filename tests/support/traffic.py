"""Numbered traffic: events that tell what was lost, repeated or out of order.

`Sender` sends `per_key` events for each key, one after the other within a key and again until each
is answered 202. `CountingSubscriber` is a real HTTP server that notes every arrival, and fails or
delays as its `behave` says.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from support.loopback import LoopbackServer

from knafka.clients.http.http_subscriber import HttpSubscriber
from knafka.core.errors import DeliveryError
from knafka.ports.subscriber import Target

Behaviour = Callable[[str, int], Awaitable[int]]
"""(key, number) of an arrival to the status it is answered with; may wait."""


async def succeed(key: str, number: int) -> int:
    return 200


@dataclass
class Arrivals:
    """What reached a subscriber and was answered 2xx, by key, in the order of arrival."""

    by_key: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    count: int = 0
    grown: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, key: str, number: int) -> None:
        self.by_key[key].append(number)
        self.count += 1
        self.grown.set()

    def first(self, key: str) -> list[int]:
        """The numbers of one key without repetitions, in the order of first arrival."""
        return list(dict.fromkeys(self.by_key[key]))

    def distinct(self) -> int:
        return sum(len(set(numbers)) for numbers in self.by_key.values())

    async def reach(self, wanted: int, within: float) -> None:
        """Wait until `wanted` different events have arrived."""
        async with asyncio.timeout(within):
            while self.distinct() < wanted:
                self.grown.clear()
                await self.grown.wait()


class CountingSubscriber:
    """A subscriber on a free port; use as an async context manager."""

    def __init__(self, behave: Behaviour = succeed) -> None:
        self.arrivals = Arrivals()
        self.attempts = 0
        self._behave = behave
        self._server = LoopbackServer(self._serve)

    async def __aenter__(self) -> CountingSubscriber:
        await self._server.__aenter__()
        self.url = f"http://127.0.0.1:{self._server.port}/"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.__aexit__()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            status = await self._answer(await reader.readuntil(b"\r\n\r\n"), reader)
            writer.write(b"HTTP/1.1 %d x\r\ncontent-length: 0\r\n\r\n" % status)

    async def _answer(self, head: bytes, reader: asyncio.StreamReader) -> int:
        lines = (line.partition(b":") for line in head.split(b"\r\n")[1:])
        headers = {name.lower(): value.strip().decode() for name, _, value in lines}
        await reader.readexactly(int(headers[b"content-length"]))
        key, number = headers[b"ce-subject"], int(headers[b"ce-id"].rpartition("-")[2])
        self.attempts += 1
        status = await self._behave(key, number)
        if status < 300:
            self.arrivals.add(key, number)
        return status


class Sender:
    """Sends numbered events to a Broker until every one is accepted."""

    def __init__(self, url: str, keys: list[str], per_key: int, *, pause: float = 0.0) -> None:
        self.accepted = 0
        self.refused = 0
        self._target = Target.parse(url)
        self._keys = keys
        self._per_key = per_key
        self._pause = pause

    async def run(self) -> None:
        self._client = HttpSubscriber(limit=len(self._keys))
        try:
            async with asyncio.TaskGroup() as tasks:
                for key in self._keys:
                    tasks.create_task(self._send_key(key))
        finally:
            await self._client.close()

    async def _send_key(self, key: str) -> None:
        for number in range(self._per_key):
            head = (
                f"ce-specversion: 1.0\r\nce-type: test.numbered\r\nce-source: /test\r\n"
                f"ce-id: {key}-{number}\r\nce-subject: {key}\r\ncontent-type: text/plain\r\n"
            ).encode()
            while not await self._send(head):
                self.refused += 1
                await asyncio.sleep(0.1)
            self.accepted += 1
            if self._pause:
                await asyncio.sleep(self._pause)

    async def _send(self, head: bytes) -> bool:
        try:
            response = await self._client.post(self._target, head, b"x" * 100, 30.0)
        except DeliveryError:
            return False
        return response.status == 202
