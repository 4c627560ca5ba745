"""Dispatchers as child processes: one for each drain that is held.

The local mode's `Drains`: where a cluster has Knative start a pod for a request, we start a
process, ask it as the operator does there, and end it. A request whose budget is spent ends no
drain: its process waits for the next one.
Not here: starting one again; a drain that fails is the scaler's to reopen.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias, cast

import aiohttp

from knafka import settings
from knafka.core import documents
from knafka.core.contract import Egress, Shard
from knafka.core.drain import DrainProgress, DrainRequest, Ended, ShardProgress
from knafka_local.children import HOST, Child, Command, ended, listen, port_of
from knafka_operator.scale.drains import HttpDrains

Progress: TypeAlias = AsyncGenerator[DrainProgress, None]

HANDOVER: Final = 5.0
"""Seconds that a process waits for its next request; the scaler takes none to make it."""


@dataclass(frozen=True, slots=True)
class _Dispatcher:
    child: Child
    port: int


class DispatcherProcesses:
    """Runs the dispatchers of all Triggers; what they log lies in `logs`."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._waiting: dict[str, list[tuple[_Dispatcher, asyncio.Task[None]]]] = {}
        """Processes between two requests, by the digest of their Egress."""

    async def hold(
        self, trigger_id: str, egress: Egress, request: DrainRequest, stop: asyncio.Event
    ) -> AsyncIterator[DrainProgress]:
        """Hold one drain in a process of its own; leaving the iterator ends it cleanly.

        Raises `OSError` if the process can't be started, or dies (`kill -9`), and what `HttpDrains`
        raises.
        """
        log = self._logs / f"dispatcher-{egress.namespace}-{egress.trigger}.log"
        dispatcher = self._take(egress) or await self._start(egress, log)
        child = dispatcher.child
        drains = HttpDrains({trigger_id: f"http://{HOST}:{dispatcher.port}"})
        goes_on = False
        try:
            held = cast(Progress, drains.hold(trigger_id, egress, request, stop))
            async with aclosing(held):
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
                self._keep(egress, dispatcher)
            else:
                await child.stop()

    def hold_shard(
        self, shard: Shard, request: DrainRequest, stop: asyncio.Event
    ) -> AsyncIterator[ShardProgress]:
        """There are none: each Trigger here has a process of its own."""
        raise NotImplementedError("local mode has no shared dispatchers")

    async def close(self) -> None:
        """End what waits for another request."""
        waiting = [each for kept in self._waiting.values() for each in kept]
        self._waiting.clear()
        for _, ending in waiting:
            ending.cancel()
        await asyncio.gather(*(dispatcher.child.stop() for dispatcher, _ in waiting))

    async def _start(self, egress: Egress, log: Path) -> _Dispatcher:
        with listen() as listener:
            child = await Child.start(
                Command(
                    (sys.executable, "-m", "knafka.dispatcher", "--fd", str(listener.fileno())),
                    log,
                    {settings.EGRESS: json.dumps(documents.dump(egress))},
                    listener=listener,
                )
            )
            # From here on the child alone holds the socket: if it dies, our connection breaks.
            return _Dispatcher(child, port_of(listener))

    def _keep(self, egress: Egress, dispatcher: _Dispatcher) -> None:
        ending = asyncio.create_task(self._end_later(egress, dispatcher))
        self._waiting.setdefault(documents.digest(egress), []).append((dispatcher, ending))

    def _take(self, egress: Egress) -> _Dispatcher | None:
        kept = self._waiting.get(documents.digest(egress))
        if not kept:
            return None
        dispatcher, ending = kept.pop()
        ending.cancel()
        return dispatcher

    async def _end_later(self, egress: Egress, dispatcher: _Dispatcher) -> None:
        await asyncio.sleep(HANDOVER)
        kept = self._waiting[documents.digest(egress)]
        kept[:] = [each for each in kept if each[0] is not dispatcher]
        await dispatcher.child.stop()
