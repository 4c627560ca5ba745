"""One consumer group that the scaler watches: its drains, what they report, and the last decision.

A Trigger has one, and so has a Sensor. A shard has many, each of which is a Trigger's.

Not here: what a line of progress says besides (`scaled_trigger`, `scaled_sensor`), deciding
(`scaler`, `sensor_scaler`), holding (`holds`).
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Final

from knafka.core.drain import COUNTED, DrainProgress, Ended
from knafka_operator.decide.scaling import Cause, Scale
from knafka_operator.model.autoscaling import Autoscaling
from knafka_operator.scale.holds import Hold
from knafka_operator.scale.progress_bounds import MAX_REASONS, few_reasons

KEPT_WITHOUT_DRAIN: Final = 24 * 3600.0
"""Seconds without a drain, at most, after which one is held though there is no lag: Kafka forgets
the offsets of a group that nobody has joined for offsets.retention.minutes (7 days), and then all
that its topic still has would be delivered again."""

NOT_KNOWN: Final = Scale(0, "the lag is not known yet", Cause.LAG_UNKNOWN)


@dataclass(eq=False, slots=True)
class ScaledGroup:
    """The `Unit` of its own drains, but for `on_line`."""

    id: str
    autoscaling: Autoscaling
    _: KW_ONLY
    lag: int | None = None
    scale: Scale = NOT_KNOWN
    floor: int = 0
    """Drains held even when they end idle."""
    open: dict[Hold, DrainProgress] = field(default_factory=dict)
    ended: DrainProgress = field(default_factory=DrainProgress)
    """Counts of drains that have ended; for a Trigger, all that shards counted too."""
    lag_error: str | None = None
    drain_error: str | None = None
    join_by: float = math.inf
    """When it must be joined again, on the loop's clock."""

    @property
    def wanted(self) -> int:
        return self.scale.replicas

    @property
    def cooldown(self) -> float:
        return self.autoscaling.cooldown_period

    def on_open(self, hold: Hold) -> None:
        self.open[hold] = DrainProgress()

    def on_close(self, hold: Hold) -> None:
        self.ended = sum_progress([self.ended, self.open.pop(hold)], [])

    def on_end(self, ended: Ended, last: DrainProgress | None, error: str | None) -> None:
        self.drain_error = error
        if ended in (Ended.IDLE, Ended.BUDGET):
            self.joined()

    def joined(self) -> None:
        """It was joined; the next time is not everybody's at once."""
        now = asyncio.get_running_loop().time()
        self.join_by = now + KEPT_WITHOUT_DRAIN * random.uniform(0.5, 1)


def sum_progress(ended: Iterable[DrainProgress], open_: Collection[DrainProgress]) -> DrainProgress:
    """Counts of all drains; what is momentary (`unsettled`, `partitions`) of the open ones."""
    everything = [*ended, *open_]
    counts: dict[str, Any] = {
        name: sum(getattr(each, name) for each in everything) for name in COUNTED
    }
    letters: Counter[str] = Counter()
    for each in everything:
        letters.update(each.dead_letters)
    return DrainProgress(
        **counts,
        dead_letters=few_reasons(letters) if len(letters) > MAX_REASONS else dict(letters),
        late=sum(each.late for each in everything),
        unsettled=sum(each.unsettled for each in open_),
        congestion=next((each.congestion for each in open_ if each.congestion), None),
        loop=next((each.loop for each in open_ if each.loop), None),
        partitions=tuple(sorted({number for each in open_ for number in each.partitions})),
    )
