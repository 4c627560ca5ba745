"""Dispatchers as child processes: one for each drain that is held, gone when the drain has ended.

This is the local mode's half of the scaler (its `Drains`): where a cluster has Knative start a pod
for a request, we start a process, ask it to drain, pass on its progress, and end it.
Refused here: starting one again; a drain that fails is the scaler's to reopen.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Final

from knafka import settings
from knafka.core import documents, drain
from knafka.core.contract import Egress
from knafka.core.drain import DrainProgress, DrainRequest
from knafka_local import http
from knafka_local.children import Child, Command, ended, listen, port_of

BUDGET: Final = 24 * 3600.0
"""Seconds for one request, and its process: no proxy is between us that would cut it."""


class DispatcherProcesses:
    """Runs the dispatchers of all Triggers; what they log lies in `logs`."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs

    async def hold(
        self, trigger_id: str, egress: Egress, request: DrainRequest, stop: asyncio.Event
    ) -> AsyncIterator[DrainProgress]:
        """Hold one drain in a process of its own; leaving the iterator ends it cleanly.

        Raises `OSError` if the process can't be started, or dies (`kill -9`).
        """
        log = self._logs / f"dispatcher-{egress.namespace}-{egress.trigger}.log"
        with listen() as listener:
            port = port_of(listener)
            child = await Child.start(
                Command(
                    (sys.executable, "-m", "knafka.dispatcher", "--fd", str(listener.fileno())),
                    log,
                    {settings.EGRESS: json.dumps(documents.dump(egress))},
                    listener=listener,
                )
            )
        # Now the child alone holds the socket: if it dies, our connection to it breaks.
        body = json.dumps(documents.dump(request)).encode()
        stopping = asyncio.create_task(_stop_when(stop, child))
        try:
            async with aclosing(http.post_for_lines(port, drain.PATH, body)) as lines:
                async for line in lines:
                    yield documents.parse_json(DrainProgress, line.decode())
        except OSError as error:
            await child.stop()
            how = ended(await child.wait())
            raise ChildProcessError(f"the dispatcher {how} ({error}): see {log}") from error
        finally:
            stopping.cancel()
            await child.stop()


async def _stop_when(stop: asyncio.Event, child: Child) -> None:
    await stop.wait()
    child.terminate()
