"""Purged is gone: no file of the store has it, in the tables or beside them."""

from __future__ import annotations

import shutil
from argparse import Namespace
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from support.gate import only_chaos
from support.replacing import replace_in
from support.tabled import NOW, records, tabled, words_in_store

from knafka_jobs.command_options import FailureSelection
from knafka_jobs.commands import delete_expired
from knafka_jobs.compact.compact_run import fold_leftovers, vacuum
from knafka_jobs.io import delta
from knafka_jobs.io.delta import Tables
from knafka_jobs.job_errors import JobError
from knafka_jobs.positions import MAX_BOUNDS, OffsetBounds, offset_bounds, within_bounds
from knafka_jobs.replay.purge_run import purge, purgeable
from knafka_jobs.report.report_run import make_report
from knafka_jobs.report.spark_engine import SparkEngine
from knafka_jobs.topic_offsets import BrokerName

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

    secret = FailureSelection(id="secret")
    assert purgeable(tables, secret, True).count() == 1
    assert words_in_store(spark, root, tmp_path / "scratch") == {"secret", "kept"}
    assert purge(tables, secret, True, partial(fold_leftovers, tables)) == 1
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
    assert purge(tables, FailureSelection(id="secret"), True, partial(fold_leftovers, tables)) == 1
    fold_leftovers(tables)
    rows = tables.read("failures").select("id", "failures").collect()
    assert [tuple(row) for row in rows] == [("kept", 1)]
    assert words_in_store(spark, tmp_path / "tables", tmp_path / "scratch") == {"kept"}


def test_the_retention_of_an_archive_goes_by_kafkas_clock_and_by_what_is_resolved(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Whatever the dispatcher's clock says of the attempts; of the archive's Broker alone."""
    day = timedelta(days=1)

    def letter(word: str, offset: int, age: timedelta, **changed: Any) -> dict[str, Any]:
        times = dict.fromkeys(("appended", "last_attempt"), NOW - age)
        return {"word": word, "offset": offset, **times, **changed}

    tables = tabled(
        spark,
        tmp_path / "tables",
        [
            letter("old", 0, 40 * day),
            letter(
                "a dispatcher in 1970", 1, 0 * day, last_attempt=datetime(1970, 1, 2, tzinfo=UTC)
            ),
            letter("a dispatcher ahead", 2, 40 * day, last_attempt=NOW),
            letter("resolved", 3, 40 * day),
            letter("of another Broker", 4, 40 * day, broker="other"),
        ],
    )
    resolved = tables.read("failures").where("failure_id = 'resolved'").localCheckpoint()
    tables.update(
        resolved,
        "failures",
        "failures.failure_id = more.failure_id",
        {"resolved": f"timestamp '{NOW - 39 * day}'"},
    )
    options = Namespace(tables=tables.root, broker=BrokerName("shop", "main"))
    options.resolved_hours, options.unresolved_hours = None, 30 * 24.0
    assert delete_expired(spark, options, NOW) == 2
    kept = {row["id"] for row in tables.read("failures").collect()}
    assert kept == {"a dispatcher in 1970", "resolved", "of another Broker"}
    options.resolved_hours = 39 * 24.0
    assert delete_expired(spark, options, NOW) == 0, "the last day is kept whole"
    options.resolved_hours = 38 * 24.0
    assert delete_expired(spark, options, NOW) == 1


def test_a_purge_waits_for_nobody_and_is_refused_while_a_compaction_runs(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Whose files it would erase before they are committed."""
    tables = Tables(spark, str(tmp_path))
    with tables.locked(), pytest.raises(JobError, match="another compaction runs"):
        purge(tables, FailureSelection(), True, partial(fold_leftovers, tables))


@only_chaos
def test_replaced_files_are_vacuumed_once_a_day_whether_or_not_any_were_merged(
    spark: SparkSession, tmp_path: Path
) -> None:
    tables = tabled(spark, tmp_path, [{"offset": 0}])
    made = datetime.now(UTC)

    def vacuumed() -> int:
        history = tables._ensure_table("records").history()
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
    told = make_report(SparkEngine(tables), None, NOW + timedelta(minutes=1))
    shown = {each.trigger: [x.data_preview for x in each.examples] for each in told.groups}
    assert shown == {"mail": ["e14", "e13", "e12", "e11", "e10"], "bill": ["bill"]}


def test_tables_of_a_newer_layout_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    tables = Tables(spark, str(tmp_path))
    tables.table_id("failures")
    tables.check_layouts()
    spark.sql(
        f"ALTER TABLE delta.`{tables.path('failures')}` SET TBLPROPERTIES ('knafka.layout' = '9')"
    )
    with pytest.raises(JobError, match="layout 9, which a newer Knafka made"):
        tables.check_layouts()


def test_rows_are_read_by_position_from_the_files_that_may_have_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    tables = Tables(spark, str(tmp_path))
    for first in (0, 100, 200):
        rows = [{"offset": first + n, "partition": n % 2} for n in range(10)]
        tables.append(records(spark, *rows).coalesce(1), "records")
    wanted = tables.read("records").where("offset IN (104, 105, 107)")
    found = sorted(offset_bounds(wanted))
    assert found == [OffsetBounds("id-1", 0, 104, 104), OffsetBounds("id-1", 1, 105, 107)]
    every = tables.read("records")
    chosen = every.where(within_bounds(found))
    assert (len(every.inputFiles()), len(chosen.inputFiles())) == (3, 1)
    assert sorted(row["offset"] for row in chosen.collect()) == [104, 105, 107]
    others = [OffsetBounds(f"id-{n}", 0, 100, 109) for n in range(1, MAX_BOUNDS + 2)]
    chosen = every.where(within_bounds(others))
    assert (len(chosen.inputFiles()), chosen.count()) == (1, 10), "coarser, and never too little"
    assert every.where(within_bounds([])).count() == 0


def test_a_tables_size_is_known_with_and_without_what_delta_wrote_beside_its_commits(
    spark: SparkSession, tmp_path: Path
) -> None:
    tables = Tables(spark, str(tmp_path))
    for offset in range(3):
        tables.append(records(spark, {"offset": offset}).coalesce(1), "records")
    size = tables.size("records")
    assert size == (3, sum(file.stat().st_size for file in tmp_path.glob("records/*/*.parquet")))
    for file in tmp_path.glob("records/_delta_log/*crc*"):
        file.unlink()
    tables._delta.DeltaLog.clearCache()
    assert Tables(spark, str(tmp_path)).size("records") == size


def test_a_table_that_two_jobs_make_at_once_is_there_for_both(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A report that began with the first compaction failed: the table "already exists"."""
    tables = [Tables(spark, str(tmp_path)) for _ in range(4)]
    with ThreadPoolExecutor(len(tables)) as jobs:
        ids = set(jobs.map(lambda each: each.table_id("purged"), tables))
    assert len(ids) == 1


def test_a_table_that_another_job_has_begun_to_make_is_waited_for(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folder is there before its first commit; a job that came in between failed."""
    other = Tables(spark, str(tmp_path / "other"))
    other.table_id("purged")
    made, begun = tmp_path / "other" / "purged", tmp_path / "mine" / "purged"
    (begun / "_delta_log").mkdir(parents=True)
    (begun / "begun.parquet").write_bytes(b"")

    def commit(_: float) -> None:
        shutil.copytree(made, begun, dirs_exist_ok=True)

    replace_in(monkeypatch, delta, "time", sleep=commit)
    assert Tables(spark, str(tmp_path / "mine")).table_id("purged") == other.table_id("purged")


def test_a_folder_with_something_else_in_it_is_no_table(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta, "CREATION_TIMEOUT", 0.0)
    (tmp_path / "purged").mkdir()
    (tmp_path / "purged" / "letter.txt").write_text("mine")
    with pytest.raises(JobError, match="because it already exists"):
        Tables(spark, str(tmp_path)).table_id("purged")
