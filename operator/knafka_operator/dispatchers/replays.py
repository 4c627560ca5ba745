"""Replays: runs a second dispatcher, the replayer, for each Trigger whose dead letters are sent
again.

A replay Job creates a topic at any time, so the operator looks for such topics regularly. The
replayer reads that topic from its beginning, delivers like the Trigger's own dispatcher, and then
scales to zero.

Not here: which events are replayed, which the Job decides, and the number of drains (`scaler`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace
from functools import partial
from typing import Any, Final

from knafka.core import names
from knafka.core.errors import InvalidDocument, KnafkaError, LogError
from knafka_operator.decisions.status import NotReady
from knafka_operator.functions import dispatcher_services, services
from knafka_operator.functions.applying import apply_service, delete_service
from knafka_operator.functions.service_accounts import dispatcher_account
from knafka_operator.installation.settings import Settings
from knafka_operator.kafka import egresses
from knafka_operator.kafka.clusters import KafkaCluster
from knafka_operator.model.cluster import Cluster
from knafka_operator.model.identity import Identity
from knafka_operator.records.state import States, Watched
from knafka_operator.scale.repeat import run_repeatedly

log = logging.getLogger(__name__)

REPLAY_CHECK_INTERVAL: Final = 5.0
"""Seconds between two checks for new replay topics."""


class Replays:
    """Runs the replayers of all delivered Triggers."""

    def __init__(self, settings: Settings, cluster: Cluster, states: States) -> None:
        self._settings = settings
        self._cluster = cluster
        self._states = states
        self._applied_deliveries: dict[Identity, Watched] = {}
        """By Trigger whose replayer runs: the Trigger's delivery by which the replayer was last
        applied."""
        self._busy: set[object] = set()
        """KafkaClusters being asked, and Triggers whose replays are being started or stopped."""

    async def run(self) -> None:
        """Check for replay topics every `REPLAY_CHECK_INTERVAL` seconds, until cancelled."""
        # `_tasks` runs the checks, and starts and stops replays; cancelling `run` cancels them.
        async with asyncio.TaskGroup() as self._tasks:
            await run_repeatedly("looking for replays", self._check_kafkas, REPLAY_CHECK_INTERVAL)

    async def _check_kafkas(self) -> None:
        """Start a check of each Kafka in a task of its own, so that an unreachable Kafka delays no
        other."""
        deliveries = {
            identity: delivery
            for identity in self._states.triggers
            if (delivery := self._current_delivery(identity))
        }
        triggers_by_kafka: dict[KafkaCluster, list[Identity]] = {}
        # Also Triggers with a replayer that are no longer delivered, so that the replayer stops.
        for identity, delivery in (self._applied_deliveries | deliveries).items():
            triggers_by_kafka.setdefault(delivery.kafka, []).append(identity)
        for kafka, triggers in triggers_by_kafka.items():
            self._start_unless_busy(kafka, self._check_kafka, kafka, triggers)

    async def _check_kafka(self, kafka: KafkaCluster, triggers: Collection[Identity]) -> None:
        """For each of these Triggers whose replay topic exists in this Kafka, start or update the
        replayer; stop the replayers whose topic or Trigger is gone."""
        topics = await _list_replay_topics(kafka)
        for identity in triggers:
            applied_delivery = self._applied_deliveries.get(identity)
            if topics is None and applied_delivery is None:
                continue  # whether there is a replay topic isn't known
            desired_delivery = self._current_delivery(identity)
            if desired_delivery is not None and desired_delivery.kafka is not kafka:
                continue  # the Trigger moved to another Kafka meanwhile
            if desired_delivery is not None and topics is not None:
                if _replay_topic(desired_delivery) not in topics:
                    desired_delivery = None
            # If Kafka doesn't answer, a running replayer stays, but follows changes of the Trigger.
            if desired_delivery != applied_delivery:
                self._start_unless_busy(identity, self._update_replayer, identity, desired_delivery)

    def _current_delivery(self, identity: Identity) -> Watched | None:
        """Return a Trigger's delivery; None: it isn't delivered, or is paused."""
        record = self._states.triggers.get(identity)
        watched = record.watched if record is not None else None
        return None if watched is None or watched.autoscaling.paused else watched

    def _start_unless_busy(
        self, subject: object, work: Callable[..., Awaitable[None]], *arguments: Any
    ) -> None:
        """Call `work` with `arguments` in a task; do nothing if earlier work on `subject` is still
        under way."""
        if subject not in self._busy:
            self._busy.add(subject)
            self._tasks.create_task(self._run_logged(subject, partial(work, *arguments)))

    async def _run_logged(self, subject: object, work: Callable[[], Awaitable[None]]) -> None:
        """Run `work`, log any error, and mark `subject` as no longer busy."""
        try:
            await work()
        except (NotReady, InvalidDocument) as error:
            # Not a warning: the Trigger's status reports the same.
            log.info("replays of %s wait: %s", subject, error)
        except KnafkaError as error:
            log.warning("replays of %s: %s", subject, error)
        except Exception:
            log.exception("replays of %s", subject)
        finally:
            self._busy.discard(subject)

    async def _update_replayer(self, identity: Identity, desired_delivery: Watched | None) -> None:
        """Run a Trigger's replayer as `desired_delivery`, the Trigger's own delivery, requires;
        None: stop it. A replayer that moves to another Kafka is stopped first. Raises the errors of
        `_apply_replayer`."""
        applied_delivery = self._applied_deliveries.get(identity)
        if applied_delivery is not None and (
            desired_delivery is None or desired_delivery.kafka is not applied_delivery.kafka
        ):
            await self._stop_replayer(identity)
        if desired_delivery is not None:
            await self._apply_replayer(identity, desired_delivery)

    async def _apply_replayer(self, identity: Identity, watched: Watched) -> None:
        """Apply the Service of a Trigger's replayer, which delivers like `watched`, and scale it by
        its replay topic; does nothing if the Trigger is gone, and deletes the Service if it is by
        then. Raises `NotReady`, `InvalidDocument` and `ClusterError`."""
        record = self._states.triggers.get(identity)
        if record is None or record.document is None:
            return
        family = self._states.family
        trigger = family.read_trigger(record.document)
        egress = egresses.replay_egress(watched.egress)
        # The topic has events only during a replay, so min-scale is 0.
        autoscaling = replace(watched.autoscaling, min_scale=0)
        manifest = dispatcher_services.dispatcher_service(
            trigger,
            egress,
            autoscaling,
            watched.partitions,
            watched.secret,
            self._settings,
            replays=True,
            account=dispatcher_account(egress),
        )
        namespace, name = Identity.of(manifest)
        try:
            await apply_service(self._cluster, manifest, trigger)
        finally:
            current = self._states.triggers.get(identity)
            is_gone = current is None or current.uid != trigger.metadata.uid
            if is_gone:
                # The Trigger's deletion may have looked for the Service before it was created.
                await delete_service(self._cluster, name, trigger, namespace)
        if is_gone:
            return
        self._states.urls[self._scaler_id(identity)] = services.service_url(
            name, namespace, self._settings
        )
        watched.kafka.watched.add(egress.topic)
        await watched.kafka.scaler.watch(self._scaler_id(identity), egress, autoscaling)
        self._applied_deliveries[identity] = watched

    async def _stop_replayer(self, identity: Identity) -> None:
        """Stop scaling a Trigger's replayer. Its Service, scaled to zero, stays until the Trigger
        is deleted."""
        watched = self._applied_deliveries.pop(identity)
        watched.kafka.watched.discard(_replay_topic(watched))
        await watched.kafka.scaler.forget(self._scaler_id(identity))
        self._states.urls.pop(self._scaler_id(identity), None)

    def _scaler_id(self, identity: Identity) -> str:
        """Return the id by which the scaler knows a Trigger's replayer."""
        return f"{self._states.family.trigger_id(identity)} (replays)"


async def _list_replay_topics(kafka: KafkaCluster) -> Collection[str] | None:
    """Return the names of a Kafka's replay topics; None: they aren't known, after an error that is
    logged."""
    try:
        topics = await kafka.topics.topics()
        return {topic for topic in topics if topic.startswith(names.REPLAYS)}
    except LogError as error:
        log.warning("looking for replays: %s", error)
    except Exception:
        log.exception("looking for replays")
    return None


def _replay_topic(watched: Watched) -> str:
    """Return the topic that the replayer of a delivered Trigger reads."""
    return egresses.replay_topic(watched.egress)
