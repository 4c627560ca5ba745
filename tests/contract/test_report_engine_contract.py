"""What every `ReportEngine` counts: Spark and DataFusion, on the same tables."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from support.gate import only_chaos

from knafka.core.delivery import Reason
from knafka_jobs.failure_groups import MAX_SUMMARIES, OTHER_SUMMARIES
from knafka_jobs.io.delta import Tables
from knafka_jobs.job_errors import JobError, NeedsSpark
from knafka_jobs.report import datafusion_engine, report_plan
from knafka_jobs.report.datafusion_engine import DataFusionEngine
from knafka_jobs.report.report_document import Report
from knafka_jobs.report.report_engine import ReportEngine
from knafka_jobs.report.report_run import make_report
from knafka_jobs.report.spark_engine import SparkEngine
from knafka_jobs.schema import FAILURES, GROUP, REPLAYS, REPORTS, SENT, ddl
from knafka_jobs.topic_offsets import BrokerName

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # py4j leaves sockets open

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
MAIL = ("shop", "main", "mail", "http://mail/", "status", 503, "no")
ODD = ("it's", 'say "hi"', "back\\slash", "${env:HOME}", "$(HOME)", "naïve ☃", "`tick`", "a\nb", "")

EITHER = pytest.mark.parametrize("open_engine", ["spark", "datafusion"], indirect=True)
"""Both engines in the gate, too: a report doesn't show it."""


def ago(minutes: float) -> datetime:
    return NOW - timedelta(minutes=minutes)


@pytest.fixture
def tables(spark: SparkSession, tmp_path: Path) -> Tables:
    made = Tables(spark, str(tmp_path))
    store_failures(made)
    return made


@pytest.fixture(params=[pytest.param("spark", marks=only_chaos), "datafusion"])
def open_engine(request: pytest.FixtureRequest, tables: Tables) -> Callable[[], ReportEngine]:
    """Opens the tables as they are now. That Spark tells the same as DataFusion, the gate shows by
    the same report of both."""
    if request.param == "spark":
        return lambda: SparkEngine(tables)
    return lambda: DataFusionEngine(tables.root)


def store_failures(tables: Tables, *given: dict[str, Any]) -> None:
    usual: dict[str, Any] = dict.fromkeys(FAILURES) | dict(zip(GROUP, MAIL, strict=True))
    usual |= {"id": "1", "source": "/s", "type": "t", "attempts": 3, "failures": 1, "retries": 2}
    usual |= {"topic_id": "id-1", "partition": 0, "offset": 0, "history": [], "day": NOW.date()}
    values = []
    for number, each in enumerate(given):
        failed = each.get("last_failed", ago(10))
        own = {"failure_id": f"f{number}", "first_failed": failed, "last_failed": failed, **each}
        values.append(tuple({**usual, **own}.values()))
    tables.append(tables.spark.createDataFrame(values, ddl(FAILURES)), "failures")


def store(tables: Tables, name: str, columns: Any, *given: dict[str, Any]) -> None:
    values = [tuple({**dict.fromkeys(columns), **each}.values()) for each in given]
    tables.append(tables.spark.createDataFrame(values, ddl(columns)), name)


def counted(engine: ReportEngine, *, many_summaries: bool = False) -> ReportEngine:
    """An engine that has named what is counted."""
    engine.derive("reported", report_plan.reported_failures(None, ago(9_999), engine.dialect))
    engine.compute_now("frequent", report_plan.FREQUENT)
    assert bool(engine.query(report_plan.MANY_SUMMARIES)) is many_summaries
    engine.derive("counted", report_plan.counted_failures(many_summaries=many_summaries))
    return engine


Opens = Callable[[], ReportEngine]


def test_a_group_is_what_failed_alike_with_its_sums_and_times(
    tables: Tables, open_engine: Opens
) -> None:
    store_failures(
        tables,
        {"failures": 4, "retries": 7, "first_failed": ago(30), "last_failed": ago(3)},
        {"resolved": ago(1), "first_failed": ago(50)},
        {"resolved": ago(20), "last_failed": ago(40)},
        {"code": None, "reason": "timeout"},
    )
    engine = counted(open_engine())
    engine.derive("sums", report_plan.SUMS, repeated=True)
    (told,) = [row for row in engine.query(report_plan.GROUPS) if row["code"] == 503]
    sums = {"events": 3, "failures": 6, "unresolved": 1, "retries": 11}
    times = {"first_seen": ago(50), "last_seen": ago(3), "oldest_unresolved": ago(30)}
    assert told == {**dict(zip(GROUP, MAIL, strict=True)), **sums, **times}


def test_a_kind_that_fails_in_very_many_ways_has_few_rows(
    tables: Tables, open_engine: Opens
) -> None:
    given: list[dict[str, Any]] = [{"summary": f"s{n:02}"} for n in range(MAX_SUMMARIES + 3)]
    given += [{"summary": "s52"}, {"summary": None, "trigger": "bill", "code": None}]
    store_failures(tables, *given)
    engine = counted(open_engine(), many_summaries=True)
    told = engine.query("SELECT summary, count(*) AS events FROM counted GROUP BY summary")
    events = {row["summary"]: row["events"] for row in told}
    assert events.pop("") == 1
    assert events.pop(OTHER_SUMMARIES) == 3
    assert events.pop("s52") == 2
    assert set(events) == {f"s{n:02}" for n in range(MAX_SUMMARIES - 1)}


def test_failures_are_counted_by_stretches_of_time(tables: Tables, open_engine: Opens) -> None:
    history = [(ago(minutes), "status", 503, 1) for minutes in (1, 2, 2.5, 70, 59)]
    store_failures(tables, {"history": history}, {"history": None}, {"history": []})
    engine = counted(open_engine())
    told = engine.query(report_plan.buckets(ago(60), NOW, 120, engine.dialect))
    start = int(NOW.timestamp())
    assert [(row["start"], row["failures"]) for row in told] == [
        (start - 3600, 1),
        (start - 240, 1),
        (start - 120, 2),
    ]
    assert {report_plan.group_key_of(row) for row in told} == {MAIL}


def test_the_last_hour_and_the_rate_count_failures(tables: Tables, open_engine: Opens) -> None:
    """The rate is of the last day, or of the time since a younger group failed first."""
    times = (1, 59, 61, 24 * 60 - 1, 24 * 60 + 1)
    mail: dict[str, Any] = {"history": [(ago(minutes), "status", 503, 1) for minutes in times]}
    mail |= {"first_failed": ago(9_999), "last_failed": ago(1)}
    young = {"history": [(ago(30), "status", 500, 1)] * 6, "code": 500, "first_failed": ago(180)}
    newest = {"history": [(ago(5), "status", 501, 1)], "code": 501, "first_failed": ago(5)}
    quiet = {"code": 502, "last_failed": ago(9_999), "history": [(ago(9_999), "status", 502, 1)]}
    store_failures(tables, mail, young, newest, quiet)
    told = {each.status: each for each in make_report(open_engine(), None, NOW).groups}
    assert {code: (each.last_hour, each.rate) for code, each in told.items()} == {
        503: (2, 0.17),
        500: (6, 2.0),
        501: (1, 1.0),
        502: (0, 0.0),
    }


def test_what_is_new_comes_first(tables: Tables, open_engine: Opens) -> None:
    ages = {500: 59, 501: 61, 502: 24 * 60 - 1, 503: 24 * 60 + 1}
    store_failures(
        tables,
        *({"code": code, "first_failed": ago(age)} for code, age in ages.items()),
        *({"code": code, "first_failed": ago(9_999)} for code in (504, 504)),
        {"code": 501, "first_failed": ago(62), "resolved": ago(2)},
    )
    told = make_report(open_engine(), None, NOW).groups
    assert [(each.status, each.age.value) for each in told] == [
        (500, "last-hour"),
        (501, "last-day"),
        (502, "last-day"),
        (504, "older"),
        (503, "older"),
    ]


def test_the_most_frequent_values_come_first_and_are_few(
    tables: Tables, open_engine: Opens
) -> None:
    store_failures(tables, *({"type": name} for name in "aabbbcdefg"), {"type": None})
    engine = counted(open_engine())
    engine.derive("sums", report_plan.SUMS, repeated=True)
    told = [(row["value"], row["events"]) for row in engine.query(report_plan.top_values("type"))]
    assert told == [("b", 3), ("a", 2), ("c", 1), ("d", 1), ("e", 1)]


def test_examples_are_few_and_the_unresolved_and_late_come_first(
    tables: Tables, open_engine: Opens
) -> None:
    store_failures(
        tables,
        *(
            {"offset": n, "last_failed": ago(60 - n), "resolved": NOW if n > 6 else None}
            | {"data_bytes": 1 if n in (4, 5) else None, "head": b"x" if n == 4 else None}
            | {"day": None if n == 6 else ago(n).date()}
            for n in range(9)
        ),
    )
    engine = counted(open_engine())
    engine.compute_now("limits", report_plan.LIMITS)
    engine.compute_now("chosen", report_plan.CHOSEN)
    days = [row["day"] for row in engine.query(report_plan.CHOSEN_DAYS)]
    assert set(days) == {None, NOW.date()}
    told = engine.query(report_plan.examples(days))
    assert [row["offset"] for row in told] == [6, 4, 3, 2, 1], "without its head, 5 comes later"
    assert [row["head"] for row in told] == [None, b"x", None, None, None]


def failed_at(offsets: range, **more: Any) -> list[dict[str, Any]]:
    """Failures of events at these offsets of the topic `events`."""
    origin = {"origin_topic": "events", "origin_partition": 0}
    return [{"failure_id": f"e{n}", "origin_offset": n, **origin, **more} for n in offsets]


def shares_of(engine: ReportEngine) -> list[float | None]:
    """The shares of the groups, those of the highest codes first, if 60 offsets are settled."""

    def settled(origins: Any, since: datetime) -> list[Any]:
        assert [(row["trigger"], row["origin_topic"]) for row in origins] == [("mail", "events")]
        return [(*MAIL[:3], "events", 0, 0, 60)]

    told = make_report(engine, None, NOW, settled=settled)
    return [each.share for each in sorted(told.groups, key=lambda each: -(each.status or 0))]


def test_a_share_of_deliveries_is_unknown_where_filtered_events_pass_for_delivered_ones(
    tables: Tables, open_engine: Opens
) -> None:
    """Of 60 offsets 24 failed: the other 36 were delivered or filtered out. (24 of 24 once read
    40 %.)"""
    store_failures(tables, *failed_at(range(24)))
    assert shares_of(open_engine()) == [None]


def test_a_share_of_deliveries_is_known_where_every_event_failed(
    tables: Tables, open_engine: Opens
) -> None:
    again = failed_at(range(1), failure_id="of a topic made anew", last_failed=ago(99_999))
    store_failures(tables, *failed_at(range(45)), *failed_at(range(45, 70), code=500), *again)
    assert shares_of(open_engine()) == [45 / 60, 15 / 60]


def test_a_share_of_deliveries_counts_the_events_of_each_topic_that_a_trigger_has_read(
    tables: Tables, open_engine: Opens
) -> None:
    older = [{**row, "origin_topic": "older", "failure_id": f"o{n}"}
             for n, row in enumerate(failed_at(range(10), code=500))]  # fmt: skip
    store_failures(tables, *failed_at(range(30)), *older)

    def settled(origins: Any, since: datetime) -> list[Any]:
        assert sorted(row["origin_topic"] for row in origins) == ["events", "older"]
        return [(*MAIL[:3], "events", 0, 0, 30), (*MAIL[:3], "older", 0, 0, 10)]

    told = make_report(open_engine(), None, NOW, settled=settled).groups
    assert {each.status: each.share for each in told} == {503: 30 / 40, 500: 10 / 40}


def test_what_failed_again_is_counted_since_the_last_report(
    tables: Tables, open_engine: Opens
) -> None:
    usual = {"outcome": "failed-again", "judged": ago(5)}
    store(
        tables,
        "sent",
        SENT,
        {**usual, "failure_id": "f0"},
        {**usual, "failure_id": "f0", "replay_id": "another"},
        {**usual, "failure_id": "f1", "judged": ago(50)},
        {**usual, "failure_id": "f2", "outcome": "resolved"},
    )
    store_failures(tables, {}, {}, {})
    engine = counted(open_engine())
    for before, events in ((ago(10), 1), (None, 2)):
        (row,) = engine.query(report_plan.events_failed_again(before, engine.dialect))
        assert row == {**dict(zip(GROUP, MAIL, strict=True)), "events": events}


def test_what_was_resolved_is_counted_since_the_last_report_also_if_it_was_sent_before(
    tables: Tables, open_engine: Opens
) -> None:
    usual = {"outcome": "resolved", "judged": ago(5), "sent": ago(20)}
    store(
        tables,
        "sent",
        SENT,
        {**usual, "failure_id": "f0"},
        {**usual, "failure_id": "f1", "judged": ago(15)},
        {**usual, "failure_id": "f2", "outcome": "failed-again"},
        {**usual, "failure_id": "f3"},
    )
    failed_since: dict[str, Any] = {"resolved": None}
    store_failures(tables, *({"resolved": ago(20)} for _ in range(3)), failed_since)
    engine = counted(open_engine())
    for before, events in ((ago(10), 1), (None, 2)):
        (row,) = engine.query(report_plan.events_resolved(before, engine.dialect))
        assert row == {**dict(zip(GROUP, MAIL, strict=True)), "events": events}


def test_the_history_of_a_group_is_of_the_last_reports_and_tells_when_it_was_first(
    tables: Tables, open_engine: Opens
) -> None:
    group = make_report(_stored(tables, open_engine), None, ago(99)).groups[0].id
    about = {"namespace": "", "broker": "", "resolved": 0}
    rows: list[dict[str, Any]] = [
        {**about, "report_id": f"r{n}", "made": ago(60 - n), "group_id": group}
        | {"failures": n, "unresolved": n}
        for n in range(50)
    ]
    other = {**rows[0], "namespace": "shop", "broker": "main", "made": ago(999)}
    empty = {**about, "report_id": "r50", "made": ago(1), "failures": 0, "unresolved": 0}
    store(tables, "reports", REPORTS, *rows, other, empty)
    told = make_report(open_engine(), None, NOW)
    assert told.previous is not None
    assert told.previous.id == "r50"
    (known,) = told.groups
    assert known.first_reported == ago(99)
    assert [(each.made, each.failures) for each in known.history] == [
        (ago(60 - n), n) for n in range(21, 50)
    ]


def _stored(tables: Tables, open_engine: Opens) -> ReportEngine:
    store_failures(tables, {})
    return open_engine()


def test_replays_are_told_with_what_became_of_their_events(
    tables: Tables, open_engine: Opens
) -> None:
    replays = [("r", 9), ("empty", 8), ("later", 1)]
    store(
        tables,
        "replays",
        REPLAYS,
        *(
            {"replay_id": id_, "by": "ana", "selection": "", "started": ago(at)}
            for id_, at in replays
        ),
    )
    sent = {"replay_id": "r", "outcome": None}
    outcomes = ("resolved", "failed-again", None)
    store(tables, "sent", SENT, *({**sent, "outcome": outcome} for outcome in outcomes))
    told = open_engine().query(report_plan.replay_counts(2))
    counts = [(row["replay_id"], row["sent"], row["resolved"], row["failed_again"]) for row in told]
    assert counts == [("later", 0, 0, 0), ("empty", 0, 0, 0)]
    told = open_engine().query(report_plan.replay_counts(3))
    assert [told[2][name] for name in ("sent", "resolved", "failed_again")] == [3, 1, 1]
    assert told[2]["started"] == ago(9)


@EITHER
def test_a_name_is_found_whatever_characters_it_has(tables: Tables, open_engine: Opens) -> None:
    store_failures(tables, *({"namespace": text, "broker": text} for text in ODD))
    engine = open_engine()
    spans = [(text, text, text, text, 0, 0, 1) for text in ODD]
    engine.put("spans", report_plan.SPANS, spans)
    told = engine.query("SELECT namespace FROM spans")
    assert [row["namespace"] for row in told] == list(ODD)
    for text in ODD:
        of_one = report_plan.broker_predicate(BrokerName(text, text), engine.dialect)
        told = engine.query(f"SELECT namespace FROM failures WHERE {of_one}")
        assert [row["namespace"] for row in told] == [text]


@only_chaos
def test_figures_of_a_report_are_read_by_the_next_one_of_either_engine(tables: Tables) -> None:
    store_failures(tables, {}, {"code": None, "reason": "timeout"})
    last = None
    for turn in range(3):
        engine = SparkEngine(tables) if turn % 2 else DataFusionEngine(tables.root)
        told = make_report(engine, None, ago(3 - turn))
        assert (told.previous.id if told.previous else None) == last
        assert {each.change.kind for each in told.groups} == {"new" if last is None else "steady"}
        last = told.id
    rows = tables.read("reports").collect()
    assert len(rows) == 6


def random_tables(tables: Tables, seed: int) -> None:
    """Failures, replays and earlier reports of a thousand shapes."""
    chance = random.Random(seed)

    def moment() -> datetime:
        return ago(chance.choice((1, 7, 60, 3_000, 90_000)) * chance.random() + 0.001)

    def failure(number: int) -> dict[str, Any]:
        last = moment()
        error = chance.choice((None, "", "bm8=", "no base64"))
        return {
            "failure_id": f"f{number}",
            "namespace": chance.choice(("shop", "it's")),
            "broker": chance.choice(("main", "other")),
            "trigger": chance.choice(("mail", "", "bill")),
            "destination": chance.choice(("", "http://mail/")),
            "reason": chance.choice(tuple(Reason)[:3]).value,
            "code": chance.choice((None, 0, -1, 503)),
            "summary": chance.choice((None, "", *ODD, *(f"s{n}" for n in range(60)))),
            "id": chance.choice((None, "", "1", *ODD)),
            "source": chance.choice((None, *ODD)),
            "type": chance.choice((None, "", "a", "b", *ODD)),
            "error": error,
            "attempts": chance.randint(0, 4),
            "failures": chance.randint(1, 3),
            "retries": chance.randint(0, 9),
            "first_failed": last - timedelta(seconds=chance.choice((0, 1, 4_000))),
            "last_failed": last,
            "history": [(moment(), "status", 503, 1) for _ in range(chance.choice((0, 1, 1, 3)))],
            "resolved": chance.choice((None, None, moment())),
            "data_bytes": chance.choice((None, 0, 5)),
            "head": chance.choice((None, b"", b"\xff\x00", "naïve".encode())),
            "content_type": chance.choice((None, "text/plain")),
            "trace": chance.choice((None, "0" * 32)),
            "origin_topic": chance.choice((None, "events")),
            "origin_partition": chance.choice((None, 0, 1)),
            "origin_offset": chance.choice((None, chance.randint(0, 40))),
            "day": chance.choice((None, last.date())),
            "offset": number,
        }

    store_failures(tables, *map(failure, range(400)))
    outcomes = (None, "resolved", "failed-again", "lost")
    store(
        tables,
        "sent",
        SENT,
        *(
            {"failure_id": f"f{n}", "replay_id": f"r{n % 5}", "outcome": chance.choice(outcomes)}
            | {"judged": moment()}
            for n in range(0, 400, 3)
        ),
    )
    store(
        tables,
        "replays",
        REPLAYS,
        *(
            {"replay_id": f"r{n}", "by": chance.choice(ODD), "selection": chance.choice(ODD)}
            | {"started": ago(n // 2), "finished": chance.choice((None, NOW))}
            for n in range(60)
        ),
    )


def settled(origins: Any, since: datetime) -> list[Any]:
    """Spans of all Triggers that have failures of known topics."""
    assert since.tzinfo is not None
    return [
        (row["namespace"], row["broker"], row["trigger"], row["origin_topic"], partition, 0, 30)
        for row in origins
        if row["origin_topic"]
        for partition in (0, 1)
    ]


@pytest.mark.parametrize(
    ("seed", "broker"),
    [
        pytest.param(1, None, id="all"),
        pytest.param(2, BrokerName("it's", "main"), id="one", marks=only_chaos),
    ],
)
def test_both_engines_make_the_same_report_of_the_same_tables(
    tables: Tables, seed: int, broker: BrokerName | None
) -> None:
    random_tables(tables, seed)
    earlier = make_report(SparkEngine(tables), broker, ago(30), 20)
    told = []
    for open_one in (lambda: SparkEngine(tables), lambda: DataFusionEngine(tables.root)):
        report = make_report(open_one(), broker, NOW, 20, settled)
        assert report.previous is not None
        assert len(report.groups) > 20
        told.append(_comparable(report))
        # As if there had been only the earlier report, for the other engine.
        on = f"delta.`{tables.path('reports')}`"
        tables.spark.sql(f"DELETE FROM {on} WHERE report_id <> '{earlier.id}'")
    assert told[0] == told[1]


def _comparable(report: Report) -> dict[str, Any]:
    """A report without its random id."""
    return report.model_dump(exclude={"id"})


def test_tables_that_do_not_fit_one_process_are_left_to_spark(
    tables: Tables, tmp_path: Path
) -> None:
    store_failures(tables, {})
    with pytest.raises(NeedsSpark, match=r"failures has [\d,]+ bytes: too many for one process"):
        DataFusionEngine(tables.root, max_bytes=10)
    with pytest.raises(NeedsSpark, match="there is no table"):
        DataFusionEngine(str(tmp_path / "none"))


def test_a_report_that_needs_more_memory_than_it_may_use_is_left_to_spark(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_failures(tables, *({"summary": f"s{n}", "source": f"s{n}"} for n in range(200)))
    monkeypatch.setattr(datafusion_engine, "MEMORY", "20K")
    with pytest.raises(NeedsSpark, match="Resources exhausted"):
        make_report(DataFusionEngine(tables.root), None, NOW)
    assert not tables.exists("reports"), "nothing is noted of a report that was not made"


@EITHER
def test_what_is_no_query_is_an_error_of_the_job(open_engine: Opens) -> None:
    with pytest.raises(JobError):
        open_engine().query("SELECT nothing FROM nowhere")
