"""The tables on disk: Delta, below one folder or object store URI.

    ROOT/{records,failures,failure_days,replays,sent,reports,purged}    tables, see `schema`
    ROOT/checkpoints/                                                   see `compact.checkpoints`

Every write is one atomic commit. What the rows mean is the features' to know.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from delta.tables import DeltaMergeBuilder, DeltaTable
from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from knafka_jobs.errors import JobError
from knafka_jobs.schema import BOUNDED, BY_DAY, LAYOUT, LAYOUT_PROPERTY, TABLES, Columns, ddl

CLOCK_INTERVAL: Final = timedelta(days=1)
"""Between two times of what is done daily."""

ORPHAN_AGE: Final = timedelta(days=1)
"""Longer than any run of the compaction takes from its first file to its commit."""

_STATISTICS: Final = "delta.dataSkippingStatsColumns"
_HALF_MADE: Final = ("TABLE_OR_VIEW_ALREADY_EXISTS", "CREATE_TABLE_WITH_NON_EMPTY_LOCATION")
"""Delta's words of a folder with something in it that is no table (yet)."""
CREATION_TIMEOUT: Final = 30.0
"""Seconds for another job's first commit of a table that it has begun to make."""
CREATION_CHECK_INTERVAL: Final = 0.1


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

    def correct(self, name: str, where: Column, values: Mapping[str, Column]) -> None:
        """UPDATE those rows of a table for which `where` holds, in one commit."""
        self._table(name).update(where, dict(values))

    def remove(self, rows: DataFrame, name: str, on: str) -> None:
        self._merge(rows, name, on).whenMatchedDelete().execute()

    def days_of_small_files(self, name: str, full: int, most: int) -> list[date | None]:
        """The days of a table that have more than `most` files below `full` bytes, by its log."""
        if self.size(name)[0] <= most:
            return []
        files = DataFrame(self._snapshot(name).allFiles().toDF(), self.spark)
        rows = (
            files.where(F.col("size") < full)
            .groupBy(F.col("partitionValues")["day"].cast("date").alias("day"))
            .count()
        )
        return [row["day"] for row in rows.where(F.col("count") > most).collect()]

    def merge_small_files(self, name: str, where: str) -> None:
        """OPTIMIZE the days of a table that the predicate means."""
        self._table(name).optimize().where(where).executeCompaction()

    def vacuum(self, name: str) -> None:
        """VACUUM a table; keeps a week (Delta's default)."""
        self._table(name).vacuum()

    def is_due(self, name: str, clock: str, now: datetime) -> bool:
        """Whether `set_clock` was a day ago; if it never was, whether the table is a day old."""
        path, system = self._clock(name, clock)
        if system.exists(path):
            stream = system.open(path)
            text = bytes(stream.readAllBytes())
            stream.close()
            last = float(text) if text.isdigit() else 0.0
        else:
            # Earlier versions noted it as a transaction's number.
            last = self.last_version(name, clock) or self._created(name)
        return now.timestamp() - last > CLOCK_INTERVAL.total_seconds()

    def set_clock(self, name: str, clock: str, now: datetime) -> None:
        """Note when something was done to a table, in a file beside it."""
        path, system = self._clock(name, clock)
        stream = system.create(path, True)
        stream.write(bytearray(b"%d" % now.timestamp()))
        stream.close()

    def _clock(self, name: str, clock: str) -> tuple[Any, Any]:
        return self.file(f"checkpoints/{clock}-{self.id(name)}")

    def erase_unused_files(self, name: str) -> None:
        """Delete every data file that the table, as it is now, does not consist of.

        Older versions of the table, and who is reading one, lose them at once. To be called within
        `locked`. Where no lock can be, files that no commit has named are left for a day: a
        compaction that runs may be about to.
        """
        if not self.exists(name):
            return
        snapshot = self._snapshot(name)
        used, replaced = (
            self._file_names(snapshot.allFiles()),
            self._file_names(snapshot.tombstones()),
        )
        if len(used) != snapshot.numOfFiles():
            raise JobError(f"the files of {self.path(name)} can't be told apart: nothing is erased")
        unclaimed_before = time.time() - (ORPHAN_AGE.total_seconds() if "://" in self.root else 0)
        folder, system = self.file(name)
        files = system.listFiles(folder, True)
        while files.hasNext():
            file = files.next()
            path = file.getPath()
            file_name = path.getName()
            if "/_delta_log/" in path.toString() or file_name in used:
                continue
            if file_name in replaced or file.getModificationTime() / 1000 <= unclaimed_before:
                system.delete(path, False)

    def _file_names(self, actions: Any) -> set[str]:
        """Names of data files, which are unique, of Delta's actions on them."""
        rows = DataFrame(actions.toDF(), self.spark).select("path").collect()
        return {unquote(row["path"]).rpartition("/")[2] for row in rows}

    def check_layouts(self) -> None:
        """Raises `JobError` if a newer Knafka has made the tables: see `schema.LAYOUT`."""
        for name, known in LAYOUT.items():
            layout = self._layout(name) if self.exists(name) else known
            if layout > known:
                raise JobError(
                    f"{self.path(name)} has layout {layout}, which a newer Knafka made: use that"
                )

    def _layout(self, name: str) -> int:
        noted = self._snapshot(name).metadata().configuration().get(LAYOUT_PROPERTY)
        return int(noted.get()) if noted.isDefined() else 1

    @contextlib.contextmanager
    def locked(self, what: str = "compaction") -> Iterator[None]:
        """Be the one compaction, or replay, of these tables, where a lock can say so; raises
        `JobError`.

        On an object store there is no lock: see `Checkpoints.append_batch` and `replay.run`.
        """
        if not self.has_locks:
            yield
            return
        Path(self.root).mkdir(parents=True, exist_ok=True)
        with Path(self.root, f"{what}.lock").open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise self.in_use(what) from None
            yield

    @property
    def has_locks(self) -> bool:
        """Whether a lock says that these tables are in use: not on an object store."""
        return "://" not in self.root

    def in_use(self, what: str = "compaction") -> JobError:
        return JobError(f"another {what} runs on {self.root}: wait until it is done")

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
        if name in BY_DAY:
            writer = writer.partitionBy("day")
        writer.mode(mode).save(self.path(name))

    def _table(self, name: str) -> DeltaTable:
        path = self.path(name)
        with explained(f"the table {path} can't be read"):
            if not self.exists(name):
                made = f"CREATE TABLE delta.`{path}` ({ddl(TABLES[name])}) USING delta"
                if name in BY_DAY:
                    made += " PARTITIONED BY (day)"
                properties = {_STATISTICS: ",".join(BOUNDED[name])} if name in BOUNDED else {}
                if name in LAYOUT:
                    properties[LAYOUT_PROPERTY] = str(LAYOUT[name])
                if properties:
                    listed = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
                    made += f" TBLPROPERTIES ({listed})"
                try:
                    self.spark.sql(made)
                except (PySparkException, Py4JError) as error:
                    # A report may begin with the first compaction: then the other has made it, or
                    # has begun to: its folder is there before its first commit.
                    begun = any(words in first_line(error) for words in _HALF_MADE)
                    deadline = time.monotonic() + (CREATION_TIMEOUT if begun else 0.0)
                    while not self.exists(name):
                        if time.monotonic() >= deadline:
                            raise
                        time.sleep(CREATION_CHECK_INTERVAL)
                        # What was no table is remembered as that.
                        self._delta.DeltaLog.clearCache()
                self._there.add(name)
            return DeltaTable.forPath(self.spark, path)

    @property
    def _delta(self) -> Any:
        """Delta's own package in the JVM."""
        return self.spark._jvm.org.apache.spark.sql.delta  # type: ignore[union-attr]

    def _created(self, name: str) -> float:
        """When a table was made, in Unix time."""
        made = self._snapshot(name).metadata().createdTime()
        return float(made.get()) / 1000 if made.isDefined() else 0.0

    def _snapshot(self, name: str) -> Any:
        """Delta's own view of the table as it is now; `DeltaTable.detail` is a query around it."""
        self._table(name)
        with explained(f"the table {self.path(name)} can't be read"):
            delta = self._delta
            spark = self.spark._jsparkSession
            return delta.DeltaLog.forTableWithSnapshot(spark, self.path(name))._2()


def in_days(column: str, days: Iterable[date | None]) -> str:
    """A predicate in SQL by which Delta opens these partitions alone; false for none at all."""
    found = set(days)
    listed = ", ".join(f"DATE '{each}'" for each in sorted(day for day in found if day is not None))
    said = ([f"{column} IN ({listed})"] if listed else []) + (
        [f"{column} IS NULL"] if None in found else []
    )
    return f"({' OR '.join(said)})" if said else "false"


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
    if "org.apache.hadoop.fs.s3a.S3AFileSystem not found" in said:
        return (
            "Spark has no jars for s3a://. `knafka dead-letters` fetches them and the image "
            "knafka-jobs has them; elsewhere name them in PYSPARK_SUBMIT_ARGS "
            "(docs/how-to/archive-dead-letters.md)"
        )
    return str(said).strip().partition("\n")[0]
