"""An operator that serves KafkaSinks, between a cluster and a Kafka in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

from support.controlled import controller_of
from support.intercepted import Seen
from support.operator_world import OperatorWorld, condition

from knafka.core.contract import Ingress, parse_ingresses
from knafka_operator.functions import services
from knafka_operator.installation.naming import Naming
from knafka_operator.model.resources import SERVING
from knafka_operator.runtime.controller import ClusterController
from knafka_operator.sinks.kind import KafkaSinks
from knafka_operator.sinks.model import KAFKA_SINK, SINKS_VERSION

SHOP: Final = "shop"
RAW: Final = "raw"
OWN: Final[Mapping[str, Any]] = {"topic": "own", "numPartitions": 2, "replicationFactor": 1}
"""Of a spec: a topic that is to be made."""


class SinksWorld:
    """One topic of somebody's, of three partitions."""

    def __init__(self, seen: Seen = lambda when, call: None) -> None:
        """`seen` as of an `OperatorWorld`."""
        self.inner = OperatorWorld(seen)
        self.inner.log.create(RAW, 3)
        self.controller: ClusterController

    async def start(self) -> None:
        """Another operator takes over."""
        await self.inner.restart(sinks=True, naming=Naming())
        self.controller = controller_of(self.inner)
        for (_, kind, *_), stored in list(self.inner.cluster.objects.items()):
            if kind == KAFKA_SINK:
                self.hear(stored)

    @property
    def sinks(self) -> KafkaSinks:
        found = self.inner.operator.sinks
        assert found is not None
        return found

    def hear(self, stored: Mapping[str, Any], *, gone: bool = False) -> None:
        self.controller.on_change(self.controller.kinds[KAFKA_SINK], stored, gone=gone)

    def declare(
        self,
        name: str = "orders",
        annotations: Mapping[str, str] | None = None,
        namespace: str = SHOP,
        **spec: Any,
    ) -> None:
        metadata = {"namespace": namespace, "name": name, "annotations": dict(annotations or {})}
        declared = {"topic": RAW, "bootstrapServers": ["theirs:9092"], **spec}
        document = {"apiVersion": SINKS_VERSION, "kind": KAFKA_SINK, "metadata": metadata}
        self.inner.cluster.put({**document, "spec": declared})

    def stored(self, name: str = "orders", namespace: str = SHOP) -> dict[str, Any]:
        return self.inner.cluster.objects[SINKS_VERSION, KAFKA_SINK, namespace, name]

    async def turn(self, name: str = "orders", namespace: str = SHOP) -> None:
        """One reconciliation, of what the controller has heard of before."""
        key = SINKS_VERSION, KAFKA_SINK, namespace, name
        if (stored := self.inner.cluster.objects.get(key)) is not None:
            self.hear(stored)
        await self.controller.reconcile((KAFKA_SINK, namespace, name))

    async def delete(self, name: str = "orders", namespace: str = SHOP) -> None:
        self.inner.cluster.remove(SINKS_VERSION, KAFKA_SINK, namespace, name)
        await self.turn(name, namespace)

    def status(self, name: str = "orders", namespace: str = SHOP) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.stored(name, namespace)["status"]
        return found

    def says(self, type_: str, name: str = "orders", namespace: str = SHOP) -> tuple[str, str]:
        """The condition's status, and what is to be read there."""
        found = condition(self.status(name, namespace), type_)
        return found["status"], f"{found.get('reason', '')} {found.get('message', '')}".strip()

    def service(self, name: str = "orders", namespace: str = SHOP) -> dict[str, Any] | None:
        key = SERVING, "Service", namespace, f"{name}-kn-sink-receiver"
        return self.inner.cluster.objects.get(key)

    def environment(self, name: str = "orders", namespace: str = SHOP) -> Mapping[str, str]:
        service = self.service(name, namespace)
        assert service is not None
        (container,) = service["spec"]["template"]["spec"]["containers"]
        return services.environment_of(container)

    def ingress(self, name: str = "orders", namespace: str = SHOP) -> Ingress:
        (found,) = parse_ingresses(self.environment(name, namespace)["KNAFKA_INGRESSES"])
        return found


@asynccontextmanager
async def sinks_world() -> AsyncIterator[SinksWorld]:
    """What runs in it is ended."""
    world = SinksWorld()
    await world.start()
    try:
        yield world
    finally:
        await world.inner.operator.close()
