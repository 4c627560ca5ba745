"""A compaction opens what it concerns, and what is old is forgotten, bytes and all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from support.tabled import NOW, records, tabled, words_in_store

from knafka_jobs.command_options import CompactOptions
from knafka_jobs.compact import compact_run
from knafka_jobs.compact.checkpoints import Checkpoints
from knafka_jobs.compact.compact_run import fold, forget_expired
from knafka_jobs.io.delta import Tables
from knafka_jobs.io.session import executor_settings
from knafka_jobs.topic_offsets import OffsetSpan

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # py4j leaves sockets open


class Clock(datetime):
    """A `datetime` whose `now` is on the day that a test says."""

    present = NOW

    @classmethod
    def now(cls, tz: Any = None) -> Any:
        return cls.present


def killed(*_: Any) -> None:
    raise RuntimeError("killed")


def on(day: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Clock, "present", NOW + timedelta(days=day))
    monkeypatch.setattr(compact_run, "datetime", Clock)


def a_day_each(
    spark: SparkSession, folder: Path, monkeypatch: pytest.MonkeyPatch, days: int
) -> Tables:
    """Tables of failures e0, e1, ...: one a day, compacted on its day."""
    tables = Tables(spark, str(folder))
    for day in range(days):
        on(day, monkeypatch)
        at = NOW + timedelta(days=day)
        row = {"offset": day, "word": f"e{day}", "appended": at, "last_attempt": at}
        tables.append(records(spark, row).coalesce(1), "records")
        fold(Checkpoints(tables))
    return tables


def test_a_fold_writes_files_for_what_there_is_and_not_for_its_tasks(
    spark: SparkSession, tmp_path: Path
) -> None:
    """With executors there are many tasks: 2,000 letters made 201 files of 98 kB in all."""
    before = spark.conf.get("spark.sql.shuffle.partitions")
    try:
        spark.conf.set("spark.sql.shuffle.partitions", "8")
        tables = tabled(spark, tmp_path, [{"offset": n, "word": f"e{n // 2}"} for n in range(40)])
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", before or "2")
    assert tables.size("failures")[0] == 1
    assert executor_settings(4) == {"spark.sql.shuffle.partitions": "8"}
    assert executor_settings(1) == {"spark.sql.shuffle.partitions": "2"}


@contextmanager
def out_of_reach(*folders: Path) -> Iterator[None]:
    """Without these folders: who opens a file of theirs fails."""
    for each in folders:
        each.rename(each.with_name(f"_{each.name}"))
    yield
    for each in folders:
        each.with_name(f"_{each.name}").rename(each)


def folders(tables: Tables, *names: str, but: date | None = None) -> list[Path]:
    return [
        folder
        for name in names
        for folder in Path(tables.root, name).glob("day=*")
        if folder.name != f"day={but}"
    ]


def counts(tables: Tables) -> dict[str, tuple[int, date]]:
    rows = tables.read("failures").select("id", "failures", "day").collect()
    assert len({row["id"] for row in rows}) == len(rows), "each failure is one row"
    return {row["id"]: (row["failures"], row["day"]) for row in rows}


def test_folding_opens_the_days_that_have_its_failures_and_no_others(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New failures open no old file; one of an earlier day opens that day, and is counted there."""
    tables = a_day_each(spark, tmp_path, monkeypatch, 2)
    on(2, monkeypatch)
    at = NOW + timedelta(days=2)
    old = folders(tables, "records", "failures")
    assert len(old) == 4
    new = {"word": "e2", "appended": at, "last_attempt": at}
    tables.append(records(spark, {"offset": 3, **new}).coalesce(1), "records")
    with out_of_reach(*old):
        assert fold(Checkpoints(tables)) == 1

    again = {**new, "word": "e1"}
    tables.append(records(spark, {"offset": 4, **new}, {"offset": 5, **again}), "records")
    second = (NOW + timedelta(days=1)).date()
    others = [each for each in folders(tables, "failures", but=second) if each in old]
    with out_of_reach(*others, *(each for each in old if each.parent.name == "records")):
        assert fold(Checkpoints(tables)) == 2
    first = NOW.date()
    assert counts(tables) == {
        "e0": (1, first),
        "e1": (2, second),
        "e2": (2, first + timedelta(days=2)),
    }


def test_a_fold_that_was_killed_between_its_two_tables_counts_each_failure_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its days are noted and its failures are not there: the next run, on another day, is."""
    tables = a_day_each(spark, tmp_path, monkeypatch, 1)
    tables.append(records(spark, {"offset": 1, "word": "e0"}, {"offset": 2}), "records")

    on(1, monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(Tables, "upsert", killed)
        with pytest.raises(Exception, match="killed"):
            fold(Checkpoints(tables))
    assert tables.read("failure_days").count() == 2
    on(2, monkeypatch)
    fold(Checkpoints(tables))
    noted = NOW.date() + timedelta(days=1)
    assert counts(tables) == {"e0": (2, NOW.date()), "kept": (1, noted)}


def test_what_is_older_than_it_is_kept_is_gone_with_its_bytes(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Resolved ones by when they were resolved, others by when they failed last; once a day."""
    root = tmp_path / "tables"
    tables = tabled(
        spark,
        root,
        [
            {"offset": 0, "word": "secret"},
            {"offset": 1, "word": "kept"},
            {"offset": 2, "word": "kept", "appended": NOW + timedelta(days=9)},
            {"offset": 3, "word": "secret", "id": "resolved", "failure_id": "r"},
            {"offset": 4, "word": "kept", "id": "resolved late", "failure_id": "l"},
        ],
    )
    for failure, day in (("r", 1), ("l", 9)):
        marked = {"resolved": f"timestamp '{NOW + timedelta(days=day)}'"}
        one = tables.read("failures").where(f"failure_id = '{failure}'").localCheckpoint()
        tables.update(one, "failures", "failures.failure_id = more.failure_id", marked)
    options = CompactOptions(forget_resolved_days=5, forget_unresolved_days=8)
    spans = {("id-1", 0): OffsetSpan(3, 5)}
    today = NOW + timedelta(days=10)
    monkeypatch.setattr(Tables, "_creation_time", lambda *_: today.timestamp() - 90_000)

    assert forget_expired(tables, CompactOptions(), spans, today) == 0
    scratch = tmp_path / "scratch"
    assert words_in_store(spark, root, scratch) == {"secret", "kept"}
    with monkeypatch.context() as patch:
        patch.setattr(Tables, "erase_unused_files", killed)
        with pytest.raises(RuntimeError, match="killed"):
            forget_expired(tables, options, spans, today)
    assert forget_expired(tables, options, spans, today) == 0, "forgotten by the run before"
    assert words_in_store(spark, root, scratch) == {"kept"}
    rows = tables.read("failures").select("id").collect()
    assert sorted(row["id"] for row in rows) == ["kept", "resolved late"]
    assert tables.read("failure_days").count() == 2
    positions = [row["offset"] for row in tables.read("purged").collect()]
    assert positions == [3], "what its topic has no longer needs no account"

    much_later = partial(forget_expired, tables, options, spans)
    assert much_later(today + timedelta(hours=23)) == 0
    assert much_later(datetime(2027, 1, 1, tzinfo=UTC)) == 2
