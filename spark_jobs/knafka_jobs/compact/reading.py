"""Reads the dead letters of a batch: by Spark, or record by record where Spark can't.

A record's timestamp may be any 64 bits of milliseconds. Spark's Kafka source fails on values far
outside of calendars, and one such record ends the job that reads it. Topics that Knafka creates use
the broker's own time. In other topics such records are searched for after a read has failed, and
are read one by one, so that all other records are still read by Spark.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from knafka_jobs.compact.ingest_batches import IngestBatch, IngestResult
from knafka_jobs.compact.record_rows import records_of
from knafka_jobs.io.delta import Tables
from knafka_jobs.io.kafka import KafkaClient, read_spans
from knafka_jobs.io.kafka_records import KafkaRecords
from knafka_jobs.job_errors import JobError
from knafka_jobs.schema import RECORDS, Columns
from knafka_jobs.topic_offsets import Offsets, OffsetSpan, Partition, log_id

LOGS: Final[Columns] = {"topic": "string", "partition": "int", "topic_id": "string"}
"""Columns with the current log of a partition: `topic_id` is a `topic_offsets.log_id`, which
changes when an unclean election cuts the log."""

OVERFLOW_ERROR: Final = "long overflow"
"""Words of Spark's error for a timestamp outside its range."""

MAX_UNREADABLE_SPANS: Final = 20
"""Largest number of spans of unreadable records of one partition that one run reads; the next run
goes on."""

MAX_SPAN_RECORDS: Final = 20
"""Largest number of records in a span of unreadable records: their content is held in memory."""

_MIN_TIME: Final = -62_135_596_800_000
"""The earliest time that Spark can read, in the year 1: milliseconds since the Unix epoch."""
_MAX_TIME: Final = 253_402_300_799_000
"""The latest time that Spark can read, in the year 9999: milliseconds since the Unix epoch."""

_RAW: Final[Columns] = {
    **{"key": "string", "value": "string", "topic": "string", "partition": "int"},
    **{"offset": "bigint", "headers": "array<struct<key: string, value: string>>"},
}
"""Columns of a record with its bytes in base64."""


class BatchReader:
    """Reads the dead letters of batches: by Spark, or record by record (`one_by_one`)."""

    def __init__(self, tables: Tables, kafka: KafkaClient, names: Mapping[str, str]) -> None:
        """Create the reader, which reads nothing yet. `names` maps topic ids to topic names."""
        self.log = KafkaRecords(kafka, names)
        """Reads single records, without Spark."""
        self._tables = tables
        self._kafka = kafka
        self._names = names
        self.one_by_one: set[Partition] = set()
        """Partitions that are read record by record for the time being."""
        self.last_ranges: Mapping[Partition, OffsetSpan] = {}
        """The ranges of the batch that was read last."""

    def rows(self, batch: IngestBatch) -> DataFrame:
        """Return the records of a batch as rows of `records`. Spark reads them only when they are
        written; those of partitions in `one_by_one` are read now."""
        self.last_ranges = batch.ranges
        by_spark = {
            partition: span
            for partition, span in batch.ranges.items()
            if partition not in self.one_by_one
        }
        by_record = {
            partition: span
            for partition, span in batch.ranges.items()
            if partition in self.one_by_one
        }
        # A batch may have no ranges: it then only notes that records were deleted before they were
        # read.
        rows = self._tables.rows([], RECORDS)
        if by_spark:
            rows = read_ranges(self._tables, self._kafka, by_spark, batch.after, self._names)
        if by_record:
            rows = rows.unionByName(
                self._read_one_by_one(by_record).transform(records_of, self._current_logs(batch))
            )
        return rows

    def unreadable_spans(
        self, ranges: Mapping[Partition, OffsetSpan]
    ) -> dict[Partition, list[OffsetSpan]]:
        """Return the spans of records in these ranges that Spark can't read; partitions without
        such records are left out. Reads every record of the ranges."""
        unreadable: dict[Partition, list[OffsetSpan]] = {}
        for partition, span in ranges.items():
            for message in self.log.messages(partition, span):
                if not _MIN_TIME <= message.timestamp()[1] <= _MAX_TIME:
                    _add_offset(unreadable.setdefault(partition, []), message.offset())
        return unreadable

    def _read_one_by_one(self, ranges: Mapping[Partition, OffsetSpan]) -> DataFrame:
        """Read records one by one, into memory; returns the columns of Spark's Kafka source, with a
        null timestamp. Raises `JobError`."""
        # In base64, as `Tables.rows` makes a DataFrame from JSON.
        values = [
            (
                _base64(message.key()),
                _base64(message.value()),
                message.topic(),
                message.partition(),
                message.offset(),
                [{"key": name, "value": _base64(raw)} for name, raw in headers_of(message)],
            )
            for partition, span in ranges.items()
            for message in self.log.messages(partition, span)
        ]
        return self._tables.rows(values, _RAW).select(
            F.unbase64("key").alias("key"),
            F.unbase64("value").alias("value"),
            *("topic", "partition", "offset"),
            F.lit(None).cast("timestamp").alias("timestamp"),
            F.expr(
                "transform(headers, x -> struct(x.key AS key, unbase64(x.value) AS value))"
            ).alias("headers"),
        )

    def _current_logs(self, batch: IngestBatch) -> DataFrame:
        """Return the current log of each partition of a batch, as rows of `LOGS`."""
        return _log_rows(self._tables, batch.ranges, batch.after, self._names)


def ingest_around_unreadable(
    ingest: Callable[[Mapping[Partition, OffsetSpan]], IngestResult],
    reader: BatchReader,
    spans: Mapping[Partition, OffsetSpan],
    names: Mapping[str, str],
    progress: Callable[[str], object],
) -> IngestResult:
    """Ingest all of these spans; records that Spark can't read are read one by one.

    `ingest` ingests spans with `reader`, and skips records that were ingested already. It is called
    for all spans first. If that fails, it is called twice for each span of unreadable records: for
    the records before it (by Spark), and for the span itself (one by one). Then all spans are tried
    again. `names` maps topic ids to topic names. Raises `JobError`, also after
    `MAX_UNREADABLE_SPANS` failures.
    """
    ingested = IngestResult(0, 0)
    spans = dict(spans)
    for _ in range(MAX_UNREADABLE_SPANS):
        try:
            return _sum_ingested(ingested, ingest(spans))
        except JobError as error:
            if not is_overflow_error(error):
                raise
            unreadable = reader.unreadable_spans(reader.last_ranges)
            if not unreadable:
                raise  # the error has another cause
        for partition, unreadable_spans in unreadable.items():
            count = sum(span.end - span.start for span in unreadable_spans)
            partition_name = f"{names[partition[0]]}/{partition[1]}"
            progress(
                f"{count} records of {partition_name} have an impossible timestamp: the time of "
                "this run is stored instead"
            )
            start = spans[partition].start
            for unreadable_span in unreadable_spans[:MAX_UNREADABLE_SPANS]:
                # All records before the span that aren't ingested yet, by Spark.
                readable_result = ingest({partition: OffsetSpan(start, unreadable_span.start)})
                # Ingested records are skipped, so only the span is read one by one.
                reader.one_by_one = {partition}
                unreadable_result = ingest({partition: OffsetSpan(start, unreadable_span.end)})
                reader.one_by_one = set()
                ingested = _sum_ingested(ingested, readable_result)
                ingested = _sum_ingested(ingested, unreadable_result)
            if len(unreadable_spans) > MAX_UNREADABLE_SPANS:
                progress(
                    f"the remaining records of {partition_name} are left for the next run: they "
                    "have too many impossible timestamps for one"
                )
                del spans[partition]
    raise JobError("many records have impossible timestamps: run the job again to go on")


def is_overflow_error(error: JobError) -> bool:
    """Whether the error's text, or that of its cause, says that Spark failed because of a timestamp
    outside its range."""
    return OVERFLOW_ERROR in f"{error}{error.__cause__}"


def read_ranges(
    tables: Tables,
    kafka: KafkaClient,
    ranges: Mapping[Partition, OffsetSpan],
    offsets_read: Offsets,
    names: Mapping[str, str],
) -> DataFrame:
    """Return the dead letters in these ranges, as rows of `records`.

    `offsets_read` has the logs of each partition, the current one last (a cut begins a new log).
    `names` maps topic ids to topic names. Reading fails with Spark's error if Kafka has deleted a
    part of a range.
    """
    spans_by_name = {(names[topic_id], number): span for (topic_id, number), span in ranges.items()}
    rows = read_spans(tables.spark, kafka.connection, spans_by_name)
    return rows.transform(records_of, _log_rows(tables, ranges, offsets_read, names))


def headers_of(message: Any) -> list[tuple[str, bytes | None]]:
    """Return a record's headers; empty if a header's name isn't UTF-8. Call it only once for each
    message: for such a name, confluent-kafka raises SystemError at the first call, but returns a
    broken list at the second one, and to use that crashes the process."""
    try:
        return list(message.headers() or ())
    except SystemError:  # confluent-kafka's, for a name that isn't UTF-8
        return []


def _log_rows(
    tables: Tables,
    ranges: Mapping[Partition, OffsetSpan],
    offsets_read: Offsets,
    names: Mapping[str, str],
) -> DataFrame:
    """Return the current log of each partition of `ranges`, as rows of `LOGS`: the last of its logs
    in `offsets_read`, as each cut begins a new one. `names` maps topic ids to topic names."""
    rows = []
    for topic_id, number in ranges:
        _first_offset, log_number = offsets_read[topic_id, number].logs()[-1]
        rows.append((names[topic_id], number, log_id(topic_id, log_number)))
    return tables.rows(rows, LOGS)


def _add_offset(spans: list[OffsetSpan], offset: int) -> None:
    """Add an offset, higher than all others, to `spans`: the last span grows by it if it ends there
    and has fewer than `MAX_SPAN_RECORDS` offsets, else a new span is added."""
    last = spans[-1] if spans else None
    if last is not None and last.end == offset and offset - last.start < MAX_SPAN_RECORDS:
        spans[-1] = OffsetSpan(last.start, offset + 1)
    else:
        spans.append(OffsetSpan(offset, offset + 1))


def _sum_ingested(first: IngestResult, second: IngestResult) -> IngestResult:
    """Return both results as one. Numbers are added; if both have a cut of one partition, that of
    `second` is kept."""
    return replace(
        first,
        records=first.records + second.records,
        missed=first.missed + second.missed,
        cuts={**first.cuts, **second.cuts},
    )


def _base64(value: bytes | None) -> str | None:
    """Return bytes in base64; None stays None."""
    return None if value is None else base64.b64encode(value).decode()
