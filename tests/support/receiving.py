"""A receiver that listens on a log in memory, without uvicorn's own server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
import uvicorn
from support.memory.log import MemoryLog, MemoryWriter
from support.receiver_requests import ingress
from support.waiting import until
from support.wire import Wire, connected
from uvicorn.server import ServerState

from knafka.observability import Histogram
from knafka.receiver.authentication import TokenVerifier
from knafka.receiver.connections import Connections
from knafka.receiver.ingest import IngestHandler
from knafka.receiver.limits import Limits
from knafka.receiver.protocol import EncryptedReceiverProtocol, ReceiverProtocol

LIMIT = 300_000


class Server:
    """A listening receiver, without uvicorn's own server."""

    def __init__(
        self,
        limits: Limits | None = None,
        verifier: TokenVerifier | None = None,
        **more: Any,
    ) -> None:
        """`more`: of the Broker's entry."""
        self.log = MemoryLog()
        self.log.create("events")
        declared = ingress(**{"max_event_bytes": LIMIT, **more})
        writers = [MemoryWriter(self.log)]
        self.ingest = IngestHandler([declared], writers, limits or Limits(), verifier=verifier)
        self.shared = Connections(self.ingest, asyncio.get_running_loop())
        self.state = ServerState()
        self._config = uvicorn.Config("none:none", log_config=None)

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._make, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]

    def _make(self) -> ReceiverProtocol:
        return ReceiverProtocol(self._config, self.state, {"connections": self.shared})

    def make_encrypted(self) -> ReceiverProtocol:
        """For a connection through TLS of its own."""
        return EncryptedReceiverProtocol(self._config, self.state, {"connections": self.shared})

    def connect(self) -> AbstractAsyncContextManager[Wire]:
        return connected(self.port)

    @property
    def one(self) -> ReceiverProtocol:
        (one,) = self.shared.open
        assert isinstance(one, ReceiverProtocol)
        return one

    @property
    def values(self) -> list[bytes | None]:
        return [record.value() for record in self.log.topics["events"][0]]

    @property
    def refused(self) -> dict[str, float]:
        return {
            labels["code"]: count
            for metric in self.ingest.metrics()
            for labels, count in metric.samples
            if "code" in labels and not isinstance(count, Histogram)
        }

    @property
    def body_bytes(self) -> int:
        """Of the bodies that are being received."""
        open_ = [each for each in self.shared.open if isinstance(each, ReceiverProtocol)]
        return sum(each._body_bytes for each in open_ if each._in_request)

    async def stop(self) -> None:
        self.shared.close()
        self._server.close()
        await until(lambda: not self.shared.open)
        assert self.state.connections == set()
        assert self.shared.receiving_bytes == 0


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    """A receiver, which must be left without connections."""
    server = Server()
    await server.start()
    yield server
    await server.stop()
