"""Triggers: from what is declared to a dispatcher that is woken when events wait for it.

    Trigger, its Broker -> sinks -> offsets -> dispatcher's Service -> scaler

While a change is rolled out the Revision before it delivers, for as long as the new one isn't
Ready: a function that can't start stops nobody. From the moment the Trigger is Ready for its new
generation every event meets what is declared then; until then an event may still meet what was
declared before. Where a subscriber can't be resolved, or the topic is another one, nothing drains:
events wait in Kafka.

Refused here: hearing of changes (`handlers`), Brokers (`brokers`), how many drains (`scaler`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from knafka.core import names
from knafka.core.contract import Egress, Sink, parse
from knafka_operator.decide import admission, desired, services
from knafka_operator.decide import status as told
from knafka_operator.decide.resolving import resolve
from knafka_operator.decide.scaling import TriggerStatus
from knafka_operator.decide.status import Findings, NotReady
from knafka_operator.model.autoscaling import Autoscaling
from knafka_operator.model.cluster import Cluster, Document
from knafka_operator.model.conditions import Condition, Severity, Status
from knafka_operator.model.resources import (
    CORE,
    EVENTING,
    GROUP_STATUS,
    Destination,
    Resource,
    Trigger,
)
from knafka_operator.model.settings import Settings
from knafka_operator.reconcile.brokers import (
    Brokers,
    Found,
    Identity,
    apply_service,
    delete_service,
)
from knafka_operator.scale.kafkas import KafkaSide

LAG: Final = "knafka.dev/lag"
REPLICAS: Final = "knafka.dev/replicas"
SCALING: Final = "knafka.dev/scaling"
"""Keys of `status.annotations`: the scaler's view, and its last decision with the reason."""
DEAD_LETTER_TOPIC: Final = "knafka.dev/dead-letter-topic"

DEFAULT_AUTOSCALING: Final = Autoscaling()


@dataclass(frozen=True, slots=True)
class Watched:
    """A Trigger whose events are being delivered."""

    kafka: KafkaSide
    egress: Egress
    autoscaling: Autoscaling
    partitions: int
    secret: tuple[str, str] | None

    def offsets(self) -> tuple[str, str, str]:
        """Which they are that it goes by: of what Kafka, topic and group."""
        return self.egress.kafka.bootstrap_servers, self.egress.topic, self.egress.group


@dataclass(eq=False)
class Triggers:
    """All Triggers of Brokers that are ours."""

    settings: Settings
    cluster: Cluster
    brokers: Brokers
    urls: dict[str, str]
    """Where each Trigger's dispatcher is, by `namespace/name`: what the drains go by."""
    now: Callable[[], str]
    watched: dict[Identity, Watched] = field(default_factory=dict)
    replaced: set[Identity] = field(default_factory=set)
    """Triggers of whose older Revisions pods may still drain: those drain unasked."""
    groups: dict[str, str] = field(default_factory=dict)
    """UID of the Trigger that has each group's name."""
    groups_by_uid: dict[str, set[str]] = field(default_factory=dict)
    known_kafkas: dict[Identity, KafkaSide] = field(default_factory=dict)
    """Where each Trigger's group is: what `kubectl delete -f` deletes goes in any order, and a
    group that stayed would be what a later Trigger of that name starts from."""
    subscribers: dict[Identity, set[Identity]] = field(default_factory=dict)
    """Namespace and name of what is referred to -> the Triggers that do."""
    references: dict[Identity, set[Identity]] = field(default_factory=dict)
    """The same by Trigger, so that one that goes is taken out without looking at all."""

    async def reconcile(self, document: Document) -> Mapping[str, Any] | None:
        """Make one Trigger so; gives the status it has then. Raises `ClusterError`.

        None: it is another implementation's, or not known yet to be ours; nothing was written.
        """
        metadata = document["metadata"]
        identity = metadata["namespace"], metadata["name"]
        before = document.get("status") or {}
        findings = Findings(told.TRIGGER_CONDITIONS)
        annotations: dict[str, str | None] = dict(before.get("annotations") or {})
        status: dict[str, Any] = {
            "observedGeneration": metadata.get("generation", 0),
            "annotations": annotations,
            "subscriberUri": "",  # KN-TRG-03
            "deadLetterSinkUri": None,
        }
        trigger: Trigger | None = None
        found: Found | None = None
        subscriber: Sink | None = None
        dead_letter_sink: Sink | None = None
        stopped = self.brokers.stopped.get(broker_of(document))
        if stopped is not None:
            await self._stop(document)
        with findings.concludes(told.SUBSCRIPTION_READY):
            trigger = parse(Trigger, document)
        if trigger is not None:
            broker = metadata["namespace"], trigger.spec.broker
            found = self.brokers.found.get(broker)
            existing = None
            if found is None:
                existing = await self.cluster.get(EVENTING, "Broker", *broker)
                if existing is None:
                    await self.rest(identity)
                elif not self.brokers.is_ours(existing):
                    await self.rest(identity)
                    return None
                elif identity in self.watched and broker not in self.brokers.looked_at:
                    # It was resumed, and its Broker's turn is to come, which wakes it: until then
                    # what its status says is the best that is known.
                    return None
            with findings.concludes(told.BROKER_READY):
                _check_broker(trigger, found, existing, stopped)
            with findings.concludes(told.DEPENDENCY_READY):
                await self._dependency(trigger)
            with findings.concludes(told.SUBSCRIBER_RESOLVED):
                subscriber = await self._resolve(trigger.spec.subscriber, trigger)
                status["subscriberUri"] = subscriber.url
            if found is not None:
                with findings.concludes(told.DEAD_LETTER_SINK_RESOLVED):
                    dead_letter_sink = await self._dead_letter_sink(trigger, found, findings)
                    status["deadLetterSinkUri"] = dead_letter_sink and dead_letter_sink.url
        if trigger is not None and found is not None:
            resolved = (
                told.DEPENDENCY_READY,
                told.SUBSCRIBER_RESOLVED,
                told.DEAD_LETTER_SINK_RESOLVED,
            )
            if subscriber is not None and findings.holds(*resolved):
                with findings.concludes(told.SUBSCRIPTION_READY):
                    await self._subscribe(trigger, found, subscriber, dead_letter_sink, annotations)
            else:
                findings.set(
                    Condition(
                        told.SUBSCRIPTION_READY,
                        Status.UNKNOWN,
                        "Waiting",
                        "it has no subscriber to deliver to: its events wait in Kafka",
                    )
                )
                await self.rest(identity)
        scaled = self.status(identity)
        annotations.update(scaling(scaled))
        if scaled is not None:
            findings.set(delivering(scaled))
        status["conditions"] = findings.conditions(before.get("conditions") or (), self.now())
        patch = told.changes(before, status)
        if patch:
            await self.cluster.write_status(document, patch)
        return status

    async def delete(self, document: Document) -> None:
        """Let go of its group; its dead letters stay.

        Raises `LogError` while drains go on, `NotReady` while it isn't known where its Kafka is.
        """
        namespace, name = document["metadata"]["namespace"], document["metadata"]["name"]
        await self.rest((namespace, name))
        if group := group_in_status(document):
            broker = broker_of(document)
            found = self.brokers.found.get(broker)
            kafka = found.config.kafka if found else self.known_kafkas.get((namespace, name))
            kafka = kafka or self.brokers.known_kafkas.get(broker)
            if kafka is not None:
                await kafka.topics.delete_group(group)
            elif await self.cluster.get(EVENTING, "Broker", *broker) is not None:
                raise NotReady("BrokerNotConfigured", f"Broker {broker[1]} has no topic yet")
        self.forget(document)

    def forget(self, document: Document) -> None:
        """It is gone, whatever is left of it in Kafka."""
        metadata = document["metadata"]
        identity = metadata["namespace"], metadata["name"]
        self.watched.pop(identity, None)
        self.replaced.discard(identity)
        self.known_kafkas.pop(identity, None)
        self.urls.pop("/".join(identity), None)
        self._refer_to_nothing(identity)
        for group in self.groups_by_uid.pop(metadata["uid"], ()):
            del self.groups[group]

    def learn(self, document: Document) -> None:
        """Keep in mind which group a Trigger has, before any other is reconciled."""
        if (group := group_in_status(document)) and group not in self.groups:
            self._claim(group, document["metadata"]["uid"])

    def status(self, identity: Identity) -> TriggerStatus | None:
        """What the scaler knows of it; None: it isn't scaled."""
        watched = self.watched.get(identity)
        return watched.kafka.scaler.status("/".join(identity)) if watched else None

    def groups_of(self, documents: Iterable[Document]) -> list[str]:
        """The consumer groups of these Triggers."""
        return [
            group
            for document in documents
            for group in self.groups_by_uid.get(document["metadata"]["uid"], ())
        ]

    def _claim(self, group: str, uid: str) -> None:
        """The Trigger of this UID has this group."""
        if before := self.groups.get(group):
            self.groups_by_uid[before].discard(group)
        self.groups[group] = uid
        self.groups_by_uid.setdefault(uid, set()).add(group)

    async def _subscribe(
        self,
        trigger: Trigger,
        found: Found,
        subscriber: Sink,
        dead_letter_sink: Sink | None,
        annotations: dict[str, str | None],
    ) -> None:
        """Topics, offsets, Service, scaler: from the end of this on, no event is missed."""
        identity = trigger.metadata.namespace, trigger.metadata.name
        config, topics = found.config, found.config.kafka.topics
        taken = desired.OthersNames(self.groups, trigger.metadata.uid)
        egress = desired.egress(
            trigger,
            found.broker,
            found.topic,
            subscriber,
            dead_letter_sink,
            config.defaults,
            taken,
        )
        autoscaling = Autoscaling.from_annotations(
            trigger.metadata.annotations, DEFAULT_AUTOSCALING
        )
        watched = Watched(config.kafka, egress, autoscaling, found.partitions, config.secret)
        before = self.watched.get(identity)
        if before is not None and before.offsets() != watched.offsets():
            # Its offsets are other ones, which can't be written while a group has members.
            await self.rest(identity)
            before = None
        self._claim(egress.group, trigger.metadata.uid)
        self.known_kafkas[identity] = config.kafka
        if before is None:
            if GROUP_STATUS not in annotations:
                # Nobody was promised anything yet: what a namesake left behind isn't ours.
                await topics.delete_group(egress.group)
            if annotations.get(GROUP_STATUS) != egress.group or found.topic.external:
                await topics.ensure_committed(egress.group, egress.topic)
            # Else it was promised every event: should Kafka have no offsets of it any more, since
            # its Broker was made anew or it rested for a week, it begins at the beginning.
        annotations[GROUP_STATUS] = egress.group
        annotations[DEAD_LETTER_TOPIC] = egress.dead_letter_topic
        manifest = services.dispatcher_service(
            trigger, egress, autoscaling, found.partitions, config.secret, self.settings
        )
        # Until it is Ready nothing else changes: what was delivered goes on being delivered.
        revision = await apply_service(self.cluster, manifest, trigger)
        if self.watched.get(identity) != watched:
            if (identity[0], trigger.spec.broker) not in self.brokers.found:
                message = f'Broker "{trigger.spec.broker}" is being deleted'
                raise NotReady("BrokerDoesNotExist", message)
            if before is not None and before.autoscaling.min_scale:
                self.replaced.add(identity)
            await self.deliver(identity, watched)
        if autoscaling.min_scale or identity in self.replaced:
            await self._until_replaced(identity, services.dispatcher_name(trigger), revision)
            self.replaced.discard(identity)

    async def deliver(self, identity: Identity, watched: Watched) -> None:
        """Deliver so from now on; returns when drains of what was before are over."""
        name = names.child(identity[1], services.DISPATCHER_SUFFIX)
        self.urls["/".join(identity)] = services.url(name, identity[0], self.settings)
        before = self.watched.get(identity)
        if before is not None and before.kafka is not watched.kafka:
            await self.rest(identity)
        self.watched[identity] = watched
        self.known_kafkas[identity] = watched.kafka
        watched.kafka.watched.add(watched.egress.topic)
        await watched.kafka.scaler.watch("/".join(identity), watched.egress, watched.autoscaling)

    async def resume(self, trigger: Document, watched: Watched) -> None:
        """Deliver what a Service of this Trigger's says, before it is reconciled."""
        self._claim(watched.egress.group, trigger["metadata"]["uid"])
        await self.deliver((trigger["metadata"]["namespace"], trigger["metadata"]["name"]), watched)

    async def _until_replaced(self, identity: Identity, service: str, revision: str) -> None:
        """Raise `NotReady` while pods of an older Revision, which drain unasked, run.

        A pod that is told to go runs on for half a minute and more: Knative waits for requests
        that are late.
        """
        labels = {"serving.knative.dev/service": service}
        older = {
            each["metadata"]["labels"].get("serving.knative.dev/revision", "")
            for each in await self.cluster.list(CORE, "Pod", labels)
            if each["metadata"]["namespace"] == identity[0] and _runs(each)
        } - {revision}
        if older:
            message = f"pods of the Revision before it still deliver: {', '.join(sorted(older))}"
            raise NotReady("OldRevisionDelivers", message, known=False)

    async def rest(self, identity: Identity) -> None:
        """Deliver nothing for now; returns when its drains are over."""
        watched = self.watched.pop(identity, None)
        if watched is not None:
            await watched.kafka.scaler.forget("/".join(identity))
            topic = watched.egress.topic
            if not watched.kafka.scaler.has_triggers(topic):
                watched.kafka.watched.discard(topic)

    async def _stop(self, document: Document) -> None:
        """Rest, and leave no function that somebody else could have deliver; its group stays."""
        of = parse(Resource, {key: document[key] for key in ("apiVersion", "kind", "metadata")})
        await self.rest((of.metadata.namespace, of.metadata.name))
        for name in (services.dispatcher_name(of), services.replayer_name(of)):
            await delete_service(self.cluster, name, of)

    def _refer_to_nothing(self, identity: Identity) -> None:
        for referred in self.references.pop(identity, ()):
            referring = self.subscribers[referred]
            referring.discard(identity)
            if not referring:
                del self.subscribers[referred]

    async def _resolve(self, destination: Destination, trigger: Trigger) -> Sink:
        namespace = trigger.metadata.namespace
        if destination.ref is not None:
            referred = destination.ref.namespace or namespace, destination.ref.name
            identity = namespace, trigger.metadata.name
            self.subscribers.setdefault(referred, set()).add(identity)
            self.references.setdefault(identity, set()).add(referred)
        return await resolve(destination, namespace, self.cluster.get, self.settings.cluster_domain)

    async def _dead_letter_sink(
        self, trigger: Trigger, found: Found, findings: Findings
    ) -> Sink | None:
        """KN-TRG-04; the Broker's where the Trigger declares no delivery (KN-BRK-15)."""
        declared = desired.dead_letter_destination(trigger, found.broker)
        if declared is None:
            findings.set(
                Condition(
                    told.DEAD_LETTER_SINK_RESOLVED, Status.TRUE, "DeadLetterSinkNotConfigured"
                )
            )
            return None
        return await self._resolve(declared, trigger)

    async def _dependency(self, trigger: Trigger) -> None:
        """KN-TRG-13: what the annotation names must be Ready first."""
        reference = admission.dependency(trigger.metadata)
        if reference is None:
            return
        namespace = trigger.metadata.namespace
        found = await self.cluster.get(
            reference.api_version, reference.kind, namespace, reference.name
        )
        named = f"{reference.kind:.100} {namespace}/{reference.name:.253}"
        if found is None:
            raise NotReady("DependencyDoesNotExist", f"{named} does not exist")
        if not told.is_ready(found):
            raise NotReady(
                "DependencyNotReady", f"{named} is not Ready: {told.why_not_ready(found)}"
            )


def broker_of(trigger: Document) -> Identity:
    """Namespace and name of the Broker that a Trigger, as it is stored, refers to."""
    spec = trigger.get("spec") or {}
    reference = spec.get("brokerRef")
    name = spec.get("broker") or (isinstance(reference, Mapping) and reference.get("name")) or ""
    return trigger["metadata"]["namespace"], str(name)


def _runs(pod: Document) -> bool:
    """Whether the function in it does; Knative's proxy beside it stays longer."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    return any("running" in each["state"] for each in statuses if each["name"] != "queue-proxy")


def group_in_status(trigger: Document) -> str | None:
    """The group that it got; None for any that can't be its own."""
    metadata = trigger["metadata"]
    group = ((trigger.get("status") or {}).get("annotations") or {}).get(GROUP_STATUS)
    own = names.is_trigger_group(group, metadata["namespace"], metadata["name"])
    return str(group) if own else None


def _check_broker(
    trigger: Trigger, found: Found | None, existing: Document | None, stopped: str | None
) -> None:
    """KN-TRG-01; raises `NotReady`."""
    name = trigger.spec.broker
    if stopped is not None:
        message = f'Broker "{name}" is not Ready: ExternalTopicNotAllowed {stopped}'
        raise NotReady("BrokerNotReady", message)
    if found is None:
        if existing is None:
            raise NotReady("BrokerDoesNotExist", f'Broker "{name}" does not exist')
        raise NotReady(
            "BrokerNotConfigured",
            f'Broker "{name}" has no topic yet: {told.why_not_ready(existing)}',
            known=False,
        )
    if found.ready != "True":
        message = f'Broker "{name}" is not Ready: {found.why_not}'
        raise NotReady("BrokerNotReady", message, known=found.ready == "False")


def scaling(scaled: TriggerStatus | None) -> dict[str, str | None]:
    """What the scaler knows of a Trigger, as annotations of its status; None: take it away."""
    if scaled is None:
        return dict.fromkeys((LAG, REPLICAS, SCALING))
    return {
        LAG: "unknown" if scaled.lag is None else str(scaled.lag),
        REPLICAS: str(scaled.replicas),
        SCALING: f"{scaled.scale.replicas}: {scaled.scale.reason}",
    }


def delivering(scaled: TriggerStatus) -> Condition:
    """For people: it doesn't make a Trigger Ready or not."""

    def warning(reason: str, message: str) -> Condition:
        return Condition(told.DELIVERING, Status.FALSE, reason, message[:1000], Severity.WARNING)

    if scaled.error is not None:
        return warning("DrainFailed", scaled.error)
    if scaled.counts.congestion is not None:
        waiting = "a few events probe the subscriber, the others wait in Kafka"
        return warning("SubscriberUnavailable", f"{scaled.counts.congestion}: {waiting}")
    if scaled.beyond_end:
        partitions = ", ".join(map(str, sorted(scaled.beyond_end)))
        return warning(
            "CommittedBeyondEnd",
            f"partitions {partitions} of the topic end before what was committed, as it was made "
            "anew or has lost its end: they are read from the start of what is there",
        )
    return Condition(told.DELIVERING, Status.TRUE, severity=Severity.WARNING)
