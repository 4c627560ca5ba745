"""Answers: bounded reading of HTTP responses from functions and pods, which may be hostile.

Anyone who may create pods in a namespace can impersonate a function there. So nothing is
decompressed, no redirect is followed, and a response is limited in bytes and in time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Final

import aiohttp

from knafka_operator.installation.function_tokens import authorization

BURST_SECONDS: Final = 20.0
"""Seconds by which lines may arrive ahead of the allowed rate: the first and the last line of a
response are long."""


class LinePace:
    """Limits the rate at which the lines of one unit (a Trigger, a shard or a Sensor) are read,
    over all its responses.

    A faster sender has to wait.
    """

    def __init__(self, lines_per_second: float, bytes_per_second: float) -> None:
        """Each response that is being read adds these lines and bytes per second to the allowed
        rate."""
        self.open_responses = 0
        """Number of responses that are being read."""
        self._lines_per_second = lines_per_second
        self._bytes_per_second = bytes_per_second
        self._on_pace_at = 0.0
        """When all lines so far could have arrived at the allowed rate, by the clock of
        `count_line`."""

    def count_line(self, size: int, now: float) -> float:
        """Count a line of `size` bytes, read at `now` (seconds by a monotonic clock). Returns the
        seconds to wait before the next line is read: 0 while the lines are less than
        `BURST_SECONDS` ahead of the allowed rate."""
        seconds_of_one_response = max(1 / self._lines_per_second, size / self._bytes_per_second)
        seconds_at_rate = seconds_of_one_response / max(1, self.open_responses)
        self._on_pace_at = max(now, self._on_pace_at) + seconds_at_rate
        return max(0.0, self._on_pace_at - BURST_SECONDS - now)


async def read_lines_paced(
    response: aiohttp.ClientResponse, pace: LinePace
) -> AsyncIterator[bytes]:
    """Yield the non-empty lines of a response at the allowed rate. Raises `ValueError` or aiohttp's
    `LineTooLong` for a line longer than the read buffer, and aiohttp's other errors."""
    loop = asyncio.get_running_loop()
    pace.open_responses += 1
    try:
        async for line in response.content:
            if pause := pace.count_line(len(line), loop.time()):
                await asyncio.sleep(pause)
            if line.strip():
                yield line
    finally:
        pace.open_responses -= 1


async def read_first_bytes(response: aiohttp.ClientResponse, size: int) -> bytes:
    """Return the first `size` bytes of the body, or all of it if it is shorter. Raises the errors
    of `aiohttp`."""
    text = b""
    while len(text) < size and (chunk := await response.content.read(size - len(text))):
        text += chunk
    return text


async def get_answer(
    session: aiohttp.ClientSession, url: str, bearers: Sequence[str], size: int
) -> bytes | None:
    """GET a function's URL; returns the first `size` bytes of the body. A longer answer is cut,
    without an error. None: the function accepts none of the tokens, or answers with another status
    than 200.

    The tokens `bearers` are tried in order; empty: one request is sent, without a token. Raises the
    errors of `aiohttp`.
    """
    for bearer in bearers or [""]:
        async with session.get(
            url, headers=authorization(bearer), allow_redirects=False
        ) as response:
            if response.status == 200:
                return await read_first_bytes(response, size)
            # 401: the function may know only the previous key of a rotation; a later token is
            # signed with that.
            if response.status != 401:
                return None
    return None
