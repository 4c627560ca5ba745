"""An operator between a cluster and a Kafka that are both in memory.

Knative Services are Ready as soon as they are applied; nothing runs in them.
"""

from __future__ import annotations

import asyncio
import base64
import copy
import sys
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Final

from support.intercepted import Intercepted, Seen
from support.memory.admin import MemoryAdmin
from support.memory.log import MemoryLog, MemoryWriter

from knafka.core.contract import Egress, Ingress, Shard
from knafka.core.drain import DrainProgress, DrainRequest, Ended, Holding, ShardProgress
from knafka.core.errors import LogError
from knafka.core.events.kafka_binding import RecordHeaders
from knafka.core.names import CONTRACTS
from knafka.core.sensor.contract import SensorContract
from knafka.ports.log import LogWriter, Reported
from knafka_operator.decisions.status import NotReady
from knafka_operator.installation.settings import Settings
from knafka_operator.kube_api.memory_cluster import MemoryServing
from knafka_operator.model.resources import BROKER_CLASS, CORE, EVENTING, SERVING
from knafka_operator.operator import Operator
from knafka_operator.receivers.receivers import read_ingresses
from knafka_operator.wiring import OperatorClients

SETTINGS: Final = Settings(namespace="knafka", image="knafka:latest")
INSTALLATION: Final = ("knafka", SETTINGS.config)
"""Namespace and name of the installation's ConfigMap."""


class QuietDrains:
    """Dispatchers that hold every drain until it is told to end, and deliver nothing."""

    def __init__(self) -> None:
        self.held = Counter[str]()
        """Requests that are open, by Trigger, shard or Sensor."""
        self.holding: Holding | None = None
        self.sensor_letters: dict[str, int] = {}
        """Dead letters that a Sensor's drain reports, by reason."""
        """What processes of Sensors say that they hold."""

    async def hold(
        self, trigger_id: str, egress: Egress, request: DrainRequest, stop: asyncio.Event
    ) -> AsyncIterator[DrainProgress]:
        self.held[trigger_id] += 1
        try:
            yield DrainProgress(ended=await _ended(request, stop))
        finally:
            self.held[trigger_id] -= 1

    async def hold_sensor(
        self, sensor_id: str, sensor: SensorContract, request: DrainRequest, stop: asyncio.Event
    ) -> AsyncIterator[DrainProgress]:
        self.held[sensor_id] += 1
        try:
            if self.holding is not None or self.sensor_letters:
                letters = self.sensor_letters
                yield DrainProgress(
                    holding=self.holding,
                    dead_lettered=sum(letters.values()),
                    dead_letters=letters,
                )
            yield DrainProgress(ended=await _ended(request, stop))
        finally:
            self.held[sensor_id] -= 1

    async def hold_shard(
        self, shard: Shard, request: DrainRequest, stop: asyncio.Event
    ) -> AsyncIterator[ShardProgress]:
        everything = sys.maxsize
        self.held[shard.group] += 1
        try:
            yield ShardProgress(contract=everything)
            yield ShardProgress(contract=everything, ended=await _ended(request, stop))
        finally:
            self.held[shard.group] -= 1


async def _ended(request: DrainRequest, stop: asyncio.Event) -> Ended:
    """How a request ends: by what its caller says, or its budget."""
    try:
        async with asyncio.timeout(request.budget):
            await stop.wait()
    except TimeoutError:
        return Ended.BUDGET
    return Ended.STOPPED


class OperatorWorld:
    """One operator, and what is declared to it."""

    def __init__(self, seen: Seen = lambda when, call: None) -> None:
        """`seen` sees what is asked of the cluster, of Kafka and of receivers."""
        self.cluster = MemoryServing()
        self.log = MemoryLog()
        self.connected: list[Mapping[str, Any]] = []
        """Configurations of the KafkaClusters that were connected to."""
        self.kafka_failures: dict[str, LogError] = {}
        """What Kafka answers, by the method that asks it."""
        self.drains = QuietDrains()
        self.probe_failure: NotReady | None = None
        """What every probe of a receiver ends with."""
        self.probed: list[str] = []
        """Addresses that were asked whether they answer."""
        self.behind: dict[str, int | None] = {}
        """Replicas of receivers, and up to where they have read their contract."""
        self.asked = 0
        """How often replicas were asked for their position."""
        self._seen = seen
        self.operator = self._operator(SETTINGS)
        self.configure(*INSTALLATION, **{"bootstrap.servers": "kafka:9092"})

    def _operator(self, settings: Settings) -> Operator:
        cluster: Any = Intercepted(self.cluster, self._seen)
        return Operator(
            settings,
            cluster,
            self._clients(),
        )

    def _clients(self) -> OperatorClients:
        return OperatorClients(
            self._connect,
            self._open_writer,
            self.drains,
            self._probe,
            self._probe,
            self._positions,
        )

    def _connect(self, configuration: Mapping[str, Any]) -> Any:
        self.connected.append(configuration)
        return Intercepted(MemoryAdmin(self.log), self._kafka_is_asked)

    def _open_writer(self, configuration: Mapping[str, Any]) -> LogWriter:
        world = self

        class Writer(MemoryWriter):
            def append(
                self,
                topic: str,
                key: bytes | None,
                value: bytes | None,
                headers: RecordHeaders,
                reported: Reported,
            ) -> None:
                world._kafka_is_asked("before", "append")
                super().append(topic, key, value, headers, reported)
                world._kafka_is_asked("after", "append")

        return Writer(self.log)

    def _kafka_is_asked(self, when: str, call: str) -> None:
        self._seen(when, call)
        if when == "before" and (error := self.kafka_failures.get(call)) is not None:
            raise error

    async def _positions(self, namespace: str, name: str) -> Mapping[str, int | None]:
        self.asked += 1
        return dict(self.behind)

    async def _probe(self, url: str) -> None:
        self._seen("before", "probe")
        await asyncio.sleep(0)
        self.probed.append(url)
        if self.probe_failure is not None:
            raise self.probe_failure
        self._seen("after", "probe")

    async def restart(self, **settings: Any) -> None:
        """Another operator takes over, which knows what is stored and nothing else."""
        await self.operator.close()
        self.operator = self._operator(replace(SETTINGS, **settings))

    def entries(self, named: str = "Brokers") -> Mapping[str, Ingress]:
        """What receivers' contracts say, in topics whose names have this in them."""
        topics = [each for each in self.log.topics if each.startswith(CONTRACTS) and named in each]
        found: dict[str, Ingress] = {}
        for each in topics:
            found |= read_ingresses(self.log.topics[each][0])
        return found

    def configure(self, namespace: str, name: str, **data: str) -> None:
        metadata = {"namespace": namespace, "name": name}
        self.cluster.put(
            {"apiVersion": CORE, "kind": "ConfigMap", "metadata": metadata, "data": data}
        )

    def allow(self, patterns: str) -> None:
        """Have the installation allow these external topics."""
        given = {"bootstrap.servers": "kafka:9092", "external.topics": patterns}
        self.configure(*INSTALLATION, **given)

    def declare_service(self, namespace: str, name: str, status: Mapping[str, Any]) -> None:
        """A Knative Service of somebody else's, as a subscriber."""
        metadata = {"namespace": namespace, "name": name}
        self.cluster.put(
            {"apiVersion": SERVING, "kind": "Service", "metadata": metadata, "status": status}
        )

    def declare_secret(self, namespace: str, name: str, **data: str) -> None:
        encoded = {key: base64.b64encode(text.encode()).decode() for key, text in data.items()}
        metadata = {"namespace": namespace, "name": name}
        secret = {"apiVersion": CORE, "kind": "Secret", "metadata": metadata, "data": encoded}
        self.cluster.put(secret)

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
        self.operator.on_broker(document, gone=False)
        status = await self.operator.brokers.reconcile(document)
        assert status is not None
        return status

    async def reconcile_trigger(self, namespace: str, name: str) -> Mapping[str, Any]:
        document = self.document("Trigger", namespace, name)
        self.operator.on_trigger(document, gone=False)
        status = await self.operator.triggers.reconcile(document)
        assert status is not None
        return status

    async def delete_broker(self, namespace: str, name: str = "default") -> None:
        """As `kubectl delete` and kopf do."""
        document = self.document("Broker", namespace, name)
        await self.operator.delete_broker(document)
        self.cluster.set_finalizers(EVENTING, "Broker", namespace, name)
        self.cluster.remove(EVENTING, "Broker", namespace, name)
        self.operator.on_broker(document, gone=True)

    async def delete_trigger(self, namespace: str, name: str) -> None:
        document = self.document("Trigger", namespace, name)
        await self.operator.triggers.delete(document)
        self.cluster.set_finalizers(EVENTING, "Trigger", namespace, name)
        self.cluster.remove(EVENTING, "Trigger", namespace, name)
        self.operator.on_trigger(document, gone=True)


def condition(status: Mapping[str, Any], type_: str) -> Mapping[str, str]:
    found: Mapping[str, str] = next(each for each in status["conditions"] if each["type"] == type_)
    return found


@asynccontextmanager
async def running_operator(_: object = None) -> AsyncIterator[OperatorWorld]:
    """A world whose receivers answer every probe; what runs in it is ended."""
    world = OperatorWorld()
    try:
        yield world
    finally:
        await world.operator.close()
