"""Controller: the real `Operator` on a LocalCluster, as `runtime.controller` runs it on Kubernetes,
and beside it that of KafkaChannels.

    watch --> Operator hears of it --> work queue --> reconcile: at once, and now and then
    apply: what the files declare, and nothing else, in the order in which it depends on another

Not here: deciding (`knafka_operator`), reading files (`manifests`), running anything (`serving`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Any, Final, Literal

from knafka.clients.kafka_admin import KafkaAdmin
from knafka.clients.kafka_writer import KafkaWriter
from knafka.core.contract import Egress, Ingress
from knafka.core.errors import KnafkaError, LogError
from knafka.ports.log import LogAdmin, LogWriter
from knafka_local import localize, manifests
from knafka_local.children import Say
from knafka_local.cluster import (
    FOLDER,
    KINDS,
    RECONCILED,
    LocalCluster,
    name_of,
    ready_of,
    version_of,
)
from knafka_local.installation import SensorPlace
from knafka_local.manifests import Declared
from knafka_local.serving import Served
from knafka_operator.decide.scaling import TriggerStatus
from knafka_operator.model.cluster import Document
from knafka_operator.model.family import BROKERS, CHANNELS, Family, family_of
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import EXTERNAL_TOPIC, SERVING
from knafka_operator.model.sensors import SENSOR, bus_of
from knafka_operator.operator import Operator
from knafka_operator.reconcile.contracts import Contract
from knafka_operator.reconcile.sensors import Sensors
from knafka_operator.reconcile.state import declared_of
from knafka_operator.reconcile.work_queue import GONE, Key, Verdict
from knafka_operator.scale.kafka_clusters import AllDrains

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


_IN_ORDER: Final = (
    ("ConfigMap", "Service"),
    ("Broker", "KafkaChannel"),
    ("Trigger", "Subscription", SENSOR),
)
"""Kinds, in the order in which objects depend on one another."""


class Controller:
    """Both operators, with one queue; `run` it, then `apply`."""

    def __init__(
        self,
        cluster: LocalCluster,
        drains: AllDrains,
        served: Mapping[Family, Served],
        say: Say,
        connect: Callable[[Mapping[str, Any]], LogAdmin] = KafkaAdmin,
        open_writer: Callable[[Mapping[str, Any]], LogWriter] = KafkaWriter,
    ) -> None:
        self._cluster = cluster
        self._say = say
        self._operator = Operator(
            localize.SETTINGS,
            cluster,
            connect,
            drains=drains,
            probe=served[BROKERS].probe,
            wake=_is_awake,
            open_writer=open_writer,
            positions=served[BROKERS].positions,
        )
        beside = Operator(
            localize.SETTINGS,
            cluster,
            connect,
            drains=drains,
            probe=served[CHANNELS].probe,
            wake=_is_awake,
            open_writer=open_writer,
            beside=self._operator,
            positions=served[CHANNELS].positions,
        )
        self._operators = {each.family: each for each in (self._operator, beside)}
        for each in self._operators.values():
            each.moves.on_move = lambda trigger, why: say(f"{name_of(trigger)}: {why}")
        self._deleting: dict[Key, float] = {}
        """Since when each deletion is being tried, on the event loop's clock."""
        self._declared_sensors: dict[Key, Document | None] = {}
        """Each as it was last heard of, without its status."""
        self._heard = asyncio.Event()
        """Of a change of anything."""

    async def run(self) -> None:
        """For ever; afterwards nothing of it runs, and every drain has ended."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._operator.queue.run(self._look), name="reconcile")
                for api_version, kind in (*KINDS, (SERVING, "Service")):
                    group.create_task(self._follow(api_version, kind), name=f"watch {kind}")
        finally:
            await self._operator.close()

    async def apply(self, declared: Declared) -> None:
        """Have the cluster hold what is declared; what it held beside that is deleted.

        Returns when all of it is Ready or says why not; what is slow may go on longer.
        """
        config_maps = self._all("ConfigMap")
        declared_before = self._all(*(kind for kinds in reversed(_IN_ORDER) for kind in kinds))
        gone = [each for each in declared_before if _is_gone(each, declared)]
        for each in gone:
            self._cluster.remove(each["apiVersion"], *_key(each))
        await self._until(lambda: not any(map(self._is_there, gone)), None)
        for kinds in _IN_ORDER:
            for who, (document, folder) in declared.documents.items():
                if who.kind in kinds:
                    self._cluster.declare(document, folder)
            if config_maps != (config_maps := self._all("ConfigMap")):
                self._reconcile_configured()
            await self._until(partial(self._are_settled, *kinds), SETTLE_TIMEOUT)
        await self._withdraw_undeclared()

    def is_ours(self, document: Document) -> bool:
        """Whether a Broker's class is ours, or a Trigger's Broker may be; the same for channels."""
        if (kind := document["kind"]) not in RECONCILED or kind == SENSOR:
            return True
        operator = self._of(kind)
        is_broker = kind == operator.family.broker
        return operator.brokers.is_ours(document) if is_broker else operator.may_be_ours(document)

    def _of(self, kind: str) -> Operator:
        return self._operators[family_of(kind)]

    def egresses(self) -> list[Egress]:
        """How each Trigger is delivered, or will be once it isn't paused any more; then each
        Subscription."""
        operators = self._operators.values()
        return [each.egress for of in operators for each in of.triggers.watched.values()]

    def sensors(self) -> list[SensorPlace]:
        """Where the records of each Sensor lie that is ready to run."""
        records = self._operator.states.sensors.values()
        places = SensorPlace.model_fields
        return [
            SensorPlace(**{name: getattr(each.scaled[1], name) for name in places})
            for each in records
            if each.scaled is not None
        ]

    def ingresses(self, *families: Family) -> list[Ingress]:
        """What receivers serve of what is declared, by name: that of Brokers, then the other."""
        return [each for of in families or self._operators for each in self._ingresses(of)]

    def _ingresses(self, family: Family) -> Iterator[Ingress]:
        served: dict[str, Ingress] = {}
        for each in self._contracts(family):
            served |= each.records
        declared = sorted(f"/{Identity.of(each)}" for each in self._cluster.of(family.broker))
        return (served[path] for path in declared if path in served)

    def _contracts(self, family: Family) -> Collection[Contract[Ingress]]:
        """What the receiver of a family follows; here is one at most."""
        return self._operators[family].brokers.receivers.contracts.values()

    async def _withdraw_undeclared(self) -> None:
        """Have no Broker or KafkaChannel served that left the files while nothing ran: its topic
        stays. Those of others that use the same Kafka are not ours to withdraw."""
        for family in self._operators:
            for who in self._cluster.undeclared(family.broker):
                for contract in self._contracts(family):
                    if f"/{who}" in contract.records:
                        try:
                            await contract.write(f"/{who}", None)
                        except LogError as error:  # again with the next change of a file
                            self._say(f"{family.broker} {who} is still served: {error}")

    def scaled(self, namespace: str, name: str, kind: str = "Trigger") -> TriggerStatus | None:
        """What the scaler knows of a Trigger, Subscription or Sensor; None: it isn't scaled."""
        if kind == SENSOR:
            return self._sensors.status(Identity(namespace, name))
        return self._of(kind).triggers.status(Identity(namespace, name))

    async def _follow(self, api_version: str, kind: str) -> None:
        async for event in self._cluster.watch(api_version, kind):
            document, gone = event.document, event.type == "DELETED"
            for owner in document["metadata"].get("ownerReferences") or ():
                namespace, _ = Identity.of(document)
                self._operator.queue.enqueue((owner["kind"], namespace, owner["name"]))
            if kind == SENSOR:
                self._on_sensor(document, gone=gone)
            elif kind == "Service":
                for each in self._operators.values():
                    each.on_service(document)
            else:
                self._of(kind).on_change(document, gone=gone)
            if gone and kind != "Service":
                self._cluster.forget(document)
            self._heard.set()

    async def _look(self, key: Key) -> float | Literal[Verdict.GONE]:
        """One look at an object, see `work_queue`."""
        if key[0] not in RECONCILED:
            return GONE  # something else that owns a Service
        document = self._cluster.reconciled(*key)
        if document is None:
            return GONE
        if "deletionTimestamp" in document["metadata"]:
            return await self._finalize(key, document)
        if not self.is_ours(document):
            return RESYNC
        try:
            status = await self._reconcile(key[0], document) or {}
        except Exception as error:  # one that ended would be missed only when events wait
            log.exception("%s", name_of(document))
            await self._operator.publishing.failure(document, error)
            return RETRY
        ready = any(
            each["type"] == "Ready" and each["status"] == "True"
            for each in status.get("conditions") or ()
        )
        return RESYNC * random.uniform(0.8, 1.2) if ready else RETRY

    async def _reconcile(self, kind: str, document: Document) -> Mapping[str, Any] | None:
        if kind == SENSOR:
            return await self._sensors.reconcile(document)
        operator = self._of(kind)
        is_broker = kind == operator.family.broker
        reconcile = operator.reconcile_broker if is_broker else operator.triggers.reconcile
        return await reconcile(document)

    @property
    def _sensors(self) -> Sensors:
        assert self._operator.sensors is not None, "localize.SETTINGS has them"
        return self._operator.sensors

    def _on_sensor(self, document: Document, *, gone: bool) -> None:
        """It, and those of its Triggers that go by its status."""
        if not gone:
            self._sensors.remember(document)
        key, declared = _key(document), (None if gone else declared_of(document))
        if (
            self._declared_sensors.get(key) != declared
            or "deletionTimestamp" in (document["metadata"])
        ):
            self._declared_sensors[key] = declared
            self._operator.queue.enqueue(key)
        for family in self._operators:
            for each in self._cluster.of(family.trigger):
                owners = each["metadata"].get("ownerReferences") or ()
                if any(owner["uid"] == document["metadata"]["uid"] for owner in owners):
                    self._operator.queue.enqueue(_key(each))

    async def _delete(self, document: Document) -> None:
        """Raises `KnafkaError`."""
        kind = document["kind"]
        if kind == SENSOR:
            await self._sensors.delete(document)
        elif kind == self._of(kind).family.broker:
            await self._of(kind).delete_broker(document)
        else:
            await self._of(kind).triggers.delete(document)

    async def _forget(self, document: Document) -> None:
        if document["kind"] == SENSOR:
            await self._sensors.forget(document)
        else:
            self._of(document["kind"]).forget(document)

    async def _finalize(self, key: Key, document: Document) -> float | Literal[Verdict.GONE]:
        """Have its topic or group deleted, and let it go; what Kafka keeps too long stays there."""
        is_broker = key[0] in (BROKERS.broker, CHANNELS.broker)
        if self.is_ours(document):
            now = asyncio.get_running_loop().time()
            began = self._deleting.setdefault(key, now)
            try:
                await self._delete(document)
                if is_broker and EXTERNAL_TOPIC not in _annotations(document):
                    self._say(f"{name_of(document)} has left the files, so its topic is deleted")
            except Exception as error:  # a bug neither: its object would never go
                if not isinstance(error, KnafkaError):
                    log.exception("deleting %s", name_of(document))
                if now - began < localize.SETTINGS.deletion_timeout:
                    return DELETE_AGAIN
                await self._forget(document)
                self._say(f"{name_of(document)}: its topic or group stays in Kafka: {error}")
        self._deleting.pop(key, None)
        self._cluster.set_finalizers(version_of(key[0]), *key)
        return GONE

    def _reconcile_configured(self) -> None:
        """A ConfigMap has changed: whose it is only Brokers and KafkaChannels know."""
        for family in self._operators:
            for each in self._cluster.of(family.broker):
                self._operator.queue.enqueue(_key(each))

    def _all(self, *kinds: str) -> list[Document]:
        """What is declared of these kinds."""
        return [
            each
            for kind in kinds
            for each in self._cluster.of(kind)
            if (kind != "Service" or FOLDER in _annotations(each))
            and not each["metadata"].get("ownerReferences")  # a Sensor has made it
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


def _is_gone(document: Document, declared: Declared) -> bool:
    """Whether no file declares it any more: a Sensor on another bus is another one."""
    found = declared.documents.get(manifests.Identity(*_key(document)))
    if found is None or document["kind"] != SENSOR:
        return found is None
    return bus_of(localize.localized(found[0])) != bus_of(document)


def _key(document: Document) -> Key:
    metadata = document["metadata"]
    return document["kind"], metadata["namespace"], metadata["name"]
