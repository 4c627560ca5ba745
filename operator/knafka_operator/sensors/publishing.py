"""Publishing of Sensors: writes the scaler's view of each Sensor, and the events that its triggers
wait for, into its status.

Not here: the wording of the status (`dispatchers.conditions`, `sensors.waiting`), and writing
conditions: if they change, the Sensor is enqueued to be reconciled.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from knafka.core.errors import KnafkaError
from knafka_operator.decisions import status as statuses
from knafka_operator.dispatchers.conditions import (
    LAG_INTERVAL,
    delivering_condition,
    scaling_annotations,
)
from knafka_operator.engine.work_queue import WorkQueue
from knafka_operator.model.cluster import Cluster
from knafka_operator.model.identity import Identity
from knafka_operator.model.sensors import SENSOR
from knafka_operator.records.state import SensorRecord, States
from knafka_operator.scale.repeat import run_repeatedly
from knafka_operator.sensors import scaling as sensor_scaling
from knafka_operator.sensors import waiting as sensor_waiting

log = logging.getLogger(__name__)

SENSOR_PUBLISH_INTERVAL: Final = 5.0
"""Seconds between two rounds of publishing the scaler's view of each Sensor."""


@dataclass(eq=False)
class SensorPublishing:
    """Writes the scaler's view into the status of scaled Sensors; belongs to one event loop."""

    cluster: Cluster
    states: States
    queue: WorkQueue
    _published: dict[str, tuple[object, float]] = field(default_factory=dict)
    """By Sensor UID: the state that was published last (whether drains are open, and whether the
    lag is unknown), and when, by the event loop's clock."""

    async def run(self) -> None:
        """Publish until cancelled."""
        await run_repeatedly(
            "publishing what Sensors wait for", self.publish_all, SENSOR_PUBLISH_INTERVAL
        )

    async def publish_all(self) -> None:
        """Write the scaler's view into the status of each Sensor whose view is due (`_publish`). An
        error is logged, and the next round tries again."""
        uids = {record.uid for record in self.states.sensors.values()}
        self._published = {uid: state for uid, state in self._published.items() if uid in uids}
        for identity, record in list(self.states.sensors.items()):
            try:
                await self._publish(identity, record)
            except KnafkaError as error:  # the next round tries again
                self._published.pop(record.uid, None)
                log.warning("%s %s: %s", SENSOR, identity, error)

    async def _publish(self, identity: Identity, record: SensorRecord) -> None:
        """Write the scaler's view of a Sensor into its status if drains began or ended, the lag
        became known or unknown, or `LAG_INTERVAL` seconds have passed; also enqueue the Sensor if a
        condition is outdated. Raises `ClusterError`."""
        if record.scaled is None:
            return
        kafka, sensor = record.scaled
        scaling = kafka.scaler.status(record.id)
        if scaling is None:
            return
        stored_status = record.document.get("status") or {}
        conditions = delivering_condition(scaling), sensor_scaling.dead_letters_condition(scaling)
        if any(
            condition is not None
            and condition.reason != statuses.reason_of(stored_status, condition.type)
            for condition in conditions
        ):
            self.queue.enqueue((SENSOR, *identity))
        now, state = asyncio.get_running_loop().time(), (scaling.replicas > 0, scaling.lag is None)
        previous_state, published_at = self._published.get(record.uid, (None, -math.inf))
        if state == previous_state and now - published_at < LAG_INTERVAL:
            return
        self._published[record.uid] = state, now
        status: dict[str, Any] = {"annotations": scaling_annotations(scaling)}
        if (held_events := kafka.scaler.held_events(record.id)) is not None:
            status["waiting"] = sensor_waiting.waiting_status(sensor, held_events)
        if not _is_published(stored_status, status):
            await self.cluster.write_status(record.document, status)


def _is_published(stored_status: Mapping[str, Any], status: Mapping[str, Any]) -> bool:
    """Whether the stored status already has the annotations and waiting events of `status`, the
    status to write."""
    annotations = stored_status.get("annotations") or {}
    return all(annotations.get(key) == text for key, text in status["annotations"].items()) and (
        "waiting" not in status or stored_status.get("waiting") == status["waiting"]
    )
