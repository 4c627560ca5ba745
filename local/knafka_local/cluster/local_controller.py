"""Controller: the one that Kubernetes' leader has, on a LocalCluster: for Brokers, and for
KafkaChannels beside them.

    watch --> work queue --> one object (`knafka_operator.engine`): at once, and now and then
    apply: what the files declare, and nothing else, in the order in which it depends on another

Not here: reconciling (`knafka_operator`), reading files (`manifests`), running what was made
(`serving`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Final

from knafka.clients.kafka_admin import KafkaAdmin
from knafka.clients.kafka_writer import KafkaWriter
from knafka.core.contract import Egress, Ingress
from knafka.core.errors import LogError
from knafka.ports.log import LogAdmin, LogWriter
from knafka_client.declared import manifests
from knafka_client.declared.manifests import DeclaredObjects
from knafka_client.state.installation import SensorPlace
from knafka_local.cluster import localize
from knafka_local.cluster.local_cluster import (
    DECLARED_KINDS,
    FOLDER_ANNOTATION,
    LocalCluster,
    name_of,
    ready_of,
    version_of,
)
from knafka_local.cluster.local_serving import ServedFamily
from knafka_local.processes.children import Say
from knafka_operator.decide.scaling import TriggerStatus
from knafka_operator.engine.controller import Controller, RetryPace
from knafka_operator.engine.deletions import LEFT_IN_KAFKA, EventType
from knafka_operator.model.cluster import Document
from knafka_operator.model.event_policies import POLICY
from knafka_operator.model.family import BROKERS, CHANNELS, Family, family_of
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import EXTERNAL_TOPIC, SERVING
from knafka_operator.model.sensors import SENSOR, bus_of
from knafka_operator.operator import Operator
from knafka_operator.reconcile.contracts import ContractTopic
from knafka_operator.reconcile.kind import BrokerReconciler, key_of
from knafka_operator.reconcile.work_queue import Key
from knafka_operator.scale.scaler import Drains

log = logging.getLogger(__name__)

PACE: Final = RetryPace(not_ready=3.0, deletion=0.5)
"""What isn't Ready is tried again as often for ever: objects are few here, nobody tells of all that
they wait for (Kafka, a dependency), and a person is watching."""
SETTLE_TIMEOUT: Final = 20.0
"""Seconds for what is declared to become Ready, or say why not, before what depends on it is told
of it: a program that is slow holds nothing else up for longer."""


_IN_ORDER: Final = (
    ("ConfigMap", "Service"),  # and EventPolicies, which the operator is told of
    ("Broker", "KafkaChannel"),
    ("Trigger", "Subscription", SENSOR),
)
"""Kinds, in the order in which objects depend on one another."""


class _LocalStore:
    """The LocalCluster as the controller's store: it tells of every change, whoever looked."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster

    def tracking(self, key: Key) -> AbstractContextManager[None]:
        return contextlib.nullcontext()

    def forget(self, key: Key) -> None: ...

    async def set_finalizers(
        self, document: Document, finalizers: Sequence[str]
    ) -> Document | None:
        key = key_of(document)
        self._cluster.set_finalizers(version_of(key[0]), *key, *finalizers)
        return self._cluster.reconciled(*key)


class LocalController(Controller):
    """Both operators, with one queue; `run` it, then `apply`."""

    def __init__(
        self,
        cluster: LocalCluster,
        drains: Drains,
        served: Mapping[Family, ServedFamily],
        say: Say,
        connect: Callable[[Mapping[str, Any]], LogAdmin] = KafkaAdmin,
        open_writer: Callable[[Mapping[str, Any]], LogWriter] = KafkaWriter,
    ) -> None:
        self._cluster = cluster
        self._say = say
        operator = Operator(
            localize.LOCAL_SETTINGS,
            cluster,
            connect,
            drains=drains,
            probe=served[BROKERS].probe,
            wake=_is_awake,
            open_writer=open_writer,
            positions=served[BROKERS].positions,
        )
        beside = Operator(
            localize.LOCAL_SETTINGS,
            cluster,
            connect,
            drains=drains,
            probe=served[CHANNELS].probe,
            wake=_is_awake,
            open_writer=open_writer,
            beside=operator,
            positions=served[CHANNELS].positions,
        )
        self._operators = {operator_.family: operator_ for operator_ in (operator, beside)}
        for operator_ in self._operators.values():
            operator_.moves.on_move = lambda trigger, why: say(f"{name_of(trigger)}: {why}")
        self._policies: Mapping[Identity, Document] = {}
        """EventPolicies as they were applied last."""
        self._heard = asyncio.Event()
        """Of a change of anything."""
        super().__init__(operator, _LocalStore(cluster), self._post, PACE)
        for kind in self.kinds.values():
            if isinstance(kind, BrokerReconciler):
                kind.on_deleted = self._on_deleted

    async def run(self) -> None:
        """For ever; afterwards nothing of it runs, and every drain has ended."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._operator.queue.run(self.reconcile), name="reconcile")
                for api_version, kind in (*DECLARED_KINDS, (SERVING, "Service")):
                    group.create_task(self._follow(api_version, kind), name=f"watch {kind}")
        finally:
            await self._operator.close()

    async def apply(self, declared: DeclaredObjects) -> None:
        """Have the cluster hold what is declared; what it held beside that is deleted.

        Returns when all of it is Ready or says why not; what is slow may go on longer.
        """
        config_maps = self._all("ConfigMap")
        declared_before = self._all(*(kind for kinds in reversed(_IN_ORDER) for kind in kinds))
        gone = [document for document in declared_before if _is_gone(document, declared)]
        for undeclared in gone:
            self._cluster.remove(undeclared["apiVersion"], *key_of(undeclared))
        await self._until(lambda: not any(map(self._is_there, gone)), None)
        self._apply_policies(declared)
        for kinds in _IN_ORDER:
            for identity, (document, folder) in declared.documents.items():
                if identity.kind in kinds:
                    self._cluster.declare(document, folder)
            if config_maps != (config_maps := self._all("ConfigMap")):
                self._reconcile_configured()
            await self._until(partial(self._are_settled, *kinds), SETTLE_TIMEOUT)
        await self._withdraw_undeclared()

    def _apply_policies(self, declared: DeclaredObjects) -> None:
        """Tell the operator of EventPolicies before a Broker that they are about is looked at."""
        policies = [
            localize.localized(document)
            for identity, (document, _) in declared.documents.items()
            if identity.kind == POLICY
        ]
        previous, self._policies = (
            self._policies,
            {Identity.of(policy): policy for policy in policies},
        )
        changed = [
            policy
            for identity, policy in self._policies.items()
            if previous.get(identity) != policy
        ]
        gone = [policy for identity, policy in previous.items() if identity not in self._policies]
        if changed and not self._cluster.requires_auth:
            self._say("EventPolicies keep nobody out here: for that, `knafka up --require-auth`")
        self._operator.on_policies(changed, gone)

    def is_ours(self, document: Document) -> bool:
        """Whether a Broker's class is ours, or a Trigger's Broker may be; the same for channels."""
        kind = self.kinds.get(document["kind"])
        return kind is None or kind.is_ours(document)

    def _of(self, kind: str) -> Operator:
        return self._operators[family_of(kind)]

    def egresses(self) -> list[Egress]:
        """The Egress of each Trigger, paused ones included, then of each Subscription."""
        operators = self._operators.values()
        return [
            watched.egress
            for operator in operators
            for watched in operator.triggers.watched.values()
        ]

    def sensors(self) -> list[SensorPlace]:
        """Where the records of each Sensor lie; Sensors that aren't ready to run are left out."""
        records = self._operator.states.sensors.values()
        places = SensorPlace.model_fields
        return [
            SensorPlace(**{name: getattr(record.scaled[1], name) for name in places})
            for record in records
            if record.scaled is not None
        ]

    def ingresses(self, *families: Family) -> list[Ingress]:
        """The Ingress of each Broker, then of each KafkaChannel, that receivers serve, by name."""
        return [
            ingress for family in families or self._operators for ingress in self._ingresses(family)
        ]

    def _ingresses(self, family: Family) -> Iterator[Ingress]:
        served: dict[str, Ingress] = {}
        for contract in self._contracts(family):
            served |= contract.records
        declared = sorted(f"/{Identity.of(broker)}" for broker in self._cluster.of(family.broker))
        return (served[path] for path in declared if path in served)

    def _contracts(self, family: Family) -> Collection[ContractTopic[Ingress]]:
        """What the receiver of a family follows; here is one at most."""
        return self._operators[family].brokers.receivers.contracts.values()

    async def _withdraw_undeclared(self) -> None:
        """Have no Broker or KafkaChannel served that left the files while nothing ran: its topic
        stays. Those of others that use the same Kafka are not ours to withdraw."""
        for family in self._operators:
            for owner in self._cluster.undeclared(family.broker):
                for contract in self._contracts(family):
                    if f"/{owner}" in contract.records:
                        try:
                            await contract.write(f"/{owner}", None)
                        except LogError as error:  # again with the next change of a file
                            self._say(f"{family.broker} {owner} is still served: {error}")

    def scaled(self, namespace: str, name: str, kind: str = "Trigger") -> TriggerStatus | None:
        """The scaler's status of a Trigger, Subscription or Sensor; None: it isn't scaled."""
        if kind == SENSOR:
            assert self._operator.sensors is not None, "localize.SETTINGS has them"
            return self._operator.sensors.status(Identity(namespace, name))
        return self._of(kind).triggers.status(Identity(namespace, name))

    async def _follow(self, api_version: str, kind: str) -> None:
        async for event in self._cluster.watch(api_version, kind):
            document, gone = event.document, event.type == "DELETED"
            for owner in document["metadata"].get("ownerReferences") or ():
                namespace, _ = Identity.of(document)
                self._operator.queue.enqueue((owner["kind"], namespace, owner["name"]))
            if (reconciled := self.kinds.get(kind)) is not None:
                self.on_change(reconciled, document, gone=gone)
                self._enqueue_made_by(document)
            else:
                for operator in self._operators.values():
                    operator.on_service(document)
            if gone and reconciled is not None:
                self._cluster.forget(document)
            self._heard.set()

    def _enqueue_made_by(self, document: Document) -> None:
        """The Triggers of a Sensor go by its status."""
        for family in self._operators if document["kind"] == SENSOR else ():
            for trigger in self._cluster.of(family.trigger):
                owners = trigger["metadata"].get("ownerReferences") or ()
                if any(owner["uid"] == document["metadata"]["uid"] for owner in owners):
                    self._operator.queue.enqueue(key_of(trigger))

    def _on_deleted(self, document: Document) -> None:
        if EXTERNAL_TOPIC not in _annotations(document):
            self._say(f"{name_of(document)} has left the files, so its topic is deleted")

    def _post(self, document: Document, type_: EventType, reason: str, message: str) -> None:
        """What Kubernetes would have an Event for: people see whether it is Ready."""
        if reason == LEFT_IN_KAFKA:
            self._say(f"{name_of(document)}: {message}")

    def _reconcile_configured(self) -> None:
        """A ConfigMap has changed: whose it is only Brokers and KafkaChannels know."""
        for family in self._operators:
            for broker in self._cluster.of(family.broker):
                self._operator.queue.enqueue(key_of(broker))

    def _all(self, *kinds: str) -> list[Document]:
        """What is declared of these kinds."""
        return [
            document
            for kind in kinds
            for document in self._cluster.of(kind)
            if (kind != "Service" or FOLDER_ANNOTATION in _annotations(document))
            and not document["metadata"].get("ownerReferences")  # a Sensor has made it
        ]

    def _is_there(self, document: Document) -> bool:
        return self._cluster.find(document["apiVersion"], *key_of(document)) is not None

    def _are_settled(self, *kinds: str) -> bool:
        """Whether all that is declared of these kinds is Ready, or says why not."""
        return all(
            ready_of(document).get("status") in ("True", "False")
            for document in self._all(*kinds)
            if document["kind"] != "ConfigMap" and self.is_ours(document)
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


def _is_gone(document: Document, declared: DeclaredObjects) -> bool:
    """Whether no file declares it any more: a Sensor on another bus is another one."""
    documented = declared.documents.get(manifests.ObjectIdentity(*key_of(document)))
    if documented is None or document["kind"] != SENSOR:
        return documented is None
    return bus_of(localize.localized(documented[0])) != bus_of(document)
