"""Partitions of a Sensor that wait until Kafka says whether their logs have lost their ends.

librdkafka keeps a partition's pause, and drops what it has fetched of it; so these are read on a
real Kafka (`kafka_undecided_partitions`).
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, TopicPartition
from support.kafka import MakeTopic
from support.logs import SOON
from support.transactions import Holder, KafkaCluster, values

from knafka.clients.kafka.consumers import kafka_elections, kafka_undecided_partitions
from knafka.clients.kafka.kafka_commits import end_epochs
from knafka.core.sensor.order import Place, Taken
from knafka.core.sensor.records import commit_metadata
from knafka.ports.log import OffsetAndMetadata
from knafka.ports.transactions import Partition, TransactionalLog

pytestmark = pytest.mark.kafka

RECORDS = 6
TAKEN = commit_metadata({}, None, Taken(RECORDS, Place(7, 0, RECORDS - 1)))
COMMITS = {0: 0, 1: 3, 2: 3}
"""Committed offsets; the last partition's commit has no metadata."""


@pytest.fixture
def trigger_topic(kafka_cluster: KafkaCluster, topic: MakeTopic) -> str:
    """A topic on which the group has made `COMMITS`."""
    name = topic(partitions=len(COMMITS))
    commits = []
    for number, offset in COMMITS.items():
        expected = [b"%d-%d" % (number, each) for each in range(RECORDS)]
        kafka_cluster.append(name, *expected, partition=number)
        commits.append(TopicPartition(name, number, offset, TAKEN if number < 2 else "", 0))
    consumer = Consumer({**kafka_cluster.connection, "group.id": kafka_cluster.group})
    consumer.commit(offsets=commits, asynchronous=False)
    consumer.close()
    return name


def read_all_waiting(member: TransactionalLog, is_done: Callable[[], object]) -> list[bytes | None]:
    """Read until it is done, then until nothing comes."""
    read: list[bytes | None] = []
    give_up_at = time.monotonic() + SOON
    while time.monotonic() < give_up_at:
        some = values(member.read(100, 0.3))
        read += some
        if not some and is_done():
            break
    assert is_done()
    return sorted(read, key=str)


def test_what_is_held_back_is_read_from_its_commit_once_kafka_has_answered(
    kafka_cluster: KafkaCluster, trigger_topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = [True]
    monkeypatch.setattr(
        kafka_elections,
        "end_epochs",
        lambda *arguments: {} if silent else end_epochs(*arguments),
    )
    monkeypatch.setattr(kafka_undecided_partitions, "MIN_ASK_INTERVAL", 0.05)
    holder = Holder()
    member = kafka_cluster.member(trigger_topic, claims=holder)
    first = read_all_waiting(member, lambda: holder.held)
    assert first == [b"2-3", b"2-4", b"2-5"]
    assert holder.held == {Partition(trigger_topic, 2)}

    silent.clear()
    rest = read_all_waiting(member, lambda: len(holder.held) == len(COMMITS))
    assert rest == [b"0-%d" % each for each in range(RECORDS)] + [b"1-3", b"1-4", b"1-5"]
    assert holder.committed[Partition(trigger_topic, 1)] == OffsetAndMetadata(3, TAKEN)
    assert holder.revocations == []
    kafka_cluster.append(trigger_topic, b"1-6", partition=1)
    assert read_all_waiting(member, lambda: True) == [b"1-6"]


def test_what_is_held_back_goes_to_another_member_and_is_read_there(
    kafka_cluster: KafkaCluster, trigger_topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_elections, "end_epochs", lambda *arguments: {})
    holder, other_holder = Holder(), Holder()
    member = kafka_cluster.member(trigger_topic, claims=holder)
    read_all_waiting(member, lambda: holder.held)
    kafka_cluster.close_member(member)
    assert holder.held == set()

    monkeypatch.setattr(kafka_elections, "end_epochs", end_epochs)
    other = kafka_cluster.member(trigger_topic, claims=other_holder)
    read = read_all_waiting(other, lambda: len(other_holder.held) == len(COMMITS))
    assert len(read) == sum(RECORDS - offset for offset in COMMITS.values())
