"""A backtest: events from a topic or an archive in, what they would have fired out.

A topic is read between the offsets of two times, as they are when it begins, and only what is
committed. An archive is a folder or URI of one of

    Delta, Parquet   records: `headers`, `value`, and `timestamp` or `appended`; as Spark's Kafka
                     source gives them, and as the dead letters' tables have them
    NDJSON           structured events, one a line, by their own `time`
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeAlias

from delta.tables import DeltaTable
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from knafka.core import json_format
from knafka.core.kafka_binding import CONTENT_TYPE
from knafka.core.sensor.contract import Conditions
from knafka_jobs.backtest import plan
from knafka_jobs.errors import JobError
from knafka_jobs.io.delta import explained
from knafka_jobs.io.kafka import KafkaClient

Progress: TypeAlias = Callable[[str], None]

TASKS: Final = 16
"""Tasks that sort and fire, at least: of two that ran at once, each would hold half of all events
and firings, and a local job has 1 GiB of memory."""
ROW_GROUP: Final = 16 * 1024 * 1024
"""Bytes of firings that a task holds before it writes them; Parquet's own is 128 MiB."""
TIMES: Final = ("timestamp", "appended")
"""The columns of an archive that may have a record's time: Kafka's own, and that of our tables."""

LINES: Final = (".ndjson", ".jsonl", ".json", ".ndjson.gz", ".jsonl.gz", ".json.gz")


@dataclass(frozen=True, slots=True)
class Backtested:
    events: int
    """Read."""
    matched: int
    """Of these, as often as a trigger has one."""
    undecodable: int
    undated: int
    errors: Mapping[str, int]
    """Evaluations of a filter or a correlation that ended with one, by kind."""
    firings: Mapping[str, int]
    """By trigger, all of them."""
    waiting: Mapping[str, int]
    """Correlation keys that hold wanted events in the end, by trigger."""
    shown: Sequence[Mapping[str, Any]]
    """The first firings, in the order of time."""


@dataclass(frozen=True, slots=True)
class Span:
    """Times of events, in ms since the Unix epoch: since the first, before the second."""

    since: int | None = None
    until: int | None = None

    def holds(self, at: Column) -> Column:
        """Whether an event's time is in it; one that isn't known is."""
        wanted = F.lit(True)
        if self.since is not None:
            wanted &= at >= self.since
        if self.until is not None:
            wanted &= at < self.until
        return at.isNull() | wanted


def of_topic(
    spark: SparkSession, kafka: KafkaClient, name: str, span: Span, now: datetime
) -> tuple[DataFrame, int]:
    """RECORDS of a topic, and the time (ms) until which they are all there. Raises `JobError`."""
    topic = kafka.topics([name]).get(name)
    if topic is None:
        raise JobError(f"there is no topic {name}")
    read_at = round(now.timestamp() * 1000)
    positions = [(name, number) for number in topic.spans]
    first = {} if span.since is None else kafka.offsets_at(positions, span.since / 1000)
    ends = {number: each.end for number, each in topic.spans.items()}
    starts = {
        number: ends[number] if first.get((name, number)) == -1
        else max(each.start, first.get((name, number), each.start))
        for number, each in topic.spans.items()
    }  # fmt: skip
    read = (
        spark.read.format("kafka")
        .options(**kafka.connection.for_spark())
        .option("kafka.isolation.level", "read_committed")
        .option("assign", json.dumps({name: list(topic.spans)}))
        .option("startingOffsets", json.dumps({name: {str(k): v for k, v in starts.items()}}))
        .option("endingOffsets", json.dumps({name: {str(k): v for k, v in ends.items()}}))
        .option("includeHeaders", "true")
        .load()
    )
    records = read.select(
        F.col("topic").alias("place"),
        "partition",
        "offset",
        plan.taken_at(F.unix_millis("timestamp"), read_at).alias("at"),
        *plan.records_of(F.col("headers"), F.col("value")),
    )
    until = read_at if span.until is None else span.until
    return records.where(span.holds(F.col("at"))), until


def of_archive(spark: SparkSession, path: str, span: Span) -> tuple[DataFrame, int]:
    """RECORDS of an archive, and the time of its last event, unless the span has an end. Raises
    `JobError`."""
    with explained(f"the archive {path} can't be read"):
        if DeltaTable.isDeltaTable(spark, path):
            records = _of_records(spark.read.format("delta").load(path), path)
        elif _is_parquet(path):
            records = _of_records(spark.read.parquet(path), path)
        else:
            records = _of_lines(spark.read.text(path))
        found = records.where(span.holds(F.col("at")))
        if span.until is not None:
            return found, span.until
        last = found.agg(F.max("at")).first()
    return found, 0 if last is None or last[0] is None else last[0]


def backtest(
    records: DataFrame, sensor: Conditions, until: int, limit: int, output: str | None
) -> Backtested:
    """What RECORDS fire by this time (ms); `limit` of them are shown, `output` is a folder or URI
    for a table of all of them, which must not be there. Raises `JobError`."""
    spark = records.sparkSession
    partitions = max(TASKS, int(spark.conf.get("spark.sql.shuffle.partitions") or 1))
    spark.conf.set("parquet.block.size", str(ROW_GROUP))
    found = records.transform(plan.routed, sensor).transform(plan.fired, sensor, until, partitions)
    found.persist(StorageLevel.DISK_ONLY)
    try:
        firings = found.transform(plan.firings)
        counted = plan.counts(found)
        by_trigger = {
            row["trigger"]: row["count"] for row in firings.groupBy("trigger").count().collect()
        }
        if output is not None:
            with explained(f"the firings can't be written to {output}"):
                firings.write.format("delta").mode("errorifexists").save(output)
        shown = firings.orderBy("at", "trigger", "correlation").limit(limit).collect()
    finally:
        found.unpersist()
    return Backtested(
        events=counted[plan.READ],
        matched=counted[plan.MATCHED],
        undecodable=counted[plan.UNDECODABLE],
        undated=counted[plan.UNDATED],
        errors=_named(counted, plan.ERROR),
        firings={each.name: by_trigger.get(each.name, 0) for each in sensor.triggers},
        waiting=_named(counted, plan.WAITING),
        shown=[_shown(row.asDict(recursive=True)) for row in shown],
    )


def read_sensor(file: Path) -> Conditions:
    """What the Sensor in a file of JSON decides by. Raises `KnafkaError`."""
    try:
        document = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise JobError(f"{file} can't be read: {error}") from None
    return plan.conditions_of(document)


def _is_parquet(path: str) -> bool:
    """What lies behind a URI isn't looked at: lines are what is called so."""
    if "://" in path:
        return not path.endswith(LINES)
    folder = Path(path)
    return path.endswith(".parquet") or (
        folder.is_dir() and next(folder.rglob("*.parquet"), None) is not None
    )


def _of_records(rows: DataFrame, path: str) -> DataFrame:
    there = set(rows.columns)
    time = next((each for each in TIMES if each in there), None)
    missing = [each for each in ("headers", "value") if each not in there]
    if time is None:
        missing.append(" or ".join(TIMES))
    if missing or time is None:
        raise JobError(f"{path} is no archive of records: it has no {', no '.join(missing)}")

    def own(name: str, otherwise: Column) -> Column:
        return (F.col(name) if name in there else otherwise).alias(name)

    return rows.select(
        (F.col("topic") if "topic" in there else F.lit("")).alias("place"),
        own("partition", F.lit(0)),
        own("offset", F.monotonically_increasing_id()),
        plan.possible(F.unix_millis(time)).alias("at"),
        *plan.records_of(F.col("headers"), F.col("value")),
    )


def _of_lines(lines: DataFrame) -> DataFrame:
    # What RFC 3339 allows and Spark doesn't read: small letters, and a second that is the one
    # after it.
    text = F.upper(F.get_json_object("value", "$.time"))
    moment = F.replace(text, F.lit(":60"), F.lit(":59")).try_cast("timestamp")
    leap = F.when(text.contains(":60"), 1000).otherwise(0)
    at = F.bround(F.unix_micros(moment) / 1000).cast("bigint") + leap
    return lines.where("trim(value) <> ''").select(
        F.col("_metadata.file_path").alias("place"),
        F.col("_metadata.file_block_start").alias("partition"),
        F.monotonically_increasing_id().alias("offset"),
        plan.possible(at).alias("at"),
        F.array(F.lit(CONTENT_TYPE)).alias("names"),
        F.array(F.lit(json_format.MEDIA_TYPE).cast("binary")).alias("values"),
        F.col("value").cast("binary").alias("value"),
    )


def _named(counted: plan.Counts, prefix: str) -> dict[str, int]:
    return {
        name.removeprefix(prefix): count
        for name, count in sorted(counted.items())
        if name.startswith(prefix) and count
    }


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    """With times as text."""
    events = [{**each, "at": _text(each["at"])} for each in row["events"]]
    return {**row, "at": _text(row["at"]), "events": events}


def _text(moment: datetime) -> str:
    # Spark gives local times without a zone.
    utc = moment.astimezone(UTC).isoformat(timespec="milliseconds")
    return utc.replace("+00:00", "Z")
