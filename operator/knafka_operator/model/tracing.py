"""Tracing of functions, as the operator rolls it out: `OTEL_*` variables of each Service.

A change is a new Revision of every Service, and so a pod that starts: each keeps what it had until
its owner's turn. Whose turn it is: `runtime.tracing`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

Owner: TypeAlias = tuple[str, str, str]
"""Kind, namespace and name of the Broker, KafkaChannel, Trigger or Subscription that has Services.
Shared dispatchers are their Broker's."""


class FunctionTracing:
    """The one setting that changes while the operator runs."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self.wanted: Mapping[str, str] = environment or {}
        """Names and values of the variables; empty: no traces."""
        self._kept: dict[Owner, Mapping[str, str]] = {}
        """Of those whose turn hasn't come, what they had before."""

    def of(self, owner: Owner) -> Mapping[str, str]:
        """What the environment of its Services says of traces now."""
        return self._kept.get(owner, self.wanted)

    def begin(self, wanted: Mapping[str, str], owners: Iterable[Owner]) -> None:
        """What is `wanted` from now on, for these each when `admit` says so, for others at once."""
        kept = {owner: self.of(owner) for owner in owners}
        self._kept = {owner: had for owner, had in kept.items() if had != wanted}
        self.wanted = wanted

    def admit(self, owner: Owner) -> None:
        """It has its turn."""
        self._kept.pop(owner, None)

    @property
    def waiting(self) -> list[Owner]:
        """Those whose turn hasn't come."""
        return list(self._kept)
