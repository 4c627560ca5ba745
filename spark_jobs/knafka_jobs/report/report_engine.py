"""What a report asks of the tables, whoever runs its SQL: Spark, or one process without Java.

    report_plan ──SQL──> ReportEngine ──rows──> assemble
                          ├── SparkEngine    any size, with executors if there are some
                          └── DataFusionEngine    DataFusion, by the package deltalake: one machine

Pure. The SQL is what both understand; where they differ, it is made by `SqlDialect`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Protocol, TypeAlias

from knafka_jobs.schema import Columns

ReportRow: TypeAlias = Mapping[str, Any]
"""Values by column; times have the zone UTC, binary values are `bytes`."""

WITHOUT_SPARK: Final = ("acknowledgements", "cancellations", "replay_progress")
"""The tables that only delta-rs creates."""

REPORT_TABLES: Final = ("failures", "sent", "replays", "reports", *WITHOUT_SPARK)
"""The tables that a report reads; a missing one counts as empty."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class SqlDialect:
    """How an engine writes what the SQL of the two engines has no common form for."""

    text: Callable[[str], str]
    """A string as a literal, whatever characters it has."""
    time: Callable[[int], str]
    """Microseconds since the Unix epoch as a timestamp."""
    unix_seconds: Callable[[str], str]
    """A timestamp as whole seconds since the Unix epoch."""
    unnested: Callable[[str], str]
    """A row for each element of an array."""

    def moment(self, time: datetime) -> str:
        """Return a time as a literal."""
        return self.time((time - _EPOCH) // _EPOCH.resolution)


class ReportEngine(Protocol):
    """Runs the SQL of a report on the tables. Methods raise `JobError`."""

    dialect: SqlDialect

    def rows(self, sql: str) -> list[ReportRow]:
        """Run a query, and return its rows in order."""

    def derive(self, name: str, sql: str, *, repeated: bool = False) -> None:
        """Name the rows of a query, which may be very many; `repeated`: they are read repeatedly.

        The engine computes them once, or each time they are read.
        """

    def keep(self, name: str, sql: str) -> None:
        """Compute the rows of a query now, and name them; they are few."""

    def put(self, name: str, columns: Columns, rows: Iterable[Sequence[Any]]) -> None:
        """Name rows with these columns and values."""

    def append_figures(self, rows: Sequence[Sequence[Any]]) -> None:
        """Append rows to the table `reports` in one commit."""
