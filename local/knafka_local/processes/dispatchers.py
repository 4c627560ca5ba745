"""Dispatchers as child processes: one for each drain.

This is the local mode's `Drains`. A drain is a long HTTP request by which a dispatcher delivers
events; to hold it is to keep it open and read the progress that it streams. In a cluster, Knative
starts a Pod for it; here we start a process, send it the same request, and end the process with the
drain. If a request ends only because its time is up (`Ended.BUDGET`), its process waits for the
next request. A shard is a dispatcher that many Triggers share: one process runs all their drains.
Not here: opening a failed drain again, which the scaler does.
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
from knafka.core.contract import Egress, Shard
from knafka.core.drain import DrainProgress, DrainRequest, Ended, ShardProgress
from knafka.core.sensor.contract import SensorContract
from knafka.core.tokens.caller_tokens import CALLERS
from knafka_client.sockets import HOST, listen, port_of
from knafka_client.state.installation import log_name
from knafka_local.processes.children import Child, Command, describe_exit
from knafka_operator.installation.function_tokens import FunctionTokens
from knafka_operator.scale.drains import HttpDrains

P = TypeVar("P", DrainProgress, ShardProgress)
"""The progress of one drain, or that of all drains of a shard."""
ProgressStream: TypeAlias = AsyncIterator[P]
"""Yields the progress of drains until they have ended."""

NEXT_REQUEST_TIMEOUT: Final = 5.0
"""Seconds that a process waits for its next request, which the scaler normally sends at once."""


@dataclass(frozen=True, slots=True)
class _DispatcherFunction:
    """A dispatcher function: the program to run, and the contract to run it with."""

    log_name: str
    """Name of its log file, without `.log`."""
    variable: str
    """The environment variable that carries `contract`."""
    contract: str
    """The Egress, shard or Sensor, as JSON."""
    program: str = "knafka.dispatcher"
    """The Python module to run."""

    @classmethod
    def for_trigger(cls, egress: Egress) -> _DispatcherFunction:
        """Return the dispatcher of one Trigger or Subscription."""
        contract = json.dumps(documents.dump(egress), sort_keys=True)
        # A Subscription may have the name of a Trigger.
        function = "subscription" if egress.kind == "Subscription" else "dispatcher"
        log = log_name(function, egress.namespace, egress.trigger)
        return cls(log, settings.EGRESS, contract)

    @classmethod
    def for_shard(cls, shard: Shard) -> _DispatcherFunction:
        """Return the dispatcher that several Triggers share."""
        contract = json.dumps(documents.dump(shard), sort_keys=True)
        return cls(shard.group.removeprefix(names.OURS), settings.SHARD, contract)

    @classmethod
    def for_sensor(cls, sensor: SensorContract) -> _DispatcherFunction:
        """Return the function that evaluates one Sensor."""
        contract = json.dumps(documents.dump(sensor), sort_keys=True)
        log = log_name("sensor", sensor.namespace, sensor.name)
        return cls(log, settings.SENSOR, contract, "knafka.sensor")


@dataclass(frozen=True, slots=True)
class _DispatcherProcess:
    """A running dispatcher process, and the port it listens on."""

    child: Child
    port: int


class DispatcherProcesses:
    """Runs dispatchers as child processes, one for each drain; their logs are files in `logs`."""

    def __init__(self, logs: Path, environment: Mapping[str, str] | None = None) -> None:
        """`logs` is the folder of log files; `environment` are variables that every dispatcher gets
        in addition to ours."""
        self._logs = logs
        self._environment = environment or {}
        self._tokens = FunctionTokens((secrets.token_bytes(32),))
        """Tokens of our requests to dispatchers, which accept no other requests."""
        self._idle: dict[
            _DispatcherFunction, list[tuple[_DispatcherProcess, asyncio.Task[None]]]
        ] = {}
        """Processes whose request has ended, each with the task that stops it unless another
        request comes, by function."""

    def hold(
        self, trigger_id: str, egress: Egress, request: DrainRequest, stop: asyncio.Event
    ) -> ProgressStream[DrainProgress]:
        """Hold the drain of a Trigger or Subscription open in a process of its own; yields its
        progress.

        Setting `stop`, or closing the iterator, ends the drain cleanly. `trigger_id` is the id by
        which the scaler knows it. Raises `OSError` if the process can't be started or dies
        (`kill -9`), and what `HttpDrains` raises for other failures of the request.
        """

        def request_drain(url: str) -> tuple[HttpDrains, ProgressStream[DrainProgress]]:
            """Return a client of the process at `url`, and a stream of the drain's progress. The
            request is sent when the stream is first read."""
            drains = HttpDrains({trigger_id: url}, tokens=self._tokens)
            return drains, drains.hold(trigger_id, egress, request, stop)

        return self._hold(_DispatcherFunction.for_trigger(egress), request_drain)

    def hold_shard(
        self, shard: Shard, request: DrainRequest, stop: asyncio.Event
    ) -> ProgressStream[ShardProgress]:
        """Hold the drains of a shard's Triggers open, all in one process; yields their progress.

        Setting `stop`, or closing the iterator, ends them cleanly. Raises `OSError` if the process
        can't be started or dies, and what `HttpDrains` raises for other failures of the request.
        """

        def request_drain(url: str) -> tuple[HttpDrains, ProgressStream[ShardProgress]]:
            """Return a client of the process at `url`, and a stream of the drains' progress. The
            request is sent when the stream is first read."""
            drains = HttpDrains({shard.group: url}, tokens=self._tokens)
            return drains, drains.hold_shard(shard, request, stop)

        return self._hold(_DispatcherFunction.for_shard(shard), request_drain)

    def hold_sensor(
        self, sensor_id: str, sensor: SensorContract, request: DrainRequest, stop: asyncio.Event
    ) -> ProgressStream[DrainProgress]:
        """Hold a Sensor's drain open in a process of its own; yields its progress.

        Setting `stop`, or closing the iterator, ends it cleanly. `sensor_id` is the id by which the
        scaler knows it. Raises `OSError` if the process can't be started or dies, and what
        `HttpDrains` raises for other failures of the request.
        """

        def request_drain(url: str) -> tuple[HttpDrains, ProgressStream[DrainProgress]]:
            """Return a client of the process at `url`, and a stream of the drain's progress. The
            request is sent when the stream is first read."""
            drains = HttpDrains({sensor_id: url}, tokens=self._tokens)
            return drains, drains.hold_sensor(sensor_id, sensor, request, stop)

        return self._hold(_DispatcherFunction.for_sensor(sensor), request_drain)

    async def _hold(
        self,
        function: _DispatcherFunction,
        request_drain: Callable[[str], tuple[HttpDrains, ProgressStream[P]]],
    ) -> ProgressStream[P]:
        """Hold a drain open in an idle process of this function, or in a new one; yields its
        progress.

        `request_drain` takes the process's URL and returns an HTTP client, which is closed here,
        and the stream of progress. If the request ended because its time was up, the process waits
        for another one; otherwise it is stopped. Raises `OSError` as `hold` does.
        """
        log = self._logs / f"{function.log_name}.log"
        dispatcher = self._take_idle(function) or await self._start(function, log)
        child = dispatcher.child
        drains, progress_stream = request_drain(_url(dispatcher.port))
        budget_spent = False
        try:
            # `HttpDrains` returns a generator, but types it as an iterator, which has no `aclose`.
            async with aclosing(cast(AsyncGenerator[P, None], progress_stream)) as progress_reports:
                async for progress in progress_reports:
                    budget_spent = progress.ended is Ended.BUDGET
                    yield progress
        except aiohttp.ClientError as error:
            await child.stop()
            exit_description = describe_exit(await child.wait())
            raise ChildProcessError(
                f"the dispatcher {exit_description} ({error}): see {log}"
            ) from error
        finally:
            await drains.close()
            if budget_spent:
                self._keep_idle(function, dispatcher)
            else:
                await child.stop()

    async def close(self) -> None:
        """Stop every idle process. A process that holds a drain is stopped when the drain ends."""
        idle = [entry for idle_processes in self._idle.values() for entry in idle_processes]
        self._idle.clear()
        for _, stopping in idle:
            stopping.cancel()
        await asyncio.gather(*(dispatcher.child.stop() for dispatcher, _ in idle))

    async def _start(self, function: _DispatcherFunction, log: Path) -> _DispatcherProcess:
        """Start a dispatcher process on a free port, with its output in `log`; it accepts only
        requests with our tokens. Raises `OSError`."""
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
            return _DispatcherProcess(child, port_of(listener))

    def _keep_idle(self, function: _DispatcherFunction, dispatcher: _DispatcherProcess) -> None:
        """Keep a process for another request; stop it if none comes within `NEXT_REQUEST_TIMEOUT`
        seconds."""
        stopping = asyncio.create_task(self._stop_idle(function, dispatcher))
        self._idle.setdefault(function, []).append((dispatcher, stopping))

    def _take_idle(self, function: _DispatcherFunction) -> _DispatcherProcess | None:
        """Take an idle process of this function, which then isn't stopped any more; None if there
        is none."""
        idle_processes = self._idle.get(function)
        if not idle_processes:
            return None
        dispatcher, stopping = idle_processes.pop()
        stopping.cancel()
        return dispatcher

    async def _stop_idle(
        self, function: _DispatcherFunction, dispatcher: _DispatcherProcess
    ) -> None:
        """Stop a process unless another request takes it within `NEXT_REQUEST_TIMEOUT` seconds."""
        await asyncio.sleep(NEXT_REQUEST_TIMEOUT)
        idle_processes = self._idle[function]
        idle_processes[:] = [entry for entry in idle_processes if entry[0] is not dispatcher]
        await dispatcher.child.stop()


def _url(port: int) -> str:
    """Return the URL of a port on this machine."""
    return f"http://{HOST}:{port}"
