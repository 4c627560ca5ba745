"""One scaled Sensor: its drains, what they report, and the last decision about it.

Not here: deciding (`sensor_scaler`), holding (`holds`), numbering (`slots`).
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from knafka.core.drain import DrainProgress, Ended, Waiting
from knafka.core.sensor.contract import Sensor
from knafka_operator.decide.scaling import Scale, TriggerStatus
from knafka_operator.model.autoscaling import Autoscaling
from knafka_operator.scale.holds import Hold, Holds
from knafka_operator.scale.scaled_trigger import KEPT_WITHOUT_DRAIN, NOT_KNOWN, sum_progress
from knafka_operator.scale.slots import Slots


@dataclass(eq=False, slots=True)
class ScaledSensor:
    """A Sensor that the scaler watches; the `Unit` of its drains."""

    id: str
    sensor: Sensor
    autoscaling: Autoscaling
    holds: Holds[DrainProgress] = field(init=False)
    slots: Slots = field(default_factory=Slots)
    lag: int | None = None
    """Records that its group hasn't read, of the bus and of its trigger topic."""
    due: int | None = None
    """When the next firing is due that waits for no event (ms since the Unix epoch), as its group
    has committed it; None: there is none."""
    holding: dict[int, Sequence[Waiting]] = field(default_factory=dict)
    """What its triggers hold, by partition of the trigger topic, as drains have reported it last,
    also those that are over: nothing changes while nobody drains."""
    scale: Scale = NOT_KNOWN
    floor: int = 0
    """Drains held even when they end idle."""
    open: dict[Hold, DrainProgress] = field(default_factory=dict)
    ended: DrainProgress = field(default_factory=DrainProgress)
    """Counts of drains that have ended."""
    lag_error: str | None = None
    drain_error: str | None = None
    join_by: float = math.inf
    """When its group must be joined again, on the loop's clock."""
    looked: float = -math.inf
    look_at: float = -math.inf
    """When it is looked at next, on the loop's clock."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """It is looked at sooner, or not any more."""

    @property
    def topics(self) -> set[str]:
        """What its group reads."""
        return {self.sensor.topic, self.sensor.trigger_topic}

    @property
    def wanted(self) -> int:
        return self.scale.replicas

    @property
    def cooldown(self) -> float:
        return self.autoscaling.cooldown_period

    def on_open(self, hold: Hold) -> None:
        self.open[hold] = DrainProgress()

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

    def on_close(self, hold: Hold) -> None:
        self.ended = sum_progress([self.ended, self.open.pop(hold)], [])

    def on_end(self, ended: Ended, last: DrainProgress | None, error: str | None) -> None:
        self.drain_error = error
        if ended in (Ended.IDLE, Ended.BUDGET):
            self.joined()

    def joined(self) -> None:
        """Its group was joined; the next time is not everybody's at once."""
        now = asyncio.get_running_loop().time()
        self.join_by = now + KEPT_WITHOUT_DRAIN * random.uniform(0.5, 1)

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
