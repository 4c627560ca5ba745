"""The supervisor: everything `knafka up` runs, brought to what is declared and kept there.

    files -> declared -> plan -> topics and offsets -> programs -> receiver -> scaler -> dispatchers

One function, `_reconcile`, goes along that line, at the start and after every change; each part
compares what it is told with what it has. Healing is elsewhere and needs no reconciling: children
are `Supervised`, dispatchers are reopened by the scaler.
Refused here: showing anything (see `view`), and anything that happens to a single event.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from http import HTTPStatus
from pathlib import Path
from typing import Final, Protocol

from knafka.clients.kafka_connection import connection
from knafka.clients.kafka_log import KafkaAdmin
from knafka.core.contract import Kafka
from knafka.core.errors import KnafkaError, LogError
from knafka.local import kafka_distribution
from knafka.local.children import Child, Supervised, listen
from knafka.local.dispatchers import DispatcherProcesses
from knafka.local.http import HOST
from knafka.local.installation import Installation, State
from knafka.local.kafka_server import KafkaServer
from knafka.local.manifests import Identity, Manifests
from knafka.local.plan import Plan, PlannedTrigger, defaults, has_command, identity, make_plan
from knafka.local.programs import Programs
from knafka.local.receiver_process import Answered, ReceiverProcess
from knafka.local.snapshot import BrokerRow, Snapshot, TriggerRow
from knafka_operator.desired import Topic
from knafka_operator.resources import Service
from knafka_operator.scaler import Scaler

LOOK_INTERVAL: Final = 0.5
"""Seconds between two looks at the receiver's counters: new events wake their Triggers."""
RETRY_INTERVAL: Final = 5.0
"""Seconds until what Kafka refused is tried again."""


class PortTaken(KnafkaError):
    """The address that Brokers should be served at belongs to somebody else."""


class View(Protocol):
    """Who shows what happens."""

    def say(self, line: str) -> None:
        """Something happened, for a person."""
        ...

    def printed(self, program: str, line: str) -> None:
        """A subscriber's program printed a line."""
        ...


@dataclass(frozen=True, slots=True)
class Options:
    """What `knafka up` was asked for."""

    manifests: tuple[Path, ...]
    data: Path
    port: int = 8080
    """Where Brokers are served, on this machine only."""
    kafka_port: int = 9092
    bootstrap_servers: str | None = None
    """A Kafka that runs already; None: start one."""


class Supervisor:
    """One `knafka up`: `async with supervisor.running():` and it is up."""

    def __init__(self, options: Options, view: View) -> None:
        """Raises `NoManifests` if a file isn't there."""
        self._options = options
        self._view = view
        self._manifests = Manifests(options.manifests)
        self._installation = Installation(options.data)
        self._plan = Plan()
        self._problems: tuple[str, ...] = ()
        self._answered: Answered = Answered()
        self._ensured: set[object] = set()
        self._changed = asyncio.Event()
        self._server: KafkaServer | None = None
        self.url = f"http://{HOST}:{options.port}"

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Everything is up inside, and down again afterwards, Kafka last.

        Raises `KnafkaError` with what to do about it if it can't come up.
        """
        async with AsyncExitStack() as stack:
            stack.enter_context(self._installation.held())
            listener = stack.enter_context(self._listen())
            self._kafka = Kafka(bootstrap_servers=await self._start_kafka(stack))
            self._admin = KafkaAdmin(connection(self._kafka))
            await self._check_kafka()
            logs, say = self._installation.logs, self._view.say
            self._programs = Programs(logs, say, self._view.printed)
            stack.push_async_callback(self._programs.stop)
            self._receiver = ReceiverProcess(listener, logs, say)
            self._scaler = Scaler(self._admin, DispatcherProcesses(logs))
            scaling = asyncio.create_task(self._scaler.run(), name="scaler")
            stack.push_async_callback(self._finish, scaling)
            complete = await self._reconcile()
            for work in (self._keep_reconciling(complete), self._watch_files(), self._look()):
                stack.push_async_callback(_cancelled, asyncio.create_task(work))
            yield

    def kill(self) -> None:
        """End every process at once, for somebody who won't wait."""
        for child in Child.running:
            child.kill()
        if self._server is not None and self._server.pid is not None:
            os.kill(self._server.pid, 9)

    def _listen(self) -> contextlib.AbstractContextManager[object]:
        port = self._options.port
        try:
            return listen(port)
        except OSError as error:
            raise PortTaken(
                f"{HOST}:{port} can't be used ({error.strerror}): choose another with --port"
            ) from error
