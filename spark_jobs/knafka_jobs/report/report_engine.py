"""Report engine: the interface by which a report runs its SQL on the tables, by Spark or in one
process without Java.

    report_plan ──SQL──> ReportEngine ──rows──> assemble
                          ├── SparkEngine    any size, with executors if there are some
                          └── DataFusionEngine    DataFusion, by the package deltalake: one machine

Pure. Both engines understand the SQL; `SqlDialect` makes the parts in which they differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Protocol, TypeAlias

from knafka_jobs.schema import Columns

ReportRow: TypeAlias = Mapping[str, Any]
"""Values by column; times have the zone UTC, binary values are `bytes`."""

WRITTEN_WITHOUT_SPARK: Final = ("acknowledgements", "cancellations", "replay_progress")
"""The tables that only delta-rs creates."""

REPORT_TABLES: Final = ("failures", "sent", "replays", "reports", *WRITTEN_WITHOUT_SPARK)
"""The tables that a report reads; a missing one counts as empty."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
"""The Unix epoch."""


@dataclass(frozen=True, slots=True)
class SqlDialect:
    """The functions that write the SQL in which the two engines differ; each returns SQL."""

    text: Callable[[str], str]
    """Returns a string as a literal, whatever characters it has."""
    time: Callable[[int], str]
    """Returns the timestamp that is this number of microseconds after the Unix epoch."""
    unix_seconds: Callable[[str], str]
    """Returns a timestamp (an expression) as whole seconds since the Unix epoch."""
    unnested: Callable[[str], str]
    """Returns the expression that makes a row of each element of an array."""

    def moment(self, time: datetime) -> str:
        """Return SQL for a time as a literal, to the microsecond."""
        microseconds = (time - _EPOCH) // _EPOCH.resolution
        return self.time(microseconds)


class ReportEngine(Protocol):
    """Runs the SQL of a report on the tables. Methods raise `JobError`."""

    dialect: SqlDialect
    """Writes the parts of the SQL in which engines differ."""

    def query(self, sql: str) -> list[ReportRow]:
        """Run a query, and return its rows in the order of its ORDER BY."""

    def derive(self, name: str, sql: str, *, repeated: bool = False) -> None:
        """Make the rows of a query, which may be very many, available to later queries as `name`.

        `repeated`: later queries read the rows several times. The engine decides whether to compute
        them once, or each time they are read.
        """

    def compute_now(self, name: str, sql: str) -> None:
        """Compute the rows of a query now, and make them available to later queries as `name`; they
        must be few."""

    def put(self, name: str, columns: Columns, rows: Iterable[Sequence[Any]]) -> None:
        """Make rows with these columns and values available to later queries as `name`."""

    def append_figures(self, rows: Sequence[Sequence[Any]]) -> None:
        """Append rows to the table `reports` in one commit."""
