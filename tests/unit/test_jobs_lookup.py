"""Lookups by the tables' files say what Spark says of the same tables, without Spark."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import QueryBuilder
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from support.tabled import NOW, tabled

from knafka.core.delivery import Reason
from knafka_cli.dead_letters.dead_letter_tables import read_overviews
from knafka_jobs.command_options import FailureSelection
from knafka_jobs.failure_selection import FailureCondition, conditions_of
from knafka_jobs.io.delta import Tables
from knafka_jobs.io.table_files import TableFiles
from knafka_jobs.job_errors import JobError, NeedsSpark
from knafka_jobs.lookup import lookup_plan
from knafka_jobs.lookup.lookup_run import (
    count_pending,
    latest_dead_letters,
    offsets_in_tables,
    preview,
)
from knafka_jobs.replay.replay_run import preview as preview_by_spark
from knafka_jobs.schema import LAYOUT, LAYOUT_PROPERTY, SENT, TABLES
from knafka_jobs.topic_offsets import BrokerName

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # py4j leaves sockets open
]

ROOT = Path(__file__).resolve().parents[2]
STUB = [("ce_id", b"stub"), ("ce_knafkaomitted", b"data")]
EMPTY = {"value": None, "data_bytes": None}


@pytest.fixture(scope="module")
def tables(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Tables:
    """Failures of every kind, of two days, in two compactions."""
    later = {"appended": NOW + timedelta(days=1), "last_attempt": NOW + timedelta(days=1)}
    first: list[dict[str, Any]] = [
        {"word": "one"},
        {"word": "it's"},
        {"word": "two", "trigger": "bill", "type": "order", "source": "/s"},
        {"word": "three", "broker": "other", "reason": "timeout", "code": None},
        {"word": "four", "destination": "http://else/", "error": "bm8gbW9uZXk="},
        {"word": "stub", "headers": STUB, **EMPTY},
        {"word": "no data", **EMPTY},
        {"word": "no event", "reason": "undecodable-record"},
        {"word": "nobody's", "namespace": ""},
        {"word": "sent", "trigger": "bill"},
        {"word": "failed again"},
        {"word": "resolved"},
    ]
    second: list[dict[str, Any]] = [
        {"word": "one", **later},
        {"word": "late", "partition": 1, **later},
    ]
    for number, each in enumerate([*first, *second]):
        each["offset"] = number
    made = tabled(spark, tmp_path_factory.mktemp("tables"), first, second)
    resolved = made.read("failures").where("failure_id = 'resolved'").localCheckpoint()
    on = "failures.failure_id = more.failure_id"
    made.update(resolved, "failures", on, {"resolved": f"timestamp '{NOW}'"})
    sent = [
        tuple({**dict.fromkeys(SENT), "failure_id": name, "sent": NOW, "outcome": outcome}.values())
        for name, outcome in (("sent", None), ("failed again", "failed-again"))
    ]
    made.append(made.rows(sent, SENT), "sent")
    return made


@pytest.mark.parametrize(
    ("selection", "sends", "leaves_out"),
    [
        (FailureSelection(), 8, 5),
        (
            FailureSelection(BrokerName("shop", "main"), since=NOW, until=NOW + timedelta(days=2)),
            7,
            4,
        ),
        (FailureSelection(trigger="bill", type="order", source="/s"), 1, 0),
        (FailureSelection(trigger="bill"), 1, 1),
        (FailureSelection(destination="http://else/", code=503, summary="no money"), 1, 0),
        (FailureSelection(reason=Reason.TIMEOUT), 1, 0),
        (FailureSelection(id="it's"), 1, 0),
        (FailureSelection(id="no' OR true --"), 0, 0),
        (FailureSelection(since=NOW + timedelta(microseconds=1)), 2, 0),
        (FailureSelection(until=NOW), 0, 0),
    ],
    ids=str,
)
def test_a_dry_run_without_spark_says_what_one_with_spark_says(
    tables: Tables, selection: FailureSelection, sends: int, leaves_out: int
) -> None:
    told = preview(TableFiles(tables.root), conditions_of(selection))
    assert told.document() == preview_by_spark(tables, selection).document()
    assert (told.count, told.left_out) == (sends, leaves_out)


def test_any_of_several_ids_are_meant_without_spark_too(tables: Tables) -> None:
    told = preview(TableFiles(tables.root), [FailureCondition("id", "in", ("one", "it's", "stub"))])
    assert [each["id"] for each in told.events] == ["it's", "one"]
    assert told.left_out == 1


def test_the_latest_dead_letters_come_as_they_lay_in_their_topics(tables: Tables) -> None:
    found = latest_dead_letters(
        TableFiles(tables.root), [FailureCondition("trigger", "=", "mail")], 2
    )
    assert {record.value() for record, _ in found} == {b"one", b"late"}
    record = next(record for record, _ in found if record.value() == b"late")
    assert (record.topic(), record.partition(), record.offset()) == ("dead-letters", 1, 13)
    assert record.headers() == [("ce_id", b"late")]
    assert record.timestamp()[1] == (NOW + timedelta(days=1)).timestamp() * 1000


def test_what_was_sent_again_or_resolved_is_told_by_when(tables: Tables) -> None:
    files = TableFiles(tables.root)
    told = {record.value(): at for record, at in latest_dead_letters(files, [], 100)}
    assert told[b"sent"] == told[b"resolved"] == NOW
    assert [told[each] for each in (b"failed again", b"one")] == [None, None]
    assert count_pending(files, []) == {("shop", "main", "bill"): 1}
    # What is on its way is not in the times and reasons of what isn't.
    one = read_overviews(files, [FailureCondition("trigger", "=", "bill")])["shop", "main", "bill"]
    assert (one.count, one.replayed, one.reasons) == (1, 1, {"status 503": 1})
    one = read_overviews(files, [FailureCondition("id", "=", "sent")])["shop", "main", "bill"]
    assert one.row == ("shop/bill", "0", "1", "", "", "")


QUESTIONS = (ROOT / "examples" / "dead-letters" / "questions.sql").read_text()


@pytest.mark.parametrize("number", range(1, 11))
def test_the_ten_questions_have_the_same_answers_with_and_without_spark(
    tables: Tables, number: int
) -> None:
    question = QUESTIONS.partition(f"-- {number}. ")[2].partition("\n")[2].partition(";")[0]
    names = [name for name in TABLES if re.search(rf"\b(FROM|JOIN) {name}\b", question)]
    told = TableFiles(tables.root).query(question, *names)
    for name in names:
        tables.read(name).createOrReplaceTempView(name)
    # As spark.sql.ansi.doubleQuotedIdentifiers has it, which is a session's.
    rows = tables.spark.sql(question.replace('"', "`")).collect()
    assert [_comparable(row.asDict()) for row in rows] == [_comparable(row) for row in told]
    assert told


def _comparable(row: dict[str, Any]) -> dict[str, Any]:
    """Times without a zone are UTC: Spark gives them in the zone of this process."""
    return {
        name: value.astimezone(UTC) if isinstance(value, datetime) else value
        for name, value in row.items()
    }


def test_the_tables_are_documented_with_all_their_columns() -> None:
    page = (ROOT / "docs" / "reference" / "dead-letter-tables.md").read_text()
    for table, columns in TABLES.items():
        part = page.partition(f"## {table}\n")[2].partition("\n## ")[0]
        assert re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", part, re.M) == list(columns.items())
    for number in range(1, 11):
        title = QUESTIONS.partition(f"-- {number}. ")[2].partition("\n")[0]
        assert f"{number}. {title}" in page


def test_the_tables_end_in_each_partition_is_known_also_after_a_purge(tables: Tables) -> None:
    assert offsets_in_tables(TableFiles(tables.root)) == {("id-1", 0): 13, ("id-1", 1): 14}


def test_tables_of_another_layout_are_left_to_spark(tables: Tables, tmp_path: Path) -> None:
    log = tmp_path / "failures" / "_delta_log"
    log.mkdir(parents=True)
    source = Path(tables.root) / "failures" / "_delta_log" / f"{0:020}.json"
    here = f'"{LAYOUT_PROPERTY}":"{LAYOUT["failures"]}"'
    old = source.read_text().replace(here, f'"{LAYOUT_PROPERTY}":"9"')
    (log / source.name).write_text(old)
    with pytest.raises(NeedsSpark, match="another version"):
        TableFiles(str(tmp_path)).has_table("failures")


def test_what_is_no_table_is_said_by_its_place(tmp_path: Path) -> None:
    files = TableFiles(str(tmp_path))
    assert not files.has_table("sent")
    with pytest.raises(JobError, match=f"there is no table {tmp_path}/failures"):
        preview(files, [])


@given(st.text())
def test_no_text_ends_the_string_that_it_is_in(text: str) -> None:
    if "\0" in text:
        return  # no column has it
    (row,) = (
        QueryBuilder()
        .execute(f"SELECT {lookup_plan.sql_literal(text)} AS said")
        .read_all()
        .to_struct_array()
        .to_pylist()
    )
    assert row["said"] == text


def test_the_command_line_answers_without_java_or_pyspark(tables: Tables, tmp_path: Path) -> None:
    script = (
        "import sys; sys.modules['pyspark'] = None; "
        "from knafka_cli.command_line import main; main()"
    )

    def ask(*words: str, tells: bool = False) -> str:
        said = subprocess.run(
            [sys.executable, "-c", script, "dead-letters", *words, f"--tables={tables.root}"],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "PATH": "", "JAVA_HOME": ""},
        )
        assert bool(said.stderr) is tells, said.stderr
        return said.stdout

    listed = [line.split()[:3] for line in ask("list").splitlines()[1:]]
    assert ["shop/bill", "1", "1"] in listed
    shown = ask("show", "shop/mail", "--limit=1", "--json")
    assert json.loads(shown)["id"] in ("one", "late")
    assert "8 would be sent" in ask("replay", "--dry-run")
    assert "2 would be sent" in ask("replay", "--dry-run", "--id=one", "--id=it's")
    files = [f"--{kind}={tmp_path / 'report'}.{kind}" for kind in ("html", "json")]
    assert "12 of 13 events unresolved in " in ask("report", *files, tells=True)
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["totals"]["events"] == 13
    assert {row["report_id"] for row in tables.read("reports").collect()} == {report["id"]}
