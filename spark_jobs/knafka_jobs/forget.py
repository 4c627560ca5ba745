"""Forgetting failures with their records, so that no file below the tables' root has them.

    positions -> `purged`, rows out of `records`, then `failures`, then files that nothing needs

Cut short at any step, it finds the same failures again.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from knafka_jobs.days import renoted
from knafka_jobs.io.delta import Tables, in_days
from knafka_jobs.schema import KEY
from knafka_jobs.topics import LOG_SEPARATOR

FORGOTTEN: Final = ("failure_id", "first_day", "last_day", "day")
"""Columns of `failures` that say what is forgotten, and where it is."""


def forget(
    tables: Tables,
    choose: Callable[[DataFrame], DataFrame],
    fold: Callable[[], object],
    in_topics: DataFrame | None = None,
) -> int:
    """Forget those of `failures` that are chosen; returns how many. To be called within `locked`.

    `fold` brings all of `records` into `failures`: what is not folded yet could not be read any
    more. `in_topics` (`topic_id`, `partition`, `start`) is where known partitions begin now: what
    lay before needn't be accounted for.
    """
    fold()
    wanted = tables.read("failures").transform(choose).select(*FORGOTTEN).localCheckpoint()
    if count := wanted.count():
        days = [row["day"] for row in wanted.select("day").distinct().collect()]
        between = _between(wanted)
        records = tables.read("records").where(between).select("failure_id", *KEY)
        positions = records.join(wanted, "failure_id", "left_semi").select(*KEY)
        if in_topics is not None:
            # Whichever of a topic's logs it is.
            topic_id = F.substring_index("topic_id", LOG_SEPARATOR, 1)
            starts = F.broadcast(in_topics.withColumnRenamed("topic_id", "topic"))
            positions = (
                positions.withColumn("topic", topic_id)
                .join(starts, ["topic", "partition"], "left")
                .where("start IS NULL OR offset >= start")
                .select(*KEY)
            )
        # The positions first, as the compaction deletes from a topic only what it can account for,
        # and the failures last: a run that was cut short finds them again.
        tables.append(positions, "purged")
        for name, where in (("records", between), ("failures", in_days("day", days))):
            on = f"{name}.failure_id = more.failure_id"
            tables.remove(wanted.select("failure_id"), name, f"{where} AND {on}")
        # Again, as on an object store nothing has kept a compaction from appending meanwhile.
        fold()
        renoted(tables, days)
    # Also of a run that was cut short.
    for name in ("records", "failures"):
        tables.erase_unused_files(name)
    return count


def expired(
    failures: DataFrame, resolved_before: date | None, unresolved_before: date | None
) -> DataFrame:
    """Failures that were resolved before a day, and those that aren't and failed before one."""
    is_resolved = F.col("resolved").isNotNull()
    is_old = F.lit(False)
    if resolved_before is not None:
        midnight = datetime.combine(resolved_before, datetime.min.time())
        is_old |= is_resolved & (F.col("resolved") < F.lit(str(midnight)).cast("timestamp"))
    if unresolved_before is not None:
        is_old |= ~is_resolved & (F.col("last_day") < F.lit(unresolved_before))
    return failures.where(is_old)


def _between(wanted: DataFrame) -> str:
    """Where the records of these failures are, in SQL; everywhere if a failure doesn't say it."""
    unknown = "first_day IS NULL OR last_day IS NULL"
    row = wanted.selectExpr(
        f"CASE WHEN NOT bool_or({unknown}) THEN min(first_day) END AS first",
        "max(last_day) AS last",
    ).first()
    if row is None or row["first"] is None:
        return "true"
    return f"day BETWEEN DATE '{row['first']}' AND DATE '{row['last']}'"
