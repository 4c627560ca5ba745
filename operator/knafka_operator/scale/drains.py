"""Drains: holds HTTP requests open that make dispatchers on Knative drain.

In a drain, a dispatcher joins the consumer group, delivers events, and leaves. Knative scales on
the open requests: one request, so one pod. The response streams progress; the request's body stays
open for the line that ends the drain. Closing the connection doesn't end it.

The owner of a namespace can answer in a dispatcher's place. So the length of a line and the rate of
reading lines are limited: a sender that exceeds them waits, and doesn't slow other units. A unit is
a Trigger, a shard (many Triggers with one dispatcher), or a Sensor.

Not here: the number of drains (`scaler`), and retries (`holds`).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Final, TypeVar

import aiohttp
from aiohttp.http_exceptions import LineTooLong

from knafka.core import documents, drain
from knafka.core.contract import Egress, Shard
from knafka.core.drain import DrainProgress, DrainRequest, ShardProgress
from knafka.core.errors import KnafkaError
from knafka.core.sensor.contract import SensorContract
from knafka_operator.installation.function_tokens import FunctionTokens, authorization
from knafka_operator.installation.settings import SHARD_SIZE
from knafka_operator.scale.answers import LinePace, read_lines_paced
from knafka_operator.scale.http_sessions import open_checked_session
from knafka_operator.scale.parsing import LARGE_DOCUMENT, parse_off_loop
from knafka_operator.scale.progress_bounds import bound_progress, truncate_text

DRAIN_SILENCE_TIMEOUT: Final = 120.0
"""Seconds without a line of progress after which a request fails: long enough to schedule a pod."""
DRAIN_CONNECT_TIMEOUT: Final = 10.0
"""Seconds to connect to a dispatcher, or to the proxy in front of it."""
LINE_BYTES: Final = 64 * 1024
"""Most bytes of a line of a Trigger's progress; some hundred bytes and the partition numbers are
usual."""
SENSOR_LINE_BYTES: Final = 1024 * 1024
"""Most bytes of a line of a Sensor's progress, with the events that each trigger holds in each
partition."""
TRIGGER_LINE_BYTES: Final = 4 * 1024
"""Most bytes that each Trigger adds to a shard's line; some hundred bytes are usual."""
MAX_LINE_BYTES: Final = 8 * 1024 * 1024
"""Most bytes of a line of a shard of any size."""
LINES_PER_SECOND: Final = 4.0
"""Most lines read per second. A dispatcher writes one per second, a shard one more for each change
of its contract."""

LONGEST_LINE_SECONDS: Final = 4.0
"""Seconds in which the longest allowed line may be read; usual lines have a hundredth of its
length."""

Progress = TypeVar("Progress", DrainProgress, ShardProgress)
"""What one line of an answer reports: on one Trigger or Sensor, or on all Triggers of a shard."""


class DrainRefused(KnafkaError):
    """Raised if a dispatcher, or a proxy in front of it, doesn't answer with progress."""


class HttpDrains:
    """Implements `drains_port.Drains` over HTTP."""

    def __init__(
        self,
        urls: Mapping[str, str],
        shard_size: int = SHARD_SIZE,
        tokens: FunctionTokens | None = None,
    ) -> None:
        """`urls` has the URL of each Trigger's dispatcher and each Sensor's function by the
        scaler's id, and of each shard by its group. `shard_size` is the most Triggers of a shard.
        `tokens` has the tokens that functions accept from the operator; None: they need none."""
        self._urls = urls
        self._tokens = tokens or FunctionTokens()
        self._shard_line = min(LINE_BYTES + shard_size * TRIGGER_LINE_BYTES, MAX_LINE_BYTES)
        """Most bytes of a line of a shard's progress."""
        self._session: aiohttp.ClientSession | None = None
        """Sends the requests; None: none was sent yet."""
        self._paces: dict[str, LinePace] = {}
        """Rate limits by unit, kept while no request is open, so that new requests aren't
        faster."""

    def hold(
        self, trigger_id: str, egress: Egress, request: DrainRequest, stop: asyncio.Event
    ) -> AsyncIterator[DrainProgress]:
        """Request a drain from the dispatcher of a Trigger, and yield its progress. A dispatcher
        whose contract has another Egress refuses. Setting `stop` ends the drain; closing the
        iterator only closes the connection. Raises `DrainRefused`, `InvalidDocument` for a line
        that is no progress, and the errors of `aiohttp`."""
        checked_request = request.model_copy(update={"egress": documents.digest(egress)})
        return self._read_progress(DrainProgress, trigger_id, checked_request, stop, LINE_BYTES)

    def hold_shard(
        self, shard: Shard, request: DrainRequest, stop: asyncio.Event
    ) -> AsyncIterator[ShardProgress]:
        """Request a drain of all Triggers of a shard from its dispatcher, and yield its progress.
        For `stop`, closing and errors see `hold`."""
        shard_request = request.model_copy(update={"shard": shard.group})
        return self._read_progress(
            ShardProgress, shard.group, shard_request, stop, self._shard_line
        )

    def hold_sensor(
        self, sensor_id: str, sensor: SensorContract, request: DrainRequest, stop: asyncio.Event
    ) -> AsyncIterator[DrainProgress]:
        """Request a drain from the function of a Sensor, and yield its progress; a function with
        another contract refuses. For `stop`, closing and errors see `hold`."""
        sensor_request = request.model_copy(update={"sensor": documents.digest(sensor)})
        return self._read_progress(
            DrainProgress, sensor_id, sensor_request, stop, SENSOR_LINE_BYTES
        )

    async def _read_progress(
        self,
        progress_type: type[Progress],
        unit: str,
        drain_request: DrainRequest,
        stop: asyncio.Event,
        limit: int,
    ) -> AsyncIterator[Progress]:
        """Send a request to a function, and yield each line of its answer, parsed. The request's
        body ends once `stop` is set. After a 401 the next token is tried. Raises `DrainRefused` for
        a line of more than `limit` bytes and for any other status than 200, and the errors of
        `aiohttp`, also after `DRAIN_SILENCE_TIMEOUT` seconds without a line."""
        function_url = self._urls[unit].rstrip("/")
        url, pace = function_url + drain.PATH, self._ensure_pace(unit, limit)
        bearers = self._tokens.bearers(function_url) or [""]  # "": send no token

        async def body() -> AsyncIterator[bytes]:
            """Yield the request, and, once `stop` is set, the line that ends the drain."""
            yield json.dumps(documents.dump(drain_request)).encode() + b"\n"
            await stop.wait()
            yield drain.STOP

        headers = {"content-type": "application/json", "accept-encoding": "identity"}
        while bearers:
            async with self._ensure_session().post(
                url,
                data=body(),
                headers=headers | authorization(bearers.pop(0)),
                read_bufsize=limit // 2,  # aiohttp buffers up to twice as much.
                allow_redirects=False,
            ) as response:
                if response.status == 401 and bearers:
                    continue  # the function knows only the previous key of a rotation
                if response.status != 200:
                    # Don't quote the body: the message goes to a status, and anyone may have
                    # answered.
                    raise DrainRefused(f"{url} answered {response.status}: see its log")
                lines = read_lines_paced(response, pace)
                while (line := await _read_line(lines, url, limit)) is not None:
                    yield await parse_off_loop(
                        partial(_parse_progress, progress_type, line), len(line)
                    )
                return

    def _ensure_pace(self, unit: str, limit: int) -> LinePace:
        """Return the pace that limits the rate of a unit's lines, each of at most `limit` bytes.
        Creates the pace at the unit's first use, and then drops those of removed units if there are
        many."""
        if unit not in self._paces:
            if len(self._paces) > 2 * len(self._urls):  # more than half are of removed units
                for removed_unit in self._paces.keys() - self._urls.keys():
                    del self._paces[removed_unit]
            self._paces[unit] = LinePace(LINES_PER_SECOND, limit / LONGEST_LINE_SECONDS)
        return self._paces[unit]

    async def close(self) -> None:
        """Close the HTTP session and with it the connections of all requests; drains go on."""
        if self._session is not None:
            await self._session.close()

    def _ensure_session(self) -> aiohttp.ClientSession:
        """Return the HTTP session for drains; opens it at the first call."""
        if self._session is None:
            timeout = aiohttp.ClientTimeout(
                total=None, sock_connect=DRAIN_CONNECT_TIMEOUT, sock_read=DRAIN_SILENCE_TIMEOUT
            )
            self._session = open_checked_session(timeout, limit=0)
        return self._session


async def _read_line(lines: AsyncIterator[bytes], url: str, limit: int) -> bytes | None:
    """Return the next of an answer's `lines`; None: the answer has ended. Raises `DrainRefused`,
    whose message names `url`, for a line of more than `limit` bytes."""
    try:
        return await anext(lines, None)
    except (ValueError, LineTooLong) as error:
        raise DrainRefused(
            f"{url} answered with a line of more than {limit} bytes, which is no dispatcher's"
        ) from error


def _parse_progress(progress_type: type[Progress], line: bytes) -> Progress:
    """Parse a line of progress. Of a large line, cut what exceeds the bounds of
    `scale.progress_bounds`. Raises `InvalidDocument`."""
    progress = documents.parse_json(progress_type, line.decode("utf-8", "replace"))
    if len(line) < LARGE_DOCUMENT:
        return progress
    if isinstance(progress, ShardProgress):
        egresses = {
            group: bound_progress(drain_progress)
            for group, drain_progress in progress.egresses.items()
        }
        return progress.model_copy(
            update={"egresses": egresses, "error": truncate_text(progress.error)}
        )
    return bound_progress(progress)
