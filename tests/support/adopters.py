"""An `Adopter` that asks a fake API server and a Kafka in memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from support.memory.admin import MemoryAdmin
from support.memory.log import MemoryLog

from knafka_cli.adoption.cluster import Adopter
from knafka_client.declared.cluster_source import ClusterSource
from knafka_client.declared.kubernetes_api import KubernetesApi


def adopter_of(client: Any, log: MemoryLog, members: Mapping[str, list[str]]) -> Adopter:
    """`members`: the present members of consumer groups, by group."""

    class Admin(MemoryAdmin):
        async def members(self, group: str) -> list[str]:
            return members.get(group, [])

        async def close(self) -> None:
            pass

    sources = [ClusterSource(client, "shop", bootstrap_servers=x) for x in ("x:1", None)]
    return Adopter(
        KubernetesApi(client), *sources, system_namespace="knafka",
        peers_namespace="knative-eventing", connect=lambda _: Admin(log),
    )  # fmt: skip
