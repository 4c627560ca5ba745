"""Tracing of functions, as the operator rolls it out: `OTEL_*` variables of each Service. An owner
is the object that has these Services, such as a Broker or a Trigger.

A change creates a new Revision of every Service, which starts a pod: each Service keeps its
variables until its owner's turn, which `runtime.tracing` decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

Owner: TypeAlias = tuple[str, str, str]
"""Kind, namespace and name of the Broker, KafkaChannel, Trigger or Subscription that has Services.
Shared dispatchers belong to their Broker."""


class FunctionTracing:
    """The functions' tracing variables, which may change while the operator runs."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        """All owners begin with the variables in `environment`; None: with none."""
        self.desired: Mapping[str, str] = environment or {}
        """Names and values of the variables; empty: no traces."""
        self._previous: dict[Owner, Mapping[str, str]] = {}
        """The variables of the owners whose turn to get the desired ones (`admit`) hasn't come."""

    def variables_of(self, owner: Owner) -> Mapping[str, str]:
        """Return the tracing variables that an owner's Services have now."""
        return self._previous.get(owner, self.desired)

    def begin_rollout(self, desired: Mapping[str, str], owners: Iterable[Owner]) -> None:
        """Set the desired variables. Each of these `owners` keeps its present variables until
        `admit` is called for it; all other owners have the desired ones at once."""
        previous_by_owner = {owner: self.variables_of(owner) for owner in owners}
        self._previous = {
            owner: previous for owner, previous in previous_by_owner.items() if previous != desired
        }
        self.desired = desired

    def admit(self, owner: Owner) -> None:
        """Give an owner the desired variables from now on."""
        self._previous.pop(owner, None)

    @property
    def pending_owners(self) -> list[Owner]:
        """Return the owners that still have their previous variables."""
        return list(self._previous)
