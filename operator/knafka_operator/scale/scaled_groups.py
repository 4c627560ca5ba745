"""Scaled groups: a Trigger's or a Sensor's drains, what they report, and the last decision.

A Trigger or a Sensor has one consumer group; a shard, which delivers many Triggers, has one for
each of them. In a drain, a dispatcher joins the group, delivers events, and leaves; a request of
the operator keeps it going.

Not here: deciding (`lag_checks`), holding requests (`holds`), a shard's reports about a Trigger
(`scaled_shard`).
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
from knafka.core.drain import (
    COUNTED,
    MAX_COMMIT_INTERVAL,
    Counts,
    DrainProgress,
    Ended,
    Waiting,
)
from knafka.core.sensor.contract import SensorContract
from knafka_operator.model.autoscaling import Autoscaling
from knafka_operator.scale.decide import (
    Cause,
    Scale,
    ScalingCounts,
    ScalingStatus,
    decide_scale,
    scale_for_expected_event,
)
from knafka_operator.scale.filter_rest import FilterRest
from knafka_operator.scale.holds import Hold, Holds, Slots
from knafka_operator.scale.progress_bounds import MAX_REASONS, bound_reasons

MAX_SECONDS_WITHOUT_DRAIN: Final = 24 * 3600.0
"""Longest time (seconds) without a drain; then one is opened even without lag. Kafka deletes the
offsets of a group without members after offsets.retention.minutes (7 days), and all events in its
topic would be delivered again."""

SCALE_NOT_KNOWN: Final = Scale(0, "the lag is not known yet", Cause.LAG_UNKNOWN)
"""The decision for a Trigger or Sensor whose lag has never been read."""

LAG_INTERVAL: Final = 60.0
"""Seconds, on average, between two requests for the lag of a Trigger that a shard drains: the
shard's reports are enough in between, as a small lag need not be known to the second."""

COMMIT_SECONDS: Final = MAX_COMMIT_INTERVAL + 2.0
"""Seconds within which a shared dispatcher commits events that it has reported as settled."""


@dataclass(eq=False, slots=True)
class ScaledGroup:
    """A Trigger or Sensor with a consumer group, its lag and its drains. The subclasses add
    `on_line`, and so implement `holds.Unit`."""

    id: str
    """The id by which the scaler knows the Trigger or Sensor."""
    autoscaling: Autoscaling
    """Its settings for scaling, from its annotations and the installation's defaults."""
    _: KW_ONLY
    lag: int | None = None
    """Records that the group has not committed; None: not known yet."""
    scale: Scale = SCALE_NOT_KNOWN
    """The last decision about the number of drains."""
    floor: int = 0
    """Number of drains to hold even without any lag (min-scale)."""
    open_requests: dict[Hold, DrainProgress] = field(default_factory=dict)
    """The open requests, with the last progress of each."""
    ended_counts: DrainProgress = field(default_factory=DrainProgress)
    """Sum of the counts of drains that have ended; for a Trigger, also all that shards reported."""
    lag_error: str | None = None
    """The error of the last request for the lag; None: it was answered."""
    drain_error: str | None = None
    """The error of the last drain; None: there is none."""
    join_due_at: float = math.inf
    """When a drain must join the group again, so that Kafka keeps its offsets; by the event loop's
    clock."""

    @property
    def desired_requests(self) -> int:
        """Return the number of drains that the last decision requires."""
        return self.scale.replicas

    @property
    def cooldown(self) -> float:
        """Return the seconds without work after which a drain ends."""
        return self.autoscaling.cooldown_period

    def on_open(self, hold: Hold) -> None:
        """Record that a request was opened."""
        self.open_requests[hold] = DrainProgress()

    def on_close(self, hold: Hold) -> None:
        """Record that a request has ended: add its last counts to `ended_counts`."""
        self.ended_counts = sum_progress([self.ended_counts, self.open_requests.pop(hold)], [])

    def on_end(self, ended: Ended, last: DrainProgress | None, error: str | None) -> None:
        """Record the `error` of a request; None: it had none. If the request ended because its
        drain was idle or its budget was spent, also record that the group was joined."""
        self.drain_error = error
        if ended in (Ended.IDLE, Ended.BUDGET):
            self.note_joined()

    def sum_counts(self, open_drains: Collection[DrainProgress]) -> DrainProgress:
        """Return the counts of all drains so far, ended and open, with the momentary values of the
        open ones; `open_drains` has the progress of each open drain."""
        return sum_progress([self.ended_counts], open_drains) if open_drains else self.ended_counts

    def note_joined(self) -> None:
        """Record that a drain has joined the group now, and when one must join it again: at a
        random time, so that not all groups are joined at the same time."""
        now = asyncio.get_running_loop().time()
        self.join_due_at = now + MAX_SECONDS_WITHOUT_DRAIN * random.uniform(0.5, 1)


class SharedDrain(Protocol):
    """A shard's drain from the view of one of its Triggers; implemented by `ScaledShard`."""

    holds: Holds[Any]
    """The shard's request, at most one."""
    shard: Shard
    """The contract of the shard's dispatcher, with the shard's name (`group`)."""
    error: str | None
    """The last error of the shard's request; None: there is none."""

    def progress_of(self, trigger: ScaledTrigger) -> Sequence[DrainProgress]:
        """Return the current progress of a Trigger in the shard, without counts; empty if no
        request is open, else one."""
        ...


@dataclass(eq=False, slots=True)
class ScaledTrigger(ScaledGroup):
    """A Trigger that the scaler watches; the `holds.Unit` of its own drains."""

    egress: Egress
    own: Holds[DrainProgress] = field(init=False)
    """The Trigger's own drains; set by the scaler."""
    declared_shard: Shard | None = None
    """The shard that the Trigger is assigned to; None: it has its own drains."""
    drained_by: SharedDrain | None = None
    """The shard that drains the Trigger now; None: it is in no shard, its own drains haven't ended
    yet, or it is paused."""
    settled: Mapping[int, int] = field(default_factory=dict)
    """Settled records by partition, as of the last request for the lag (`Lag.settled`)."""
    decisions: Counter[Cause] = field(default_factory=Counter)
    """How often each cause has determined a decision."""
    beyond_end: frozenset[int] = frozenset()
    """Partitions where the committed offset is beyond the topic's end."""
    lag_request_due_at: float = -math.inf
    """When the lag must be read again while the Trigger's shard drains, by the event loop's
    clock."""
    lag_requested_at: float = -math.inf
    """When the last answered request for the lag began, by the event loop's clock."""
    settled_since_request: int = 0
    """Events that the shard has reported as settled since `lag_requested_at`."""
    nothing_unsettled_since: float = math.inf
    """Since when the shard has had no unsettled events of the Trigger and settled none, by the
    event loop's clock."""

    rest: FilterRest = field(default_factory=FilterRest)
    """Decides whether the Trigger's own drains rest, as its filter passes no event."""

    @property
    def is_shared(self) -> bool:
        """Whether the Trigger is assigned to a shard, even if its own drains haven't ended yet."""
        return self.declared_shard is not None

    @property
    def own_egress(self) -> Egress | None:
        """Return the Egress by which the Trigger's own dispatchers may still drain when their
        requests have ended. None: the Trigger is assigned to a shard, or has min-scale; then a
        reconciliation waits for the end of its pods."""
        may_drain_unnoticed = not self.is_shared and not self.autoscaling.min_scale
        return self.egress if may_drain_unnoticed else None

    @property
    def holds(self) -> Holds[Any]:
        """Return the drains that deliver the Trigger's events now: its own, or its shard's."""
        return self.own if self.drained_by is None else self.drained_by.holds

    @property
    def is_resting(self) -> bool:
        """Whether waiting events open no drain, as the filter has passed none lately; never for a
        Trigger of a shard."""
        return not self.is_shared and self.rest.is_resting(asyncio.get_running_loop().time())

    def on_open(self, hold: Hold) -> None:
        """Record that a request was opened, in `rest` too if no other is open."""
        if not self.open_requests:
            self.rest.on_begin(self.lag or 0, asyncio.get_running_loop().time())
        ScaledGroup.on_open(self, hold)

    def on_close(self, hold: Hold) -> None:
        """Record that a request has ended, in `rest` too, and add its last counts to
        `ended_counts`."""
        self.rest.on_request_end(asyncio.get_running_loop().time())
        ScaledGroup.on_close(self, hold)

    def on_line(self, hold: Hold, line: DrainProgress) -> None:
        """Record a line of progress of the Trigger's own drain, in `rest` too. If the drain has
        settled events, the last drain error is over."""
        self.rest.on_progress(self.open_requests.get(hold), line, asyncio.get_running_loop().time())
        self.open_requests[hold] = line
        if has_settled(line):
            self.drain_error = None

    @property
    def needs_lag_request(self) -> bool:
        """Whether the lag must be read from Kafka. A shard's reports are enough instead while it
        drains the Trigger, the lag is small, and it was read less than about `LAG_INTERVAL` seconds
        ago."""
        if self.drained_by is None or not self.drained_by.holds:
            return True
        if self.lag is None or self.lag > self.autoscaling.lag_threshold:
            return True
        # The Trigger was scaled to zero for too little lag, and is drained with the shard's other
        # Triggers.
        drains_with_others = self.lag > 0 and self.scale.replicas == 0
        now = asyncio.get_running_loop().time()
        return (
            drains_with_others
            or now >= self.lag_request_due_at
            or (self.lag > 0 and self._has_probably_committed(now))
        )

    def _has_probably_committed(self, now: float) -> bool:
        """Whether the shard has probably committed, by `now`, events that waited at the last
        request for the lag: it has had no unsettled event for `COMMIT_SECONDS`, and the lag was
        last requested before that time was over."""
        committed_at = self.nothing_unsettled_since + COMMIT_SECONDS
        return self.lag_requested_at < committed_at <= now

    def note_lag_known(self) -> None:
        """Record that the lag is known now, so that the next request for it is due in about
        `LAG_INTERVAL` seconds: at a random time, so that Triggers spread."""
        now = asyncio.get_running_loop().time()
        self.lag_request_due_at = now + LAG_INTERVAL * random.uniform(0.75, 1.25)

    def on_settled(self, events: int, unsettled: int) -> None:
        """Record the shard's report that it has settled `events` more events, and that
        `unsettled` events aren't settled yet. If it has settled all waiting events, decide again,
        by a lag of 0."""
        self.settled_since_request += events
        if unsettled:
            self.nothing_unsettled_since = math.inf
        elif events:
            self.nothing_unsettled_since = asyncio.get_running_loop().time()
        if self.lag and not unsettled and self.settled_since_request >= self.lag:
            # Without a request for the lag, as one event may have woken a thousand Triggers.
            self.lag = 0
            self.set_scale(decide_scale(0, 1, self.autoscaling, held=1, shared=True))

    def set_scale(self, scale: Scale) -> None:
        """Record a decision about the number of drains, and count it by its cause."""
        self.scale = scale
        self.decisions[scale.cause] += 1

    def note_lag_error(self, why: str) -> None:
        """Record that the request for the lag failed, and `why`; the last decision stays."""
        self.lag_error = f"the lag is not known: {why}"
        self.decisions[Cause.LAG_UNKNOWN] += 1

    def note_growth(self, records: int) -> None:
        """Decide for a Trigger in a shard without reading its lag: its topic has grown by `records`
        while the shard had no drain."""
        if self.lag is None:
            self.set_scale(scale_for_expected_event(shared=True))
        else:
            self.lag += records
            # Counted as held: a Trigger below its activation threshold is drained with the others.
            # One partition is enough for the one drain that a shard has.
            self.set_scale(decide_scale(self.lag, 1, self.autoscaling, held=1, shared=True))
        self.note_lag_known()

    def counts(self) -> ScalingCounts:
        """Return the counts of the Trigger's decisions so far."""
        return ScalingCounts(self.decisions, self.own.wakes, self.lag_error is None)

    def status(self) -> ScalingStatus:
        """Return the scaler's view of the Trigger: its lag, the last scaling decision, the number
        of its open drains (its own and its shard's), the counts of all drains so far, and an error:
        that of its own drains; without one, its shard's; without that, the lag request's."""
        shared_drain = self.drained_by
        shared_progress = shared_drain.progress_of(self) if shared_drain else ()
        open_drains = [*self.open_requests.values(), *shared_progress]
        return ScalingStatus(
            lag=self.lag,
            replicas=len(open_drains),
            scale=self.scale,
            counts=self.sum_counts(open_drains),
            error=self.drain_error
            or (shared_drain.error if shared_drain else None)
            or self.lag_error,
            beyond_end=self.beyond_end,
            paused=self.autoscaling.paused,
            shard=shared_drain.shard.group if shared_drain else None,
        )


@dataclass(eq=False, slots=True)
class ScaledSensor(ScaledGroup):
    """A Sensor that the scaler watches; the `holds.Unit` of its drains. Its lag is the sum of its
    group's lags in the bus's topic and in its trigger topic."""

    sensor: SensorContract
    holds: Holds[DrainProgress] = field(init=False)
    """The Sensor's drains; set by the scaler."""
    slots: Slots = field(default_factory=Slots)
    """The slots of its drain requests."""
    due: int | None = None
    """The time of the next firing without an event (ms since the Unix epoch), from the group's
    commit metadata; None: there is none."""
    holding: dict[int, Sequence[Waiting]] = field(default_factory=dict)
    """The events that the Sensor's triggers hold, by partition of the trigger topic, as last
    reported by a drain. Reports of ended drains stay valid, as nothing changes without a drain."""

    @property
    def topics(self) -> set[str]:
        """Return the topics that the Sensor's group reads."""
        return {self.sensor.topic, self.sensor.trigger_topic}

    def on_line(self, hold: Hold, line: DrainProgress) -> None:
        """Record a line of progress: counts, the events that the drain's triggers hold, its slot
        and, if it has partitions, that the last error is over."""
        self.open_requests[hold] = line
        if (reported := line.holding) is not None:
            for partition in reported.partitions:
                self.holding[partition] = [
                    waiting for waiting in reported.triggers if waiting.partition == partition
                ]
        if line.slot is not None:
            self.slots.note_slot(hold, line.slot)
        if line.partitions:
            self.drain_error = None

    def status(self) -> ScalingStatus:
        """Return the scaler's view of the Sensor: its lag, the last scaling decision, the number of
        open drains, the counts of all drains so far, and the error of its drains, else the lag's.
        """
        open_drains = list(self.open_requests.values())
        return ScalingStatus(
            lag=self.lag,
            replicas=len(open_drains),
            scale=self.scale,
            counts=self.sum_counts(open_drains),
            error=self.drain_error or self.lag_error,
            paused=self.autoscaling.paused,
        )


def has_settled(counts: Counts | DrainProgress) -> bool:
    """Whether any event was filtered out, delivered or dead-lettered, which shows that an earlier
    drain error is over."""
    return bool(counts.filtered or counts.delivered or counts.dead_lettered)


def sum_progress(
    ended: Iterable[DrainProgress], open_drains: Collection[DrainProgress]
) -> DrainProgress:
    """Return the progress of all drains of a Trigger or Sensor together. Counts are summed over the
    `ended` and the open drains; momentary values, such as `unsettled` and `partitions`, come from
    the open ones only; `congestion` and `loop` are those of the first open drain that has any."""
    all_drains = [*ended, *open_drains]
    counts: dict[str, Any] = {
        name: sum(getattr(drain_progress, name) for drain_progress in all_drains)
        for name in COUNTED
    }
    letters: Counter[str] = Counter()  # dead letters by reason
    for drain_progress in all_drains:
        letters.update(drain_progress.dead_letters)
    partitions = {number for drain_progress in open_drains for number in drain_progress.partitions}
    return DrainProgress(
        **counts,
        dead_letters=bound_reasons(letters) if len(letters) > MAX_REASONS else dict(letters),
        late=sum(drain_progress.late for drain_progress in all_drains),
        unsettled=sum(drain_progress.unsettled for drain_progress in open_drains),
        congestion=next((drain.congestion for drain in open_drains if drain.congestion), None),
        loop=next((drain.loop for drain in open_drains if drain.loop), None),
        partitions=tuple(sorted(partitions)),
    )
