"""Scaling: decides how many drains a Trigger needs from its lag; also the scaler's status values.
Pure.

In a drain, a dispatcher joins the Trigger's consumer group, delivers its events, and leaves.

Not here: reading the lag, and holding drains (`scale.scaler`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from knafka.core.drain import DrainProgress
from knafka_operator.model.autoscaling import Autoscaling

NOTHING_WAITS: Final = "nothing waits"
"""The reason (`Scale.reason`) of a decision for a Trigger without lag."""


class Cause(StrEnum):
    """The reason that determined a scaling decision; a label of metrics."""

    NO_LAG = "no_lag"
    LAG = "lag"
    ACTIVATION = "activation_lag_threshold"
    """The lag is too small to wake a Trigger without drains."""
    MIN_SCALE = "min_scale"
    MAX_SCALE = "max_scale"
    PARTITIONS = "partitions"
    """There would be more drains than partitions."""
    PAUSED = "paused"
    KEEPING_OFFSETS = "keeping_offsets"
    """A drain joins the group for a moment, so that Kafka doesn't forget its offsets."""
    DUE = "due"
    """A Sensor has a timeout to handle, without a new event."""
    PREWARM = "prewarm"
    """A receiver has started, so an event is on its way."""
    FILTERED_OUT = "filtered_out"
    """The Trigger's filter has passed no event lately."""
    LAG_UNKNOWN = "lag_unknown"
    """Nothing was decided, as the lag couldn't be read."""


@dataclass(frozen=True, slots=True)
class Scale:
    """A scaling decision: the number of drains, and the reason."""

    replicas: int
    """Number of drains to hold open."""
    reason: str
    """The reason for users, shown in statuses and by `knafka up`."""
    cause: Cause = field(default=Cause.LAG, compare=False)
    """The reason for metrics."""


@dataclass(frozen=True, slots=True)
class ScalingStatus:
    """The scaler's view of one Trigger or Sensor."""

    lag: int | None
    """Records; None: not known yet."""
    replicas: int
    """Drains open right now."""
    scale: Scale
    """The last decision."""
    counts: DrainProgress
    """Sums over all drains of the Trigger or Sensor, ended and open; but `unsettled`, `partitions`
    and `congestion` come from open drains only."""
    error: str | None
    """The last error that hasn't been followed by a success; None: there is none."""
    beyond_end: frozenset[int] = frozenset()
    """Partitions where the committed offset is beyond the topic's end."""
    paused: bool = False
    """Whether the Trigger or Sensor is declared to be paused."""
    shard: str | None = None
    """Group of the shared dispatcher that delivers the Trigger; None: its own dispatcher does."""


@dataclass(frozen=True, slots=True)
class ScalingCounts:
    """Counts of the scaler's decisions for one Trigger since this operator began to scale it."""

    decisions: Mapping[Cause, int]
    """Number of decisions by cause, including failed requests for the lag."""
    wakes: Mapping[Cause, int]
    """How often the Trigger's own drains were opened while it had none, by cause."""
    lag_known: bool
    """Whether the last request for the lag was answered."""


@dataclass(frozen=True, slots=True)
class ShardStatus:
    """The scaler's view of one shard."""

    namespace: str
    broker: str
    """Name of the Broker or KafkaChannel."""
    kind: str
    """Kind of the shard's Triggers, as in `Egress.kind`."""
    group: str
    """The shard's name."""
    triggers: int
    """Number of its Triggers."""
    lag: int
    """Records that the shard's Triggers have not committed, as far as their lag is known."""
    desired_requests: int
    """Requests that the shard needs by its Triggers' decisions: 0 or 1."""
    held: int
    """Requests that are open now: 0 or 1."""
    wakes: Mapping[Cause, int]
    """How often the shard's request was opened, by the cause of the decision."""


def decide_scale(
    lag: int, partitions: int, autoscaling: Autoscaling, held: int, *, shared: bool = False
) -> Scale:
    """Decide how many drains a Trigger needs now, at this lag (records) on this number of
    partitions, where `held` drains are open already.

    The number is ceil(lag / lag-threshold), within min-scale, max-scale and the number of
    partitions; 0 while the Trigger is paused, and at most 1 in a shared dispatcher (`shared`). A
    number below `held` ends no drain: those that end by themselves aren't opened again.
    """
    waiting = f"{lag} {'event' if lag == 1 else 'events'} waiting"
    if autoscaling.paused:
        return Scale(0, f"paused; {waiting}", Cause.PAUSED)
    needed_drains = -(-lag // autoscaling.lag_threshold)  # rounded up
    reason = f"{waiting}; "
    cause = Cause.LAG
    if lag == 0:
        reason = NOTHING_WAITS
        cause = Cause.NO_LAG
    elif held == 0 and lag <= autoscaling.activation_lag_threshold:
        needed_drains = 0
        cause = Cause.ACTIVATION
        reason += f"it starts when more than {autoscaling.activation_lag_threshold} wait"
    elif shared:
        reason = waiting
    else:
        reason += f"one dispatcher per {autoscaling.lag_threshold}"
    if shared:
        return _shared_scale(Scale(needed_drains, reason, cause), partitions, autoscaling)
    replicas = min(max(needed_drains, autoscaling.min_scale), autoscaling.max_scale, partitions)
    if replicas > needed_drains:
        cause = Cause.MIN_SCALE
        reason += f", at least {autoscaling.min_scale} (min-scale)"
    elif replicas < needed_drains and replicas == autoscaling.max_scale:
        cause = Cause.MAX_SCALE
        reason += f", at most {autoscaling.max_scale} (max-scale)"
    elif replicas < needed_drains:
        cause = Cause.PARTITIONS
        reason += f", at most {partitions} (its topic's partitions)"
    return Scale(replicas, reason, cause)


def scale_to_keep_offsets(scale: Scale, partitions: int, *, shared: bool) -> Scale:
    """Return the decision that replaces `scale`, a decision for no drains, when a drain must join
    the group so that Kafka keeps the group's offsets: one drain, or none if the topic has no
    `partitions`. `shared`: whether a shared dispatcher delivers the Trigger."""
    reason = f"{scale.reason}, one to keep its offsets{_dispatcher_suffix(shared)}"
    return Scale(min(1, partitions), reason, Cause.KEEPING_OFFSETS)


def scale_while_filtered_out(lag: int, seconds: float) -> Scale:
    """Return the decision to open no drains for `lag` waiting events, as no event has passed the
    Trigger's filter lately. In `seconds` the waiting events are read nevertheless."""
    waiting = f"{lag} {'event' if lag == 1 else 'events'} waiting"
    reason = f"{waiting}; its filter has passed none lately, these are read in {seconds:.0f} s"
    return Scale(0, reason, Cause.FILTERED_OUT)


def scale_for_due_timeout(scale: Scale) -> Scale:
    """Return the decision for one drain that replaces `scale`, a decision for no drains, as a
    timeout of the Sensor is due."""
    return Scale(1, f"{scale.reason}, but something is due", Cause.DUE)


def scale_for_expected_event(*, shared: bool) -> Scale:
    """Return the decision to open one drain before there is any lag, as an event is on its way.
    `shared`: whether a shared dispatcher delivers the Trigger."""
    return Scale(1, f"an event is on its way{_dispatcher_suffix(shared)}", Cause.PREWARM)


def _shared_scale(needed: Scale, partitions: int, autoscaling: Autoscaling) -> Scale:
    """Return the decision for a Trigger in a shared dispatcher: the drains of the decision
    `needed`, raised to min-scale, but at most one, and none if the topic has no `partitions`."""
    replicas = min(max(needed.replicas, autoscaling.min_scale), 1, partitions)
    reason, cause = needed.reason, needed.cause
    if replicas > needed.replicas:
        reason += f", at least {autoscaling.min_scale} (min-scale)"
        cause = Cause.MIN_SCALE
    return Scale(replicas, reason + (_dispatcher_suffix(True) if replicas else ""), cause)


def _dispatcher_suffix(shared: bool) -> str:
    """Return the end of a decision's reason, which mentions the shared dispatcher; empty if the
    dispatcher is the Trigger's own."""
    return ", in a shared dispatcher" if shared else ""
