"""A receiver behind an address of the installation: one process, restarted, replaced, counted.

The socket is ours and outlives every process: while there is none, connections wait in its backlog.
Another topic to follow starts another process on the same socket, and the old one ends once the new
one answers; another Broker or KafkaChannel is no other topic. Counters of processes that are gone
are kept.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import socket
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import Final, TypeAlias

import aiohttp

from knafka import settings
from knafka.core import documents
from knafka.core.caller_tokens import CALLERS
from knafka.core.contract import Receiver
from knafka_client.sockets import HOST, port_of
from knafka_local.processes.children import Child, Command, Say, Supervised
from knafka_operator.model.function_tokens import FunctionTokens, authorization

RECEIVER_READY_TIMEOUT: Final = 30.0
"""Seconds until a new receiver answers; it takes one on an idle machine."""
READINESS_POLL_INTERVAL: Final = 0.05
"""Seconds between two looks."""
RECEIVER_ANSWER_TIMEOUT: Final = 2.0

Answered: TypeAlias = Counter[tuple[str, str, int]]
"""Requests by namespace, Broker or KafkaChannel, and status code."""

_SAMPLE = re.compile(
    r'knafka_receiver_events_total\{(?:broker|channel)="([^"]*)",code="(\d+)",namespace="([^"]*)"\}'
    r" (\S+)"
).fullmatch


class ReceiverProcess:
    """Keeps a receiver running on `listener`, which stays the caller's."""

    def __init__(
        self,
        listener: socket.socket,
        logs: Path,
        say: Say,
        name: str = "receiver",
        on_start: Callable[[], None] = lambda: None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`name` is that of its log, and the one that people read; `on_start` is called before a
        process takes the socket. `environment`: more variables of each process."""
        self._listener = listener
        self._name = name
        self._log = logs / f"{name}.log"
        self._say = say
        self._on_start = on_start
        self._environment = environment or {}
        self._process: Supervised | None = None
        self._contract: Mapping[str, str] = {}
        """Its environment."""
        self._tally = Tally()
        self._url = f"http://{HOST}:{port_of(listener)}"
        self._tokens = FunctionTokens((secrets.token_bytes(32),))

    @property
    def is_running(self) -> bool:
        """Whether a process has the socket, or had and is started again."""
        return self._process is not None

    async def serve_nothing(self) -> None:
        """Start a process that serves no Broker, if there is no process yet."""
        if self._process is None:
            await self._run({settings.INGRESSES: "[]"})

    async def follow(self, contract: Receiver) -> bool:
        """Have everything served that stands in a topic; returns once all that stood there is.

        False: the process doesn't answer yet; asked again, it is looked at again.
        """
        return await self._run({settings.RECEIVER: json.dumps(documents.dump(contract))})

    async def _run(self, contract: Mapping[str, str]) -> bool:
        if self._process is not None and contract == self._contract:
            return await self._is_ready()
        old, self._contract = self._process, contract
        command = Command(
            (sys.executable, "-m", "knafka.receiver", "--fd", str(self._listener.fileno())),
            self._log,
            {**contract, **self._environment, CALLERS: self._tokens.verifiers(self._url)},
            listener=self._listener,
        )
        self._on_start()
        self._process = Supervised(f"the {self._name}", lambda: Child.start(command), self._say)
        try:
            return await self._until_served()
        finally:
            if old is not None:
                await old.stop()

    async def _until_served(self) -> bool:
        """Both processes take from one socket, but only the new one has another contract."""
        deadline = asyncio.get_running_loop().time() + RECEIVER_READY_TIMEOUT
        while not await self._is_ready():
            if asyncio.get_running_loop().time() > deadline:
                self._say(f"the {self._name} doesn't answer yet: see {self._log}")
                return False
            await asyncio.sleep(READINESS_POLL_INTERVAL)
        return True

    async def _is_ready(self) -> bool:
        return await self._ask("/health/readiness") is not None and (
            settings.RECEIVER not in self._contract or await self.position() is not None
        )

    async def answers(self, path: str) -> bool:
        """Whether the Broker or KafkaChannel at this path takes events now."""
        return await self._ask(path, {"k-network-probe": "probe"}) is not None

    async def position(self) -> int | None:
        """The offset up to which the receiver has read its contract topic; None: it doesn't
        answer."""
        (bearer,) = self._tokens.bearers(self._url)
        if (answer := await self._ask("/contract", authorization(bearer))) is None:
            return None
        return int(json.loads(answer)["position"])

    async def answered(self) -> Answered:
        """Requests answered since the start, by Broker and status code; the last known counts while
        no process answers."""
        if (metrics := await self._ask("/metrics")) is None:
            return self._tally.total
        return self._tally.add(Counter(dict(_samples(metrics))))

    async def _ask(self, path: str, headers: Mapping[str, str] | None = None) -> str | None:
        """What a GET is answered with 200; None: nobody answers so."""
        url, timeout = self._url + path, aiohttp.ClientTimeout(total=RECEIVER_ANSWER_TIMEOUT)
        with suppress(aiohttp.ClientError, TimeoutError):
            async with aiohttp.request("GET", url, headers=headers, timeout=timeout) as response:
                return await response.text() if response.status == HTTPStatus.OK else None
        return None

    async def stop(self) -> None:
        if self._process is not None:
            await self._process.stop()


class Tally:
    """Counters that survive the process that counts: what falls has started anew.

    What is missing has not: a KafkaChannel that is gone isn't counted any more.
    """

    def __init__(self) -> None:
        self.total: Answered = Counter()
        self._last: Answered = Counter()

    def add(self, now: Answered) -> Answered:
        counted = [key for key in self._last if key in now]
        began_anew = not counted or any(now[key] < self._last[key] for key in counted)
        self.total = self.total + (now if began_anew else now - self._last)
        self._last = now
        return self.total


def _samples(text: str) -> Iterator[tuple[tuple[str, str, int], int]]:
    for line in text.splitlines():
        if sample := _SAMPLE(line):
            broker, code, namespace, count = sample.groups()
            yield (namespace, broker, int(code)), int(float(count))
