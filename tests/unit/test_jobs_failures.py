"""Failures as a person selects them and as a report tells them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.testing import assertDataFrameEqual

from knafka.core.delivery import Reason
from knafka_jobs import schema
from knafka_jobs.acknowledgements import AcknowledgementAction
from knafka_jobs.command_options import FailureSelection
from knafka_jobs.failure_groups import MAX_SUMMARIES, OTHER_SUMMARIES
from knafka_jobs.io.delta import Tables
from knafka_jobs.job_errors import JobError
from knafka_jobs.lookup.acknowledge import append_acknowledgements
from knafka_jobs.lookup.groups import list_groups
from knafka_jobs.lookup.lookup_run import TableFiles
from knafka_jobs.replay.replay_plan import select_failures
from knafka_jobs.report.assemble import group_change, histories_of
from knafka_jobs.report.report_document import (
    Acknowledged,
    ChangeKind,
    Report,
    json_schema,
)
from knafka_jobs.report.report_plan import (
    buckets,
    examples,
    failed_again,
    groups,
    past_figures,
    summaries,
    sums,
    top_values,
    with_few_summaries,
)
from knafka_jobs.report.report_run import make_report
from knafka_jobs.schema import FAILURES, REPORTS, SENT, ddl
from knafka_jobs.topic_offsets import BrokerName

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # py4j leaves sockets open

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
GROUP = (
    "namespace string, broker string, trigger string, destination string, reason string, code int, "
    "summary string"
)
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


def test_a_group_is_what_failed_alike_with_its_sums_and_times(spark: SparkSession) -> None:
    rows = failures(
        spark,
        {"failures": 4, "retries": 7, "first_failed": ago(30), "last_failed": ago(3)},
        {"resolved": ago(1), "first_failed": ago(50)},
        {"resolved": ago(20), "last_failed": ago(40)},
        {"code": None, "reason": "timeout"},
    )
    told = groups(sums(rows, previous_made=ago(2))).where("code = 503")
    columns = (
        "events bigint, failures bigint, unresolved bigint, resolved bigint, "
        "retries bigint, first_seen timestamp, last_seen timestamp, oldest_unresolved timestamp"
    )
    assertDataFrameEqual(
        told,
        spark.createDataFrame(
            [(*MAIL, 3, 6, 1, 1, 11, ago(50), ago(3), ago(30))], f"{GROUP}, {columns}"
        ),
    )


def test_failures_whose_errors_say_different_things_are_two_rows(
    spark: SparkSession, tmp_path: Path
) -> None:
    """With the same code; and the replay command of each selects its own."""
    tables = Tables(spark, str(tmp_path))
    rows = [{"summary": "db down"}, *[{"summary": "NullPointer"}] * 2, {"trigger": "bill"}]
    tables.append(failures(spark, *rows), "failures")
    told = make_report(tables, None, NOW).groups
    mail = [each for each in told if each.trigger == "mail"]
    assert [(each.summary, each.events) for each in mail] == [("NullPointer", 2), ("db down", 1)]
    assert len({each.id for each in mail}) == 2
    assert mail[0].replay_command.endswith("--code 503 --summary NullPointer")
    found = select_failures(
        tables.read("failures"), FailureSelection(trigger="mail", summary="db down")
    )
    assert ids(found) == {"f0"}


def test_a_report_has_what_people_said_of_groups_without_spark_and_those_groups_last(
    spark: SparkSession, tmp_path: Path
) -> None:
    """And lookups find the groups that a report has."""
    tables, files = Tables(spark, str(tmp_path)), TableFiles(str(tmp_path))
    rows: list[dict[str, Any]] = [{"summary": "known"} for _ in range(3)]
    rows += [{"summary": "db down"}, {"code": None, "summary": None}]
    tables.append(failures(spark, *rows), "failures")
    assert all(each.acknowledged is None for each in make_report(tables, None, ago(9)).groups)
    assert not tables.exists("acknowledgements")

    found = {each.key["summary"]: each for each in list_groups(files, (), NOW)}
    said: dict[str, dict[str, Any]] = {found[name].id: {} for name in ("known", "")}
    append_acknowledgements(files, said, ACKNOWLEDGE, "ann", ago(8), note="on Monday")
    over: dict[str, dict[str, Any]] = {found["db down"].id: {}}
    append_acknowledgements(files, over, ACKNOWLEDGE, "bob", ago(8), until=ago(1))

    told = make_report(tables, None, NOW).groups
    assert {each.id for each in told} == {each.id for each in found.values()}
    assert [each.summary for each in told] == ["db down", "known", ""]
    assert told[0].acknowledged is None, "its time is over"
    assert told[1].acknowledged == Acknowledged(by="ann", at=ago(8), note="on Monday")


def test_a_kind_that_fails_in_very_many_ways_has_few_rows(spark: SparkSession) -> None:
    given: list[dict[str, Any]] = [{"summary": f"s{n:02}"} for n in range(MAX_SUMMARIES + 3)] + [
        {"summary": "s52"}
    ]
    given += [{"summary": None, "trigger": "bill"}]
    rows = failures(spark, *given)
    told = rows.transform(with_few_summaries, summaries(rows))
    counted = {row["summary"]: row["count"] for row in told.groupBy("summary").count().collect()}
    assert counted.pop("") == 1
    assert counted.pop(OTHER_SUMMARIES) == 3
    assert counted.pop("s52") == 2
    assert set(counted) == {f"s{n:02}" for n in range(MAX_SUMMARIES - 1)}


def test_failures_are_counted_by_stretches_of_time(spark: SparkSession) -> None:
    history = [(ago(minutes), "status", 503, 1) for minutes in (1, 2, 2.5, 70, 59)]
    counted = buckets(failures(spark, {"history": history}), ago(60), NOW, seconds=120)
    start = int(NOW.timestamp())
    assertDataFrameEqual(
        counted,
        spark.createDataFrame(
            [(*MAIL, start - 3600, 1), (*MAIL, start - 240, 1), (*MAIL, start - 120, 2)],
            f"{GROUP}, start bigint, failures bigint",
        ),
        checkRowOrder=True,
    )


def test_the_most_frequent_values_come_first_and_are_few(spark: SparkSession) -> None:
    given = [{"type": name} for name in "aabbbcdefg"] + [{"type": None}]
    told = top_values(sums(failures(spark, *given), previous_made=None), "type")
    rows = [(row["value"], row["events"]) for row in told.collect()]
    assert rows == [("b", 3), ("a", 2), ("c", 1), ("d", 1), ("e", 1)]


def test_examples_are_few_and_the_unresolved_and_late_come_first(spark: SparkSession) -> None:
    given = [
        {"offset": n, "last_failed": ago(60 - n), "resolved": NOW if n > 6 else None}
        | {"data_bytes": 1 if n in (4, 5) else None, "head": b"x" if n == 4 else None}
        for n in range(9)
    ]
    told = examples(failures(spark, *given)).collect()
    assert [row["offset"] for row in told] == [6, 4, 3, 2, 1], "without its head, 5 comes later"
    assert [row["head"] for row in told] == [None, b"x", None, None, None]


def failed_at(spark: SparkSession, offsets: range, **more: Any) -> DataFrame:
    """Failures of events at these offsets of the topic `events`."""
    origin = {"origin_topic": "events", "origin_partition": 0}
    each = [{"failure_id": f"e{n}", "origin_offset": n, **origin, **more} for n in offsets]
    return failures(spark, *each)


def shares_of(spark: SparkSession, tables: Tables, rows: DataFrame) -> list[float | None]:
    """What a report says of the group of the code 503, and of the code 500, if 60 offsets are
    settled."""
    tables.append(rows, "failures")
    told = make_report(tables, None, NOW, settled=lambda *_: [(*MAIL[:3], "events", 0, 0, 60)])
    return [each.share for each in sorted(told.groups, key=lambda each: -(each.status or 0))]


def test_a_share_of_deliveries_is_unknown_where_filtered_events_pass_for_delivered_ones(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Of 60 offsets 24 failed: the other 36 were delivered or filtered out. (24 of 24 once read
    40 %.)"""
    assert shares_of(spark, Tables(spark, str(tmp_path)), failed_at(spark, range(24))) == [None]


def test_a_share_of_deliveries_is_known_where_every_event_failed(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = failed_at(spark, range(45)).unionByName(failed_at(spark, range(45, 70), code=500))
    again = failed_at(spark, range(1), failure_id="of a topic made anew", last_failed=ago(99_999))
    tables = Tables(spark, str(tmp_path))
    assert shares_of(spark, tables, rows.unionByName(again)) == [45 / 60, 15 / 60]


def test_what_failed_again_is_counted_since_the_last_report(spark: SparkSession) -> None:
    usual = dict.fromkeys(SENT) | {"outcome": "failed-again", "judged": ago(5)}
    given: list[dict[str, Any]] = [
        {"failure_id": "f0"},
        {"failure_id": "f0", "replay_id": "another"},
        {"failure_id": "f1", "judged": ago(50)},
        {"failure_id": "f2", "outcome": "resolved"},
    ]
    sent = spark.createDataFrame([tuple({**usual, **each}.values()) for each in given], ddl(SENT))
    rows = failures(spark, {}, {}, {})
    for before, events in ((ago(10), 1), (None, 2)):
        assertDataFrameEqual(
            failed_again(rows, sent, before),
            spark.createDataFrame([(*MAIL, events)], f"{GROUP}, events bigint"),
        )


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


def test_the_history_of_a_group_is_of_the_last_reports_and_tells_when_it_was_first(
    spark: SparkSession,
) -> None:
    rows: list[Any] = [(f"r{n}", ago(60 - n), "shop", "main", "g", n, n, 0) for n in range(50)]
    rows.append(("r50", ago(1), "shop", "main", None, 0, 0, 0))
    reports = spark.createDataFrame(rows, ddl(REPORTS))
    known = histories_of(past_figures(reports, ["g", "other"], ago(60 - 45)).collect())
    assert known.keys() == {"g"}
    assert known["g"].first_reported == ago(60)
    told = [(each.made, each.failures) for each in known["g"].history]
    assert told == [(ago(60 - n), n) for n in range(45, 50)]


def test_a_report_tells_the_tables_and_what_changed(spark: SparkSession, tmp_path: Path) -> None:
    tables = Tables(spark, str(tmp_path))
    empty = make_report(tables, None, ago(9))
    assert (empty.groups, empty.previous, empty.totals.events) == ((), None, 0)

    history = [(ago(10), "status", 503, 3)]
    mail = {"history": history, "error": "bm8=", "data_bytes": 2, "head": b"hi"}
    rows = failures(spark, mail, {"code": 500})
    tables.append(rows, "failures")
    first = make_report(tables, None, ago(5))
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
    second = make_report(tables, BrokerName("shop", "main"), ago(1))
    assert second.previous is None, "a report about a Broker is told against one about it"
    third = make_report(tables, None, NOW, settled=lambda *_: [(*MAIL[:3], "events", 0, 0, 8)])
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
