"""Replays: a Trigger whose dead letters are sent again gets a second dispatcher, for those.

The job that replays makes a topic for it, at any time, so it is looked for. The replayer reads that
topic from its beginning, delivers as the Trigger's own dispatcher does, and sleeps at zero after.

Not here: what is replayed, which the job decides, and how many drains (`scaler`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Coroutine, Mapping
from dataclasses import replace
from typing import Any, Final

from knafka.core import names
from knafka.core.documents import parse
from knafka.core.errors import InvalidDocument, KnafkaError, LogError
from knafka_operator.decide import desired, services
from knafka_operator.decide.status import NotReady
from knafka_operator.model.cluster import Cluster
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import Trigger
from knafka_operator.model.settings import Settings
from knafka_operator.reconcile.functions import apply_service
from knafka_operator.reconcile.state import States, Watched
from knafka_operator.scale.kafka_clusters import KafkaCluster
from knafka_operator.scale.repeat import repeat

log = logging.getLogger(__name__)

LOOK_INTERVAL: Final = 5.0
"""Seconds between two looks for new topics."""


class Replays:
    """The replayers of all Triggers that are delivered."""

    def __init__(self, settings: Settings, cluster: Cluster, states: States) -> None:
        self._settings = settings
        self._cluster = cluster
        self._states = states
        self._followed: dict[Identity, Watched] = {}

    async def run(self) -> None:
        """Look for ever."""
        await repeat("looking for replays", self._look, LOOK_INTERVAL)

    async def _look(self) -> None:
        records = self._states.triggers.items()
        watched = {
            who: each.watched
            for who, each in records
            if each.watched is not None and not each.watched.autoscaling.paused
        }
        wanted = await with_replays(watched, self._followed)
        changed = [
            *(
                self._each(who, self._unfollow(who))
                for who in self._followed.keys() - wanted.keys()
            ),
            *(
                self._each(who, self._follow(who, each))
                for who, each in wanted.items()
                if self._followed.get(who) != each
            ),
        ]
        await asyncio.gather(*changed)

    async def _each(self, who: Identity, change: Coroutine[Any, Any, None]) -> None:
        """One Trigger's replays: what stands in their way waits, and makes nobody else wait."""
        try:
            await change
        except (NotReady, InvalidDocument) as error:
            log.info("replays of %s wait: %s", who, error)  # its status says the same
        except KnafkaError as error:
            log.warning("replays of %s: %s", who, error)
        except Exception:
            log.exception("replays of %s", who)

    async def _follow(self, who: Identity, watched: Watched) -> None:
        record = self._states.triggers.get(who)
        if record is None or record.document is None:
            return
        trigger = parse(Trigger, record.document)
        egress = desired.replay_egress(watched.egress)
        # Nothing waits there but for a replay: none is kept for min-scale.
        autoscaling = replace(watched.autoscaling, min_scale=0)
        manifest = services.dispatcher_service(
            trigger,
            egress,
            autoscaling,
            watched.partitions,
            watched.secret,
            self._settings,
            replays=True,
        )
        await apply_service(self._cluster, manifest, trigger)
        self._states.urls[_id(who)] = services.url(
            services.replayer_name(trigger), who[0], self._settings
        )
        watched.kafka.watched.add(egress.topic)
        await watched.kafka.scaler.watch(_id(who), egress, autoscaling)
        self._followed[who] = watched

    async def _unfollow(self, who: Identity) -> None:
        """Its Service stays until its Trigger goes: at zero it costs nothing."""
        watched = self._followed.pop(who)
        watched.kafka.watched.discard(_topic(watched))
        await watched.kafka.scaler.forget(_id(who))
        self._states.urls.pop(_id(who), None)


async def with_replays(
    watched: Mapping[Identity, Watched], followed: Collection[Identity]
) -> dict[Identity, Watched]:
    """Those with a topic for replays; where a Kafka doesn't answer, those `followed` so far."""
    kafkas = list({each.kafka for each in watched.values()})
    # At once, as one that is away takes its time to say so.
    topics = dict(zip(kafkas, await asyncio.gather(*map(_topics_of, kafkas)), strict=True))
    if not followed and not any(topics.values()):
        return {}
    return {
        who: each
        for who, each in watched.items()
        if (who in followed if (there := topics[each.kafka]) is None else _topic(each) in there)
    }


async def _topics_of(kafka: KafkaCluster) -> Collection[str] | None:
    """Those for replays; None: it doesn't say."""
    try:
        topics = await kafka.topics.topics()
        return {each for each in topics if each.startswith(names.REPLAYS)}
    except LogError as error:
        log.warning("looking for replays: %s", error)
    except Exception:
        log.exception("looking for replays")
    return None


def _id(who: Identity) -> str:
    return f"{who} (replays)"


def _topic(watched: Watched) -> str:
    egress = watched.egress
    return names.replay_topic(egress.namespace, egress.broker, egress.trigger)
