"""Scaled groups: a Trigger's or a Sensor's drains, what they report, and the last decision.

A Trigger has one consumer group, and so has a Sensor. A shard has many, each of which is a
Trigger's.

Not here: deciding (`looks`), holding (`holds`), what a shard reports of a Trigger (`scaled_shard`).
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Final, Protocol

from knafka.core.contract import Egress, Shard
from knafka.core.drain import COUNTED, Counts, DrainProgress, Ended, Waiting
from knafka.core.sensor.contract import Sensor
from knafka_operator.decide.scaling import (
    Cause,
    Scale,
    ScalingCounts,
    TriggerStatus,
    decide,
    expected,
)
from knafka_operator.model.autoscaling import Autoscaling
from knafka_operator.scale.filter_rest import FilterRest
from knafka_operator.scale.holds import Hold, Holds, Slots
from knafka_operator.scale.progress_bounds import MAX_REASONS, few_reasons

KEPT_WITHOUT_DRAIN: Final = 24 * 3600.0
"""Seconds without a drain, at most, after which one is held though there is no lag: Kafka forgets
the offsets of a group that nobody has joined for offsets.retention.minutes (7 days), and then all
that its topic still has would be delivered again."""

NOT_KNOWN: Final = Scale(0, "the lag is not known yet", Cause.LAG_UNKNOWN)

LAG_INTERVAL: Final = 60.0
"""Seconds, about, between two questions for the lag of one that its shard drains: what the shard
tells is enough to keep it, and what little lag there is need not be known to the second."""

COMMITTED_WITHIN: Final = 3.0
"""Seconds after which what a dispatcher reports as settled is committed, too."""


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


class SharedDrain(Protocol):
    """The request that many Triggers share, as one of them sees it (`scaled_shard.ScaledShard`)."""

    holds: Holds[Any]
    shard: Shard
    error: str | None

    def open(self, trigger: ScaledTrigger) -> Sequence[DrainProgress]: ...


@dataclass(eq=False, slots=True)
class ScaledTrigger(ScaledGroup):
    """A Trigger that the scaler watches; the `Unit` of its own drains."""

    egress: Egress
    own: Holds[DrainProgress] = field(init=False)
    """Its own drains."""
    declared: Shard | None = None
    """The shard that is to have it; None: it has drains of its own."""
    shard: SharedDrain | None = None
    """The shard that has it: none while its own drains end, or it is paused."""
    settled: Mapping[int, int] = field(default_factory=dict)
    """By partition, as the last question for its lag has found (`Lag.settled`)."""
    decisions: Counter[Cause] = field(default_factory=Counter)
    beyond_end: frozenset[int] = frozenset()
    ask_by: float = -math.inf
    """While its shard has a request: when its lag is asked for, on the loop's clock."""
    asked_at: float = -math.inf
    """When the last question for its lag began, on the loop's clock."""
    settled_since: int = 0
    """Events that its shard has reported as settled since that question."""
    rests_since: float = math.inf
    """Since when its shard has settled nothing more of it, and has nothing unsettled."""

    rest: FilterRest = field(default_factory=FilterRest)
    """Of its own drains."""

    @property
    def own_egress(self) -> Egress | None:
        """By what dispatchers of its own drain that may be held by nobody; None: it has none. Those
        of min-scale are waited for as pods."""
        is_own = self.declared is None and not self.autoscaling.min_scale
        return self.egress if is_own else None

    @property
    def holds(self) -> Holds[Any]:
        """The requests by which it is delivered now."""
        return self.own if self.shard is None else self.shard.holds

    @property
    def is_resting(self) -> bool:
        """Whether the events that wait open no drain, as its filter passes none of them lately."""
        return self.declared is None and self.rest.is_resting(asyncio.get_running_loop().time())

    def on_open(self, hold: Hold) -> None:
        if not self.open:
            self.rest.began(self.lag or 0, asyncio.get_running_loop().time())
        ScaledGroup.on_open(self, hold)

    def on_close(self, hold: Hold) -> None:
        self.rest.over(asyncio.get_running_loop().time())
        ScaledGroup.on_close(self, hold)

    def on_line(self, hold: Hold, line: DrainProgress) -> None:
        self.rest.told(self.open.get(hold), line, asyncio.get_running_loop().time())
        self.open[hold] = line
        if has_settled(line):
            self.drain_error = None

    @property
    def needs_question(self) -> bool:
        """Whether its lag is to be asked for, and not only what its shard tells."""
        if self.shard is None or not self.shard.holds:
            return True
        if self.lag is None or self.lag > self.autoscaling.lag_threshold:
            return True
        # It was at zero when that was decided, for too little lag, and goes on with its neighbours.
        goes_on = self.lag > 0 and self.scale.replicas == 0
        now = asyncio.get_running_loop().time()
        return goes_on or now >= self.ask_by or (self.lag > 0 and self._has_committed_since(now))

    def _has_committed_since(self, now: float) -> bool:
        """Whether what waited when it was asked is settled and committed by now, probably: once for
        each pause in what it delivers, however much of it there is."""
        committed = self.rests_since + COMMITTED_WITHIN
        return self.asked_at < committed <= now

    def asked(self) -> None:
        """Its lag is known enough; the next time is not everybody's at once."""
        now = asyncio.get_running_loop().time()
        self.ask_by = now + LAG_INTERVAL * random.uniform(0.75, 1.25)

    def on_settled(self, events: int, unsettled: int) -> None:
        """Its shard reports that so many more events are settled, and how many aren't."""
        self.settled_since += events
        if unsettled:
            self.rests_since = math.inf
        elif events:
            self.rests_since = asyncio.get_running_loop().time()
        if self.lag and not unsettled and self.settled_since >= self.lag:
            # All that waited: a thousand that one event has woken need not be asked for.
            self.lag = 0
            self.decided(decide(0, 1, self.autoscaling, 1, shared=True))

    def decided(self, scale: Scale) -> None:
        """So many drains from now on."""
        self.scale = scale
        self.decisions[scale.cause] += 1

    def not_asked(self, why: str) -> None:
        """The question for its lag failed: what was decided last holds."""
        self.lag_error = f"the lag is not known: {why}"
        self.decisions[Cause.LAG_UNKNOWN] += 1

    def grew(self, records: int) -> None:
        """Its topic has so many more, and nobody has drained it meanwhile."""
        if self.lag is None:
            self.decided(expected(shared=True))
        else:
            self.lag += records
            # One that waits for more lag drains with its neighbours.
            self.decided(decide(self.lag, 1, self.autoscaling, 1, shared=True))
        self.asked()

    def counts(self) -> ScalingCounts:
        return ScalingCounts(self.decisions, self.own.wakes, self.lag_error is None)

    def status(self) -> TriggerStatus:
        shard = self.shard
        open_ = [*self.open.values(), *(shard.open(self) if shard else ())]
        return TriggerStatus(
            lag=self.lag,
            replicas=len(open_),
            scale=self.scale,
            counts=sum_progress([self.ended], open_) if open_ else self.ended,
            error=self.drain_error or (shard.error if shard else None) or self.lag_error,
            beyond_end=self.beyond_end,
            paused=self.autoscaling.paused,
            shard=shard.shard.group if shard else None,
        )


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


def has_settled(counts: Counts | DrainProgress) -> bool:
    """Whether any event got somewhere: what was wrong isn't any more."""
    return bool(counts.filtered or counts.delivered or counts.dead_lettered)


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
