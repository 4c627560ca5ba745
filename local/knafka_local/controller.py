"""Controller: the real `Operator` on a LocalCluster, as `runtime.controller` runs it on Kubernetes.

    watch --> Operator hears of it --> work queue --> reconcile: at once, and now and then
    apply: what the files declare, and nothing else, in the order in which it depends on another

Not here: deciding (`knafka_operator`), reading files (`manifests`), running anything (`serving`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final, Literal

from knafka.clients.kafka_admin import KafkaAdmin
from knafka.clients.kafka_writer import KafkaWriter
from knafka.core.contract import Egress
from knafka.core.errors import KnafkaError
from knafka.ports.log import LogAdmin
from knafka_local import localize
from knafka_local.children import Say
from knafka_local.cluster import FOLDER, LocalCluster, name_of, ready_of
from knafka_local.manifests import Declared
from knafka_operator.decide.scaling import TriggerStatus
from knafka_operator.model.cluster import Document
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import EVENTING, EXTERNAL_TOPIC, SERVING
from knafka_operator.operator import Operator
from knafka_operator.reconcile.work_queue import GONE, Key, Verdict
from knafka_operator.scale.scaler import Drains

log = logging.getLogger(__name__)

RETRY: Final = 3.0
"""Seconds until what isn't Ready is looked at again. It doesn't grow: objects are few here, nobody
tells of all that they wait for (Kafka, a dependency), and a person is watching."""
RESYNC: Final = 300.0
"""Seconds until what is Ready is looked at again, a few more or less."""
DELETE_AGAIN: Final = 0.5
"""Seconds until a deletion that Kafka refused is tried again."""
SETTLE_TIMEOUT: Final = 20.0
"""Seconds for what is declared to become Ready, or say why not, before what depends on it is told
of it: a program that is slow holds nothing else up for longer."""


class Controller:
    """One operator; `run` it, then `apply`."""

    def __init__(
        self,
        cluster: LocalCluster,
        drains: Drains,
        probe: Callable[[str], Awaitable[None]],
        say: Say,
        connect: Callable[[Mapping[str, Any]], LogAdmin] = KafkaAdmin,
    ) -> None:
        self._cluster = cluster
        self._say = say
        self._operator = Operator(
            localize.SETTINGS,
            cluster,
            connect,
            drains=drains,
            probe=probe,
            wake=_is_awake,
            open_writer=KafkaWriter,
        )
        self._operator.moves.on_move = lambda trigger, why: say(f"{name_of(trigger)}: {why}")
        self._deleting: dict[Key, float] = {}
        """Since when each deletion is being tried, on the event loop's clock."""
        self._heard = asyncio.Event()
        """Of a change of anything."""

    async def run(self) -> None:
        """For ever; afterwards nothing of it runs, and every drain has ended."""
        watched = ((EVENTING, "Broker"), (EVENTING, "Trigger"), (SERVING, "Service"))
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._operator.queue.run(self._look), name="reconcile")
                for api_version, kind in watched:
                    group.create_task(self._follow(api_version, kind), name=f"watch {kind}")
        finally:
            await self._operator.close()

    async def apply(self, declared: Declared) -> None:
        """Have the cluster hold what is declared; what it held beside that is deleted.

        Returns when all of it is Ready or says why not; what is slow may go on longer.
        """
        config_maps = self._all("ConfigMap")
        declared_before = self._all("Trigger", "Broker", "Service", "ConfigMap")
        gone = [each for each in declared_before if _key(each) not in declared.documents]
        for each in gone:
            self._cluster.remove(each["apiVersion"], *_key(each))
        await self._until(lambda: not any(map(self._is_there, gone)), None)
        for kinds in (("ConfigMap", "Service"), ("Broker",), ("Trigger",)):
            for who, (document, folder) in declared.documents.items():
                if who.kind in kinds:
                    self._cluster.declare(document, folder)
            if config_maps != (config_maps := self._all("ConfigMap")):
                self._reconcile_brokers()
            await self._until(partial(self._are_settled, *kinds), SETTLE_TIMEOUT)

    def is_ours(self, document: Document) -> bool:
        """Whether a Broker's class is ours, or a Trigger's Broker may be."""
        match document["kind"]:
            case "Broker":
                return self._operator.brokers.is_ours(document)
            case "Trigger":
                return self._operator.may_be_ours(document)
        return True

    def egresses(self) -> list[Egress]:
        """How each Trigger is delivered, or will be once it isn't paused any more."""
        return [each.egress for each in self._operator.triggers.watched.values()]

    def scaled(self, namespace: str, name: str) -> TriggerStatus | None:
        """What the scaler knows of a Trigger; None: it isn't scaled."""
        return self._operator.triggers.status(Identity(namespace, name))

    async def _follow(self, api_version: str, kind: str) -> None:
        async for event in self._cluster.watch(api_version, kind):
            document, gone = event.document, event.type == "DELETED"
            if kind == "Service":
                self._operator.on_service(document)
            else:
                self._operator.on_change(document, gone=gone)
                if gone:
                    self._cluster.forget(document)
            self._heard.set()

    async def _look(self, key: Key) -> float | Literal[Verdict.GONE]:
        """One look at a Broker or Trigger, see `work_queue`."""
        document = self._cluster.find(EVENTING, *key)
        if document is None:
            return GONE
        if "deletionTimestamp" in document["metadata"]:
            return await self._finalize(key, document)
        if not self.is_ours(document):
            return RESYNC
        operator = self._operator
        is_broker = key[0] == "Broker"
        reconcile = operator.reconcile_broker if is_broker else operator.triggers.reconcile
        try:
            status = await reconcile(document) or {}
        except Exception as error:  # one that ended would be missed only when events wait
            log.exception("%s", name_of(document))
            await operator.publish_failure(document, error)
            return RETRY
        ready = any(
            each["type"] == "Ready" and each["status"] == "True"
            for each in status.get("conditions") or ()
        )
        return RESYNC * random.uniform(0.8, 1.2) if ready else RETRY

    async def _finalize(self, key: Key, document: Document) -> float | Literal[Verdict.GONE]:
        """Have its topic or group deleted, and let it go; what Kafka keeps too long stays there."""
        operator = self._operator
        delete = operator.delete_broker if key[0] == "Broker" else operator.triggers.delete
        if self.is_ours(document):
            now = asyncio.get_running_loop().time()
            began = self._deleting.setdefault(key, now)
            try:
                await delete(document)
                if key[0] == "Broker" and EXTERNAL_TOPIC not in _annotations(document):
                    self._say(f"{name_of(document)} has left the files, so its topic is deleted")
            except Exception as error:  # a bug neither: its object would never go
                if not isinstance(error, KnafkaError):
                    log.exception("deleting %s", name_of(document))
                if now - began < localize.SETTINGS.deletion_timeout:
                    return DELETE_AGAIN
                operator.forget(document)
                self._say(f"{name_of(document)}: its topic or group stays in Kafka: {error}")
        self._deleting.pop(key, None)
        self._cluster.set_finalizers(EVENTING, *key)
        return GONE

    def _reconcile_brokers(self) -> None:
        """A ConfigMap has changed: whose it is only they know."""
        for each in self._cluster.of("Broker"):
            self._operator.queue.enqueue(_key(each))

    def _all(self, *kinds: str) -> list[Document]:
        """What is declared of these kinds."""
        return [
            each
            for kind in kinds
            for each in self._cluster.of(kind)
            if kind != "Service" or FOLDER in _annotations(each)
        ]

    def _is_there(self, document: Document) -> bool:
        return self._cluster.find(document["apiVersion"], *_key(document)) is not None

    def _are_settled(self, *kinds: str) -> bool:
        """Whether all that is declared of these kinds is Ready, or says why not."""
        return all(
            ready_of(each).get("status") in ("True", "False")
            for each in self._all(*kinds)
            if each["kind"] != "ConfigMap" and self.is_ours(each)
        )

    async def _until(self, condition: Callable[[], bool], within: float | None) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                while not condition():
                    self._heard.clear()
                    await self._heard.wait()


async def _is_awake(url: str) -> None:
    """A dispatcher's process starts with its first request."""


def _annotations(document: Document) -> Mapping[str, str]:
    return document["metadata"].get("annotations") or {}


def _key(document: Document) -> Key:
    metadata = document["metadata"]
    return document["kind"], metadata["namespace"], metadata["name"]
