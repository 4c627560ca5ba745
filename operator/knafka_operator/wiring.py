"""Wiring: the parts of an operator, what each is given, and what starts and ends.

    OperatorClients   what an operator calls besides the API server
    SharedParts       what the operators of Brokers and of channels share
    DeliveryParts     what each kind that delivers events has: Triggers, Subscriptions, KafkaSources
    OperatorParts     the reconcilers of one family, and the tasks beside them

Not here: which objects a change affects (`operator`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Self

from knafka.ports.log import LogAdmin, LogWriter
from knafka_operator.brokers.external_topics import is_sensor_topic
from knafka_operator.brokers.kind import Brokers
from knafka_operator.channels.entry_cluster import ClusterWithEntries
from knafka_operator.channels.kind import Channels
from knafka_operator.channels.subscriptions import Subscriptions
from knafka_operator.dispatchers.activity import DEFAULT_LIMITS, ActivityLimits
from knafka_operator.dispatchers.dead_letter_monitor import DeadLetterMonitor
from knafka_operator.dispatchers.moves import Moves
from knafka_operator.dispatchers.replays import Replays
from knafka_operator.dispatchers.shard_services import Shards
from knafka_operator.engine.effects import Effects
from knafka_operator.engine.kind import Neighbours, rfc3339_now
from knafka_operator.engine.work_queue import WorkQueue
from knafka_operator.functions import services
from knafka_operator.functions.applying import ROLL_CHECK_INTERVAL, Rolls
from knafka_operator.functions.probe import probe, wake
from knafka_operator.functions.trust_bundles import TrustBundleCopies
from knafka_operator.installation.handler import Handling
from knafka_operator.installation.settings import Settings
from knafka_operator.kafka.clusters import KafkaCluster, KafkaClusters
from knafka_operator.model.cluster import Cluster, Document
from knafka_operator.model.family import BROKERS, CHANNELS, SOURCES, Family
from knafka_operator.receivers.event_types import EVENT_TYPES_INTERVAL, EventTypes, PodEventTypes
from knafka_operator.receivers.receivers import PodPositions, Receivers, ReplicaPositions
from knafka_operator.records.state import States
from knafka_operator.scale.drains import HttpDrains
from knafka_operator.scale.drains_port import Drains
from knafka_operator.scale.repeat import run_repeatedly
from knafka_operator.sensors.kind import Sensors
from knafka_operator.sensors.observe_actions import observe_actions
from knafka_operator.sinks.kind import KafkaSinks
from knafka_operator.sources.kind import KafkaSources
from knafka_operator.sources.observe import SourceObserver
from knafka_operator.triggers.kind import Triggers
from knafka_operator.triggers.observe import TriggerObserver
from knafka_operator.triggers.publishing import Publishing

PUBLISH_INTERVAL: Final = 5.0
"""Seconds between two rounds of publishing the scaler's view of each Trigger."""

MOVE_INTERVAL: Final = 5.0
"""Seconds between two checks for `auto` Triggers that need another dispatcher."""


@dataclass(frozen=True, slots=True)
class OperatorClients:
    """The clients that an operator calls besides the API server."""

    connect: Callable[[Mapping[str, Any]], LogAdmin]
    """Opens the admin client of a Kafka, by a configuration of librdkafka."""
    open_writer: Callable[[Mapping[str, Any]], LogWriter]
    """Opens the writer of contract topics in a Kafka, by a configuration of librdkafka."""
    drains: Drains | None = None
    """Opens drains on dispatchers; None: they are opened over HTTP."""
    probe: Callable[[str], Awaitable[None]] = probe
    """Requests an address; raises `NotReady` if it doesn't answer."""
    wake: Callable[[str], Awaitable[None]] = wake
    """Starts a pod of a dispatcher; raises `NotReady` if it doesn't answer."""
    positions: ReplicaPositions | None = None
    """Returns how far replicas of receivers have read their contract; None: the pods are asked."""


class SharedParts:
    """What the operators of all families share."""

    def __init__(
        self,
        settings: Settings,
        cluster: Cluster,
        clients: OperatorClients,
        used_kafkas: Callable[[], Collection[KafkaCluster]],
    ) -> None:
        """`used_kafkas` returns the Kafka clusters that any object uses now."""
        self.queue = WorkQueue()
        self.rolls = Rolls(settings.max_rolls, self.queue.enqueue)
        # Created before those of other families, since they have the addresses for `http` and the
        # topics for `kafkas`.
        self._broker_states = States(BROKERS, self.rolls, settings.naming)
        self.http = HttpDrains(self._broker_states.urls, settings.shard_size, settings.tokens)
        self.kafkas = KafkaClusters(
            clients.connect,
            clients.drains or self.http,
            used=used_kafkas,
            on_return=self.queue.retry_failed,
            # Topics of Brokers without a receiver's pod get no events, and are checked less often.
            resting=self._broker_states.unwritten_topics,
            open_writer=clients.open_writer,
            allowed=settings.allowed_servers,
            trust=settings.kafka_trust,
        )
        self.trust_bundles = TrustBundleCopies(settings, cluster)

    def states_of(self, family: Family, settings: Settings) -> States:
        """Return what is in memory about a family's objects: always the same `States` for Brokers,
        but a new one at each call for another family. All of them share the functions' URLs, the
        EventPolicies and the limit of concurrent rolls."""
        if family is BROKERS:
            return self._broker_states
        states = States(family, self.rolls, settings.naming)
        states.urls, states.policies = self._broker_states.urls, self._broker_states.policies
        return states

    async def close(self) -> None:
        """Close the clients of Kafka and HTTP."""
        await self.kafkas.close()
        await self.http.close()


class DeliveryParts:
    """The parts of one kind that delivers events, beside its reconciler."""

    def __init__(
        self,
        settings: Settings,
        cluster: Cluster,
        states: States,
        receivers: Receivers,
        shared: SharedParts,
        clients: OperatorClients,
    ) -> None:
        """Create the parts; `clients` are those of the kind's own operator."""
        self._settings = settings
        self._cluster = cluster
        self._states = states
        self._queue = shared.queue
        self.shards = Shards(settings, cluster, states, shared.queue.enqueue)
        self.effects = Effects(
            cluster,
            states,
            self.shards,
            receivers,
            shared.trust_bundles,
            clients.probe,
            clients.wake,
        )
        self.dead_letters = DeadLetterMonitor(states, shared.queue.enqueue)

    def arguments(
        self, brokers: Brokers | Channels, is_ours: Callable[[Document], bool]
    ) -> tuple[Any, ...]:
        """Return the arguments for creating the kind's reconciler, a `Triggers`. `brokers` is the
        reconciler of its Brokers or channels; `is_ours` returns whether Knafka serves one."""
        actions = partial(observe_actions, self._settings, self._cluster)
        observer = TriggerObserver(
            self._settings, self._cluster, is_ours, self.shards, self._states, actions
        )
        return (
            self._settings,
            self._cluster,
            brokers,
            self.shards,
            self._states,
            observer,
            self.dead_letters,
            self.effects,
            rfc3339_now,
            self._queue.enqueue,
        )

    def create_publishing(self, triggers: Triggers) -> Publishing:
        """Create the part that writes the scaler's view of the kind's objects into the statuses."""
        return Publishing(self._cluster, self._states, triggers, self._queue, rfc3339_now)

    def tasks(self, publishing: Publishing, owner: str = "") -> list[Coroutine[Any, Any, None]]:
        """Return the periodic tasks of the kind, not yet started. `owner`, such as `sources' ` with
        a space at its end, is put into the tasks' names in log lines."""
        check = self.dead_letters.check_topics
        return [
            run_repeatedly(f"publishing {owner}lags", publishing.publish_lags, PUBLISH_INTERVAL),
            run_repeatedly(f"counting {owner}dead letters", check, PUBLISH_INTERVAL),
            Replays(self._settings, self._cluster, self._states).run(),
        ]


def bearers_of(settings: Settings, name: str, namespace: str) -> Sequence[str]:
    """Return the tokens that the function `name` of a namespace accepts from the operator, the
    newest key's first."""
    return settings.tokens.bearers(services.service_url(name, namespace, settings))


class OperatorParts(Neighbours):
    """The parts of one family's operator, and the tasks that run beside its reconciliations."""

    def __init__(
        self,
        settings: Settings,
        cluster: Cluster,
        clients: OperatorClients,
        *,
        activity: ActivityLimits = DEFAULT_LIMITS,
        move_interval: float = MOVE_INTERVAL,
        beside: Self | None = None,
    ) -> None:
        """Create the parts and start the periodic tasks. `activity` has the limits by which `auto`
        Triggers count as busy or quiet; which of them move is checked every `move_interval`
        seconds.

        `beside` is the operator of Brokers, if this operator reconciles KafkaChannels and
        Subscriptions: it uses the queue and connections of `beside`. None: this is the operator of
        Brokers.
        """
        self.settings = settings
        self._clients = clients
        self.family = BROKERS if beside is None else CHANNELS
        self.entries: ClusterWithEntries | None = None
        """The cluster that shows channels' entries as Subscriptions; None: the family is
        Brokers."""
        if beside is not None:
            cluster = self.entries = ClusterWithEntries(cluster, Handling(settings.subscriptions))
        self.cluster = cluster
        self._others: list[Self] = []
        """The operators of other families that share this one's parts; only the operator of Brokers
        has any."""
        if beside is not None:
            beside._others.append(self)
        self._shared: SharedParts = (
            SharedParts(settings, cluster, clients, self._used_kafkas)
            if beside is None
            else beside._shared
        )
        shared = self._shared
        self.queue, self._kafkas = shared.queue, shared.kafkas
        self.trust_bundles = shared.trust_bundles
        self.states: States = shared.states_of(self.family, settings)
        self._receivers = Receivers(
            settings,
            cluster,
            self.states,
            clients.positions or self._create_pod_positions(),
            self.queue.enqueue,
        )
        parts = self._create_delivery_parts(self.states)
        self.effects, self.dead_letters = parts.effects, parts.dead_letters
        self._shards = parts.shards
        self.brokers = self._create_brokers()
        self.sensors: Sensors | None = None
        """The reconciler of Sensors, shared by both families, as either may have a Sensor's bus;
        None: Sensors aren't served."""
        if beside is not None:
            self.sensors = beside.sensors
        elif settings.sensors:
            self.sensors = Sensors(
                settings, cluster, self._kafkas, self.states, self.effects, rfc3339_now
            )
        if self.sensors is not None:
            self.sensors.buses[self.family] = self.brokers
        arguments = parts.arguments(self.brokers, self.brokers.is_ours)
        self.triggers = (
            Triggers(*arguments)
            if self.entries is None
            else Subscriptions(*arguments, entries=self.entries)
        )
        self.brokers.neighbours = self.triggers.neighbours = self
        self.publishing = parts.create_publishing(self.triggers)
        self._all_publishing = [self.publishing]
        self.moves = Moves(self.states, self.queue.enqueue, activity)
        ask_pods = PodEventTypes(partial(bearers_of, settings))
        self.event_types = EventTypes(settings, cluster, self.states, self._receivers, ask_pods)
        self.sinks: KafkaSinks | None = None
        """The reconciler of KafkaSinks; None: they aren't served, or the operator `beside` has it.
        """
        self.sources: KafkaSources | None = None
        """The reconciler of KafkaSources; None: they aren't served, or the operator `beside` has
        it."""
        create_types = self.event_types.create_new_types
        tasks = [
            *parts.tasks(self.publishing),
            run_repeatedly("moving Triggers", self.moves.move_triggers, move_interval),
            run_repeatedly("making EventTypes", create_types, EVENT_TYPES_INTERVAL),
        ]
        if beside is None:
            tasks += [*self._shared_tasks(), *self._create_sinks_and_sources()]
        self._tasks = {asyncio.create_task(coroutine) for coroutine in tasks}

    def _create_delivery_parts(self, states: States) -> DeliveryParts:
        """Create the parts of a kind that delivers events; `states` has the kind's records. Reads
        attributes such as `_receivers` and `_shared`, so call it once these are set."""
        return DeliveryParts(
            self.settings, self.cluster, states, self._receivers, self._shared, self._clients
        )

    def _create_brokers(self) -> Brokers | Channels:
        """Create the reconciler of the family's Brokers or channels."""
        arguments = (
            self.settings,
            self.cluster,
            self._kafkas,
            self._shards,
            self.states,
            self._receivers,
            self.effects,
            rfc3339_now,
        )
        if self.entries is None:
            return Brokers(*arguments)
        return Channels(*arguments, self.entries.handling)

    def _create_pod_positions(self) -> PodPositions:
        """Create the part that asks receivers' pods how far they have read their contract. For
        Brokers, it asks the receiver's Service if no pod answers. Channels' receivers don't need
        that: in the operator's namespace no mesh or NetworkPolicy blocks their pods."""
        url_of = partial(services.service_url, settings=self.settings)
        return PodPositions(
            self.cluster,
            url_of if self.entries is None else None,
            bearers=partial(bearers_of, self.settings),
        )

    def _shared_tasks(self) -> list[Coroutine[Any, Any, None]]:
        """Return the tasks that run once for all families, not yet started: copying trust bundles,
        rolling functions, and publishing the statuses of Sensors."""
        check_turns = partial(self._shared.rolls.check_turns, self.cluster)
        tasks: list[Coroutine[Any, Any, None]] = []
        if self.settings.trust_bundles:
            tasks.append(self.trust_bundles.run())
        tasks.append(run_repeatedly("rolling", check_turns, ROLL_CHECK_INTERVAL))
        if self.sensors is not None:
            tasks.append(self.sensors.publish(self.queue))
        return tasks

    def _create_sinks_and_sources(self) -> list[Coroutine[Any, Any, None]]:
        """Create the reconcilers of KafkaSinks and KafkaSources, if these are served. Returns the
        periodic tasks of KafkaSources, not yet started; KafkaSinks have none."""
        settings = self.settings
        if settings.sinks:
            arguments = settings, self.cluster, self._kafkas, self.states, self.effects, rfc3339_now
            self.sinks = KafkaSinks(*arguments, self._has_topic)
        if not settings.sources:
            return []
        states = self._shared.states_of(SOURCES, settings)
        parts = self._create_delivery_parts(states)
        self.sources = KafkaSources(
            # A KafkaSource has no Broker that another implementation could serve.
            *parts.arguments(self.brokers, lambda broker: True),
            source_observer=SourceObserver(
                settings, self.cluster, self._kafkas, states, self._has_topic
            ),
        )
        publishing = parts.create_publishing(self.sources)
        self._all_publishing.append(publishing)
        return parts.tasks(publishing, "sources' ")

    def _has_topic(self, topic: str) -> bool:
        """Whether a Broker, KafkaChannel or Sensor has a topic of this name."""
        all_states = [family_operator.states for family_operator in self.all_operators]
        return any(
            topic in states.topics or is_sensor_topic(topic, states.sensor_uid_by_name)
            for states in all_states
        )

    def _used_kafkas(self) -> set[KafkaCluster]:
        """Return the Kafkas that any object uses now; clients of other Kafkas may be closed."""
        used = set[KafkaCluster]().union(
            *(reconciler.states.kafkas() for reconciler in self.delivering_kinds)
        )
        return used if self.sinks is None else used | self.sinks.used_kafkas()

    @property
    def delivering_kinds(self) -> Sequence[Triggers]:
        """The reconcilers of the kinds that deliver events: Trigger, Subscription, KafkaSource."""
        triggers = [family_operator.triggers for family_operator in self.all_operators]
        return triggers if self.sources is None else [*triggers, self.sources]

    @property
    def all_operators(self) -> Sequence[Self]:
        """This operator and the operators of other families that share its parts."""
        return [self, *self._others]

    async def close(self) -> None:
        """End all tasks and drain requests, also those of the other families' operators, and wait
        for their end; the drains themselves go on. The operator of Brokers closes the shared
        clients."""
        for other in self._others:
            await other.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        for publishing in self._all_publishing:
            await publishing.close()
        if self.family is BROKERS:
            await self._shared.close()
