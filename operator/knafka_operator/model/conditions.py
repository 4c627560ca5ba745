"""Conditions: what a document's status says of it, kept the way Knative keeps it (KN-CON).

    what was found now, what stands in the status -> the new list, its summary included

Pure: the time comes in. Not here: finding anything out, and conditions that nobody can act on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

READY: Final = "Ready"
"""The summary; computed here and never given."""
SUCCEEDED: Final = "Succeeded"
"""The same of what runs to its end."""

MAX_MESSAGE: Final = 4_096
"""Characters of a message: what others answer may be in it, and a status that is too large for the
API server is none at all."""

_CAMEL_CASE = re.compile(r"[A-Z][A-Za-z0-9]*").fullmatch
_RFC3339 = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)", re.ASCII
).fullmatch


class Status(StrEnum):
    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Severity(StrEnum):
    """How bad it is when a condition isn't True."""

    ERROR = ""
    """The document is not Ready then."""
    WARNING = "Warning"
    INFO = "Info"


@dataclass(frozen=True, slots=True)
class Condition:
    """One thing that should hold, of positive polarity: True is good (KN-CON-01, KN-CON-04).

    What isn't True says why in `reason`, for machines, and `message`, for people (KN-CON-03).
    Raises `ValueError` otherwise, and for a type or reason that isn't one CamelCase word.
    """

    type: str
    status: Status
    reason: str = ""
    message: str = ""
    severity: Severity = Severity.ERROR

    def __post_init__(self) -> None:
        if _CAMEL_CASE(self.type) is None:
            raise ValueError(f"the type {self.type!r} is not one CamelCase word")
        if self.reason and _CAMEL_CASE(self.reason) is None:
            raise ValueError(f"{self.type}: the reason {self.reason!r} is not one CamelCase word")
        if self.status is not Status.TRUE and not (self.reason and self.message):
            raise ValueError(f"{self.type}: what is {self.status} has a reason and a message")


def summary(conditions: Sequence[Condition], of: str = READY) -> Condition:
    """`of`: the first that is False, else the first that is Unknown, else True (KN-CON-02).

    Only those of error severity count. Their order is the caller's: causes before consequences.
    """
    if (cause := first_cause(conditions)) is None:
        return Condition(of, Status.TRUE)
    return Condition(of, cause.status, cause.reason, cause.message)


def first_cause(conditions: Sequence[Condition]) -> Condition | None:
    """The one that `summary` repeats; None: all that count are True."""
    for status in (Status.FALSE, Status.UNKNOWN):
        for each in conditions:
            if each.severity is Severity.ERROR and each.status is status:
                return each
    return None


def merged(
    previous: Sequence[Mapping[str, Any]], now: Sequence[Condition], at: str, of: str = READY
) -> list[dict[str, str]]:
    """`status.conditions`: all of `now` and their summary, sorted by type.

    `previous` is the list that stands there; what isn't in `now` any more goes. `at` is RFC 3339;
    `lastTransitionTime` moves to it only where the status is another one than before.
    Raises `ValueError` for a type given twice, or that of the summary.
    """
    if _RFC3339(at) is None:
        raise ValueError(f"{at!r} is no RFC 3339 time")
    conditions = sorted([*now, summary(now, of)], key=lambda each: each.type)
    types = [each.type for each in conditions]
    if len(set(types)) < len(types):
        raise ValueError(f"a condition is given once, and {of} not at all: {', '.join(types)}")
    since = {
        (each.get("type"), each.get("status")): each.get("lastTransitionTime") for each in previous
    }
    return [_told(each, since.get((each.type, each.status)) or at) for each in conditions]


def _told(condition: Condition, since: str) -> dict[str, str]:
    """As the API server keeps it: what is empty is left out, and empty severity means error."""
    fields = {
        "type": condition.type,
        "status": str(condition.status),
        "severity": str(condition.severity),
        "lastTransitionTime": since,
        "reason": condition.reason,
        "message": _cut(condition.message),
    }
    return {name: value for name, value in fields.items() if value}


def _cut(message: str) -> str:
    return message if len(message) <= MAX_MESSAGE else f"{message[: MAX_MESSAGE - 1]}…"
