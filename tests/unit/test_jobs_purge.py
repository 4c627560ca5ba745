"""Purged is gone: no file of the store has it, in the tables or beside them."""

from __future__ import annotations

import shutil
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from support.gate import only_chaos
from support.tabled import NOW, records, tabled, words_in_store

from knafka_jobs.compact import plan
from knafka_jobs.compact.checkpoints import Checkpoints
from knafka_jobs.compact.plan import FOLDED, failures_of
from knafka_jobs.compact.run import fold, fold_all, vacuum
from knafka_jobs.compact.upgrade import upgrade
from knafka_jobs.errors import JobError
from knafka_jobs.io.delta import Tables
from knafka_jobs.options import Selection
from knafka_jobs.positions import MAX_BOUNDS, Bounds, bounds, within
from knafka_jobs.replay.run import purge, purgeable
from knafka_jobs.report.run import report
from knafka_jobs.schema import EVENT, FAILURES, RECORDS

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # py4j leaves sockets open


def test_no_file_of_the_store_has_what_was_purged(spark: SparkSession, tmp_path: Path) -> None:
    """Neither those that a table consists of, nor those that it has replaced, nor those that a
    killed run left behind, nor the tables' logs with their checkpoints and bounds."""
    root = tmp_path / "tables"
    tables = tabled(
        spark,
        root,
        [{"offset": 0, "word": "secret"}, {"offset": 1, "word": "kept"}],
        [{"offset": 2, "word": "secret", "last_attempt": NOW + timedelta(minutes=1)}],
    )
    tables.merge_small_files("records", "true")
    log = spark._jvm.org.apache.spark.sql.delta.DeltaLog  # type: ignore[union-attr]
    for name in ("records", "failures"):
        log.forTable(spark._jsparkSession, tables.path(name)).checkpoint()
    orphan = next((root / "records").glob("day=*/*.parquet"))
    shutil.copy(orphan, orphan.with_name("part-of-a-run-that-was-killed.parquet"))
    assert words_in_store(spark, root, tmp_path / "scratch") == {"secret", "kept"}

    secret = Selection(id="secret")
    assert purgeable(tables, secret, True).count() == 1
    assert words_in_store(spark, root, tmp_path / "scratch") == {"secret", "kept"}
    assert purge(tables, secret, True, partial(fold_all, tables)) == 1
    assert words_in_store(spark, root, tmp_path / "scratch") == {"kept"}
    rows = tables.read("failures").select("id", "head").collect()
    assert [(row["id"], bytes(row["head"])) for row in rows] == [("kept", b"kept")]
    positions = tables.read("purged").collect()
    assert sorted(row["offset"] for row in positions) == [0, 2]


def test_a_purge_erases_nothing_that_is_still_to_be_folded(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A compaction was killed between its two writes, and the file that it appended is replaced."""
    tables = tabled(spark, tmp_path / "tables", [{"offset": 0, "word": "secret"}])
    given = [{"offset": 1, "word": "secret"}, {"offset": 2, "word": "kept"}]
    tables.append(records(spark, *given).coalesce(1), "records")
    assert purge(tables, Selection(id="secret"), True, partial(fold_all, tables)) == 1
    fold_all(tables)
    rows = tables.read("failures").select("id", "failures").collect()
    assert [tuple(row) for row in rows] == [("kept", 1)]
    assert words_in_store(spark, tmp_path / "tables", tmp_path / "scratch") == {"kept"}


def test_a_purge_waits_for_nobody_and_is_refused_while_a_compaction_runs(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Whose files it would erase before they are committed."""
    tables = Tables(spark, str(tmp_path))
    with tables.locked(), pytest.raises(JobError, match="another compaction runs"):
        purge(tables, Selection(), True, partial(fold_all, tables))


@only_chaos
def test_replaced_files_are_vacuumed_once_a_day_whether_or_not_any_were_merged(
    spark: SparkSession, tmp_path: Path
) -> None:
    tables = tabled(spark, tmp_path, [{"offset": 0}])
    made = datetime.now(UTC)

    def vacuumed() -> int:
        history = tables._table("records").history()
        return history.where("operation = 'VACUUM END'").count()

    for after, times in ((0.5, 0), (1.5, 1), (2, 1), (3, 2)):
        vacuum(tables, made + timedelta(days=after))
        assert vacuumed() == times
    assert tables.read("records").count() == 1


@only_chaos
def test_heads_are_kept_for_the_latest_failures_of_each_group_alone(
    spark: SparkSession, tmp_path: Path
) -> None:
    """So that a report has its examples without `records`, and `failures` stays small."""
    batch = [
        {"offset": n, "word": f"e{n:02}", "last_attempt": NOW + timedelta(seconds=n)}
        for n in range(15)
    ]
    tables = tabled(spark, tmp_path, batch, [{"offset": 15, "word": "bill", "trigger": "bill"}])
    rows = tables.read("failures").where("head IS NOT NULL").collect()
    heads = sorted(bytes(row["head"]) for row in rows)
    assert heads == [b"bill", *(b"e%02d" % n for n in range(5, 15))]
    shutil.rmtree(tmp_path / "records")
    told = report(tables, None, NOW + timedelta(minutes=1))
    shown = {each.trigger: [x.data_preview for x in each.examples] for each in told.groups}
    assert shown == {"mail": ["e14", "e13", "e12", "e11", "e10"], "bill": ["bill"]}


def older(spark: SparkSession, folder: Path) -> Tables:
    """Tables as they were before there were days and heads, with a batch that is not folded yet."""
    later = NOW + timedelta(days=1)
    given: list[dict[str, Any]] = [
        {"offset": 0, "word": "one"},
        {"offset": 1, "word": "two"},
        {"offset": 2, "word": "two", "appended": later, "last_attempt": later},
    ]
    tables = Tables(spark, str(folder))
    rows = records(spark, *given)
    _as_before(rows, tables, "records", "day", "trace")
    rows = rows.select(*FOLDED).transform(failures_of)
    _as_before(rows, tables, "failures", "trace", "head", "summary", "first_day", "last_day", "day")
    tables = Tables(spark, str(folder))
    checkpoints = Checkpoints(tables)
    folded = (
        spark.readStream.format("delta")
        .load(tables.path("records"))
        .select("offset")
        .writeStream.foreachBatch(lambda *_: None)
        .option("checkpointLocation", tables.path(checkpoints._fold_checkpoint()))
        .trigger(availableNow=True)
        .start()
    )
    folded.awaitTermination()
    unfolded = records(spark, {"offset": 3, "word": "three"}, {"offset": 4, "word": "one"})
    unfolded.drop("day", "trace").write.format("delta").mode("append").save(tables.path("records"))
    return Tables(spark, str(folder))


def _as_before(rows: DataFrame, tables: Tables, name: str, *without: str) -> None:
    rows.drop(*without).coalesce(1).write.format("delta").save(tables.path(name))


@only_chaos
def test_tables_of_an_older_layout_are_upgraded_whatever_was_killed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One run after another is killed at its next write; what is not folded yet is counted once."""
    tables = older(spark, tmp_path)
    assert tables.layout("failures") == 1
    for step, passes in (
        ("add_columns", 0),
        ("update", 0),
        ("rewrite", 0),
        ("rewrite", 1),
        ("set_layout", 0),
        ("set_layout", 1),
    ):
        done, write = iter(range(9)), getattr(tables, step)

        def killed(*given: Any, done: Any = done, write: Any = write, last: int = passes) -> None:
            if next(done) >= last:
                raise KeyboardInterrupt
            write(*given)

        with monkeypatch.context() as patch:
            patch.setattr(tables, step, killed)
            with pytest.raises(KeyboardInterrupt):
                upgrade(tables, lambda _: None)
        assert tables.layout("failures") == 1
    said: list[str] = []
    for _ in range(2):
        upgrade(tables, said.append)
    assert said == ["failures is brought to layout 5"]
    assert fold(Checkpoints(tables)) == 0, "what was folded is not folded again"
    rows = tables.read("failures").orderBy("id").collect()
    told = [(row["id"], row["failures"], bytes(row["head"] or b"")) for row in rows]
    assert told == [("one", 2, b"one"), ("three", 1, b"three"), ("two", 2, b"two")]
    today = NOW.date()
    days = [(row["first_day"], row["last_day"]) for row in rows]
    assert days == [(today, today), (today, today), (today, today + timedelta(days=1))]
    for name in ("records", "failures"):
        assert tables.is_by_day(name)
    held = tables.read("records").orderBy("offset").select("offset", "day").collect()
    assert [row["day"] == today for row in held] == [True, True, False, True, True]


@contextmanager
def untraced() -> Iterator[None]:
    """Have tables the columns that they had before there were traces."""
    columns: tuple[Any, ...] = (EVENT, RECORDS, FAILURES)
    were = [dict(each) for each in columns]
    for each in columns:
        del each["trace"]
    try:
        yield
    finally:
        for each, was in zip(columns, were, strict=True):
            each.clear()  # in the place that it had
            each.update(was)


def test_tables_without_traces_get_them_and_go_on_where_they_were(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, untraced():
        patch.setattr(plan, "FOLDED", tuple(each for each in FOLDED if each != "trace"))
        patch.setattr("knafka_jobs.io.delta.LAYOUT", {"records": 2, "failures": 3})
        # At a time that no datetime can be compared with, and with its status code taken out.
        wrong = {"last_attempt": datetime(1, 1, 2, tzinfo=UTC), "appended": NOW}
        error = b64encode(b"500 Internal Server Error").decode()
        made = tabled(spark, tmp_path, [{"offset": 0, "word": "old", "error": error, **wrong}])
        made.correct("failures", F.lit(True), {"summary": F.lit("<n> Internal Server Error")})
    tables = Tables(spark, str(tmp_path))
    assert "trace" not in tables.as_it_is("failures").columns
    said: list[str] = []
    upgrade(tables, said.append)
    assert said == ["records is brought to layout 4", "failures is brought to layout 5"]
    for name, column in (("records", "last_attempt"), ("failures", "last_failed")):
        (row,) = tables.read(name).collect()
        assert row[column].astimezone(UTC) == NOW
    assert row["history"][0]["at"] == row["first_failed"] == row["last_failed"]
    assert row["summary"] == "500 Internal Server Error"
    tabled(spark, tmp_path, [{"offset": 1, "word": "new", "trace": "0af7"}])
    rows = tables.read("failures").orderBy("id").collect()
    assert [(row["id"], row["trace"], row["failures"]) for row in rows] == [
        ("new", "0af7", 1),
        ("old", None, 1),
    ]


def test_tables_of_a_newer_layout_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    tables = Tables(spark, str(tmp_path))
    tables.id("failures")
    upgrade(tables, lambda _: None)
    spark.sql(
        f"ALTER TABLE delta.`{tables.path('failures')}` SET TBLPROPERTIES ('knafka.layout' = '9')"
    )
    with pytest.raises(JobError, match="layout 9, which a newer Knafka made"):
        upgrade(tables, lambda _: None)


def test_rows_are_read_by_position_from_the_files_that_may_have_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    tables = Tables(spark, str(tmp_path))
    for first in (0, 100, 200):
        rows = [{"offset": first + n, "partition": n % 2} for n in range(10)]
        tables.append(records(spark, *rows).coalesce(1), "records")
    wanted = tables.read("records").where("offset IN (104, 105, 107)")
    found = sorted(bounds(wanted))
    assert found == [Bounds("id-1", 0, 104, 104), Bounds("id-1", 1, 105, 107)]
    every = tables.read("records")
    chosen = every.where(within(found))
    assert (len(every.inputFiles()), len(chosen.inputFiles())) == (3, 1)
    assert sorted(row["offset"] for row in chosen.collect()) == [104, 105, 107]
    others = [Bounds(f"id-{n}", 0, 100, 109) for n in range(1, MAX_BOUNDS + 2)]
    chosen = every.where(within(others))
    assert (len(chosen.inputFiles()), chosen.count()) == (1, 10), "coarser, and never too little"
    assert every.where(within([])).count() == 0
