"""Dispatchers as child processes: one for each drain that is held.

The local mode's `Drains`: where a cluster has Knative start a pod for a request, we start a
process, ask it as the operator does there, and end it. A request whose budget is spent ends no
drain: its process waits for the next one. A shard's process has the drains of many Triggers.
Not here: starting one again; a drain that fails is the scaler's to reopen.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias, TypeVar, cast

import aiohttp

from knafka import settings
from knafka.core import documents, names
from knafka.core.addresses import LOCAL_ADDRESSES
from knafka.core.caller_tokens import CALLERS
from knafka.core.contract import Egress, Shard
from knafka.core.drain import DrainProgress, DrainRequest, Ended, ShardProgress
from knafka.core.sensor.contract import Sensor
from knafka_client.sockets import HOST, listen, port_of
from knafka_local.processes.children import Child, Command, ended
from knafka_operator.model.function_tokens import FunctionTokens
from knafka_operator.scale.drains import HttpDrains

P = TypeVar("P", DrainProgress, ShardProgress)
Lines: TypeAlias = AsyncIterator[P]

NEXT_REQUEST_TIMEOUT: Final = 5.0
"""Seconds that a process waits for its next request; the scaler takes none to make it."""


@dataclass(frozen=True, slots=True)
class _Function:
    """A dispatcher with its contract."""

    log: str
    variable: str
    """The variable of its environment with `contract`."""
    contract: str
    """As JSON."""
    program: str = "knafka.dispatcher"

    @classmethod
    def own(cls, egress: Egress) -> _Function:
        contract = json.dumps(documents.dump(egress), sort_keys=True)
        # A Subscription may have the name of a Trigger.
        what = "subscription" if egress.kind == "Subscription" else "dispatcher"
        return cls(f"{what}-{egress.namespace}-{egress.trigger}", settings.EGRESS, contract)

    @classmethod
    def shared(cls, shard: Shard) -> _Function:
        contract = json.dumps(documents.dump(shard), sort_keys=True)
        return cls(shard.group.removeprefix(names.OURS), settings.SHARD, contract)

    @classmethod
    def of_sensor(cls, sensor: Sensor) -> _Function:
        contract = json.dumps(documents.dump(sensor), sort_keys=True)
        log = f"sensor-{sensor.namespace}-{sensor.name}"
        return cls(log, settings.SENSOR, contract, "knafka.sensor")


@dataclass(frozen=True, slots=True)
class _Dispatcher:
    child: Child
    port: int


class DispatcherProcesses:
    """Runs all dispatchers; what they log lies in `logs`."""

    def __init__(self, logs: Path, environment: Mapping[str, str] | None = None) -> None:
        """`environment`: variables that they all have."""
        self._logs = logs
        self._environment = environment or {}
        self._tokens = FunctionTokens((secrets.token_bytes(32),))
        self._waiting: dict[_Function, list[tuple[_Dispatcher, asyncio.Task[None]]]] = {}
        """Processes between two requests."""

    def hold(
        self, trigger_id: str, egress: Egress, request: DrainRequest, stop: asyncio.Event
    ) -> Lines[DrainProgress]:
        """Hold one drain in a process of its own; leaving the iterator ends it cleanly.

        Raises `OSError` if the process can't be started, or dies (`kill -9`), and what `HttpDrains`
        raises.
        """

        def ask(url: str) -> tuple[HttpDrains, Lines[DrainProgress]]:
            drains = HttpDrains({trigger_id: url}, tokens=self._tokens)
            return drains, drains.hold(trigger_id, egress, request, stop)

        return self._hold(_Function.own(egress), ask)

    def hold_shard(
        self, shard: Shard, request: DrainRequest, stop: asyncio.Event
    ) -> Lines[ShardProgress]:
        """Hold the drains of a shard's Triggers open, all in one process."""

        def ask(url: str) -> tuple[HttpDrains, Lines[ShardProgress]]:
            drains = HttpDrains({shard.group: url}, tokens=self._tokens)
            return drains, drains.hold_shard(shard, request, stop)

        return self._hold(_Function.shared(shard), ask)

    def hold_sensor(
        self, sensor_id: str, sensor: Sensor, request: DrainRequest, stop: asyncio.Event
    ) -> Lines[DrainProgress]:
        """Hold a Sensor's drain open in a process of its own."""

        def ask(url: str) -> tuple[HttpDrains, Lines[DrainProgress]]:
            drains = HttpDrains({sensor_id: url}, tokens=self._tokens)
            return drains, drains.hold_sensor(sensor_id, sensor, request, stop)

        return self._hold(_Function.of_sensor(sensor), ask)

    async def _hold(
        self, function: _Function, ask: Callable[[str], tuple[HttpDrains, Lines[P]]]
    ) -> Lines[P]:
        log = self._logs / f"{function.log}.log"
        dispatcher = self._take(function) or await self._start(function, log)
        child = dispatcher.child
        drains, lines = ask(_url(dispatcher.port))
        goes_on = False
        try:
            async with aclosing(cast(AsyncGenerator[P, None], lines)) as held:
                async for progress in held:
                    goes_on = progress.ended is Ended.BUDGET
                    yield progress
        except aiohttp.ClientError as error:
            await child.stop()
            how = ended(await child.wait())
            raise ChildProcessError(f"the dispatcher {how} ({error}): see {log}") from error
        finally:
            await drains.close()
            if goes_on:
                self._keep(function, dispatcher)
            else:
                await child.stop()

    async def close(self) -> None:
        """End what waits for another request."""
        waiting = [waiting for kept in self._waiting.values() for waiting in kept]
        self._waiting.clear()
        for _, ending in waiting:
            ending.cancel()
        await asyncio.gather(*(dispatcher.child.stop() for dispatcher, _ in waiting))

    async def _start(self, function: _Function, log: Path) -> _Dispatcher:
        with listen() as listener:
            callers = self._tokens.verifiers(_url(port_of(listener)))
            child = await Child.start(
                Command(
                    (sys.executable, "-m", function.program, "--fd", str(listener.fileno())),
                    log,
                    {
                        **self._environment,
                        function.variable: function.contract,
                        LOCAL_ADDRESSES: "allowed",
                        CALLERS: callers,
                    },
                    listener=listener,
                )
            )
            # From here on the child alone holds the socket: if it dies, our connection breaks.
            return _Dispatcher(child, port_of(listener))

    def _keep(self, function: _Function, dispatcher: _Dispatcher) -> None:
        ending = asyncio.create_task(self._end_later(function, dispatcher))
        self._waiting.setdefault(function, []).append((dispatcher, ending))

    def _take(self, function: _Function) -> _Dispatcher | None:
        kept = self._waiting.get(function)
        if not kept:
            return None
        dispatcher, ending = kept.pop()
        ending.cancel()
        return dispatcher

    async def _end_later(self, function: _Function, dispatcher: _Dispatcher) -> None:
        await asyncio.sleep(NEXT_REQUEST_TIMEOUT)
        kept = self._waiting[function]
        kept[:] = [entry for entry in kept if entry[0] is not dispatcher]
        await dispatcher.child.stop()


def _url(port: int) -> str:
    return f"http://{HOST}:{port}"
