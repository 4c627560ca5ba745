"""What the jobs tell Kafka's clients, and which topics are whose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from knafka.core import names
from knafka.core.errors import InvalidDocument
from knafka_jobs.io.kafka import MAX_MESSAGE_BYTES
from knafka_jobs.io.kafka_connection import KafkaConnection
from knafka_jobs.io.kafka_names import possible_groups
from knafka_jobs.job_errors import JobError
from knafka_jobs.replay.replay_run import ensure_replay_topic
from knafka_jobs.replay.send import FailedEvent, batches, progress_text
from knafka_jobs.topic_offsets import BrokerName, OffsetSpan, TopicState, is_dead_letter_topic


def test_both_clients_are_told_the_same(tmp_path: Path) -> None:
    values = {"protocol": "SASL_PLAINTEXT", "user": "me", "password": "p\n"}
    for key, value in values.items():
        (tmp_path / key).write_text(value)
    connection = KafkaConnection.from_folder("a:1,b:2", tmp_path)
    assert connection.for_librdkafka() == {
        "bootstrap.servers": "a:1,b:2",
        "log_level": 0,
        "security.protocol": "sasl_plaintext",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "me",
        "sasl.password": "p",
    }
    options = connection.for_spark()
    assert options["kafka.bootstrap.servers"] == "a:1,b:2"
    assert options["kafka.security.protocol"] == "SASL_PLAINTEXT"
    assert 'password="p"' in options["kafka.sasl.jaas.config"]


def test_without_a_secret_nothing_is_said_of_security() -> None:
    connection = KafkaConnection.from_folder("a:1", None)
    assert connection.for_librdkafka() == {"bootstrap.servers": "a:1", "log_level": 0}
    committed = {"kafka.isolation.level": "read_committed"}
    assert connection.for_spark() == {"kafka.bootstrap.servers": "a:1", **committed}


def test_a_secret_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidDocument, match="can't be read"):
        KafkaConnection.from_folder("a:1", tmp_path / "none")


def test_dashes_do_not_make_a_topic_another_brokers() -> None:
    """Namespace a-b, Broker c and namespace a, Broker b-c share a prefix."""
    topic = names.dead_letter_topic("a-b", "c", "d")
    assert is_dead_letter_topic(topic, None)
    assert is_dead_letter_topic(topic, BrokerName("a-b", "c"))
    assert not is_dead_letter_topic(topic, BrokerName("a", "b-c"))
    assert not is_dead_letter_topic(topic, BrokerName("a", "b"))
    assert not is_dead_letter_topic("knative-broker-a-b-c", None)
    assert not is_dead_letter_topic(names.replay_topic("a-b", "c", "d"), BrokerName("a-b", "c"))


class FakeKafka:
    """`KafkaClient` with topics in a dict, and what each takes in one batch."""

    def __init__(self, *topics: TopicState) -> None:
        self.by_name = {topic.name: topic for topic in topics}
        self.limits: dict[str, int] = {}

    def topics(self, wanted: Sequence[str]) -> dict[str, TopicState]:
        return {name: self.by_name[name] for name in wanted if name in self.by_name}

    def create_topic(
        self, topic: str, partitions: int, replication: int, config: Mapping[str, str]
    ) -> TopicState:
        spans = {number: OffsetSpan(0, 0) for number in range(partitions)}
        self.by_name[topic] = TopicState(topic, "new", spans, replication)
        if MAX_MESSAGE_BYTES in config:
            self.limits[topic] = int(config[MAX_MESSAGE_BYTES])
        return self.by_name[topic]

    def record_limit(self, topic: str) -> int | None:
        return self.limits.get(topic)

    def raise_record_limit(self, topic: str, limit: int) -> None:
        self.limits[topic] = limit


DEAD = names.dead_letter_topic("n", "b", "t")
REPLAYS = names.replay_topic("n", "b", "t")


@pytest.mark.parametrize("brokers_partitions", [10, None])
def test_a_replay_topic_has_the_brokers_partitions_where_they_are_known(
    brokers_partitions: int | None,
) -> None:
    """Dead-letter topics have one; replays would all go through one dispatcher."""
    kafka: Any = FakeKafka(TopicState(DEAD, "dead", {0: OffsetSpan(0, 1)}, 3))
    if brokers_partitions:
        kafka.create_topic(names.broker_topic("n", "b"), brokers_partitions, 2, {})
    made = ensure_replay_topic(kafka, "n", "b", "t")
    assert (made.name, made.replication) == (REPLAYS, 3)
    assert len(made.spans) == (brokers_partitions or 1)


def test_a_replay_topic_has_the_partitions_of_a_topic_that_a_template_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(names.NAME_TEMPLATES, "all-{{ .UID }}\nevents-{{ .Namespace }}-{{ .Name }}")
    kafka: Any = FakeKafka(TopicState(DEAD, "dead", {0: OffsetSpan(0, 1)}, 3))
    kafka.create_topic("events-n-b", 7, 2, {})
    assert len(ensure_replay_topic(kafka, "n", "b", "t").spans) == 7
    assert possible_groups("n", "t")[-1] == "events-n-t"
    assert possible_groups("n", "t")[0] == names.trigger_group("n", "t")


@pytest.mark.parametrize(
    ("takes", "before", "after"),
    [
        pytest.param(5_000_000, None, 5_000_000, id="made"),
        pytest.param(5_000_000, 1_048_588, 5_000_000, id="raised"),
        pytest.param(1_064_972, 5_000_000, 5_000_000, id="never-lowered"),
        pytest.param(20_000, None, 1_048_588, id="room-for-a-producers-batches"),
        pytest.param(None, None, None, id="may-not-be-asked"),
    ],
)
def test_a_replay_topic_takes_what_the_dead_letter_topic_takes(
    takes: int | None, before: int | None, after: int | None
) -> None:
    kafka: Any = FakeKafka(TopicState(DEAD, "dead", {0: OffsetSpan(0, 1)}))
    if takes is not None:
        kafka.limits[DEAD] = takes
    if before is not None:
        kafka.create_topic(REPLAYS, 1, 1, {MAX_MESSAGE_BYTES: str(before)})
    ensure_replay_topic(kafka, "n", "b", "t")
    assert kafka.record_limit(REPLAYS) == after


def test_a_replay_to_a_trigger_without_dead_letters_is_refused() -> None:
    kafka: Any = FakeKafka(
        TopicState(names.broker_topic("n", "b"), "events", {0: OffsetSpan(0, 1)})
    )
    with pytest.raises(JobError, match="no dead-letter topic"):
        ensure_replay_topic(kafka, "n", "b", "t")


def test_a_transaction_is_bounded_by_events_and_by_bytes() -> None:
    sizes = [4, 4, 4, 30, 1, 1, 1, 1, 0]
    events = [FailedEvent(str(each), "t", b"", b"x" * each, []) for each in sizes]
    sent = [[each.size for each in batch] for batch in batches(events, 4, 10)]
    assert sent == [[4, 4], [4], [30], [1, 1, 1, 1], [0]]


def test_a_replay_says_how_far_it_is_and_when_it_will_be_done() -> None:
    assert progress_text(0, 5000, 0.0) == "0 of 5,000 sent"
    assert progress_text(1000, 5000, 500.0) == "1,000 of 5,000 sent, 500/s, 8 s left"
    assert (
        progress_text(10_000, 100_000, 1000.0) == "10,000 of 100,000 sent, 1,000/s, 1 min 30 s left"
    )
    assert progress_text(5, 5, 0.0) == "5 of 5 sent"
