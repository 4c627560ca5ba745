"""Drains: dispatchers on Knative, asked over HTTP to drain for as long as they are wanted.

The request that is held open is what Knative scales on: one each, so one pod each. Its response
streams progress, and its body stays open for the line that ends the drain; hanging up doesn't.

Not here: how many, and trying again (`scaler`).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Final, TypeVar

import aiohttp

from knafka.core import documents, drain
from knafka.core.contract import Egress, Shard
from knafka.core.drain import DrainProgress, DrainRequest, ShardProgress
from knafka.core.errors import KnafkaError
from knafka.core.sensor.contract import Sensor
from knafka_operator.scale.http_sessions import checked_session

SILENCE: Final = 120.0
"""Seconds without a line of progress: long enough for a pod that must be scheduled first."""
CONNECT_TIMEOUT: Final = 10.0
LINE_BYTES: Final = 8 * 1024 * 1024
"""The longest line of progress. A shard's first and last one have all its Egresses, some hundred
bytes each; by default aiohttp refuses a line of more than 128 KiB."""

Progress = TypeVar("Progress", DrainProgress, ShardProgress)


class DrainRefused(KnafkaError):
    """A dispatcher, or what is in front of it, answered something else than progress."""


class HttpDrains:
    """`kafka_clusters.AllDrains` over HTTP; `urls` has each Trigger's dispatcher and each Sensor's
    function, by the scaler's id, and each shard's, by its group."""

    def __init__(self, urls: Mapping[str, str]) -> None:
        self._urls = urls
        self._session: aiohttp.ClientSession | None = None

    def hold(
        self, trigger_id: str, egress: Egress, request: DrainRequest, stop: asyncio.Event
    ) -> AsyncIterator[DrainProgress]:
        """Hold one drain; leaving the iterator hangs up. Raises `DrainRefused`, `aiohttp`'s own."""
        wanted = request.model_copy(update={"egress": documents.digest(egress)})
        return self._lines(DrainProgress, trigger_id, wanted, stop)

    def hold_shard(
        self, shard: Shard, request: DrainRequest, stop: asyncio.Event
    ) -> AsyncIterator[ShardProgress]:
        """Hold the drains of one shard, as `hold` does one."""
        wanted = request.model_copy(update={"shard": shard.group})
        return self._lines(ShardProgress, shard.group, wanted, stop)

    def hold_sensor(
        self, sensor_id: str, sensor: Sensor, request: DrainRequest, stop: asyncio.Event
    ) -> AsyncIterator[DrainProgress]:
        """Hold one drain of a Sensor, as `hold` does."""
        wanted = request.model_copy(update={"sensor": documents.digest(sensor)})
        return self._lines(DrainProgress, sensor_id, wanted, stop)

    async def _lines(
        self, of: type[Progress], unit: str, wanted: DrainRequest, stop: asyncio.Event
    ) -> AsyncIterator[Progress]:
        url = self._urls[unit].rstrip("/") + drain.PATH

        async def body() -> AsyncIterator[bytes]:
            yield json.dumps(documents.dump(wanted)).encode() + b"\n"
            await stop.wait()
            yield drain.STOP

        async with self._client().post(
            url,
            data=body(),
            headers={"content-type": "application/json"},
            allow_redirects=False,
            read_bufsize=LINE_BYTES // 2,  # It reads on up to twice as much.
        ) as response:
            if response.status != 200:
                # Not what it says: this comes to stand in a status, whoever answers there.
                raise DrainRefused(f"{url} answered {response.status}: see its log")
            async for line in response.content:
                if line.strip():
                    yield documents.parse_json(of, line.decode())

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(
                total=None, sock_connect=CONNECT_TIMEOUT, sock_read=SILENCE
            )
            self._session = checked_session(timeout, limit=0)
        return self._session
