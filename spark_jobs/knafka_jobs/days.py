"""Where a failure is kept, so that folding opens those days of `failures` alone.

    rows to MERGE --known_days--> key, day --placed--> rows with their `day`
                                     └── days to search: all others can't have any of the rows

A failure's id is a hash: which of the files has it, no bounds tell. `failure_days` does: 64 bits of
the id and a day, a few bytes each, read whole; of `failures` only the days that it names are
opened. It is written before `failures`, so it never lacks a failure that is there: a run that is
killed in between leaves a key too many, which sends the next run to a day without that failure.
Two failures with one key lead to both of their days.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from knafka_jobs.io.delta import Tables, in_days


def known_days(tables: Tables, failures: DataFrame) -> DataFrame:
    """Where those of `failures` may be that the table has: `key`, `day`, without repetition.

    Where somebody has removed `failure_days`, the days are noted anew first.
    """
    if tables.is_empty("failure_days") and not tables.is_empty("failures"):
        rows = tables.read("failures").select(_key().alias("key"), "day")
        tables.append(rows.coalesce(1), "failure_days")
    if tables.is_empty("failure_days"):
        return tables.rows([], {"key": "bigint", "day": "date"})
    wanted = failures.select(_key().alias("key")).distinct()
    found = tables.read("failure_days").join(F.broadcast(wanted), "key", "left_semi")
    return found.distinct().localCheckpoint()


def days_in(known: DataFrame) -> list[date]:
    """The days that have to be searched."""
    return [row["day"] for row in known.select("day").distinct().collect()]


def placed(tables: Tables, failures: DataFrame, known: DataFrame, today: date) -> DataFrame:
    """`failures` with their `day`: the one that is known, else `today`, which is noted for them."""
    keyed = failures.drop("day").withColumn("key", _key())
    fresh = keyed.select("key").distinct().join(F.broadcast(known), "key", "left_anti")
    if not fresh.isEmpty():
        tables.append(fresh.withColumn("day", F.lit(today)).coalesce(1), "failure_days")
    one_day = known.groupBy("key").agg(F.max("day").alias("day"))
    return (
        keyed.join(F.broadcast(one_day), "key", "left")
        .withColumn("day", F.coalesce("day", F.lit(today)))
        .select(*failures.columns)
    )


def renoted(tables: Tables, days: Iterable[date]) -> None:
    """Note anew which failures these days have: others are gone."""
    if (listed := list(days)) and tables.exists("failure_days"):
        where = in_days("day", listed)
        rows = tables.read("failures").where(where).select(_key().alias("key"), "day")
        tables.replace(rows.coalesce(1), "failure_days", where)


def _key() -> Column:
    return F.xxhash64("failure_id")
