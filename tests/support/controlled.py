"""The leader's controller on a cluster in memory, without watches: tests enqueue what changes."""

from __future__ import annotations

from typing import Any

from support.operator_world import OperatorWorld

from knafka_operator.kube_api.cache import CachedCluster
from knafka_operator.model.cluster import Document
from knafka_operator.runtime.controller import ClusterController


class AllKinds:
    """Every kind that is asked for is there."""

    def is_known(self, api_version: str, kind: str) -> bool:
        return True

    def forget(self, group: str) -> None: ...


class MemoryApi:
    """What a controller asks beside `Cluster`, of a cluster in memory."""

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster
        self.kinds = AllKinds()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)

    async def patch_status(self, document: Document, status: Document) -> Document | None:
        await self._cluster.write_status(document, status)
        return None

    async def patch_metadata(self, document: Document, metadata: Document) -> Document | None:
        mine = document["metadata"]
        key = document["apiVersion"], document["kind"], mine["namespace"], mine["name"]
        stored = self._cluster.objects.get(key)
        if stored is not None:
            given = dict(metadata)
            finalizers = given.pop("finalizers", None)
            stored["metadata"] |= given
            if finalizers is not None:  # an object that is going goes with its last
                self._cluster.set_finalizers(*key, *finalizers)
        found: Document | None = await self._cluster.get(*key)
        return found


def controller_of(world: OperatorWorld) -> ClusterController:
    api: Any = MemoryApi(world.cluster)
    return ClusterController(world.operator, CachedCluster(api), api)
