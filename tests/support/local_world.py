"""The local mode without processes: what files declare, reconciled on a Kafka in memory."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from support.memory.admin import MemoryAdmin
from support.memory.log import MemoryLog, MemoryWriter
from support.scaling import NoSensors

from knafka.core.contract import Egress, Ingress, Receiver, Shard
from knafka.core.drain import DrainProgress, DrainRequest, Ended, ShardProgress
from knafka.core.errors import LogError
from knafka.ports.log import Record, TopicDescription
from knafka_client.declared.manifests import DeclaredObjects, ObjectIdentity
from knafka_client.state.snapshot import Snapshot
from knafka_local.cluster.kept_names import KeptNames
from knafka_local.cluster.local_cluster import LocalCluster
from knafka_local.cluster.local_controller import LocalController
from knafka_local.cluster.local_serving import LocalServing
from knafka_local.cluster.observing import Observer
from knafka_local.processes.programs import Identity as ServiceIdentity
from knafka_local.processes.programs import Program, Programs
from knafka_local.processes.receiver_process import RequestCounts
from knafka_operator.model.cluster import Document
from knafka_operator.model.conditions import Status
from knafka_operator.model.family import BROKERS
from knafka_operator.receivers.receivers import read_ingresses

URL: Final = "http://127.0.0.1:8080"
CHANNELS_URL: Final = "http://127.0.0.1:8081"
PROGRAM: Final = "http://127.0.0.1:9999/"
"""Where every program is."""
FOLDER: Final = Path("/manifests")


class NoPrograms(Programs):
    """Programs that nobody starts: they serve at once, but for those called `broken`."""

    def __init__(self) -> None:
        super().__init__(FOLDER, lambda line: None, lambda program, line: None)
        self.running: dict[ServiceIdentity, Program] = {}

    def url(self, who: ServiceIdentity) -> str:
        return PROGRAM

    async def run(self, who: ServiceIdentity, program: Program) -> None:
        if self.running.get(who) == program:
            return
        self.running[who] = program
        await self.report(who, Status.UNKNOWN, "it is being started")
        if program.arguments[0] == "broken":
            await self.report(who, Status.FALSE, "its command can't be started: no such file")
        else:
            await self.report(who, Status.TRUE, "")

    async def stop(self, who: ServiceIdentity) -> None:
        self.running.pop(who, None)


class NoReceiver:
    """A receiver that has read all of its topic at once."""

    def __init__(self, log: MemoryLog) -> None:
        self._log = log
        self.followed: list[Receiver] = []
        """Each contract that it was started with."""

    async def follow(self, contract: Receiver) -> bool:
        if contract not in self.followed[-1:]:
            self.followed.append(contract)
        return True

    async def serve_nothing(self) -> None: ...

    @property
    def ingresses(self) -> Sequence[Ingress]:
        """What it serves, by path."""
        return [each for _, each in sorted(read_ingresses(self._records()).items())]

    def _records(self) -> Sequence[Record]:
        if not self.followed:
            return ()
        records: Sequence[Record] = self._log.topics[self.followed[-1].contract_topic][0]
        return records

    async def position(self) -> int | None:
        return len(self._records()) if self.followed else None

    async def answers(self, path: str) -> bool:
        return path in read_ingresses(self._records())


class NoDrains(NoSensors):
    """Drains that nobody opens: nothing is written here, so nothing waits."""

    async def hold(
        self, trigger_id: str, egress: Egress, request: DrainRequest, stop: asyncio.Event
    ) -> AsyncIterator[DrainProgress]:
        await stop.wait()
        yield DrainProgress()

    async def hold_shard(
        self, shard: Shard, request: DrainRequest, stop: asyncio.Event
    ) -> AsyncIterator[ShardProgress]:
        yield ShardProgress(contract=sys.maxsize)
        await stop.wait()
        yield ShardProgress(contract=sys.maxsize, ended=Ended.STOPPED)


class LocalWorld:
    """One `knafka up`; `log` and `names` may be an earlier one's."""

    def __init__(
        self,
        log: MemoryLog,
        names: KeptNames,
        *,
        adopt: bool = False,
        requires_auth: bool = False,
    ) -> None:
        self.log = log
        self.cluster = LocalCluster(URL, CHANNELS_URL, requires_auth=requires_auth)
        self.cluster.connect("127.0.0.1:9092", names)
        self.cluster.adopts = adopt
        self.programs = NoPrograms()
        self.receiver = NoReceiver(log)
        self.channels_receiver = NoReceiver(log)
        self.serving = LocalServing(
            self.cluster, self.programs, self.receiver, self.channels_receiver
        )
        self.said: list[str] = []
        self.kafka_is_away = False
        self.controller = LocalController(
            self.cluster,
            NoDrains(),
            self.serving.served,
            self.said.append,
            self._connect,
            lambda configuration: MemoryWriter(log),
        )
        self.observer = Observer(self.cluster, self.controller)

    def _connect(self, configuration: Mapping[str, Any]) -> MemoryAdmin:
        return _Admin(self)

    async def apply(self, *documents: Document) -> None:
        """Have the files declare these and no others."""
        found = {}
        for each in documents:
            metadata = each["metadata"]
            namespace = metadata.get("namespace", "default")
            found[ObjectIdentity(each["kind"], namespace, metadata["name"])] = each, FOLDER
        await self.controller.apply(DeclaredObjects({}, documents=found))

    def egress(self, name: str = "orders", namespace: str = "default") -> Egress | None:
        """How a Trigger is delivered; None: it isn't."""
        found = {(each.namespace, each.trigger): each for each in self.controller.egresses()}
        return found.get((namespace, name))

    def ingress(self, name: str = "shop", namespace: str = "default") -> Ingress | None:
        found = {(each.namespace, each.broker): each for each in self.controller.ingresses(BROKERS)}
        return found.get((namespace, name))

    def status(self, kind: str, name: str, namespace: str = "default") -> Document:
        document = self.cluster.find_reconciled(kind, namespace, name)
        assert document is not None
        status: Document = document["status"]
        return status

    def reason(self, kind: str, name: str, namespace: str = "default") -> str:
        """Why it isn't Ready, as `Reason: message`; empty: it is."""
        conditions = self.status(kind, name, namespace)["conditions"]
        ready = next(each for each in conditions if each["type"] == "Ready")
        return "" if ready["status"] == "True" else f"{ready['reason']}: {ready['message']}"

    def snapshot(self) -> Snapshot:
        return self.observer.take_snapshot(RequestCounts(), RequestCounts(), (), "kafka")


class _Admin(MemoryAdmin):
    def __init__(self, world: LocalWorld) -> None:
        super().__init__(world.log)
        self._world = world

    async def describe_topic(self, topic: str) -> TopicDescription | None:
        if self._world.kafka_is_away:
            raise LogError("no answer within 15 s")
        return await super().describe_topic(topic)


@asynccontextmanager
async def running_locally(
    log: MemoryLog | None = None,
    names: KeptNames | None = None,
    *,
    adopt: bool = False,
    requires_auth: bool = False,
) -> AsyncIterator[LocalWorld]:
    """A world whose parts run, and end with it."""
    log, names = log or MemoryLog(), names or KeptNames()
    world = LocalWorld(log, names, adopt=adopt, requires_auth=requires_auth)
    tasks = [asyncio.create_task(each) for each in (world.serving.run(), world.controller.run())]
    try:
        yield world
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def document(kind: str, name: str, spec: Mapping[str, Any], **metadata: Any) -> dict[str, Any]:
    groups = {"Service": "serving", "KafkaChannel": "messaging", "Subscription": "messaging"}
    return {
        "apiVersion": f"{groups.get(kind, 'eventing')}.knative.dev/v1",
        "kind": kind,
        "metadata": {"name": name, **metadata},
        "spec": spec,
    }


def broker(name: str = "shop", **metadata: Any) -> dict[str, Any]:
    return document("Broker", name, {}, **metadata)


def trigger(
    name: str = "orders", subscriber: Any = None, spec: Any = None, **metadata: Any
) -> dict[str, Any]:
    subscriber = subscriber or {"uri": "http://127.0.0.1:1/"}
    own = {"broker": "shop", "subscriber": subscriber, **(spec or {})}
    return document("Trigger", name, own, **metadata)


def channel(name: str = "orders", spec: Any = None, **metadata: Any) -> dict[str, Any]:
    return document("KafkaChannel", name, spec or {}, **metadata)


def subscription(
    name: str = "audit", subscriber: Any = None, spec: Any = None, **metadata: Any
) -> dict[str, Any]:
    of = {"apiVersion": "messaging.knative.dev/v1", "kind": "KafkaChannel", "name": "orders"}
    own = {"channel": of, "subscriber": subscriber or {"uri": "http://127.0.0.1:1/"}}
    return document("Subscription", name, {**own, **(spec or {})}, **metadata)


def service(command: str | None = "worker --port 1", name: str = "worker") -> dict[str, Any]:
    annotations = {} if command is None else {"local.knafka.dev/command": command}
    return document("Service", name, {"template": {"metadata": {"annotations": annotations}}})


def config_map(name: str = "config", **data: str) -> dict[str, Any]:
    data = {key.replace("_", "."): value for key, value in data.items()}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}
