"""One scaled Sensor: its drains, what they report, and the last decision about it.

Not here: deciding (`sensor_scaler`), holding (`holds`), numbering (`slots`).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from knafka.core.drain import DrainProgress, Waiting
from knafka.core.sensor.contract import Sensor
from knafka_operator.decide.scaling import TriggerStatus
from knafka_operator.scale.holds import Hold, Holds
from knafka_operator.scale.scaled_group import ScaledGroup, sum_progress
from knafka_operator.scale.slots import Slots


@dataclass(eq=False, slots=True)
class ScaledSensor(ScaledGroup):
    """A Sensor that the scaler watches; the `Unit` of its drains. Its lag is that of its group in
    the bus and in its trigger topic."""

    sensor: Sensor
    holds: Holds[DrainProgress] = field(init=False)
    slots: Slots = field(default_factory=Slots)
    due: int | None = None
    """When the next firing is due that waits for no event (ms since the Unix epoch), as its group
    has committed it; None: there is none."""
    holding: dict[int, Sequence[Waiting]] = field(default_factory=dict)
    """What its triggers hold, by partition of the trigger topic, as drains have reported it last,
    also those that are over: nothing changes while nobody drains."""
    looked: float = -math.inf
    look_at: float = -math.inf
    """When it is looked at next, on the loop's clock."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """It is looked at sooner, or not any more."""

    @property
    def topics(self) -> set[str]:
        """What its group reads."""
        return {self.sensor.topic, self.sensor.trigger_topic}

    def on_line(self, hold: Hold, line: DrainProgress) -> None:
        self.open[hold] = line
        if (now := line.holding) is not None:
            for number in now.partitions:
                of = [each for each in now.triggers if each.partition == number]
                self.holding[number] = of
        if line.slot is not None:
            self.slots.found(hold, line.slot)
        if line.partitions:
            self.drain_error = None

    def status(self) -> TriggerStatus:
        open_ = list(self.open.values())
        return TriggerStatus(
            lag=self.lag,
            replicas=len(open_),
            scale=self.scale,
            counts=sum_progress([self.ended], open_) if open_ else self.ended,
            error=self.drain_error or self.lag_error,
            paused=self.autoscaling.paused,
        )
