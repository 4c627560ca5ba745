"""The jobs' requests to Kafka: which errors a moment mends (knafka_jobs.io.kafka)."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from concurrent.futures import Future
from datetime import UTC, datetime

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin._listoffsets import OffsetSpec

from knafka.core.commit_metadata import mark, short_id
from knafka_jobs.io import kafka
from knafka_jobs.io.kafka import KafkaClient
from knafka_jobs.io.kafka_connection import KafkaConnection
from knafka_jobs.job_errors import JobError
from knafka_jobs.report.report_run import settled_spans
from knafka_jobs.topic_offsets import NamedPartition, OffsetSpan, TopicState


@pytest.mark.parametrize(
    "code",
    [
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        # Seen for a replay topic that had just been created: its events were left out.
        KafkaError.UNKNOWN_LEADER_EPOCH,
    ],
)
def test_a_request_is_repeated_while_a_leader_or_coordinator_moves(
    code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka, "RETRY_INTERVAL", 0.0)
    errors = [KafkaException(KafkaError(code))] * 2

    def ask() -> dict[str, Future[int]]:
        answer: Future[int] = Future()
        if errors:
            answer.set_exception(errors.pop())
        else:
            answer.set_result(7)
        return {"orders": answer}

    assert kafka._request_results(ask) == {"orders": 7}


def test_a_request_that_kafka_refuses_fails_at_once() -> None:
    answer: Future[int] = Future()
    answer.set_exception(KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)))
    with pytest.raises(JobError, match="Topic authorization failed"):
        kafka._request_results(lambda: {"orders": answer})


@pytest.mark.parametrize("moment", [0.0, -1.0, float("-inf")])
def test_records_are_found_from_the_beginning_for_any_time_before_1970(
    moment: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for a compaction that keeps dead letters in their topics for a hundred years."""

    def list_offsets(
        self: KafkaClient, partitions: Iterable[NamedPartition], since: OffsetSpec
    ) -> dict[NamedPartition, int]:
        assert since._value == 0
        return dict.fromkeys(partitions, 7)

    monkeypatch.setattr(KafkaClient, "_list_offsets", list_offsets)
    client = KafkaClient(KafkaConnection("localhost:1"))
    assert client.offsets_at([("dead", 0)], moment) == {("dead", 0): 7}


def test_a_commit_of_an_earlier_topic_of_the_name_settles_nothing_of_this_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An event would count as delivered, and never be replayed again."""
    present, earlier = "Jx3k9sPq2aBcDeFgHiJkLm", "m0WqZ8r_T4cDeFgHiJkLmN"
    marks = {0: earlier, 1: present, 2: ""}

    class Committed:
        def committed(
            self, partitions: list[TopicPartition], timeout: float
        ) -> list[TopicPartition]:
            return [
                TopicPartition("replay", number, 5, mark("x", short_id(topic_id)))
                for number, topic_id in marks.items()
            ]

        def close(self) -> None: ...

    monkeypatch.setattr(KafkaClient, "consumer", lambda self, **_: Committed())
    client = KafkaClient(KafkaConnection("localhost:1"))
    topic = TopicState("replay", present, dict.fromkeys(marks, OffsetSpan(0, 9)), 1)
    assert client.committed("replay", topic) == {1: 5, 2: 5}


def test_a_report_asks_kafka_for_no_topic_that_can_not_be_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A dead letter may claim any origin, and Kafka refuses the whole request."""
    origins = ["bad topic!", "a/b", "t" * 300, ".", "..", "", None, "events", "caf\u00e9"]
    rows = [
        {"namespace": "shop", "broker": "main", "trigger": "mail", "origin_topic": name}
        for name in origins
    ]
    asked: list[str] = []

    def topics(self: KafkaClient, names: Collection[str]) -> dict[str, TopicState]:
        asked.extend(names)
        return {}

    monkeypatch.setattr(KafkaClient, "topics", topics)
    client = KafkaClient(KafkaConnection("localhost:1"))
    assert settled_spans(client, rows, datetime.now(UTC)) == []
    assert asked == ["events"]
