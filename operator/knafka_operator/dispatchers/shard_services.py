"""Shards: applies the Services of each Broker's shared dispatchers, and manages their contracts.

A shard is a dispatcher that many Triggers of a Broker share. It delivers what the Broker's contract
says: a topic with a record for each of these Triggers, by the Trigger's consumer group.

    a Trigger is reconciled   the contract is read (once), then the shard's Service applied (once
                              for all its Triggers), then the Trigger's record written
    a Broker is reconciled    the Services of its shards are applied, so that the Broker is enqueued
                              when one changes; shards that have long been empty are deleted

A Broker whose status names no contract costs no request here.

Not here: which shard (`kafka.shards`), the topic itself (`kafka.contracts`), and drains (`scaler`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from knafka.core import names
from knafka.core.errors import LogError
from knafka_operator.decisions.effects import Manifest
from knafka_operator.decisions.status import NotReady
from knafka_operator.functions import dispatcher_services, services
from knafka_operator.functions.applying import apply_service, delete_service
from knafka_operator.installation.settings import Settings
from knafka_operator.kafka.clusters import KafkaCluster
from knafka_operator.kafka.contracts import SharedContractTopic
from knafka_operator.kafka.shards import CONTRACT_TOPIC_KEY
from knafka_operator.model.cluster import Cluster, Document
from knafka_operator.model.identity import Identity, Key
from knafka_operator.model.resources import SERVING, Broker, Resource
from knafka_operator.model.topics import Topic
from knafka_operator.records.state import (
    BrokerRecord,
    ShardRecord,
    States,
    TriggerRecord,
    Watched,
)

log = logging.getLogger(__name__)

APPLY_RETRY_INTERVAL: Final = 1.0
"""Seconds before a Service that isn't Ready is applied again, however many of its Triggers request
it meanwhile."""

EMPTY_SHARD_SECONDS: Final = 60.0
"""Seconds without a Trigger after which a shard's Service is deleted, since a Trigger may come
back."""


@dataclass(eq=False)
class Shards:
    """The shared dispatchers of all Brokers or channels."""

    settings: Settings
    cluster: Cluster
    states: States
    enqueue: Callable[[Key], None]
    """Makes an object due for reconciliation."""

    async def load_contract(self, broker: Identity) -> SharedContractTopic | None:
        """Return the contract topic of a Broker whose topic exists, with its current records. None:
        no contract can be written in the Broker's Kafka, so the Broker has no shared dispatchers.

        Raises `LogError`, and `NotReady` if the Broker is being deleted.
        """
        record = self.active_record(broker)
        assert record.state is not None  # checked by `active_record`
        if record.state.kafka.open_writer is None:
            return None
        contract = self.ensure_contract(record, broker, record.state.kafka)
        await contract.load()
        return contract

    def contract_at(self, broker: Identity, kafka: KafkaCluster) -> SharedContractTopic:
        """Return the contract of a Broker in this Kafka; its records may not have been read yet.
        Raises `NotReady` if the Broker is being deleted."""
        return self.ensure_contract(self.active_record(broker), broker, kafka)

    def active_record(self, broker: Identity) -> BrokerRecord:
        """Return the record of a Broker; its `state` isn't None. Raises `NotReady` if the Broker
        has no record or no state, which counts as being deleted."""
        record = self.states.brokers.get(broker)
        if record is None or record.state is None:
            family = self.states.family
            message = f'{family.broker} "{broker.name}" is being deleted'
            raise NotReady(f"{family.short_name}DoesNotExist", message)
        return record

    def ensure_contract(
        self, record: BrokerRecord, broker: Identity, kafka: KafkaCluster
    ) -> SharedContractTopic:
        """Return the contract of `broker` in this Kafka from `record`, what is in memory about the
        Broker; a missing contract is created in memory. Its records may not have been read yet."""
        contract = record.contracts.get(kafka.bootstrap_servers)
        if contract is None:
            own_identity = Identity(broker.namespace, self.states.family.own_name(broker.name))
            topic = names.contract_topic(*own_identity)
            # Without a contract topic in the Broker's status there are no records to read.
            contract = SharedContractTopic(
                own_identity, topic, kafka, known=not record.has_contract
            )
            record.contracts[kafka.bootstrap_servers] = contract
        contract.kafka = kafka  # the client changes with its Secret
        return contract

    async def resume(self, broker: Document, kafka: KafkaCluster) -> SharedContractTopic:
        """Return the contract of a stored Broker that wasn't reconciled yet, after reading its
        records from this Kafka. Raises `LogError`."""
        record = self.states.ensure_broker(broker)
        record.kafka = record.kafka or kafka
        contract = self.ensure_contract(record, Identity.of(broker), kafka)
        await contract.load()
        return contract

    def reserve(self, broker: Identity, watched: Watched) -> None:
        """Count a Trigger as a member of the shard that delivers it, by its delivery `watched`. A
        Trigger that no shard delivers any more is counted until its record is removed from the
        contract, and its shard has read that. Does nothing for an unknown Broker."""
        record, group = self.states.brokers.get(broker), watched.egress.group
        if record is None or watched.kafka.open_writer is None:
            return
        contract = self.ensure_contract(record, broker, watched.kafka)
        if watched.place is not None:
            contract.numbers[group] = watched.place.number
        elif group not in contract.records and group not in contract.leaving:
            contract.numbers.pop(group, None)

    async def withdraw(self, broker: Identity, groups: Collection[str]) -> None:
        """Remove Triggers' consumer groups from a Broker's contracts; returns when every process
        has stopped delivering them. Does nothing for an unknown Broker.

        Raises `LogError`, and `NotReady` while a process still delivers one.
        """
        record = self.states.brokers.get(broker)
        if record is None:
            return
        present_kafka = None if record.state is None else record.state.kafka
        # After a restart, contracts in the present and the previous Kafka aren't in memory yet.
        for kafka in (present_kafka, record.kafka):
            if record.has_contract and kafka is not None and kafka.open_writer is not None:
                self.ensure_contract(record, broker, kafka)
        for contract in list(record.contracts.values()):
            for group in groups:
                await contract.withdraw(group)

    async def create_contract_topic(self, broker: Identity, topic: Topic) -> None:
        """Write the name of a Broker's contract topic into the Broker's status, then create the
        topic. In this order, an operator that starts after a crash knows that the topic may exist.

        Does nothing if the topic exists. Raises `LogError`, `NotReady` and `ClusterError`.
        """
        record, contract = self.active_record(broker), await self.load_contract(broker)
        assert contract is not None
        async with record.creating:
            if contract.exists:
                return
            if not record.has_contract:
                metadata = {"namespace": broker.namespace, "name": broker.name, "uid": record.uid}
                family = self.states.family
                kind = {"apiVersion": family.broker_version, "kind": family.broker}
                document = {**kind, "metadata": metadata}
                patch = {"annotations": {CONTRACT_TOPIC_KEY: topic.name}}
                await self.cluster.write_status(document, patch)
                record.has_contract = True
            await contract.ensure_created(topic)

    async def apply(self, identity: Identity, number: int, manifest: Manifest) -> None:
        """Apply the Service of shard `number` of the Broker `identity`. Raises `NotReady` while the
        Service isn't Ready, and `ClusterError`.

        Every Trigger of the shard calls this, but the same manifest is applied only once. It is
        applied again after an error, if the Service isn't Ready `APPLY_RETRY_INTERVAL` seconds
        later, and by the Broker's reconciliation (`maintain`).
        """
        record = self.active_record(identity)
        assert record.state is not None  # checked by `active_record`
        broker, shard = record.state.broker, record.shards.setdefault(number, ShardRecord())
        async with shard.lock:
            # Its Trigger is only counted for good once the Trigger's record is written.
            shard.empty_since, previous_manifest = None, shard.manifest
            is_retry_due = (
                shard.problem is not None and _now() - shard.applied_at >= APPLY_RETRY_INTERVAL
            )
            if previous_manifest != manifest or is_retry_due:
                await self._apply(shard, manifest, broker)
                if previous_manifest != manifest:
                    # So that the Broker's reconciliation reads the Service as well, and the Broker
                    # is enqueued when the Service changes.
                    self.enqueue((self.states.family.broker, *identity))
        if shard.problem is not None:
            raise shard.problem

    async def _apply(self, shard: ShardRecord, manifest: Manifest, broker: Broker) -> None:
        """Apply the Service of a shared dispatcher. Record the manifest and, if the Service isn't
        Ready, the problem in `shard`. Raises `ClusterError`."""
        # No manifest until it is applied: after an error the next caller applies it again.
        shard.manifest, shard.applied_at = None, _now()
        try:
            await apply_service(self.cluster, manifest, broker, self.states.rolls)
            shard.problem = None
        except NotReady as error:
            if error.transient:
                # A constant message: each change of it would rewrite the status of every Trigger.
                name = manifest["metadata"]["name"]
                text = f"Knative Service {name}, a shared dispatcher, is not Ready yet"
                error = NotReady(error.reason, text, transient=True)
            shard.problem = error
        shard.manifest = manifest

    async def maintain(self, broker: Broker) -> None:
        """Bring a Broker's shards up to date: enqueue all its Triggers if others have changed the
        contract, remove records of deleted Triggers, apply again the Services that were applied
        before, and delete the shards without Triggers for `EMPTY_SHARD_SECONDS`.

        If the contract can't be read, or a shard still delivers a deleted Trigger, that is logged,
        and the shards wait for the next call. Does nothing for an unknown Broker. Raises
        `ClusterError`.
        """
        identity = Identity(broker.metadata.namespace, broker.metadata.name)
        record = self.states.brokers.get(identity)
        if record is None or not record.has_contract or record.state is None:
            return
        topic = record.state.topic.name  # the record may lose its state at any `await` below
        try:
            contract = await self.load_contract(identity)
            if contract is None:
                return
            if await contract.reload_if_changed():
                for trigger in self.states.triggers_of(identity):
                    self.enqueue((self.states.family.trigger, *trigger))
            await self._withdraw_orphans(identity, contract)
        except (LogError, NotReady) as error:
            log.info("the contract of %s %s: %s", self.states.family.broker, identity, error)
            return
        await self._load_shards(record, broker)
        for number, shard in list(record.shards.items()):
            async with shard.lock:
                if contract.group_count(number):
                    shard.empty_since = None
                    if shard.manifest is not None:
                        await self._apply(shard, shard.manifest, broker)
                elif shard.empty_since is None:
                    shard.empty_since = _now()
                elif _now() - shard.empty_since >= EMPTY_SHARD_SECONDS:
                    # A Trigger that comes back, maybe during the deletion, applies it again.
                    shard.manifest = shard.problem = None
                    await self._delete_service(broker, number)
                    with suppress(LogError):  # the next call tries again
                        await self._delete_member_group(contract, number, topic)
                        if not contract.group_count(number):
                            record.shards.pop(number, None)

    def services_of(self, broker: Identity) -> list[Identity]:
        """Return namespace and name of the Services of a Broker's known shards; empty for an
        unknown Broker."""
        record = self.states.brokers.get(broker)
        shard_numbers = record.shards if record is not None else ()
        return [self._service_identity(broker, number) for number in shard_numbers]

    def _service_identity(self, broker: Identity, number: int) -> Identity:
        """Return namespace and name of the Knative Service of a Broker's shard `number`."""
        family = self.states.family
        namespace = services.function_namespace(family, broker, self.settings)
        return Identity(namespace, dispatcher_services.shard_name(family, broker, number))

    async def _delete_service(self, broker: Resource, number: int) -> None:
        """Delete a shard's Knative Service, if it exists. Raises `ClusterError`."""
        namespace, name = self._service_identity(services.identity_of(broker), number)
        await delete_service(self.cluster, name, broker, namespace)

    async def _delete_member_group(
        self, contract: SharedContractTopic, number: int, topic: str
    ) -> None:
        """Delete the consumer group by which the processes of shard `number` read the Broker's
        `topic`; raises `LogError`, also while the group has members."""
        shard_group = names.shard_group(*contract.broker, number)
        await contract.kafka.topics.delete_group(names.shard_members_group(shard_group, topic))

    async def delete(self, broker: Resource) -> None:
        """Delete the Services of all shards of a Broker that has a record. Raises
        `ClusterError`."""
        identity = Identity(broker.metadata.namespace, broker.metadata.name)
        record = self.states.brokers[identity]
        if record.has_contract:
            await self._load_shards(record, broker)
            for number in record.shards:
                await self._delete_service(broker, number)

    async def _withdraw_orphans(self, broker: Identity, contract: SharedContractTopic) -> None:
        """Remove from the contract the records of Triggers that were deleted without our finalizer,
        or that have moved to another Broker or group while no operator ran. Raises `LogError`,
        `NotReady` and `ClusterError`."""
        family = self.states.family
        kind = family.trigger_version, family.trigger
        for group, shared in list(contract.records.items()):
            identity = Identity(shared.egress.namespace, shared.egress.trigger)
            record = self.states.triggers.get(identity)
            if record is None:
                is_orphan = await self.cluster.get(*kind, *identity) is None
            else:
                is_orphan = not _may_deliver(record, broker, group)
            if is_orphan:
                message = "%s %s is gone or has moved, and was still delivered by group %s"
                log.warning(message, family.trigger, identity, group)
                await contract.withdraw(group)

    async def _load_shards(self, record: BrokerRecord, broker: Resource) -> None:
        """Add to the record the shards whose Services an earlier operator has applied; lists the
        Services only at the first call for a record. Raises `ClusterError`."""
        if record.shards_listed:
            return
        labels = {services.ROLE_LABEL: services.SHARD_ROLE}
        for service in await self.cluster.list(SERVING, "Service", labels):
            if (
                services.is_owned(service, broker)
                and (number := dispatcher_services.shard_number(service)) is not None
            ):
                record.shards.setdefault(number, ShardRecord())
        record.shards_listed = True


def _may_deliver(trigger: TriggerRecord, broker: Identity, group: str) -> bool:
    """Whether a Trigger, by its record in memory, may be delivered from this Broker with this
    group: it is delivered so now, or neither another Broker nor another group is known."""
    watched = trigger.watched
    if watched is not None and (watched.broker, watched.egress.group) == (broker, group):
        return True  # even if the Trigger has changed: its own reconciliation ends the delivery
    is_in_groups = group in trigger.groups or not trigger.groups
    return trigger.broker in (None, broker) and is_in_groups


def _now() -> float:
    """Return the event loop's time, in seconds."""
    return asyncio.get_running_loop().time()
