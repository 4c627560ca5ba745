"""The jobs on tables of many sizes: does their cost grow with what is new or with what is there?

    make bench-jobs ARGS="--stored 1000000 5000000 --new 100000"

The tables are made of numbers, without a Kafka: one dead letter of `--bytes` for each failure, over
30 days. On each size are measured: folding what is new (one in a hundred failed before), a report,
a dry run of a replay, and reading the 1,000 dead letters that a replay sends. Prints a table in
Markdown; `MiB read` is what Spark's tasks read of files.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from knafka_jobs.compact import plan
from knafka_jobs.compact.checkpoints import Checkpoints
from knafka_jobs.compact.run import fold
from knafka_jobs.days import known_days
from knafka_jobs.io import session
from knafka_jobs.io.delta import Tables
from knafka_jobs.options import Selection
from knafka_jobs.positions import bounds, within
from knafka_jobs.replay.plan import dead_letters, select
from knafka_jobs.replay.run import preview
from knafka_jobs.report.run import report
from knafka_jobs.schema import RECORDS
from knafka_local import dead_letter_jobs

DAYS: Final = 30
REPLAYED: Final = 1000
ONCE_MORE: Final = 100
"""One of so many new dead letters is of a failure that is there."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--stored", type=int, nargs="+", default=[1_000_000, 5_000_000])
    parser.add_argument("--new", type=int, default=100_000)
    parser.add_argument("--bytes", type=int, default=1024)
    parser.add_argument("--folder", type=Path, help="for the tables; a temporary one if not given")
    given = parser.parse_args()
    os.environ.update(dead_letter_jobs.environment(print))
    spark = session.start("bench")
    print("| stored | job | s | MiB read |\n| ---: | --- | ---: | ---: |", flush=True)
    for stored in given.stored:
        with tempfile.TemporaryDirectory(dir=given.folder) as folder:
            tables = Tables(spark, folder)
            _fill(tables, stored, given.bytes)
            _measure(tables, stored, given.new, given.bytes)
    spark.stop()


def _measure(tables: Tables, stored: int, new: int, size: int) -> None:
    again = F.when(F.col("id") % ONCE_MORE == 0, F.col("id") * 7 % stored)
    number = F.coalesce(again, F.col("id") + stored)
    rows = tables.spark.range(new).withColumn("number", number)
    tables.append(_records(rows, stored, F.lit(datetime.now(UTC)), size), "records")
    wanted = Selection(where=f"offset BETWEEN {stored // 2} AND {stored // 2 + REPLAYED - 1}")

    def read_replayed() -> None:
        failures = tables.read("failures").transform(select, wanted).localCheckpoint()
        records = tables.read("records").where(within(bounds(failures)))
        assert sum(1 for _ in dead_letters(failures, records).toLocalIterator()) >= REPLAYED - 9

    jobs: dict[str, Callable[[], Any]] = {
        f"fold {new:,} new": lambda: fold(Checkpoints(tables)),
        "report": lambda: report(tables, None, datetime.now(UTC)),
        f"dry run of {REPLAYED:,}": lambda: preview(tables, wanted),
        f"read {REPLAYED:,} to replay": read_replayed,
    }
    for name, job in jobs.items():
        before, begun = _bytes_read(tables), time.monotonic()
        job()
        seconds, read = time.monotonic() - begun, _bytes_read(tables) - before
        print(f"| {stored:,} | {name} | {seconds:.1f} | {read / 2**20:,.1f} |", flush=True)


def _fill(tables: Tables, stored: int, size: int) -> None:
    """Tables as compactions of `DAYS` days leave them."""
    begun = datetime.now(UTC) - timedelta(days=DAYS)
    rows = tables.spark.range(stored).withColumn("number", F.col("id"))
    appended = F.timestamp_seconds(
        F.lit(begun.timestamp()) + F.col("id") * (DAYS * 86_400.0 / stored)
    )
    tables.append(_records(rows, 0, appended, size), "records")
    failures = tables.read("records").select(*plan.FOLDED).transform(plan.failures_of)
    tables.append(failures.withColumn("day", F.col("first_day")), "failures")
    known_days(tables, tables.read("failures").limit(1))
    query = (
        tables.spark.readStream.format("delta")
        .load(tables.path("records"))
        .select("offset")
        .writeStream.foreachBatch(lambda *_: None)
        .option("checkpointLocation", tables.path(Checkpoints(tables)._fold_checkpoint()))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def _records(rows: DataFrame, first: int, appended: Any, size: int) -> DataFrame:
    """Dead letters of the events of these `number`s, at offsets from `first` on."""
    text = {"topic": "dead-letters", "topic_id": "id", "namespace": "shop", "broker": "main"}
    text |= {"trigger": "mail", "source": "/bench", "type": "bench", "destination": "http://mail/"}
    text |= {"reason": "status", "error": "ZGIgZG93bg=="}
    number = F.col("number").cast("string")
    made = {name: F.lit(value) for name, value in text.items()}
    made |= {"failure_id": F.md5(number), "id": number, "offset": F.col("id") + first}
    made |= {"partition": F.lit(0), "code": F.lit(503), "attempts": F.lit(3)}
    made |= dict.fromkeys(("appended", "first_attempt", "last_attempt"), appended)
    made |= {"value": F.to_binary(F.repeat(F.md5(number), size // 32), F.lit("utf-8"))}
    made |= {"data_bytes": F.lit(size), "day": F.to_date(appended)}
    return rows.select(
        *(made.get(name, F.lit(None)).cast(kind).alias(name) for name, kind in RECORDS.items())
    )


def _bytes_read(tables: Tables) -> int:
    """Of all stages so far."""
    status = tables.spark.sparkContext._jsc.sc().statusStore()
    executors = status.executorList(False)
    return sum(int(executors.apply(n).totalInputBytes()) for n in range(executors.size()))


if __name__ == "__main__":
    main()
