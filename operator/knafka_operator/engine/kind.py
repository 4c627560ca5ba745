"""Kind: the interface between the controller and the objects of one kind, and how each is
reconciled.

    observe --> decide --> effects --run in order until one fails--> decide again
                       `-> none: conditions, status

A subclass of `Reconciler` observes its objects and decides about them (a pure function); the rest
is here, once. The first effect that fails skips the remaining ones; the next decision knows the
error.

Not here: what each effect does (`effects`); when an object is reconciled, finalizers and deletion
(`engine.controller`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Final, Generic, Literal, NamedTuple, Protocol, TypeVar

from knafka_operator.decisions import status as statuses
from knafka_operator.decisions.effects import Effect
from knafka_operator.decisions.observed import ObservedObject
from knafka_operator.decisions.status import EXPECTED, ConditionSet
from knafka_operator.engine.effects import Effects
from knafka_operator.engine.work_queue import GONE, Requeue
from knafka_operator.installation.handler import Handler
from knafka_operator.kafka.clusters import KafkaCluster
from knafka_operator.model.cluster import Cluster, ClusterError, Document, NotAllowed, Rejected
from knafka_operator.model.identity import Identity, Key
from knafka_operator.records.state import BrokerRecord, States, without_status

MAX_DECISIONS: Final = 32
"""Most decisions in one reconciliation, in case its input changes all the time; the next
reconciliation continues."""


class EventNews(NamedTuple):
    """Type, reason and message of a Kubernetes Event."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


class Kind:
    """The controller's interface to all objects of one kind, with defaults that fit most kinds."""

    api_version: str
    """The API group and version of the objects, such as `eventing.knative.dev/v1`."""
    left_behind: str = "Kafka still has its topics or group, which nobody will delete"
    """A message for users: what may be left behind if a deletion was given up."""

    cluster: Cluster

    @cached_property  # as the dataclasses among the subclasses don't call an `__init__` of `Kind`
    def _declared(self) -> dict[Key, Document]:
        """Each object's latest document from its watch, without its status; `on_change` fills it,
        and compares new documents with it."""
        return {}

    # Changes of objects.

    def on_change(self, document: Document, *, gone: bool) -> Collection[Key]:
        """Record that an object has changed or, with `gone`, was deleted; returns the keys to
        reconcile. A change of the status alone is ignored."""
        key = key_of(document)
        declared_document = None if gone else without_status(document)
        if not gone:
            self.remember(document)
        previous = self._declared.pop(key, None)
        if declared_document is not None:
            self._declared[key] = declared_document
        return [key] if gone or previous != declared_document else []

    def remember(self, document: Document) -> object:
        """Record what reconciliations of other objects may need of this object before its own first
        one; by default nothing. Callers ignore the result."""
        return None

    # Operations on one object.

    async def get(self, key: Key) -> Document | None:
        """Return the stored object; None: it doesn't exist. Raises `ClusterError`."""
        return await self.cluster.get(self.api_version, *key)

    def is_ours(self, document: Document) -> bool:
        """Whether Knafka serves the object, and no other implementation. Kinds that others
        implement, too, override it."""
        return True

    async def needs_finalizer(self, document: Document) -> bool:
        """Whether something may have to be deleted before the object itself, so that it needs our
        finalizer. By default every object needs it."""
        return True

    def has_ended(self, status: Mapping[str, Any]) -> bool:
        """Whether the object's status says that it has finished, so that it needs no finalizer of
        ours."""
        return False

    async def reconcile(self, document: Document) -> Mapping[str, Any] | None:
        """Reconcile an object; returns its new status. Raises `ClusterError`.

        Returns None, with no status written, if another implementation serves the object, or if it
        waits for an event that will enqueue it.
        """
        raise NotImplementedError

    async def delete(self, document: Document) -> None:
        """Delete what was made for an object; raises `KnafkaError` until that succeeds."""
        raise NotImplementedError

    async def forget(self, document: Document) -> None:
        """Stop all work for a deleted object, and drop what is in memory about it."""
        raise NotImplementedError

    async def hand_over(self, document: Document) -> None:
        """Remove what Knafka has made for an object that another implementation serves. By default
        there is nothing; kinds that others implement, too, override it."""

    async def on_absent(self, identity: Identity) -> Requeue:
        """Handle a key without an object; returns when to reconcile it again. By default it leaves
        the queue; Triggers, Subscriptions and KafkaSources end their delivery."""
        return GONE

    async def object_to_release(self, key: Key, document: Document | None) -> Document | None:
        """Return a stored object that must lose our finalizer although it isn't what is reconciled
        under `key`: `document` is None, or was made from a channel's entry (Subscriptions only).
        None, the default: there is none."""
        return None

    async def drop_entry(self, document: Document) -> bool:
        """If `document` was made from an entry of a channel (`spec.subscribers`) and isn't stored
        itself, remove the entry's state from the channel's status, and return True. Else, and by
        default, do nothing and return False."""
        return False

    def orphaned_finalizers(self, document: Document) -> tuple[Sequence[str], str]:
        """Return the finalizers of other controllers to remove together with ours, as their
        controller is gone; and a warning for users about a finalizer that stays although its
        controller may be gone. Both are empty by default."""
        return (), ""

    # After a reconciliation.

    def event_to_post(self, document: Document, new_status: Mapping[str, Any]) -> EventNews | None:
        """Return the Event to post for the change from the status in `document` to `new_status`;
        None: no Event."""
        previous = statuses.ready_condition((document.get("status") or {}).get("conditions") or ())
        ready = statuses.ready_condition(new_status["conditions"])
        if previous.get("status") == ready["status"]:
            return None
        if ready["status"] == "True":
            return EventNews("Normal", "Ready", f"{document['kind']} is Ready")
        if ready["status"] == "False":
            return EventNews("Warning", ready["reason"], ready["message"])
        return None

    def requeue_after(self, document: Document, new_status: Mapping[str, Any]) -> float | None:
        """Return the seconds until the object is reconciled again; None: the default, which depends
        on whether it is Ready."""
        return None


class Neighbours(Protocol):
    """Actions on other objects that a reconciliation needs; implemented by `operator.Operator`."""

    def on_change(self, document: Document, *, gone: bool) -> None:
        """Record that an object has changed or, with `gone`, was deleted; enqueues the objects that
        depend on it."""
        ...

    def forget(self, document: Document) -> None:
        """Drop what the operator has in memory about a deleted Broker, channel, Trigger or
        Subscription; nothing in Kafka is deleted."""
        ...

    def enqueue_triggers_and_sensors(self, broker: Identity) -> None:
        """Enqueue the Triggers and Sensors of a Broker."""
        ...

    async def stop_triggers(self, broker: Identity) -> None:
        """End the delivery of all Triggers and Sensors of a Broker; raises `KnafkaError` while
        drains go on."""
        ...

    async def delete_broker(self, document: Document) -> None:
        """End all delivery from a Broker or channel, and delete what was made for it; raises
        `KnafkaError` until that succeeds."""
        ...

    async def suspend_absent(self, identity: Identity) -> Requeue:
        """End the delivery of a Trigger that doesn't exist now, and may come back; returns when to
        reconcile its key again."""
        ...


class Decision(Protocol):
    """Effects to run next, and the status, which is final once there are no effects."""

    @property
    def effects(self) -> Sequence[Effect]:
        """The effects to run next, in this order; none: the decision is the last one."""
        ...

    @property
    def status(self) -> Mapping[str, Any]:
        """The object's status, without its conditions."""
        ...


S = TypeVar("S", bound=ObservedObject)
D = TypeVar("D", bound=Decision)
R = TypeVar("R")
"""The types of what a kind observes, of its decisions, and of its objects' records in memory."""


class Reconciler(Generic[S, D, R]):
    """Reconciles the objects of one kind: observe, decide, run effects, write the status."""

    cluster: Cluster
    effects: Effects
    now: Callable[[], Any]
    """Returns the time, by default as RFC 3339; a kind whose `now` returns something else overrides
    `timestamp`."""

    def timestamp(self) -> str:
        """Return the current time, RFC 3339."""
        return str(self.now())

    def ensure_record(self, document: Document) -> R:
        """Return the object's record in memory, creating it if needed."""
        raise NotImplementedError

    async def observe(self, document: Document, record: R) -> S | None:
        """Read everything that the decision needs; None: don't reconcile now, see `Kind.reconcile`.
        Raises `ClusterError`."""
        raise NotImplementedError

    def decide(self, observed: S, record: R) -> D:
        """Decide what to do from `observed`; no IO."""
        raise NotImplementedError

    def kafka_of(self, observed: S, record: R) -> KafkaCluster | None:
        """Return the Kafka whose topics and groups the object's effects change; None: none is
        known. By default there is none; kinds with a Kafka override it."""
        return None

    async def follow_up(self, effect: Effect, observed: S, record: R) -> S:
        """Read again what an effect has changed, and return `observed` with the new state; by
        default nothing is read. Raises the errors of `Effects.run`, which count as the
        effect's."""
        return observed

    async def start_delivery(self, document: Document, watched: Any, *, replaces: bool) -> Any:
        """Start the drains of `watched`, as `DeliveryEffects` describes. Kinds with delivery
        override it; this one raises `TypeError`."""
        raise TypeError(f"{type(self).__name__} delivers no events")

    async def end_delivery(self, document: Document) -> None:
        """End the object's drains, as `DeliveryEffects` describes. Kinds with delivery override it;
        this one raises `TypeError`."""
        raise TypeError(f"{type(self).__name__} delivers no events")

    async def leave_receiver(self, document: Document, receiver: str) -> None:
        """Remove an object's entry from a receiver, as `DeliveryEffects` describes. KafkaChannels,
        which share receivers, override it; this one raises `TypeError`."""
        raise TypeError(f"{type(self).__name__} shares no receiver")

    def stored_status(self, observed: S) -> Mapping[str, Any]:
        """Return the object's stored status."""
        return observed.document.get("status") or {}

    def status_of(self, observed: S, decision: D, record: R) -> Mapping[str, Any]:
        """Return the status of the last decision, with its conditions. A kind whose decision has no
        attribute `conditions` overrides this method."""
        conditions: ConditionSet = getattr(decision, "conditions")  # noqa: B009
        return {**decision.status, "conditions": self.conditions(observed, conditions)}

    def conditions(self, observed: S, decided: ConditionSet) -> list[dict[str, Any]]:
        """Return the list `status.conditions`: the `decided` conditions and their summary, with
        transition times."""
        previous_conditions = self.stored_status(observed).get("conditions") or ()
        return decided.merge_into(previous_conditions, self.timestamp())

    async def write(self, observed: S, status: Mapping[str, Any]) -> None:
        """Write what `status` changes in the object's stored status; nothing if it changes nothing.
        Raises `ClusterError`."""
        if patch := statuses.merge_patch(self.stored_status(observed), status):
            await self.cluster.write_status(observed.document, patch)

    async def finish(self, observed: S, record: R) -> None:
        """Do what must follow the writing of the status; by default nothing. Brokers and channels
        override it to maintain their shards."""

    async def reconcile(self, document: Document) -> Mapping[str, Any] | None:
        """Observe, then decide and run effects in turn until a decision has none, and write the
        status, which is returned; see `Kind.reconcile` also for None. After `MAX_DECISIONS`
        decisions the remaining effects are left to the next reconciliation."""
        record = self.ensure_record(document)
        observed = await self.observe(document, record)
        if observed is None:
            return None
        decision = self.decide(observed, record)
        for _ in range(MAX_DECISIONS):
            if not decision.effects:
                break
            observed = await self.run_effects(decision.effects, observed, record)
            decision = self.decide(observed, record)
        status = self.status_of(observed, decision, record)
        await self.write(observed, status)
        await self.finish(observed, record)
        return status

    async def run_effects(self, effects: Iterable[Effect], observed: S, record: R) -> S:
        """Run effects in order, until one fails with an `EXPECTED` error. Returns `observed` with
        the results of the effects that ran, and with that error. Raises `ClusterError`."""
        for effect in effects:
            try:
                kafka = self.kafka_of(observed, record)
                result = await self.effects.run(effect, observed, kafka, self)
                observed = await self.follow_up(effect, observed.after(effect, result), record)
            except EXPECTED as error:
                return observed.with_failure(effect, error)
        return observed


class BrokerReconciler(Reconciler[S, D, BrokerRecord], Kind):
    """Base of Brokers and KafkaChannels, whose topics Triggers, Subscriptions and Sensors read."""

    states: States
    neighbours: Neighbours
    """The operator, which knows the Triggers and Sensors of these objects."""
    on_deleted: Callable[[Document], None] | None = None
    """Called with each Broker or channel after its topic was deleted."""

    @property
    def handler(self) -> Handler | None:
        """Return which controller reconciles the Triggers or Subscriptions of these objects, by
        default Knafka's; None: not known yet."""
        return Handler.OWN

    async def connect_without_config(self, document: Document) -> KafkaCluster | None:
        """Return the Kafka of a stored object even if its ConfigMap is gone; None, the default:
        only a reconciliation can find it. Raises `NotReady`, `InvalidDocument`."""
        return None

    def ensure_record(self, document: Document) -> BrokerRecord:
        """Return the Broker's record, a new one if there is none."""
        return self.states.ensure_broker(document)

    def kafka_of(self, observed: S, record: BrokerRecord) -> KafkaCluster | None:
        """Return the Kafka with the Broker's topic; None: it isn't known."""
        return record.kafka

    def on_change(self, document: Document, *, gone: bool) -> Collection[Key]:
        """Pass the change to the operator, which enqueues this object and those that depend on it;
        so no key is returned."""
        self.neighbours.on_change(document, gone=gone)
        return ()

    async def reconcile(self, document: Document) -> Mapping[str, Any] | None:
        """Reconcile a Broker or channel; returns its new status or None. Also after an error,
        record that it was reconciled, and enqueue its Triggers and Sensors if the inputs of their
        decisions (`BrokerRecord.inputs_of_triggers`) have changed."""
        record, is_retried = self.ensure_record(document), False
        previous_inputs = record.inputs_of_triggers()
        try:
            return await super().reconcile(document)
        except ClusterError as error:
            # Its resumed Triggers wait for another attempt, but not if that would be refused, too.
            is_retried = not isinstance(error, NotAllowed | Rejected)
            raise
        finally:
            record.reconciled |= not is_retried
            if previous_inputs != record.inputs_of_triggers():
                self.neighbours.enqueue_triggers_and_sensors(Identity.of(document))

    async def delete(self, document: Document) -> None:
        """End all delivery from a Broker or channel, delete what was made for it, then call
        `on_deleted`."""
        await self.neighbours.delete_broker(document)
        if self.on_deleted is not None:
            self.on_deleted(document)

    async def forget(self, document: Document) -> None:
        """Drop what the operator knows about a deleted Broker or channel."""
        self.neighbours.forget(document)


def rfc3339_now() -> str:
    """Return the current time in UTC, RFC 3339."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def key_of(document: Document) -> Key:
    """Return kind, namespace and name of a stored object."""
    return document["kind"], *Identity.of(document)
