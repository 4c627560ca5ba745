"""Acknowledgements: what people say of groups of failures, as rows of a table that only grows.

    acknowledge    somebody takes care of the group; with `until`, it is ignored up to that time
    unacknowledge  the group needs attention again

The latest row of a group counts. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

MAX_NOTE_CHARACTERS: Final = 1_000
"""Characters of a note, at most."""
MAX_NAME_CHARACTERS: Final = 200
"""Characters of the name of the person who acknowledges, at most."""


class AcknowledgementAction(StrEnum):
    """What a person did to a group."""

    ACKNOWLEDGE = "acknowledge"
    UNACKNOWLEDGE = "unacknowledge"


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """A group's acknowledgement that holds now."""

    by: str
    """Who acknowledged the group."""
    at: datetime
    """When that was."""
    until: datetime | None
    """When the acknowledgement ends; None: never."""
    note: str
    """What the person noted; empty if nothing."""


def latest_rows(rows: Iterable[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return the latest row of each group, by the group's id. If several rows of a group have the
    same time, the other columns decide, so that every reader takes the same row."""
    latest: dict[str, Mapping[str, Any]] = {}
    for row in rows:
        group = row["group_id"]
        if group not in latest or _sort_key(row) > _sort_key(latest[group]):
            latest[group] = row
    return latest


def current_acknowledgements(
    rows: Iterable[Mapping[str, Any]], now: datetime
) -> dict[str, Acknowledgement]:
    """Return the acknowledgements that are valid at `now`, by the group's id. A group whose latest
    row takes its acknowledgement back, or whose acknowledgement has ended, is left out."""
    current = {}
    for group, row in latest_rows(rows).items():
        until = None if row["until"] is None else row["until"].astimezone(UTC)
        if row["action"] == AcknowledgementAction.ACKNOWLEDGE and (until is None or until > now):
            at = row["at"].astimezone(UTC)
            current[group] = Acknowledgement(row["by"], at, until, row["note"] or "")
    return current


def _sort_key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the key by which the rows of a group are sorted: the row's time, then all other
    columns."""
    # Rows without an end sort after rows with one. `at` is a filler, as None can't be compared.
    end = row["until"] is None, row["until"] or row["at"]
    return row["at"], row["action"], row["by"] or "", row["note"] or "", end
