"""Conditions: merges an object's conditions into its status, and summarises them by Knative's rules
(KN-CON).

    conditions decided now, conditions in the stored status -> the new list with its summary

Pure: the time is a parameter. Not here: deciding a condition (`decisions.status`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

READY: Final = "Ready"
"""Type of the summary of all conditions, which is computed here."""
SUCCEEDED: Final = "Succeeded"
"""Type of the summary for objects that run to an end, such as Jobs."""

MAX_CONDITION_MESSAGE: Final = 4_096
"""Most characters of a message. A message may quote responses, and the API server refuses a status
that is too large."""

_CAMEL_CASE = re.compile(r"[A-Z][A-Za-z0-9]*").fullmatch
_RFC3339 = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)", re.ASCII
).fullmatch


class Status(StrEnum):
    """The status of a condition; Unknown: not decided yet, or waiting."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Severity(StrEnum):
    """Severity of a condition that isn't True: only an error makes the object not Ready."""

    ERROR = ""
    """The object isn't Ready then."""
    WARNING = "Warning"
    INFO = "Info"


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition of an object; the status True always means the good state (KN-CON-01,
    KN-CON-04).

    A condition that isn't True has a `reason` for machines and a `message` for people (KN-CON-03);
    without them, or if type or reason isn't one CamelCase word, the constructor raises
    `ValueError`.
    """

    type: str
    status: Status
    reason: str = ""
    message: str = ""
    severity: Severity = Severity.ERROR

    def __post_init__(self) -> None:
        """Check that type and reason are CamelCase, and that a condition that isn't True has a
        reason and a message. Raises `ValueError`."""
        if _CAMEL_CASE(self.type) is None:
            raise ValueError(f"the type {self.type!r} is not one CamelCase word")
        if self.reason and _CAMEL_CASE(self.reason) is None:
            raise ValueError(f"{self.type}: the reason {self.reason!r} is not one CamelCase word")
        if self.status is not Status.TRUE and not (self.reason and self.message):
            raise ValueError(
                f"{self.type}: a condition that is {self.status} needs a reason and a message"
            )


def summary_condition(conditions: Sequence[Condition], summary_type: str = READY) -> Condition:
    """Return the summary of all conditions (KN-CON-02). It repeats the first condition that is
    False, else the first that is Unknown; if there is neither, it is True.

    Only conditions of error severity count. The caller orders them: causes before consequences.
    """
    if (cause := first_cause(conditions)) is None:
        return Condition(summary_type, Status.TRUE)
    return Condition(summary_type, cause.status, cause.reason, cause.message)


def first_cause(conditions: Sequence[Condition]) -> Condition | None:
    """Return the condition that `summary_condition` repeats: the first that is False, else the
    first that is Unknown; None: all are True. Only conditions of error severity count."""
    for status in (Status.FALSE, Status.UNKNOWN):
        for condition in conditions:
            if condition.severity is Severity.ERROR and condition.status is status:
                return condition
    return None


def merge_conditions(
    previous: Sequence[Mapping[str, Any]],
    decided: Sequence[Condition],
    timestamp: str,
    summary_type: str = READY,
) -> list[dict[str, str]]:
    """Build `status.conditions` from the `decided` conditions and their summary, sorted by type.

    `previous` is the stored list, `timestamp` the time (RFC 3339). `lastTransitionTime` becomes
    `timestamp` only for a condition whose status has changed. Raises `ValueError` for a type given
    twice, or for the summary's type in `decided`.
    """
    if _RFC3339(timestamp) is None:
        raise ValueError(f"{timestamp!r} is no RFC 3339 time")
    conditions = sorted(
        [*decided, summary_condition(decided, summary_type)], key=lambda condition: condition.type
    )
    types = [condition.type for condition in conditions]
    if len(set(types)) < len(types):
        raise ValueError(
            f"each type must be given once, and {summary_type} not at all: {', '.join(types)}"
        )
    # By type and status: only a condition whose status is still the same finds its time.
    transition_times = {
        (condition.get("type"), condition.get("status")): condition.get("lastTransitionTime")
        for condition in previous
    }
    return [
        _condition_fields(
            condition, transition_times.get((condition.type, condition.status)) or timestamp
        )
        for condition in conditions
    ]


def _condition_fields(condition: Condition, transition_time: str) -> dict[str, str]:
    """Return a condition as a dictionary for `status.conditions`, without empty fields (an error's
    severity is empty). `transition_time` becomes its `lastTransitionTime`."""
    fields = {
        "type": condition.type,
        "status": str(condition.status),
        "severity": str(condition.severity),
        "lastTransitionTime": transition_time,
        "reason": condition.reason,
        "message": _truncate(condition.message),
    }
    return {name: value for name, value in fields.items() if value}


def _truncate(message: str) -> str:
    """Return a message cut to `MAX_CONDITION_MESSAGE` characters; if it was cut, it ends with
    "…"."""
    if len(message) <= MAX_CONDITION_MESSAGE:
        return message
    return f"{message[: MAX_CONDITION_MESSAGE - 1]}…"
