"""Appends rows without Spark, to tables that Spark only reads.

Each call is one commit of Delta's log. Appends don't conflict, so of several at once every one is
committed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from deltalake import DeltaTable, Field, QueryBuilder, Schema, write_deltalake
from deltalake.exceptions import DeltaError
from deltalake.schema import PrimitiveType

from knafka_jobs.io.table_files import TableFiles, error_line, storage_options
from knafka_jobs.job_errors import JobError
from knafka_jobs.lookup.lookup_plan import typed_rows
from knafka_jobs.schema import TABLES

APPEND_ATTEMPTS: Final = 10
"""Attempts to append, and before that to create the table: others may do it at the same time."""
_DELTA_TYPES: Final = {"string": "string", "int": "integer", "timestamp": "timestamp"}
"""Delta's name of each SQL type."""


def append_rows(files: TableFiles, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Append rows to a table, which is created if it doesn't exist. Raises `JobError`."""
    place, query = files.path(table), typed_rows(rows, TABLES[table])
    for attempt in range(1, APPEND_ATTEMPTS + 1):
        try:
            write_deltalake(_open(place, table), QueryBuilder().execute(query), mode="append")
            return
        except (DeltaError, OSError) as error:
            if attempt == APPEND_ATTEMPTS:
                raise JobError(f"{place} can't be written: {error_line(error)}") from error


def _open(place: str, table: str) -> DeltaTable:
    """The table, which is created if it doesn't exist."""
    fields = [
        Field(name, PrimitiveType(_DELTA_TYPES[kind])) for name, kind in TABLES[table].items()
    ]
    return DeltaTable.create(
        place, schema=Schema(fields), mode="ignore", storage_options=storage_options(place)
    )
