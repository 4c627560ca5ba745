"""Scaler: how many drains each Trigger needs, and holding them open.

`decide` is the decision, pure; `Scaler` is the loop. Signatures first: being filled in.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from knafka.core.contract import Egress
from knafka.core.drain import DrainProgress, DrainRequest


@dataclass(frozen=True, slots=True)
class Autoscaling:
    min_scale: int = 0
    max_scale: int = 50
    lag_threshold: int = 100
    activation_lag_threshold: int = 0
    polling_interval: float = 10.0
    cooldown_period: float = 30.0

    @classmethod
    def from_annotations(cls, annotations: Mapping[str, str], defaults: Autoscaling) -> Autoscaling:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Scale:
    replicas: int
    reason: str


class Lag(Protocol):
    """`knafka.clients.log.Lag` is one."""

    @property
    def by_partition(self) -> Mapping[int, int]: ...
    @property
    def total(self) -> int: ...


class Lags(Protocol):
    """A `LogAdmin` is one."""

    async def lags(self, groups: Sequence[str], topic: str) -> Mapping[str, Lag]: ...


class Drains(Protocol):
    def hold(
        self, trigger_id: str, egress: Egress, request: DrainRequest
    ) -> AsyncIterator[DrainProgress]:
        """Ask a dispatcher of this Trigger to drain, and give what it tells until it is over.

        Cancelled: hang up and return once the drain has ended (or can't be waited for any more).
        """
        ...


@dataclass(frozen=True, slots=True)
class TriggerStatus:
    """What the scaler knows of one Trigger."""

    lag: int | None
    """Records; None: not known (yet)."""
    replicas: int
    """Drains open right now."""
    scale: Scale
    """The last decision."""
    counts: DrainProgress
    """Sums over all its drains, ended and open; `unsettled` and `partitions` of the open ones."""
    error: str | None
    """What went wrong last and has not gone right since."""


class Scaler:
    def __init__(self, lags: Lags, drains: Drains, *, budget: float = 570.0) -> None: ...

    async def run(self) -> None:
        """Look and hold until cancelled; then end every drain."""
        raise NotImplementedError

    async def watch(self, trigger_id: str, egress: Egress, autoscaling: Autoscaling) -> None:
        """Scale a Trigger from now on; one that changed: first end its drains, and wait for it."""
        raise NotImplementedError

    async def forget(self, trigger_id: str) -> None:
        """Scale it no more: end its drains, and wait for it."""
        raise NotImplementedError

    def wake(self, topic: str) -> None:
        """There are new events: ask for the lags of this topic's Triggers now."""
        raise NotImplementedError

    def statuses(self) -> Mapping[str, TriggerStatus]:
        """By Trigger id."""
        raise NotImplementedError
