"""The tables on disk: Delta, below one folder or object store URI.

    ROOT/{records,failures,failure_days,replays,sent,reports,purged,acknowledgements,cancellations,
          replay_progress}
                         tables, see `schema`
    ROOT/checkpoints/    see `compact.checkpoints`

Every write is one atomic commit. The package that writes a table says what its rows mean.
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
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from knafka_jobs.job_errors import JobError
from knafka_jobs.schema import BOUNDED, BY_DAY, LAYOUT, LAYOUT_PROPERTY, TABLES, Columns, ddl

TASK_INTERVAL: Final = timedelta(days=1)
"""Time between two runs of a daily task, such as VACUUM."""

ORPHAN_AGE: Final = timedelta(days=1)
"""Age from which a file that no commit names is unused: no compaction takes so long from its first
file to its commit."""

_STATISTICS: Final = "delta.dataSkippingStatsColumns"
"""Delta's property that lists the columns whose bounds it notes."""
_CREATION_RACE_ERRORS: Final = (
    "TABLE_OR_VIEW_ALREADY_EXISTS",
    "CREATE_TABLE_WITH_NON_EMPTY_LOCATION",
)
"""Delta's errors for a folder that has files but is no table, or isn't one yet."""
CREATION_TIMEOUT: Final = 30.0
"""Seconds to wait for the first commit of a table that another job has begun to create."""
CREATION_CHECK_INTERVAL: Final = 0.1
"""Seconds between two checks for that commit."""


class Tables:
    """The tables below `root`; a table that is missing is created when it is first used.

    Methods raise `JobError` if a table can't be created or read; Spark's errors in queries and
    writes pass, unless the caller uses `explain_spark_errors`. `name` is a table's name in
    `schema.TABLES`.
    """

    def __init__(self, spark: SparkSession, root: str) -> None:
        """Use the tables below the path or URI `root`; none is opened yet."""
        self.spark = spark
        self.root = root.rstrip("/") if "://" in root else str(Path(root).absolute())
        self._ids: dict[str, str] = {}
        """Delta's ids of tables, by name, as they were first read."""
        self._existing: set[str] = set()
        """Names of tables that are known to exist."""

    def path(self, name: str) -> str:
        """Return the path or URI of a table or file below the root."""
        return f"{self.root}/{name}"

    def read(self, name: str) -> DataFrame:
        """Return the rows of a table, with its columns in the order of `schema`."""
        with explain_spark_errors(f"the table {self.path(name)} can't be read"):
            return self._ensure_table(name).toDF().select(*TABLES[name])

    def table_id(self, name: str) -> str:
        """Return Delta's id of the table. A table that is created anew has another id."""
        if name not in self._ids:
            self._ids[name] = str(self._current_snapshot(name).metadata().id())
        return self._ids[name]

    def exists(self, name: str) -> bool:
        """Whether the table has been created."""
        if name not in self._existing and DeltaTable.isDeltaTable(self.spark, self.path(name)):
            self._existing.add(name)
        return name in self._existing

    def is_empty(self, name: str) -> bool:
        """Whether a table has no data files, and so no rows, or doesn't exist. A table whose files
        have no rows isn't empty, as only Delta's log is read, without a query.

        A missing table is not created.
        """
        return not self.exists(name) or self.size(name)[0] == 0

    def size(self, name: str) -> tuple[int, int]:
        """Return the number of a table's files, and their total bytes."""
        snapshot = self._current_snapshot(name)
        checksum = snapshot.checksumOpt()
        if checksum.isDefined():
            return int(checksum.get().numFiles()), int(checksum.get().tableSizeBytes())
        return int(snapshot.numOfFiles()), int(snapshot.sizeInBytes())

    def last_version(self, name: str, writer: str) -> int | None:
        """Return the number (`txnVersion`) of `writer`'s last commit to a table; None if it has
        made none."""
        if not self.exists(name):
            return None
        number = self._current_snapshot(name).transactions().get(writer)
        return int(number.get()) if number.isDefined() else None

    def rows(self, values: Iterable[tuple[Any, ...]], columns: Columns) -> DataFrame:
        """Return `values`, one tuple per row, as a DataFrame with these columns. It is made from
        JSON, as createDataFrame would start Python workers."""
        text = json.dumps([dict(zip(columns, row, strict=True)) for row in values], default=str)
        rows = F.from_json(F.lit(text), f"array<struct<{ddl(columns)}>>")
        return self.spark.range(1, numPartitions=1).select(F.inline(rows))

    def append(self, rows: DataFrame, name: str, **options: str) -> None:
        """Append rows to a table in one commit; `options` are those of Delta's writer."""
        self._write(rows, name, "append", options)

    def replace(self, rows: DataFrame, name: str, where: str) -> None:
        """Replace the rows of a table for which the SQL predicate `where` is true by `rows`."""
        self._write(rows, name, "overwrite", {"replaceWhere": where})

    def upsert(
        self, rows: DataFrame, name: str, on: str, update: Mapping[str, str] | None = None
    ) -> None:
        """MERGE rows into a table: a row that matches a row of the table by the condition `on`
        updates it; all others are inserted.

        `update` has the new values by column; None: existing rows stay unchanged. In the SQL of
        both, the given rows are called `more`, and the table by its own name.
        """
        merge = self._merge(rows, name, on)
        if update is not None:
            merge = merge.whenMatchedUpdate(set=dict(update))
        merge.whenNotMatchedInsertAll().execute()

    def update(self, rows: DataFrame, name: str, on: str, values: Mapping[str, str]) -> None:
        """UPDATE the rows of a table that fulfil the condition `on` with a row of `rows`. `values`
        has the new values by column. In the SQL of both, the given rows are called `more`."""
        self._merge(rows, name, on).whenMatchedUpdate(set=dict(values)).execute()

    def remove(self, rows: DataFrame, name: str, on: str) -> None:
        """DELETE the rows of a table that fulfil the condition `on` with a row of `rows`. In the
        SQL of `on`, the given rows are called `more`."""
        self._merge(rows, name, on).whenMatchedDelete().execute()

    def days_of_small_files(self, name: str, full: int, most: int) -> list[date | None]:
        """Return the days of a table that have more than `most` files of fewer than `full` bytes;
        None among them stands for rows without a day. Reads only Delta's log."""
        if self.size(name)[0] <= most:
            return []
        files = DataFrame(self._current_snapshot(name).allFiles().toDF(), self.spark)
        rows = (
            files.where(F.col("size") < full)
            .groupBy(F.col("partitionValues")["day"].cast("date").alias("day"))
            .count()
        )
        return [row["day"] for row in rows.where(F.col("count") > most).collect()]

    def merge_small_files(self, name: str, where: str) -> None:
        """OPTIMIZE a table: merge the small files of days for which the SQL `where` is true."""
        self._ensure_table(name).optimize().where(where).executeCompaction()

    def vacuum(self, name: str) -> None:
        """VACUUM a table: delete files that it has not used for a week (Delta's default)."""
        self._ensure_table(name).vacuum()

    def is_due(self, name: str, task: str, now: datetime) -> bool:
        """Whether a daily `task` is due for a table: at `now`, it was last done (`note_done`) more
        than a day ago. If it never was, the table's creation counts instead."""
        path, system = self._done_file(name, task)
        if system.exists(path):
            stream = system.open(path)
            text = bytes(stream.readAllBytes())
            stream.close()
            last = float(text) if text.isdigit() else 0.0
        else:
            last = self._creation_time(name)
        return now.timestamp() - last > TASK_INTERVAL.total_seconds()

    def note_done(self, name: str, task: str, now: datetime) -> None:
        """Note that a daily `task` was done for a table, in a file beside the table."""
        path, system = self._done_file(name, task)
        stream = system.create(path, True)
        stream.write(bytearray(b"%d" % now.timestamp()))
        stream.close()

    def _done_file(self, name: str, task: str) -> tuple[Any, Any]:
        """Return Hadoop's path and file system of the file in which `note_done` stores its time."""
        return self.file(f"checkpoints/{task}-{self.table_id(name)}")

    def erase_unused_files(self, name: str) -> None:
        """Delete every data file that the current version of the table does not use.

        Older versions of the table become unreadable at once. To be called within `locked`. On an
        object store, which has no locks, files that no commit names stay for a day
        (`ORPHAN_AGE`): a running compaction may be about to commit them. Raises `JobError` if two
        data files have one name.
        """
        if not self.exists(name):
            return
        snapshot = self._current_snapshot(name)
        used, replaced = (
            self._file_names(snapshot.allFiles()),
            self._file_names(snapshot.tombstones()),
        )
        if len(used) != snapshot.numOfFiles():
            raise JobError(
                f"two data files of {self.path(name)} have one name, so no unused file is erased: "
                "please report this"
            )
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
        """Return the names of the data files in these entries (`actions`) of Delta's log."""
        rows = DataFrame(actions.toDF(), self.spark).select("path").collect()
        return {unquote(row["path"]).rpartition("/")[2] for row in rows}

    def check_layouts(self) -> None:
        """Raise `JobError` if a newer Knafka has made the tables: see `schema.LAYOUT`."""
        for name, known_layout in LAYOUT.items():
            layout = self._layout(name) if self.exists(name) else known_layout
            if layout > known_layout:
                raise JobError(
                    f"{self.path(name)} has layout {layout}, which a newer Knafka made: use that "
                    f"version or a later one (this one reads layout {known_layout})"
                )

    def _layout(self, name: str) -> int:
        """Return the number of a table's layout (`schema.LAYOUT`); 1 if it states none."""
        stored = self._current_snapshot(name).metadata().configuration().get(LAYOUT_PROPERTY)
        return int(stored.get()) if stored.isDefined() else 1

    @contextlib.contextmanager
    def locked(self, job_name: str = "compaction") -> Iterator[None]:
        """Hold the lock of a kind of job on these tables while the context is open. Raises
        `JobError` if another job has it.

        On an object store, which has no locks, nothing is held: see `Checkpoints.append_batch` and
        the module that runs replays for what keeps two jobs apart there.
        """
        if not self.has_locks:
            yield
            return
        Path(self.root).mkdir(parents=True, exist_ok=True)
        with Path(self.root, f"{job_name}.lock").open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise self.in_use_error(job_name) from None
            yield

    @property
    def has_locks(self) -> bool:
        """Whether `locked` holds a lock: on a file system, but not on an object store."""
        return "://" not in self.root

    def in_use_error(self, job_name: str = "compaction") -> JobError:
        """Return the error to raise if another job of this kind runs on these tables."""
        return JobError(
            f"another {job_name} runs on {self.root}: wait until it has ended, then run this again"
        )

    def file(self, path: str) -> tuple[Any, Any]:
        """Return a path below the root as a Hadoop `Path`, and its Hadoop `FileSystem`."""
        hadoop = self.spark._jvm.org.apache.hadoop  # type: ignore[union-attr]
        file = hadoop.fs.Path(self.path(path))
        return file, file.getFileSystem(self.spark._jsc.hadoopConfiguration())

    def _merge(self, rows: DataFrame, name: str, on: str) -> DeltaMergeBuilder:
        """Begin a MERGE of rows (`more` in SQL) into a table, without clauses yet; `on` is the SQL
        condition by which two rows match."""
        return self._ensure_table(name).alias(name).merge(rows.alias("more"), on)

    def _write(self, rows: DataFrame, name: str, mode: str, options: Mapping[str, str]) -> None:
        """Write rows to a table in one commit; `mode` and `options` are those of Spark's writer."""
        self._ensure_table(name)  # creates the table with its columns in their order
        writer = rows.select(*TABLES[name]).write.format("delta").options(**options)
        if name in BY_DAY:
            writer = writer.partitionBy("day")
        writer.mode(mode).save(self.path(name))

    def _ensure_table(self, name: str) -> DeltaTable:
        """Return a table; it is created if it doesn't exist. Raises `JobError`."""
        path = self.path(name)
        with explain_spark_errors(f"the table {path} can't be read"):
            if not self.exists(name):
                self._create_table(name)
                self._existing.add(name)
            return DeltaTable.forPath(self.spark, path)

    def _create_table(self, name: str) -> None:
        """Create a table, or wait until another job has created it. Raises Spark's error unless it
        shows that another job is creating the table; also if that job hasn't finished after
        `CREATION_TIMEOUT` seconds."""
        try:
            self.spark.sql(_create_statement(name, self.path(name)))
        except (PySparkException, Py4JError) as error:
            # A report that starts during the first compaction finds tables half made: the folder
            # of a table exists before its first commit.
            is_being_created = any(words in first_line(error) for words in _CREATION_RACE_ERRORS)
            deadline = time.monotonic() + (CREATION_TIMEOUT if is_being_created else 0.0)
            while not self.exists(name):
                if time.monotonic() >= deadline:
                    raise
                time.sleep(CREATION_CHECK_INTERVAL)
                # Delta caches that the folder is no table.
                self._delta.DeltaLog.clearCache()

    @property
    def _delta(self) -> Any:
        """Delta's Scala package in the JVM."""
        return self.spark._jvm.org.apache.spark.sql.delta  # type: ignore[union-attr]

    def _creation_time(self, name: str) -> float:
        """Return when a table was created, in Unix time; 0 if that isn't known."""
        created_time = self._current_snapshot(name).metadata().createdTime()
        return float(created_time.get()) / 1000 if created_time.isDefined() else 0.0

    def _current_snapshot(self, name: str) -> Any:
        """Return Delta's snapshot of the current table, from Delta's own Scala classes:
        `DeltaTable.detail` would run a query.

        Reading the snapshot's files or writers costs three Spark jobs. Sizes cost none if
        `checksumOpt` is defined: Delta has then written them beside the last commit (`.crc`).
        """
        self._ensure_table(name)
        with explain_spark_errors(f"the table {self.path(name)} can't be read"):
            delta = self._delta
            spark = self.spark._jsparkSession
            # A pair of Scala: Delta's log, and the snapshot.
            return delta.DeltaLog.forTableWithSnapshot(spark, self.path(name))._2()


def _create_statement(name: str, path: str) -> str:
    """Return the SQL that creates the table `name` of `schema` at `path`."""
    statement = f"CREATE TABLE delta.`{path}` ({ddl(TABLES[name])}) USING delta"
    if name in BY_DAY:
        statement += " PARTITIONED BY (day)"
    properties = {_STATISTICS: ",".join(BOUNDED[name])} if name in BOUNDED else {}
    if name in LAYOUT:
        properties[LAYOUT_PROPERTY] = str(LAYOUT[name])
    if properties:
        property_list = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
        statement += f" TBLPROPERTIES ({property_list})"
    return statement


def in_days(column: str, days: Iterable[date | None]) -> str:
    """Return a SQL predicate that is true if `column` is one of these days; None among them stands
    for rows without a day. With it, Delta opens only the files of these days. Without days it is
    `false`."""
    distinct_days = set(days)
    day_list = ", ".join(
        f"DATE '{day}'" for day in sorted(day for day in distinct_days if day is not None)
    )
    predicates = ([f"{column} IN ({day_list})"] if day_list else []) + (
        [f"{column} IS NULL"] if None in distinct_days else []
    )
    return f"({' OR '.join(predicates)})" if predicates else "false"


@contextlib.contextmanager
def explain_spark_errors(prefix: str) -> Iterator[None]:
    """Turn Spark's errors that are raised inside into a `JobError` whose text begins with
    `prefix`."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise JobError(f"{prefix}: {first_line(error)}") from error


def first_line(error: PySparkException | Py4JError) -> str:
    """Return the first line of Spark's error; if jars for S3 are missing, what to do about that."""
    text = error.java_exception.toString() if isinstance(error, Py4JJavaError) else str(error)
    if "org.apache.hadoop.fs.s3a.S3AFileSystem not found" in text:
        return (
            "Spark has no jars for s3a://. `knafka dead-letters` downloads them, and the image "
            "knafka-jobs has them; elsewhere list them in PYSPARK_SUBMIT_ARGS "
            "(docs/how-to/archive-dead-letters.md)"
        )
    return str(text).strip().partition("\n")[0]
