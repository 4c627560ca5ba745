"""Tables of dead letters that no Kafka ever had, and what the files of a store have."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from knafka_jobs.compact.checkpoints import Checkpoints
from knafka_jobs.compact.compact_run import fold
from knafka_jobs.io.delta import Tables
from knafka_jobs.schema import RECORDS, ddl

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


def records(spark: SparkSession, *given: dict[str, Any]) -> DataFrame:
    """Rows of `records`; `word` is in whatever an event may say of a person."""
    usual: dict[str, Any] = dict.fromkeys(RECORDS) | {
        "topic": "dead-letters",
        "topic_id": "id-1",
        "partition": 0,
        "appended": NOW,
        "namespace": "shop",
        "broker": "main",
        "trigger": "mail",
        "destination": "http://mail/",
        "reason": "status",
        "code": 503,
        "attempts": 1,
        "first_attempt": NOW,
        "last_attempt": NOW,
        "data_bytes": 9,
    }
    values = []
    for each in given:
        word = each.pop("word", "kept")
        said = dict.fromkeys(("id", "source", "subject"), word)
        raw = {"key": word.encode(), "value": word.encode(), "headers": [("ce_id", word.encode())]}
        day = each.get("appended", NOW).date()
        own = {"failure_id": word, **said, **raw, "day": day, **each}
        values.append(tuple({**usual, **own}.values()))
    return spark.createDataFrame(values, ddl(RECORDS))


def tabled(spark: SparkSession, folder: Path, *batches: list[dict[str, Any]]) -> Tables:
    """Tables that the compaction has written in so many batches."""
    tables = Tables(spark, str(folder))
    for batch in batches:
        tables.append(records(spark, *batch).coalesce(1), "records")
        fold(Checkpoints(tables))
    return tables


def words_in_store(spark: SparkSession, root: Path, scratch: Path) -> set[str]:
    """Which of the words any file of the store has, whether or not a table knows the file."""
    found = set()
    shutil.rmtree(scratch, ignore_errors=True)
    for number, file in enumerate(each for each in root.rglob("*") if each.is_file()):
        text = repr(file.read_bytes())
        if file.suffix == ".parquet":
            # Delta won't have its files read one by one where they lie.
            copy = scratch / f"{number}.parquet"
            copy.parent.mkdir(exist_ok=True)
            shutil.copy(file, copy)
            text = repr(spark.read.parquet(str(copy)).collect())
        found |= {word for word in ("secret", "kept") if word in text}
    return found
