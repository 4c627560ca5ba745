"""What may be set of the Kafka clients, and what is refused because it would break delivery."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer, Producer

from knafka.core.errors import InvalidDocument
from knafka.core.kafka_settings.client_settings import (
    CONSUMER,
    PRODUCER,
    REFUSED,
    SIDES,
    check_setting,
    declared_settings,
    for_librdkafka,
)

GOOD = {
    "client.rack": "eu-west-1a",
    "fetch.min.bytes": "1024",
    "fetch.max.wait.ms": "500",
    "fetch.max.bytes": "1048576",
    "max.partition.fetch.bytes": "524288",
    "compression.type": "zstd",
    "compression.level": "3",
    "linger.ms": "5",
    "batch.size": "65536",
    "connections.max.idle.ms": "180000",
    "metadata.max.age.ms": "180000",
    "socket.keepalive.enable": "true",
}


def test_every_setting_has_an_example_here() -> None:
    assert GOOD.keys() == CONSUMER.keys() | PRODUCER.keys()


@pytest.mark.parametrize("name", CONSUMER)
def test_a_consumer_takes_what_is_allowed(name: str) -> None:
    value = check_setting("consumer", name, GOOD[name], name)
    Consumer({"group.id": "g", **for_librdkafka({name: value})}).close()


@pytest.mark.parametrize("name", PRODUCER)
def test_a_producer_takes_what_is_allowed(name: str) -> None:
    value = check_setting("producer", name, GOOD[name], name)
    Producer(for_librdkafka({name: value}))


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", REFUSED)
def test_what_would_break_delivery_is_refused_with_the_reason(side: str, name: str) -> None:
    with pytest.raises(InvalidDocument) as caught:
        check_setting(side, name, "1", f"data.{side}.{name}")
    assert str(caught.value) == f"data.{side}.{name}: can't be set: {REFUSED[name]}"


def test_what_is_refused_is_not_allowed() -> None:
    assert REFUSED.keys().isdisjoint(GOOD)


@pytest.mark.parametrize(
    ("side", "name", "value", "wanted"),
    [
        ("consumer", "fetch.min.bytes", "0", "a whole number from 1 to 1048576"),
        ("consumer", "fetch.min.bytes", "2M", "a whole number from 1 to 1048576"),
        ("consumer", "fetch.min.bytes", "1.5", "a whole number"),
        ("consumer", "fetch.max.wait.ms", "5001", "a whole number from 0 to 5000"),
        ("consumer", "fetch.max.wait.ms", "99999999999", "a whole number"),
        ("consumer", "client.rack", "a b", "as the brokers' broker.rack has it"),
        ("consumer", "client.rack", "", "as the brokers' broker.rack has it"),
        ("consumer", "socket.keepalive.enable", "yes", "one of true, false"),
        ("producer", "compression.type", "brotli", "one of none, gzip, snappy, lz4, zstd"),
        ("producer", "linger.ms", "-1", "a whole number from 0 to 1000"),
    ],
)
def test_a_value_that_cannot_be_is_refused(side: str, name: str, value: str, wanted: str) -> None:
    with pytest.raises(InvalidDocument) as caught:
        check_setting(side, name, value, "data.key")
    assert caught.value.path == "data.key"
    assert f"invalid value: {value}: want " in caught.value.problem
    assert wanted in caught.value.problem


@pytest.mark.parametrize(("side", "name"), [("consumer", "linger.ms"), ("producer", "client.rack")])
def test_a_setting_of_the_other_side_is_unknown(side: str, name: str) -> None:
    with pytest.raises(InvalidDocument, match=f"unknown setting: want one of .*{min(SIDES[side])}"):
        check_setting(side, name, GOOD[name], "data.key")


def test_the_keys_of_a_document_are_told_apart_by_their_side() -> None:
    data = {
        "bootstrap.servers": "k:1",
        "producer.linger.ms": " 005 ",
        "consumer.client.rack": "a",
        "consumers": "3",
    }
    assert declared_settings(data, "", "data.") == {
        "producer": {"linger.ms": "5"},
        "consumer": {"client.rack": "a"},
    }
    annotations = {"knafka.dev/consumer.client.rack": "b", "consumer.client.rack": "c"}
    assert declared_settings(annotations, "knafka.dev/", "metadata.annotations.") == {
        "producer": {},
        "consumer": {"client.rack": "b"},
    }


def test_the_path_of_what_is_wrong_is_that_of_its_key() -> None:
    with pytest.raises(InvalidDocument) as caught:
        declared_settings({"producer.acks": "1"}, "", "data.")
    assert caught.value.path == "data.producer.acks"


def test_librdkafka_has_names_of_its_own() -> None:
    assert for_librdkafka({"fetch.max.wait.ms": "5", "linger.ms": "1"}) == {
        "fetch.wait.max.ms": "5",
        "linger.ms": "1",
    }
