"""The tables on disk: Delta, below one folder or object store URI.

    ROOT/{records,failures,replays,sent,reports,sources}    tables, see `schema`
    ROOT/checkpoints/                                       how far each stream has read

Every write is one atomic commit. Together with `topics`, the only IO of the jobs. Refused here:
what the rows mean.
"""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from delta.tables import DeltaTable
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from knafka_jobs.compaction import MERGE_ON, Source, is_worth_merging, merged
from knafka_jobs.errors import JobError
from knafka_jobs.schema import TABLES, ddl

VACUUM_INTERVAL: Final = timedelta(days=1)
"""Listing all files is what VACUUM costs; what it removes waits for a week (Delta's default)."""

_LOCAL: Final = "file:"


class Tables:
    """The tables below `root`, made when they are first asked for."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        self.spark = spark
        self.root = root.rstrip("/") if "://" in root else str(Path(root).absolute())
        self._ids: dict[str, str] = {}

    def path(self, name: str) -> str:
        return f"{self.root}/{name}"

    def read(self, name: str) -> DataFrame:
        """A table with its columns in their order."""
        with _explained(f"the table {self.path(name)} can't be read"):
            return self._table(name).toDF().select(*TABLES[name])

    def id(self, name: str) -> str:
        """Delta's id of the table: another one is another table, whatever it holds."""
        if name not in self._ids:
            self._ids[name] = str(self._detail(name)["id"])
        return self._ids[name]

    def append(self, rows: DataFrame, name: str) -> None:
        rows.select(*TABLES[name]).write.format("delta").mode("append").save(self.path(name))

    def replace(self, rows: DataFrame, name: str) -> None:
        rows.select(*TABLES[name]).write.format("delta").mode("overwrite").save(self.path(name))

    def rows(self, values: list[tuple[Any, ...]], name: str) -> DataFrame:
        return self.spark.createDataFrame(values, ddl(TABLES[name]))

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
        """What the current checkpoint was made for; None for tables that are new."""
        rows = self.read("sources").where(f"records = '{self.id('records')}'").collect()
        if not rows:
            return None
        return Source(rows[0]["generation"], {each["topic"]: each["topic_id"] for each in rows})

    def write_source(self, source: Source) -> None:
        records = self.id("records")
        rows = [(records, source.generation, *each) for each in source.topics.items()]
        self.replace(self.rows(rows, "sources").coalesce(1), "sources")

    def records_checkpoint(self, source: Source) -> str:
        return f"{self.root}/checkpoints/records-{self.id('records')}-{source.generation}"

    def has_begun(self, checkpoint: str) -> bool:
        """Whether a stream has ever planned a batch on this checkpoint."""
        hadoop = self.spark._jvm.org.apache.hadoop  # type: ignore[union-attr]
        path = hadoop.fs.Path(f"{checkpoint}/offsets/0")
        configuration = self.spark._jsc.hadoopConfiguration()
        return bool(path.getFileSystem(configuration).exists(path))

    def append_stream(self, rows: DataFrame, name: str, checkpoint: str) -> int:
        """Append what a stream has now, each batch exactly once; returns the number of rows."""
        query = (
            rows.writeStream.format("delta")
            .outputMode("append")
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start(self.path(name))
        )
        query.awaitTermination()
        return sum(each["numInputRows"] for each in query.recentProgress)

    def fold_stream(self, fold: Callable[[DataFrame], DataFrame]) -> int:
        """MERGE what is new in `records`, folded, into `failures`; returns how many records.

        Delta notes the batch with the commit, so that one that is repeated after a crash adds
        nothing to the sums.
        """
        stream = f"failures-{self.id('failures')}-{self.id('records')}"

        def merge(batch: DataFrame, number: int) -> None:
            spark = batch.sparkSession
            spark.conf.set("spark.databricks.delta.write.txnAppId", stream)
            spark.conf.set("spark.databricks.delta.write.txnVersion", str(number))
            try:
                target = DeltaTable.forPath(spark, self.path("failures")).alias("failure")
                (
                    target.merge(fold(batch).alias("more"), MERGE_ON)
                    .whenMatchedUpdate(set=merged())  # type: ignore[arg-type]
                    .whenNotMatchedInsertAll()
                    .execute()
                )
            finally:
                spark.conf.unset("spark.databricks.delta.write.txnAppId")
                spark.conf.unset("spark.databricks.delta.write.txnVersion")

        query = (
            self.spark.readStream.format("delta")
            .option("skipChangeCommits", "true")  # a purge takes back what was folded long ago
            .load(self.path("records"))
            .writeStream.foreachBatch(merge)
            .option("checkpointLocation", f"{self.root}/checkpoints/{stream}")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return sum(each["numInputRows"] for each in query.recentProgress)

    def maintain(self, name: str) -> bool:
        """Merge small files if there are many, and drop files that nobody needs; whether it did."""
        detail = self._detail(name)
        if not is_worth_merging(detail["numFiles"], detail["sizeInBytes"]):
            return False
        table = self._table(name)
        table.optimize().executeCompaction()
        vacuumed = (
            table.history().where("operation = 'VACUUM END'").selectExpr("max(timestamp)").first()
        )
        last: datetime | None = vacuumed and vacuumed[0]
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

    def _table(self, name: str) -> DeltaTable:
        path = self.path(name)
        with _explained(f"the table {path} can't be read"):
            if not DeltaTable.isDeltaTable(self.spark, path):
                self.spark.sql(
                    f"CREATE TABLE IF NOT EXISTS delta.`{path}` ({ddl(TABLES[name])}) USING delta"
                )
            return DeltaTable.forPath(self.spark, path)

    def _detail(self, name: str) -> Any:
        return self._table(name).detail().first()


@contextlib.contextmanager
def _explained(what: str) -> Iterator[None]:
    try:
        yield
    except PySparkException as error:
        raise JobError(f"{what}: {first_line(error)}") from error


def first_line(error: BaseException) -> str:
    """What Spark says, without its stack."""
    return str(error).strip().partition("\n")[0]
