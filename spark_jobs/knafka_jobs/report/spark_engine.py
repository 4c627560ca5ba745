"""Runs a report's SQL by Spark, on tables of any size."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from knafka_jobs.io.delta import Tables, explain_spark_errors
from knafka_jobs.materialize import compute_rows
from knafka_jobs.report.report_engine import (
    REPORT_TABLES,
    WRITTEN_WITHOUT_SPARK,
    ReportRow,
    SqlDialect,
)
from knafka_jobs.schema import REPORTS, TABLES, Columns


def spark_text(value: str) -> str:
    """Return a string as a literal of Spark's SQL.

    `$` is written as an escape, as Spark replaces `${env:NAME}` in SQL before it is parsed.
    """
    escaped = value.replace("\\", "\\\\").replace("'", "\\'").replace("$", "\\u0024")
    return f"'{escaped}'"


DIALECT: Final = SqlDialect(
    text=spark_text,
    time="timestamp_micros({})".format,
    unix_seconds="unix_seconds({})".format,
    unnested="explode({})".format,
)
"""Spark's way to write what `SqlDialect` names."""


class SparkEngine:
    """Implements `ReportEngine` by Spark; the names are those of temporary views of the session."""

    dialect = DIALECT

    def __init__(self, tables: Tables) -> None:
        """Create a temporary view of each table of a report. A missing table is created, unless
        only delta-rs creates it (`WRITTEN_WITHOUT_SPARK`): then its view is empty."""
        self._tables = tables
        for name in REPORT_TABLES:
            if name in WRITTEN_WITHOUT_SPARK and not tables.exists(name):
                self.put(name, TABLES[name], ())
            else:
                tables.read(name).createOrReplaceTempView(name)

    def query(self, sql: str) -> list[ReportRow]:
        """Run a query, and return its rows in the order of its ORDER BY."""
        with explain_spark_errors(f"the tables in {self._tables.root} can't be read"):
            rows = self._tables.spark.sql(sql).collect()
        return [{name: _to_plain(value) for name, value in row.asDict().items()} for row in rows]

    def derive(self, name: str, sql: str, *, repeated: bool = False) -> None:
        """Create the view `name` of a query. `repeated`: the view is read several times, so its
        rows are computed now, once; without, they are computed at each read."""
        rows = self._tables.spark.sql(sql)
        (compute_rows(rows) if repeated else rows).createOrReplaceTempView(name)

    def compute_now(self, name: str, sql: str) -> None:
        """Compute the rows of a query now, and create the view `name` of them."""
        self.derive(name, sql, repeated=True)

    def put(self, name: str, columns: Columns, rows: Iterable[Sequence[Any]]) -> None:
        """Create the view `name` with these columns and rows."""
        self._tables.rows(map(tuple, rows), columns).createOrReplaceTempView(name)

    def append_figures(self, rows: Sequence[Sequence[Any]]) -> None:
        """Append rows to the table `reports` in one commit."""
        self._tables.append(self._tables.rows(map(tuple, rows), REPORTS), "reports")


def _to_plain(value: Any) -> Any:
    """Convert a value that Spark returned to a type of `ReportRow`: a time, which is a local time
    without a zone, to UTC; a `bytearray` to `bytes`. Other values stay as they are."""
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    return bytes(value) if isinstance(value, bytearray) else value
