"""The commands that ask Kafka itself: events as they arrive, and a Trigger taken back in time."""

from __future__ import annotations

import time
from itertools import islice

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from support.kafka import Kafka, MakeTopic

from knafka.core import contract
from knafka.core.contract import Egress, Sink
from knafka_cli.events.tailing import TailStart, TopicsMissing, tail_records
from knafka_cli.shared.moments import START_OF_TOPIC
from knafka_cli.triggers.rewinding import TriggerHasDispatchers, rewind

pytestmark = pytest.mark.kafka


def append(kafka: Kafka, topic: str, *values: str, partition: int = 0, at: int = 0) -> None:
    """`at`: milliseconds since the Unix epoch; 0 is now."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for each in values:
        producer.produce(topic, each.encode(), partition=partition, timestamp=at)
    assert producer.flush(30) == 0


def test_the_last_records_come_first_in_the_order_of_time_and_then_every_new_one(
    kafka: Kafka, topic: MakeTopic
) -> None:
    name = topic(partitions=2)
    now = int(time.time() * 1000)
    for number in range(6):
        append(kafka, name, f"old-{number}", partition=number % 2, at=now - 1000 + number)
    found = tail_records(
        {"bootstrap.servers": kafka.bootstrap_servers}, [name], TailStart(last=3), print
    )
    shown = [each.value() for each in islice(found, 3)]
    assert shown == [b"old-3", b"old-4", b"old-5"]
    append(kafka, name, "new-1", "new-2", partition=1)
    assert [each.value() for each in islice(found, 2)] == [b"new-1", b"new-2"]
    found.close()  # type: ignore[attr-defined]


def test_a_topic_that_is_not_there_is_an_error(kafka: Kafka) -> None:
    with pytest.raises(TopicsMissing, match="tail-of-nobody"):
        next(
            tail_records(
                {"bootstrap.servers": kafka.bootstrap_servers},
                ["tail-of-nobody"],
                TailStart(),
                print,
            )
        )


def test_a_tail_since_a_time_gives_what_several_topics_hold_since_then_in_order(
    kafka: Kafka, topic: MakeTopic
) -> None:
    now = int(time.time() * 1000)
    first, second = topic(partitions=2), topic()
    append(kafka, first, "too-old", at=now - 9000)
    append(kafka, first, "b", partition=1, at=now - 2000)
    append(kafka, second, "a", at=now - 3000)
    append(kafka, first, "c", at=now - 1000)
    connection = {"bootstrap.servers": kafka.bootstrap_servers}
    found = tail_records(
        connection, [first, second, "of-nobody"], TailStart(since=now / 1000 - 5), print
    )
    assert [each.value() for each in islice(found, 3)] == [b"a", b"b", b"c"]
    found.close()  # type: ignore[attr-defined]


@pytest.fixture
def egress(kafka: Kafka, topic: MakeTopic) -> Egress:
    """A Trigger of two partitions that has settled all ten events of each."""
    name = topic(partitions=2)
    began = int(time.time() * 1000) - 100_000
    for number in range(10):
        for partition in (0, 1):
            append(kafka, name, f"{number}", partition=partition, at=began + number * 10_000)
    made = Egress(
        namespace="shop", broker="main", trigger="mail", topic=name, group=f"group-{name}",
        dead_letter_topic="dead", kafka=contract.Kafka(bootstrap_servers=kafka.bootstrap_servers),
        subscriber=Sink(url="http://mail/"),
    )  # fmt: skip
    with_group(made).commit(
        offsets=[TopicPartition(name, number, 10, metadata="kept") for number in (0, 1)],
        asynchronous=False,
    )
    return made


def with_group(egress: Egress) -> Consumer:
    return Consumer({"bootstrap.servers": egress.kafka.bootstrap_servers, "group.id": egress.group})


def committed(egress: Egress) -> list[int]:
    places = [TopicPartition(egress.topic, number) for number in (0, 1)]
    return [each.offset for each in with_group(egress).committed(places, timeout=30)]


def test_a_trigger_goes_back_to_a_time_and_never_forward(egress: Egress) -> None:
    connection = {"bootstrap.servers": egress.kafka.bootstrap_servers}
    since = time.time() - 35
    assert rewind(connection, egress, since, dry_run=True) == 6
    assert committed(egress) == [10, 10]
    assert rewind(connection, egress, since, dry_run=False) == 6
    assert committed(egress) == [7, 7]
    assert rewind(connection, egress, time.time(), dry_run=False) == 0
    assert committed(egress) == [7, 7], "events that wait are not left out"
    assert rewind(connection, egress, START_OF_TOPIC, dry_run=False) == 14
    assert committed(egress) == [0, 0]


def test_a_trigger_that_delivers_is_left_alone(egress: Egress) -> None:
    connection = {"bootstrap.servers": egress.kafka.bootstrap_servers}
    member = with_group(egress)
    member.subscribe([egress.topic])
    deadline = time.monotonic() + 30
    while not member.assignment():
        member.poll(0.1)
        assert time.monotonic() < deadline
    with pytest.raises(TriggerHasDispatchers, match="shop/mail is delivering"):
        rewind(connection, egress, START_OF_TOPIC, dry_run=False)
    assert committed(egress) == [10, 10]
    member.close()
