"""Stores how far the compaction has come beside the rows, so that a killed run can be continued.

    ROOT/checkpoints/batches-*/NUMBER.json    how far topics are read once a batch is appended
    ROOT/checkpoints/failures-*/              how far `records` was folded (written by Spark)
    ROOT/checkpoints/knafka-*                 times of the last VACUUM and of the last retention

A batch's number is in the same commit as its rows; `ingest_batches` explains why. A row's mark
(`RecordMark`: offset, time and a digest of its content) shows whether Kafka still has that record
at its offset.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date
from typing import Any, Final, NamedTuple

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Observation, Row
from pyspark.sql import functions as F

from knafka_jobs.compact.compact_plan import next_offsets
from knafka_jobs.io.delta import Tables, first_line, in_days
from knafka_jobs.io.kafka_records import mark_of_parts
from knafka_jobs.job_errors import JobError
from knafka_jobs.positions import OffsetBounds, within_bounds
from knafka_jobs.schema import KEY, RECORDS
from knafka_jobs.topic_offsets import (
    Offsets,
    OffsetSpan,
    Partition,
    ReadState,
    RecordMark,
    log_id,
    read_states_of,
    split_log_id,
)

_WRITER: Final = "knafka-compaction"
"""The writer's name (`txnAppId`) under which Delta keeps the last batch's number in the table."""

_TXN: Final = "spark.databricks.delta.write"
"""Prefix of the Spark settings with a writer's name and number, which Delta stores with its next
commits."""

MARK_COLUMNS: Final = (*KEY, "key", "value", "unix_millis(appended) AS at")
"""Columns of `records` that a row's mark (`topic_offsets.RecordMark`) is made from."""


class FoldedBatch(NamedTuple):
    """A batch of `records`, folded into rows of `failures`."""

    rows: DataFrame
    """Rows to MERGE into `failures`."""
    days: Sequence[date]
    """The days of `failures` under which some of these failures may be stored already."""
    records: int
    """Number of records in the batch."""


class Checkpoints:
    """Implements `BatchStore` on the tables, and folds `records` into `failures`."""

    def __init__(self, tables: Tables) -> None:
        """Use these tables; the checkpoint files lie below the same root."""
        self._tables = tables

    def last_batch(self) -> int | None:
        """Return the number of the batch that was appended to `records` last; None before the
        first."""
        return self._tables.last_version("records", _WRITER)

    def offsets_after(self, batch: int) -> Offsets | None:
        """Return how far each partition is read after a batch, as `save_offsets` stored it. None if
        the file is missing or broken."""
        path, system = self._batch_file(batch)
        if not system.exists(path):
            return None
        stream = system.open(path)
        try:
            topics = json.loads(stream.readAllBytes())
        except ValueError:
            return None
        except Py4JJavaError as error:
            if "ChecksumException" not in first_line(error):
                raise
            return None  # the file was not written to its end
        finally:
            stream.close()
        return {
            (topic_id, int(partition)): _read_state(stored_state)
            for topic_id, offsets in topics.items()
            for partition, stored_state in offsets.items()
        }

    def offsets_of_rows(self) -> Offsets:
        """Return how far partitions were read, as the rows of `records` show; used if no offsets
        are saved. Reads the positions of all rows."""
        if self._tables.is_empty("records"):
            return {}
        rows = self._tables.read("records").transform(next_offsets).collect()
        return read_states_of(
            (row["topic_id"], row["partition"], row["first"], row["next"]) for row in rows
        )

    def rows_read_last(
        self, partitions: Mapping[Partition, ReadState]
    ) -> Mapping[Partition, RecordMark]:
        """Return the mark (`RecordMark`) of the row at the offset before `ReadState.next`, for each
        partition that has this row."""
        last_positions, bounds = [], []
        for (topic_id, partition), reached in partitions.items():
            _, log_number = reached.logs()[-1]
            log, last_offset = log_id(topic_id, log_number), reached.next - 1
            last_positions.append((log, partition, last_offset))
            bounds.append(OffsetBounds(log, partition, last_offset, last_offset))
        position_rows = self._tables.rows(last_positions, {name: RECORDS[name] for name in KEY})
        rows = (
            self._tables.read("records")
            # Lets Delta skip files; only the join selects exactly these positions.
            .where(within_bounds(bounds))
            .join(F.broadcast(position_rows), [*KEY], "left_semi")
        )
        return {
            (split_log_id(row["topic_id"])[0], row["partition"]): _mark_of_row(row)
            for row in rows.selectExpr(*MARK_COLUMNS).collect()
        }

    def last_row(self, partition: Partition, reached: ReadState) -> RecordMark | None:
        """Return the mark of a partition's last row below `reached.next`; None if it has no such
        row."""
        rows = self._tables.read("records")
        topic_id, number = partition
        # The latest log first, as the last row may lie in an earlier one.
        for log, piece in reversed(reached.split_by_log(OffsetSpan(0, reached.next))):
            log_bounds = OffsetBounds(log_id(topic_id, log), number, piece.start, piece.end - 1)
            # First find the offset: sorting whole rows would read the content of all of them.
            last = rows.where(within_bounds([log_bounds])).agg(F.max("offset")).first()
            if last is not None and last[0] is not None:
                is_last = within_bounds([log_bounds._replace(first=last[0], last=last[0])])
                (row,) = rows.where(is_last).limit(1).selectExpr(*MARK_COLUMNS).collect()
                return _mark_of_row(row)
        return None

    def save_offsets(self, batch: int, offsets: Offsets) -> None:
        """Save how far partitions are read once the batch with this number is appended; replaces
        what was saved for the number."""
        topics: dict[str, dict[int, ReadState | int]] = {}
        for (topic_id, partition), reached in offsets.items():
            # Without a mark and cuts, the next offset is all there is to save.
            stored_state = reached if reached.mark or reached.cuts else reached.next
            topics.setdefault(topic_id, {})[partition] = stored_state
        path, system = self._batch_file(batch)
        stream = system.create(path, True)
        stream.write(bytearray(json.dumps(topics).encode()))
        stream.close()

    def append_batch(self, rows: DataFrame, batch: int, last: int | None) -> int:
        """Append the rows of a batch to `records` in one commit with its number `batch`; returns
        how many rows.

        `last` is the number of the previous batch; None: there is none. Raises `JobError` if
        another batch was appended since: then another compaction runs on an object store, which has
        no locks.
        """
        tables = self._tables
        if self.last_batch() != last:
            raise tables.in_use_error()
        row_count = Observation()
        # One file per task instead of one per Kafka partition: fewer files to merge later.
        tasks = 2 * tables.spark.sparkContext.defaultParallelism
        rows = rows.coalesce(tasks).observe(row_count, F.count("*").alias("rows"))
        try:
            tables.append(rows, "records", txnAppId=_WRITER, txnVersion=str(batch))
        except (PySparkException, Py4JJavaError) as error:
            if "DELTA_CONCURRENT" not in first_line(error):
                raise
            raise tables.in_use_error() from None
        if self.last_batch() != batch:  # another compaction has appended since
            raise tables.in_use_error()
        self._delete_batches_before(batch)
        return int(row_count.get["rows"])

    def check_fold(self) -> None:
        """Raise `JobError` unless `failures` is empty or was folded from the current table
        `records`."""
        tables = self._tables
        if tables.is_empty("failures") or self._fold_has_begun():
            return
        if tables.is_empty("records"):
            raise JobError(
                f"{tables.path('records')} is not the table that earlier runs wrote: restore that "
                f"table, or remove all of {tables.root} to start anew with what Kafka still has"
            )
        raise JobError(
            f"the checkpoint {tables.path(self._fold_checkpoint_folder())} is gone: restore it, or "
            f"remove {tables.path('failures')}, which the next run then rebuilds from `records`"
        )

    def fold(
        self,
        to_rows: Callable[[Tables, DataFrame], FoldedBatch],
        columns: Iterable[str],
        on: str,
        update: Mapping[str, str],
    ) -> int:
        """Stream the rows of `records` that were not folded yet, and MERGE them, folded, into
        `failures`; returns the number of records.

        `to_rows` folds a batch: it turns it into rows of `failures`. `columns` are the columns of
        `records` that it needs, as a stream reads all columns otherwise. `on` and `update` are SQL
        as in `Tables.upsert`. Delta keeps the number of each streamed batch with its commit, so
        that a batch that is repeated after a crash adds nothing to the counts in `failures`.
        """
        tables, checkpoint = self._tables, self._fold_checkpoint_folder()
        count = 0

        def merge(batch: DataFrame, number: int) -> None:
            """Fold one batch and merge it into `failures`; `number` is the one that Spark gave the
            batch."""
            nonlocal count
            spark = batch.sparkSession
            batch_tables = Tables(spark, tables.root)
            # Spark's own count of a batch's rows counts them once for each time they are read.
            rows, days, records = to_rows(batch_tables, batch)
            count += records
            # Not set before `to_rows`, which may write tables itself: Delta skips every further
            # write that has the same two values, as a repetition of the first.
            spark.conf.set(f"{_TXN}.txnAppId", checkpoint.rpartition("/")[2])
            spark.conf.set(f"{_TXN}.txnVersion", str(number))
            try:
                if not days or batch_tables.is_empty("failures"):
                    # No row exists already, and an append costs less than a MERGE.
                    batch_tables.append(rows, "failures")
                else:
                    in_known_days = in_days("failures.day", days)
                    batch_tables.upsert(rows, "failures", f"{in_known_days} AND {on}", update)
            finally:
                spark.conf.unset(f"{_TXN}.txnAppId")
                spark.conf.unset(f"{_TXN}.txnVersion")

        query = (
            tables.spark.readStream.format("delta")
            .option("skipChangeCommits", "true")  # ignore deletions by a purge
            .load(tables.path("records"))
            .select(*columns)
            .writeStream.foreachBatch(merge)
            .option("checkpointLocation", tables.path(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return count

    def _fold_checkpoint_folder(self) -> str:
        """Return the folder below the root that holds Spark's checkpoint of the stream in `fold`.
        Its name has the ids of both tables, so that the stream begins anew if one of them was
        created anew."""
        failures, records = map(self._tables.table_id, ("failures", "records"))
        return f"checkpoints/failures-{failures}-{records}"

    def _fold_has_begun(self) -> bool:
        """Whether the stream of `fold` has ever begun a batch: then its checkpoint has a file."""
        path, system = self._tables.file(f"{self._fold_checkpoint_folder()}/offsets")
        if not system.exists(path):
            return False
        # One file suffices, as Spark deletes those of old batches. A file whose name begins with a
        # dot isn't written to its end.
        return any(not file.getPath().getName().startswith(".") for file in system.listStatus(path))

    def _batch_file(self, batch: int | None = None) -> tuple[Any, Any]:
        """Return the Hadoop path and file system of the file with a batch's saved offsets; if
        `batch` is None, of the folder that has the files of all batches."""
        folder = f"checkpoints/batches-{self._tables.table_id('records')}"
        return self._tables.file(folder if batch is None else f"{folder}/{batch}.json")

    def _delete_batches_before(self, last: int) -> None:
        """Delete the saved offsets of all batches with a lower number than `last`, also of runs
        that were killed."""
        folder, system = self._batch_file()
        for file in system.listStatus(folder):
            number = file.getPath().getName().partition(".")[0]
            if number.isdecimal() and int(number) < last:
                system.delete(file.getPath(), False)


def _read_state(stored: int | list[Any]) -> ReadState:
    """Return the `ReadState` that `save_offsets` stored for a partition: a list of next offset,
    mark and cuts, or only the next offset if it has neither mark nor cuts."""
    if isinstance(stored, int):
        return ReadState(stored)
    next_, mark, cuts = stored
    return ReadState(next_, None if mark is None else RecordMark(*mark), tuple(cuts))


def _mark_of_row(row: Row) -> RecordMark:
    """Return the mark of a row that has `MARK_COLUMNS`. Its epoch is None, as rows have none."""
    return mark_of_parts(row["offset"], _bytes(row["key"]), _bytes(row["value"]), row["at"], None)


def _bytes(value: bytearray | None) -> bytes | None:
    """Return a row's bytearray as bytes; None stays None."""
    return None if value is None else bytes(value)
