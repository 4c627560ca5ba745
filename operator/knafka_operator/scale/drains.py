"""Drains: dispatchers on Knative, asked over HTTP to drain for as long as they are wanted.

The request that is held open is what Knative scales on: one each, so one pod each. Its response
streams progress, and its body stays open for the line that ends the drain; hanging up doesn't.

Not here: how many, and trying again (`scaler`).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Final

import aiohttp

from knafka.core import documents, drain
from knafka.core.contract import Egress
from knafka.core.drain import DrainProgress, DrainRequest
from knafka.core.errors import KnafkaError

SILENCE: Final = 120.0
"""Seconds without a line of progress: long enough for a pod that must be scheduled first."""
CONNECT_TIMEOUT: Final = 10.0


class DrainRefused(KnafkaError):
    """A dispatcher, or what is in front of it, answered something else than progress."""


class HttpDrains:
    """`scaler.Drains` over HTTP; `urls` has each Trigger's dispatcher, by the scaler's id."""

    def __init__(self, urls: Mapping[str, str]) -> None:
        self._urls = urls
        self._session: aiohttp.ClientSession | None = None

    async def hold(
        self, trigger_id: str, egress: Egress, request: DrainRequest, stop: asyncio.Event
    ) -> AsyncIterator[DrainProgress]:
        """Hold one drain; leaving the iterator hangs up. Raises `DrainRefused`, `aiohttp`'s own."""
        wanted = request.model_copy(update={"egress": documents.digest(egress)})
        url = self._urls[trigger_id].rstrip("/") + drain.PATH

        async def body() -> AsyncIterator[bytes]:
            yield json.dumps(documents.dump(wanted)).encode() + b"\n"
            await stop.wait()
            yield drain.STOP

        headers = {"content-type": "application/json"}
        async with self._client().post(url, data=body(), headers=headers) as response:
            if response.status != 200:
                text = (await response.content.read(300)).decode("utf-8", "replace").strip()
                raise DrainRefused(f"{url} answered {response.status}: {text}")
            async for line in response.content:
                if line.strip():
                    yield documents.parse_json(DrainProgress, line.decode())

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                timeout=aiohttp.ClientTimeout(
                    total=None, sock_connect=CONNECT_TIMEOUT, sock_read=SILENCE
                ),
            )
        return self._session
