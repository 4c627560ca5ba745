"""What the jobs tell Kafka's clients, and which topics are whose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from knafka.core import names
from knafka.core.errors import InvalidDocument
from knafka_jobs.errors import JobError
from knafka_jobs.ingest import Span
from knafka_jobs.replaying import _replay_topic
from knafka_jobs.topics import Connection, Topic, is_dead_letters_of


def test_both_clients_are_told_the_same(tmp_path: Path) -> None:
    values = {"protocol": "SASL_PLAINTEXT", "user": "me", "password": "p\n"}
    for key, value in values.items():
        (tmp_path / key).write_text(value)
    connection = Connection.from_folder("a:1,b:2", tmp_path)
    assert connection.for_librdkafka() == {
        "bootstrap.servers": "a:1,b:2",
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
    connection = Connection.from_folder("a:1", None)
    assert connection.for_librdkafka() == {"bootstrap.servers": "a:1"}
    assert connection.for_spark() == {"kafka.bootstrap.servers": "a:1"}


def test_a_secret_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidDocument, match="can't be read"):
        Connection.from_folder("a:1", tmp_path / "none")


def test_dashes_do_not_make_a_topic_another_brokers() -> None:
    """Namespace a-b, Broker c and namespace a, Broker b-c share a prefix."""
    topic = names.dead_letter_topic("a-b", "c", "d")
    assert is_dead_letters_of(topic, None)
    assert is_dead_letters_of(topic, ("a-b", "c"))
    assert not is_dead_letters_of(topic, ("a", "b-c"))
    assert not is_dead_letters_of(topic, ("a", "b"))
    assert not is_dead_letters_of("knative-broker-a-b-c", None)
    assert not is_dead_letters_of(names.replay_topic("a-b", "c", "d"), ("a-b", "c"))


class FakeTopics:
    """The jobs' `Topics` with what there is in a dict."""

    def __init__(self, *there: Topic) -> None:
        self.there = {topic.name: topic for topic in there}

    def described(self, wanted: Sequence[str]) -> dict[str, Topic]:
        return {name: self.there[name] for name in wanted if name in self.there}

    def ensure(
        self, topic: str, partitions: int, replication: int, config: Mapping[str, str]
    ) -> None:
        spans = {number: Span(0, 0) for number in range(partitions)}
        self.there[topic] = Topic(topic, "new", spans, replication)

    def wait_for(self, topic: str) -> Topic:
        return self.there[topic]


@pytest.mark.parametrize("brokers_partitions", [10, None])
def test_a_replay_topic_has_the_brokers_partitions_where_they_are_known(
    brokers_partitions: int | None,
) -> None:
    """Dead-letter topics have one; replays would all go through one dispatcher."""
    dead = Topic(names.dead_letter_topic("n", "b", "t"), "dead", {0: Span(0, 1)}, 3)
    topics: Any = FakeTopics(dead)
    if brokers_partitions:
        topics.ensure(names.broker_topic("n", "b"), brokers_partitions, 2, {})
    made = _replay_topic(topics, "n", "b", "t")
    assert (made.name, made.replication) == (names.replay_topic("n", "b", "t"), 3)
    assert len(made.spans) == (brokers_partitions or 1)


def test_a_replay_to_a_trigger_without_dead_letters_is_refused() -> None:
    topics: Any = FakeTopics(Topic(names.broker_topic("n", "b"), "events", {0: Span(0, 1)}))
    with pytest.raises(JobError, match="no dead-letter topic"):
        _replay_topic(topics, "n", "b", "t")
