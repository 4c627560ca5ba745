"""An operator between a cluster and a Kafka that are both in memory.

Knative Services are Ready as soon as they are applied; nothing runs in them.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Final, TypeAlias

from knafka.clients.memory_admin import MemoryAdmin
from knafka.clients.memory_log import MemoryLog
from knafka_operator.model.cluster import ClusterError, Document
from knafka_operator.model.resources import BROKER_CLASS, CORE, EVENTING, SERVING
from knafka_operator.model.settings import Settings
from knafka_operator.operator import Operator

SETTINGS: Final = Settings(namespace="knafka", image="knafka:latest")
INSTALLATION: Final = ("knafka", SETTINGS.config)
"""Namespace and name of the installation's ConfigMap."""

Key: TypeAlias = tuple[str, str, str, str]
"""apiVersion, kind, namespace and name."""


class MemoryCluster:
    """`cluster.Cluster` on a dictionary."""

    def __init__(self) -> None:
        self.objects: dict[Key, dict[str, Any]] = {}
        self.refused_status_of: set[str] = set()
        """Names of objects whose status can't be written."""
        self.unready: set[str] = set()
        """Names of Knative Services that never become Ready."""
        self.failing: Exception | None = None
        """What every `get` raises."""
        self.listed = 0
        """How many lists were asked for."""
        self._made = 0

    def put(self, document: Document) -> dict[str, Any]:
        """Store an object as a user would; what is in its status stays."""
        metadata = document["metadata"]
        key = document["apiVersion"], document["kind"], metadata["namespace"], metadata["name"]
        before = self.objects.get(key, {})
        self._made += 1
        stored = copy.deepcopy(dict(document))
        had = before.get("metadata", {})
        uid = had.get("uid") or f"uid-{self._made}"
        generation = had.get("generation", 1)
        stored["metadata"] = {"uid": uid, "generation": generation, **stored["metadata"]}
        if "status" in before:
            stored.setdefault("status", before["status"])
        self.objects[key] = stored
        return stored

    async def get(self, api_version: str, kind: str, namespace: str, name: str) -> Document | None:
        await asyncio.sleep(0)
        if self.failing is not None:
            raise self.failing
        return copy.deepcopy(self.objects.get((api_version, kind, namespace, name)))

    async def create(self, manifest: Document) -> bool:
        metadata = manifest["metadata"]
        key = manifest["apiVersion"], manifest["kind"], metadata["namespace"], metadata["name"]
        if key in self.objects:
            return False
        self.put(manifest)
        return True

    async def apply(self, manifest: Document) -> Document:
        stored = self.put(manifest)
        if manifest["apiVersion"] == SERVING:
            self._serve(stored)
        return copy.deepcopy(stored)

    async def list(
        self, api_version: str, kind: str, labels: Mapping[str, str] | None = None
    ) -> list[Document]:
        self.listed += 1
        return [
            copy.deepcopy(each)
            for (version, its_kind, _, _), each in self.objects.items()
            if (version, its_kind) == (api_version, kind)
            and (labels or {}).items() <= each["metadata"].get("labels", {}).items()
        ]

    def become_ready(self, namespace: str, name: str) -> None:
        """Its newest Revision has started."""
        self.unready.discard(name)
        self._serve(self.objects[SERVING, "Service", namespace, name])

    def _serve(self, service: dict[str, Any]) -> None:
        """As Knative does: another template is another Revision, and the last Ready one serves."""
        metadata, template = service["metadata"], service["spec"]["template"]
        namespace, name = metadata["namespace"], metadata["name"]
        before = service.get("status", {})
        created = before.get("latestCreatedRevisionName", f"{name}-00000")
        newest = self.objects.get((SERVING, "Revision", namespace, created))
        if newest is None or newest["spec"] != template["spec"]:
            created = f"{name}-{int(created[-5:]) + 1:05}"
            metadata["generation"] = int(created[-5:])
            copied = copy.deepcopy(template["metadata"])
            labels = {**copied.get("labels", {}), "serving.knative.dev/service": name}
            self.objects[SERVING, "Revision", namespace, created] = {
                "apiVersion": SERVING,
                "kind": "Revision",
                "metadata": {**copied, "namespace": namespace, "name": created, "labels": labels},
                "spec": copy.deepcopy(template["spec"]),
                "status": {},
            }
        ready = name not in self.unready
        service["status"] = {
            "observedGeneration": metadata["generation"],
            "conditions": [{"type": "Ready", "status": "True" if ready else "Unknown"}],
            "latestCreatedRevisionName": created,
        }
        if serving := created if ready else before.get("latestReadyRevisionName"):
            service["status"]["latestReadyRevisionName"] = serving

    async def write_status(self, document: Document, status: Document) -> None:
        metadata = document["metadata"]
        if metadata["name"] in self.refused_status_of:
            raise ClusterError(f"can't write the status of {metadata['name']}: it is refused")
        key = document["apiVersion"], document["kind"], metadata["namespace"], metadata["name"]
        if (found := self.objects.get(key)) is not None:
            found["status"] = _merged(found.get("status") or {}, status)

    async def delete(self, api_version: str, kind: str, namespace: str, name: str) -> None:
        self.objects.pop((api_version, kind, namespace, name), None)

    def services(self) -> set[str]:
        """Names of the Knative Services that there are."""
        return {name for _, kind, _, name in self.objects if kind == "Service"}


class OperatorWorld:
    """One operator, and what is declared to it."""

    def __init__(self) -> None:
        self.cluster = MemoryCluster()
        self.log = MemoryLog()
        self.connected = 0
        """How many Kafkas were connected to."""
        self.operator = self._operator(SETTINGS)
        self.configure(*INSTALLATION, **{"bootstrap.servers": "kafka:9092"})

    def _operator(self, settings: Settings) -> Operator:
        return Operator(settings, self.cluster, self._connect, probe=_answered)

    def _connect(self, _: Mapping[str, Any]) -> MemoryAdmin:
        self.connected += 1
        return MemoryAdmin(self.log)

    async def restart(self, **settings: Any) -> None:
        """Another operator takes over, which knows what is stored and nothing else."""
        await self.operator.close()
        self.operator = self._operator(replace(SETTINGS, **settings))

    def configure(self, namespace: str, name: str, **data: str) -> None:
        metadata = {"namespace": namespace, "name": name}
        self.cluster.put(
            {"apiVersion": CORE, "kind": "ConfigMap", "metadata": metadata, "data": data}
        )

    def allow(self, patterns: str) -> None:
        """Have the installation allow these external topics."""
        given = {"bootstrap.servers": "kafka:9092", "external.topics": patterns}
        self.configure(*INSTALLATION, **given)

    def declare_broker(
        self,
        namespace: str,
        name: str = "default",
        annotations: Mapping[str, str] | None = None,
        **spec: Any,
    ) -> None:
        metadata = {
            "namespace": namespace,
            "name": name,
            "annotations": {BROKER_CLASS: "kafka", **(annotations or {})},
        }
        self.cluster.put(
            {"apiVersion": EVENTING, "kind": "Broker", "metadata": metadata, "spec": spec}
        )

    def declare_trigger(
        self,
        namespace: str,
        name: str,
        broker: str = "default",
        annotations: Mapping[str, str] | None = None,
        **spec: Any,
    ) -> None:
        spec = {"broker": broker, "subscriber": {"uri": "http://there/"}, **spec}
        metadata = {"namespace": namespace, "name": name, "annotations": dict(annotations or {})}
        self.cluster.put(
            {"apiVersion": EVENTING, "kind": "Trigger", "metadata": metadata, "spec": spec}
        )

    def document(self, kind: str, namespace: str, name: str = "default") -> dict[str, Any]:
        return copy.deepcopy(self.cluster.objects[EVENTING, kind, namespace, name])

    async def reconcile_broker(self, namespace: str, name: str = "default") -> Mapping[str, Any]:
        """Its status after that."""
        document = self.document("Broker", namespace, name)
        self.operator.heard_of_broker(document, gone=False)
        return await self.operator.reconcile_broker(document)

    async def reconcile_trigger(self, namespace: str, name: str) -> Mapping[str, Any]:
        document = self.document("Trigger", namespace, name)
        self.operator.heard_of_trigger(document, gone=False)
        status = await self.operator.triggers.reconcile(document)
        assert status is not None
        return status


def condition(status: Mapping[str, Any], type_: str) -> Mapping[str, str]:
    found: Mapping[str, str] = next(each for each in status["conditions"] if each["type"] == type_)
    return found


@asynccontextmanager
async def running_operator(monkeypatch: Any) -> AsyncIterator[OperatorWorld]:
    """A world whose receivers answer every probe; what runs in it is ended."""
    world = OperatorWorld()
    try:
        yield world
    finally:
        await world.operator.close()


async def _answered(url: str) -> None:
    await asyncio.sleep(0)


def _merged(before: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """RFC 7386."""
    merged = dict(before)
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, Mapping):
            had = merged.get(key)
            merged[key] = _merged(had if isinstance(had, Mapping) else {}, value)
        else:
            merged[key] = value
    return merged
