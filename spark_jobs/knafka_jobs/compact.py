"""The compaction, step by step: every step may be killed and is made good by the next run.

    ask Kafka -> append to `records` (see `ingest`) -> fold into `failures` -> judge replays
              -> merge small files -> delete from the topics what the table holds

Refused here: anything that could delete a dead letter that `records` lacks.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from knafka_jobs.compaction import (
    FOLDED,
    MERGE_ON,
    RECOUNTED,
    doubled,
    durable,
    failures_of,
    once,
    records_of,
)
from knafka_jobs.ingest import Ingested, Partition, Position, Span, ingest
from knafka_jobs.replay import outcomes, resolved
from knafka_jobs.schema import RECORDS
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
        tables.check()
        _keep_one_of_each(tables, progress)
        settled = _settled(tables, topics)
        found = topics.dead_letters(options.broker)
        progress(f"{len(found)} dead-letter topics")
        ingested = _ingest(tables, topics, found, options, progress)
        folded = tables.fold_stream(failures_of, FOLDED)
        progress(f"{folded} folded into failures")
        _judge(tables, settled)
        merged = tuple(name for name in ("records", "failures") if folded and tables.maintain(name))
        deleted = _drain(tables, topics, found, options)
        progress(f"{deleted} deleted from their topics")
    return Compacted(len(found), ingested.records, folded, merged, deleted, missed=ingested.missed)


def _keep_one_of_each(tables: Tables, progress: Progress) -> None:
    """Mend tables in which older versions appended dead letters twice: keep one, and count it once.

    Looks for them once, as tables whose last batch has a number never had any. Cut short, it begins
    anew.
    """
    if tables.last_batch() is not None or tables.is_empty("records"):
        return
    found = doubled(tables.read("records")).localCheckpoint()
    topics = [row["topic_id"] for row in found.select("topic_id").distinct().collect()]
    if not topics:
        return
    # First, as what is not folded yet would be added to what is counted anew.
    tables.fold_stream(failures_of, FOLDED)
    theirs = tables.read("records").join(
        found.select("failure_id").distinct(), "failure_id", "left_semi"
    )
    counted = failures_of(once(theirs.select(*FOLDED)))
    tables.update(counted, "failures", MERGE_ON, RECOUNTED)
    kept = once(tables.read("records").where(F.col("topic_id").isin(topics)))
    quoted = ", ".join(f"'{each}'" for each in topics)
    tables.replace(kept, "records", f"topic_id IN ({quoted})")
    progress(
        f"{found.count()} dead letters were in the table more than once: each is kept and counted "
        "once"
    )


def _ingest(
    tables: Tables, topics: Topics, found: Mapping[str, Topic], options: Options, progress: Progress
) -> Ingested:
    """Append what is new to `records`."""
    names = {topic.id: name for name, topic in found.items()}

    def append(ranges: Mapping[Partition, Span], batch: int, last: int | None) -> int:
        named = {(names[id_], number): span for (id_, number), span in ranges.items()}
        # A batch may only note that records were deleted before they were read.
        rows = dead_letters_in(tables, topics, named, found) if named else tables.rows([], RECORDS)
        with explained(
            "the dead letters can't be read (if topics or their first records were deleted "
            "meanwhile, run this again)"
        ):
            count = tables.append_batch(rows, batch, last)
        progress(f"{count} new dead letters")
        return count

    spans = {(found[name].id, number): span for (name, number), span in _spans(found).items()}
    done = ingest(tables, spans, options.batch_records, append)
    if done.missed:
        progress(f"{done.missed} records were deleted before they were read")
    return done


def dead_letters_in(
    tables: Tables, topics: Topics, ranges: Mapping[Position, Span], found: Mapping[str, Topic]
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
    kafka = (
        tables.spark.read.format("kafka")
        .options(**topics.connection.for_spark())
        .option("assign", json.dumps(assigned))
        .option("startingOffsets", json.dumps(starts))
        .option("endingOffsets", json.dumps(ends))
        .option("includeHeaders", "true")
        .option("failOnDataLoss", "true")
        .load()
    )
    return records_of(kafka, _ids(tables, found))


def _ids(tables: Tables, found: Mapping[str, Topic]) -> DataFrame:
    rows = [(topic.name, topic.id) for topic in found.values()]
    return tables.rows(rows, {"topic": "string", "topic_id": "string"})


def _spans(found: Mapping[str, Topic]) -> dict[Position, Span]:
    return {
        (name, partition): span
        for name, topic in found.items()
        for partition, span in topic.spans.items()
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
