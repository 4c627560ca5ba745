"""The leader of Brokers and KafkaChannels, on an API server and a Kafka in memory.

Functions answer every probe, and nothing runs in them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

import kubernetes
from support.memory.admin import MemoryAdmin
from support.memory.log import MemoryLog, MemoryWriter
from support.operator_world import SETTINGS, QuietDrains

from knafka_operator.kube_api.cache import CachedCluster
from knafka_operator.kube_api.cluster import ApiCluster
from knafka_operator.operator import Operator
from knafka_operator.runtime.controller import ClusterController
from knafka_operator.wiring import OperatorClients


class Leader:
    """One process, from its start until it is closed; `log` may outlive it."""

    def __init__(self, client: kubernetes.client.ApiClient, log: MemoryLog) -> None:
        self._log = log
        self.api = ApiCluster(client)
        self._cluster = CachedCluster(self.api)
        self._operator = self._new_operator()
        self.channels = self._new_operator(self._operator)
        controller = ClusterController(self._operator, self._cluster, self.api)
        self._run = asyncio.create_task(controller.run())

    def _new_operator(self, beside: Operator | None = None) -> Operator:
        return Operator(
            replace(SETTINGS, channels=True, installation="test"),
            self._cluster,
            OperatorClients(
                lambda _: MemoryAdmin(self._log),
                lambda _: MemoryWriter(self._log),
                QuietDrains(),
                _answers,
                _answers,
                _positions,
            ),
            beside=beside,
        )

    async def close(self) -> None:
        self._run.cancel()
        await asyncio.wait({self._run})
        await self._operator.close()
        self.api.close()


async def _answers(url: str) -> None: ...


async def _positions(namespace: str, name: str) -> Mapping[str, int | None]:
    return {}
