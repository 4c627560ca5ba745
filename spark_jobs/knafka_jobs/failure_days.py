"""Keeps the day of each failure, so that a fold opens only the needed days of `failures`.

A fold adds new dead letters to the table `failures`, which is partitioned by day.

    rows to MERGE --load_known_days--> key, day --assign_days--> rows with their `day`
                                          └── days to search: no others can have these failures

A failure's id is a hash, so the bounds of a file's ids don't tell whether the file has it. The
table `failure_days` tells the day: it has 64 bits of the id (the key) and the day, a few bytes for
each failure, and is read whole. Of `failures` only the days that it names are opened.

`failure_days` is written before `failures`, so it never lacks a failure of that table. A run that
is killed in between leaves a key too many: the next run then opens a day without that failure. Two
failures with the same key lead to both of their days.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from knafka_jobs.io.delta import Tables, in_days
from knafka_jobs.materialize import compute_rows


def load_known_days(tables: Tables, failures: DataFrame) -> DataFrame:
    """Return the days under which the table `failures` may have these failures: distinct rows of
    `key`, `day`.

    If `failure_days` was removed, it is first written anew from the table `failures`.
    """
    if tables.is_empty("failure_days") and not tables.is_empty("failures"):
        rows = tables.read("failures").select(_failure_key().alias("key"), "day")
        tables.append(rows.coalesce(1), "failure_days")
    if tables.is_empty("failure_days"):
        return tables.rows([], {"key": "bigint", "day": "date"})
    keys = failures.select(_failure_key().alias("key")).distinct()
    key_days = tables.read("failure_days").join(F.broadcast(keys), "key", "left_semi")
    return compute_rows(key_days.distinct())


def distinct_days(known_days: DataFrame) -> list[date]:
    """Return each day of these rows of `load_known_days` once: the days to open in `failures`."""
    return [row["day"] for row in known_days.select("day").distinct().collect()]


def assign_days(
    tables: Tables, failures: DataFrame, known_days: DataFrame, today: date
) -> DataFrame:
    """Return the failures with their `day` set: the day in `known_days` (rows of
    `load_known_days`), else `today`. The keys of failures without a known day are added to the
    table `failure_days`, with `today`."""
    keyed = failures.drop("day").withColumn("key", _failure_key())
    # If two new failures share a key, it is added twice, which changes nothing.
    new_keys = keyed.select("key").join(F.broadcast(known_days), "key", "left_anti")
    if not new_keys.isEmpty():
        tables.append(new_keys.withColumn("day", F.lit(today)).coalesce(1), "failure_days")
    # Two failures that share a key may have two days.
    day_of_key = known_days.groupBy("key").agg(F.max("day").alias("day"))
    return (
        keyed.join(F.broadcast(day_of_key), "key", "left")
        .withColumn("day", F.coalesce("day", F.lit(today)))
        .select(*failures.columns)
    )


def rewrite_days(tables: Tables, days: Iterable[date]) -> None:
    """Replace the rows of these days in `failure_days` by those that `failures` still has; call it
    after failures of these days were deleted."""
    if (day_list := list(days)) and tables.exists("failure_days"):
        has_such_day = in_days("day", day_list)
        rows = (
            tables.read("failures").where(has_such_day).select(_failure_key().alias("key"), "day")
        )
        tables.replace(rows.coalesce(1), "failure_days", has_such_day)


def _failure_key() -> Column:
    """Return the column `key` of failures: a hash of 64 bits of the failure's id."""
    return F.xxhash64("failure_id")
