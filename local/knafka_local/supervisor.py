"""The supervisor: starts, watches and stops everything that `knafka up` runs.

    data folder, port -> Kafka -> LocalKnative <- files, at the start and when they change

The operator does the rest, here as on Kubernetes.
Not here: showing anything (see `view`), and anything that happens to a single event.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Final

from watchfiles import Change

from knafka.clients.kafka.admin.kafka_admin import KafkaAdmin
from knafka.clients.kafka.kafka_connection import connection_configuration
from knafka.core.contract import Kafka
from knafka.core.errors import KnafkaError, LogError
from knafka_client.declared.manifests import DeclaredObjects, Manifests
from knafka_client.sockets import HOST, PortTaken, listen
from knafka_client.state.installation import Installation, RunningState
from knafka_client.state.snapshot import Snapshot
from knafka_local.cluster.kept_names import KeptNames
from knafka_local.kafka import kafka_distribution
from knafka_local.kafka.kafka_server import KafkaServer
from knafka_local.processes.children import Child, Supervised, cancel
from knafka_local.view import View
from knafka_local.watching import FolderWatcher

RECEIVER_COUNT_INTERVAL: Final = 0.5
"""Seconds between two readings of the receivers' counters."""
REMOVAL_DELAY: Final = 3.0
"""Seconds for which an object must be missing from the files before it is deleted with its data: an
editor, git or `helm template > FILE` may be about to write the file again."""


class BadData(KnafkaError):
    """A file of the data folder can't be used."""


class NoKafka(KnafkaError):
    """The Kafka that --bootstrap-servers names does not answer."""


@dataclass(frozen=True, slots=True)
class UpOptions:
    """The options of `knafka up`."""

    manifests: tuple[Path, ...]
    """Files and folders with the manifests of Brokers, Triggers and other objects."""
    data: Path
    """The data folder, with Kafka's records, the logs and the state for other commands."""
    port: int = 8080
    """Port on this machine at which Brokers are served."""
    kafka_port: int = 9092
    """Port of the Kafka that is started."""
    bootstrap_servers: str | None = None
    """Address of a Kafka that runs already; None: start one."""
    console_port: int | None = None
    """Port of the console; None: its default port, or the next one that is free."""
    console: bool = True
    """Whether to serve the console."""
    channels_port: int | None = None
    """Port at which KafkaChannels are served; None: the port after that of Brokers, if it is
    free."""
    require_auth: bool = False
    """Whether senders must show a token of the issuer that runs on this machine."""

    @property
    def first_channels_port(self) -> int:
        """The port that is tried first for KafkaChannels."""
        return self.port + 1 if self.channels_port is None else self.channels_port


class Supervisor:
    """Runs everything that `knafka up` starts, while the context `running` is open. `snapshot`,
    `state` and `kafka` may only be used inside this context."""

    def __init__(self, options: UpOptions, view: View) -> None:
        """Prepare everything, and start nothing; `view` shows messages to the user. Raises
        `NoManifests` if one of the files and folders with manifests doesn't exist."""
        self._options = options
        self._view = view
        self._manifests = Manifests(options.manifests)
        self._installation = Installation(options.data)
        self._declared = DeclaredObjects({})
        """The objects that the manifest files declared when they were last read."""
        self._written_state: RunningState | None = None
        """The state that was last written for other commands; None before the first."""
        self._server: KafkaServer | None = None
        """The Kafka that was started here; None if --bootstrap-servers names one."""
        self._earlier_children = frozenset(Child.running)
        """Children of this process that ran before this installation was started; `kill` leaves
        them."""
        self.url = f"http://{HOST}:{options.port}"
        """The address of all Brokers, without a path."""

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Start everything on entry, and stop it on exit, Kafka last.

        Raises `KnafkaError` with what to do about it if something can't be started.
        """
        async with AsyncExitStack() as stack:
            # A data folder without kept names (of topics and groups, by object) is from an older
            # Knafka, whose topics are taken over.
            adopt = self._installation.kafka.exists() and not self._installation.names.exists()
            stack.enter_context(self._installation.hold_lock())
            listener = stack.enter_context(self._listen_for_brokers())
            channels = stack.enter_context(self._listen_for_channels())
            logs = self._installation.logs
            stack.enter_context(_log_to_file(logs / "operator.log"))
            # A stack of its own, entered before everything that needs Kafka: so Kafka stops last.
            kafka_stack = await stack.enter_async_context(AsyncExitStack())
            kafka_start = asyncio.create_task(self._start_kafka(kafka_stack))
            stack.push_async_callback(cancel, kafka_start)
            # Imported while Kafka starts, since the operator takes half a second.
            await asyncio.to_thread(import_module, "knafka_local.cluster.local_knative")
            from knafka_local.cluster.local_knative import LocalKnative

            issuer = await self._serve_issuer(stack)
            self._declared = self._manifests.read()
            knative = LocalKnative(self.url, listener, channels, logs, self._view, issuer)
            self._knative = knative
            async with knative.serving(self._declared):
                self._kafka = Kafka(bootstrap_servers=await kafka_start)
                knative.connect(
                    self._kafka.bootstrap_servers, await self._read_kept_names(), adopt=adopt
                )
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(knative.run())]
                    try:
                        await knative.apply(self._declared)
                        self._write_state()
                        tasks.append(group.create_task(self._follow_files()))
                        tasks.append(group.create_task(self._refresh_state()))
                        yield
                    finally:
                        for task in reversed(tasks):
                            task.cancel()

    def kill(self) -> None:
        """Kill every child process of this installation at once, for a user who won't wait."""
        for child in Child.running - self._earlier_children:
            child.kill()

    def snapshot(self) -> Snapshot:
        """Return a snapshot of everything that runs. Writes the state for other commands first."""
        self._write_state()  # other commands must find what is shown here
        problems = tuple(map(str, self._declared.problems))
        return self._knative.snapshot(problems, self.kafka)

    @property
    def declared(self) -> DeclaredObjects:
        """The objects that the manifest files declare."""
        return self._declared

    @property
    def state(self) -> RunningState:
        """The state for other commands."""
        return RunningState(
            pid=os.getpid(),
            url=self.url,
            channels_url=self._knative.channels_url,
            bootstrap_servers=self._kafka.bootstrap_servers,
            manifests=tuple(map(str, self._manifests.paths)),
            ingresses=self._knative.ingresses,
            egresses=self._knative.egresses,
            sensors=self._knative.sensor_places,
        )

    @property
    def kafka(self) -> str:
        """Kafka's address, followed by `(not ours)`, `(up)` or `(down)`."""
        if self._server is None:
            return f"{self._kafka.bootstrap_servers} (not ours)"
        return f"{self._kafka.bootstrap_servers} ({'up' if self._server.pid else 'down'})"

    def _listen_for_brokers(self) -> socket.socket:
        """Listen on the port of Brokers; raises `PortTaken`."""
        return _listen_at(self._options.port, "--port")

    def _listen_for_channels(self) -> socket.socket:
        """Listen on the port of KafkaChannels: the one that the user chose (raises `PortTaken` if
        it is in use), else the port after that of Brokers, else any free one."""
        options = self._options
        if options.channels_port is not None:
            return _listen_at(options.channels_port, "--channels-port")
        port = options.first_channels_port
        # Most installations have no KafkaChannels: a port in use must not prevent their start.
        with contextlib.suppress(OSError, OverflowError):
            # Leave Kafka's port free, since Kafka starts only later: 0 takes any free port.
            return listen(0 if port == options.kafka_port else port)
        return listen()

    async def _serve_issuer(self, stack: AsyncExitStack) -> Mapping[str, str] | None:
        """Serve the token issuer until `stack` closes; returns the environment variables by which
        receivers find it.

        None, and nothing is served, if senders need no token. Raises `BadIssuer`.
        """
        if not self._options.require_auth:
            return None
        # Imported here, as cryptography and kopf take half a second, and most installations require
        # no tokens.
        issuer_server = await asyncio.to_thread(import_module, "knafka_local.tokens.issuer_server")
        folder = self._installation.issuer
        environment: Mapping[str, str] = await stack.enter_async_context(
            issuer_server.serve_issuer(folder)
        )
        self._view.say(
            "senders must show a token (`knafka token` prints one); the issuer's key is in "
            f"{folder}"
        )
        return environment

    async def _start_kafka(self, stack: AsyncExitStack) -> str:
        """Start Kafka, unless --bootstrap-servers names one; returns its bootstrap servers.

        A Kafka that was started here is started again whenever it ends, and stopped when `stack`
        closes. Raises `LocalKafkaError`.
        """
        if self._options.bootstrap_servers is not None:
            return self._options.bootstrap_servers
        say = self._view.say
        distribution = await kafka_distribution.obtain_in_background(progress=say)
        server = KafkaServer(distribution, self._installation.kafka, port=self._options.kafka_port)
        say(f"starting Kafka on {server.directory}")
        await server.start()
        self._server = server

        async def ensure_running() -> KafkaServer:
            """Return the running node; start it first if it has ended. Raises `LocalKafkaError`."""
            if server.pid is None:
                await server.start()
            return server

        supervised = Supervised("Kafka", ensure_running, say)
        stack.push_async_callback(supervised.stop)
        return server.bootstrap_servers

    async def _read_kept_names(self) -> KeptNames:
        """Return the topic and group names that were kept for this Kafka cluster. Raises `NoKafka`
        and `BadData`."""
        admin = KafkaAdmin(connection_configuration(self._kafka))
        try:
            return KeptNames(self._installation.names, await admin.cluster_id())
        except LogError as error:
            raise NoKafka(
                f"no Kafka answers at {self._kafka.bootstrap_servers} ({error}): start it, or "
                "leave --bootstrap-servers out to have one started"
            ) from error
        except (OSError, ValueError) as error:
            raise BadData(
                f"{self._installation.names} can't be read ({error}): mend it, or choose another "
                "data folder"
            ) from error
        finally:
            await admin.close()

    async def _follow_files(self) -> None:
        """Apply the declared objects again after each change of a manifest file, for ever.

        An object that is missing from the files for `REMOVAL_DELAY` seconds is deleted with its
        data.
        """

        def is_manifest(_: Change, path: str) -> bool:
            """Return whether a changed file may be a manifest."""
            return self._manifests.is_manifest_path(Path(path))

        watcher = FolderWatcher("manifest files", self._view.say)
        async for _ in watcher.changes(self._manifests.folders, is_manifest):
            self._declared = await self._manifests.read_settled(REMOVAL_DELAY)
            await self._knative.apply(self._declared)

    async def _refresh_state(self) -> None:
        """Read the receivers' counters and write the state each `RECEIVER_COUNT_INTERVAL` seconds,
        until cancelled."""
        while True:
            await self._knative.read_counters()
            self._write_state()
            await asyncio.sleep(RECEIVER_COUNT_INTERVAL)

    def _write_state(self) -> None:
        """Write the state for other commands, if it has changed."""
        state = self.state
        if state != self._written_state:
            # A full disk is no reason to stop delivering; the next call tries again.
            with contextlib.suppress(OSError):
                self._installation.write_state(state)
                self._written_state = state


def _listen_at(port: int, option: str) -> socket.socket:
    """Listen on `port`; raises `PortTaken`, which says that `option` chooses another port."""
    try:
        return listen(port)
    except OSError as error:
        raise PortTaken(
            f"{HOST}:{port} can't be used ({error.strerror}): choose another with {option}"
        ) from error


@contextlib.contextmanager
def _log_to_file(file: Path) -> Iterator[None]:
    """While the context is open, append what this process logs (the operator's messages) to a file,
    so that the terminal stays free for the view."""
    handler = logging.FileHandler(file, delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        handler.close()
