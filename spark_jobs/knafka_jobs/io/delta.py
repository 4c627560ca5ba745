"""The tables on disk: Delta, below one folder or object store URI.

    ROOT/{records,failures,replays,sent,reports}    tables, see `schema`
    ROOT/checkpoints/                               see `compact.checkpoints`

Every write is one atomic commit. What the rows mean is the features' to know.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from delta.tables import DeltaMergeBuilder, DeltaTable
from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from knafka_jobs.errors import JobError
from knafka_jobs.schema import BOUNDED, TABLES, Columns, ddl

VACUUM_INTERVAL: Final = timedelta(days=1)
"""Listing all files is what VACUUM costs; what it removes waits for a week (Delta's default)."""

_STATISTICS: Final = "delta.dataSkippingStatsColumns"


class Tables:
    """The tables below `root`, made when they are first asked for. Raises `JobError`."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        self.spark = spark
        self.root = root.rstrip("/") if "://" in root else str(Path(root).absolute())
        self._ids: dict[str, str] = {}
        self._there: set[str] = set()

    def path(self, name: str) -> str:
        """Of a table or file."""
        return f"{self.root}/{name}"

    def read(self, name: str) -> DataFrame:
        """A table with its columns in their order."""
        with explained(f"the table {self.path(name)} can't be read"):
            return self._table(name).toDF().select(*TABLES[name])

    def id(self, name: str) -> str:
        """Delta's id of the table: another one is another table, whatever it holds."""
        if name not in self._ids:
            self._ids[name] = str(self._snapshot(name).metadata().id())
        return self._ids[name]

    def exists(self, name: str) -> bool:
        if name not in self._there and DeltaTable.isDeltaTable(self.spark, self.path(name)):
            self._there.add(name)
        return name in self._there

    def is_empty(self, name: str) -> bool:
        """Whether a table has no rows, told by its log: asking Spark costs a query.

        One that was never written is not made for the answer.
        """
        return not self.exists(name) or self.size(name)[0] == 0

    def size(self, name: str) -> tuple[int, int]:
        """How many files a table has, and their bytes in all."""
        snapshot = self._snapshot(name)
        return int(snapshot.numOfFiles()), int(snapshot.sizeInBytes())

    def last_version(self, name: str, writer: str) -> int | None:
        """The number of `writer`'s last commit (`txnVersion`), which Delta keeps in the table."""
        if not self.exists(name):
            return None
        number = self._snapshot(name).transactions().get(writer)
        return int(number.get()) if number.isDefined() else None

    def rows(self, values: Iterable[tuple[Any, ...]], columns: Columns) -> DataFrame:
        """Values as a DataFrame, by way of JSON: createDataFrame would start Python workers."""
        text = json.dumps([dict(zip(columns, each, strict=True)) for each in values], default=str)
        rows = F.from_json(F.lit(text), f"array<struct<{ddl(columns)}>>")
        return self.spark.range(1, numPartitions=1).select(F.inline(rows))

    def append(self, rows: DataFrame, name: str, **options: str) -> None:
        self._write(rows, name, "append", options)

    def replace(self, rows: DataFrame, name: str, where: str) -> None:
        """Put `rows` in the place of those rows of a table that the predicate means."""
        self._write(rows, name, "overwrite", {"replaceWhere": where})

    def upsert(
        self, rows: DataFrame, name: str, on: str, update: Mapping[str, str] | None = None
    ) -> None:
        """MERGE `rows` (called `more`) into a table (called by its name) where `on` holds."""
        merge = self._merge(rows, name, on)
        if update is not None:
            merge = merge.whenMatchedUpdate(set=dict(update))
        merge.whenNotMatchedInsertAll().execute()

    def update(self, rows: DataFrame, name: str, on: str, values: Mapping[str, str]) -> None:
        """UPDATE a table (called by its name) where `on` holds with one of `rows` (`more`)."""
        self._merge(rows, name, on).whenMatchedUpdate(set=dict(values)).execute()

    def remove(self, rows: DataFrame, name: str, on: str) -> None:
        self._merge(rows, name, on).whenMatchedDelete().execute()

    def merge_small_files(self, name: str) -> None:
        """OPTIMIZE a table, and VACUUM it once a day."""
        table = self._table(name)
        table.optimize().executeCompaction()
        vacuumed = (
            table.history().where("operation = 'VACUUM END'").selectExpr("max(timestamp)").first()
        )
        last = None if vacuumed is None else vacuumed[0]
        if last is None or datetime.now(UTC) - last.astimezone(UTC) > VACUUM_INTERVAL:
            table.vacuum()

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Be the one compaction of these tables, where a lock can say so; raises `JobError`.

        On an object store there is no lock: see `Checkpoints.append_batch`.
        """
        if "://" in self.root:
            yield
            return
        Path(self.root).mkdir(parents=True, exist_ok=True)
        with Path(self.root, "compaction.lock").open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise self.in_use() from None
            yield

    def in_use(self) -> JobError:
        return JobError(f"another compaction runs on {self.root}: wait until it is done")

    def file(self, path: str) -> tuple[Any, Any]:
        """Hadoop's path below `root`, and the file system that has it."""
        hadoop = self.spark._jvm.org.apache.hadoop  # type: ignore[union-attr]
        file = hadoop.fs.Path(self.path(path))
        return file, file.getFileSystem(self.spark._jsc.hadoopConfiguration())

    def _merge(self, rows: DataFrame, name: str, on: str) -> DeltaMergeBuilder:
        return self._table(name).alias(name).merge(rows.alias("more"), on)

    def _write(self, rows: DataFrame, name: str, mode: str, options: Mapping[str, str]) -> None:
        self._table(name)  # made with its columns in their order
        writer = rows.select(*TABLES[name]).write.format("delta").options(**options)
        writer.mode(mode).save(self.path(name))

    def _table(self, name: str) -> DeltaTable:
        path = self.path(name)
        with explained(f"the table {path} can't be read"):
            if not self.exists(name):
                made = f"CREATE TABLE delta.`{path}` ({ddl(TABLES[name])}) USING delta"
                if name in BOUNDED:
                    made += f" TBLPROPERTIES ('{_STATISTICS}' = '{','.join(BOUNDED[name])}')"
                self.spark.sql(made)
                self._there.add(name)
            return DeltaTable.forPath(self.spark, path)

    def _snapshot(self, name: str) -> Any:
        """Delta's own view of the table as it is now; `DeltaTable.detail` is a query around it."""
        self._table(name)
        with explained(f"the table {self.path(name)} can't be read"):
            delta = self.spark._jvm.org.apache.spark.sql.delta  # type: ignore[union-attr]
            spark = self.spark._jsparkSession
            return delta.DeltaLog.forTableWithSnapshot(spark, self.path(name))._2()


@contextlib.contextmanager
def explained(what: str) -> Iterator[None]:
    """Spark's errors as a `JobError` that begins with `what`."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise JobError(f"{what}: {first_line(error)}") from error


def first_line(error: PySparkException | Py4JError) -> str:
    """What Spark says, without its stack."""
    said = error.java_exception.toString() if isinstance(error, Py4JJavaError) else str(error)
    return str(said).strip().partition("\n")[0]
