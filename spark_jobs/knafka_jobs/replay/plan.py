"""What a replay sends: which failures, and their dead letters in order.

Pure: DataFrames in and out. What became of it: `compact.outcomes`.
"""

from __future__ import annotations

from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from knafka.core.dead_letter import OMITTED
from knafka.core.delivery import Reason
from knafka_jobs.errors import JobError
from knafka_jobs.options import Selection
from knafka_jobs.positions import KEY
from knafka_jobs.schema import FAILURES, TRIGGER

BROADCAST_ROWS: Final = 200_000
"""Failures whose positions every task may hold, some tens of megabytes: with more, all payloads in
the files that may have theirs are shuffled."""


def select(failures: DataFrame, selection: Selection) -> DataFrame:
    """The failures that are meant. Raises `JobError` for a predicate that is no SQL."""
    rows = failures.select(*FAILURES)
    if (broker := selection.broker) is not None:
        is_its = (F.col("namespace") == broker.namespace) & (F.col("broker") == broker.name)
        rows = rows.where(is_its)
    for name in ("trigger", "destination", "reason", "code", "summary", "type", "source", "id"):
        if (wanted := getattr(selection, name)) is not None:
            rows = rows.where(F.col(name) == wanted)
    if selection.ids is not None:
        rows = rows.where(F.col("id").isin(*selection.ids))
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


def likely_stubs(failures: DataFrame) -> DataFrame:
    """Failures that may be stubs, by what the table says of them; only their headers say it."""
    return failures.where("data_bytes IS NULL")


def replayable(failures: DataFrame, sent: DataFrame, records: DataFrame) -> DataFrame:
    """Failures that can be sent: events with their data, unresolved, of a known Trigger, and not
    pending from another replay. Of `records` those of `likely_stubs` suffice."""
    is_event = F.col("reason") != Reason.UNDECODABLE.value
    stubs = records.where(
        F.exists("headers", lambda header: header["key"] == f"ce_{OMITTED}")
    ).select(*KEY)
    pending = sent.where("outcome IS NULL").select("failure_id").distinct()
    return (
        failures.where(is_event & F.col("resolved").isNull() & (F.col("namespace") != ""))
        .join(pending, "failure_id", "left_anti")
        .join(stubs, [*KEY], "left_anti")
    )


def dead_letters(failures: DataFrame, records: DataFrame, *, few: bool = True) -> DataFrame:
    """The last dead letter of each failure, by Trigger, in the order in which they were events.

    `few`: not more than `BROADCAST_ROWS`.
    """
    wanted = failures.select(
        "failure_id", *TRIGGER, *KEY, "first_failed", "origin_partition", "origin_offset"
    )
    return (
        records.select(*KEY, "key", "value", "headers")
        .join(F.broadcast(wanted) if few else wanted, [*KEY])
        .orderBy(*TRIGGER, "origin_partition", "origin_offset", "first_failed", "failure_id")
        .select("failure_id", *TRIGGER, "key", "value", "headers")
    )
