"""The tables on disk: Delta, below one folder or object store URI.

    ROOT/{records,failures,replays,sent,reports}    tables, see `schema`
    ROOT/checkpoints/batches-*/                     how far the topics were read, see `ingest`
    ROOT/checkpoints/failures-*/                    how far `records` was folded

Every write is one atomic commit. Together with `topics`, the only IO of the jobs. Refused here:
what the rows mean.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from delta.tables import DeltaTable
from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from knafka_jobs.compaction import MERGE_ON, is_worth_merging, merged, positions
from knafka_jobs.errors import JobError
from knafka_jobs.ingest import Offsets
from knafka_jobs.schema import BOUNDED, TABLES, Columns, ddl

VACUUM_INTERVAL: Final = timedelta(days=1)
"""Listing all files is what VACUUM costs; what it removes waits for a week (Delta's default)."""

_BATCHES: Final = "knafka-compaction"
"""Under which Delta keeps the number of the last batch in the table, for good."""

_STATISTICS: Final = "delta.dataSkippingStatsColumns"


class Tables:
    """The tables below `root`, made when they are first asked for."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        self.spark = spark
        self.root = root.rstrip("/") if "://" in root else str(Path(root).absolute())
        self._ids: dict[str, str] = {}
        self._there: set[str] = set()

    def path(self, name: str) -> str:
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

    def is_empty(self, name: str) -> bool:
        """Whether a table has no rows, told by its log: asking Spark costs a query.

        One that was never written is not made for the answer.
        """
        return not self._exists(name) or int(self._snapshot(name).numOfFiles()) == 0

    def append(self, rows: DataFrame, name: str) -> None:
        self._write(rows, name, "append")

    def replace(self, rows: DataFrame, name: str, where: str) -> None:
        """Put `rows` in the place of those rows of a table that the predicate means."""
        self._write(rows, name, "overwrite", {"replaceWhere": where})

    def rows(self, values: Iterable[tuple[Any, ...]], columns: Columns) -> DataFrame:
        """Values as a DataFrame, by way of JSON: createDataFrame would start Python workers."""
        text = json.dumps([dict(zip(columns, each, strict=True)) for each in values], default=str)
        rows = F.from_json(F.lit(text), f"array<struct<{ddl(columns)}>>")
        return self.spark.range(1, numPartitions=1).select(F.inline(rows))

    def upsert(
        self, rows: DataFrame, name: str, on: str, update: Mapping[str, str] | None = None
    ) -> None:
        """MERGE `rows` (called `more`) into a table (called by its name) where `on` holds."""
        merge = self._table(name).alias(name).merge(rows.alias("more"), on)
        if update is not None:
            merge = merge.whenMatchedUpdate(set=dict(update))
        merge.whenNotMatchedInsertAll().execute()

    def update(self, rows: DataFrame, name: str, on: str, values: Mapping[str, str]) -> None:
        """UPDATE a table (called by its name) where `on` holds with one of `rows` (`more`)."""
        merge = self._table(name).alias(name).merge(rows.alias("more"), on)
        merge.whenMatchedUpdate(set=dict(values)).execute()

    def remove(self, rows: DataFrame, name: str, on: str) -> None:
        self._table(name).alias(name).merge(rows.alias("more"), on).whenMatchedDelete().execute()

    def last_batch(self) -> int | None:
        """The number of the batch that was appended to `records` last; see `ingest`."""
        if not self._exists("records"):
            return None
        number = self._snapshot("records").transactions().get(_BATCHES)
        return int(number.get()) if number.isDefined() else None

    def noted(self, batch: int) -> Offsets | None:
        """Where reading goes on after a batch; None if the note is gone or broken."""
        path, system = self._note(batch)
        if not system.exists(path):
            return None
        stream = system.open(path)
        try:
            topics = json.loads(stream.readAllBytes())
        except ValueError:
            return None
        except Py4JJavaError as error:
            if "ChecksumException" not in _first_line(error):
                raise
            return None
        finally:
            stream.close()
        return {
            (topic_id, int(partition)): offset
            for topic_id, offsets in topics.items()
            for partition, offset in offsets.items()
        }

    def note(self, batch: int, after: Offsets) -> None:
        topics: dict[str, dict[int, int]] = {}
        for (topic_id, partition), offset in after.items():
            topics.setdefault(topic_id, {})[partition] = offset
        path, system = self._note(batch)
        stream = system.create(path, True)
        stream.write(bytearray(json.dumps(topics).encode()))
        stream.close()

    def held(self) -> Offsets:
        """Where reading goes on by the rows of `records`: reads the positions of all of them."""
        if self.is_empty("records"):
            return {}
        rows = positions(self.read("records")).collect()
        return {(row["topic_id"], row["partition"]): row["next"] for row in rows}

    def append_batch(self, rows: DataFrame, batch: int, last: int | None) -> int:
        """Append a batch to `records` in one commit with its number; returns the number of rows.

        Raises `JobError` if `last` is not the last batch: then another compaction runs, on an
        object store, where no lock says so.
        """
        if self.last_batch() != last:
            raise self._overtaken()
        counted = Observation()
        # A file for each task, not for each of many Kafka partitions: fewer to merge later.
        tasks = 2 * self.spark.sparkContext.defaultParallelism
        rows = rows.coalesce(tasks).observe(counted, F.count("*").alias("rows"))
        numbered = {"txnAppId": _BATCHES, "txnVersion": str(batch)}
        try:
            self._write(rows, "records", "append", numbered)
        except (PySparkException, Py4JJavaError) as error:
            if "DELTA_CONCURRENT" not in _first_line(error):
                raise
            raise self._overtaken() from None
        if self.last_batch() != batch:
            raise self._overtaken()
        self._drop_notes(batch)
        return int(counted.get["rows"])

    def has_begun(self, checkpoint: str) -> bool:
        """Whether a stream has ever planned a batch on this checkpoint."""
        path, system = self._file(f"{checkpoint}/offsets")
        if not system.exists(path):
            return False
        # The first are dropped in time, and one that is being written is hidden by a dot.
        return any(not each.getPath().getName().startswith(".") for each in system.listStatus(path))

    def check(self) -> None:
        """Raise `JobError` unless `failures` was folded from the `records` that are there."""
        if self.is_empty("failures") or self.has_begun(checkpoint := self._fold_checkpoint()):
            return
        if self.is_empty("records"):
            raise JobError(
                f"{self.path('records')} is not the table that was there: restore it, or remove "
                f"all of {self.root} to start anew with what Kafka still has"
            )
        raise JobError(
            f"the checkpoint {checkpoint} is gone: restore it, or remove "
            f"{self.path('failures')}, which is then folded anew from records"
        )

    def fold_stream(self, fold: Callable[[DataFrame], DataFrame], columns: Iterable[str]) -> int:
        """MERGE what is new in `records`, folded, into `failures`; returns how many records.

        `columns` are those that `fold` needs: a batch is read before Spark could see that.

        Delta notes the batch with the commit, so that one that is repeated after a crash adds
        nothing to the sums.
        """
        checkpoint = self._fold_checkpoint()
        stream = checkpoint.rpartition("/")[2]

        def merge(batch: DataFrame, number: int) -> None:
            spark = batch.sparkSession
            spark.conf.set("spark.databricks.delta.write.txnAppId", stream)
            spark.conf.set("spark.databricks.delta.write.txnVersion", str(number))
            try:
                tables, rows = Tables(spark, self.root), fold(batch)
                if tables.is_empty("failures"):
                    tables.append(rows, "failures")  # without what a MERGE with nothing costs
                else:
                    tables.upsert(rows, "failures", MERGE_ON, merged())
            finally:
                spark.conf.unset("spark.databricks.delta.write.txnAppId")
                spark.conf.unset("spark.databricks.delta.write.txnVersion")

        query = (
            self.spark.readStream.format("delta")
            .option("skipChangeCommits", "true")  # a purge takes back what was folded long ago
            .load(self.path("records"))
            .select(*columns)
            .writeStream.foreachBatch(merge)
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return sum(each["numInputRows"] for each in query.recentProgress)

    def maintain(self, name: str) -> bool:
        """Merge small files if there are many, and drop files that nobody needs; whether it did."""
        snapshot = self._snapshot(name)
        if not is_worth_merging(int(snapshot.numOfFiles()), int(snapshot.sizeInBytes())):
            return False
        table = self._table(name)
        table.optimize().executeCompaction()
        vacuumed = (
            table.history().where("operation = 'VACUUM END'").selectExpr("max(timestamp)").first()
        )
        last = None if vacuumed is None else vacuumed[0]
        if last is None or datetime.now(UTC) - last.astimezone(UTC) > VACUUM_INTERVAL:
            table.vacuum()
        return True

    @contextlib.contextmanager
    def compacting(self) -> Iterator[None]:
        """Be the one compaction of these tables, where a lock can say so; raises `JobError`.

        On an object store there is no lock: see `append_batch`.
        """
        if "://" in self.root:
            yield
            return
        Path(self.root).mkdir(parents=True, exist_ok=True)
        with Path(self.root, "compaction.lock").open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise self._overtaken() from None
            yield

    def _fold_checkpoint(self) -> str:
        return f"{self.root}/checkpoints/failures-{self.id('failures')}-{self.id('records')}"

    def _note(self, batch: int | None = None) -> tuple[Any, Any]:
        """The file of a note, or the folder of them all, and the file system that has it."""
        folder = f"{self.root}/checkpoints/batches-{self.id('records')}"
        return self._file(folder if batch is None else f"{folder}/{batch}.json")

    def _drop_notes(self, last: int) -> None:
        """Drop the notes of earlier batches, and those of runs that were killed."""
        folder, system = self._note()
        for each in system.listStatus(folder):
            number = each.getPath().getName().partition(".")[0]
            if number.isdecimal() and int(number) < last:
                system.delete(each.getPath(), False)

    def _file(self, path: str) -> tuple[Any, Any]:
        """Hadoop's path and the file system that has it."""
        file = self.spark._jvm.org.apache.hadoop.fs.Path(path)  # type: ignore[union-attr]
        return file, file.getFileSystem(self.spark._jsc.hadoopConfiguration())

    def _overtaken(self) -> JobError:
        return JobError(f"another compaction runs on {self.root}: wait until it is done")

    def _write(
        self, rows: DataFrame, name: str, mode: str, options: Mapping[str, str] | None = None
    ) -> None:
        self._table(name)  # made with its columns in their order
        writer = rows.select(*TABLES[name]).write.format("delta").options(**(options or {}))
        writer.mode(mode).save(self.path(name))

    def _table(self, name: str) -> DeltaTable:
        path = self.path(name)
        with explained(f"the table {path} can't be read"):
            if not self._exists(name):
                made = f"CREATE TABLE delta.`{path}` ({ddl(TABLES[name])}) USING delta"
                if name in BOUNDED:
                    made += f" TBLPROPERTIES ('{_STATISTICS}' = '{','.join(BOUNDED[name])}')"
                self.spark.sql(made)
                self._there.add(name)
            return DeltaTable.forPath(self.spark, path)

    def _exists(self, name: str) -> bool:
        if name not in self._there and DeltaTable.isDeltaTable(self.spark, self.path(name)):
            self._there.add(name)
        return name in self._there

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
        raise JobError(f"{what}: {_first_line(error)}") from error


def _first_line(error: PySparkException | Py4JError) -> str:
    """What Spark says, without its stack."""
    said = error.java_exception.toString() if isinstance(error, Py4JJavaError) else str(error)
    return str(said).strip().partition("\n")[0]
