"""LocalKnative: the operator, Knative Serving's stand-in and all functions on this machine.

    declared -> LocalController -> Operator -> LocalCluster -> LocalServing -> programs, receiver
                                 |
                                 +-> Scaler -> DispatcherProcesses

Programs start while Kafka starts: both are slow, and programs don't need Kafka.
Not here: Kafka, files, and the installation's port, which outlive a `LocalKnative` (`supervisor`).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from knafka.core.contract import Egress, Ingress
from knafka_client.declared.manifests import DeclaredObjects
from knafka_client.sockets import HOST, port_of
from knafka_client.state.installation import SensorPlace
from knafka_client.state.snapshot import Snapshot
from knafka_local.cluster.kept_names import KeptNames
from knafka_local.cluster.local_cluster import LocalCluster
from knafka_local.cluster.local_controller import LocalController
from knafka_local.cluster.local_serving import LocalServing
from knafka_local.cluster.observing import Observer
from knafka_local.processes.children import cancel
from knafka_local.processes.declining import DecliningServer
from knafka_local.processes.dispatchers import DispatcherProcesses
from knafka_local.processes.programs import Programs
from knafka_local.processes.receiver_process import ReceiverProcess, RequestCounts
from knafka_local.view import View
from knafka_operator.model.family import CHANNELS

NO_CHANNEL: Final = (
    "no KafkaChannel is declared in what this `knafka up` runs: add its YAML to the files of -f, "
    "such as examples/channel; Brokers are at "
)
"""The answer at the port of KafkaChannels while none is declared; the URL of Brokers is
appended."""


class LocalKnative:
    """Runs the operator and all functions: enter `serving`, then call `connect` and `run`."""

    def __init__(
        self,
        url: str,
        listener: socket.socket,
        channels: socket.socket,
        logs: Path,
        view: View,
        issuer: Mapping[str, str] | None = None,
    ) -> None:
        """Serve Brokers on `listener` (at `url`) and KafkaChannels on `channels`; processes log
        into `logs`.

        `issuer`: environment variables by which functions find the token issuer; None: senders need
        no token.
        """
        self._say = view.say
        self.channels_url = f"http://{HOST}:{port_of(channels)}"
        self._cluster = LocalCluster(url, self.channels_url, requires_auth=issuer is not None)
        self._programs = Programs(logs, view.say, view.show_program_line)
        self._receiver = ReceiverProcess(listener, logs, view.say, environment=issuer)
        """The receiver of Brokers."""
        self._declining = DecliningServer(channels, NO_CHANNEL + url)
        """Answers at the port of KafkaChannels until `_channel_receiver` takes it over."""
        self._channel_receiver = ReceiverProcess(
            channels, logs, view.say, "channel-receiver", self._declining.stop, issuer
        )
        self._dispatchers = DispatcherProcesses(logs, issuer)
        self._serving = LocalServing(
            self._cluster, self._programs, self._receiver, self._channel_receiver
        )
        self._controller: LocalController
        """Set by `connect`, because it needs Kafka."""
        self._observer: Observer
        """Set by `connect`, because it needs the controller."""
        self._serving_task: asyncio.Task[None]
        """Runs `LocalServing`; set by `serving`."""
        self._answered: RequestCounts = RequestCounts()
        """Requests to Brokers answered since the start, as last read from the receiver."""
        self._answered_by_channels: RequestCounts = RequestCounts()
        """Requests to KafkaChannels answered since the start, as last read from their receiver."""

    @contextlib.asynccontextmanager
    async def serving(self, declared: DeclaredObjects) -> AsyncIterator[None]:
        """Run the programs of the declared Services while the context is open; all processes have
        ended on exit.

        Objects other than Services wait for `apply`, since they need Kafka.
        """
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._programs.close)
            stack.push_async_callback(self._receiver.stop)
            stack.push_async_callback(self._channel_receiver.stop)
            stack.push_async_callback(self._declining.close)
            stack.push_async_callback(self._dispatchers.close)
            self._serving_task = asyncio.create_task(self._serving.run())
            stack.push_async_callback(cancel, self._serving_task)
            for identity, (document, folder) in declared.documents.items():
                if identity.kind == "Service":
                    self._cluster.declare(document, folder)
            yield

    def connect(self, bootstrap_servers: str, names: KeptNames, *, adopt: bool) -> None:
        """Connect to the Kafka that has started.

        `names` are the topic and group names of earlier runs. With `adopt`, the first `apply` takes
        over existing topics and groups, which were made by an older Knafka that kept no names.
        """
        self._cluster.connect(bootstrap_servers, names)
        self._cluster.adopts = adopt
        self._controller = LocalController(
            self._cluster, self._dispatchers, self._serving.served, self._say
        )
        self._observer = Observer(self._cluster, self._controller)

    async def run(self) -> None:
        """Run the controller until cancelled; it then ends every drain. If the task that `serving`
        has started to run the Services fails, stop and raise its error, in an `ExceptionGroup`.
        Call `connect` first."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._controller.run())
            await self._serving_task  # it only ends by an error, which is raised here

    async def apply(self, declared: DeclaredObjects) -> None:
        """Make the cluster hold exactly the declared objects.

        The receiver of Brokers is started even if no Broker is declared. While no KafkaChannel is
        declared, requests to their port are answered with `NO_CHANNEL`.
        """
        await self._controller.apply(declared)
        self._cluster.adopts = False  # only the first `apply` takes over existing topics
        await self._receiver.serve_nothing()  # without a Broker, no Service starts a receiver
        if not (self._channel_receiver.is_running or any(self._cluster.of(CHANNELS.broker))):
            await self._declining.start()

    async def read_counters(self) -> None:
        """Read the receivers' counters of answered requests, for the next snapshot."""
        self._answered = await self._receiver.request_counts()
        self._answered_by_channels = await self._channel_receiver.request_counts()

    def snapshot(self, problems: Sequence[str], kafka: str) -> Snapshot:
        """Return a snapshot of everything. `problems` are sentences about the manifest files;
        `kafka` says where Kafka is and whether it runs."""
        return self._observer.take_snapshot(
            self._answered, self._answered_by_channels, problems, kafka
        )

    @property
    def ingresses(self) -> tuple[Ingress, ...]:
        """The Ingress of each Broker and KafkaChannel that is served."""
        return tuple(self._controller.ingresses())

    @property
    def egresses(self) -> tuple[Egress, ...]:
        """The Egress of each Trigger and Subscription, paused ones included."""
        return tuple(self._controller.egresses())

    @property
    def sensor_places(self) -> tuple[SensorPlace, ...]:
        """The topics and the group of each Sensor that is ready to run."""
        return tuple(self._controller.sensor_places())
