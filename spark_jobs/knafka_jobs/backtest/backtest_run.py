"""Runs a backtest: reads events of a topic or an archive, and reports what a Sensor would fire.

Of a topic, committed records are read up to the end that it has when the backtest begins. Only
events inside a span of time (`TimeSpan`) count. An archive is a folder or URI with one of

    Delta, Parquet   records with the columns `headers`, `value`, and `timestamp` or `appended`, as
                     in Spark's Kafka source and in the dead letters' tables
    NDJSON           structured events, one per line, ordered by their attribute `time`
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

from knafka.core.events import json_format
from knafka.core.events.kafka_binding import CONTENT_TYPE
from knafka.core.sensor.contract import Conditions
from knafka_jobs.backtest import backtest_plan
from knafka_jobs.io.delta import explain_spark_errors
from knafka_jobs.io.kafka import KafkaClient
from knafka_jobs.job_errors import JobError

Progress: TypeAlias = Callable[[str], None]
"""Called with one line of progress."""

MIN_TASKS: Final = 16
"""Least number of tasks that sort events and compute firings: with only two, each would hold half
of all events and firings, and a local job has 1 GiB of memory."""
FIRINGS_ROW_GROUP_BYTES: Final = 16 * 1024 * 1024
"""Bytes of firings that a task holds before it writes them; Parquet's default is 128 MiB."""
TIME_COLUMNS: Final = ("timestamp", "appended")
"""Columns of an archive that may have a record's time, the first one found counts: that of Spark's
Kafka source, and that of our tables."""

NDJSON_SUFFIXES: Final = (".ndjson", ".jsonl", ".json", ".ndjson.gz", ".jsonl.gz", ".json.gz")
"""Suffixes of archives that are NDJSON."""


@dataclass(frozen=True, slots=True)
class BacktestResult:
    """The result of a backtest."""

    events: int
    """Events that were read."""
    matched: int
    """Events that match a trigger, counted once for each trigger."""
    undecodable: int
    """Records that hold no event."""
    undated: int
    """Events of an archive without a possible time, which are left out."""
    errors: Mapping[str, int]
    """Evaluations of a filter or a correlation that failed, by kind of error."""
    firings: Mapping[str, int]
    """Number of firings by trigger, with zeros."""
    waiting: Mapping[str, int]
    """Number of correlation keys that hold events of an incomplete condition in the end, by
    trigger."""
    shown: Sequence[Mapping[str, Any]]
    """The first firings in the order of time, as documents."""


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """A span of events' times in ms since the Unix epoch: `since` inclusive, `until` exclusive.

    None: open on this side.
    """

    since: int | None = None
    until: int | None = None

    def contains(self, event_time: Column) -> Column:
        """Return the condition that a time (ms) is inside the span; an unknown time (null) counts
        as inside."""
        is_inside = F.lit(True)
        if self.since is not None:
            is_inside &= event_time >= self.since
        if self.until is not None:
            is_inside &= event_time < self.until
        return event_time.isNull() | is_inside


def records_of_topic(
    spark: SparkSession, kafka: KafkaClient, name: str, span: TimeSpan, now: datetime
) -> tuple[DataFrame, int]:
    """Return the records of the topic `name` inside `span`, as EVENT_RECORDS, and the time (ms) up
    to which firings are computed: `span.until`, else `now`, the time of this reading. Raises
    `JobError` if there is no such topic."""
    topic = kafka.topics([name]).get(name)
    if topic is None:
        raise JobError(f"there is no topic {name}: give the topic of the Sensor's Broker")
    read_at = round(now.timestamp() * 1000)
    positions = [(name, number) for number in topic.spans]
    first_offsets = {} if span.since is None else kafka.offsets_at(positions, span.since / 1000)
    starts: dict[int, int] = {}
    for number, offsets in topic.spans.items():
        first_offset = first_offsets.get((name, number), offsets.start)
        all_older = first_offset == -1  # all records of the partition are older than `since`
        starts[number] = offsets.end if all_older else max(offsets.start, first_offset)
    ends = {number: offsets.end for number, offsets in topic.spans.items()}
    kafka_rows = (
        spark.read.format("kafka")
        .options(**kafka.connection.for_spark())
        .option("kafka.isolation.level", "read_committed")
        .option("assign", json.dumps({name: list(topic.spans)}))
        # In JSON, the partitions' numbers become text, as Spark wants them.
        .option("startingOffsets", json.dumps({name: starts}))
        .option("endingOffsets", json.dumps({name: ends}))
        .option("includeHeaders", "true")
        .load()
    )
    records = kafka_rows.select(
        F.col("topic").alias("place"),
        "partition",
        "offset",
        backtest_plan.taken_at(F.unix_millis("timestamp"), read_at).alias("at"),
        *backtest_plan.records_of(F.col("headers"), F.col("value")),
    )
    until = read_at if span.until is None else span.until
    return records.where(span.contains(F.col("at"))), until


def records_of_archive(spark: SparkSession, path: str, span: TimeSpan) -> tuple[DataFrame, int]:
    """Return the records of an archive inside `span`, as EVENT_RECORDS, and the time (ms) up to
    which firings are computed: `span.until`, else the time of the last record inside, or 0 if there
    is no record. Raises `JobError` if the archive can't be read."""
    with explain_spark_errors(f"the archive {path} can't be read"):
        if DeltaTable.isDeltaTable(spark, path):
            records = _archived_event_records(spark.read.format("delta").load(path), path)
        elif _is_parquet(path):
            records = _archived_event_records(spark.read.parquet(path), path)
        else:
            records = _records_of_lines(spark.read.text(path))
        records_inside = records.where(span.contains(F.col("at")))
        if span.until is not None:
            return records_inside, span.until
        last = records_inside.agg(F.max("at")).first()
    return records_inside, 0 if last is None or last[0] is None else last[0]


def backtest(
    records: DataFrame, sensor: Conditions, until: int, limit: int, output: str | None
) -> BacktestResult:
    """Compute which firings of the Sensor the `records` (EVENT_RECORDS) would have caused up to
    `until` (ms).

    The result shows the first `limit` firings. `output` is a folder or URI for a Delta table of all
    firings, which must not exist yet; None: they aren't stored. Raises `JobError`.
    """
    spark = records.sparkSession
    partitions = max(MIN_TASKS, int(spark.conf.get("spark.sql.shuffle.partitions") or 1))
    spark.conf.set("parquet.block.size", str(FIRINGS_ROW_GROUP_BYTES))
    outcome_rows = records.transform(backtest_plan.route_events, sensor).transform(
        backtest_plan.compute_firings, sensor, until, partitions
    )
    # Several queries read these rows: compute them once.
    outcome_rows.persist(StorageLevel.DISK_ONLY)
    try:
        firings = outcome_rows.transform(backtest_plan.firing_rows)
        counts = backtest_plan.sum_task_counts(outcome_rows)
        firing_counts = {
            row["trigger"]: row["count"] for row in firings.groupBy("trigger").count().collect()
        }
        if output is not None:
            with explain_spark_errors(f"the firings can't be written to {output}"):
                firings.write.format("delta").mode("errorifexists").save(output)
        first_firings = firings.orderBy("at", "trigger", "correlation").limit(limit).collect()
    finally:
        outcome_rows.unpersist()
    return BacktestResult(
        events=counts[backtest_plan.READ],
        matched=counts[backtest_plan.MATCHED],
        undecodable=counts[backtest_plan.UNDECODABLE],
        undated=counts[backtest_plan.UNDATED],
        errors=_counts_with_prefix(counts, backtest_plan.ERROR),
        firings={trigger.name: firing_counts.get(trigger.name, 0) for trigger in sensor.triggers},
        waiting=_counts_with_prefix(counts, backtest_plan.WAITING),
        shown=[_firing_document(row.asDict(recursive=True)) for row in first_firings],
    )


def read_sensor(file: Path) -> Conditions:
    """Read the conditions of the Sensor in a JSON file. Raises `JobError` if the file can't be
    read, and `InvalidDocument` if the Sensor is invalid."""
    try:
        document = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise JobError(f"{file} can't be read: {error}") from None
    return backtest_plan.conditions_of(document)


def _is_parquet(path: str) -> bool:
    """Whether an archive, which is no Delta table, is Parquet: a `.parquet` file, or a folder with
    such files. A URI isn't opened: any suffix but NDJSON's means Parquet."""
    if "://" in path:
        return not path.endswith(NDJSON_SUFFIXES)
    folder = Path(path)
    return path.endswith(".parquet") or (
        folder.is_dir() and next(folder.rglob("*.parquet"), None) is not None
    )


def _archived_event_records(rows: DataFrame, path: str) -> DataFrame:
    """Return EVENT_RECORDS of an archive's table (Delta or Parquet) at `path`. Raises `JobError` if
    it lacks a column."""
    columns = set(rows.columns)
    time = next((column for column in TIME_COLUMNS if column in columns), None)
    missing = [column for column in ("headers", "value") if column not in columns]
    if time is None:
        missing.append(" or ".join(TIME_COLUMNS))
    if missing or time is None:  # without a time, something is missing: for the type checker
        raise JobError(
            f"{path} is no archive of records: it lacks the columns {', '.join(missing)}"
        )

    def optional_column(name: str, default: Column) -> Column:
        """Return a column of the archive, or `default` under that name if the archive lacks it."""
        return (F.col(name) if name in columns else default).alias(name)

    return rows.select(
        optional_column("topic", F.lit("")).alias("place"),
        optional_column("partition", F.lit(0)),
        optional_column("offset", F.monotonically_increasing_id()),
        backtest_plan.possible_time(F.unix_millis(time)).alias("at"),
        *backtest_plan.records_of(F.col("headers"), F.col("value")),
    )


def _records_of_lines(lines: DataFrame) -> DataFrame:
    """Return EVENT_RECORDS of an archive of NDJSON, from its lines (column `value`). A record's
    time is the event's attribute `time`, null if that is missing or unreadable. Empty lines are
    left out."""
    # RFC 3339 allows lower-case letters and leap seconds (:60, read as the next second), which
    # Spark does not read.
    text = F.upper(F.get_json_object("value", "$.time"))
    moment = F.replace(text, F.lit(":60"), F.lit(":59")).try_cast("timestamp")
    leap_millis = F.when(text.contains(":60"), 1000).otherwise(0)
    event_time = F.bround(F.unix_micros(moment) / 1000).cast("bigint") + leap_millis
    # Place, partition and offset keep the order of lines whose events have the same time.
    return lines.where("trim(value) <> ''").select(
        F.col("_metadata.file_path").alias("place"),
        F.col("_metadata.file_block_start").alias("partition"),
        F.monotonically_increasing_id().alias("offset"),
        backtest_plan.possible_time(event_time).alias("at"),
        # The headers of a record that holds a structured event.
        F.array(F.lit(CONTENT_TYPE)).alias("names"),
        F.array(F.lit(json_format.MEDIA_TYPE).cast("binary")).alias("values"),
        F.col("value").cast("binary").alias("value"),
    )


def _counts_with_prefix(counts: backtest_plan.Counts, prefix: str) -> dict[str, int]:
    """Return the counts above 0 whose names begin with `prefix`, by the rest of the name."""
    return {
        name.removeprefix(prefix): count
        for name, count in sorted(counts.items())
        if name.startswith(prefix) and count
    }


def _firing_document(row: dict[str, Any]) -> dict[str, Any]:
    """Return a firing (a row of FIRINGS) as a JSON document, with its times as text."""
    events = [{**event, "at": _time_text(event["at"])} for event in row["events"]]
    return {**row, "at": _time_text(row["at"]), "events": events}


def _time_text(moment: datetime) -> str:
    """Return a time from Spark in UTC, in RFC 3339 with milliseconds."""
    # Spark gives local times without a zone, which `astimezone` assumes.
    utc = moment.astimezone(UTC).isoformat(timespec="milliseconds")
    return utc.replace("+00:00", "Z")
