"""Operator: the parts put together, and who is woken by what.

    Broker changed     -> itself, its Triggers
    Trigger changed    -> itself
    Service changed    -> who owns it, or whose subscriber it is
    receiver started   -> its Broker's Triggers drain at once: an event is on its way

Not here: hearing of changes (`controller`), and what reconciling is (`brokers`, `triggers`).
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from knafka.core.errors import KnafkaError
from knafka.ports.log import LogAdmin, LogWriter
from knafka_operator.decide import services
from knafka_operator.decide import status as statuses
from knafka_operator.decide.activity import USUAL, Limits
from knafka_operator.decide.delivery_status import delivering, scaling
from knafka_operator.decide.scaling import TriggerStatus
from knafka_operator.model.cluster import Cluster, Document
from knafka_operator.model.family import BROKERS, CHANNELS, is_of_kafka_channel
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import SERVING
from knafka_operator.model.settings import Settings
from knafka_operator.reconcile.brokers import Brokers
from knafka_operator.reconcile.channels import Channels
from knafka_operator.reconcile.moves import Moves
from knafka_operator.reconcile.observing import TriggerObserver
from knafka_operator.reconcile.probe import probe, wake
from knafka_operator.reconcile.receivers import PodPositions, Positions, Receivers
from knafka_operator.reconcile.replays import Replays
from knafka_operator.reconcile.resuming import Resuming
from knafka_operator.reconcile.shards import Shards
from knafka_operator.reconcile.state import States, broker_of, declared_of, has_contract
from knafka_operator.reconcile.triggers import Triggers
from knafka_operator.reconcile.work_queue import WorkQueue
from knafka_operator.scale.drains import HttpDrains
from knafka_operator.scale.kafka_clusters import KafkaCluster, KafkaClusters
from knafka_operator.scale.repeat import repeat
from knafka_operator.scale.scaler import Drains

log = logging.getLogger(__name__)

DISPATCHERS: Final = {services.ROLE: services.DISPATCHER}
"""Labels of the Services that deliver, those for replays apart."""

SHARDS: Final = {services.ROLE: services.SHARD_ROLE}
"""The same of Services that Triggers share."""

PUBLISH_INTERVAL: Final = 5.0
"""Seconds between two looks at what the scaler has to say of each Trigger."""

LAG_INTERVAL: Final = 60.0
"""Seconds between two lags in a Trigger's status, unless it begins or ends to drain: each write
goes to every replica of etcd and to every watch. Metrics have the lag of now."""

PUBLISH_PATIENCE: Final = 0.25
"""Seconds for which a status that is being written is waited for before the next one."""

PUBLISHED_AT_ONCE: Final = 20
"""Triggers whose status is looked at before the event loop has its turn: a millisecond's worth."""

MOVE_INTERVAL: Final = 5.0
"""Seconds between two looks at which `auto` Triggers need another dispatcher."""

PREWARM_LIMIT: Final = 5
"""Triggers of one Broker that are woken before there is an event: with more, most would find
nothing, and lag wakes them anyway."""


class Operator:
    """One operator; made inside the event loop that it lives in."""

    def __init__(
        self,
        settings: Settings,
        cluster: Cluster,
        connect: Callable[[Mapping[str, Any]], LogAdmin],
        *,
        drains: Drains | None = None,
        probe: Callable[[str], Awaitable[None]] = probe,
        wake: Callable[[str], Awaitable[None]] = wake,
        open_writer: Callable[[Mapping[str, Any]], LogWriter] | None = None,
        activity: Limits = USUAL,
        move_interval: float = MOVE_INTERVAL,
        beside: Operator | None = None,
        positions: Positions | None = None,
    ) -> None:
        """`connect` gives the admin client of a Kafka by librdkafka's configuration, and
        `open_writer` a writer; without that, every Trigger has a dispatcher of its own.

        `drains` are those of HTTP where none are given. `probe` raises `NotReady` for an address
        that doesn't answer, and so does `wake`, which has a pod of a dispatcher run. `activity`
        says which `auto` Triggers are busy.

        One that is given another `beside` it has the KafkaChannels and Subscriptions, and shares
        queue and connections with it. `positions` says how far replicas of receivers have read
        their contract; without it pods are asked.
        """
        self.settings = settings
        self.family = BROKERS if beside is None else CHANNELS
        self.states = States(self.family)
        self._cluster = cluster
        self._beside: list[Operator] = []
        if beside is None:
            self._http = HttpDrains(self.states.urls)
            self.queue = WorkQueue()
            self._kafkas = KafkaClusters(
                connect,
                drains or self._http,
                self._used_kafkas,
                self.queue.retry_failed,
                self.states.resting,
                open_writer,
            )
        else:
            beside._beside.append(self)
            self._http, self.queue, self._kafkas = beside._http, beside.queue, beside._kafkas
            self.states.urls = beside.states.urls
        enqueue = self.queue.enqueue
        shards = self._shards = Shards(settings, cluster, self.states, enqueue)
        self.brokers: Brokers | Channels
        if beside is None:
            self.brokers = Brokers(
                settings, cluster, self._kafkas, shards, self.states, probe, _now
            )
        else:
            receivers = Receivers(cluster, positions or PodPositions(cluster))
            self.brokers = Channels(
                settings, cluster, self._kafkas, shards, self.states, receivers, probe, _now
            )
        observer = TriggerObserver(settings, cluster, self.brokers, shards, self.states)
        self.triggers = Triggers(
            settings, cluster, self.brokers, shards, self.states, observer, wake, _now, enqueue
        )
        replays = Replays(settings, cluster, self.states)
        self._publishing: set[str] = set()
        """Namespaces where a status is being written."""
        publishing = repeat("publishing lags", self._publish_statuses, PUBLISH_INTERVAL)
        self.moves = Moves(self.states, self.queue.enqueue, activity)
        moving = repeat("moving Triggers", self.moves.look, move_interval)
        self._tasks = {asyncio.create_task(each) for each in (publishing, moving, replays.run())}

    async def resume(self) -> int:
        """Go on with the drains of every Trigger that a Revision serves, as its Service says.

        Before anything is reconciled: events that wait aren't to wait for that. Gives how many
        there are; raises `ClusterError`.
        """
        brokers, triggers, found = await asyncio.gather(
            self._cluster.list(self.family.broker_version, self.family.broker),
            self._cluster.list(self.family.trigger_version, self.family.trigger),
            self._cluster.list(SERVING, "Service", DISPATCHERS),
        )
        for each in brokers:
            self.remember_class(each, gone=False)
        ours = {Identity.of(each): each for each in brokers if self._is_delivered(each)}
        wanted: dict[Identity, list[Document]] = {each: [] for each in ours}
        for each in triggers:
            if (broker := broker_of(each)) in wanted:
                wanted[broker].append(each)
        sharing = {who: each for who, each in ours.items() if has_contract(each)}
        resuming = Resuming(self._cluster, self._kafkas, self._shards)
        apart = [each for who, some in wanted.items() if who not in sharing for each in some]
        for trigger, watched in await resuming.found(apart, found):
            await self.triggers.resume(trigger, watched)
        if sharing:
            shards = await self._cluster.list(SERVING, "Service", SHARDS)

            async def resume(broker: Identity) -> None:
                some = await resuming.sharing(sharing[broker], wanted[broker], found, shards)
                for trigger, watched in some:
                    await self.triggers.resume(trigger, watched)

            await asyncio.gather(*map(resume, sharing))
        return len(self.triggers.watched)

    async def prepare(self) -> None:
        """Be ready for `resume`: find everything, and connect to every Kafka."""
        found = await asyncio.gather(
            self._cluster.list(SERVING, "Service", DISPATCHERS),
            self._cluster.list(SERVING, "Service", SHARDS),
        )
        resuming = Resuming(self._cluster, self._kafkas, self._shards)
        await resuming.connect([*found[0], *found[1]])

    def remember_class(self, broker: Document, *, gone: bool) -> None:
        """Keep in mind whose Broker it is; thread-safe."""
        if gone or self.brokers.is_ours(broker):
            self.states.foreign_brokers.discard(Identity.of(broker))
        else:
            self.states.foreign_brokers.add(Identity.of(broker))

    def _is_delivered(self, broker: Document) -> bool:
        return self.brokers.is_ours(broker) and "deletionTimestamp" not in broker["metadata"]

    @property
    def all(self) -> Sequence[Operator]:
        """This one and those beside it."""
        return [self, *self._beside]

    async def close(self) -> None:
        """Hang up on every drain, and wait for that; dispatchers go on without us."""
        for each in self._beside:
            await each.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        if self.family is BROKERS:
            await self._kafkas.close()
            await self._http.close()

    def may_be_ours(self, trigger: Mapping[str, Any]) -> bool:
        """Whether a Trigger's Broker isn't known to be another implementation's; of a Subscription,
        whether it names a KafkaChannel."""
        if self.family is CHANNELS:
            return is_of_kafka_channel(trigger)
        return broker_of(trigger) not in self.states.foreign_brokers

    async def reconcile_broker(self, document: Document) -> Mapping[str, Any]:
        """Reconcile one Broker, and its Triggers if what they go by has changed."""
        identity, record = Identity.of(document), self.states.broker(document)
        before = record.known()
        try:
            return await self.brokers.reconcile(document)
        finally:
            record.reconciled = True
            if before != record.known():
                self._wake_triggers(identity)

    async def publish_failure(self, document: Document, error: Exception) -> None:
        """Put into its status that reconciling it ended in `error`, a bug; never raises."""
        identity = Identity.of(document)
        try:
            stored = await self._cluster.get(document["apiVersion"], document["kind"], *identity)
            before = ((stored or {}).get("status") or {}).get("conditions") or ()
            conditions = statuses.failed(before, error, _now())
            if stored is not None and conditions != before:
                await self._cluster.write_status(stored, {"conditions": conditions})
        except Exception:
            log.exception("telling of a failure of %s %s", document["kind"], "/".join(identity))

    async def delete_broker(self, document: Document) -> None:
        identity = Identity.of(document)
        # First of all: a Trigger that is just being reconciled would begin to drain again.
        self.states.broker(document).state = None
        await self.brokers.find_kafka(document)
        triggers = self.states.triggers_of(identity)
        # Together, as what shards let go of is written together.
        stopping = (self.triggers.stop_delivery(each) for each in triggers)
        for failure in await asyncio.gather(*stopping, return_exceptions=True):
            if failure is not None:
                raise failure
        records = [self.states.triggers[each] for each in triggers if each in self.states.triggers]
        groups = [group for record in records for group in record.groups]
        await self.brokers.delete(document, groups)

    def forget(self, document: Document) -> None:
        """It is gone, whatever is left of it in Kafka."""
        is_broker = document["kind"] == self.family.broker
        (self.brokers if is_broker else self.triggers).forget(document)

    def on_change(self, document: Document, *, gone: bool) -> None:
        """A Broker or Trigger as it is now, or was last; it is reconciled unless only its status
        has changed."""
        is_broker = document["kind"] == self.family.broker
        (self.on_broker if is_broker else self.on_trigger)(document, gone=gone)

    def on_broker(self, document: Document, *, gone: bool) -> None:
        identity, ours = Identity.of(document), self.brokers.is_ours(document)
        self.remember_class(document, gone=gone)
        if gone:
            self.brokers.forget(document)
        elif ours:
            self.brokers.remember_topic(document)
        # Triggers that came before one that isn't ours were taken for ours.
        if self._is_news(document, gone=gone) and (gone or not ours):
            self._wake_triggers(identity)

    def on_trigger(self, document: Document, *, gone: bool) -> None:
        identity = Identity.of(document)
        if gone:
            self.states.trigger_is_gone(identity)
        else:
            self.states.keep_trigger(document)
        record = self.states.triggers.get(identity)
        if self._is_news(document, gone=gone) and record is not None and record.watched is not None:
            # Its group may have been set back, and it annotated to have that noticed at once.
            record.watched.kafka.topics.forget_group(record.watched.egress.group)

    def _is_news(self, document: Document, *, gone: bool) -> bool:
        """Whether more than its status has changed; then it is reconciled."""
        key, now = (
            (document["kind"], *Identity.of(document)),
            None if gone else declared_of(document),
        )
        before = self.states.declared.pop(key, None)
        if now is not None:
            self.states.declared[key] = now
        if now is not None and now == before:
            return False
        self.queue.enqueue(key)
        return True

    def on_service(self, document: Document) -> None:
        """A Knative Service: one of ours, or somebody's subscriber."""
        namespace, name = Identity.of(document)
        for owner in document["metadata"].get("ownerReferences") or ():
            self.queue.enqueue((owner["kind"], namespace, owner["name"]))
        for trigger in self.states.subscribers.get(Identity(namespace, name), ()):
            self.queue.enqueue((self.family.trigger, *trigger))

    def on_receiver(self, pod: Document, *, new: bool = True, gone: bool = False) -> None:
        """A pod of a receiver; where a `new` one is made and there was none, an event made it."""
        state = self.states.broker_of_receiver(pod, gone=gone)
        if state is not None and new and not gone:
            state.kafka.scaler.prewarm(state.topic.name, PREWARM_LIMIT)

    def _used_kafkas(self) -> set[KafkaCluster]:
        """Those that a Broker or a Trigger uses, whether its config is still there or not."""
        brokers, triggers = self.states.brokers.values(), self.states.triggers.values()
        states = (each.state for each in brokers)
        watched = (each.watched for each in triggers)
        used = {each.kafka for each in (*states, *brokers, *watched, *triggers) if each is not None}
        beside = set[KafkaCluster]().union(*(each._used_kafkas() for each in self._beside))
        return {each for each in used if each is not None} | beside

    def _wake_triggers(self, broker: Identity) -> None:
        for identity in self.states.triggers_of(broker):
            self.queue.enqueue((self.family.trigger, *identity))

    async def _publish_statuses(self) -> None:
        """Keep in each Trigger's status what the scaler knows."""
        for number, identity in enumerate(list(self.triggers.watched), 1):
            if number % PUBLISHED_AT_ONCE == 0:
                await asyncio.sleep(0)
            # A write that takes its time is its namespace's alone to wait for.
            if identity.namespace not in self._publishing and (news := self._news(identity)):
                writing = asyncio.create_task(self._publish(identity, news))
                self._tasks.add(writing)
                writing.add_done_callback(self._tasks.discard)
                await asyncio.wait({writing}, timeout=PUBLISH_PATIENCE)

    def _news(self, identity: Identity) -> Mapping[str, str | None] | None:
        """The annotations that its status lacks; mostly none. Its condition is reconciled."""
        record, scaled = self.states.triggers.get(identity), self.triggers.status(identity)
        document = record.document if record is not None else None
        if record is None or document is None or scaled is None:
            return None
        now, state = asyncio.get_running_loop().time(), _state(scaled)
        before, since = record.published
        is_recent = state == before and now - since < LAG_INTERVAL
        if is_recent and record.checked is document:
            return None
        status = document.get("status") or {}
        if delivering(scaled).reason != statuses.reason_of(status, statuses.DELIVERING):
            self.queue.enqueue((self.family.trigger, *identity))
            return None
        record.checked = document
        if is_recent:
            return None
        record.published = state, now
        there, wanted = status.get("annotations") or {}, scaling(scaled)
        return wanted if any(there.get(key) != text for key, text in wanted.items()) else None

    async def _publish(self, identity: Identity, annotations: Mapping[str, str | None]) -> None:
        record = self.states.triggers[identity]
        self._publishing.add(identity.namespace)
        try:
            assert record.document is not None
            await self._cluster.write_status(record.document, {"annotations": annotations})
        except Exception as error:  # whatever it is, it is tried again
            record.published = None, -math.inf
            log.warning(
                "%s %s: %s",
                self.family.trigger,
                identity,
                error,
                exc_info=not isinstance(error, KnafkaError),
            )
        finally:
            self._publishing.discard(identity.namespace)


def _state(scaled: TriggerStatus) -> tuple[bool, ...]:
    """What of a Trigger's scaling is published as soon as it changes."""
    congested, beyond_end = scaled.counts.congestion is not None, bool(scaled.beyond_end)
    return scaled.lag is None, scaled.replicas > 0, scaled.error is None, congested, beyond_end


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
