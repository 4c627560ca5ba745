"""The compaction, step by step: every step may be killed and is made good by the next run.

    ask Kafka -> append to `records` -> fold into `failures` -> judge replays
              -> merge small files -> delete from the topics what the table holds

Refused here: anything that could delete a dead letter that `records` lacks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

from knafka_jobs.compaction import (
    FOLDED,
    Position,
    Source,
    Span,
    durable,
    failures_of,
    positions,
    records_of,
    start_of,
)
from knafka_jobs.replay import outcomes, resolved
from knafka_jobs.storage import Tables, explained
from knafka_jobs.topics import Topic, Topics

SAFETY_WINDOW: Final = 24.0
"""Hours that a dead letter stays in its topic though the table has it: time to notice that the
table was lost, and to look at recent ones without Spark."""

BATCH_RECORDS: Final = 1_000_000
"""Records in one batch: few large ones cost far less than many small ones."""

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Options:
    broker: tuple[str, str] | None = None
    """Namespace and name; None: all of the installation."""
    keep_hours: float = SAFETY_WINDOW
    batch_records: int = BATCH_RECORDS


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


def compact(tables: Tables, topics: Topics, options: Options, progress: Progress) -> Compacted:
    """Bring the tables up to date. Raises `JobError`; another run then goes on where this ended."""
    with tables.compacting(), explained(f"the tables in {tables.root} can't be brought up to date"):
        settled = _settled(tables, topics)
        found = topics.dead_letters(options.broker)
        progress(f"{len(found)} dead-letter topics")
        records, missed = _ingest(tables, topics, found, options, progress)
        folded = tables.fold_stream(failures_of, FOLDED)
        progress(f"{folded} folded into failures")
        _judge(tables, settled)
        merged = tuple(name for name in ("records", "failures") if folded and tables.maintain(name))
        deleted = _drain(tables, topics, found, options)
        progress(f"{deleted} deleted from their topics")
    return Compacted(len(found), records, folded, merged, deleted, missed)


def _ingest(
    tables: Tables, topics: Topics, found: Mapping[str, Topic], options: Options, progress: Progress
) -> tuple[int, int]:
    """Append what is new to `records`; how many, and how many had gone before."""
    if not found:
        return 0, 0
    source = _source(tables, found)
    try:
        return _append(tables, topics, found, source, options, progress)
    except StreamingQueryException:
        now = topics.described(sorted(found))
        if now.keys() == found.keys() and start_of(_spans(now), _held(tables, now)).fits:
            raise
    # The topics are not as the checkpoint knew them, so reading begins anew after what is tabled.
    source = Source(source.generation + 1, {name: topic.id for name, topic in now.items()})
    tables.write_source(source)
    return _append(tables, topics, now, source, options, progress)


def _append(
    tables: Tables,
    topics: Topics,
    found: Mapping[str, Topic],
    source: Source,
    options: Options,
    progress: Progress,
) -> tuple[int, int]:
    checkpoint = tables.records_checkpoint(source)
    start = None
    if not tables.has_begun(checkpoint):
        start = start_of(_spans(found), _held(tables, found))
        if start.missed:
            progress(f"{start.missed} records were deleted before they were read")
    kafka = (
        tables.spark.readStream.format("kafka")
        .options(**topics.connection.for_spark())
        .option("subscribe", ",".join(sorted(found)))
        .option("includeHeaders", "true")
        .option("startingOffsets", "earliest" if start is None else start.json)
        .option("failOnDataLoss", "true")
        .option("maxOffsetsPerTrigger", options.batch_records)
        .load()
    )
    count = tables.append_stream(records_of(kafka, _ids(tables, found)), "records", checkpoint)
    progress(f"{count} new dead letters")
    return count, start.missed if start else 0


def _source(tables: Tables, found: Mapping[str, Topic]) -> Source:
    now = {name: topic.id for name, topic in found.items()}
    before = tables.source()
    source = Source(0, now) if before is None else before.for_topics(now)
    if source != before:
        tables.write_source(source)
    return source


def _ids(tables: Tables, found: Mapping[str, Topic]) -> DataFrame:
    rows = [(topic.name, topic.id) for topic in found.values()]
    return tables.rows(rows, {"topic": "string", "topic_id": "string"})


def _spans(found: Mapping[str, Topic]) -> dict[Position, Span]:
    return {
        (name, partition): span
        for name, topic in found.items()
        for partition, span in topic.spans.items()
    }


def _held(tables: Tables, found: Mapping[str, Topic]) -> dict[Position, int]:
    if tables.is_empty("records"):
        return {}
    by_id = {topic.id: name for name, topic in found.items()}
    rows = positions(tables.read("records")).collect()
    return {
        (by_id[row["topic_id"]], row["partition"]): row["next"]
        for row in rows
        if row["topic_id"] in by_id
    }


def _settled(tables: Tables, topics: Topics) -> list[tuple[str, int, int]]:
    """Up to where each replay topic with events on their way is settled.

    Asked before the dead letters are read: what is settled by now and failed again is among them.
    """
    if tables.is_empty("sent"):
        return []
    pending = tables.read("sent").where("outcome IS NULL")
    names = [row["topic"] for row in pending.select("topic").distinct().collect()]
    return [
        (topic.id, partition, offset)
        for topic in topics.described(names).values()
        for partition, offset in topics.committed(topic.name, topic).items()
    ]


def _judge(tables: Tables, settled: list[tuple[str, int, int]]) -> None:
    """Note what became of replays; in this order, as what is on its way is judged again."""
    if not settled:
        return
    columns = {"topic_id": "string", "partition": "int", "until": "bigint"}
    committed = tables.rows(settled, columns)
    sent = tables.read("sent")
    judged = outcomes(sent, tables.read("records"), committed).localCheckpoint()
    tables.update(
        resolved(judged),
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


def _drain(tables: Tables, topics: Topics, found: Mapping[str, Topic], options: Options) -> int:
    """Delete what is old enough and in the table; how many records."""
    spans = {where: span for where, span in _spans(found).items() if span.start < span.end}
    young = topics.offsets_at(spans, time.time() - options.keep_hours * 3600)
    rows = []
    for (topic, partition), span in spans.items():
        end = young[topic, partition]
        end = span.end if end < 0 else min(end, span.end)
        if span.start < end:
            rows.append((topic, found[topic].id, partition, span.start, end))
    if not rows:
        return 0
    columns = {"topic": "string", "topic_id": "string", "partition": "int"}
    drainable = tables.rows(rows, {**columns, "start": "bigint", "end": "bigint"})
    held = durable(tables.read("records"), drainable).collect()
    until = {(row["topic"], row["partition"]): row["until"] for row in held}
    unchanged = topics.described(sorted({topic for topic, _ in until}))
    until = {
        where: offset
        for where, offset in until.items()
        if where[0] in unchanged and unchanged[where[0]].id == found[where[0]].id
    }
    topics.delete_before(until)
    return sum(offset - spans[where].start for where, offset in until.items())
