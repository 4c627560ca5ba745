"""What the jobs tell Kafka's clients, and which topics are whose."""

from __future__ import annotations

from pathlib import Path

import pytest

from knafka.core import names
from knafka.core.errors import InvalidDocument
from knafka_jobs.topics import Connection, is_dead_letters_of


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
