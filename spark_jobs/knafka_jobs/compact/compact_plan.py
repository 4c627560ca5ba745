"""The pure part of a compaction: folds dead letters of topics to one row per failed event.

    records (`record_rows`) --fold_single, fold_several--> failures
        --with_summary--> rows to MERGE into the table `failures` (MERGE_ON)

Pure: DataFrames and values in and out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from knafka_jobs.fingerprint import fingerprint, fingerprint_of
from knafka_jobs.schema import (
    EVENT,
    FAILURES,
    GROUP,
    HEAD_BYTES,
    HEADS,
    HEADS_OF_KIND,
    KEY,
    KIND,
    LAST_ATTEMPT,
    POSITION,
    RECORDS,
    TRIGGER,
    Columns,
)
from knafka_jobs.topic_offsets import (
    NamedPartition,
    Offsets,
    OffsetSpan,
    TopicState,
    log_id,
    spans_of,
)

HISTORY_LENGTH: Final = 50
"""Largest number of failures in an event's `history`; `failures` counts all of them."""

SMALL_FILES: Final = 8
"""Number of small files that a day of a table may have before they are merged: merging two at a
time would never end."""

FULL_FILE_BYTES: Final = 32 * 1024 * 1024
"""Bytes from which a file is not merged with others; see `io.session`."""

ROWS_IN_FILE: Final = 300_000
"""Failures in a file of a batch: some 50 MB, so that it is not merged with others at once."""


FOLDED: Final = tuple(name for name in RECORDS if name not in ("key", "value", "headers", "day"))
"""The columns of `records` that folding needs: all but key, value, headers and day."""

MAX_REPEATED: Final = 200_000
"""Largest number of failures whose hashes are sent to every task; so many take some megabytes."""


def repeated_keys(records: DataFrame) -> DataFrame:
    """Return the keys of the failures that have more than one of these rows: `key`, a 64-bit hash
    of the failure's id. They are few, and finding them needs only a few bytes of each row."""
    keys = records.transform(_with_key).select("key")
    return keys.groupBy("key").agg(F.count("*").alias("records")).where("records > 1").select("key")


MAX_SUMMARIZED: Final = 5_000
"""Largest number of different errors whose summaries are sent to every task: some megabytes."""


def batch_figures(failures: DataFrame) -> DataFrame:
    """Return the figures of a batch in one row: how many failures it has (`rows`), how many
    `records` these have, and about how many different `errors`."""
    return failures.agg(
        F.count("*").alias("rows"),
        F.coalesce(F.sum("failures"), F.lit(0)).alias("records"),
        F.approx_count_distinct("error").alias("errors"),
    )


def error_summaries(failures: DataFrame) -> DataFrame:
    """Return the different errors of failures with their summaries (the text without what varies):
    `error`, `summary`. Most failures have one of a few errors, and computing a summary is slow."""
    errors = failures.select("error").where(F.col("error").isNotNull()).distinct()
    return errors.withColumn("summary", fingerprint_of(F.col("error")))


def without_repeated(failures: DataFrame, repeated: DataFrame) -> DataFrame:
    """Return the failures whose keys are not in `repeated` (rows of `repeated_keys`)."""
    return _with_key(failures).join(F.broadcast(repeated), "key", "left_anti").drop("key")


def fold_repeated(records: DataFrame, repeated: DataFrame) -> DataFrame:
    """Fold the records of the failures whose keys are in `repeated`; `summary` stays null."""
    keyed = _with_key(records).join(F.broadcast(repeated), "key", "left_semi")
    return keyed.drop("key").transform(fold_several)


def _with_key(rows: DataFrame) -> DataFrame:
    """Add the column `key`: a 64-bit hash of the failure's id."""
    return rows.withColumn("key", F.xxhash64("failure_id"))


def with_summary(failures: DataFrame, summaries: DataFrame | None) -> DataFrame:
    """Set the column `summary` of failures: from `summaries` (rows of `error_summaries`), or
    computed for each failure if that is None."""
    failures = failures.drop("summary")
    if summaries is None:
        failures = failures.withColumn("summary", fingerprint_of(F.col("error")))
    else:
        failures = failures.join(F.broadcast(summaries), "error", "left").withColumn(
            "summary", F.coalesce("summary", F.lit(fingerprint(None)))
        )
    return failures.select(*FAILURES)


def fold_single(records: DataFrame) -> DataFrame:
    """Fold records of failures that have only one record; `summary` stays null."""
    history_entry = F.struct(F.col("last_attempt").alias("at"), "reason", "code", "attempts")
    values = {
        "failures": F.lit(1),
        "retries": F.greatest(F.col("attempts") - 1, F.lit(0)),
        "first_failed": F.col("first_attempt"),
        "last_failed": F.col("last_attempt"),
        "history": F.array(history_entry),
        **dict.fromkeys(("first_day", "last_day"), F.to_date("appended")),
        **dict.fromkeys(("summary", "resolved", "head", "day"), F.lit(None)),
    }
    return records.select(
        *(values.get(name, F.col(name)).cast(kind).alias(name) for name, kind in FAILURES.items())
    )


def fold_several(records: DataFrame) -> DataFrame:
    """Fold the records of each failure, one or several, into one row. The event is taken from the
    first record, the attempt and the position from the last. `summary` stays null."""
    order = F.struct("last_attempt", "appended", "topic_id", "partition", "offset")
    first = F.min_by(F.struct(*TRIGGER, *EVENT), order)
    last = F.max_by(F.struct(*LAST_ATTEMPT, *POSITION), order)
    history_entry = F.struct(F.col("last_attempt").alias("at"), "reason", "code", "attempts")
    return (
        # Shuffle first: a partial aggregation before the shuffle would hardly combine any rows.
        records.repartition("failure_id")
        .groupBy("failure_id")
        .agg(
            first.alias("first"),
            last.alias("last"),
            F.count("*").alias("failures"),
            F.sum(F.greatest(F.col("attempts") - 1, F.lit(0))).alias("retries"),
            F.min("first_attempt").alias("first_failed"),
            F.max("last_attempt").alias("last_failed"),
            F.array_sort(F.collect_list(history_entry)).alias("history"),
            F.lit(None).cast("string").alias("summary"),
            F.lit(None).cast("timestamp").alias("resolved"),
            F.lit(None).cast("binary").alias("head"),
            F.to_date(F.min("appended")).alias("first_day"),
            F.to_date(F.max("appended")).alias("last_day"),
            F.lit(None).cast("date").alias("day"),
        )
        .select("*", "first.*", "last.*")
        .withColumn(
            "history",
            F.slice("history", -F.least(F.size("history"), F.lit(HISTORY_LENGTH)), HISTORY_LENGTH),
        )
        .select(*FAILURES)
    )


MERGE_ON: Final = "failures.failure_id = more.failure_id"
"""SQL: the row of `failures` for a new row (`more`)."""


def merge_clauses() -> dict[str, str]:
    """Return the update clauses (SQL by column) of the MERGE that folds new rows (`more`) into
    `failures`. They add to counts, so each batch must be merged exactly once."""
    is_later = "more.last_failed >= failures.last_failed"
    last = {
        name: f"CASE WHEN {is_later} THEN more.`{name}` ELSE failures.`{name}` END"
        for name in (*LAST_ATTEMPT, "summary", *POSITION)
    }
    history = "array_sort(concat(failures.history, more.history))"
    length = f"least(size(failures.history) + size(more.history), {HISTORY_LENGTH})"
    return {
        **last,
        "failures": "failures.failures + more.failures",
        "retries": "failures.retries + more.retries",
        "first_failed": "least(failures.first_failed, more.first_failed)",
        "last_failed": "greatest(failures.last_failed, more.last_failed)",
        "history": f"slice({history}, -{length}, {HISTORY_LENGTH})",
        # Null again if the event failed after the replay that resolved it had sent it.
        "resolved": "CASE WHEN failures.resolved >= more.last_failed THEN failures.resolved END",
        # One failure's data is the same in all of its dead letters.
        "head": "coalesce(failures.head, more.head)",
        "first_day": "least(failures.first_day, more.first_day)",
        "last_day": "greatest(failures.last_day, more.last_day)",
    }


def likely_examples(failures: DataFrame) -> DataFrame:
    """Return the failures with data that a report may show as examples, at most `HEADS` of each
    group, unresolved and then later ones first: `failure_id`, `KEY`."""
    order = ("is_resolved", F.desc("last_failed"), "failure_id")
    in_group = Window.partitionBy("group").orderBy(*order)
    # A limit for each kind, however many error summaries it has.
    in_kind = Window.partitionBy("kind").orderBy("rank", *order)
    return (
        # This sorts all failures, so with few columns.
        failures.select(
            F.xxhash64(*GROUP).alias("group"),
            F.xxhash64(*KIND).alias("kind"),
            F.col("resolved").isNotNull().alias("is_resolved"),
            F.col("data_bytes").isNotNull().alias("has_data"),
            *("last_failed", "failure_id", *KEY),
        )
        .withColumn("rank", F.row_number().over(in_group))
        .where((F.col("rank") <= HEADS) & F.col("has_data"))
        .withColumn("place", F.row_number().over(in_kind))
        .where(F.col("place") <= HEADS_OF_KIND)
        .select("failure_id", *KEY)
    )


def data_heads(examples: DataFrame, records: DataFrame) -> DataFrame:
    """Return the first `HEAD_BYTES` of data of these `likely_examples`: `failure_id`, `head`."""
    return (
        records.select("failure_id", *KEY, F.substring("value", 1, HEAD_BYTES).alias("head"))
        .join(F.broadcast(examples), ["failure_id", *KEY])
        .select("failure_id", "head")
    )


def with_heads(failures: DataFrame, heads: DataFrame) -> DataFrame:
    """Set the column `head` of failures from `data_heads`; null where `heads` has no row."""
    return failures.drop("head").join(F.broadcast(heads), "failure_id", "left").select(*FAILURES)


RANGES: Final[Columns] = {
    "topic": "string",
    "topic_id": "string",
    "partition": "int",
    "start": "bigint",
    "end": "bigint",
}
"""Columns of a range of offsets in one log: `start` inclusive, `end` exclusive."""


def older_ranges(
    topics: Mapping[str, TopicState], young: Mapping[NamedPartition, int], offsets_read: Offsets
) -> list[tuple[Any, ...]]:
    """Return the offsets of each partition that were read and lie before its first young record, as
    rows of `RANGES`: one for each log of a partition (a cut log goes on as another log).

    `young` has the offset of each partition's first record that is too young to delete; -1: there
    is none. `offsets_read` is how far partitions were read; those never read are left out."""
    rows = []
    for (name, partition), span in spans_of(topics).items():
        topic_id = topics[name].id
        if (reached := offsets_read.get((topic_id, partition))) is None:
            continue
        first_young = young.get((name, partition), span.start)
        end = min(span.end, reached.next, first_young if first_young >= 0 else span.end)
        for number, piece in reached.split_by_log(OffsetSpan(span.start, end)):
            rows.append((name, log_id(topic_id, number), partition, piece.start, piece.end))
    return rows


def contiguous_ranges(positions: DataFrame, ranges: DataFrame) -> DataFrame:
    """Return the parts of `ranges` that `positions` (of `records` and `purged`) fill without a gap.
    Both `ranges` and the result are rows of `RANGES`."""
    in_order = Window.partitionBy("topic_id", "partition").orderBy("offset")
    rank = F.row_number().over(in_order)
    # Without a gap, offset and rank grow alike: their difference (`island`) stays the same.
    return (
        positions.select("topic_id", "partition", "offset")
        .join(F.broadcast(ranges), ["topic_id", "partition"])
        .where("offset >= start AND offset < end")
        .select("topic", "topic_id", "partition", "offset")
        .distinct()
        .withColumn("island", F.col("offset") - rank)
        .groupBy("topic", "topic_id", "partition", "island")
        .agg(F.min("offset").alias("start"), (F.max("offset") + 1).alias("end"))
        .select("topic", "topic_id", "partition", "start", "end")
    )


def next_offsets(records: DataFrame) -> DataFrame:
    """Return which offsets the rows have of each log: `first`, and the last one plus 1, `next`."""
    return records.groupBy("topic_id", "partition").agg(
        F.min("offset").alias("first"), (F.max("offset") + 1).alias("next")
    )
