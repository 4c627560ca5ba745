"""A dispatcher as an ASGI function in a world of its own, for looptime's clock."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from support.drains import Answer, World, accept
from support.memory.admin import MemoryAdmin
from support.memory.log import MemoryWriter

from knafka.core.contract import Egress
from knafka.core.documents import digest, dump
from knafka.core.drain import DrainProgress
from knafka.dispatcher.engine.clients import Clients
from knafka.dispatcher.function import Dispatcher
from knafka.ports.log import Assignment, LogReader
from knafka.settings import EGRESS


class Exchange:
    """One HTTP request to a function, and what it answers, as ASGI has it."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        method: str,
        path: str,
        *parts: bytes,
        headers: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        self.status = 0
        self.body = b""
        self.times: list[float] = []
        """When each part of the body came."""
        self._parts: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        for number, part in enumerate(parts, 1):
            more = number < len(parts)
            self._parts.put_nowait({"type": "http.request", "body": part, "more_body": more})
        scope = {"type": "http", "method": method, "path": path, "headers": list(headers)}
        self.task = asyncio.create_task(dispatcher.handle(scope, self._parts.get, self._send))

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        elif message["body"]:
            self.body += message["body"]
            self.times.append(asyncio.get_running_loop().time())

    def tell(self, body: bytes) -> None:
        """Another part of the request's body."""
        self._parts.put_nowait({"type": "http.request", "body": body, "more_body": True})

    def hang_up(self) -> None:
        self._parts.put_nowait({"type": "http.disconnect"})

    @property
    def lines(self) -> list[DrainProgress]:
        return [DrainProgress.model_validate_json(line) for line in self.body.splitlines()]


SERVICE = "http://own-service.test"


class Running:
    """A started dispatcher in a world of its own, which may be shared."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.connected = 0
        self.opened = 0
        """Readers: each joins the group."""
        self.headers: Sequence[tuple[bytes, bytes]] = ()
        """Of the requests that `ask` makes."""
        self.writer = MemoryWriter(world.log)
        self.dispatcher = Dispatcher(self._connect)

    def _connect(self, egress: Egress) -> Clients:
        assert egress == self.world.egress
        self.connected += 1
        world = self.world
        return Clients(self._open_reader, self.writer, world.subscriber, MemoryAdmin(world.log))

    def _open_reader(self, assignment: Assignment) -> LogReader:
        self.opened += 1
        return self.world.open_reader(assignment)

    @property
    def digest(self) -> str:
        """What a request says that it drains."""
        return digest(self.world.egress)

    @property
    def is_attached(self) -> bool:
        """Whether a request for its drain is under way."""
        return self.dispatcher.is_attached

    async def start(self, **environment: str) -> None:
        await self.dispatcher.start({EGRESS: json.dumps(dump(self.world.egress))} | environment)

    def ask(self, method: str, path: str, *parts: bytes) -> Exchange:
        parts = parts or (b"",)
        return Exchange(self.dispatcher, method, path, *parts, headers=self.headers)

    async def answer(self, method: str, path: str, *parts: bytes) -> Exchange:
        exchange = self.ask(method, path, *parts)
        await exchange.task
        return exchange

    def drain(self, **request: str) -> Exchange:
        """Ask for a drain; `tell` and `hang_up` are the caller's."""
        body = json.dumps(request).encode() + b"\n"
        exchange = Exchange(self.dispatcher, "POST", "/drain", body)
        return exchange


async def started(answer: Answer = accept, **egress: Any) -> Running:
    running = Running(World(answer, **egress))
    await running.start()
    return running
