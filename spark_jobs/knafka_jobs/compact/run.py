"""The compaction, step by step: every step may be killed and is made good by the next run.

    ask Kafka -> append to `records` (see `batches`) -> fold into `failures` -> outcomes of replays
              -> merge small files -> delete from the topics what the table holds

A dead letter that `records` lacks is never deleted from its topic.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from knafka_jobs.compact import plan
from knafka_jobs.compact.batches import Ingested, ingest
from knafka_jobs.compact.checkpoints import Checkpoints
from knafka_jobs.compact.outcomes import outcomes, resolved
from knafka_jobs.io.delta import Tables, explained
from knafka_jobs.io.kafka import KafkaClient
from knafka_jobs.options import CompactOptions
from knafka_jobs.schema import RECORDS
from knafka_jobs.topics import Partition, Position, Span, Topic, spans_of

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Compacted:
    """What one run did."""

    topics: int
    records: int
    """Dead letters that were new."""
    folded: int
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
    with tables.locked(), explained(f"the tables in {tables.root} can't be brought up to date"):
        checkpoints.check()
        _remove_duplicates(tables, checkpoints, progress)
        committed = _committed(tables, kafka)
        topics = kafka.dead_letter_topics(options.broker)
        progress(f"{len(topics)} dead-letter topics")
        ingested = _ingest(tables, kafka, checkpoints, topics, options.batch_records, progress)
        folded = _fold(checkpoints)
        progress(f"{folded} folded into failures")
        _mark_outcomes(tables, committed)
        merged = _merge_small_files(tables) if folded else ()
        deleted = _delete_tabled(tables, kafka, topics, options.keep_hours)
        progress(f"{deleted} deleted from their topics")
    return Compacted(len(topics), ingested.records, folded, merged, deleted, ingested.missed)


def _remove_duplicates(tables: Tables, checkpoints: Checkpoints, progress: Progress) -> None:
    """Mend tables in which older versions appended dead letters twice: keep one, and count it once.

    Looks for them once, as tables whose last batch has a number never had any. Cut short, it begins
    anew.
    """
    if checkpoints.last_batch() is not None or tables.is_empty("records"):
        return
    found = tables.read("records").transform(plan.duplicates).localCheckpoint()
    topics = [row["topic_id"] for row in found.select("topic_id").distinct().collect()]
    if not topics:
        return
    # First, as what is not folded yet would be added to what is counted anew.
    _fold(checkpoints)
    recounted = (
        tables.read("records")
        .join(found.select("failure_id").distinct(), "failure_id", "left_semi")
        .select(*plan.FOLDED)
        .transform(plan.without_duplicates)
        .transform(plan.failures_of)
    )
    tables.update(recounted, "failures", plan.MERGE_ON, plan.RECOUNT_CLAUSES)
    theirs = tables.read("records").where(F.col("topic_id").isin(topics))
    quoted = ", ".join(f"'{each}'" for each in topics)
    tables.replace(theirs.transform(plan.without_duplicates), "records", f"topic_id IN ({quoted})")
    progress(
        f"{found.count()} dead letters were in the table more than once: each is kept and counted "
        "once"
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

    spans = {(topics[name].id, number): span for (name, number), span in spans_of(topics).items()}
    done = ingest(checkpoints, spans, batch_records, append, time.time_ns)
    if done.missed:
        progress(f"{done.missed} records were deleted before they were read")
    return done


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


def _fold(checkpoints: Checkpoints) -> int:
    return checkpoints.fold(plan.failures_of, plan.FOLDED, plan.MERGE_ON, plan.merge_clauses())


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
    judged = (
        tables.read("sent")
        .transform(outcomes, tables.read("records"), tables.rows(committed, columns))
        .localCheckpoint()
    )
    tables.update(
        judged.transform(resolved),
        "failures",
        "failures.failure_id = more.failure_id AND failures.last_failed <= more.sent",
        {"resolved": "more.judged"},
    )
    tables.update(
        judged,
        "sent",
        "sent.replay_id = more.replay_id AND sent.failure_id = more.failure_id",
        {"outcome": "more.outcome", "judged": "more.judged"},
    )


def _merge_small_files(tables: Tables) -> tuple[str, ...]:
    """Returns which tables had too many."""
    merged = []
    for name in ("records", "failures"):
        if plan.has_many_small_files(*tables.size(name)):
            tables.merge_small_files(name)
            merged.append(name)
    return tuple(merged)


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
    tabled = tables.read("records").transform(plan.tabled_until, old).collect()
    until = {(row["topic"], row["partition"]): row["until"] for row in tabled}
    now = kafka.topics(sorted({topic for topic, _ in until}))
    until = {
        (name, partition): offset
        for (name, partition), offset in until.items()
        if name in now and now[name].id == topics[name].id
    }
    kafka.delete_before(until)
    return sum(offset - spans[where].start for where, offset in until.items())
