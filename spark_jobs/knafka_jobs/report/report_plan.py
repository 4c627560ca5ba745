"""Counts what a report shows: failures by group and over time, examples, and replays.

DataFrames in and out; `assemble` builds the document from their rows. `with_few_summaries` and
`examples` each run a Spark job, to find which rows to read whole.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Final, TypeAlias

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from knafka_jobs.failure_groups import MAX_SUMMARIES, OTHER_SUMMARIES
from knafka_jobs.materialize import materialized
from knafka_jobs.report.report_document import MAX_EXAMPLES, MAX_TOPS
from knafka_jobs.schema import FAILED_AGAIN, FAILURES, GROUP, KIND, RESOLVED, TRIGGER, Columns
from knafka_jobs.topic_offsets import BrokerName

SPANS: Final[Columns] = {
    **TRIGGER,
    "topic": "string",
    "partition": "int",
    "start": "bigint",
    "end": "bigint",
}
"""Columns of the offsets that a Trigger has settled in its topic: from `start`, inclusive, to
`end`, exclusive."""

GroupKey: TypeAlias = tuple[str, str, str, str, str, int | None, str]
"""The values of the columns `GROUP`."""


def rows_of_broker(rows: DataFrame, broker: BrokerName | None) -> DataFrame:
    """The rows of one Broker; all rows for None."""
    if broker is None:
        return rows
    return rows.where((F.col("namespace") == broker.namespace) & (F.col("broker") == broker.name))


def reported_failures(failures: DataFrame, since: datetime) -> DataFrame:
    """The failures in a report: all unresolved ones, and those failed or resolved since then."""
    is_recent = (F.col("last_failed") >= F.lit(since)) | (F.col("resolved") >= F.lit(since))
    return failures.where(F.col("resolved").isNull() | is_recent)


def summaries(failures: DataFrame) -> DataFrame:
    """The error summaries of each kind of failure, ranked by frequency.

    Columns: `KIND`, `said` (the summary), `events`, `first_failed`, and `rank`, 1 for the most
    frequent summary. A report has a group for each summary up to rank `MAX_SUMMARIES`.
    """
    by_count = Window.partitionBy(*KIND).orderBy(F.desc("events"), "said")
    return (
        failures.groupBy(*KIND, F.coalesce("summary", F.lit("")).alias("said"))
        .agg(F.count("*").alias("events"), F.min("first_failed").alias("first_failed"))
        .withColumn("rank", F.row_number().over(by_count))
    )


def with_few_summaries(failures: DataFrame, summaries: DataFrame) -> DataFrame:
    """Set the summary of failures to `OTHER_SUMMARIES` if theirs ranks below `MAX_SUMMARIES`."""
    own_summary = F.coalesce("summary", F.lit(""))
    if summaries.where(F.col("rank") > MAX_SUMMARIES).isEmpty():
        return failures.withColumn("summary", own_summary)
    frequent = summaries.where(F.col("rank") <= MAX_SUMMARIES).select(
        F.struct(*KIND, "said").alias("known")
    )
    has_frequent_summary = F.struct(*KIND, own_summary.alias("said")).eqNullSafe(F.col("known"))
    return (
        failures.join(F.broadcast(frequent), has_frequent_summary, "left")
        .withColumn(
            "summary", F.when(F.col("known").isNull(), OTHER_SUMMARIES).otherwise(own_summary)
        )
        .drop("known")
    )


def sums(failures: DataFrame, previous_made: datetime | None) -> DataFrame:
    """The sums of failures by group, event type and source: one row for each combination.

    `resolved` counts events resolved since the previous report, made at `previous_made`.
    """
    is_open = F.col("resolved").isNull()
    was_resolved = ~is_open if previous_made is None else F.col("resolved") > F.lit(previous_made)
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
    """The sums of each group, from rows of `sums`."""
    added = ("events", "failures", "unresolved", "resolved", "retries")
    return sums.groupBy(*GROUP).agg(
        *(F.sum(column).alias(column) for column in added),
        F.min("first_seen").alias("first_seen"),
        F.max("last_seen").alias("last_seen"),
        F.min("oldest_unresolved").alias("oldest_unresolved"),
    )


def buckets(failures: DataFrame, since: datetime, until: datetime, seconds: int) -> DataFrame:
    """Failures by group and period of `seconds`: `GROUP`, `start` (Unix seconds), `failures`."""
    start = (F.floor(F.unix_timestamp("at") / seconds) * seconds).cast("bigint")
    return (
        failures.select(*GROUP, F.explode("history.at").alias("at"))
        .where((F.col("at") >= F.lit(since)) & (F.col("at") < F.lit(until)))
        .groupBy(*GROUP, start.alias("start"))
        .agg(F.count("*").alias("failures"))
        .orderBy("start")
    )


def top_values(sums: DataFrame, column: str) -> DataFrame:
    """The most frequent types or sources of each group, from rows of `sums`.

    Columns: `GROUP`, `value`, `events`.
    """
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
    """A few failures of each group, ranked: unresolved before resolved, with data that can be shown
    before others, late before early."""
    has_data = F.col("head").isNotNull() | F.col("data_bytes").isNull()
    # This sorts all failures, so with few columns: whole rows would spill to disk.
    sort_columns = failures.select(
        F.xxhash64(*GROUP).alias("group"),
        F.col("resolved").isNotNull().alias("is_resolved"),
        (~has_data).alias("has_no_data"),
        "last_failed",
        "failure_id",
        "day",
    )
    order = ("is_resolved", "has_no_data", F.desc("last_failed"), "failure_id")
    in_group = Window.partitionBy("group").orderBy(*order)
    ranked = sort_columns.withColumn("rank", F.row_number().over(in_group))
    chosen = materialized(ranked.where(F.col("rank") <= MAX_EXAMPLES))
    # Read whole rows only from the days of the chosen failures.
    days = [row["day"] for row in chosen.select("day").distinct().collect()]
    of_chosen_days = F.col("day").isin([day for day in days if day is not None])
    return (
        failures.where(of_chosen_days | F.col("day").isNull() if None in days else of_chosen_days)
        .join(F.broadcast(chosen.select("failure_id", "rank")), "failure_id")
        .orderBy("rank")
        .select(*FAILURES)
    )


def failed_within(failures: DataFrame, spans: DataFrame, since: datetime) -> DataFrame:
    """Number of events by group that failed since then in these spans: `GROUP`, `events`.

    `spans` has rows of `SPANS`.
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


def failed_again(failures: DataFrame, sent: DataFrame, previous_made: datetime | None) -> DataFrame:
    """Number of replayed events by group that failed again since the previous report.

    That was made at `previous_made`; None: there was none.
    """
    judged = F.lit(True) if previous_made is None else F.col("judged") > F.lit(previous_made)
    again = sent.where((F.col("outcome") == FAILED_AGAIN) & judged)
    return (
        failures.join(again.select("failure_id").distinct(), "failure_id", "left_semi")
        .groupBy(*GROUP)
        .agg(F.count("*").alias("events"))
    )


def past_figures(reports: DataFrame, groups: Collection[str], since: datetime) -> DataFrame:
    """The history of groups in earlier reports, by `group_id`.

    `first` is when the first report with the group was made; `history` has the figures in reports
    made since then, in time order.
    """
    figures = F.struct("made", "failures", "unresolved")
    return (
        reports.where(F.col("group_id").isin(*groups))
        .groupBy("group_id")
        .agg(
            F.min("made").alias("first"),
            F.array_sort(F.collect_list(F.when(F.col("made") >= F.lit(since), figures))).alias(
                "history"
            ),
        )
    )


def replay_counts(replays: DataFrame, sent: DataFrame) -> DataFrame:
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


def group_key_of(row: Mapping[str, object]) -> GroupKey:
    """The group of a row that has the columns `GROUP`."""
    return tuple(row[name] for name in GROUP)  # type: ignore[return-value]
