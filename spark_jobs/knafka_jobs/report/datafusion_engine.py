"""Runs a report's SQL by DataFusion in this process, on tables that fit one machine.

Its memory is bounded: sorts and sums that need more write temporary files. A report that needs more
all the same is left to Spark (`NeedsSpark`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from knafka_jobs.io.table_files import SPARK_QUOTES, TableFiles
from knafka_jobs.job_errors import NeedsSpark
from knafka_jobs.report.report_engine import REPORT_TABLES, ReportRow, SqlDialect
from knafka_jobs.schema import REPORTS, TABLES, Columns

MAX_FAILURES_BYTES: Final = 1 << 30
"""Largest size in bytes of a table `failures` that this engine reports on: some 15 million
failures."""

MEMORY: Final = "256M"
"""Memory that sorts, sums and joins may use: it must fit beside the JVM in a pod of 2 GiB."""

TEMPORARY_FILES: Final = "8G"
"""Largest size of the temporary files of one report."""

_SQL_TYPES: Final = {
    "string": "VARCHAR",
    "int": "INT",
    "bigint": "BIGINT",
    "date": "DATE",
    "timestamp": "TIMESTAMP WITH TIME ZONE",
}
"""DataFusion's name of each SQL type of `schema` that a table without a file may have."""


def datafusion_text(value: str) -> str:
    """Return a string as a literal of DataFusion's SQL, for a session with `SPARK_QUOTES`."""
    return "'" + value.replace("'", "''") + "'"


DIALECT: Final = SqlDialect(
    text=datafusion_text,
    time="to_timestamp_micros({})".format,
    unix_seconds="CAST(to_unixtime({}) AS BIGINT)".format,
    unnested="unnest({})".format,
)
"""DataFusion's way to write what `SqlDialect` names."""


class DataFusionEngine:
    """Implements `ReportEngine` by DataFusion on the tables' files."""

    dialect = DIALECT

    def __init__(
        self,
        root: str,
        store: Mapping[str, str] | None = None,
        max_bytes: int = MAX_FAILURES_BYTES,
    ) -> None:
        """Open the tables below `root`; queries see a missing one as empty. `store` are
        delta-rs's options of an object store; None: those of the usual environment variables.
        `max_bytes` is the largest size of the table `failures` that is accepted.

        Raises `JobError`. It is a `NeedsSpark` if the report has to be left to Spark, such as if
        `failures` is missing or too large.
        """
        self._files = TableFiles(root, SPARK_QUOTES, store)
        if not self._files.has_table("failures"):
            raise NeedsSpark(f"there is no table {root}/failures yet")
        if (size := self._files.size("failures")) > max_bytes:
            raise NeedsSpark(f"{root}/failures has {size:,} bytes: too many for one process")
        self._files.limit_memory(MEMORY, TEMPORARY_FILES)
        for name in REPORT_TABLES:
            if not self._files.has_table(name):
                self.put(name, TABLES[name], [])

    def query(self, sql: str) -> list[ReportRow]:
        """Run a query, and return its rows in the order of its ORDER BY."""
        return [
            {name: _in_utc(value) for name, value in row.items()} for row in self._files.run(sql)
        ]

    def derive(self, name: str, sql: str, *, repeated: bool = False) -> None:
        """Create the view `name` of a query. Its rows are computed each time they are read, also
        with `repeated`, as they may be too many to keep in memory."""
        self._files.run(f"CREATE OR REPLACE VIEW {name} AS {sql}")

    def compute_now(self, name: str, sql: str) -> None:
        """Compute the rows of a query now, and keep them as the table `name`."""
        self._files.run(f"CREATE OR REPLACE TABLE {name} AS {sql}")

    def put(self, name: str, columns: Columns, rows: Iterable[Sequence[Any]]) -> None:
        """Create the table `name` with these columns and rows.

        Its SQL has the values as literals, each cast to its column's type.
        """
        values = [f"({', '.join(map(_sql_literal, row))})" for row in rows]
        names = ", ".join(f"`{column}`" for column in columns)
        source = f"FROM (VALUES {', '.join(values)}) AS v({names})" if values else "WHERE false"
        # Without rows there is no `v` to take columns from.
        expressions = {column: f"v.`{column}`" if values else "NULL" for column in columns}
        typed_columns = ", ".join(
            f"CAST({expressions[column]} AS {_SQL_TYPES[sql_type]}) AS `{column}`"
            for column, sql_type in columns.items()
        )
        self.compute_now(name, f"SELECT {typed_columns} {source}")

    def append_figures(self, rows: Sequence[Sequence[Any]]) -> None:
        """Append rows to the table `reports` in one commit."""
        self._files.append("reports", REPORTS, rows)


def _sql_literal(value: str | int | None) -> str:
    """Return a value as a literal of DataFusion's SQL; None becomes NULL."""
    if value is None:
        return "NULL"
    return datafusion_text(value) if isinstance(value, str) else str(value)


def _in_utc(value: Any) -> Any:
    """Return a time in UTC; other values stay as they are."""
    return value.astimezone(UTC) if isinstance(value, datetime) else value
