"""Reading a batch: by Spark, and record by record where Spark can't.

Spark's Kafka source has no room for every time that a record may have (64 bits of milliseconds),
and one such record ends the job that reads it. Topics that we make take the log's own time; in
others such records are looked for once a read has failed, and read one by one: the rest of their
topics, and all other topics, go on.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from knafka_jobs.compact import plan
from knafka_jobs.compact.batches import Batch, Ingested
from knafka_jobs.errors import JobError
from knafka_jobs.io.delta import Tables
from knafka_jobs.io.kafka import KafkaClient, read_spans
from knafka_jobs.io.kafka_records import KafkaRecords
from knafka_jobs.schema import RECORDS, Columns
from knafka_jobs.topics import Offsets, Partition, Span, log_id

LOGS: Final[Columns] = {"topic": "string", "partition": "int", "topic_id": "string"}
"""Which log each partition is now, as `topics.log_id` names it."""

OVERFLOW: Final = "long overflow"
"""What Spark says of a time that it has no room for."""

ROUNDS: Final = 20
"""Stretches of unreadable records of one partition that a run passes; a later one goes on."""

ONE_BY_ONE: Final = 20
"""Records of a stretch, at most: their content is held in memory."""

_MIN_TIME: Final = -62_135_596_800_000
_MAX_TIME: Final = 253_402_300_799_000
"""From the year 1 to 9999, in milliseconds: these Spark certainly reads."""

_RAW: Final[Columns] = {
    **{"key": "string", "value": "string", "topic": "string", "partition": "int"},
    **{"offset": "bigint", "headers": "array<struct<key: string, value: string>>"},
}
"""A record with its bytes in base64."""


class BatchReader:
    """Reads the ranges of batches; `names` is how each topic id's topic is called."""

    def __init__(self, tables: Tables, kafka: KafkaClient, names: Mapping[str, str]) -> None:
        self.log = KafkaRecords(kafka, names)
        self._tables = tables
        self._kafka = kafka
        self._names = names
        self.one_by_one: set[Partition] = set()
        """Partitions that Spark doesn't read for the time being."""
        self.last_ranges: Mapping[Partition, Span] = {}
        """Of the batch that was read last."""

    def rows(self, batch: Batch) -> DataFrame:
        """The rows of a batch, which reads them when they are written."""
        self.last_ranges = batch.ranges
        by_spark = {w: span for w, span in batch.ranges.items() if w not in self.one_by_one}
        by_us = {w: span for w, span in batch.ranges.items() if w in self.one_by_one}
        # A batch may only save that records were deleted before they were read.
        rows = self._tables.rows([], RECORDS)
        if by_spark:
            rows = read_ranges(self._tables, self._kafka, by_spark, batch.after, self._names)
        if by_us:
            rows = rows.unionByName(self._raw(by_us).transform(plan.records_of, self._logs(batch)))
        return rows

    def unreadable(self, ranges: Mapping[Partition, Span]) -> dict[Partition, list[Span]]:
        """Stretches of records that Spark can't read. Reads all that is there."""
        found: dict[Partition, list[Span]] = {}
        for where, span in ranges.items():
            for message in self.log.messages(where, span):
                if not _MIN_TIME <= message.timestamp()[1] <= _MAX_TIME:
                    _extend(found.setdefault(where, []), message.offset())
        return found

    def _raw(self, ranges: Mapping[Partition, Span]) -> DataFrame:
        """Records as Spark's Kafka source would give them, without a time."""
        values = [
            (
                _base64(message.key()),
                _base64(message.value()),
                message.topic(),
                message.partition(),
                message.offset(),
                [{"key": name, "value": _base64(raw)} for name, raw in headers_of(message)],
            )
            for where, span in ranges.items()
            for message in self.log.messages(where, span)
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

    def _logs(self, batch: Batch) -> DataFrame:
        return _logs(self._tables, batch.ranges, batch.after, self._names)


def ingest_around(
    ingest: Callable[[Mapping[Partition, Span]], Ingested],
    reader: BatchReader,
    spans: Mapping[Partition, Span],
    names: Mapping[str, str],
    progress: Callable[[str], object],
) -> Ingested:
    """Ingest all of these spans, with those records one by one that Spark can't read.

    Raises `JobError`.
    """
    done = Ingested(0, 0)
    spans = dict(spans)
    for _ in range(ROUNDS):
        try:
            return _sum(done, ingest(spans))
        except JobError as error:
            if not is_overflow(error) or not (found := reader.unreadable(reader.last_ranges)):
                raise
        for where, stretches in found.items():
            count = sum(each.end - each.start for each in stretches)
            place = f"{names[where[0]]}/{where[1]}"
            progress(f"{count} records of {place} have a time that can't be: they get today's")
            for stretch in stretches[:ROUNDS]:
                for end, is_alone in ((stretch.start, False), (stretch.end, True)):
                    reader.one_by_one = {where} if is_alone else set()
                    done = _sum(done, ingest({where: Span(spans[where].start, end)}))
            reader.one_by_one = set()
            if len(stretches) > ROUNDS:
                progress(f"the rest of {place} is left to the next run")
                del spans[where]
    raise JobError("many records have times that can't be: run this again to go on")


def is_overflow(error: JobError) -> bool:
    """Whether Spark had no room for a time."""
    return OVERFLOW in f"{error}{error.__cause__}"


def read_ranges(
    tables: Tables,
    kafka: KafkaClient,
    ranges: Mapping[Partition, Span],
    read: Offsets,
    names: Mapping[str, str],
) -> DataFrame:
    """The dead letters in these ranges, and no others, as rows of `records`; `read` says of which
    log each is, and `names` how each topic id's topic is called.

    Reading fails with Spark's error if Kafka does not have all of a range any more.
    """
    named = {(names[topic_id], number): span for (topic_id, number), span in ranges.items()}
    rows = read_spans(tables.spark, kafka.connection, named)
    return rows.transform(plan.records_of, _logs(tables, ranges, read, names))


def headers_of(message: Any) -> list[tuple[str, bytes | None]]:
    """A record's headers; none if one has a name that isn't UTF-8, of which it is asked once."""
    try:
        return list(message.headers() or ())
    except SystemError:
        return []


def _logs(
    tables: Tables, ranges: Mapping[Partition, Span], read: Offsets, names: Mapping[str, str]
) -> DataFrame:
    rows = [
        (names[topic_id], partition, log_id(topic_id, read[topic_id, partition].logs()[-1][1]))
        for topic_id, partition in ranges
    ]
    return tables.rows(rows, LOGS)


def _extend(stretches: list[Span], offset: int) -> None:
    """Add an offset, behind all others, to the last stretch if it follows and there is room."""
    last = stretches[-1] if stretches else None
    if last is not None and last.end == offset and offset - last.start < ONE_BY_ONE:
        stretches[-1] = Span(last.start, offset + 1)
    else:
        stretches.append(Span(offset, offset + 1))


def _sum(one: Ingested, other: Ingested) -> Ingested:
    return replace(
        one,
        records=one.records + other.records,
        missed=one.missed + other.missed,
        cuts={**one.cuts, **other.cuts},
    )


def _base64(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()
