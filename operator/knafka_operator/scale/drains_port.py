"""Drains port: how the scaler opens drains, wherever dispatchers run.

In a drain, a dispatcher joins the consumer group, delivers events, and leaves.

Not here: opening them by HTTP (`drains`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Protocol

from knafka.core.contract import Egress, Shard
from knafka.core.drain import DrainProgress, DrainRequest, ShardProgress
from knafka.core.sensor.contract import SensorContract


class Drains(Protocol):
    """Opens drains on dispatchers."""

    def hold(
        self, trigger_id: str, egress: Egress, request: DrainRequest, stop: asyncio.Event
    ) -> AsyncIterator[DrainProgress]:
        """Request a drain from a dispatcher of the Trigger with this `egress`; yield its progress
        until the drain has ended. Several drains may be held for one Trigger, each by another
        dispatcher. Setting `stop` ends the drain, which the last progress reports; if the request
        is cancelled, the drain goes on. May raise any error."""
        ...

    def hold_shard(
        self, shard: Shard, request: DrainRequest, stop: asyncio.Event
    ) -> AsyncIterator[ShardProgress]:
        """Request a drain of all Triggers of a shard, and yield its progress. For `stop` and errors
        see `hold`."""
        ...

    def hold_sensor(
        self, sensor_id: str, sensor: SensorContract, request: DrainRequest, stop: asyncio.Event
    ) -> AsyncIterator[DrainProgress]:
        """Request a drain from a process of the Sensor with the contract `sensor`, and yield its
        progress. For `stop` and errors see `hold`."""
        ...
