"""Deletes failures with their records, from all files below the tables' root.

    positions -> `purged`, rows out of `records`, then `failures`, then files that nothing needs

If a run is killed at any step, the next one finds the same failures again.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from knafka_jobs.failure_days import rewrite_days
from knafka_jobs.io.delta import Tables, in_days
from knafka_jobs.io.kept_rows import remove_others
from knafka_jobs.materialize import compute_rows
from knafka_jobs.schema import KEY
from knafka_jobs.topic_offsets import LOG_SEPARATOR

DELETED_COLUMNS: Final = ("failure_id", "first_day", "last_day", "day")
"""Columns of `failures` that name a failure to delete, and the days of its rows."""


def delete_failures(
    tables: Tables,
    choose: Callable[[DataFrame], DataFrame],
    fold: Callable[[], object],
    in_topics: DataFrame | None = None,
) -> int:
    """Delete the failures that `choose` selects, with their records; returns how many failures.

    Call it within `Tables.locked`. `fold` adds to the table `failures` all records that are not
    folded into it yet; it is called before and after, since these records would be lost. The
    positions of deleted records are added to the table `purged`, unless their topics have deleted
    the records, too: `in_topics` (`topic_id`, `partition`, `start`) has the first offset of each
    known partition (None: none is known).
    """
    fold()
    chosen_failures = compute_rows(
        tables.read("failures").transform(choose).select(*DELETED_COLUMNS)
    )
    if count := chosen_failures.count():
        days = [row["day"] for row in chosen_failures.select("day").distinct().collect()]
        days_of_records = _days_predicate(chosen_failures)
        records = tables.read("records").where(days_of_records).select("failure_id", *KEY)
        positions = records.join(chosen_failures, "failure_id", "left_semi").select(*KEY)
        if in_topics is not None:
            positions = _still_in_topics(positions, in_topics)
        # Write the positions first, as the compaction deletes from a topic only records that it can
        # account for, and delete the failures last: an interrupted run finds them again.
        tables.append(positions, "purged")
        ids = chosen_failures.select("failure_id")
        for name, days_predicate in (
            ("records", days_of_records),
            ("failures", in_days("day", days)),
        ):
            same_failure = f"{name}.failure_id = more.failure_id"
            tables.remove(ids, name, f"{days_predicate} AND {same_failure}")
        # Fold again, as on an object store a compaction may have appended meanwhile.
        fold()
        rewrite_days(tables, days)
    # Also files that an interrupted run left.
    for name in ("records", "failures"):
        tables.erase_unused_files(name)
    # Rows that other applications keep may be of deleted failures, too.
    remove_others(tables.spark, tables.root)
    return count


def _still_in_topics(positions: DataFrame, in_topics: DataFrame) -> DataFrame:
    """Return the positions of dead letters (`KEY`) that their topics may still have. `in_topics`
    (`topic_id`, `partition`, `start`) has the first offset of each known partition; positions in
    unknown ones are kept."""
    # The topic's own id, without the number of a log.
    topic_id = F.substring_index("topic_id", LOG_SEPARATOR, 1)
    starts = F.broadcast(in_topics.withColumnRenamed("topic_id", "topic"))
    return (
        positions.withColumn("topic", topic_id)
        .join(starts, ["topic", "partition"], "left")
        .where("start IS NULL OR offset >= start")
        .select(*KEY)
    )


def expired_failures(
    failures: DataFrame,
    now: datetime,
    resolved_kept: float | None,
    unresolved_kept: float | None,
    unit: timedelta,
) -> DataFrame:
    """Return the failures whose retention has ended by `now`.

    Resolved failures are kept for `resolved_kept` times `unit` from `resolved` on, unresolved ones
    for `unresolved_kept` times `unit` from the day of their last dead letter on; None: for ever.
    The last day of a retention (in UTC) is kept whole.
    """
    resolved_before, unresolved_before = (
        None if kept is None else (now - kept * unit).date()
        for kept in (resolved_kept, unresolved_kept)
    )
    is_resolved = F.col("resolved").isNotNull()
    is_old = F.lit(False)
    if resolved_before is not None:
        midnight = datetime.combine(resolved_before, datetime.min.time())
        # As text, which Spark reads in its session's time zone, UTC; it would take a `datetime` to
        # be in the time zone of this machine.
        is_old |= is_resolved & (F.col("resolved") < F.lit(str(midnight)).cast("timestamp"))
    if unresolved_before is not None:
        is_old |= ~is_resolved & (F.col("last_day") < F.lit(unresolved_before))
    return failures.where(is_old)


def _days_predicate(chosen_failures: DataFrame) -> str:
    """Return a SQL predicate for records from the first to the last day on which these failures
    have records, so that Delta opens only files of that time. It is `true` if the days of some
    failure are unknown."""
    unknown = "first_day IS NULL OR last_day IS NULL"
    # NULL as the first day if the days of any failure are unknown.
    row = chosen_failures.selectExpr(
        f"CASE WHEN NOT bool_or({unknown}) THEN min(first_day) END AS first",
        "max(last_day) AS last",
    ).first()
    if row is None or row["first"] is None:
        return "true"
    return f"day BETWEEN DATE '{row['first']}' AND DATE '{row['last']}'"
