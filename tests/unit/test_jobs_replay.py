"""Replays: what is sent, in which order, and how its outcome is told."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.testing import assertDataFrameEqual
from support.tabled import records as tabled_records
from support.tabled import tabled

from knafka.core.names import dead_letter_topic
from knafka_jobs.compact.checkpoints import Checkpoints
from knafka_jobs.compact.compact_run import fold
from knafka_jobs.compact.judging import (
    DELETED_AND_SETTLED,
    GONE_TOPIC_AGE,
    STARTS,
    mark_lost_by_deletion,
    mark_outcomes,
)
from knafka_jobs.compact.outcomes import (
    deleted_unsettled,
    last_pending,
    lost_events,
    lost_with_topics,
    outcomes_of,
    pending_of,
    resolved_failures,
)
from knafka_jobs.io.delta import Tables
from knafka_jobs.io.kafka import KafkaClient
from knafka_jobs.replay.replay_plan import (
    dead_letters_of,
    replayable_failures,
    sent_rows,
    split_into_lanes,
)
from knafka_jobs.schema import FAILURES, RECORDS, SENT, ddl
from knafka_jobs.topic_offsets import BrokerName, OffsetSpan, TopicState

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # py4j leaves sockets open
]


def at(second: float) -> datetime:
    return datetime.fromtimestamp(1_790_000_000 + second, UTC)


def rows(
    spark: SparkSession, columns: Any, usual: dict[str, Any], *given: dict[str, Any]
) -> DataFrame:
    values = [tuple({**dict.fromkeys(columns), **usual, **each}.values()) for each in given]
    return spark.createDataFrame(values, ddl(columns))


TRIGGER = {"namespace": "shop", "broker": "main", "trigger": "mail"}


def failures(spark: SparkSession, *given: dict[str, Any]) -> DataFrame:
    usual = {**TRIGGER, "reason": "status", "topic_id": "id-1", "partition": 0}
    return rows(spark, FAILURES, usual, *given)


def records(spark: SparkSession, *given: dict[str, Any]) -> DataFrame:
    usual = {**TRIGGER, "topic_id": "id-1", "partition": 0, "appended": at(50)}
    return rows(spark, RECORDS, usual, *given)


def sent(spark: SparkSession, *given: dict[str, Any]) -> DataFrame:
    usual = {**TRIGGER, "replay_id": "r", "topic": "replays", "topic_id": "id-2", "partition": 0}
    return rows(spark, SENT, {**usual, "sent": at(40)}, *given)


def ids(frame: DataFrame) -> list[str]:
    return [row["failure_id"] for row in frame.collect()]


def test_only_unresolved_events_that_are_not_on_their_way_are_replayed(
    spark: SparkSession,
) -> None:
    all_failures = failures(
        spark,
        {"failure_id": "open"},
        {"failure_id": "resolved", "resolved": at(1)},
        {"failure_id": "no event", "reason": "undecodable-record"},
        {"failure_id": "nobody's", "namespace": ""},
        {"failure_id": "on its way"},
        {"failure_id": "failed again"},
        {"failure_id": "a stub", "offset": 7},
    )
    held = records(
        spark,
        {"offset": 6, "headers": [("ce_id", b"1")]},
        {"offset": 7, "headers": [("ce_id", b"1"), ("ce_knafkaomitted", b"data")]},
        {"offset": 8},
    )
    earlier = sent(
        spark,
        {"failure_id": "on its way"},
        {"failure_id": "failed again", "outcome": "failed-again"},
    )
    assert sorted(ids(replayable_failures(all_failures, earlier, held))) == ["failed again", "open"]


def test_the_last_dead_letter_of_each_is_sent_in_the_order_of_the_events(
    spark: SparkSession,
) -> None:
    wanted = failures(
        spark,
        {"failure_id": "c", "offset": 3, "origin_partition": 1, "origin_offset": 1},
        {"failure_id": "b", "offset": 2, "origin_partition": 0, "origin_offset": 10},
        {"failure_id": "a", "offset": 9, "origin_partition": 0, "origin_offset": 9},
    )
    held = records(
        spark,
        {"failure_id": "a", "offset": 1, "value": b"an earlier one of a"},
        {
            **{"failure_id": "a", "offset": 9, "value": b"a", "key": b"k"},
            "headers": [("ce_id", b"1")],
        },
        {"failure_id": "b", "offset": 2, "value": None},
        {"failure_id": "c", "offset": 3, "value": b"c"},
        {"failure_id": "c", "offset": 3, "topic_id": "another", "value": b"not c"},
        {"failure_id": "another", "offset": 3, "value": b"of a log that was cut"},
    )
    found = split_into_lanes(dead_letters_of(wanted, held), 1)
    assert [(row["failure_id"], row["value"], row["key"]) for row in found.collect()] == [
        ("a", b"a", b"k"),
        ("b", None, None),
        ("c", b"c", None),
    ]


def test_an_outcome_is_told_only_once_its_event_is_settled(spark: SparkSession) -> None:
    on_their_way = sent(
        spark,
        {"failure_id": "delivered", "offset": 0},
        {"failure_id": "failed again", "offset": 1},
        {"failure_id": "not settled", "offset": 2},
        {"failure_id": "failed again, commit lost", "offset": 3},
        {"failure_id": "told before", "offset": 0, "outcome": "failed-again"},
        {"failure_id": "of a topic made anew", "offset": 0, "topic_id": "old"},
        {"failure_id": "failed again, by a clock behind", "offset": 1, "partition": 1},
    )
    origin = {"origin_topic": "replays", "origin_partition": 0}
    held = records(
        spark,
        {"failure_id": "failed again", **origin, "origin_offset": 1},
        {"failure_id": "failed again, commit lost", **origin, "origin_offset": 3},
        {"failure_id": "x", **origin, "origin_offset": 0, "appended": at(39 - 3600)},
        {
            "failure_id": "z",
            **origin,
            "origin_partition": 1,
            "origin_offset": 1,
            "appended": at(39),
        },
        {"failure_id": "y", **origin, "origin_offset": 0, "origin_topic": "broker"},
        {"failure_id": "of another Trigger", **origin, "origin_offset": 0, "trigger": "bill"},
    )
    committed = spark.createDataFrame(
        [("id-2", 0, 2), ("id-2", 1, 2)], "topic_id string, partition int, until bigint"
    )
    told = outcomes_of(on_their_way, held, committed)
    assert told.columns == list(SENT)
    assertDataFrameEqual(
        told.select("failure_id", "outcome"),
        spark.createDataFrame(
            [
                ("delivered", "resolved"),
                ("failed again", "failed-again"),
                ("failed again, commit lost", "failed-again"),
                ("failed again, by a clock behind", "failed-again"),
            ],
            "failure_id string, outcome string",
        ),
    )


def test_what_was_deleted_before_it_was_settled_is_lost(spark: SparkSession) -> None:
    """A commit beyond it says nothing of it."""
    on_their_way = sent(
        spark,
        {"failure_id": "settled", "offset": 1},
        {"failure_id": "deleted", "offset": 2},
        {"failure_id": "there", "offset": 3},
        {"failure_id": "told before", "offset": 2, "outcome": "resolved"},
        {"failure_id": "another's", "offset": 2, "broker": "other"},
        {"failure_id": "of a topic that is gone", "offset": 9, "topic_id": "gone"},
        {"failure_id": "of a new one", "offset": 9, "topic_id": "gone", "sent": at(50)},
    )
    pending = on_their_way.transform(pending_of, BrokerName("shop", "main"))
    assert sorted(ids(on_their_way.transform(pending_of, None))) == sorted(
        [*ids(pending), "another's"]
    )
    settled = spark.createDataFrame([("id-2", 0, 3, 2)], ddl(DELETED_AND_SETTLED))
    found = pending.transform(deleted_unsettled, settled).unionByName(
        pending.transform(lost_with_topics, ["gone"], at(45))
    )
    assert found.columns == list(SENT)
    assert sorted(ids(found)) == ["deleted", "of a topic that is gone"]
    assert ids(found.where("outcome <> 'lost'")) == []


@dataclass
class OneKafka:
    """The Kafka of `mark_lost_by_deletion`; a topic's group has committed 2 in `committed_in`."""

    names: Collection[str]
    described: Collection[TopicState] = ()
    committed_in: Collection[int] = ()

    def topic_names(self) -> Collection[str]:
        return self.names

    def topics(self, names: Collection[str]) -> dict[str, TopicState]:
        return {each.name: each for each in self.described if each.name in names}

    def committed(self, group: str, topic: TopicState) -> dict[int, int]:
        assert group == topic.name
        return dict.fromkeys(self.committed_in, 2)


def marked_gone(on_their_way: DataFrame, kafka: OneKafka, broker: BrokerName | None) -> list[str]:
    """Return the failures whose replayed events are marked as lost."""
    found: list[str] = []

    def update(judged: DataFrame, *_: object) -> None:
        found.extend(ids(judged))

    session = on_their_way.sparkSession
    tables = SimpleNamespace(
        is_empty=lambda _: False,
        read=lambda _: on_their_way,
        rows=lambda values, columns: session.createDataFrame(values, ddl(columns)),
        update=update,
    )
    now = at(10) + GONE_TOPIC_AGE
    mark_lost_by_deletion(cast(Tables, tables), cast(KafkaClient, kafka), broker, now, str)
    return sorted(found)


def test_a_topic_of_another_kafka_is_not_gone(spark: SparkSession) -> None:
    """Its events are delivered there; sent again they would be delivered twice."""
    long = {"broker": "b" * 250}
    on_their_way = sent(
        spark,
        {"failure_id": "here", "offset": 1, "sent": at(1)},
        {
            "failure_id": "elsewhere",
            "offset": 1,
            "sent": at(1),
            "broker": "far",
            "topic_id": "id-3",
        },
        {"failure_id": "long", "offset": 1, "sent": at(1), **long, "topic_id": "id-4"},
    )
    dead = [dead_letter_topic("shop", broker, "mail") for broker in ("main", "b" * 250)]
    assert marked_gone(on_their_way, OneKafka(dead), None) == ["here", "long"]
    assert marked_gone(on_their_way, OneKafka(()), None) == []
    assert marked_gone(on_their_way, OneKafka(()), BrokerName("shop", "far")) == ["elsewhere"]


def test_what_a_group_without_a_commit_had_settled_is_not_known(spark: SparkSession) -> None:
    """Such a group has expired or was deleted; what it had settled would be delivered twice."""
    on_their_way = sent(
        spark,
        {"failure_id": "settled", "offset": 1},
        {"failure_id": "unsettled", "offset": 2},
        {"failure_id": "unknown", "offset": 2, "partition": 1},
    )
    topic = TopicState("replays", "id-2", dict.fromkeys((0, 1), OffsetSpan(5, 9)))
    kafka = OneKafka([], [topic], committed_in=[0])
    assert marked_gone(on_their_way, kafka, None) == ["unsettled"]


def test_what_a_replay_topic_has_lost_is_told_by_what_lies_there_now(spark: SparkSession) -> None:
    """Its log was cut: commits of the events that got the offsets say nothing of them."""
    on_their_way = sent(
        spark,
        {"failure_id": "there", "offset": 3},
        {"failure_id": "replaced", "offset": 4},
        {"failure_id": "beyond the end", "offset": 9},
        {"failure_id": "deleted by now", "offset": 2},
        {"failure_id": "settled", "offset": 5, "outcome": "resolved"},
        {"failure_id": "of another topic", "offset": 4, "topic_id": "old"},
        {"failure_id": "in another partition", "offset": 1, "partition": 1},
    )
    last = on_their_way.transform(last_pending).where("topic_id = 'id-2'").collect()
    told = sorted((row["partition"], row["offset"], row["failure_id"]) for row in last)
    assert told == [(0, 9, "beyond the end"), (1, 1, "in another partition")]
    there = spark.createDataFrame(
        [("replays", 0, 3, "r", "there"), ("replays", 0, 4, "r2", "replaced")],
        "topic string, partition int, offset bigint, replay_id string, failure_id string",
    )
    ranges = spark.createDataFrame([("replays", "id-2", 0, 3)], ddl(STARTS))
    found = lost_events(on_their_way, there, ranges)
    assert found.columns == list(SENT)
    rows = found.collect()
    assert sorted(row["failure_id"] for row in rows) == ["beyond the end", "replaced"]
    assert {row["outcome"] for row in rows} == {"lost"}
    assert all(row["judged"] for row in rows)


def test_a_failure_resolved_by_two_replays_is_marked_once(spark: SparkSession) -> None:
    told = sent(
        spark,
        {"failure_id": "f", "outcome": "resolved", "judged": at(60)},
        {"failure_id": "f", "outcome": "resolved", "judged": at(60), "sent": at(45)},
        {"failure_id": "g", "outcome": "failed-again", "judged": at(60)},
    )
    assertDataFrameEqual(
        resolved_failures(told),
        spark.createDataFrame([("f", at(45))], "failure_id string, sent timestamp"),
    )


def test_a_failure_that_failed_after_it_was_sent_again_is_unresolved_whenever_that_is_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Whichever broker's clock the time is of, and also if its last dead letter is read only after
    the outcomes were judged."""
    sent_at = datetime.now(UTC) - timedelta(minutes=5)

    def letter(word: str, offset: int, later: timedelta, **origin: Any) -> dict[str, Any]:
        times = dict.fromkeys(("appended", "first_attempt", "last_attempt"), sent_at + later)
        return {"word": word, "offset": offset, **times, **origin}

    words = ("through the replay", "by itself", "never")
    before = [letter(word, n, timedelta(hours=-2)) for n, word in enumerate(words)]
    origin = {"origin_topic": "replays", "origin_partition": 0, "origin_offset": 0}
    behind = letter("through the replay", 3, timedelta(milliseconds=-150), **origin)
    tables = tabled(spark, tmp_path / "tables", [*before, behind])
    replayed = ({"failure_id": w, "offset": n, "sent": sent_at} for n, w in enumerate(words))
    tables.append(sent(spark, *replayed), "sent")
    mark_outcomes(tables, [("id-2", 0, 3)])
    late = letter("by itself", 4, timedelta(minutes=1))
    tables.append(tabled_records(spark, late).coalesce(1), "records")
    fold(Checkpoints(tables))
    outcomes = {row["failure_id"]: row["outcome"] for row in tables.read("sent").collect()}
    assert outcomes == dict(zip(words, ("failed-again", "resolved", "resolved"), strict=True))
    resolved = {row["failure_id"]: row["resolved"] for row in tables.read("failures").collect()}
    assert resolved.pop("never").astimezone(UTC) == sent_at
    assert set(resolved.values()) == {None}


def test_what_a_replay_has_sent_is_told_by_the_mark_of_its_events(spark: SparkSession) -> None:
    mark = "knafka-replay"
    there = spark.createDataFrame(
        [
            ("replays", 0, 7, at(1), [("ce_id", b"1"), (mark, b"r/a")]),
            ("replays", 1, 8, at(2), [(mark, b"r/b"), (mark, b"other/c")]),
            ("replays", 1, 9, at(2), [(mark, b"r2/a")]),
            ("replays", 1, 10, at(2), [(mark, b"r/x/a")]),
            ("replays", 1, 11, at(2), [(mark, b"\xff")]),
            ("replays", 1, 12, at(2), [(mark, None)]),
            ("replays", 1, 13, at(2), []),
            ("another", 1, 13, at(2), [(mark, b"r/d")]),
        ],
        "topic string, partition int, offset bigint, timestamp timestamp, "
        "headers array<struct<key: string, value: binary>>",
    )
    topics = spark.createDataFrame(
        [("replays", "id-2", *TRIGGER.values())],
        f"topic string, topic_id string, {', '.join(f'{name} string' for name in TRIGGER)}",
    )
    found = sent_rows(there, "r", topics)
    assert found.columns == list(SENT)
    assertDataFrameEqual(
        found,
        sent(
            spark,
            {"failure_id": "a", "offset": 7, "sent": at(1)},
            {"failure_id": "b", "partition": 1, "offset": 8, "sent": at(2)},
        ),
    )
