"""Reads and appends acknowledgements of groups of failures, without Spark.

A group is all failures of one Trigger that failed in the same way: it is a row of a report
(`schema.GROUP` has the columns in which its failures are equal).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from knafka_jobs.acknowledgements import (
    Acknowledgement,
    AcknowledgementAction,
    current_acknowledgements,
    latest_rows,
)
from knafka_jobs.io.table_files import TableFiles
from knafka_jobs.schema import ACKNOWLEDGEMENTS

ACKNOWLEDGEMENTS_TABLE: Final = "acknowledgements"
"""Name of the table of acknowledgements; `schema.ACKNOWLEDGEMENTS` has its columns."""


def read_acknowledgements(files: TableFiles, now: datetime) -> dict[str, Acknowledgement]:
    """Return the acknowledgements that are valid at `now`, by the id of the group of failures.
    Raises `JobError`."""
    return current_acknowledgements(_acknowledgement_rows(files), now)


def append_acknowledgements(
    files: TableFiles,
    groups: Mapping[str, Mapping[str, Any]],
    action: AcknowledgementAction,
    by: str,
    now: datetime,
    until: datetime | None = None,
    note: str = "",
) -> None:
    """Append a row with this action for each of these groups, in one commit. `by` is the name of
    the person who acts; `until` is when the acknowledgement ends (None: never); `note` is for
    people (empty: none). Raises `JobError`.

    `groups` has the columns of a group's Trigger, reason and code by the group's id. The new row is
    always the group's latest: if another clock wrote a later time than `now`, it gets a time just
    after that.
    """
    latest = latest_rows(_acknowledgement_rows(files))
    rows = []
    for group_id, group in groups.items():
        at = now
        if group_id in latest:
            at = max(now, latest[group_id]["at"] + timedelta(microseconds=1))
        action_columns = {"group_id": group_id, "action": action.value, "at": at, "by": by}
        row = {**group, **action_columns, "until": until, "note": note or None}
        rows.append([row.get(name) for name in ACKNOWLEDGEMENTS])
    files.append(ACKNOWLEDGEMENTS_TABLE, ACKNOWLEDGEMENTS, rows)


def _acknowledgement_rows(files: TableFiles) -> list[dict[str, Any]]:
    """Return all rows of the table of acknowledgements; empty if it doesn't exist."""
    if not files.has_table(ACKNOWLEDGEMENTS_TABLE):
        return []
    return files.query(f"SELECT * FROM {ACKNOWLEDGEMENTS_TABLE}", ACKNOWLEDGEMENTS_TABLE)
