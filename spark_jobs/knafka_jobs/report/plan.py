"""What a report counts: failures by group, over time, with examples, and the replays.

DataFrames in and out, of which `assemble` makes the document; `with_few_summaries` and `examples`
run a job each, to know what to read whole.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Final, TypeAlias

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from knafka_jobs.report.document import MAX_EXAMPLES, MAX_SUMMARIES, MAX_TOPS, OTHERS
from knafka_jobs.schema import FAILED_AGAIN, FAILURES, GROUP, KIND, RESOLVED, TRIGGER, Columns
from knafka_jobs.topics import BrokerName

SPANS: Final[Columns] = {
    **TRIGGER,
    "topic": "string",
    "partition": "int",
    "start": "bigint",
    "end": "bigint",
}
"""What a Trigger has settled of its events' topic: from `start`, inclusive, to `end`, exclusive."""

GroupKey: TypeAlias = tuple[str, str, str, str, str, int | None, str]


def of_broker(rows: DataFrame, broker: BrokerName | None) -> DataFrame:
    """The rows of a Broker; all of them for None."""
    if broker is None:
        return rows
    return rows.where((F.col("namespace") == broker.namespace) & (F.col("broker") == broker.name))


def reported(failures: DataFrame, since: datetime) -> DataFrame:
    """What a report is about: all that is unresolved, and what failed or was resolved `since`."""
    is_recent = (F.col("last_failed") >= F.lit(since)) | (F.col("resolved") >= F.lit(since))
    return failures.where(F.col("resolved").isNull() | is_recent)


def summaries(failures: DataFrame) -> DataFrame:
    """What is said of each kind: `KIND`, `said`, `events`, `first_failed`, and its `rank`, 1 for
    the most frequent one. A report has groups of its own for those up to `MAX_SUMMARIES`."""
    by_count = Window.partitionBy(*KIND).orderBy(F.desc("events"), "said")
    return (
        failures.groupBy(*KIND, F.coalesce("summary", F.lit("")).alias("said"))
        .agg(F.count("*").alias("events"), F.min("first_failed").alias("first_failed"))
        .withColumn("rank", F.row_number().over(by_count))
    )


def with_few_summaries(failures: DataFrame, summaries: DataFrame) -> DataFrame:
    """`failures` of which all that are in no frequent group of their kind say `OTHERS`."""
    said = F.coalesce("summary", F.lit(""))
    if summaries.where(F.col("rank") > MAX_SUMMARIES).isEmpty():
        return failures.withColumn("summary", said)
    frequent = summaries.where(F.col("rank") <= MAX_SUMMARIES).select(
        F.struct(*KIND, "said").alias("known")
    )
    same = F.struct(*KIND, said.alias("said")).eqNullSafe(F.col("known"))
    return (
        failures.join(F.broadcast(frequent), same, "left")
        .withColumn("summary", F.when(F.col("known").isNull(), OTHERS).otherwise(said))
        .drop("known")
    )


def sums(failures: DataFrame, before: datetime | None) -> DataFrame:
    """One row for each type and source of a group, `GROUP` with both: its sums, and how many were
    resolved since the report of `before`."""
    is_open = F.col("resolved").isNull()
    was_resolved = ~is_open if before is None else F.col("resolved") > F.lit(before)
    return failures.groupBy(*GROUP, "type", "source").agg(
        F.count("*").alias("events"),
        F.sum("failures").alias("failures"),
        F.count_if(is_open).alias("unresolved"),
        F.count_if(was_resolved).alias("resolved"),
        F.sum("retries").alias("retries"),
        F.min("first_failed").alias("first_seen"),
        F.max("last_failed").alias("last_seen"),
        F.min(F.when(is_open, F.col("first_failed"))).alias("oldest_unresolved"),
    )


def groups(sums: DataFrame) -> DataFrame:
    """One row a group, of `sums`."""
    added = ("events", "failures", "unresolved", "resolved", "retries")
    return sums.groupBy(*GROUP).agg(
        *(F.sum(each).alias(each) for each in added),
        F.min("first_seen").alias("first_seen"),
        F.max("last_seen").alias("last_seen"),
        F.min("oldest_unresolved").alias("oldest_unresolved"),
    )


def buckets(failures: DataFrame, since: datetime, until: datetime, seconds: int) -> DataFrame:
    """Failures by group and stretch of time: `GROUP`, `start` (Unix seconds), `failures`."""
    start = (F.floor(F.unix_timestamp("at") / seconds) * seconds).cast("bigint")
    return (
        failures.select(*GROUP, F.explode("history.at").alias("at"))
        .where((F.col("at") >= F.lit(since)) & (F.col("at") < F.lit(until)))
        .groupBy(*GROUP, start.alias("start"))
        .agg(F.count("*").alias("failures"))
        .orderBy("start")
    )


def tops(sums: DataFrame, column: str) -> DataFrame:
    """The most frequent types or sources by group, of `sums`: `GROUP`, `value`, `events`."""
    by_count = Window.partitionBy(*GROUP).orderBy(F.desc("events"), "value")
    return (
        sums.where(F.col(column).isNotNull())
        .groupBy(*GROUP, F.col(column).alias("value"))
        .agg(F.sum("events").alias("events"))
        .withColumn("rank", F.row_number().over(by_count))
        .where(F.col("rank") <= MAX_TOPS)
        .orderBy(F.desc("events"), "value")
        .select(*GROUP, "value", "events")
    )


def examples(failures: DataFrame) -> DataFrame:
    """A few failures of each group: unresolved ones first, then those whose data can be shown, then
    the latest."""
    has_data = F.col("head").isNotNull() | F.col("data_bytes").isNull()
    # All failures are sorted for this, so by little: whole, they would go to disk and back.
    little = failures.select(
        F.xxhash64(*GROUP).alias("group"),
        F.col("resolved").isNotNull().alias("is_resolved"),
        (~has_data).alias("has_no_data"),
        "last_failed",
        "failure_id",
        "day",
    )
    order = ("is_resolved", "has_no_data", F.desc("last_failed"), "failure_id")
    in_group = Window.partitionBy("group").orderBy(*order)
    ranked = little.withColumn("rank", F.row_number().over(in_group))
    chosen = ranked.where(F.col("rank") <= MAX_EXAMPLES).localCheckpoint()
    # The few of them lie in some days, and only these are read whole.
    days = [row["day"] for row in chosen.select("day").distinct().collect()]
    there = F.col("day").isin([each for each in days if each is not None])
    return (
        failures.where(there | F.col("day").isNull() if None in days else there)
        .join(F.broadcast(chosen.select("failure_id", "rank")), "failure_id")
        .orderBy("rank")
        .select(*FAILURES)
    )


def failed_within(failures: DataFrame, spans: DataFrame, since: datetime) -> DataFrame:
    """Events by group that failed `since` in these spans of their topics: `GROUP`, `events`.

    `spans` are rows of `SPANS`.
    """
    spans = spans.withColumnsRenamed({"topic": "origin_topic", "partition": "origin_partition"})
    return (
        failures.where(F.col("last_failed") >= F.lit(since))
        .join(F.broadcast(spans), [*TRIGGER, "origin_topic", "origin_partition"])
        .where("origin_offset >= start AND origin_offset < end")
        .dropDuplicates([*TRIGGER, "origin_partition", "origin_offset"])
        .groupBy(*GROUP)
        .agg(F.count("*").alias("events"))
    )


def failed_again(failures: DataFrame, sent: DataFrame, before: datetime | None) -> DataFrame:
    """Events by group that were replayed and failed again since the report of `before`."""
    judged = F.lit(True) if before is None else F.col("judged") > F.lit(before)
    again = sent.where((F.col("outcome") == FAILED_AGAIN) & judged)
    return (
        failures.join(again.select("failure_id").distinct(), "failure_id", "left_semi")
        .groupBy(*GROUP)
        .agg(F.count("*").alias("events"))
    )


def past(reports: DataFrame, groups: Collection[str], since: datetime) -> DataFrame:
    """What reports said of these groups: `group_id`, `first` (when one had it first), and `history`
    of those made `since`, in time order."""
    said = F.struct("made", "failures", "unresolved")
    return (
        reports.where(F.col("group_id").isin(*groups))
        .groupBy("group_id")
        .agg(
            F.min("made").alias("first"),
            F.array_sort(F.collect_list(F.when(F.col("made") >= F.lit(since), said))).alias(
                "history"
            ),
        )
    )


def runs(replays: DataFrame, sent: DataFrame) -> DataFrame:
    """Replays, the latest first, with how many events were `sent`, `resolved`, `failed_again`."""
    counts = sent.groupBy("replay_id").agg(
        F.count("*").alias("sent"),
        F.count_if(F.col("outcome") == RESOLVED).alias("resolved"),
        F.count_if(F.col("outcome") == FAILED_AGAIN).alias("failed_again"),
    )
    return (
        replays.join(counts, "replay_id", "left")
        .fillna(0, ["sent", "resolved", "failed_again"])
        .orderBy(F.desc("started"), "replay_id")
    )


def key_of(row: Mapping[str, object]) -> GroupKey:
    """Which group a row of any of these belongs to."""
    return tuple(row[name] for name in GROUP)  # type: ignore[return-value]
