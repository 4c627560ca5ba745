"""The receiver behind the installation's address: one process, restarted, replaced, counted.

The socket is ours and outlives every process: while there is none, connections wait in its backlog.
Another set of Ingresses starts another process on the same socket, and the old one ends once the
new one answers. Counters of processes that are gone are kept.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import Final, TypeAlias

import aiohttp

from knafka import settings
from knafka.core import documents
from knafka.core.contract import Ingress
from knafka_local.children import HOST, Child, Command, Say, Supervised, port_of

READY_TIMEOUT: Final = 30.0
"""Seconds until a new receiver answers; it takes one on an idle machine."""
PAUSE: Final = 0.05
"""Seconds between two looks."""
ASK_TIMEOUT: Final = 2.0

Answered: TypeAlias = Counter[tuple[str, str, int]]
"""Requests by namespace, Broker and status code."""

_SAMPLE = re.compile(
    r'knafka_receiver_events_total\{broker="([^"]*)",code="(\d+)",namespace="([^"]*)"\} (\S+)'
).fullmatch


class ReceiverProcess:
    """Keeps a receiver running on `listener`, which stays the caller's."""

    def __init__(self, listener: socket.socket, logs: Path, say: Say) -> None:
        self._listener = listener
        self._log = logs / "receiver.log"
        self._say = say
        self._process: Supervised | None = None
        self._ingresses: Sequence[Ingress] = ()
        self._tally = Tally()

    async def serve(self, ingresses: Sequence[Ingress]) -> bool:
        """Have exactly these Brokers served; returns once they are (KN-BRK-21).

        False: the process doesn't answer yet; asked again, it is looked at again.
        """
        if self._process is not None and list(ingresses) == list(self._ingresses):
            return await self._is_ready()
        old, self._ingresses = self._process, ingresses
        command = Command(
            (sys.executable, "-m", "knafka.receiver", "--fd", str(self._listener.fileno())),
            self._log,
            {settings.INGRESSES: json.dumps([documents.dump(each) for each in ingresses])},
            listener=self._listener,
        )
        self._process = Supervised("the receiver", lambda: Child.start(command), self._say)
        try:
            return await self._until_served()
        finally:
            if old is not None:
                await old.stop()

    async def _until_served(self) -> bool:
        """Both processes take from one socket, but only the new one knows a new Broker."""
        deadline = asyncio.get_running_loop().time() + READY_TIMEOUT
        while not await self._is_ready():
            if asyncio.get_running_loop().time() > deadline:
                self._say(f"the receiver doesn't answer yet: see {self._log}")
                return False
            await asyncio.sleep(PAUSE)
        return True

    async def _is_ready(self) -> bool:
        if await self._ask("/health/readiness") is None:
            return False
        return all([await self.answers(each.path) for each in self._ingresses])

    async def answers(self, path: str) -> bool:
        """Whether the Broker at this path takes events now."""
        return await self._ask(path, {"k-network-probe": "probe"}) is not None

    async def answered(self) -> Answered:
        """What was answered since we started; the last known figures while nobody answers."""
        if (metrics := await self._ask("/metrics")) is None:
            return self._tally.total
        return self._tally.add(Counter(dict(_samples(metrics))))

    async def _ask(self, path: str, headers: Mapping[str, str] | None = None) -> str | None:
        """What a GET is answered with 200; None: nobody answers so."""
        url = f"http://{HOST}:{port_of(self._listener)}{path}"
        timeout = aiohttp.ClientTimeout(total=ASK_TIMEOUT)
        with suppress(aiohttp.ClientError, TimeoutError):
            async with aiohttp.request("GET", url, headers=headers, timeout=timeout) as response:
                return await response.text() if response.status == HTTPStatus.OK else None
        return None

    async def stop(self) -> None:
        if self._process is not None:
            await self._process.stop()


class Tally:
    """Counters that survive the process that counts: what falls has started anew."""

    def __init__(self) -> None:
        self.total: Answered = Counter()
        self._last: Answered = Counter()

    def add(self, now: Answered) -> Answered:
        began_anew = any(now[key] < count for key, count in self._last.items())
        self.total = self.total + (now if began_anew else now - self._last)
        self._last = now
        return self.total


def _samples(text: str) -> Iterator[tuple[tuple[str, str, int], int]]:
    for line in text.splitlines():
        if sample := _SAMPLE(line):
            broker, code, namespace, count = sample.groups()
            yield (namespace, broker, int(code)), int(float(count))
