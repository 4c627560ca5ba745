"""Compaction: what a dead letter becomes in the tables, and what may be deleted from a topic."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.testing import assertDataFrameEqual

from knafka.core import names
from knafka.core.dead_letter import Failure, Origin, dead_letter_of
from knafka.core.delivery import Reason
from knafka_jobs.compact import compact_plan
from knafka_jobs.compact.checkpoints import Checkpoints
from knafka_jobs.compact.compact_plan import (
    FOLDED,
    MERGE_ON,
    contiguous_ranges,
    error_summaries,
    fold_several,
    merge_clauses,
    next_offsets,
    repeated_keys,
    with_summary,
)
from knafka_jobs.compact.compact_run import fold, fold_records
from knafka_jobs.compact.reading import LOGS
from knafka_jobs.compact.record_rows import dead_letter_topic_of, records_of
from knafka_jobs.failure_selection import REPLAYABLE
from knafka_jobs.io.delta import Tables, in_days
from knafka_jobs.schema import FAILURES, RECORDS, ddl
from knafka_jobs.topic_offsets import NO_MARK, ReadState, RecordMark

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # py4j leaves sockets open
]

KAFKA = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
    "headers array<struct<key: string, value: binary>>"
)
TOPIC = names.dead_letter_topic("shop", "main", "mail")
BROKER_TOPIC = names.broker_dead_letter_topic("shop", "main")
NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


def at(second: float) -> datetime:
    return datetime.fromtimestamp(NOON.timestamp() + second, UTC)


def kafka(spark: SparkSession, *rows: tuple[Any, ...], topic: str = TOPIC) -> DataFrame:
    """Rows as Spark's Kafka source gives them: headers, value, offset."""
    values = [(b"k", value, topic, 0, offset, NOON, headers) for headers, value, offset in rows]
    return spark.createDataFrame(values, KAFKA)


def topics(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([(TOPIC, 0, "id-1")], ddl(LOGS))


FAILURE = Failure(
    "http://mail/", Reason.STATUS, 3, NOON.timestamp(), NOON.timestamp() + 9, status=503, body=b"no"
)


def letter(
    number: int = 1, failure: Failure = FAILURE
) -> tuple[list[tuple[str, bytes]], bytes | None]:
    """What the dispatcher buries."""
    headers = [
        ("ce_specversion", b"1.0"),
        ("ce_id", b"%d" % number),
        ("ce_source", b"/s"),
        ("ce_type", b"t"),
        ("content-type", b"text/plain"),
    ]
    origin = Origin("shop", "main", "mail", "broker-topic", 4, 40 + number)
    return dead_letter_of(headers, b"data", failure, origin)


def failures_of(records: DataFrame) -> DataFrame:
    """The failures of records, by the way that holds for all of them."""
    return records.transform(fold_several).transform(with_summary, None)


def one(records: DataFrame, *columns: str) -> tuple[Any, ...]:
    rows = records.select(*columns).collect()
    assert len(rows) == 1
    return tuple(rows[0])


def test_a_dead_letter_is_spelled_out_beside_its_own_bytes(spark: SparkSession) -> None:
    headers, value = letter()
    records = records_of(kafka(spark, (headers, value, 7)), topics(spark))
    assert records.columns == list(RECORDS)
    expected = spark.createDataFrame(
        [
            (
                *(TOPIC, "id-1", 0, 7, NOON, b"k", b"data", headers, "shop", "main", "mail"),
                *("1", "/s", "t", None, None, "text/plain", 4, "broker-topic", 4, 41, None),
                *("http://mail/", "status", 503, "bm8=", 3, at(0), at(9)),
                *(NOON.date(),),
            )
        ],
        ddl({name: kind for name, kind in RECORDS.items() if name != "failure_id"}),
    )
    assertDataFrameEqual(records.drop("failure_id"), expected)
    assert len(one(records, "failure_id")[0]) == 32


def test_the_trace_is_the_one_beside_the_event_and_else_the_events_own(
    spark: SparkSession,
) -> None:
    first, second = "0af7651916cd43dd8448eb211c80319c", "4bf92f3577b34da6a3ce929d0e0e4736"
    of = {
        first: [("traceparent", first), ("ce_traceparent", second)],
        second: [("traceparent", "no such thing"), ("ce_traceparent", second)],
        None: [("traceparent", "no such thing")],
    }
    for wanted, parents in of.items():
        headers = [
            (name, f"00-{each}-b7ad6b7169203331-01".encode() if len(each) == 32 else each.encode())
            for name, each in parents
        ]
        records = records_of(kafka(spark, (headers, b"", 7)), topics(spark))
        assert one(records, "trace") == (wanted,)


def test_a_time_that_cannot_be_is_taken_for_none(spark: SparkSession) -> None:
    """Of a record and in its headers: one of them made every report fail."""
    headers, value = letter()
    wrong = ["0001-01-01T00:00:00Z", "+10000-01-01T00:00:00Z", "-0009-01-01T00:00:00Z", ""]
    names = ("ce_knafkafirsttime", "ce_knafkalasttime")
    kept = [each for each in headers if each[0] not in names]
    rows = [[*kept, *((name, text.encode()) for name in names)] for text in wrong]
    given = kafka(spark, *((each, value, n) for n, each in enumerate(rows)))
    own = F.timestamp_micros(F.when(F.col("offset") == 0, -5 * 10**15).otherwise(9 * 10**15))
    at_no_time = F.when(F.col("offset") < 2, own).otherwise(F.col("timestamp"))
    given = given.withColumn("timestamp", at_no_time)
    now = datetime.now(UTC)
    for row in records_of(given, topics(spark)).collect():
        appended = row["appended"].astimezone(UTC)
        assert appended == NOON if row["offset"] > 1 else abs(now - appended) < timedelta(hours=1)
        assert row["first_attempt"] == row["last_attempt"] == row["appended"]
        assert row["day"] == appended.date()


@pytest.mark.parametrize(
    ("headers", "value"),
    [
        pytest.param(None, None, id="nothing-at-all"),
        pytest.param([], b"", id="no-headers"),
        pytest.param([("ce_id", None)], b"x", id="a-header-without-value"),
        pytest.param([("", b""), ("", b"")], b"x", id="headers-without-names"),
        pytest.param([("ce_id", b"\xff\xfe"), ("ce_type", b"\x00")], b"\xff", id="not-utf-8"),
        pytest.param(
            [
                ("ce_knafkaattempts", b"many"),
                ("ce_knafkafirsttime", b"soon"),
                ("ce_knafkareason", b"boredom"),
                ("ce_knativeerrorcode", b"9" * 40),
                ("ce_knafkaoffset", b"-"),
                ("ce_knativeerrordata", b"*"),
            ],
            None,
            id="attributes-that-make-no-sense",
        ),
    ],
)
def test_garbage_is_kept_as_an_undecodable_record(
    spark: SparkSession, headers: list[tuple[str, bytes | None]] | None, value: bytes | None
) -> None:
    """Nothing in the topic is left out of the table, and nothing stops the rest (CE-K8)."""
    records = records_of(kafka(spark, (headers, value, 1), (*letter(), 2)), topics(spark))
    garbage = records.where("offset = 1")
    assert one(garbage, "reason", "trigger", "attempts", "code") == (
        "undecodable-record",
        TOPIC,
        0,
        None,
    )
    kept, its_headers = one(garbage, "value", "headers")
    assert (kept, its_headers) == (
        value,
        None if headers is None else [tuple(each) for each in headers],
    )
    folded = failures_of(records.select(*FOLDED))
    assert folded.count() == 2


def test_a_dead_letter_in_another_owners_topic_is_nobodys(spark: SparkSession) -> None:
    """A tenant could have events sent to another tenant's subscriber by records in a topic of its
    own: a replay by Broker asks no EventPolicy of that Broker."""
    forged = names.dead_letter_topic("evil", "main", "mail")
    own = [f"ce_knafka{name}" for name in ("namespace", "broker", "trigger")]
    nobodys = [(name, raw) for name, raw in letter()[0] if name not in own]
    of_broker = [*nobodys, (own[0], b"shop"), (own[1], b"main")]
    given = (
        (forged, letter()[0]),
        (BROKER_TOPIC, letter()[0]),
        (TOPIC, of_broker),
        (TOPIC, nobodys),
        (f"{TOPIC}0", letter()[0]),
    )
    values = [(b"k", b"data", topic, 0, 7, NOON, headers) for topic, headers in given]
    records = records_of(spark.createDataFrame(values, KAFKA), topics(spark))
    columns = ("namespace", "broker", "trigger", "origin_topic", "origin_partition")
    rows = records.select(*columns, "origin_offset", "reason").collect()
    assert sorted(map(tuple, rows)) == sorted(
        ("", "", topic, None, None, None, "undecodable-record") for topic, _ in given
    )


def test_a_dead_letter_topics_name_is_the_same_in_spark(spark: SparkSession) -> None:
    owners = [
        ("shop", "main", "mail"),
        ("shop", "main", ""),
        ("shop", names.of_channel("main"), "0af7"),
        ("shop", names.of_source("main"), "main"),
        ("shop", "main", names.of_sensor("heat")),
        ("n" * 63, "b" * 253, "t" * 253),
        ("", "", ""),
    ]
    columns = ("namespace", "broker", "trigger")
    rows = spark.createDataFrame(owners, " string, ".join(columns) + " string")
    named = rows.select(*columns, dead_letter_topic_of(*map(F.col, columns)).alias("topic"))
    for *owner, topic in named.collect():
        assert topic == names.dead_letter_topic(*owner)


def test_of_headers_with_one_name_the_last_wins(spark: SparkSession) -> None:
    """CE-K6"""
    headers, value = letter()
    twice = [("ce_type", b"first"), *headers, ("ce_type", b"last")]
    assert one(records_of(kafka(spark, (twice, value, 1)), topics(spark)), "type") == ("last",)


def test_an_event_without_data_is_not_one_with_empty_data(spark: SparkSession) -> None:
    """CE-K3: neither is a tombstone."""
    headers, _ = letter()
    records = records_of(kafka(spark, (headers, None, 1), (headers, b"", 2)), topics(spark))
    rows = records.orderBy("offset").select("data_bytes", "value").collect()
    assert [tuple(row) for row in rows] == [(None, None), (0, b"")]


def test_the_same_event_has_the_same_failure_id_whatever_else_differs(spark: SparkSession) -> None:
    headers, value = letter()
    failed_otherwise = letter(1, replace(FAILURE, attempts=9, reason=Reason.TIMEOUT, status=None))
    kafka_rows = kafka(
        spark,
        (headers, value, 1),
        (*failed_otherwise, 2),
        (*letter(2), 3),
        (headers, b"other data", 4),
        ([(name, b"/other" if name == "ce_source" else raw) for name, raw in headers], value, 5),
        ([(name, b"m" if name == "ce_knafkatrigger" else raw) for name, raw in headers], value, 6),
    )
    rows = records_of(kafka_rows, topics(spark)).orderBy("offset").collect()
    ids = [row["failure_id"] for row in rows]
    assert ids[0] == ids[1]
    assert len(set(ids)) == 5


def records(spark: SparkSession, *rows: dict[str, Any]) -> DataFrame:
    """Rows of `records`; what isn't given is the same in all."""
    usual: dict[str, Any] = dict.fromkeys(RECORDS) | {
        "failure_id": "f",
        "topic": TOPIC,
        "topic_id": "id-1",
        "partition": 0,
        "appended": NOON,
        "namespace": "shop",
        "broker": "main",
        "trigger": "mail",
        "reason": "status",
        "attempts": 1,
        "first_attempt": at(0),
        "last_attempt": at(0),
        "day": NOON.date(),
    }
    values = [tuple({**usual, "offset": n, **row}.values()) for n, row in enumerate(rows)]
    return spark.createDataFrame(values, ddl(RECORDS))


def test_repeated_failures_fold_into_counts_times_and_history(spark: SparkSession) -> None:
    rows = records(
        spark,
        {"attempts": 3, "first_attempt": at(0), "last_attempt": at(5), "code": 500, "type": "t"},
        {"attempts": 1, "first_attempt": at(20), "last_attempt": at(20), "reason": "timeout"},
        {"attempts": 2, "first_attempt": at(10), "last_attempt": at(12), "code": 503},
        {"failure_id": "g", "attempts": 0},
    )
    folded = failures_of(rows.select(*FOLDED))
    assert folded.columns == list(FAILURES)
    assertDataFrameEqual(
        folded.select(
            *("failure_id", "failures", "retries", "first_failed", "last_failed"),
            *("reason", "code", "attempts", "offset", "type", F.size("history").alias("history")),
        ),
        spark.createDataFrame(
            [
                ("f", 3, 3, at(0), at(20), "timeout", None, 1, 1, "t", 3),
                ("g", 1, 0, at(0), at(0), "status", None, 0, 3, None, 1),
            ],
            "failure_id string, failures bigint, retries bigint, first_failed timestamp, "
            "last_failed timestamp, reason string, code int, attempts int, offset bigint, "
            "type string, history int",
        ),
    )
    history = one(folded.where("failure_id = 'f'"), "history")[0]
    assert [(row["reason"], row["code"], row["attempts"]) for row in history] == [
        ("status", 500, 3),
        ("status", 503, 2),
        ("timeout", None, 1),
    ]


def test_dead_letters_of_one_record_that_holds_no_event_are_one_failure_of_its_broker(
    spark: SparkSession,
) -> None:
    """Decision 0031: two dispatchers that look at the same moment write two, a second apart; one
    of another record is another failure, and none is any Trigger's."""

    def undecodable(offset: int, second: float = 0.0) -> Any:
        when = NOON.timestamp() + second
        failure = Failure("", Reason.UNDECODABLE, 0, when, when, body=b"no event")
        origin = Origin("shop", "main", "", "broker-topic", 4, offset)
        return dead_letter_of([("x", b"y")], b"data", failure, origin)

    written = [undecodable(7), undecodable(8), undecodable(7, 1)]
    rows = kafka(
        spark, *((*each, offset) for offset, each in enumerate(written)), topic=BROKER_TOPIC
    )
    folded = failures_of(rows.transform(records_of, topics(spark)).select(*FOLDED))
    found = folded.select("namespace", "broker", "trigger", "origin_offset", "failures")
    assert sorted(map(tuple, found.collect())) == [
        ("shop", "main", "", 7, 2),
        ("shop", "main", "", 8, 1),
    ]
    assert folded.where(REPLAYABLE).count() == 0


def test_failures_of_one_record_are_folded_as_all_are(spark: SparkSession) -> None:
    rows = records(
        spark,
        {"attempts": 3, "error": "bm8=", "code": 500, "type": "t", "first_attempt": at(-5)},
        {"failure_id": "g", "attempts": 0, "data_bytes": 7, "trace": "0af7"},
        {"failure_id": "h", "last_attempt": at(20)},
        {"failure_id": "g", "last_attempt": at(9), "reason": "timeout"},
    ).select(*FOLDED)
    assert rows.transform(repeated_keys).count() == 1
    folded = fold_records(rows)
    assertDataFrameEqual(folded.transform(with_summary, None), failures_of(rows))
    summaries = folded.transform(error_summaries)
    assertDataFrameEqual(folded.transform(with_summary, summaries), failures_of(rows))


@pytest.mark.parametrize(
    ("max_repeated", "max_summarized"), [(1, 2), (0, 2), (1, 0)], ids=["few", "repeats", "errors"]
)
def test_a_batch_folds_to_the_same_failures_however_many_repeat_or_differ(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    max_repeated: int,
    max_summarized: int,
) -> None:
    monkeypatch.setattr(compact_plan, "MAX_REPEATED", max_repeated)
    monkeypatch.setattr(compact_plan, "MAX_SUMMARIZED", max_summarized)
    rows = records(
        spark,
        {"offset": 1, "attempts": 3, "error": "bm8="},
        {"offset": 2, "failure_id": "g", "error": "bm8=", "reason": "timeout"},
        {"offset": 3, "failure_id": "g", "error": "eWVz", "last_attempt": at(9)},
        {"offset": 4, "failure_id": "h"},
    )
    tables = Tables(spark, str(tmp_path))
    tables.append(rows, "records")
    assert fold(Checkpoints(tables)) == 4
    # A fold also sets the day and the heads.
    folded = tables.read("failures").drop("day", "head")
    assertDataFrameEqual(folded, failures_of(rows).drop("day", "head"))


def test_history_is_bounded_and_counts_are_not(spark: SparkSession) -> None:
    rows = records(spark, *({"last_attempt": at(n)} for n in range(60)))
    failures, history = one(failures_of(rows), "failures", "history")
    assert failures == 60
    assert len(history) == 50
    assert history[-1]["at"].astimezone(UTC) == at(59)


def test_folding_in_two_batches_is_folding_in_one(spark: SparkSession, tmp_path: Path) -> None:
    rows = records(
        spark,
        {"attempts": 3, "last_attempt": at(5), "code": 500},
        {"failure_id": "g", "first_attempt": at(1), "last_attempt": at(2)},
        {"attempts": 2, "last_attempt": at(4), "code": 400},
        {"failure_id": "g", "last_attempt": at(9), "reason": "refused"},
        {"failure_id": "h"},
    )
    tables = Tables(spark, str(tmp_path))
    for batch in ("offset IN (0, 1)", "offset IN (2, 3, 4)"):
        tables.upsert(failures_of(rows.where(batch)), "failures", MERGE_ON, merge_clauses())
    assertDataFrameEqual(tables.read("failures"), failures_of(rows))


def test_a_failure_that_was_resolved_and_fails_again_is_unresolved(
    spark: SparkSession, tmp_path: Path
) -> None:
    tables = Tables(spark, str(tmp_path))
    before = failures_of(records(spark, {}, {"failure_id": "g"}))
    tables.append(before.withColumn("resolved", F.lit(at(10))), "failures")
    more = failures_of(
        records(spark, {"last_attempt": at(20)}, {"failure_id": "g", "last_attempt": at(5)})
    )
    tables.upsert(more, "failures", MERGE_ON, merge_clauses())
    rows = tables.read("failures").orderBy("failure_id").select("resolved").collect()
    assert [row[0] and row[0].astimezone(UTC) for row in rows] == [None, at(10)]


def test_only_what_the_table_holds_without_a_gap_may_be_deleted(spark: SparkSession) -> None:
    held = records(
        spark,
        *({"partition": 0, "offset": n} for n in (3, 4, 5, 7, 8)),
        *({"partition": 1, "offset": n} for n in (11, 12)),
        *({"partition": 2, "offset": n} for n in (0, 1, 2, 3, 4)),
        *({"partition": 3, "offset": n, "topic_id": "recreated"} for n in (0, 1)),
    )
    ranges = spark.createDataFrame(
        [(TOPIC, "id-1", *each) for each in ((0, 3, 9), (1, 10, 13), (2, 1, 3), (3, 0, 2))],
        "topic string, topic_id string, partition int, start bigint, end bigint",
    )
    found = contiguous_ranges(held, ranges).drop("topic", "topic_id").collect()
    assert sorted(tuple(row) for row in found) == [(0, 3, 6), (0, 7, 9), (1, 11, 13), (2, 1, 3)]


def test_reading_goes_on_after_what_the_table_holds(spark: SparkSession) -> None:
    held = records(
        spark,
        {"partition": 0, "offset": 4},
        {"partition": 0, "offset": 9},
        {"partition": 0, "offset": 2, "topic_id": "id-2"},
    )
    assertDataFrameEqual(
        next_offsets(held),
        spark.createDataFrame(
            [("id-1", 0, 4, 10), ("id-2", 0, 2, 3)],
            "topic_id string, partition int, first bigint, next bigint",
        ),
    )


def test_small_files_are_merged_in_the_days_that_have_many(
    spark: SparkSession, tmp_path: Path
) -> None:
    tables = Tables(spark, str(tmp_path))
    rows = records(spark, *({"day": (NOON + timedelta(days=n // 4)).date()} for n in range(9)))
    tables.append(rows.repartitionByRange(9, "offset"), "records")
    many = [NOON.date(), (NOON + timedelta(days=1)).date()]
    assert set(tables.days_of_small_files("records", 1 << 20, most=2)) == set(many)
    assert tables.days_of_small_files("records", 1, most=2) == []
    tables.merge_small_files("records", in_days("day", many[:1]))
    assert tables.days_of_small_files("records", 1 << 20, most=2) == many[1:]


def test_a_table_is_empty_until_it_has_rows_and_is_not_made_to_tell(
    spark: SparkSession, tmp_path: Path
) -> None:
    tables = Tables(spark, str(tmp_path))
    assert tables.is_empty("failures")
    assert not (tmp_path / "failures").exists()
    tables.table_id("failures")
    assert tables.is_empty("failures")
    tables.append(failures_of(records(spark, {})), "failures")
    assert not tables.is_empty("failures")


def test_saved_offsets_are_read_as_they_were_written_and_broken_ones_are_none(
    spark: SparkSession, tmp_path: Path
) -> None:
    checkpoints = Checkpoints(Tables(spark, str(tmp_path)))
    assert checkpoints.last_batch() is None
    assert checkpoints.offsets_after(7) is None
    after = {
        ("id+/1==", 0): ReadState(5, RecordMark(4, "ab", 1, 7), (3, 2)),
        ("id+/1==", 12): ReadState(2**40),
        ("id-2", 0): ReadState(0, NO_MARK),
    }
    checkpoints.save_offsets(7, after)
    checkpoints.save_offsets(8, {})
    assert checkpoints.offsets_after(7) == after
    assert checkpoints.offsets_after(8) == {}
    (file,) = tmp_path.rglob("7.json")
    file.write_bytes(file.read_bytes()[:-9])
    assert checkpoints.offsets_after(7) is None
    file.with_name(".7.json.crc").unlink()
    assert checkpoints.offsets_after(7) is None
