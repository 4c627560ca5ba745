"""Scaling: how many drains a Trigger needs, from its lag, and what is known of it then. Pure.

Not here: asking for the lag and holding the drains (`scale.scaler`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from knafka.core.drain import DrainProgress
from knafka_operator.model.autoscaling import Autoscaling

NOTHING_WAITS: Final = "nothing waits"
"""The reason of a Trigger without lag."""


@dataclass(frozen=True, slots=True)
class Scale:
    """A decision: how many drains, and why."""

    replicas: int
    reason: str
    """For people, in words that need no glossary: a status and `knafka up` show it as it is."""


@dataclass(frozen=True, slots=True)
class TriggerStatus:
    """What the scaler knows of one Trigger."""

    lag: int | None
    """Records; None: not known yet."""
    replicas: int
    """Drains open right now."""
    scale: Scale
    """The last decision."""
    counts: DrainProgress
    """Sums over all its drains, ended and open; `unsettled`, `partitions` and `congestion` of the
    open ones."""
    error: str | None
    """What went wrong last and hasn't gone right since."""
    beyond_end: frozenset[int] = frozenset()
    """Partitions of which it has committed what isn't there (any more)."""
    paused: bool = False
    shard: str | None = None
    """The group of the shared dispatcher that delivers it; None: its own does."""


def decide(
    lag: int, partitions: int, autoscaling: Autoscaling, held: int, *, shared: bool = False
) -> Scale:
    """How many drains a Trigger needs now; `held` are open already.

    ceil(lag / lag-threshold), within min-scale, max-scale and the number of partitions. Fewer than
    `held` means only that those which end aren't opened again. None while it is paused, and one at
    most in a shared dispatcher: what needs more is moved out of it.
    """
    waiting = f"{lag} {'event' if lag == 1 else 'events'} waiting"
    if autoscaling.paused:
        return Scale(0, f"paused; {waiting}")
    needed = -(-lag // autoscaling.lag_threshold)
    reason = f"{waiting}; "
    if lag == 0:
        reason = NOTHING_WAITS
    elif held == 0 and lag <= autoscaling.activation_lag_threshold:
        needed = 0
        reason += f"it starts when more than {autoscaling.activation_lag_threshold} wait"
    elif shared:
        reason = waiting
    else:
        reason += f"one dispatcher per {autoscaling.lag_threshold}"
    if shared:
        return _shared(needed, reason, partitions, autoscaling)
    replicas = min(max(needed, autoscaling.min_scale), autoscaling.max_scale, partitions)
    if replicas > needed:
        reason += f", at least {autoscaling.min_scale} (min-scale)"
    elif replicas < needed and replicas == autoscaling.max_scale:
        reason += f", at most {autoscaling.max_scale} (max-scale)"
    elif replicas < needed:
        reason += f", at most {partitions} (its topic's partitions)"
    return Scale(replicas, reason)


def keeping_offsets(scale: Scale, partitions: int, *, shared: bool) -> Scale:
    """One drain where there would be none, so that Kafka keeps the offsets of the group."""
    return Scale(min(1, partitions), f"{scale.reason}, one to keep its offsets{_where(shared)}")


def expected(*, shared: bool) -> Scale:
    """One drain before there is any lag."""
    return Scale(1, f"an event is on its way{_where(shared)}")


def _shared(needed: int, reason: str, partitions: int, autoscaling: Autoscaling) -> Scale:
    replicas = min(max(needed, autoscaling.min_scale), 1, partitions)
    if replicas > needed:
        reason += f", at least {autoscaling.min_scale} (min-scale)"
    return Scale(replicas, reason + (_where(True) if replicas else ""))


def _where(shared: bool) -> str:
    return ", in a shared dispatcher" if shared else ""
