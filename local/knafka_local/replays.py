"""Replays on this machine: each Trigger that has a replay topic gets a dispatcher for it, too.

The topic is made by the job that replays, at any time, so it is looked for. Nothing is committed
before it is read: a replay begins at the beginning.
Refused here: delivering, which is the dispatcher's, and deciding how many of them, the scaler's.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Final

from knafka.core import names
from knafka.core.errors import LogError
from knafka.ports.log import LogAdmin
from knafka_local.manifests import Identity
from knafka_local.plan import PlannedTrigger
from knafka_operator.decide import desired
from knafka_operator.scale.scaler import Scaler

LOOK_INTERVAL: Final = 2.0
"""Seconds between two looks for new topics: a person who replays is waiting."""


async def follow_replays(
    triggers: Callable[[], Mapping[Identity, PlannedTrigger]], admin: LogAdmin, scaler: Scaler
) -> None:
    """Have the replays of the planned Triggers delivered, for ever."""
    watched: dict[str, PlannedTrigger] = {}
    while True:
        with contextlib.suppress(LogError):  # Kafka is away: what was watched still is
            wanted = replaying(triggers(), await admin.topics())
            for gone in watched.keys() - wanted.keys():
                await scaler.forget(gone)
            for name, planned in wanted.items():
                if watched.get(name) != planned:
                    egress = desired.replay_egress(planned.egress)
                    await scaler.watch(name, egress, planned.autoscaling)
            watched = wanted
        await asyncio.sleep(LOOK_INTERVAL)


def replaying(
    triggers: Mapping[Identity, PlannedTrigger], topics: Mapping[str, int]
) -> dict[str, PlannedTrigger]:
    """The Triggers that have a replay topic, by the name under which the scaler knows it."""
    return {
        f"{who.namespace}/{who.name} (replays)": planned
        for who, planned in triggers.items()
        if names.replay_topic(who.namespace, planned.egress.broker, who.name) in topics
    }
