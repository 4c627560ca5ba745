"""An operator that serves KafkaSources, between a cluster and a Kafka in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

from support.controlled import controller_of
from support.operator_world import OperatorWorld, condition

from knafka.core.contract import Egress
from knafka.core.documents import parse_json
from knafka_operator.installation.naming import Naming
from knafka_operator.model.resources import SERVING
from knafka_operator.model.sources import KAFKA_SOURCE, SOURCES_VERSION
from knafka_operator.runtime.controller import ClusterController

GROUP: Final = "readers"
ID: Final = "KafkaSource shop/orders"
DISPATCHER: Final = "orders-kn-source-dispatcher"


class SourcesWorld:
    """Two topics of somebody's, of three partitions and of one."""

    def __init__(self) -> None:
        self.inner = OperatorWorld()
        self.inner.log.create("raw", 3)
        self.inner.log.create("more")
        self.controller: ClusterController

    async def start(self) -> None:
        """Another operator takes over."""
        await self.inner.restart(sources=True, naming=Naming())
        self.controller = controller_of(self.inner)

    def declare(
        self,
        annotations: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        name: str = "orders",
        **spec: Any,
    ) -> None:
        metadata = {
            "namespace": "shop",
            "name": name,
            "annotations": dict(annotations or {}),
            "labels": dict(labels or {}),
        }
        declared = {
            "topics": ["raw"],
            "bootstrapServers": ["theirs:9092"],
            "consumerGroup": GROUP,
            "sink": {"uri": "http://sink/"},
            **spec,
        }
        document = {"apiVersion": SOURCES_VERSION, "kind": KAFKA_SOURCE, "metadata": metadata}
        self.inner.cluster.put({**document, "spec": declared})

    def stored(self, name: str = "orders") -> dict[str, Any]:
        return self.inner.cluster.objects[SOURCES_VERSION, KAFKA_SOURCE, "shop", name]

    async def turn(self, name: str = "orders") -> None:
        """One reconciliation, of what the controller has heard of before."""
        kind = self.controller.kinds[KAFKA_SOURCE]
        key = SOURCES_VERSION, KAFKA_SOURCE, "shop", name
        if (stored := self.inner.cluster.objects.get(key)) is not None:
            kind.on_change(stored, gone=False)
        await self.controller.reconcile((KAFKA_SOURCE, "shop", name))

    async def delete(self, name: str = "orders") -> None:
        self.inner.cluster.remove(SOURCES_VERSION, KAFKA_SOURCE, "shop", name)
        await self.turn(name)

    def status(self, name: str = "orders") -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.stored(name)["status"]
        return found

    def says(self, type_: str, name: str = "orders") -> tuple[str, str]:
        """The condition's status, and what is to be read there."""
        found = condition(self.status(name), type_)
        return found["status"], f"{found.get('reason', '')} {found.get('message', '')}".strip()

    def service(self) -> dict[str, Any]:
        return self.inner.cluster.objects[SERVING, "Service", "shop", DISPATCHER]

    def egress(self) -> Egress:
        (container,) = self.service()["spec"]["template"]["spec"]["containers"]
        given = {each["name"]: each["value"] for each in container["env"]}
        return parse_json(Egress, given["KNAFKA_EGRESS"])

    def committed(self, group: str = GROUP) -> dict[tuple[str, int], int]:
        if (found := self.inner.log.groups.get(group)) is None:
            return {}
        return {place: each.offset for place, each in found.committed.items()}


@asynccontextmanager
async def sources_world() -> AsyncIterator[SourcesWorld]:
    """What runs in it is ended."""
    world = SourcesWorld()
    await world.start()
    try:
        yield world
    finally:
        await world.inner.operator.close()
