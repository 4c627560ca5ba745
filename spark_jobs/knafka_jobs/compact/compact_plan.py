"""What compaction computes: dead letters as they lie in their topics, folded to one row per event.

    Kafka's columns --records_of--> records --failures_of--> rows to MERGE into failures (MERGE_ON)

Pure: DataFrames and values in and out. A failed event is the same one if Trigger, source, id and
data are the same; a record without an id is one by its position. Nothing is left out: a record
that is no dead letter at all becomes an `undecodable-record`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from knafka.core.dead_letter import ATTRIBUTE_PREFIX
from knafka.core.delivery import Reason
from knafka_jobs.fingerprint import fingerprint_of
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
from knafka_jobs.topic_offsets import Offsets, OffsetSpan, Position, TopicState, log_id, spans_of

HISTORY_LENGTH: Final = 50
"""Failures of one event that are kept one by one, the latest; all of them are counted."""

SMALL_FILES: Final = 8
"""Small files that a table may have before they are merged: merging two at a time never ends."""

FULL_FILE_BYTES: Final = 32 * 1024 * 1024
"""Bytes from which on a file is left as it is; see `io.session`."""


ROWS_IN_FILE: Final = 100_000
"""Failures in a file, at least, unless there are fewer: some tens of megabytes."""


def records_of(kafka: DataFrame, topics: DataFrame) -> DataFrame:
    """The rows of `records`, from Spark's Kafka source with headers and the log of each partition
    (`topic`, `partition`, `topic_id`: see `topics.log_id`)."""
    known = F.col("reason").isin([reason.value for reason in Reason])
    where = F.concat_ws("/", "topic_id", "partition", "offset")
    origin = F.concat_ws("/", "origin_topic", "origin_partition", "origin_offset")
    identity = F.when(F.col("id") != "", F.col("id")).when(origin != "", origin).otherwise(where)
    parts = [_or_empty(name) for name in (*TRIGGER, "source")]
    # Only tells data apart that somebody sent under one source and id: 64 bits are plenty, and
    # SHA-256 of every payload was a fifth of the work.
    digest = F.when(F.col("value").isNull(), "").otherwise(F.hex(F.xxhash64("value")))
    return (
        kafka.join(F.broadcast(topics), ["topic", "partition"], "left")
        .withColumn("timestamp", _if_possible("timestamp", F.current_timestamp()))
        .withColumn("attribute", F.map_from_entries("headers"))
        .select(
            "topic",
            _or_empty("topic_id").alias("topic_id"),
            "partition",
            "offset",
            F.col("timestamp").alias("appended"),
            "key",
            "value",
            "headers",
            _or_empty(_ours("namespace")).alias("namespace"),
            _or_empty(_ours("broker")).alias("broker"),
            # A Broker's own are no Trigger's; what says nothing at all is known by its topic.
            F.coalesce(
                _ours("trigger"),
                F.when(_ours("broker").isNotNull(), F.lit("")),
                F.col("topic"),
            ).alias("trigger"),
            *(_attribute(name).alias(name) for name in ("id", "source", "type", "subject", "time")),
            _text("content-type").alias("content_type"),
            F.octet_length("value").alias("data_bytes"),
            _ours("topic").alias("origin_topic"),
            _ours("partition").try_cast("int").alias("origin_partition"),
            _ours("offset").try_cast("bigint").alias("origin_offset"),
            _trace_id().alias("trace"),
            _or_empty(_attribute("knativeerrordest")).alias("destination"),
            _ours("reason").alias("reason"),
            _attribute("knativeerrorcode").try_cast("int").alias("code"),
            _attribute("knativeerrordata").alias("error"),
            F.coalesce(_ours("attempts").try_cast("int"), F.lit(0)).alias("attempts"),
            *(
                _if_possible(_ours(name).try_cast("timestamp"), F.col("timestamp")).alias(column)
                for name, column in (("firsttime", "first_attempt"), ("lasttime", "last_attempt"))
            ),
            F.to_date("timestamp").alias("day"),
        )
        .withColumn("reason", F.when(known, F.col("reason")).otherwise(Reason.UNDECODABLE.value))
        .withColumn("failure_id", _digest(*parts, identity, digest))
        .select(*RECORDS)
    )


FOLDED: Final = tuple(name for name in RECORDS if name not in ("key", "value", "headers", "day"))
"""The columns of `records` that `failures_of` needs: not what the dead letter held."""


MAX_REPEATED: Final = 200_000
"""Failures that every task may know by a hash: some megabytes."""


def repeated(records: DataFrame) -> DataFrame:
    """The failures of which there is more than one record: `key`, a hash of their ids. They are
    few, so that of a few bytes of each record it is known which must be put together."""
    keys = records.select(F.xxhash64("failure_id").alias("key"))
    return keys.groupBy("key").agg(F.count("*").alias("records")).where("records > 1").select("key")


def failures_of(records: DataFrame, repeated: DataFrame | None = None) -> DataFrame:
    """Records folded to one row per failed event: what `MERGE` brings into `failures`; see `days`
    for their `day`.

    `repeated`: which failures have several records, if that is known. All others are their only
    record, which needs no shuffle.
    """
    if repeated is None:
        return _of_several(records)
    keyed = records.withColumn("key", F.xxhash64("failure_id"))
    several = keyed.join(F.broadcast(repeated), "key", "left_semi").transform(_of_several)
    return (
        keyed.join(F.broadcast(repeated), "key", "left_anti")
        .transform(_of_one)
        .unionByName(several)
    )


def _of_one(records: DataFrame) -> DataFrame:
    """Failures that have one record each."""
    failure = F.struct(F.col("last_attempt").alias("at"), "reason", "code", "attempts")
    made = {
        "summary": fingerprint_of(F.col("error")),
        "failures": F.lit(1),
        "retries": F.greatest(F.col("attempts") - 1, F.lit(0)),
        "first_failed": F.col("first_attempt"),
        "last_failed": F.col("last_attempt"),
        "history": F.array(failure),
        **dict.fromkeys(("first_day", "last_day"), F.to_date("appended")),
        **dict.fromkeys(("resolved", "head", "day"), F.lit(None)),
    }
    return records.select(
        *(made.get(name, F.col(name)).cast(kind).alias(name) for name, kind in FAILURES.items())
    )


def _of_several(records: DataFrame) -> DataFrame:
    when = F.struct("last_attempt", "appended", "topic_id", "partition", "offset")
    first = F.min_by(F.struct(*TRIGGER, *EVENT), when)
    last = F.max_by(F.struct(*LAST_ATTEMPT, *POSITION), when)
    failure = F.struct(F.col("last_attempt").alias("at"), "reason", "code", "attempts")
    return (
        # Before, not after a first aggregation that would find nothing to put together.
        records.repartition("failure_id")
        .groupBy("failure_id")
        .agg(
            first.alias("first"),
            last.alias("last"),
            F.count("*").alias("failures"),
            F.sum(F.greatest(F.col("attempts") - 1, F.lit(0))).alias("retries"),
            F.min("first_attempt").alias("first_failed"),
            F.max("last_attempt").alias("last_failed"),
            F.array_sort(F.collect_list(failure)).alias("history"),
            F.lit(None).cast("timestamp").alias("resolved"),
            F.lit(None).cast("binary").alias("head"),
            F.to_date(F.min("appended")).alias("first_day"),
            F.to_date(F.max("appended")).alias("last_day"),
            F.lit(None).cast("date").alias("day"),
        )
        .select("*", "first.*", "last.*")
        .withColumn("summary", fingerprint_of(F.col("error")))
        .withColumn(
            "history",
            F.slice("history", -F.least(F.size("history"), F.lit(HISTORY_LENGTH)), HISTORY_LENGTH),
        )
        .select(*FAILURES)
    )


MERGE_ON: Final = "failures.failure_id = more.failure_id"


def merge_clauses() -> dict[str, str]:
    """MERGE update clauses: fold new rows (`more`) into `failures`.

    The sums make it additive: each batch must be merged once.
    """
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
        "resolved": "CASE WHEN failures.resolved > more.last_failed THEN failures.resolved END",
        # One failure's data is the same in all of its dead letters.
        "head": "coalesce(failures.head, more.head)",
        "first_day": "least(failures.first_day, more.first_day)",
        "last_day": "greatest(failures.last_day, more.last_day)",
    }


def likely_examples(failures: DataFrame) -> DataFrame:
    """The failures whose heads a report may want, where data is: `failure_id`, `KEY`."""
    order = ("is_resolved", F.desc("last_failed"), "failure_id")
    in_group = Window.partitionBy("group").orderBy(*order)
    # However many ways there are to say it.
    in_kind = Window.partitionBy("kind").orderBy("rank", *order)
    return (
        # All failures are sorted for this, so by little.
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


def heads(examples: DataFrame, records: DataFrame) -> DataFrame:
    """The beginning of each example's data: `failure_id`, `head`."""
    return (
        records.select("failure_id", *KEY, F.substring("value", 1, HEAD_BYTES).alias("head"))
        .join(F.broadcast(examples), ["failure_id", *KEY])
        .select("failure_id", "head")
    )


def with_heads(failures: DataFrame, heads: DataFrame) -> DataFrame:
    """`failures` with those heads that there are."""
    return failures.drop("head").join(F.broadcast(heads), "failure_id", "left").select(*FAILURES)


RANGES: Final[Columns] = {
    "topic": "string",
    "topic_id": "string",
    "partition": "int",
    "start": "bigint",
    "end": "bigint",
}


def older_ranges(
    topics: Mapping[str, TopicState], young: Mapping[Position, int], read: Offsets
) -> list[tuple[Any, ...]]:
    """What was read of the topics before the first young record of each partition: rows of
    `RANGES`, one for each log of a partition.

    `young` has that record's offset; -1 where there is none.
    """
    rows = []
    for (name, partition), span in spans_of(topics).items():
        topic_id = topics[name].id
        if (reached := read.get((topic_id, partition))) is None:
            continue
        first = young.get((name, partition), span.start)
        end = min(span.end if first < 0 else min(first, span.end), reached.next)
        for number, piece in reached.pieces(OffsetSpan(span.start, end)):
            rows.append((name, log_id(topic_id, number), partition, piece.start, piece.end))
    return rows


def islands(positions: DataFrame, ranges: DataFrame) -> DataFrame:
    """What `positions` fill of `RANGES` without a gap: `topic`, `topic_id`, `partition`, `start`,
    `end` (exclusive).

    They are those of `records` and of what was purged from it.
    """
    in_order = Window.partitionBy("topic_id", "partition").orderBy("offset")
    rank = F.row_number().over(in_order)
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
    """What the table holds of each log: `topic_id`, `partition`, `first`, `next`."""
    return (
        records.groupBy("topic_id", "partition")
        .agg(F.min("offset").alias("first"), (F.max("offset") + 1).alias("next"))
        .select("topic_id", "partition", "first", "next")
    )


def _text(header: str) -> Column:
    """A record header as text; what isn't UTF-8 is marked, as tables hold nothing else."""
    return F.make_valid_utf8(F.col("attribute")[header].cast("string"))


def _attribute(name: str) -> Column:
    return _text(f"ce_{name}")


def _trace_id() -> Column:
    """The id in the `traceparent` beside the event, else in its extension attribute; else null."""
    ids = (
        F.regexp_extract(_text(header), "^[0-9a-f]{2}-([0-9a-f]{32})-", 1)
        for header in ("traceparent", "ce_traceparent")
    )
    return F.coalesce(*(F.when(trace_id != "", trace_id) for trace_id in ids))


def _ours(name: str) -> Column:
    return _attribute(f"{ATTRIBUTE_PREFIX}{name}")


def _if_possible(time: str | Column, otherwise: Column) -> Column:
    """A time that is in the past, or by some clock almost; what a record says may be any number."""
    column = F.col(time) if isinstance(time, str) else time
    return F.when(is_possible(column), column).otherwise(otherwise)


def is_possible(time: Column) -> Column:
    """Whether a time can be one at which something failed: not before 1970, nor tomorrow."""
    tomorrow = F.current_timestamp() + F.expr("INTERVAL 1 DAY")
    return (time >= F.timestamp_seconds(F.lit(0))) & (time <= tomorrow)


def _or_empty(column: str | Column) -> Column:
    return F.coalesce(column, F.lit(""))


def _digest(*parts: str | Column) -> Column:
    """128 bits in hexadecimal, of parts whose borders count."""
    return F.substring(F.sha2(F.to_json(F.array(*parts)), 256), 1, 32)
