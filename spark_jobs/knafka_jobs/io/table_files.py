"""The tables' files, read by DataFusion in this process: without Spark and Java.

The package deltalake reads Delta's log and includes DataFusion, so queries are SQL. Tables in S3
are found by the usual variables (AWS_ENDPOINT_URL, AWS_REGION and the keys).
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from arro3.core import Array, DataType, Table
from deltalake import DeltaTable, Field, QueryBuilder, Schema, write_deltalake
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.schema import PrimitiveType

from knafka_jobs.job_errors import JobError, NeedsSpark
from knafka_jobs.schema import LAYOUT, LAYOUT_PROPERTY, Columns

OUT_OF_MEMORY_ERROR: Final = "Resources exhausted"
"""Words of DataFusion's error for a query that its memory doesn't suffice for."""

APPEND_ATTEMPTS: Final = 10
"""How often an append, with the creation of a missing table, is tried: other processes may append
or create the table at the same time."""

SPARK_QUOTES: Final = {"datafusion.sql_parser.dialect": "databricks"}
"""Setting of a session whose SQL quotes names as Spark's does."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
"""The Unix epoch."""


class TableFiles:
    """The tables below `root`, each in the version that it had when it was first used.

    `settings` are those of DataFusion's session; None: its defaults. `store` are delta-rs's options
    of an object store; None: the usual variables say where it is.
    """

    def __init__(
        self,
        root: str,
        settings: Mapping[str, str] | None = None,
        store: Mapping[str, str] | None = None,
    ) -> None:
        """Store the root and open DataFusion's session; no table is opened yet."""
        self._root = root.rstrip("/")
        self._store = _configured_store(root) if store is None else dict(store)
        self._opened: dict[str, DeltaTable | None] = {}
        """Tables by name, as they were when first used; None: the table didn't exist then."""
        self._session = QueryBuilder(None if settings is None else dict(settings))

    @property
    def root(self) -> str:
        """The folder or URI of the tables."""
        return self._root

    @property
    def store(self) -> Mapping[str, str] | None:
        """delta-rs's options of the object store; None: its defaults, or files on disk."""
        return self._store

    def path(self, name: str) -> str:
        """Return the path or URI of a table."""
        return f"{self._root}/{name}"

    def has_table(self, name: str) -> bool:
        """Whether a table exists. Raises `JobError` if it can't be read, and `NeedsSpark` if
        another version of Knafka made it."""
        return self._open_table(name) is not None

    def size(self, name: str) -> int:
        """Return the bytes of a table's files; 0 if there is no such table. Raises as `has_table`
        does."""
        if (table := self._open_table(name)) is None:
            return 0
        sizes = table.get_add_actions(flatten=True)["size_bytes"]
        return sum(size for size in sizes.to_pylist() if size)

    def query(self, sql: str, *tables: str) -> list[dict[str, Any]]:
        """Run a query over these tables; returns its rows, each as values by column. Raises
        `JobError`, also if a table doesn't exist."""
        return [row for rows in self.query_in_batches(sql, *tables) for row in rows]

    def query_in_batches(self, sql: str, *tables: str) -> Iterator[list[dict[str, Any]]]:
        """Run a query over these tables; yields some thousand rows at a time, each as values by
        column. Raises `JobError`, also if a table doesn't exist."""
        for name in tables:
            if not self.has_table(name):
                raise JobError(
                    f"there is no table {self.path(name)}: compact the dead letters first"
                )
        try:
            for batch in self._session.execute(sql):
                yield batch.to_struct_array().to_pylist()
        except Exception as error:  # delta-rs raises what it likes here
            raise self._read_error(error) from error

    def set_option(self, name: str, value: int) -> None:
        """Set an option of DataFusion (`datafusion.NAME`) for further queries."""
        self.run(f"SET datafusion.{name} = {value}")

    def run(self, sql: str) -> list[dict[str, Any]]:
        """Run a statement, which may name tables that were opened before; returns its rows, each as
        values by column.

        Raises `JobError`, and `NeedsSpark` if the statement needs more memory than it may use.
        """
        try:
            rows: list[dict[str, Any]] = (
                self._session.execute(sql).read_all().to_struct_array().to_pylist()
            )
        except Exception as error:  # delta-rs raises what it likes here
            raise self._read_error(error) from error
        return rows

    def _read_error(self, error: Exception) -> JobError:
        """Return the error to raise for a query that failed: `NeedsSpark` if its memory didn't
        suffice, else `JobError`."""
        kind = NeedsSpark if OUT_OF_MEMORY_ERROR in str(error) else JobError
        return kind(f"the tables in {self._root} can't be read: {_error_line(error)}")

    def limit_memory(self, memory: str, temporary_size: str) -> None:
        """Limit the memory of later queries to `memory`. `temporary_size` limits the total size of
        the temporary files that they write when their memory runs out.

        Sizes are written as DataFusion has them, such as `256M`. The files are in Python's
        temporary folder, which is set here, too.
        """
        for setting, value in (
            ("memory_limit", memory),
            ("max_temp_directory_size", temporary_size),
            ("temp_directory", tempfile.gettempdir()),
        ):
            self.run(f"SET datafusion.runtime.{setting} = '{value}'")

    def append(self, name: str, columns: Columns, rows: Sequence[Sequence[Any]]) -> None:
        """Append rows to a table in one commit; a missing table is created. Raises `JobError`.

        Appends of several processes don't conflict: each is committed.
        """
        path = self.path(name)
        new_rows = Table.from_arrays(
            [
                _to_arrow_array([row[number] for row in rows], kind)
                for number, kind in enumerate(columns.values())
            ],
            names=list(columns),
        )
        for attempt in range(1, APPEND_ATTEMPTS + 1):
            try:
                write_deltalake(self._open_or_create(path, columns), new_rows, mode="append")
                return
            except (DeltaError, OSError) as error:
                if attempt == APPEND_ATTEMPTS:
                    raise JobError(f"{path} can't be written: {_error_line(error)}") from error

    def _open_or_create(self, path: str, columns: Columns) -> DeltaTable:
        """Open the table at `path`; it is created with these columns if it doesn't exist."""
        fields = [Field(name, PrimitiveType(_DELTA_TYPES[kind])) for name, kind in columns.items()]
        return DeltaTable.create(
            path, schema=Schema(fields), mode="ignore", storage_options=self._store
        )

    def _open_table(self, name: str) -> DeltaTable | None:
        """Return a table; None if it doesn't exist. The first call opens it, and registers it in
        the session under its name so that queries find it.

        Raises `JobError` if it can't be read, and `NeedsSpark` if another version of Knafka made
        it.
        """
        if name not in self._opened:
            path = self.path(name)
            try:
                table = DeltaTable(path, storage_options=self._store)
            except TableNotFoundError:
                self._opened[name] = None
                return None
            except Exception as error:  # delta-rs raises what it likes here
                raise JobError(f"the table {path} can't be read: {_error_line(error)}") from error
            _check_layout(name, path, table.metadata().configuration)
            self._session.register(name, table)
            self._opened[name] = table
        return self._opened[name]


def _to_arrow_array(values: Sequence[Any], kind: str) -> Array:
    """Return the values of one column as an Arrow array; None stays null. `kind` is the column's
    SQL type; times must have a zone, and are stored in UTC."""
    if kind == "timestamp":
        # Microseconds, the resolution of a `datetime`.
        micros = [
            None if value is None else (value - _EPOCH) // _EPOCH.resolution for value in values
        ]
        return Array(micros, DataType.int64()).cast(DataType.timestamp("us", tz="UTC"))
    return Array(values, _ARROW_TYPES[kind]())


_ARROW_TYPES: Final[Mapping[str, Callable[[], DataType]]] = {
    "string": DataType.utf8,
    "bigint": DataType.int64,
    "int": DataType.int32,
}
"""Arrow's type for each SQL type that can be appended, except `timestamp`, which is converted."""

_DELTA_TYPES: Final = {
    "string": "string",
    "bigint": "long",
    "int": "integer",
    "timestamp": "timestamp",
}
"""Delta's name of each SQL type that can be appended."""


def _check_layout(name: str, path: str, properties: dict[str, str]) -> None:
    """Raise `NeedsSpark` if another version of Knafka made the table."""
    layout = LAYOUT.get(name)
    if layout is not None and int(properties.get(LAYOUT_PROPERTY, "1")) != layout:
        raise NeedsSpark(
            f"{path} was made by another version of Knafka: only a job with Spark can read it"
        )


def s3_options(endpoint: str | None, region: str | None) -> dict[str, str]:
    """Return delta-rs's options for S3 at this endpoint. Without an endpoint (None or empty) it is
    AWS's own S3; without a region, the region is us-east-1."""
    options = {"AWS_REGION": region or "us-east-1"}
    if endpoint:
        allow_http = str(endpoint.startswith("http://")).lower()
        options |= {"AWS_ENDPOINT_URL": endpoint, "AWS_ALLOW_HTTP": allow_http}
    return options


def _configured_store(root: str) -> dict[str, str] | None:
    """Return delta-rs's options for the S3 that the AWS_* variables name. None: the tables are
    elsewhere, or on AWS's own S3, which delta-rs finds by itself."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL")
    if not root.startswith("s3") or not endpoint:
        return None
    return s3_options(endpoint, os.environ.get("AWS_REGION"))


def _error_line(error: Exception) -> str:
    """Return an error on one line of at most 500 characters. All its lines are joined, as the
    reason comes last."""
    return " ".join(str(error).split())[:500]
