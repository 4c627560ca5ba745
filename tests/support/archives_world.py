"""An operator that runs DeadLetterArchives and operations, on a cluster in memory."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from support.controlled import controller_of
from support.intercepted import Seen
from support.memory.log import MemoryWriter
from support.operator_world import OperatorWorld, condition

from knafka.core import names
from knafka.ports.log import OffsetAndMetadata
from knafka_operator.archives import manifests
from knafka_operator.archives.kind import Archives
from knafka_operator.archives.model import ARCHIVE
from knafka_operator.engine.kind import key_of
from knafka_operator.model.resources import CORE
from knafka_operator.model.sensors import KNAFKA
from knafka_operator.runtime import selections
from knafka_operator.runtime.controller import ClusterController

IMAGE = "knafka-jobs:latest"
TOPIC = names.dead_letter_topic("shop", "default", "orders")
CLAIM = {"claim": {"name": "tables"}}
BUCKET = {"url": "s3a://bucket/shop"}
NEVER: dict[str, Any] = {"compaction": {"number": 1_000_000, "age": "P1000D"}}
AT_SIX = {"schedule": "0 6 * * *"}


class ArchivesWorld:
    """An operator that runs archives, and its controller; the Broker and a claim are there."""

    def __init__(self, seen: Seen = lambda when, call: None) -> None:
        self.inner = OperatorWorld(seen)
        self.cluster = self.inner.cluster
        self.time = datetime(2026, 1, 1, 12, tzinfo=UTC)
        self.controller: ClusterController
        self.most_jobs = 0
        """Jobs that were there at once."""

    async def start(self, image: str = IMAGE) -> None:
        """Another operator takes over."""
        await self.inner.restart(jobs_image=image)
        self.controller = controller_of(self.inner)
        if ARCHIVE in self.controller.kinds:
            self.archives.now = lambda: self.time
        if ("eventing.knative.dev/v1", "Broker", "shop", "default") in self.cluster.objects:
            await self.inner.reconcile_broker("shop")

    @property
    def archives(self) -> Archives:
        found = self.controller.kinds[ARCHIVE]
        assert isinstance(found, Archives)
        return found

    def put(self, api_version: str, kind: str, name: str, **more: Any) -> dict[str, Any]:
        metadata = {"namespace": "shop", "name": name, **more.pop("metadata", {})}
        document = {"apiVersion": api_version, "kind": kind, "metadata": metadata, **more}
        return self.cluster.put(document)

    def declare(
        self, name: str = "kept", annotations: Mapping[str, str] | None = None, **spec: Any
    ) -> None:
        spec = {"storage": CLAIM, **spec}
        metadata = {"annotations": dict(annotations or {})}
        self.put(KNAFKA, ARCHIVE, name, spec=spec, metadata=metadata)

    def bury(self, number: int = 1, topic: str = TOPIC) -> None:
        """So many more dead letters of a Trigger."""
        if topic not in self.inner.log.topics:
            self.inner.log.create(topic, 1)
        writer = MemoryWriter(self.inner.log)
        for _ in range(number):
            writer.append(topic, None, b"{}", [], lambda *_: None)

    async def turn(self, name: str = "kept", after: float = 11.0) -> Any:
        """A look, so much later, of an operator that has heard of its Jobs."""
        self.time += timedelta(seconds=after)
        self.archives._dead_letters._ends_by_kafka.clear()
        self.controller.on_objects(selections.JOBS, self.jobs(), [])
        verdict = await self.controller.reconcile((ARCHIVE, "shop", name))
        self.most_jobs = max(self.most_jobs, len(self.jobs()))
        return verdict

    async def turns(self, count: int = 3, name: str = "kept") -> None:
        for _ in range(count):
            await self.turn(name)

    async def round(self, after: float = 11.0, archives: Sequence[str] = ("kept",)) -> None:
        """A look at all operations and these archives, of an operator that has heard of them."""
        self.time += timedelta(seconds=after)
        self.controller.on_objects(selections.JOBS, self.jobs(), [])
        for of in selections.OPERATIONS:
            there = list(self.cluster.of(of.kind))
            self.controller.on_objects(of, there, [])
            for each in there:
                await self.controller.reconcile(key_of(each))
        for name in archives:
            await self.turn(name, after=0)

    async def rounds(self, count: int = 4, **more: Any) -> None:
        for _ in range(count):
            await self.round(**more)

    def ask(self, kind: str, name: str, **spec: Any) -> dict[str, Any]:
        """An operation, made now."""
        metadata = {"creationTimestamp": self.time.strftime("%Y-%m-%dT%H:%M:%SZ")}
        return self.put(KNAFKA, kind, name, spec={"archive": "kept", **spec}, metadata=metadata)

    def told(self, kind: str, name: str) -> Mapping[str, Any]:
        """An operation's status."""
        return dict(self.cluster.objects[KNAFKA, kind, "shop", name].get("status", {}))

    def jobs(self) -> list[dict[str, Any]]:
        return [dict(each) for each in self.cluster.of("Job")]

    def job(self) -> dict[str, Any]:
        (found,) = self.jobs()
        return found

    def leases(self) -> list[str]:
        return [each["spec"]["holderIdentity"] for each in self.cluster.of("Lease")]

    def status(self, name: str = "kept") -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.cluster.objects[KNAFKA, ARCHIVE, "shop", name].get(
            "status", {}
        )
        return found

    def says(self, type_: str, name: str = "kept") -> tuple[str, str]:
        found = condition(self.status(name), type_)
        return found["status"], found.get("reason", "")

    def end(self, failed: str = "", **result: Any) -> None:
        """The Job that runs ends; one that succeeds has committed what the topics had."""
        job = copy.deepcopy(self.job())
        name = job["metadata"]["name"]
        arguments = job["spec"]["template"]["spec"]["containers"][0]["args"]
        (group,) = (each[8:] for each in arguments if each.startswith("--group="))
        if not failed:
            committed = self.inner.log.group(group).committed
            for topic, partitions in self.inner.log.topics.items():
                if topic.startswith(names.DEAD_LETTERS):
                    for number, records in enumerate(partitions):
                        committed[topic, number] = OffsetAndMetadata(len(records))
        message = json.dumps({"error": failed} if failed else result)
        state = {"terminated": {"reason": "Error" if failed else "Completed", "message": message}}
        labels = {manifests.JOB_NAME: name}
        status = {"containerStatuses": [{"name": "archive", "state": state}]}
        self.put(CORE, "Pod", f"{name}-x", metadata={"labels": labels}, status=status)
        ended = {"type": "Failed" if failed else "Complete", "status": "True"}
        job["status"] = {"conditions": [ended], "startTime": "2026-01-01T12:00:00Z"}
        self.cluster.put(job)


async def ready_world(seen: Seen = lambda when, call: None) -> ArchivesWorld:
    world = ArchivesWorld(seen)
    world.inner.declare_broker("shop")
    world.put(CORE, "PersistentVolumeClaim", "tables", spec={"accessModes": ["ReadWriteOnce"]})
    await world.start()
    return world
