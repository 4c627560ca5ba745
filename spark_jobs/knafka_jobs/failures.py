"""Failures: chosen, and told as a report.

    failures --chosen--> those that a person means
    failures --groups, buckets, tops, examples--> what a report tells (see `reporting`)

Pure: DataFrame to DataFrame. Refused here: reading tables, and asking Kafka or the clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Final, TypeAlias

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from knafka.core.delivery import Reason
from knafka_jobs.errors import JobError
from knafka_jobs.report import MAX_EXAMPLES, MAX_TOPS, PREVIEW_CHARACTERS
from knafka_jobs.schema import FAILURES, TRIGGER

GROUP: Final = (*TRIGGER, "destination", "reason", "code")
"""The columns that make a group: what failed alike."""

HEAD_BYTES: Final = 4 * PREVIEW_CHARACTERS
"""Of an example's data: enough for the preview, whatever its characters."""

GroupKey: TypeAlias = tuple[str, str, str, str, str, int | None]


@dataclass(frozen=True, slots=True)
class Selection:
    """Which failures; every field that is set must fit."""

    broker: str | None = None
    """`namespace/name`."""
    trigger: str | None = None
    destination: str | None = None
    reason: Reason | None = None
    code: int | None = None
    type: str | None = None
    source: str | None = None
    id: str | None = None
    """The event's."""
    since: datetime | None = None
    """Last failed at or after."""
    until: datetime | None = None
    """Last failed before."""
    where: str | None = None
    """A predicate over the columns of `failures`, as SQL has it."""

    def __str__(self) -> str:
        """As the command line says it; `everything` if nothing is left out."""
        said = [
            f"--{each.name} {value}"
            for each in fields(self)
            if (value := getattr(self, each.name)) is not None
        ]
        return " ".join(said) or "everything"


def chosen(failures: DataFrame, selection: Selection) -> DataFrame:
    """The failures that are meant. Raises `JobError` for a predicate that is no SQL."""
    rows = failures.select(*FAILURES)
    if selection.broker is not None:
        namespace, _, name = selection.broker.partition("/")
        rows = rows.where((F.col("namespace") == namespace) & (F.col("broker") == name))
    for name in ("trigger", "destination", "reason", "code", "type", "source", "id"):
        if (wanted := getattr(selection, name)) is not None:
            rows = rows.where(F.col(name) == wanted)
    if selection.since is not None:
        rows = rows.where(F.col("last_failed") >= F.lit(selection.since))
    if selection.until is not None:
        rows = rows.where(F.col("last_failed") < F.lit(selection.until))
    if selection.where is None:
        return rows
    try:
        return rows.where(F.expr(selection.where))
    except PySparkException as error:
        problem = str(error).partition("\n")[0]
        raise JobError(f"the predicate {selection.where!r} can't be used: {problem}") from None


def reported(failures: DataFrame, since: datetime) -> DataFrame:
    """What a report is about: everything unresolved, and what failed or was resolved `since`."""
    is_recent = (F.col("last_failed") >= F.lit(since)) | (F.col("resolved") >= F.lit(since))
    return failures.where(F.col("resolved").isNull() | is_recent)


def groups(failures: DataFrame, since: datetime, before: datetime | None) -> DataFrame:
    """One row a group: its sums, and how many were resolved since the report of `before`."""
    is_open = F.col("resolved").isNull()
    was_resolved = ~is_open if before is None else F.col("resolved") > F.lit(before)
    return failures.groupBy(*GROUP).agg(
        F.count("*").alias("events"),
        F.sum("failures").alias("failures"),
        F.count_if(is_open).alias("unresolved"),
        F.count_if(was_resolved).alias("resolved"),
        F.count_if(F.col("last_failed") >= F.lit(since)).alias("recent"),
        F.sum("retries").alias("retries"),
        F.min("first_failed").alias("first_seen"),
        F.max("last_failed").alias("last_seen"),
        F.min(F.when(is_open, F.col("first_failed"))).alias("oldest_unresolved"),
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


def tops(failures: DataFrame, column: str) -> DataFrame:
    """The most frequent values of a column by group: `GROUP`, `value`, `events`."""
    by_count = Window.partitionBy(*GROUP).orderBy(F.desc("events"), "value")
    return (
        failures.where(F.col(column).isNotNull())
        .groupBy(*GROUP, F.col(column).alias("value"))
        .agg(F.count("*").alias("events"))
        .withColumn("rank", F.row_number().over(by_count))
        .where(F.col("rank") <= MAX_TOPS)
        .orderBy(F.desc("events"), "value")
        .select(*GROUP, "value", "events")
    )


def examples(failures: DataFrame, records: DataFrame) -> DataFrame:
    """A few failures of each group, unresolved and late ones first, with the head of their data."""
    order = (F.col("resolved").isNotNull(), F.desc("last_failed"), "failure_id")
    in_group = Window.partitionBy(*GROUP).orderBy(*order)
    few = (
        failures.select(*FAILURES)
        .withColumn("rank", F.row_number().over(in_group))
        .where(F.col("rank") <= MAX_EXAMPLES)
    )
    heads = records.select("topic_id", "partition", "offset", _head().alias("head"))
    return (
        heads.join(F.broadcast(few), ["topic_id", "partition", "offset"], "right")
        # Tables of older versions may hold a dead letter twice.
        .dropDuplicates(["failure_id"])
        .orderBy("rank")
        .select(*FAILURES, "head")
    )


def _head() -> Column:
    return F.substring("value", 1, HEAD_BYTES)


def failed_again(failures: DataFrame, sent: DataFrame, before: datetime | None) -> DataFrame:
    """Events by group that were replayed and failed again since the report of `before`."""
    judged = F.lit(True) if before is None else F.col("judged") > F.lit(before)
    again = sent.where((F.col("outcome") == "failed-again") & judged)
    return (
        failures.join(again.select("failure_id").distinct(), "failure_id", "left_semi")
        .groupBy(*GROUP)
        .agg(F.count("*").alias("events"))
    )


def key_of(row: Mapping[str, object]) -> GroupKey:
    """Which group a row of any of these belongs to."""
    return tuple(row[name] for name in GROUP)  # type: ignore[return-value]
