"""Operator: the parts put together, and who is woken by what.

    Broker changed     -> itself, its Triggers
    Trigger changed    -> itself
    Service changed    -> who owns it, or whose subscriber it is
    receiver started   -> its Broker's Triggers drain at once: an event is on its way

Refused here: hearing of changes (`controller`), and what reconciling is (`brokers`, `triggers`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from knafka.core import names
from knafka.core.errors import KnafkaError
from knafka_operator.decide import services
from knafka_operator.decide import status as told
from knafka_operator.decide.scaling import TriggerStatus
from knafka_operator.decide.topics import Topics
from knafka_operator.model.cluster import Cluster, Document
from knafka_operator.model.resources import EVENTING, SERVING
from knafka_operator.model.settings import Settings
from knafka_operator.reconcile.brokers import Brokers, Identity
from knafka_operator.reconcile.probe import probe
from knafka_operator.reconcile.replays import Replays
from knafka_operator.reconcile.resuming import Resuming
from knafka_operator.reconcile.triggers import Triggers, broker_of, delivering, scaling
from knafka_operator.reconcile.work_queue import WorkQueue
from knafka_operator.scale.drains import HttpDrains
from knafka_operator.scale.kafkas import Kafkas, KafkaSide
from knafka_operator.scale.repeat import repeat

log = logging.getLogger(__name__)

DISPATCHERS: Final = {services.ROLE: services.DISPATCHER}
"""Labels of the Services that deliver, those for replays apart."""

TELL_INTERVAL: Final = 5.0
"""Seconds between two looks at what the scaler has to say of each Trigger."""

LAG_INTERVAL: Final = 60.0
"""Seconds between two lags in a Trigger's status, unless it begins or ends to drain: each write
goes to every replica of etcd and to whoever watches. Metrics have the lag of now."""

TOLD_AT_ONCE: Final = 20
"""Triggers whose status is looked at before the event loop has its turn: a millisecond's worth."""

PREWARM_LIMIT: Final = 5
"""Triggers of one Broker that are woken before there is an event: with more, most would find
nothing, and lag wakes them anyway."""


class Operator:
    """One operator; made inside the event loop that it lives in."""

    def __init__(
        self,
        settings: Settings,
        cluster: Cluster,
        connect: Callable[[Mapping[str, Any]], Topics],
    ) -> None:
        urls: dict[str, str] = {}
        self.settings = settings
        self._cluster = cluster
        self._drains = HttpDrains(urls)
        self._kafkas = Kafkas(connect, self._drains, self._used_kafkas)
        self.brokers = Brokers(settings, cluster, self._kafkas, probe, _now)
        self.triggers = Triggers(settings, cluster, self.brokers, urls, _now)
        self.queue = WorkQueue()
        self._foreign: set[Identity] = set()
        """Brokers of other classes."""
        self._declared_brokers: dict[Identity, object] = {}
        """What of ours was declared, as it was last heard of."""
        self._documents: dict[Identity, Document] = {}
        """Triggers, as they were last heard of."""
        self._told: dict[Identity, tuple[object, float]] = {}
        """What each Trigger's status says of its scaling, and since when."""
        self._triggers_by_broker: dict[Identity, set[Identity]] = {}
        self._brokers_by_label: dict[Identity, Identity] = {}
        """Namespace, and the label of its receivers' pods -> the Broker."""
        replays = Replays(settings, cluster, self.triggers, urls, self._documents.get)
        self._tasks = [asyncio.create_task(each) for each in (self._keep_telling(), replays.run())]

    async def resume(self) -> int:
        """Go on with the drains of every Trigger that a Revision serves, as its Service says.

        Before anything is reconciled: events that wait aren't to wait for that. Gives how many
        there are; raises `ClusterError`.
        """
        brokers, triggers, found = await asyncio.gather(
            self._cluster.list(EVENTING, "Broker"),
            self._cluster.list(EVENTING, "Trigger"),
            self._cluster.list(SERVING, "Service", DISPATCHERS),
        )
        ours = {_identity(each) for each in brokers if self._is_delivered(each)}
        wanted = [each for each in triggers if broker_of(each) in ours]
        resuming = Resuming(self._cluster, self._kafkas)
        for trigger, watched in await resuming.found(wanted, found):
            await self.triggers.resume(trigger, watched)
        return len(self.triggers.watched)

    async def prepare(self) -> None:
        """Be ready for `resume`: find everything, and connect to every Kafka."""
        services_ = await self._cluster.list(SERVING, "Service", DISPATCHERS)
        await Resuming(self._cluster, self._kafkas).connect(services_)

    def learn_class(self, broker: Document, *, gone: bool) -> None:
        """Keep in mind whose Broker it is; thread-safe."""
        if gone or self.brokers.is_ours(broker):
            self._foreign.discard(_identity(broker))
        else:
            self._foreign.add(_identity(broker))

    def _is_delivered(self, broker: Document) -> bool:
        return self.brokers.is_ours(broker) and "deletionTimestamp" not in broker["metadata"]

    async def close(self) -> None:
        """Hang up on every drain, and wait for that; dispatchers go on without us."""
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        await self._kafkas.close()
        await self._drains.close()

    def may_be_ours(self, trigger: Mapping[str, Any]) -> bool:
        """Whether a Trigger's Broker isn't known to be another implementation's."""
        return broker_of(trigger) not in self._foreign

    async def reconcile_broker(self, document: Document) -> Mapping[str, Any]:
        identity = _identity(document)
        brokers = self.brokers

        def known() -> tuple[object, ...]:
            found, stopped = brokers.found.get(identity), brokers.stopped.get(identity)
            return found, stopped, identity in brokers.looked_at

        before = known()
        try:
            return await brokers.reconcile(document)
        finally:
            brokers.looked_at.add(identity)
            if before != known():
                self._wake_triggers(identity)

    async def tell_failure(self, document: Document, error: Exception) -> None:
        """Put into its status that reconciling it ended in `error`, a bug; never raises."""
        identity = _identity(document)
        try:
            stored = await self._cluster.get(document["apiVersion"], document["kind"], *identity)
            before = ((stored or {}).get("status") or {}).get("conditions") or ()
            conditions = told.failed(before, error, _now())
            if stored is not None and conditions != before:
                await self._cluster.write_status(stored, {"conditions": conditions})
        except Exception:
            log.exception("telling of a failure of %s %s", document["kind"], "/".join(identity))

    async def delete_broker(self, document: Document) -> None:
        identity = _identity(document)
        # First of all: a Trigger that is just being reconciled would begin to drain again.
        self.brokers.found.pop(identity, None)
        triggers = self._triggers_of(identity)
        for each in triggers:
            await self.triggers.rest(_identity(each))
        await self.brokers.delete(document, self.triggers.groups_of(triggers))

    def forget(self, document: Document) -> None:
        """It is gone, whatever is left of it in Kafka."""
        (self.brokers if document["kind"] == "Broker" else self.triggers).forget(document)

    def heard_of_broker(self, document: Document, *, gone: bool) -> None:
        identity = _identity(document)
        self.learn_class(document, gone=gone)
        label = identity[0], names.child(identity[1], "")
        before = self._declared_brokers.pop(identity, None)
        if gone:
            self._brokers_by_label.pop(label, None)
            self.brokers.forget(document)
            self._wake_triggers(identity)
        elif self.brokers.is_ours(document):
            self._brokers_by_label[label] = identity
            self.brokers.learn(document)
            self._declared_brokers[identity] = _declared(document)
            # Not for what was written into its status.
            if before != self._declared_brokers[identity]:
                self.queue.enqueue(("Broker", *identity))

    def heard_of_trigger(self, document: Document, *, gone: bool) -> None:
        identity = _identity(document)
        before = self._documents.pop(identity, None)
        if before is not None:
            self._unlist(identity, broker_of(before))
        if gone:
            self._told.pop(identity, None)
            return
        self._documents[identity] = document
        self._triggers_by_broker.setdefault(broker_of(document), set()).add(identity)
        self.triggers.learn(document)
        # Not for what we wrote into its status ourselves.
        if before is None or _declared(before) != _declared(document):
            self.queue.enqueue(("Trigger", *identity))

    def heard_of_service(self, document: Document) -> None:
        """A Knative Service: one of ours, or somebody's subscriber."""
        namespace, name = _identity(document)
        for owner in document["metadata"].get("ownerReferences") or ():
            self.queue.enqueue((owner["kind"], namespace, owner["name"]))
        for trigger in self.triggers.subscribers.get((namespace, name), ()):
            self.queue.enqueue(("Trigger", *trigger))

    def heard_of_receiver(self, pod: Document) -> None:
        """A pod of a receiver was just made: where there was none, an event is what made it."""
        metadata = pod["metadata"]
        label = metadata["namespace"], metadata["labels"].get(services.BROKER)
        broker = self._brokers_by_label.get(label)
        if broker is not None and (found := self.brokers.found.get(broker)) is not None:
            found.config.kafka.scaler.prewarm(found.topic.name, PREWARM_LIMIT)

    def _used_kafkas(self) -> set[KafkaSide]:
        """Those that a Broker or a Trigger uses, whether its config is still there or not."""
        brokers, triggers = self.brokers, self.triggers
        return {
            *(each.config.kafka for each in brokers.found.values()),
            *brokers.known_kafkas.values(),
            *(each.kafka for each in triggers.watched.values()),
            *triggers.known_kafkas.values(),
        }

    def _wake_triggers(self, broker: Identity) -> None:
        for identity in self._triggers_by_broker.get(broker, ()):
            self.queue.enqueue(("Trigger", *identity))

    def _triggers_of(self, broker: Identity) -> list[Document]:
        return [self._documents[each] for each in self._triggers_by_broker.get(broker, ())]

    def _unlist(self, trigger: Identity, broker: Identity) -> None:
        triggers = self._triggers_by_broker[broker]
        triggers.discard(trigger)
        if not triggers:
            del self._triggers_by_broker[broker]

    async def _keep_telling(self) -> None:
        await repeat("telling what the scaler knows", self._tell, TELL_INTERVAL)

    async def _tell(self) -> None:
        """Keep in each Trigger's status what the scaler knows."""
        for number, identity in enumerate(list(self.triggers.watched), 1):
            if number % TOLD_AT_ONCE == 0:
                await asyncio.sleep(0)
            try:
                await self._tell_of(identity)
            except KnafkaError as error:
                log.warning("Trigger %s: %s", "/".join(identity), error)
            except Exception:  # whatever it is, the others' are told
                log.exception("Trigger %s", "/".join(identity))

    async def _tell_of(self, identity: Identity) -> None:
        document, scaled = self._documents.get(identity), self.triggers.status(identity)
        if document is None or scaled is None:
            return
        status = document.get("status") or {}
        if delivering(scaled).reason != told.reason_of(status, told.DELIVERING):
            self.queue.enqueue(("Trigger", *identity))
            return
        now = asyncio.get_running_loop().time()
        state, (before, since) = _state(scaled), self._told.get(identity, (None, -LAG_INTERVAL))
        if state == before and now - since < LAG_INTERVAL:
            return
        annotations, wanted = status.get("annotations") or {}, scaling(scaled)
        if any(annotations.get(key) != text for key, text in wanted.items()):
            await self._cluster.write_status(document, {"annotations": wanted})
        self._told[identity] = state, now


def _identity(document: Mapping[str, Any]) -> Identity:
    return document["metadata"]["namespace"], document["metadata"]["name"]


def _state(scaled: TriggerStatus) -> tuple[bool, bool]:
    """What of a Trigger's scaling is told at once."""
    return scaled.lag is None, scaled.replicas > 0


def _declared(document: Document) -> tuple[Any, Any, Any]:
    metadata = document["metadata"]
    return metadata.get("uid"), document.get("spec"), metadata.get("annotations")


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
