"""Reads and appends acknowledgements of groups: the one table that is written without Spark.

Each call appends its rows in one commit of Delta's log. Appends don't conflict, so of several at
once every one is committed. Spark only reads this table.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from deltalake import DeltaTable, Field, QueryBuilder, Schema, write_deltalake
from deltalake.exceptions import DeltaError
from deltalake.schema import PrimitiveType

from knafka_jobs.acknowledgements import (
    Acknowledgement,
    AcknowledgementAction,
    current_acknowledgements,
    latest_rows,
)
from knafka_jobs.job_errors import JobError
from knafka_jobs.lookup.lookup_plan import typed_rows
from knafka_jobs.lookup.lookup_run import TableFiles, error_line, storage_options
from knafka_jobs.schema import ACKNOWLEDGEMENTS

TABLE: Final = "acknowledgements"
ATTEMPTS: Final = 10
"""Attempts to append, and before that to create the table: others may do it at the same time."""
_DELTA_TYPES: Final = {"string": "string", "int": "integer", "timestamp": "timestamp"}
"""Delta's name of each SQL type."""


def read_acknowledgements(files: TableFiles, now: datetime) -> dict[str, Acknowledgement]:
    """The acknowledgements that hold at `now`, by the group's id. Raises `JobError`."""
    return current_acknowledgements(_rows(files), now)


def append_acknowledgements(
    files: TableFiles,
    groups: Mapping[str, Mapping[str, Any]],
    action: AcknowledgementAction,
    by: str,
    now: datetime,
    until: datetime | None = None,
    note: str = "",
) -> None:
    """Append what somebody does to these groups, in one commit. Raises `JobError`.

    `groups` has the columns of a group's Trigger, reason and code by the group's id. If the last
    row of a group is younger than `now`, by another clock, the new one is younger still.
    """
    last = latest_rows(_rows(files))
    rows = []
    for group_id, group in groups.items():
        at = now
        if group_id in last:
            at = max(now, last[group_id]["at"] + timedelta(microseconds=1))
        said = {"group_id": group_id, "action": action.value, "at": at, "by": by}
        row = {**group, **said, "until": until, "note": note or None}
        rows.append({name: row.get(name) for name in ACKNOWLEDGEMENTS})
    place, query = files.path(TABLE), typed_rows(rows, ACKNOWLEDGEMENTS)
    for attempt in range(1, ATTEMPTS + 1):
        try:
            write_deltalake(_open(place), QueryBuilder().execute(query), mode="append")
            return
        except (DeltaError, OSError) as error:
            if attempt == ATTEMPTS:
                raise JobError(f"{place} can't be written: {error_line(error)}") from error


def _rows(files: TableFiles) -> list[dict[str, Any]]:
    """All rows of the table; none if it doesn't exist."""
    if not files.has_table(TABLE):
        return []
    return files.query(f"SELECT * FROM {TABLE}", TABLE)


def _open(place: str) -> DeltaTable:
    """The table, which is created if it doesn't exist."""
    fields = [
        Field(name, PrimitiveType(_DELTA_TYPES[kind])) for name, kind in ACKNOWLEDGEMENTS.items()
    ]
    return DeltaTable.create(
        place, schema=Schema(fields), mode="ignore", storage_options=storage_options(place)
    )
