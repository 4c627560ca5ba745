"""Generates tables as compactions of `DAYS` days leave them, and dead letters in Kafka.

Everything about an event follows from its number: a dead letter in Kafka belongs to the failure
that the tables have for that number. So a new dead letter can be of an event that failed before.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from confluent_kafka import Producer
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from knafka.core import names
from knafka.core.dead_letter import Failure, Origin, dead_letter_of
from knafka.core.delivery import Reason
from knafka_jobs.compact import compact_plan, record_rows
from knafka_jobs.compact.checkpoints import _WRITER, Checkpoints
from knafka_jobs.failure_days import load_known_days
from knafka_jobs.fingerprint import fingerprint
from knafka_jobs.io.delta import Tables
from knafka_jobs.schema import FAILURES, RECORDS
from knafka_jobs.topic_offsets import ReadState

DAYS: Final = 30
BROKER: Final = ("shop", "main")
TRIGGER: Final = "mail"
TOPIC: Final = names.dead_letter_topic(*BROKER, TRIGGER)
BLOCK: Final = 64
"""Bytes of one digest; payloads consist of digests, so that no compression makes them smaller."""
_ERROR: Final = b"db down"


def fill(tables: Tables, stored: int, size: int, now: datetime) -> None:
    """Fill the tables with one dead letter of `size` bytes for each event from 0 to `stored`, in
    the order of time."""
    spark, per_day = tables.spark, -(-stored // DAYS)
    # Tasks of a day or less: none has more than one day's files open.
    tasks = DAYS * max(1, per_day // 500_000)
    rows = spark.range(0, stored, 1, tasks).withColumn("number", F.col("id"))
    begun = (now - timedelta(days=DAYS)).timestamp()
    appended = F.timestamp_seconds(F.lit(begun) + F.col("id") * (DAYS * 86_400.0 / stored))
    records = _records(rows, appended, size)
    checkpoints = Checkpoints(tables)
    # As if they had been read from a topic that was deleted since.
    tables.append(records, "records", txnAppId=_WRITER, txnVersion="1")
    checkpoints.save_offsets(1, {("id", 0): ReadState(stored)})
    tables.append(_failures(tables.read("records").select(*compact_plan.FOLDED)), "failures")
    load_known_days(tables, tables.read("failures").limit(1))
    query = (
        spark.readStream.format("delta")
        .load(tables.path("records"))
        .select("offset")
        .writeStream.foreachBatch(lambda *_: None)
        .option("checkpointLocation", tables.path(checkpoints._fold_checkpoint()))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def moment_of(number: int, stored: int, now: datetime) -> datetime:
    """Return when the event of this number failed; `now` is the end of the `DAYS` days."""
    return now - timedelta(days=DAYS) + timedelta(days=DAYS) * number / stored


def produce(servers: str, numbers: Iterable[int], size: Callable[[int], int]) -> None:
    """Write dead letters of these events to Kafka, as a dispatcher does; `size` returns the bytes
    of an event's data."""
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 50, "compression.type": "lz4"})
    failed_at = time.time()
    for number in numbers:
        headers = [
            ("ce_specversion", b"1.0"),
            ("ce_id", b"%d" % number),
            ("ce_source", b"/bench"),
            ("ce_type", b"bench"),
        ]
        failure = Failure("http://mail/", Reason.STATUS, 3, failed_at, failed_at + 1, 503, _ERROR)
        origin = Origin(*BROKER, TRIGGER, "broker", 0, number)
        letter_headers, value = dead_letter_of(
            headers, payload(number, size(number)), failure, origin
        )
        while True:
            try:
                producer.produce(TOPIC, value, b"%d" % (number % 1000), headers=letter_headers)  # type: ignore[arg-type]
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    producer.flush()


def payload(number: int, size: int) -> bytes:
    """Return the data of the event of this number; `_payload` computes the same in Spark."""
    blocks = (
        hashlib.sha512(b"%d/%d" % (number, block)).digest() for block in range(-(-size // BLOCK))
    )
    return b"".join(blocks)[:size]


def _payload(number: Column, size: int) -> Column:
    """Return the column with the data that `payload` returns for each number (as text)."""
    blocks = (
        F.unhex(F.sha2(F.concat(number, F.lit(f"/{block}")), 512))
        for block in range(-(-size // BLOCK))
    )
    return F.substring(F.concat(*blocks), 1, size)


def _records(rows: DataFrame, appended: Column, size: int) -> DataFrame:
    """Return the table `records` with one dead letter of `size` bytes for each number in `rows`,
    which came at the time `appended`."""
    text = {"topic": TOPIC, "topic_id": "id", "namespace": BROKER[0], "broker": BROKER[1]}
    text |= {"trigger": TRIGGER, "source": "/bench", "type": "bench"}
    text |= {"destination": "http://mail/", "reason": "status", "error": "ZGIgZG93bg=="}
    number = F.col("number").cast("string")
    columns: dict[str, Any] = {name: F.lit(value) for name, value in text.items()}
    parts = [columns[name] for name in ("namespace", "broker", "trigger", "source")]
    columns |= {"id": number, "offset": F.col("id"), "value": F.col("data")}
    columns |= {"failure_id": record_rows._digest(*parts, number, F.hex(F.xxhash64("data")))}
    columns |= {"partition": F.lit(0), "code": F.lit(503), "attempts": F.lit(3)}
    columns |= dict.fromkeys(("appended", "first_attempt", "last_attempt"), appended)
    columns |= {"data_bytes": F.lit(size), "day": F.to_date(appended)}
    return rows.withColumn("data", _payload(number, size)).select(
        *(columns.get(name, F.lit(None)).cast(kind).alias(name) for name, kind in RECORDS.items())
    )


def _failures(records: DataFrame) -> DataFrame:
    """Return the failures of records, each of which is of another failure, as the compaction
    computes them."""
    once = F.struct(F.col("last_attempt").alias("at"), "reason", "code", "attempts")
    day = F.to_date("appended")
    columns: dict[str, Column] = {
        "summary": F.lit(fingerprint(_ERROR.decode())),
        "failures": F.lit(1),
        "retries": F.lit(2),
        "first_failed": F.col("first_attempt"),
        "last_failed": F.col("last_attempt"),
        "history": F.array(once),
        **dict.fromkeys(("first_day", "last_day", "day"), day),
    }
    record_columns = set(records.columns)
    return records.select(
        *(
            columns.get(name, F.col(name) if name in record_columns else F.lit(None))
            .cast(kind)
            .alias(name)
            for name, kind in FAILURES.items()
        )
    )


def today() -> datetime:
    """Return the time now, in UTC."""
    return datetime.now(UTC)
