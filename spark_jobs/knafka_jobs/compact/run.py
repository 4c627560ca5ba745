"""The compaction, step by step: every step may be killed and is made good by the next run.

    ask Kafka -> append to `records` (see `batches`) -> fold into `failures` -> outcomes of replays
              -> forget what is old -> merge small files, VACUUM
              -> delete from the topics what the table holds

A dead letter that `records` lacks is never deleted from its topic.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from knafka_jobs.compact import plan
from knafka_jobs.compact.batches import Ingested, ingest
from knafka_jobs.compact.checkpoints import Checkpoints
from knafka_jobs.compact.outcomes import outcomes, resolved
from knafka_jobs.days import days_in, known_days, placed
from knafka_jobs.forget import expired, forget
from knafka_jobs.io.delta import Tables, explained, in_days
from knafka_jobs.io.kafka import KafkaClient
from knafka_jobs.options import CompactOptions
from knafka_jobs.positions import Bounds, bounds, within
from knafka_jobs.schema import BY_DAY, KEY, PURGED, RECORDS
from knafka_jobs.topics import Partition, Position, Span, Topic, spans_of

Progress = Callable[[str], None]

_VACUUM: Final = "knafka-vacuum"
_RETENTION: Final = "knafka-retention"


@dataclass(frozen=True, slots=True)
class Compacted:
    """What one run did."""

    topics: int
    records: int
    """Dead letters that were new."""
    folded: int
    forgotten: int
    """Failures that were older than they are kept."""
    merged: tuple[str, ...]
    """Tables whose small files were merged."""
    deleted: int
    """Records deleted from the topics."""
    missed: int
    """Records that somebody else had deleted before they were read."""


def compact(
    tables: Tables, kafka: KafkaClient, options: CompactOptions, progress: Progress
) -> Compacted:
    """Bring the tables up to date. Raises `JobError`; another run then goes on where this ended."""
    checkpoints = Checkpoints(tables)
    now = datetime.now(UTC)
    with tables.locked(), explained(f"the tables in {tables.root} can't be brought up to date"):
        checkpoints.check()
        committed = _committed(tables, kafka)
        topics = kafka.dead_letter_topics(options.broker)
        progress(f"{len(topics)} dead-letter topics")
        ingested = _ingest(tables, kafka, checkpoints, topics, options.batch_records, progress)
        folded = fold(checkpoints)
        progress(f"{folded} folded into failures")
        _mark_outcomes(tables, committed)
        forgotten = forget_expired(tables, options, _by_id(topics), now)
        if forgotten:
            progress(f"{forgotten} failures forgotten: they are older than they are kept")
        merged = _merge_small_files(tables) if folded else ()
        vacuum(tables, now)
        deleted = _delete_tabled(tables, kafka, topics, options.keep_hours)
        progress(f"{deleted} deleted from their topics")
    return Compacted(
        len(topics), ingested.records, folded, forgotten, merged, deleted, ingested.missed
    )


def _ingest(
    tables: Tables,
    kafka: KafkaClient,
    checkpoints: Checkpoints,
    topics: Mapping[str, Topic],
    batch_records: int,
    progress: Progress,
) -> Ingested:
    """Append what is new to `records`."""
    names = {topic.id: name for name, topic in topics.items()}

    def append(ranges: Mapping[Partition, Span], batch: int, last: int | None) -> int:
        named = {(names[id_], number): span for (id_, number), span in ranges.items()}
        # A batch may only save that records were deleted before they were read.
        rows = read_ranges(tables, kafka, named, topics) if named else tables.rows([], RECORDS)
        with explained(
            "the dead letters can't be read (if topics or their first records were deleted "
            "meanwhile, run this again)"
        ):
            count = checkpoints.append_batch(rows, batch, last)
        progress(f"{count} new dead letters")
        return count

    done = ingest(checkpoints, _by_id(topics), batch_records, append, time.time_ns)
    if done.missed:
        progress(f"{done.missed} records were deleted before they were read")
    return done


def _by_id(topics: Mapping[str, Topic]) -> dict[Partition, Span]:
    return {(topics[name].id, number): span for (name, number), span in spans_of(topics).items()}


def read_ranges(
    tables: Tables,
    kafka: KafkaClient,
    ranges: Mapping[Position, Span],
    topics: Mapping[str, Topic],
) -> DataFrame:
    """The dead letters in these ranges, and no others, as rows of `records`.

    Reading fails with Spark's error if Kafka does not have all of a range any more.
    """
    assigned: dict[str, list[int]] = {}
    starts: dict[str, dict[str, int]] = {}
    ends: dict[str, dict[str, int]] = {}
    for (topic, partition), span in ranges.items():
        assigned.setdefault(topic, []).append(partition)
        starts.setdefault(topic, {})[str(partition)] = span.start
        ends.setdefault(topic, {})[str(partition)] = span.end
    ids = [(topic.name, topic.id) for topic in topics.values()]
    return (
        tables.spark.read.format("kafka")
        .options(**kafka.connection.for_spark())
        .option("assign", json.dumps(assigned))
        .option("startingOffsets", json.dumps(starts))
        .option("endingOffsets", json.dumps(ends))
        .option("includeHeaders", "true")
        .option("failOnDataLoss", "true")
        .load()
        .transform(plan.records_of, tables.rows(ids, {"topic": "string", "topic_id": "string"}))
    )


def fold(checkpoints: Checkpoints) -> int:
    """Bring what is new in `records` into `failures`; returns how many records."""
    return checkpoints.fold(_folded, plan.FOLDED, plan.MERGE_ON, plan.merge_clauses())


def fold_all(tables: Tables) -> None:
    """Fold what a run that was killed has left; to be called within `locked`. Raises `JobError`."""
    checkpoints = Checkpoints(tables)
    checkpoints.check()
    fold(checkpoints)


def _folded(tables: Tables, records: DataFrame) -> tuple[DataFrame, list[date]]:
    """Rows to MERGE, and the days of `failures` that may have some of them.

    They have the heads of the likely examples: of all other payloads none is read.
    """
    rows = records.transform(plan.failures_of).localCheckpoint()
    examples = rows.transform(plan.likely_examples).localCheckpoint()
    theirs = tables.read("records").where(within(bounds(examples)))
    known = known_days(tables, rows)
    rows = placed(tables, rows, known, datetime.now(UTC).date())
    return rows.transform(plan.with_heads, plan.heads(examples, theirs)), days_in(known)


def _committed(tables: Tables, kafka: KafkaClient) -> list[tuple[str, int, int]]:
    """Up to where each replay topic with pending events is settled: topic id, partition, offset.

    Asked before the dead letters are read: what is settled by now and failed again is among them.
    """
    if tables.is_empty("sent"):
        return []
    pending = tables.read("sent").where("outcome IS NULL")
    names = [row["topic"] for row in pending.select("topic").distinct().collect()]
    return [
        (topic.id, partition, offset)
        for topic in kafka.topics(names).values()
        # A replay topic's consumer group has the topic's name.
        for partition, offset in kafka.committed(topic.name, topic).items()
    ]


def _mark_outcomes(tables: Tables, committed: list[tuple[str, int, int]]) -> None:
    """Mark failures that a replay resolved, then the replayed events: if this is cut short, they
    are still pending, and the next run does both again."""
    if not committed:
        return
    columns = {"topic_id": "string", "partition": "int", "until": "bigint"}
    sent = tables.read("sent")
    # What failed again was appended after it was sent: files that end before aren't read.
    first = sent.where("outcome IS NULL").agg(F.unix_micros(F.min("sent"))).first()
    since = F.timestamp_micros(F.lit(0 if first is None else first[0] or 0))
    records = tables.read("records").where(F.col("appended") >= since)
    judged = sent.transform(outcomes, records, tables.rows(committed, columns)).localCheckpoint()
    marked = judged.transform(resolved)
    days = in_days("failures.day", days_in(known_days(tables, marked)))
    tables.update(
        marked,
        "failures",
        f"{days} AND {plan.MERGE_ON} AND failures.last_failed <= more.sent",
        {"resolved": "more.judged"},
    )
    tables.update(
        judged,
        "sent",
        "sent.replay_id = more.replay_id AND sent.failure_id = more.failure_id",
        {"outcome": "more.outcome", "judged": "more.judged"},
    )


def _merge_small_files(tables: Tables) -> tuple[str, ...]:
    """Returns which tables had too many in a day."""
    merged = []
    for name in BY_DAY:
        if days := tables.days_of_small_files(name, plan.FULL_FILE, plan.SMALL_FILES):
            tables.merge_small_files(name, in_days("day", days))
            merged.append(name)
    return tuple(merged)


def vacuum(tables: Tables, now: datetime) -> None:
    """VACUUM what replaces its files, once a day, whether or not anything was merged."""
    for name in BY_DAY:
        if tables.exists(name) and tables.is_due(name, _VACUUM, now):
            tables.vacuum(name)
            tables.set_clock(name, _VACUUM, now)


def forget_expired(
    tables: Tables, options: CompactOptions, spans: Mapping[Partition, Span], now: datetime
) -> int:
    """Forget failures that are older than they are kept, once a day; returns how many.

    `spans` is what Kafka has of the partitions that this run reads.
    """
    resolved, unresolved = options.forget_resolved_days, options.forget_unresolved_days
    if (resolved is None and unresolved is None) or tables.is_empty("failures"):
        return 0
    if not tables.is_due("failures", _RETENTION, now):
        return 0
    before = [
        None if days is None else (now - timedelta(days=days)).date()
        for days in (resolved, unresolved)
    ]
    starts = [(id_, partition, span.start) for (id_, partition), span in spans.items()]
    in_topics = tables.rows(starts, {"topic_id": "string", "partition": "int", "start": "bigint"})

    def choose(failures: DataFrame) -> DataFrame:
        return expired(failures, *before)

    count = forget(tables, choose, partial(fold, Checkpoints(tables)), in_topics)
    tables.set_clock("failures", _RETENTION, now)
    return count


def _delete_tabled(
    tables: Tables, kafka: KafkaClient, topics: Mapping[str, Topic], keep_hours: float
) -> int:
    """Delete from the topics what is old enough and in the table; returns how many records."""
    spans = spans_of(topics)
    filled = [where for where, span in spans.items() if span.start < span.end]
    ranges = plan.older_ranges(topics, kafka.offsets_at(filled, time.time() - keep_hours * 3600))
    if not ranges:
        return 0
    old = tables.rows(ranges, plan.RANGES)
    # Both are read by position: the files that hold these, of all that the table has.
    wanted = [
        Bounds(topic_id, partition, start, end - 1) for _, topic_id, partition, start, end in ranges
    ]
    held = tables.read("records").select(*KEY).where(within(wanted))
    purged = not tables.is_empty("purged")
    if purged:
        held = held.unionByName(tables.read("purged").where(within(wanted)))
    tabled = held.transform(plan.tabled_until, old).collect()
    until = {(row["topic"], row["partition"]): row["until"] for row in tabled}
    now = kafka.topics(sorted({topic for topic, _ in until}))
    until = {
        (name, partition): offset
        for (name, partition), offset in until.items()
        if name in now and now[name].id == topics[name].id
    }
    kafka.delete_before(until)
    if purged and until:
        gone = [(topics[name].id, partition, offset) for (name, partition), offset in until.items()]
        tables.remove(
            tables.rows(gone, PURGED),
            "purged",
            "purged.topic_id = more.topic_id AND purged.partition = more.partition "
            "AND purged.offset < more.offset",
        )
    return sum(offset - spans[where].start for where, offset in until.items())
