"""One scaled Trigger: its drains, what they report, and the last decision about it.

Not here: deciding and holding (`scaler`).
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from knafka.core.contract import Egress
from knafka.core.drain import COUNTED, DrainProgress
from knafka_operator.decide.scaling import Scale, TriggerStatus
from knafka_operator.model.autoscaling import Autoscaling

KEPT_WITHOUT_DRAIN: Final = 24 * 3600.0
"""Seconds without a drain, at most, after which one is held though there is no lag: Kafka forgets
the offsets of a group that nobody has joined for offsets.retention.minutes (7 days), and then all
that its topic still has would be delivered again."""

NOT_KNOWN: Final = Scale(0, "the lag is not known yet")


@dataclass(eq=False, slots=True)
class ScaledTrigger:
    """A Trigger that the scaler watches."""

    id: str
    egress: Egress
    autoscaling: Autoscaling
    lag: int | None = None
    scale: Scale = NOT_KNOWN
    floor: int = 0
    """Drains held even when they end idle."""
    holds: dict[asyncio.Task[None], asyncio.Event] = field(default_factory=dict)
    """Each holds one drain after another, with a pause between them when one fails, until its
    event is set."""
    open: dict[asyncio.Task[None], DrainProgress] = field(default_factory=dict)
    ended: DrainProgress = field(default_factory=DrainProgress)
    beyond_end: frozenset[int] = frozenset()
    lag_error: str | None = None
    drain_error: str | None = None
    join_by: float = math.inf
    """When its group must be joined again, on the loop's clock."""

    def joined(self) -> None:
        """Its group was joined; the next time is not everybody's at once."""
        now = asyncio.get_running_loop().time()
        self.join_by = now + KEPT_WITHOUT_DRAIN * random.uniform(0.5, 1)

    def status(self) -> TriggerStatus:
        return TriggerStatus(
            lag=self.lag,
            replicas=len(self.open),
            scale=self.scale,
            counts=sum_progress([self.ended], self.open.values()) if self.open else self.ended,
            error=self.drain_error or self.lag_error,
            beyond_end=self.beyond_end,
            paused=self.autoscaling.paused,
        )


def sum_progress(ended: Iterable[DrainProgress], open_: Collection[DrainProgress]) -> DrainProgress:
    """Counts of all drains; what is momentary (`unsettled`, `partitions`) of the open ones."""
    everything = [*ended, *open_]
    counts: dict[str, Any] = {
        name: sum(getattr(each, name) for each in everything) for name in COUNTED
    }
    return DrainProgress(
        **counts,
        unsettled=sum(each.unsettled for each in open_),
        congestion=next((each.congestion for each in open_ if each.congestion), None),
        partitions=tuple(sorted({number for each in open_ for number in each.partitions})),
    )
