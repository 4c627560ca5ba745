"""Effects: runs what the decisions of all kinds ask for, in one function.

    reconcile (`kind`) --effect--> `Effects.run` --result--> `ObservedObject.after`

Not here: decisions (the module `decide` of each kind), and drains, which only the object's own kind
can start and end (`DeliveryEffects`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol, assert_never

from knafka.core.documents import parse
from knafka_operator.decisions.effects import (
    Annotate,
    Apply,
    ApplyReceiver,
    ApplyService,
    ApplyShard,
    AwaitReceivers,
    AwaitReplacement,
    AwaitShard,
    ClaimGroup,
    CommitOffsets,
    Create,
    CreateContract,
    CreateTopic,
    Delete,
    DeleteGroup,
    Effect,
    EffectInKafka,
    LeaveReceivers,
    Manifest,
    ObjectName,
    Probe,
    Refusal,
    StartDelivery,
    StopDelivery,
    Wake,
    WriteContract,
    WriteIngress,
    WriteStatus,
)
from knafka_operator.decisions.observed import ObservedObject
from knafka_operator.decisions.status import NotReady
from knafka_operator.dispatchers.shard_services import Shards
from knafka_operator.functions import services
from knafka_operator.functions.applying import apply_service, check_old_pods_gone
from knafka_operator.functions.trust_bundles import TrustBundleCopies
from knafka_operator.kafka.clusters import KafkaCluster
from knafka_operator.kafka.topic_creation import ensure_own_topic
from knafka_operator.model.cluster import Cluster, Conflict, Document, NotAllowed, Rejected
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import Resource
from knafka_operator.receivers.receivers import Receivers
from knafka_operator.records.state import States, broker_of


class DeliveryEffects(Protocol):
    """Effects that only the object's own kind can run, as they need its records in memory."""

    async def start_delivery(self, document: Document, watched: Any, *, replaces: bool) -> Any:
        """Start the drains of `watched`, the decided delivery; returns the scaler's status once
        previous drains have ended. `replaces`: whether pods of the previous delivery may still
        deliver."""
        ...

    async def end_delivery(self, document: Document) -> None:
        """End the object's drains and remove the object from its shard; returns when the drains
        have ended."""
        ...

    async def leave_receiver(self, document: Document, receiver: str) -> None:
        """Remove an object's entry from a receiver; returns when every replica has read the
        removal."""
        ...


@dataclass(eq=False)
class Effects:
    """Runs the effects of all kinds of one `model.family.Family`, such as Brokers and Triggers."""

    cluster: Cluster
    states: States
    shards: Shards
    receivers: Receivers
    trust_bundles: TrustBundleCopies
    probe: Callable[[str], Awaitable[None]]
    """Requests an address and returns when it has answered; raises `NotReady`."""
    wake: Callable[[str], Awaitable[None]]
    """Starts a function's pod and returns when it runs; raises `NotReady`."""

    async def run(
        self,
        effect: Effect,
        observed: ObservedObject,
        kafka: KafkaCluster | None,
        delivery: DeliveryEffects,
    ) -> Any:
        """Run one effect of the object in `observed`; returns the effect's result, None for effects
        without one.

        `kafka` is the Kafka with the object's topics and group (None: not known); `delivery` is the
        object's own kind. Raises the errors in `decisions.status.EXPECTED`, and `ClusterError`.
        """
        document, cluster = observed.document, self.cluster
        match effect:
            case Annotate(_, annotations, at_once):
                if at_once:  # else they are written with the rest of the status
                    await cluster.write_status(document, {"annotations": dict(annotations)})
            case WriteStatus(_, patch):
                if patch:
                    await cluster.write_status(document, patch)
            case Apply(_, manifests, refusal):
                return [await self._apply(manifest, refusal, document) for manifest in manifests]
            case Create():
                await self._create(effect)
            case Delete(_, objects, owned):
                for object_name in objects:
                    await self._delete(object_name, resource_of(document) if owned else None)
            case ApplyService(_, manifest):
                await self.trust_bundles.ensure_copy(manifest)
                owner = resource_of(document)
                return await apply_service(cluster, manifest, owner, self.states.rolls)
            case AwaitReplacement(namespace, service):
                await check_old_pods_gone(cluster, namespace, service, observed.revision)
            case Probe(url):
                await self.probe(url)
            case Wake(url):
                await self.wake(url)
            case StartDelivery(watched, replaces):
                return await delivery.start_delivery(document, watched, replaces=replaces)
            case StopDelivery():
                await delivery.end_delivery(document)
            case LeaveReceivers(names):
                for name in names:
                    await delivery.leave_receiver(document, name)
            case _:
                if kafka is None:
                    raise TypeError(f"an effect of an object without Kafka: {effect}")
                return await self._run_in_kafka(effect, document, kafka)

    async def _run_in_kafka(
        self, effect: EffectInKafka, document: Document, kafka: KafkaCluster
    ) -> Any:
        """Run an effect that needs `kafka`, and return its result; None for effects without one.
        Raises `LogError`, `NotReady` and `ClusterError`."""
        match effect:
            case CreateTopic(topic, name_key, id_key, accepts_records):
                description = await ensure_own_topic(kafka, topic, accepts_records=accepts_records)
                # The topic's name and id in the status show later that the topic is the object's.
                patch = {"annotations": {name_key: topic.name, id_key: description.id}}
                await self.cluster.write_status(document, patch)
                return description
            case ClaimGroup(group):
                record = self.states.ensure_trigger(document)
                self.states.claim_group(record, group)
                record.kafka = kafka
            case DeleteGroup(group):
                await kafka.topics.delete_group(group)
            case CommitOffsets(group, topic_name, start):
                await kafka.topics.ensure_committed(group, topic_name, start)
            case ApplyReceiver(service, contract, manifest):
                receiver = await self.receivers.ensure_receiver(service, kafka, contract.name)
                asking_object = Identity.of(document)
                return await self.receivers.apply(receiver, contract, manifest, asking_object)
            case WriteIngress(service, contract, path, ingress):
                receiver = await self.receivers.ensure_receiver(service, kafka, contract.name)
                await receiver.contract.ensure_created(contract)
                await receiver.write(path, ingress)
            case AwaitReceivers(service, contract_name, path):
                receiver = await self.receivers.ensure_receiver(service, kafka, contract_name)
                await self.receivers.wait_until_read(receiver, path)
            case CreateContract(topic):
                await self.shards.create_contract_topic(broker_of(document), topic)
            case WriteContract(group, shared):
                await self.shards.contract_at(broker_of(document), kafka).write(group, shared)
            case ApplyShard(number, manifest):
                await self.trust_bundles.ensure_copy(manifest)
                await self.shards.apply(broker_of(document), number, manifest)
            case AwaitShard(shard):
                await self.shards.contract_at(broker_of(document), kafka).wait_until_applied(shard)
            case _:
                assert_never(effect)
        return None

    async def _apply(
        self, manifest: Manifest, refusal: Refusal | None, document: Document
    ) -> Document:
        """Apply a manifest for its owner, the object `document`; return the stored object. If the
        API server refuses it, or if an object of that name has another owner, raises `NotReady`
        with the reason in `refusal`. Without a `refusal`, owners aren't checked. Raises
        `ClusterError`."""
        kind, (namespace, name) = manifest["kind"], Identity.of(manifest)
        if refusal is not None and refusal.not_ours and refusal.kind in (None, kind):
            existing = await self.cluster.get(manifest["apiVersion"], kind, namespace, name)
            if existing is not None:
                owner_uid = document["metadata"]["uid"]
                if owner_uid not in services.owner_uids(existing):
                    raise _foreign_object_error(refusal, f"{kind} {name}")
        try:
            return await self.cluster.apply(manifest)
        except Conflict as error:
            raise NotReady("Waiting", str(error), transient=True) from error
        except (Rejected, NotAllowed) as error:
            if refusal is None:
                raise
            raise NotReady(refusal.rejected, str(error)) from error

    async def _create(self, effect: Create) -> None:
        """Create an object unless it exists. If the API server refuses it, or if an existing one
        was made for another owner (its label `effect.label` has another value), raises `NotReady`
        with the reason in `effect.refusal`. If that is None, owners aren't checked. Raises
        `ClusterError`."""
        manifest, refusal = effect.manifest, effect.refusal
        kind, (namespace, name) = manifest["kind"], Identity.of(manifest)
        try:
            created = await self.cluster.create(manifest)
        except (Rejected, NotAllowed) as error:
            if refusal is None:
                raise
            raise NotReady(refusal.rejected, str(error)) from error
        if created or refusal is None:
            return
        existing = await self.cluster.get(manifest["apiVersion"], kind, namespace, name)
        if existing is None:
            raise NotReady("Waiting", f"{kind} {name} was deleted meanwhile", transient=True)
        labels = existing["metadata"].get("labels") or {}
        if labels.get(effect.label) != manifest["metadata"]["labels"][effect.label]:
            raise _foreign_object_error(refusal, f"{kind} {name}")

    async def _delete(self, name: ObjectName, owner: Resource | None) -> None:
        """Delete an object if it exists. With an `owner`, delete it only if `owner` owns it; None:
        delete it also if another object owns it. Raises `ClusterError`."""
        if owner is not None:
            existing = await self.cluster.get(*name)
            if existing is None or not services.is_owned(existing, owner):
                return
        await self.cluster.delete(*name)


def resource_of(document: Document) -> Resource:
    """Return a stored object with only its type and metadata, even if its spec can't be parsed.
    Raises `InvalidDocument` for invalid metadata."""
    return parse(Resource, {key: document[key] for key in ("apiVersion", "kind", "metadata")})


def _foreign_object_error(refusal: Refusal, name: str) -> NotReady:
    """Return the error for an existing object that was made for another owner; `name` is its kind
    and name."""
    message = f"{name} exists and was not made for {refusal.owner}: delete or rename it"
    return NotReady(refusal.not_ours, message)
