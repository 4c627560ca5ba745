"""Replays with their progress: listed without Spark, and by reports of both engines."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession
from support.tables_without_spark import failure, record, write_failures, write_records
from typer.testing import CliRunner

from knafka_cli.command_line import app
from knafka_jobs.io.delta import Tables
from knafka_jobs.io.table_files import TableFiles
from knafka_jobs.job_errors import JobError
from knafka_jobs.replay import replay_progress
from knafka_jobs.replay.replay_progress import ReplayProgress
from knafka_jobs.replay_state import ReplayState, replay_state
from knafka_jobs.report.replay_list import list_replays
from knafka_jobs.report.report_plan import replay_counts
from knafka_jobs.report.spark_engine import SparkEngine
from knafka_jobs.schema import CANCELLATIONS, REPLAY_PROGRESS, REPLAYS, SENT, ddl

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # py4j leaves sockets open

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """One that runs, one that was cut short, and a finished one of an earlier version."""
    write_failures(tmp_path, failure("one"))
    write_records(tmp_path, record(failure("one")))
    files = TableFiles(str(tmp_path))
    begun: dict[str, tuple[datetime, datetime | None, int | None]] = {
        "runs": (ago(100), None, None),
        "cut": (ago(9_000), None, None),
        "old": (ago(90_000), ago(89_000), 7),
    }
    rows = [[id_, "ana", "--code 503", at, end, count] for id_, (at, end, count) in begun.items()]
    files.append("replays", REPLAYS, rows)
    notes = [("runs", ago(90), 20), ("runs", ago(50), 400), ("runs", ago(10), 820)]
    notes += [("cut", ago(8_990), 0), ("cut", ago(8_900), 90)]
    files.append("replay_progress", REPLAY_PROGRESS, [(*note, 1_000) for note in notes])
    return tmp_path


def told(tables: Path) -> dict[str, tuple[Any, ...]]:
    runs = list_replays(TableFiles(str(tables)), 9, NOW)
    return {each.id: (each.state, each.sent, each.total, each.rate) for each in runs}


def test_a_replay_is_listed_with_its_state_progress_and_rate(tables: Path) -> None:
    assert told(tables) == {
        "runs": ("running", 820, 1_000, 10.0),
        "cut": ("interrupted", 90, 1_000, 1.0),
        "old": ("finished", 0, None, None),
    }
    assert list(told(tables)) == ["runs", "cut", "old"], "the newest first"
    row = {"replay_id": "runs", "at": ago(5), "by": "bob"}
    TableFiles(str(tables)).append(
        "cancellations", CANCELLATIONS, [[row[name] for name in CANCELLATIONS]]
    )
    assert told(tables)["runs"][0] == "cancelling"


def test_the_command_prints_a_line_for_each_replay(tables: Path) -> None:
    result = CliRunner().invoke(app, ["dead-letters", "replays", "--limit=2", f"--tables={tables}"])
    assert result.exit_code == 0, result.output
    head, runs, cut = (line.split() for line in result.output.splitlines())
    assert head[:6] == ["REPLAY", "BEGUN", "BY", "STATE", "SENT", "RATE"]
    assert runs[:6] == [
        *("runs", "2026-11-21T11:58:20.000Z", "ana"),
        runs[3],
        *("820/1000", "10/s"),
    ]
    assert cut[4:6] == ["90/1000", "1/s"]


def test_both_engines_tell_the_same_of_replays(tables: Path, spark: SparkSession) -> None:
    sent = [("runs", "f1", *[None] * 10), ("old", "f2", *[None] * 10)]
    spark_tables = Tables(spark, str(tables))
    spark_tables.append(spark.createDataFrame(sent, ddl(SENT)), "sent")
    rows = SparkEngine(spark_tables).query(replay_counts(9))
    listed = list_replays(TableFiles(str(tables)), 9, NOW)
    from knafka_jobs.report.assemble import replay_run

    assert [replay_run(row, NOW) for row in rows] == listed
    assert {each.id: each.sent for each in listed} == {"runs": 820, "cut": 90, "old": 1}


@pytest.mark.parametrize(
    ("silent", "running", "state"),
    [(200, 300, "running"), (400, 500, "interrupted"), (400, 9_000, "running")],
)
def test_a_long_replay_may_be_silent_for_longer(silent: int, running: int, state: str) -> None:
    assert replay_state(ago(running), None, ago(silent), None, NOW) is ReplayState(state)
    assert replay_state(ago(running), ago(1), ago(silent), None, NOW) is ReplayState.FINISHED
    assert replay_state(ago(running), ago(1), None, ago(2), NOW) is ReplayState.CANCELLED


def test_notes_are_few_and_one_that_fails_ends_no_replay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moment = [0.0]
    monkeypatch.setattr(replay_progress, "time", SimpleNamespace(monotonic=lambda: moment[0]))
    lines: list[str] = []
    files, rows = TableFiles(str(tmp_path)), list[Sequence[Any]]()
    monkeypatch.setattr(files, "append", lambda table, columns, more: rows.extend(more))
    noted = ReplayProgress(files, "r", 5, 100_000, lines.append)
    for second in range(36_000):
        moment[0] = float(second)
        noted.note(lambda: int(moment[0]))
    assert 100 < len(rows) < 400
    assert sorted(row[list(REPLAY_PROGRESS).index("sent")] for row in rows)[:2] == [5, 20]

    def fail(*_: object) -> None:
        raise JobError("no space")

    monkeypatch.setattr(files, "append", fail)
    moment[0] += 9_999
    noted.note(lambda: 1)
    assert lines == ["the progress is not noted: no space"]
    assert not noted.is_due(), "no further attempt"
