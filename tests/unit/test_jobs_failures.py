"""Failures as a person selects them and as a report tells them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from knafka.core.delivery import Reason
from knafka_jobs import schema
from knafka_jobs.acknowledgements import AcknowledgementAction
from knafka_jobs.command_options import FailureSelection
from knafka_jobs.io.delta import Tables
from knafka_jobs.io.table_files import TableFiles
from knafka_jobs.job_errors import JobError
from knafka_jobs.lookup.acknowledge import append_acknowledgements
from knafka_jobs.lookup.groups import list_groups
from knafka_jobs.replay.replay_plan import select_failures
from knafka_jobs.report.assemble import group_change
from knafka_jobs.report.report_document import Acknowledged, ChangeKind, Report, json_schema
from knafka_jobs.report.report_run import make_report
from knafka_jobs.report.spark_engine import SparkEngine
from knafka_jobs.schema import FAILURES, ddl
from knafka_jobs.topic_offsets import BrokerName

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # py4j leaves sockets open

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
MAIL = ("shop", "main", "mail", "http://mail/", "status", 503, "no")

ACKNOWLEDGE = AcknowledgementAction.ACKNOWLEDGE


def ago(minutes: float) -> datetime:
    return NOW - timedelta(minutes=minutes)


def failures(spark: SparkSession, *given: dict[str, Any]) -> DataFrame:
    usual: dict[str, Any] = dict.fromkeys(FAILURES) | dict(zip(schema.GROUP, MAIL, strict=True))
    usual |= {"id": "1", "source": "/s", "type": "t", "attempts": 3, "failures": 1, "retries": 2}
    usual |= {"topic_id": "id-1", "partition": 0, "offset": 0, "history": []}
    values = []
    for number, each in enumerate(given):
        failed = each.get("last_failed", ago(10))
        own = {"failure_id": f"f{number}", "first_failed": failed, "last_failed": failed, **each}
        values.append(tuple({**usual, **own}.values()))
    return spark.createDataFrame(values, ddl(FAILURES))


def ids(frame: DataFrame) -> set[str]:
    return {row["failure_id"] for row in frame.collect()}


@pytest.mark.parametrize(
    ("selection", "wanted"),
    [
        (FailureSelection(), {"f0", "f1", "f2"}),
        (FailureSelection(broker=BrokerName("shop", "main")), {"f0", "f2"}),
        (FailureSelection(trigger="bill"), {"f2"}),
        (
            FailureSelection(destination="http://mail/", reason=Reason.STATUS, code=503),
            {"f0", "f1"},
        ),
        (FailureSelection(type="order", source="/s"), {"f1"}),
        (FailureSelection(id="7"), {"f0"}),
        (FailureSelection(since=ago(10), until=ago(5)), {"f0", "f1"}),
        (FailureSelection(where="code IS NULL OR type LIKE 'ord%'"), {"f1", "f2"}),
        (FailureSelection(trigger="mail", where="true) OR (true"), None),
        (FailureSelection(where="frobnicate(id)"), None),
        (FailureSelection(where="id = '1'; DROP TABLE x"), None),
    ],
    ids=lambda value: " ".join(sorted(value)) if isinstance(value, set) else str(value),
)
def test_a_selection_is_what_fits_all_of_it(
    spark: SparkSession, selection: FailureSelection, wanted: set[str] | None
) -> None:
    """A predicate that is none, or that would end the expression around it, is refused."""
    rows = failures(
        spark,
        {"id": "7"},
        {"broker": "other", "type": "order"},
        {"trigger": "bill", "reason": "timeout", "code": None, "last_failed": ago(5)},
    )
    if wanted is None:
        with pytest.raises(JobError, match="can't be used"):
            select_failures(rows, selection)
    else:
        assert ids(select_failures(rows, selection)) == wanted


def test_failures_whose_errors_say_different_things_are_two_rows(
    spark: SparkSession, tmp_path: Path
) -> None:
    """With the same code; and the replay command of each selects its own."""
    tables = Tables(spark, str(tmp_path))
    rows = [{"summary": "db down"}, *[{"summary": "NullPointer"}] * 2, {"trigger": "bill"}]
    rows += [{"trigger": "bill", "destination": f"http://{name}/"} for name in ("old", "new")]
    tables.append(failures(spark, *rows), "failures")
    told = make_report(SparkEngine(tables), None, NOW).groups
    mail = [each for each in told if each.trigger == "mail"]
    assert [(each.summary, each.events) for each in mail] == [("NullPointer", 2), ("db down", 1)]
    assert len({each.id for each in mail}) == 2
    assert mail[0].replay_command.endswith("--code 503 --summary NullPointer")
    assert len({each.replay_command for each in told}) == len(told)
    found = select_failures(
        tables.read("failures"), FailureSelection(trigger="mail", summary="db down")
    )
    assert ids(found) == {"f0"}


@pytest.mark.parametrize(
    ("now", "before", "kind"),
    [
        pytest.param((5, 1, 0, 2), (1, 1), ChangeKind.FAILED_AGAIN, id="failed-again-says-most"),
        pytest.param((5, 1, 0, 0), None, ChangeKind.NEW, id="new"),
        pytest.param((5, 1, 0, 0), (4, 1), ChangeKind.GROWING, id="growing"),
        pytest.param((5, 0, 3, 0), (5, 3), ChangeKind.RESOLVED, id="resolved"),
        pytest.param((5, 0, 0, 0), (5, 0), ChangeKind.STEADY, id="resolved-before"),
        pytest.param((5, 2, 1, 0), (5, 3), ChangeKind.STEADY, id="partly-resolved"),
    ],
)
def test_a_change_is_told_against_the_last_report(
    now: tuple[int, int, int, int], before: tuple[int, int] | None, kind: ChangeKind
) -> None:
    assert group_change(*now, before).kind is kind


def test_a_report_tells_the_tables_and_what_changed(spark: SparkSession, tmp_path: Path) -> None:
    tables = Tables(spark, str(tmp_path))
    empty = make_report(SparkEngine(tables), None, ago(9))
    assert (empty.groups, empty.previous, empty.totals.events) == ((), None, 0)

    history = [(ago(10), "status", 503, 3)]
    mail = {"history": history, "error": "bm8=", "data_bytes": 2, "head": b"hi"}
    rows = failures(spark, mail, {"code": 500})
    tables.append(rows, "failures")
    first = make_report(SparkEngine(tables), None, ago(5))
    assert first.previous is not None
    assert first.previous.id == empty.id
    assert (first.changes.new, first.totals.groups, first.totals.unresolved) == (2, 2, 2)
    group = next(each for each in first.groups if each.status == 503)
    assert [each.failures for each in group.buckets] == [1]
    assert (group.examples[0].error, group.examples[0].data_preview) == ("no", "hi")
    assert group.share is None
    assert (group.first_reported, group.history) == (None, ())

    tables.update(
        rows.where("code = 503"), "failures", "failures.failure_id = more.failure_id",
        {"resolved": "timestamp '2026-11-21 11:57:00'"},
    )  # fmt: skip
    second = make_report(SparkEngine(tables), BrokerName("shop", "main"), ago(1))
    assert second.previous is None, "a report about a Broker is told against one about it"
    third = make_report(
        SparkEngine(tables), None, NOW, settled=lambda *_: [(*MAIL[:3], "events", 0, 0, 8)]
    )
    assert third.changes.resolved == 1
    assert third.changes.steady == 1
    assert {each.share for each in third.groups} == {None}
    resolved = next(each for each in third.groups if each.status == 503)
    assert (resolved.unresolved, resolved.change.resolved) == (0, 1)
    assert resolved.first_reported == first.made
    (past,) = resolved.history
    assert (past.made, past.failures, past.unresolved) == (first.made, group.failures, 1)
    assert Report.model_validate_json(third.model_dump_json(by_alias=True)) == third
    assert json_schema()["properties"].keys() >= {"groups", "changes"}
    assert not tables.exists("records"), "no report reads what lay in the topics"


def test_a_report_has_acknowledgements_written_without_spark_and_their_groups_last(
    spark: SparkSession, tmp_path: Path
) -> None:
    """And lookups find the groups that a report has."""
    tables, files = Tables(spark, str(tmp_path)), TableFiles(str(tmp_path))
    rows: list[dict[str, Any]] = [{"summary": "known"} for _ in range(3)]
    rows += [{"summary": "db down"}, {"code": None, "summary": None}]
    tables.append(failures(spark, *rows), "failures")
    report = make_report(SparkEngine(tables), None, ago(9))
    assert all(group.acknowledged is None for group in report.groups)
    assert not tables.exists("acknowledgements")

    listed = {group.key["summary"]: group for group in list_groups(files, (), NOW)}
    lasting: dict[str, dict[str, Any]] = {listed[name].id: {} for name in ("known", "")}
    append_acknowledgements(files, lasting, ACKNOWLEDGE, "ann", ago(8), note="on Monday")
    ended: dict[str, dict[str, Any]] = {listed["db down"].id: {}}
    append_acknowledgements(files, ended, ACKNOWLEDGE, "bob", ago(8), until=ago(1))

    groups = make_report(SparkEngine(tables), None, NOW).groups
    assert {group.id for group in groups} == {group.id for group in listed.values()}
    assert [group.summary for group in groups] == ["db down", "known", ""]
    assert groups[0].acknowledged is None, "its time is over"
    assert groups[1].acknowledged == Acknowledged(by="ann", at=ago(8), note="on Monday")
