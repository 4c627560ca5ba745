"""Runs a compaction, step by step. A run may be killed in any step: the next run completes it.

    ask Kafka -> append to `records` (`ingest_batches`)
              -> fold into `failures`, which has one row per failed event
              -> set outcomes of replays -> delete failures whose retention has ended
              -> merge small files, VACUUM
              -> delete from topics the dead letters that the tables have

A dead letter that `records` lacks is never deleted from its topic.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

from pyspark.sql import DataFrame

from knafka_jobs.command_options import CompactOptions
from knafka_jobs.compact import compact_plan
from knafka_jobs.compact.checkpoints import Checkpoints, FoldedBatch
from knafka_jobs.compact.cuts import deletable_until, find_cuts
from knafka_jobs.compact.ingest_batches import IngestBatch, IngestResult, ingest_spans
from knafka_jobs.compact.judging import (
    mark_lost_by_cut,
    mark_lost_by_deletion,
    mark_outcomes,
    read_settled_offsets,
)
from knafka_jobs.compact.reading import BatchReader, ingest_around_unreadable
from knafka_jobs.failure_days import assign_days, distinct_days, load_known_days
from knafka_jobs.forget import delete_failures, expired_failures
from knafka_jobs.io.delta import Tables, explain_spark_errors, in_days
from knafka_jobs.io.kafka import KafkaClient
from knafka_jobs.io.kafka_records import KafkaRecords
from knafka_jobs.materialize import compute_rows
from knafka_jobs.positions import OffsetBounds, offset_bounds, within_bounds
from knafka_jobs.schema import BY_DAY, KEY, PURGED
from knafka_jobs.topic_offsets import (
    NamedPartition,
    Offsets,
    OffsetSpan,
    Partition,
    TopicState,
    spans_of,
)

Progress = Callable[[str], object]
"""Called with one line of progress."""

_VACUUM: Final = "knafka-vacuum"
"""The daily task that runs VACUUM (`Tables.is_due`)."""
_RETENTION: Final = "knafka-retention"
"""The daily task that applies the retention (`Tables.is_due`)."""


@dataclass(frozen=True, slots=True)
class CompactResult:
    """The result of one run."""

    topics: int
    """Number of dead-letter topics."""
    records: int
    """Number of new dead letters."""
    folded: int
    """Number of records folded into `failures`."""
    forgotten: int
    """Number of failures deleted because their retention has ended."""
    merged: tuple[str, ...]
    """Tables whose small files were merged."""
    deleted: int
    """Number of records deleted from the topics."""
    missed: int
    """Number of records that were deleted from their topics before a run read them."""


def compact(
    tables: Tables, kafka: KafkaClient, options: CompactOptions, progress: Progress
) -> CompactResult:
    """Run all steps of a compaction, which bring the tables up to date. Raises `JobError`; the next
    run then completes this one."""
    checkpoints = Checkpoints(tables)
    now = datetime.now(UTC)
    with (
        tables.locked(),
        explain_spark_errors(f"the tables in {tables.root} can't be brought up to date"),
    ):
        checkpoints.check_fold()
        mark_lost_by_deletion(tables, kafka, options.broker, now, progress)
        mark_lost_by_cut(tables, kafka, progress)
        settled = read_settled_offsets(tables, kafka)
        topics = kafka.dead_letter_topics(options.broker)
        progress(f"{len(topics)} dead-letter topics")
        ingested = _ingest_topics(
            tables, kafka, checkpoints, topics, options.batch_records, progress
        )
        folded = fold(checkpoints)
        progress(f"{folded} dead letters folded into failures")
        mark_outcomes(tables, settled)
        forgotten = forget_expired(tables, options, _spans_by_topic_id(topics), now)
        if forgotten:
            progress(f"{forgotten} failures deleted: their retention has ended")
        merged = _merge_small_files(tables) if folded else ()
        vacuum(tables, now)
        deleted = _delete_from_topics(tables, kafka, checkpoints, topics, options.keep_hours)
        progress(f"{deleted} dead letters deleted from their topics")
    return CompactResult(
        len(topics), ingested.records, folded, forgotten, merged, deleted, ingested.missed
    )


def _ingest_topics(
    tables: Tables,
    kafka: KafkaClient,
    checkpoints: Checkpoints,
    topics: Mapping[str, TopicState],
    batch_records: int,
    progress: Progress,
) -> IngestResult:
    """Append the new dead letters of these topics to `records`, in batches of about `batch_records`
    records; returns how many were appended or missed, and which logs were cut. Raises
    `JobError`."""
    names = {topic.id: name for name, topic in topics.items()}
    reader = BatchReader(tables, kafka, names)
    appended = 0

    def append(batch: IngestBatch, number: int, last: int | None) -> int:
        """Append the rows of a batch under this number, after the batch `last` (None: it is the
        first); report and return how many rows. Raises `JobError`."""
        with explain_spark_errors(
            "the dead letters can't be read (if a topic or its oldest records were deleted "
            "meanwhile, run the job again)"
        ):
            count = checkpoints.append_batch(reader.rows(batch), number, last)
        nonlocal appended
        appended += count
        progress(f"{count} new dead letters")
        return count

    def ingest_with_reader(spans: Mapping[Partition, OffsetSpan]) -> IngestResult:
        """Append the records of these spans that aren't ingested yet, with this run's reader."""
        return ingest_spans(checkpoints, spans, reader.log, batch_records, append, time.time_ns)

    ingested = ingest_around_unreadable(
        ingest_with_reader, reader, _spans_by_topic_id(topics), names, progress
    )
    _report_losses(ingested, names, progress)
    # `appended` also counts records of a call that then failed on a record Spark can't read.
    return replace(ingested, records=appended)


def _report_losses(ingested: IngestResult, names: Mapping[str, str], progress: Progress) -> None:
    """Report as progress where logs were cut, and how many dead letters their topics deleted before
    they were read. `names` maps topic ids to topic names."""
    for (topic_id, partition), lost in ingested.cuts.items():
        progress(
            f"the log of {names[topic_id]}/{partition} was cut at offset {lost.start}, as by an "
            f"unclean election: {lost.end - lost.start} dead letters are now only in the tables; "
            f"reading goes on at offset {lost.start}"
        )
    if ingested.missed:
        progress(
            f"{ingested.missed} dead letters were deleted from their topics before they were read"
        )


def _spans_by_topic_id(topics: Mapping[str, TopicState]) -> dict[Partition, OffsetSpan]:
    """Return the offsets that each partition of these topics has, by the topic's id and the
    partition's number. `topics` are by name."""
    return {(topics[name].id, number): span for (name, number), span in spans_of(topics).items()}


def fold(checkpoints: Checkpoints) -> int:
    """Fold the rows of `records` that aren't folded yet into `failures`; returns their number."""
    return checkpoints.fold(
        _fold_batch, compact_plan.FOLDED, compact_plan.MERGE_ON, compact_plan.merge_clauses()
    )


def fold_leftovers(tables: Tables) -> None:
    """Fold records that a killed run left; call it within `Tables.locked`. Raises `JobError`,
    before any change if `failures` was folded from another table `records` (`check_fold`)."""
    checkpoints = Checkpoints(tables)
    checkpoints.check_fold()
    fold(checkpoints)


def _fold_batch(tables: Tables, records: DataFrame) -> FoldedBatch:
    """Fold a batch into rows of `failures`. Only failures that a report is likely to show as
    examples get the first bytes of their data (`head`), so no other payload is read."""
    rows = fold_records(records)
    ((count, record_count, errors),) = rows.transform(compact_plan.batch_figures).collect()
    if errors <= compact_plan.MAX_SUMMARIZED:
        summaries = compute_rows(rows.transform(compact_plan.error_summaries))
        rows = rows.transform(compact_plan.with_summary, summaries)
    else:
        rows = compute_rows(rows.transform(compact_plan.with_summary, None))
    # Write as few files as the rows need, not one per task.
    rows = rows.coalesce(1 + count // compact_plan.ROWS_IN_FILE)
    examples = compute_rows(rows.transform(compact_plan.likely_examples))
    example_records = tables.read("records").where(within_bounds(offset_bounds(examples)))
    days = load_known_days(tables, rows)
    rows = assign_days(tables, rows, days, datetime.now(UTC).date())
    rows_with_heads = rows.transform(
        compact_plan.with_heads, compact_plan.data_heads(examples, example_records)
    )
    return FoldedBatch(rows_with_heads, distinct_days(days), record_count)


def fold_records(records: DataFrame) -> DataFrame:
    """Fold records to one row per failed event, to be merged into `failures`. The rows have no
    summaries and no days yet.

    Each pass over a streamed batch reads all its columns again. So `records` is read once; a second
    time only if some failures have several records.
    """
    singles = compute_rows(records.transform(compact_plan.fold_single))
    repeated = compute_rows(
        singles.transform(compact_plan.repeated_keys).limit(compact_plan.MAX_REPEATED + 1)
    )
    count = repeated.count()
    if count == 0:
        return singles
    # One row more than can be broadcast shows that there are too many.
    if count > compact_plan.MAX_REPEATED:
        return compute_rows(records.transform(compact_plan.fold_several))
    several = compute_rows(records.transform(compact_plan.fold_repeated, repeated))
    return singles.transform(compact_plan.without_repeated, repeated).unionByName(several)


def _merge_small_files(tables: Tables) -> tuple[str, ...]:
    """Merge the small files of each day that has too many; returns the names of the tables in which
    files were merged."""
    merged = []
    for name in BY_DAY:
        if days := tables.days_of_small_files(
            name, compact_plan.FULL_FILE_BYTES, compact_plan.SMALL_FILES
        ):
            tables.merge_small_files(name, in_days("day", days))
            merged.append(name)
    return tuple(merged)


def vacuum(tables: Tables, now: datetime) -> None:
    """VACUUM the tables of `BY_DAY`, each at most once a day, and note `now` as the time when that
    was done."""
    for name in BY_DAY:
        if tables.exists(name) and tables.is_due(name, _VACUUM, now):
            tables.vacuum(name)
            tables.note_done(name, _VACUUM, now)


def forget_expired(
    tables: Tables, options: CompactOptions, spans: Mapping[Partition, OffsetSpan], now: datetime
) -> int:
    """Delete failures whose retention has ended, at most once a day; returns how many.

    `spans` are the offsets that Kafka has of the partitions that this run reads.
    """
    resolved, unresolved = options.forget_resolved_days, options.forget_unresolved_days
    if (resolved is None and unresolved is None) or tables.is_empty("failures"):
        return 0
    if not tables.is_due("failures", _RETENTION, now):
        return 0
    starts = [(topic_id, partition, span.start) for (topic_id, partition), span in spans.items()]
    in_topics = tables.rows(starts, {"topic_id": "string", "partition": "int", "start": "bigint"})

    def choose(failures: DataFrame) -> DataFrame:
        """Return the failures whose retention has ended."""
        return expired_failures(failures, now, resolved, unresolved, timedelta(days=1))

    count = delete_failures(tables, choose, partial(fold, Checkpoints(tables)), in_topics)
    tables.note_done("failures", _RETENTION, now)
    return count


def _delete_from_topics(
    tables: Tables,
    kafka: KafkaClient,
    checkpoints: Checkpoints,
    topics: Mapping[str, TopicState],
    keep_hours: float,
) -> int:
    """Delete from their topics the dead letters that are in the tables and older than `keep_hours`;
    returns how many."""
    spans = spans_of(topics)
    offsets_read = _offsets_of_last_batch(checkpoints)
    first_young = _first_young_offsets(kafka, spans, keep_hours)
    ranges = compact_plan.older_ranges(topics, first_young, offsets_read)
    if not ranges:
        return 0
    in_tables = _read_spans_in_tables(tables, ranges)
    log = KafkaRecords(kafka, {topic.id: name for name, topic in topics.items()})
    current_topics = _reread_topics(kafka, {name: topics[name] for name, *_ in ranges})
    delete_until: dict[NamedPartition, int] = {}
    for (name, number), span in _spans_over_logs(ranges).items():
        if name in current_topics:
            messages = partial(log.messages, (topics[name].id, number))
            delete_until[name, number] = deletable_until(span, in_tables[name, number], messages)
    # Last, leave out partitions whose log was cut: Kafka no longer has the records that were read.
    cuts, _ = find_cuts(offsets_read, _spans_by_topic_id(current_topics), log, checkpoints)
    delete_until = {
        (name, number): offset
        for (name, number), offset in delete_until.items()
        if (topics[name].id, number) not in cuts and offset > spans[name, number].start
    }
    kafka.delete_before(delete_until)
    _forget_purged(tables, ranges, delete_until)
    return sum(offset - spans[position].start for position, offset in delete_until.items())


def _reread_topics(
    kafka: KafkaClient, topics: Mapping[str, TopicState]
) -> Mapping[str, TopicState]:
    """Return these topics, by name, as Kafka has them now. Topics that were deleted, or created
    anew, since `topics` were read are left out."""
    return {
        name: topic
        for name, topic in kafka.topics(sorted(topics)).items()
        if topic.id == topics[name].id
    }


def _offsets_of_last_batch(checkpoints: Checkpoints) -> Offsets:
    """Return how far each partition is read after the last batch; empty before the first batch, or
    if the batch's file is missing or broken."""
    last = checkpoints.last_batch()
    if last is None:
        return {}
    return checkpoints.offsets_after(last) or {}


def _first_young_offsets(
    kafka: KafkaClient, spans: Mapping[NamedPartition, OffsetSpan], keep_hours: float
) -> Mapping[NamedPartition, int]:
    """Return the offset of each partition's first record younger than `keep_hours`; -1 if all are
    older. `spans` are the offsets that Kafka has; partitions without records are left out."""
    positions = [position for position, span in spans.items() if span.start < span.end]
    return kafka.offsets_at(positions, time.time() - keep_hours * 3600) if positions else {}


def _read_spans_in_tables(
    tables: Tables, ranges: Sequence[tuple[Any, ...]]
) -> Mapping[NamedPartition, list[OffsetSpan]]:
    """Return which offsets of these ranges (rows of `compact_plan.RANGES`) are in the table
    `records` or `purged`, as contiguous spans. Reads only files that may have these offsets."""
    bounds = within_bounds(
        [OffsetBounds(log, partition, start, end - 1) for _, log, partition, start, end in ranges]
    )
    positions = tables.read("records").select(*KEY).where(bounds)
    if not tables.is_empty("purged"):
        positions = positions.unionByName(tables.read("purged").where(bounds))
    range_rows = tables.rows(ranges, compact_plan.RANGES)
    in_tables: dict[NamedPartition, list[OffsetSpan]] = defaultdict(list)
    for row in positions.transform(compact_plan.contiguous_ranges, range_rows).collect():
        in_tables[row["topic"], row["partition"]].append(OffsetSpan(row["start"], row["end"]))
    return in_tables


def _forget_purged(
    tables: Tables, ranges: Sequence[tuple[Any, ...]], deleted_until: Mapping[NamedPartition, int]
) -> None:
    """Remove from the table `purged` the positions that Kafka doesn't have any more: those below
    `deleted_until`, in the logs that `ranges` (rows of `compact_plan.RANGES`) name. All others are
    still needed: they show that the compaction has read these records."""
    if not deleted_until or tables.is_empty("purged"):
        return
    rows = [
        (log, partition, deleted_until[name, partition])
        for name, log, partition, _, _ in ranges
        if (name, partition) in deleted_until
    ]
    tables.remove(
        tables.rows(rows, PURGED),
        "purged",
        "purged.topic_id = more.topic_id AND purged.partition = more.partition "
        "AND purged.offset < more.offset",
    )


def _spans_over_logs(ranges: Iterable[tuple[Any, ...]]) -> dict[NamedPartition, OffsetSpan]:
    """Return for each partition one span over the ranges of all its logs. `ranges` are rows of
    `compact_plan.RANGES`."""
    partitions: dict[NamedPartition, OffsetSpan] = {}
    for name, _, partition, start, end in ranges:
        span = partitions.get((name, partition), OffsetSpan(start, end))
        partitions[name, partition] = OffsetSpan(min(start, span.start), max(end, span.end))
    return partitions
