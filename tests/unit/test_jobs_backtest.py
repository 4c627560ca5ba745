"""Backtests on Spark: what a Sensor would have fired for archived events."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from knafka.core.documents import parse
from knafka.core.errors import InvalidDocument
from knafka.core.events import json_format
from knafka.core.events.event import Event
from knafka.core.events.kafka_binding import to_record
from knafka.core.sensor.backtest import Backtest, PastEvent
from knafka.core.sensor.contract import Conditions
from knafka.core.sensor.records import trigger_of
from knafka_jobs.backtest.backtest_plan import conditions_of
from knafka_jobs.backtest.backtest_run import (
    BacktestResult,
    TimeSpan,
    backtest,
    read_sensor,
    records_of_archive,
)
from knafka_jobs.job_errors import JobError

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # py4j leaves sockets open

START = 1_790_000_000_000
KINDS = "abcd"
TRIGGERS: Sequence[Mapping[str, object]] = [
    {"name": "any", "conditions": "a || b"},
    {"name": "both", "conditions": "a && b"},
    {"name": "key", "conditions": "a && b && c", "correlation": "case"},
    {"name": "counts", "conditions": "3 of a || (b && 2 of d)", "correlation": "case"},
    {"name": "window", "conditions": "a && b", "within": "PT5S", "correlation": "case"},
    {"name": "absence", "conditions": "a && !b", "within": "PT4S", "correlation": "case"},
    {"name": "pair", "conditions": "2 of a && !b && !c", "within": "PT9S", "correlation": "case"},
    {
        "name": "reset",
        "conditions": "a && b",
        "correlation": "case",
        "conditionsReset": [{"byTime": {"cron": "* * * * *"}}],
    },
    {"name": "sql", "conditions": "c && d", "correlation": "CONCAT('case-', case)"},
]
RECORD = (
    "topic string, partition int, offset bigint, timestamp timestamp, value binary,"
    " headers array<struct<key: string, value: binary>>"
)


def sensor(*triggers: Mapping[str, object]) -> Conditions:
    dependencies = [
        {"name": each, "filters": [{"exact": {"type": each}}, {"cesql": "LENGTH(id) < 9"}]}
        for each in KINDS
    ]
    return parse(Conditions, {"dependencies": dependencies, "triggers": [*triggers]})


def past(identity: str, at: int, **attributes: str) -> PastEvent:
    """`a1`: of the type a."""
    named = {"specversion": "1.0", "id": identity, "source": "/s", "type": identity[0]}
    return PastEvent(START + at, {**named, **attributes}, b"")


def random_events(seed: int, count: int, cases: int) -> list[PastEvent]:
    """In the order of time; some come again, some are of one millisecond."""
    draw = random.Random(seed)
    found = []
    at = 0
    for _ in range(count):
        at += draw.choice((0, 1, 20, 300))
        case, kind = draw.randrange(cases), draw.choice(KINDS)
        attributes = {} if draw.random() < 0.02 else {"case": str(case)}
        found.append(past(f"{kind}{case}-{draw.randrange(30)}", at, **attributes))
    return found


def archived(spark: SparkSession, events: Sequence[PastEvent], path: Path) -> str:
    """As Spark's Kafka source gives them: every fourth in structured mode."""
    rows: list[tuple[Any, ...]] = []
    for number, each in enumerate(events):
        draft = to_record(Event(dict(each.attributes), b"{}"))
        headers, value = draft.headers, draft.value
        if number % 4 == 0:
            headers = [("content-type", b"application/cloudevents+json")]
            value = json_format.write(Event(dict(each.attributes), None))
        moment = datetime.fromtimestamp(each.at / 1000, UTC)
        rows.append(("bus", 0, number, moment, value, headers))
    spark.createDataFrame(rows, RECORD).repartition(3).write.parquet(str(path))
    return str(path)


def run(
    spark: SparkSession, path: str, conditions: Conditions, output: Path | None = None, **span: int
) -> BacktestResult:
    records, until = records_of_archive(spark, path, TimeSpan(**span))
    return backtest(records, conditions, until, 10_000, None if output is None else str(output))


def by_reducer(events: Sequence[PastEvent], conditions: Conditions) -> Counter[str]:
    played = Backtest(conditions, lambda _: None)
    return Counter(
        f"{each.key} {each.at - START}: {[one.identity for one in each.firing.events]}"
        for each in played.play(events)
    )


def by_job(found: BacktestResult) -> Iterator[str]:
    for each in found.shown:
        at = round(datetime.fromisoformat(each["at"]).timestamp() * 1000) - START
        correlation = each["correlation"]
        key = each["trigger"] + ("" if correlation is None else f"/{correlation}")
        identities = [" ".join((one["source"], one["id"])) for one in each["events"]]
        yield f"{key} {at}: {identities}"


def test_the_job_fires_what_the_reducer_fires(spark: SparkSession, tmp_path: Path) -> None:
    """Hundreds of histories in one job: each correlation key of each trigger is one."""
    conditions = sensor(*TRIGGERS)
    events = random_events(7, 1500, 30)
    found = run(spark, archived(spark, events, tmp_path / "archive"), conditions)
    assert Counter(by_job(found)) == by_reducer(events, conditions)
    assert all(found.firings.values())
    assert found.events == len(events)
    played = Backtest(conditions, lambda _: None)
    assert sum(1 for _ in played.play(events)) == sum(found.firings.values())
    rules = {each.name: each for each in conditions.rules()}
    assert found.waiting == Counter(
        trigger_of(key)
        for key, held in played.held.items()
        if any(each.dependency in rules[trigger_of(key)].condition.wanted for each in held)
    )


def test_lines_of_events_are_taken_by_their_time_and_what_has_none_is_counted(
    spark: SparkSession, tmp_path: Path
) -> None:
    times = ["2026-11-23T09:00:01.2345Z", "2026-11-23t10:00:00.001+01:00", None, "tomorrow"]
    lines = []
    for number, time in enumerate(times):
        event = {"specversion": "1.0", "id": f"{'ab'[number % 2]}{number}", "source": "/s"}
        lines.append({**event, "type": "ab"[number % 2]} | ({} if time is None else {"time": time}))
    archive = tmp_path / "events.ndjson"
    text = "\n\n".join(json.dumps(each) for each in lines)
    archive.write_text(f"{text}\nno event\n" + '{"time": "2026-11-23T09:00:00Z"}\n')
    found = run(spark, str(archive), sensor({"name": "t", "conditions": "a && b"}))
    assert [each["at"] for each in found.shown] == ["2026-11-23T09:00:01.234Z"]
    assert [each["id"] for each in found.shown[0]["events"]] == ["b1", "a0"]
    assert (found.events, found.undated, found.undecodable) == (6, 3, 1)


@pytest.mark.parametrize("at", [-62_135_600_400_000, 1_764_096_000_000_000])
def test_an_event_of_an_impossible_time_is_counted_and_left_out(
    at: int, spark: SparkSession, tmp_path: Path
) -> None:
    """The year 0, and what a sender has in microseconds."""
    path = tmp_path / "archive"
    records: list[DataFrame] = []
    for number, millis in enumerate((START, at)):
        about = {"specversion": "1.0", "id": str(number), "source": "/s", "type": "a"}
        rows = [("bus", 0, number, None, b"{}", to_record(Event(about, b"{}")).headers)]
        moment = f"timestamp_millis({millis})"
        frame = spark.createDataFrame(rows, RECORD)
        records.append(frame.selectExpr("topic", "partition", "offset", f"{moment} AS timestamp",
                                        "value", "headers"))  # fmt: skip
    records[0].union(records[1]).write.parquet(str(path))
    found = run(spark, str(path), sensor({"name": "t", "conditions": "a"}))
    assert [each["events"][0]["id"] for each in found.shown] == ["0"]
    assert (found.events, found.undated) == (2, 1)


def test_only_events_of_the_span_count_and_all_firings_are_in_the_table(
    spark: SparkSession, tmp_path: Path
) -> None:
    events = [past(f"a{number}", number * 1000) for number in range(10)]
    archive = archived(spark, events, tmp_path / "archive")
    span = {"since": START + 2000, "until": START + 8000}
    trigger = {"name": "t", "conditions": "a && !b", "within": "PT3S"}
    found = run(spark, archive, sensor(trigger), tmp_path / "firings", **span)
    assert found.firings == {"t": 1}
    assert found.waiting == {"t": 1}
    table = spark.read.format("delta").load(str(tmp_path / "firings"))
    row = table.collect()[0].asDict(recursive=True)
    assert (row["trigger"], row["correlation"]) == ("t", None)
    assert [(each["id"], each["topic"], each["offset"]) for each in row["events"]] == [
        ("a2", "bus", 2)
    ]
    with pytest.raises(JobError, match=r"the firings can't be written to .*firings"):
        run(spark, archive, sensor(trigger), tmp_path / "firings")


def test_errors_of_a_filter_are_counted(spark: SparkSession, tmp_path: Path) -> None:
    archive = archived(spark, [past("a1", 1), past("b1", 2)], tmp_path / "archive")
    found = run(spark, archive, sensor({"name": "t", "correlation": "INT(case)"}))
    assert sum(found.errors.values()) == 2
    assert found.firings == {"t": 0}


def test_what_is_no_archive_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "table"
    rows: DataFrame = spark.range(1)
    rows.write.parquet(str(path))
    with pytest.raises(JobError, match="lacks the columns headers, value, timestamp or appended"):
        records_of_archive(spark, str(path), TimeSpan())
    with pytest.raises(JobError, match=r"the archive .*none can't be read"):
        records_of_archive(spark, str(tmp_path / "none"), TimeSpan())


def test_a_sensor_may_be_as_kubernetes_has_it(tmp_path: Path) -> None:
    trigger = {"name": "t", "subscriber": {"uri": "http://a"}, "delivery": {"retry": 3}}
    spec = {"broker": "default", "dependencies": [{"name": "a"}], "triggers": [trigger]}
    document = {"apiVersion": "knafka.dev/v1alpha1", "kind": "Sensor", "spec": spec}
    assert conditions_of(document) == parse(
        Conditions, {"dependencies": [{"name": "a"}], "triggers": [{"name": "t"}]}
    )
    more = {"reply": {"uri": "http://b"}, "payload": "batch", "retryStrategy": {"steps": 2}}
    on_channel = {**spec, "channel": "orders", "triggers": [{**trigger, **more}]}
    del on_channel["broker"]
    assert conditions_of({**document, "spec": on_channel}) == conditions_of(document)
    with pytest.raises(InvalidDocument, match="condition"):
        conditions_of({"spec": {**spec, "triggers": [{"name": "t", "condition": "a"}]}})
    with pytest.raises(JobError, match="can't be read"):
        read_sensor(tmp_path / "none.json")
