"""A receiver behind an address of the installation: keeps one process running, and adds up its
counters over restarts.

The listening socket outlives every process: while there is none, connections wait in its backlog.
The process follows a contract topic, so it serves Brokers that are added there. With another topic,
another process starts on the same socket, and the old one ends once the new one answers.
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
from knafka.core.contract import Receiver
from knafka.core.tokens.caller_tokens import CALLERS
from knafka_client.sockets import HOST, port_of
from knafka_local.processes.children import Child, Command, Say, Supervised
from knafka_operator.installation.function_tokens import FunctionTokens, authorization

RECEIVER_READY_TIMEOUT: Final = 30.0
"""Seconds to wait for a new receiver's first answer; it takes one second on an idle machine."""
READINESS_POLL_INTERVAL: Final = 0.05
"""Seconds between two checks whether a new receiver answers."""
RECEIVER_ANSWER_TIMEOUT: Final = 2.0
"""Seconds for the receiver to answer one of our requests."""

RequestCounts: TypeAlias = Counter[tuple[str, str, int]]
"""Number of answered requests by namespace, Broker or KafkaChannel, and status code."""

_COUNTER_LINE = re.compile(
    r'knafka_receiver_events_total\{(?:broker|channel)="([^"]*)",code="(\d+)",namespace="([^"]*)"\}'
    r" (\S+)"
).fullmatch
"""Matches a counter of answered requests among the metrics: name, status code, namespace, count."""


class ReceiverProcess:
    """Keeps a receiver running on a listening socket, which stays the caller's."""

    def __init__(
        self,
        listener: socket.socket,
        logs: Path,
        say: Say,
        name: str = "receiver",
        on_start: Callable[[], None] = lambda: None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`logs` is the folder of log files, and `say` shows a message to the user; `name` is used
        in both. `on_start` is called before a process takes the socket. `environment` are variables
        that each process gets in addition to ours."""
        self._listener = listener
        self._name = name
        self._log = logs / f"{name}.log"
        self._say = say
        self._on_start = on_start
        self._environment = environment or {}
        self._process: Supervised | None = None
        """The process that is kept running; None: none was started yet."""
        self._contract: Mapping[str, str] = {}
        """Environment variables that tell the process which contract topic to follow."""
        self._tally = CounterTotals()
        """Adds up the counters over restarts of the process."""
        self._url = f"http://{HOST}:{port_of(listener)}"
        self._tokens = FunctionTokens((secrets.token_bytes(32),))
        """Tokens of our requests for the receiver's position, which it gives nobody else."""

    @property
    def is_running(self) -> bool:
        """Whether a receiver was started; true also while it is being restarted."""
        return self._process is not None

    async def serve_nothing(self) -> None:
        """Start a receiver that serves no Broker, unless a receiver runs already."""
        if self._process is None:
            await self._start_with({settings.INGRESSES: "[]"})

    async def follow(self, contract: Receiver) -> bool:
        """Serve the Brokers or KafkaChannels that a contract topic lists, and no others; `contract`
        says which topic.

        Returns True once the receiver has read the topic up to its end. Returns False if it doesn't
        answer yet, for a new process after `RECEIVER_READY_TIMEOUT` seconds: then call this again.
        """
        return await self._start_with({settings.RECEIVER: json.dumps(documents.dump(contract))})

    async def _start_with(self, contract: Mapping[str, str]) -> bool:
        """Run a process with this contract (environment variables) in place of the present process,
        unless that has the same contract. Returns whether the process answers.

        The previous process is stopped once the new one answers, or after `RECEIVER_READY_TIMEOUT`
        seconds.
        """
        if self._process is not None and contract == self._contract:
            return await self._is_ready()
        previous, self._contract = self._process, contract
        command = Command(
            (sys.executable, "-m", "knafka.receiver", "--fd", str(self._listener.fileno())),
            self._log,
            {**contract, **self._environment, CALLERS: self._tokens.verifiers(self._url)},
            listener=self._listener,
        )
        self._on_start()
        self._process = Supervised(f"the {self._name}", lambda: Child.start(command), self._say)
        try:
            return await self._wait_until_ready()
        finally:
            if previous is not None:
                await previous.stop()

    async def _wait_until_ready(self) -> bool:
        """Wait until the new process answers; returns False after `RECEIVER_READY_TIMEOUT` seconds.

        The old and the new process accept from the same socket, but only the new one knows the
        contract.
        """
        deadline = asyncio.get_running_loop().time() + RECEIVER_READY_TIMEOUT
        while not await self._is_ready():
            if asyncio.get_running_loop().time() > deadline:
                self._say(f"the {self._name} doesn't answer yet: see {self._log}")
                return False
            await asyncio.sleep(READINESS_POLL_INTERVAL)
        return True

    async def _is_ready(self) -> bool:
        """Whether the receiver answers and has read the contract topic that it follows, if it
        follows one."""
        return await self._get("/health/readiness") is not None and (
            settings.RECEIVER not in self._contract or await self.position() is not None
        )

    async def answers(self, path: str) -> bool:
        """Whether the Broker or KafkaChannel at this path takes events now."""
        knative_probe = {"k-network-probe": "probe"}  # asks for an answer without an event
        return await self._get(path, knative_probe) is not None

    async def position(self) -> int | None:
        """Return the offset up to which the receiver has read its contract topic; None if it
        doesn't answer."""
        (bearer,) = self._tokens.bearers(self._url)  # one, as `_tokens` has one key
        if (answer := await self._get("/contract", authorization(bearer))) is None:
            return None
        return int(json.loads(answer)["position"])

    async def request_counts(self) -> RequestCounts:
        """Read the process's counters, and return the counts of answered requests since the start;
        while no process answers, the last known counts."""
        if (metrics := await self._get("/metrics")) is None:
            return self._tally.total
        return self._tally.add(Counter(dict(_request_counters(metrics))))

    async def _get(self, path: str, headers: Mapping[str, str] | None = None) -> str | None:
        """Return the body of the receiver's answer to a GET; None unless the answer is 200 and
        comes within `RECEIVER_ANSWER_TIMEOUT` seconds."""
        url, timeout = self._url + path, aiohttp.ClientTimeout(total=RECEIVER_ANSWER_TIMEOUT)
        with suppress(aiohttp.ClientError, TimeoutError):
            async with aiohttp.request("GET", url, headers=headers, timeout=timeout) as response:
                return await response.text() if response.status == HTTPStatus.OK else None
        return None

    async def stop(self) -> None:
        """Stop the receiver, and don't start it again."""
        if self._process is not None:
            await self._process.stop()


class CounterTotals:
    """Adds up counters of a process across its restarts, which set them to zero.

    The process has restarted if a counter is lower than at the last reading, or if all counters of
    that reading are missing. If only some are missing, their Brokers or KafkaChannels were deleted.
    """

    def __init__(self) -> None:
        self.total: RequestCounts = Counter()
        """The counts since this object was made."""
        self._last: RequestCounts = Counter()
        """The counters at the last reading."""

    def add(self, counters: RequestCounts) -> RequestCounts:
        """Add a new reading of the process's counters; returns the totals over all processes."""
        shared_keys = [key for key in self._last if key in counters]
        restarted = not shared_keys or any(counters[key] < self._last[key] for key in shared_keys)
        # Counters of deleted Brokers are only in `_last`: `-` of Counter leaves them out.
        self.total = self.total + (counters if restarted else counters - self._last)
        self._last = counters
        return self.total


def _request_counters(text: str) -> Iterator[tuple[tuple[str, str, int], int]]:
    """Yield the request counters in the receiver's metrics (`text`, Prometheus' format): namespace,
    Broker or KafkaChannel and status code, then the count."""
    for line in text.splitlines():
        if sample := _COUNTER_LINE(line):
            broker, code, namespace, count = sample.groups()
            yield (namespace, broker, int(code)), int(float(count))
