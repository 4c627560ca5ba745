"""The operator's controller on a LocalCluster, for Brokers and for KafkaChannels.

    watch: an object that changes goes through the work queue of `knafka_operator.engine`, which
           reconciles it at once, and again from time to time
    apply: remove what no file declares, then declare each kind after those it depends on

A family is a kind of Broker with its kind of Trigger: Brokers and Triggers, or KafkaChannels and
Subscriptions; each has an `Operator`.
Not here: reconciling (`knafka_operator`), reading files (`manifests`), running processes
(`local_serving`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Final

from knafka.clients.kafka.admin.kafka_admin import KafkaAdmin
from knafka.clients.kafka.producers.kafka_writer import KafkaWriter
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
    kind_and_name,
    ready_condition,
    version_of,
)
from knafka_local.cluster.local_serving import ServedFamily
from knafka_local.processes.children import Say
from knafka_operator.engine.controller import Controller, RetryPace
from knafka_operator.engine.deletions import LEFT_IN_KAFKA, EventType
from knafka_operator.engine.kind import BrokerReconciler, key_of
from knafka_operator.kafka.contracts import ContractTopic
from knafka_operator.kinds import kinds_of
from knafka_operator.model.cluster import Document
from knafka_operator.model.event_policies import POLICY
from knafka_operator.model.family import BROKERS, CHANNELS, Family, family_of
from knafka_operator.model.identity import Identity, Key
from knafka_operator.model.resources import EXTERNAL_TOPIC, SERVING
from knafka_operator.model.sensors import SENSOR, bus_of
from knafka_operator.operator import Operator
from knafka_operator.scale.decide import ScalingStatus
from knafka_operator.scale.drains_port import Drains
from knafka_operator.wiring import OperatorClients

log = logging.getLogger(__name__)

LOCAL_PACE: Final = RetryPace(not_ready=3.0, deletion=0.5)
"""Objects that aren't Ready are reconciled again every 3 s for ever: there are few of them here,
nothing reports every change that they wait for (Kafka, a dependency), and a person is watching."""
SETTLE_TIMEOUT: Final = 20.0
"""Seconds to wait for declared objects to become Ready or say why not, before the objects that
depend on them are declared. So a slow program doesn't delay them for long."""

_IN_ORDER: Final = (
    ("ConfigMap", "Service"),  # EventPolicies aren't stored: `_apply_policies` passes them on
    ("Broker", "KafkaChannel"),
    ("Trigger", "Subscription", SENSOR),
)
"""Kinds, in the order in which objects depend on one another."""


class _LocalStore:
    """The LocalCluster as the controller's store of objects.

    Other stores track which objects are read while an object is reconciled, so that a change of one
    of them enqueues it again. LocalCluster reports every change, so nothing is tracked here.
    """

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster

    def tracking(self, key: Key) -> AbstractContextManager[None]:
        """Return a context that does nothing, since there is nothing to track."""
        return contextlib.nullcontext()

    def forget(self, key: Key) -> None:
        """Do nothing: nothing was tracked."""

    async def set_finalizers(
        self, document: Document, finalizers: Sequence[str]
    ) -> Document | None:
        """Set an object's finalizers; returns the object, or None if it is gone."""
        key = key_of(document)
        self._cluster.set_finalizers(version_of(key[0]), *key, *finalizers)
        return self._cluster.find_reconciled(*key)


class LocalController(Controller):
    """Runs the operator for Brokers and the one for KafkaChannels with one queue; `run` it, then
    `apply`."""

    def __init__(
        self,
        cluster: LocalCluster,
        drains: Drains,
        served: Mapping[Family, ServedFamily],
        say: Say,
        connect: Callable[[Mapping[str, Any]], LogAdmin] = KafkaAdmin,
        open_writer: Callable[[Mapping[str, Any]], LogWriter] = KafkaWriter,
    ) -> None:
        """`drains` runs dispatchers, and `served` has the receivers of Brokers and of
        KafkaChannels. `say` shows a message to the user. `connect` and `open_writer` make Kafka
        clients from a librdkafka configuration."""
        self._cluster = cluster
        self._say = say

        def clients_of(family: ServedFamily) -> OperatorClients:
            """Return the clients of one family's operator."""
            return OperatorClients(
                connect, open_writer, drains, family.probe, _wake, family.positions
            )

        settings = localize.LOCAL_OPERATOR_SETTINGS
        operator = Operator(settings, cluster, clients_of(served[BROKERS]))
        # Beside the first one: this operator reconciles KafkaChannels, with the same queue.
        channel_operator = Operator(
            settings, cluster, clients_of(served[CHANNELS]), beside=operator
        )
        self._operators = {
            operator_.family: operator_ for operator_ in (operator, channel_operator)
        }
        """The operator of each family."""
        for operator_ in self._operators.values():
            operator_.moves.on_move = lambda trigger, why: say(f"{kind_and_name(trigger)}: {why}")
        self._policies: Mapping[Identity, Document] = {}
        """EventPolicies as they were last applied."""
        self._changed = asyncio.Event()
        """Set when any object changes."""
        # `operator.queue` and the kinds are those of both operators.
        super().__init__(
            kinds_of(operator),
            operator.queue,
            operator.publishing.write_failure,
            operator.settings,
            _LocalStore(cluster),
            self._show_event,
            LOCAL_PACE,
        )
        self._operator = operator
        """The operator for Brokers, whose queue serves both."""
        for kind in self.kinds.values():
            if isinstance(kind, BrokerReconciler):
                kind.on_deleted = self._show_topic_deletion

    async def run(self) -> None:
        """Reconcile until cancelled; then end every drain before returning."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._operator.queue.run(self.reconcile), name="reconcile")
                for api_version, kind in (*DECLARED_KINDS, (SERVING, "Service")):
                    group.create_task(self._watch_kind(api_version, kind), name=f"watch {kind}")
        finally:
            await self._operator.close()

    async def apply(self, declared: DeclaredObjects) -> None:
        """Make the cluster hold exactly the declared objects. Objects that no file declares any
        more are deleted first; then each kind is declared after the kinds that it depends on.

        Waits for each group of `_IN_ORDER` until its objects are Ready or say why not, at most
        `SETTLE_TIMEOUT` seconds.
        """
        config_maps = self._objects_from_files("ConfigMap")  # before any of them is removed
        await self._remove_undeclared(declared)
        self._apply_policies(declared)
        for kinds in _IN_ORDER:
            for identity, (document, folder) in declared.documents.items():
                if identity.kind in kinds:
                    self._cluster.declare(document, folder)
            previous_config_maps, config_maps = config_maps, self._objects_from_files("ConfigMap")
            if config_maps != previous_config_maps:
                self._enqueue_all_brokers()
            await self._wait_until(partial(self._are_settled, *kinds), SETTLE_TIMEOUT)
        await self._withdraw_undeclared()

    async def _remove_undeclared(self, declared: DeclaredObjects) -> None:
        """Delete the objects that came from files and are in none any more, dependents first, and
        wait until all are gone."""
        dependents_first = [kind for kinds in reversed(_IN_ORDER) for kind in kinds]
        removed = [
            document
            for document in self._objects_from_files(*dependents_first)
            if _is_undeclared(document, declared)
        ]
        for document in removed:
            self._cluster.remove(document["apiVersion"], *key_of(document))
        await self._wait_until(lambda: not any(map(self._is_stored, removed)), None)

    def _apply_policies(self, declared: DeclaredObjects) -> None:
        """Pass EventPolicies that were added, changed or removed to the operator, before it
        reconciles the Brokers that they name."""
        policies = [
            localize.localized_document(document)
            for identity, (document, _) in declared.documents.items()
            if identity.kind == POLICY
        ]
        previous = self._policies
        self._policies = {Identity.of(policy): policy for policy in policies}
        changed = [
            policy
            for identity, policy in self._policies.items()
            if previous.get(identity) != policy
        ]
        removed = [
            policy for identity, policy in previous.items() if identity not in self._policies
        ]
        if changed and not self._cluster.requires_auth:
            self._say("EventPolicies aren't enforced here, but by `knafka up --require-auth`")
        self._operator.on_policies(changed, removed)

    def is_ours(self, document: Document) -> bool:
        """Whether Knafka handles an object; False if another implementation does. True for kinds
        that the operator doesn't reconcile."""
        kind = self.kinds.get(document["kind"])
        return kind is None or kind.is_ours(document)

    def _operator_of(self, kind: str) -> Operator:
        """Return the operator of a kind: the one for Brokers and Triggers, or the one for
        KafkaChannels and Subscriptions."""
        return self._operators[family_of(kind)]

    def egresses(self) -> list[Egress]:
        """Return the Egress of each Trigger, then of each Subscription, paused ones included."""
        operators = self._operators.values()
        return [
            watched.egress
            for operator in operators
            for watched in operator.triggers.watched.values()
        ]

    def sensor_places(self) -> list[SensorPlace]:
        """Return which topics each Sensor uses. Sensors that aren't ready to run are left out."""
        # `scaled` holds a Sensor's scaler and its contract; None: it isn't ready to run.
        scaled_sensors = [record.scaled for record in self._operator.states.sensors.values()]
        contracts = [scaled[1] for scaled in scaled_sensors if scaled is not None]
        return [
            SensorPlace(**{name: getattr(contract, name) for name in SensorPlace.model_fields})
            for contract in contracts
        ]

    def ingresses(self, *families: Family) -> list[Ingress]:
        """Return the Ingresses that receivers serve: those of Brokers, sorted by name, then those
        of KafkaChannels. If `families` are given, only theirs."""
        return [
            ingress
            for family in families or self._operators
            for ingress in self._ingresses_of_family(family)
        ]

    def _ingresses_of_family(self, family: Family) -> Iterator[Ingress]:
        """Yield the Ingress of each declared Broker or KafkaChannel of a family, sorted by name.
        Brokers that no receiver serves yet are left out."""
        served: dict[str, Ingress] = {}
        for contract in self._contracts(family):
            served |= contract.records
        declared = sorted(f"/{Identity.of(broker)}" for broker in self._cluster.of(family.broker))
        return (served[path] for path in declared if path in served)

    def _contracts(self, family: Family) -> Collection[ContractTopic[Ingress]]:
        """Return the contract topics that the receiver of a family follows. On this machine there
        is at most one, as there is one Kafka."""
        return self._operators[family].brokers.receivers.contracts.values()

    async def _withdraw_undeclared(self) -> None:
        """Stop serving Brokers and KafkaChannels that left the files while `knafka up` did not run.

        Their topics stay. Entries that other installations on the same Kafka wrote into the
        contract topic stay, too.
        """
        for family in self._operators:
            for owner in self._cluster.undeclared_owners(family.broker):
                for contract in self._contracts(family):
                    if f"/{owner}" in contract.records:
                        try:
                            await contract.write(f"/{owner}", None)  # None deletes the entry
                        except LogError as error:  # the next `apply` tries again
                            self._say(f"{family.broker} {owner} is still served: {error}")

    def scaling_status(
        self, namespace: str, name: str, kind: str = "Trigger"
    ) -> ScalingStatus | None:
        """Return the scaler's status of a Trigger, Subscription or Sensor; None if it isn't
        scaled."""
        if kind == SENSOR:
            assert self._operator.sensors is not None, "LOCAL_OPERATOR_SETTINGS enables Sensors"
            return self._operator.sensors.scaling_status(Identity(namespace, name))
        return self._operator_of(kind).triggers.scaling_status(Identity(namespace, name))

    async def _watch_kind(self, api_version: str, kind: str) -> None:
        """Watch the objects of one kind for ever. Passes each change to the operator, enqueues the
        changed object's owners, and lets `_wait_until` check its condition again."""
        async for event in self._cluster.watch(api_version, kind):
            document, deleted = event.document, event.type == "DELETED"
            for owner in document["metadata"].get("ownerReferences") or ():
                namespace, _ = Identity.of(document)
                self._operator.queue.enqueue((owner["kind"], namespace, owner["name"]))
            if (reconciler := self.kinds.get(kind)) is not None:
                self.on_change(reconciler, document, gone=deleted)
                self._enqueue_triggers_of(document)
            else:
                for operator in self._operators.values():
                    operator.on_service(document)
            if deleted and reconciler is not None:
                self._cluster.forget(document)
            self._changed.set()

    def _enqueue_triggers_of(self, document: Document) -> None:
        """Enqueue the Triggers and Subscriptions that a Sensor owns, since their status depends on
        its status. Does nothing if the document isn't a Sensor."""
        if document["kind"] != SENSOR:
            return
        for family in self._operators:
            for trigger in self._cluster.of(family.trigger):
                owners = trigger["metadata"].get("ownerReferences") or ()
                if any(owner["uid"] == document["metadata"]["uid"] for owner in owners):
                    self._operator.queue.enqueue(key_of(trigger))

    def _show_topic_deletion(self, document: Document) -> None:
        """Tell the user that a deleted Broker's or KafkaChannel's topic is deleted, too, unless it
        is external."""
        if EXTERNAL_TOPIC not in _annotations(document):
            self._say(f"{kind_and_name(document)} has left the files, so its topic is deleted")

    def _show_event(self, document: Document, type_: EventType, reason: str, message: str) -> None:
        """Show a Kubernetes Event that the controller would send, if it says that topics or groups
        were left in Kafka. Other Events only repeat what a status says."""
        if reason == LEFT_IN_KAFKA:
            self._say(f"{kind_and_name(document)}: {message}")

    def _enqueue_all_brokers(self) -> None:
        """Enqueue every Broker and KafkaChannel: called when a ConfigMap changes, since any of them
        may use it."""
        for family in self._operators:
            for broker in self._cluster.of(family.broker):
                self._operator.queue.enqueue(key_of(broker))

    def _objects_from_files(self, *kinds: str) -> list[Document]:
        """Return the cluster's objects of these kinds that came from files, also those that are in
        none any more. Objects that the operator made are left out."""
        return [
            document
            for kind in kinds
            for document in self._cluster.of(kind)
            if (kind != "Service" or FOLDER_ANNOTATION in _annotations(document))
            and not document["metadata"].get("ownerReferences")  # made by the operator for a Sensor
        ]

    def _is_stored(self, document: Document) -> bool:
        """Whether the cluster still holds an object, in any state."""
        return self._cluster.find(document["apiVersion"], *key_of(document)) is not None

    def _are_settled(self, *kinds: str) -> bool:
        """Whether every declared object of these kinds is Ready or says why not."""
        return all(
            ready_condition(document).get("status") in ("True", "False")
            for document in self._objects_from_files(*kinds)
            if document["kind"] != "ConfigMap" and self.is_ours(document)
        )

    async def _wait_until(self, condition: Callable[[], bool], timeout: float | None) -> None:
        """Wait until `condition` holds; it is checked again after each change of an object. Returns
        after `timeout` seconds even if it doesn't hold; None: no limit."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while not condition():
                    self._changed.clear()
                    await self._changed.wait()


async def _wake(url: str) -> None:
    """Do nothing. Elsewhere this wakes a dispatcher's Pod; here its process starts with its first
    request."""


def _annotations(document: Document) -> Mapping[str, str]:
    """Return an object's annotations."""
    return document["metadata"].get("annotations") or {}


def _is_undeclared(document: Document, declared: DeclaredObjects) -> bool:
    """Whether an object has to be removed: no file declares it any more, or it is a Sensor whose
    file now names another Broker or KafkaChannel (its bus)."""
    declaration = declared.documents.get(manifests.ObjectIdentity(*key_of(document)))
    if declaration is None:
        return True
    if document["kind"] != SENSOR:
        return False
    return bus_of(localize.localized_document(declaration[0])) != bus_of(document)
