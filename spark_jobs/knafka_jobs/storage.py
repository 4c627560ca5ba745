"""The tables on disk: Delta, below one folder or object store URI.

    ROOT/{records,failures,replays,sent,reports,sources}    tables, see `schema`
    ROOT/checkpoints/                                       how far each stream has read

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
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from knafka_jobs.compaction import MERGE_ON, Source, is_worth_merging, merged
from knafka_jobs.errors import JobError
from knafka_jobs.schema import BOUNDED, SOURCES, TABLES, Columns, ddl

VACUUM_INTERVAL: Final = timedelta(days=1)
"""Listing all files is what VACUUM costs; what it removes waits for a week (Delta's default)."""

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

    def replace(self, rows: DataFrame, name: str) -> None:
        self._write(rows, name, "overwrite")

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

    def source(self) -> Source | None:
        """What the current checkpoint was made for; None for tables that are new.

        Raises `JobError` if `records` is not the table that the others were made from.
        """
        if self.is_empty("sources"):
            return None
        rows = self.read("sources").collect()
        if rows[0]["records"] != self.id("records"):
            raise JobError(
                f"{self.path('records')} is not the table that was there: restore it, or remove "
                f"all of {self.root} to start anew with what Kafka still has"
            )
        return Source(rows[0]["generation"], {each["topic"]: each["topic_id"] for each in rows})

    def write_source(self, source: Source) -> None:
        records = self.id("records")
        rows = [(records, source.generation, *each) for each in source.topics.items()]
        self.replace(self.rows(rows, SOURCES), "sources")

    def records_checkpoint(self, source: Source) -> str:
        return f"{self.root}/checkpoints/records-{self.id('records')}-{source.generation}"

    def has_begun(self, checkpoint: str) -> bool:
        """Whether a stream has ever planned a batch on this checkpoint."""
        hadoop = self.spark._jvm.org.apache.hadoop  # type: ignore[union-attr]
        path = hadoop.fs.Path(f"{checkpoint}/offsets")
        system = path.getFileSystem(self.spark._jsc.hadoopConfiguration())
        if not system.exists(path):
            return False
        # The first are dropped in time, and one that is being written is hidden by a dot.
        return any(not each.getPath().getName().startswith(".") for each in system.listStatus(path))

    def append_stream(self, rows: DataFrame, name: str, checkpoint: str) -> int:
        """Append what a stream has now, each batch exactly once; returns the number of rows."""
        # A file for each task, not for each of many Kafka partitions: fewer to merge later.
        tasks = 2 * self.spark.sparkContext.defaultParallelism
        query = (
            rows.coalesce(tasks)
            .writeStream.format("delta")
            .outputMode("append")
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start(self.path(name))
        )
        query.awaitTermination()
        return sum(each["numInputRows"] for each in query.recentProgress)

    def fold_stream(self, fold: Callable[[DataFrame], DataFrame], columns: Iterable[str]) -> int:
        """MERGE what is new in `records`, folded, into `failures`; returns how many records.

        `columns` are those that `fold` needs: a batch is read before Spark could see that.

        Delta notes the batch with the commit, so that one that is repeated after a crash adds
        nothing to the sums.
        """
        stream = f"failures-{self.id('failures')}-{self.id('records')}"
        checkpoint = f"{self.root}/checkpoints/{stream}"
        if not self.has_begun(checkpoint) and not self.is_empty("failures"):
            raise JobError(
                f"the checkpoint {checkpoint} is gone: restore it, or remove "
                f"{self.path('failures')}, which is then folded anew from records"
            )

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

        On an object store Delta and the checkpoint refuse the second one's first commit.
        """
        if "://" in self.root:
            yield
            return
        Path(self.root).mkdir(parents=True, exist_ok=True)
        with Path(self.root, "compaction.lock").open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise JobError(
                    f"another compaction runs on {self.root}: wait until it is done"
                ) from None
            yield

    def _write(self, rows: DataFrame, name: str, mode: str) -> None:
        self._table(name)  # made with its columns in their order
        rows.select(*TABLES[name]).write.format("delta").mode(mode).save(self.path(name))

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
