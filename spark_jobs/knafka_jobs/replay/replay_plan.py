"""Selects the failures that a replay sends, and their dead letters in order.

Pure: DataFrames in and out. `compact.outcomes` decides the outcomes of the events.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from knafka_jobs.command_options import FailureSelection
from knafka_jobs.failure_selection import (
    LIKELY_STUB,
    PENDING,
    REPLAYABLE,
    STUB_HEADER,
    conditions_of,
)
from knafka_jobs.job_errors import JobError
from knafka_jobs.replay_marks import select_marked
from knafka_jobs.schema import FAILURES, KEY, TRIGGER

BROADCAST_ROWS: Final = 200_000
"""Most failures whose positions are sent to every task (some tens of megabytes). With more, Spark
shuffles the payloads of all files that may have their records."""

_COMPARISONS: Final[Mapping[str, Callable[[Column, Any], Column]]] = {
    "=": Column.__eq__,
    ">=": Column.__ge__,
    "<": Column.__lt__,
    "in": lambda column, values: column.isin(*values),
}
"""Spark's comparison for each operator of a `FailureCondition`."""


def select_failures(failures: DataFrame, selection: FailureSelection) -> DataFrame:
    """Return the failures that fit a selection, with the columns `FAILURES`. Raises `JobError` if
    the selection's predicate (`where`) is no valid SQL."""
    rows = failures.select(*FAILURES)
    for column, operator, value in conditions_of(selection):
        rows = rows.where(_COMPARISONS[operator](F.col(column), value))
    if selection.where is None:
        return rows
    try:
        return rows.where(F.expr(selection.where))
    except PySparkException as error:
        problem = str(error).partition("\n")[0]
        raise JobError(f"the predicate {selection.where!r} can't be used: {problem}") from None


def likely_stubs(failures: DataFrame) -> DataFrame:
    """Return the failures whose dead letter may be a stub, a record without the event's data. The
    headers of the record say whether it is one."""
    return failures.where(LIKELY_STUB)


def replayable_failures(failures: DataFrame, sent: DataFrame, records: DataFrame) -> DataFrame:
    """Return the failures that can be sent again: they pass `REPLAYABLE`, their dead letter has the
    event's data, and they aren't pending. A failure is pending if, by the table `sent`, a replay
    has sent it and the result isn't known yet.

    `records` are dead letters: those of `likely_stubs` suffice.
    """
    stubs = records.where(F.exists("headers", lambda header: header["key"] == STUB_HEADER))
    pending = sent.where(PENDING).select("failure_id").distinct()
    return (
        failures.where(REPLAYABLE)
        .join(pending, "failure_id", "left_anti")
        .join(stubs.select(*KEY), [*KEY], "left_anti")
    )


SENDABLE: Final = (
    "failure_id",
    *TRIGGER,
    *KEY,
    "first_failed",
    "origin_partition",
    "origin_offset",
)
"""Columns of failures that find their dead letters and order them."""

ORDER: Final = (*TRIGGER, "origin_partition", "origin_offset", "first_failed", "failure_id")
"""The order in which the events came to their Trigger's topic, Trigger by Trigger."""

ORDER_COLUMNS: Final = ORDER[len(TRIGGER) : -1]
"""Columns of `ORDER` that only order the events; they are not sent."""


def dead_letters_of(failures: DataFrame, records: DataFrame, *, few: bool = True) -> DataFrame:
    """Return the last dead letter of each failure, found in `records` by the position (`KEY`) that
    the failure's row has. Columns: `failure_id`, `TRIGGER`, the event's `key`, `value` and
    `headers`, `ORDER_COLUMNS`.

    `failures` has the columns `SENDABLE`. `few`: there are at most `BROADCAST_ROWS` failures, so
    that their positions can be sent to every task.
    """
    positions = failures.select(*SENDABLE)
    return (
        records.select("failure_id", *KEY, "key", "value", "headers")
        # Joined by the failure, too: if Kafka lost the end of a log, two records may have had one
        # position.
        .join(F.broadcast(positions) if few else positions, ["failure_id", *KEY])
        .select("failure_id", *TRIGGER, "key", "value", "headers", *ORDER_COLUMNS)
    )


def split_into_lanes(letters: DataFrame, lanes: int) -> DataFrame:
    """Distribute dead letters over `lanes` partitions of the DataFrame, each sorted by `ORDER`.
    Dead letters of one Trigger with the same key are in one partition, so they keep their order."""
    # Events without a key have no order to keep, so they are spread by failure.
    key = F.coalesce("key", F.col("failure_id").cast("binary"))
    return letters.repartition(lanes, *TRIGGER, key).sortWithinPartitions(*ORDER)


def sent_rows(kafka: DataFrame, replay_id: str, topics: DataFrame) -> DataFrame:
    """Return the events that a replay has sent, as rows of the table `sent` without an outcome.

    `kafka` has records of the replay topics, as Spark's Kafka source returns them, with headers.
    `topics` has a row for each replay topic: `topic`, `topic_id`, and the `TRIGGER` it belongs to.
    """
    return (
        kafka.transform(select_marked)
        .where(F.col("replay_id") == replay_id)
        .join(F.broadcast(topics), "topic")
        .select(
            "replay_id",
            "failure_id",
            *TRIGGER,
            *("topic", "topic_id", "partition", "offset"),
            F.col("timestamp").alias("sent"),
            F.lit(None).cast("string").alias("outcome"),
            F.lit(None).cast("timestamp").alias("judged"),
        )
    )
