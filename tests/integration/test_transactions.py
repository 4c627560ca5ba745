"""Transactions on a real Kafka that refuses or is silent: `kafka_transactions`."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from support.kafka import Kafka, MakeTopic
from support.transactions import (
    Holder,
    KafkaCluster,
    everything,
    offsets_behind,
    read,
    values,
    wait_until,
)

from knafka.clients.kafka.consumers import kafka_bounded_reader
from knafka.clients.kafka.consumers.kafka_group_consumer import GroupProtocol
from knafka.clients.kafka.producers import kafka_transactional_producer
from knafka.clients.kafka.producers.kafka_transactions import KafkaTransactions
from knafka.core.errors import LogError
from knafka.ports.log import OffsetAndMetadata
from knafka.ports.transactions import Output, Partition, RecordTooLarge, TransactionAborted
from knafka_local.kafka.kafka_distribution import KafkaDistribution
from knafka_local.kafka.kafka_server import KafkaServer

pytestmark = pytest.mark.kafka

SOON = 5.0
"""Seconds, less than `TRANSACTION_TIMEOUT`."""


@pytest.fixture
def source(topic: MakeTopic) -> str:
    return topic(partitions=2)


@pytest.fixture
def out(topic: MakeTopic) -> str:
    return topic()


def output(topic: str, value: bytes = b"x", key: bytes = b"k") -> Output:
    return Output(topic, key, value, [])


def kafka_member(kafka_cluster: KafkaCluster, *topics: str, claims: Holder) -> KafkaTransactions:
    member = kafka_cluster.member(*topics, claims=claims)
    assert isinstance(member, KafkaTransactions)
    return member


def test_kafka_refuses_what_a_member_of_an_earlier_generation_commits(
    kafka_cluster: KafkaCluster, source: str, out: str
) -> None:
    """BUS-S9: a member that doesn't know yet that its partitions have gone has no effect."""
    for number in (0, 1):
        kafka_cluster.append(source, b"%d" % number, partition=number)
    first_holder, second_holder = Holder(), Holder()
    first = kafka_member(kafka_cluster, source, claims=first_holder)
    behind = offsets_behind(read(first, 2))
    identity, owned = first._member.identity, dict(first._member.owned)
    second = kafka_member(kafka_cluster, source, claims=second_holder)
    give_up_at = time.monotonic() + 30
    while not second_holder.held and time.monotonic() < give_up_at:
        first.read(10, 0.05)
        second.read(10, 0.05)
    (gone,) = second_holder.held
    first._member.identity = identity
    first._member.owned.update(owned)
    with pytest.raises(TransactionAborted):
        first.commit([output(out)], behind)
    # Not even without offsets, if something is committed of what it has.
    first._member.identity = identity
    first._member.owned[gone] = OffsetAndMetadata(0)
    with pytest.raises(TransactionAborted):
        first.commit([output(out)], {})
    del first._member.owned[gone]
    assert everything(second, out) == []
    assert second.committed(source) == {}


def test_one_that_is_no_member_commits_nothing(
    kafka_cluster: KafkaCluster, source: str, out: str
) -> None:
    """Kafka would take it, as it takes offsets from a nobody."""
    kafka_cluster.append(source, b"1")
    holder = Holder()
    member = kafka_member(kafka_cluster, source, claims=holder)
    with pytest.raises(TransactionAborted):
        member.commit([output(out)], {Partition(source, 0): OffsetAndMetadata(1)})
    read(member, 1)
    assert member._member.identity is not None
    member._member.consumer.unsubscribe()
    wait_until(lambda: not holder.held, member)
    assert member._member.identity is None
    with pytest.raises(TransactionAborted):
        member.commit([output(out)], {})
    assert everything(member, out) == []


@pytest.mark.parametrize("commit", [True, False], ids=["committed", "aborted"])
def test_what_is_assigned_waits_for_offsets_of_a_transaction_under_way(
    kafka_cluster: KafkaCluster, source: str, commit: bool
) -> None:
    """BUS-23: else the records would be worked off twice."""
    kafka_cluster.append(source, b"1", b"2")
    producer = Producer({**kafka_cluster.connection, "transactional.id": uuid.uuid4().hex})
    producer.init_transactions(30)
    producer.begin_transaction()
    nobody = Consumer(
        {**kafka_cluster.connection, "group.id": kafka_cluster.group}
    ).consumer_group_metadata()
    offsets = [TopicPartition(source, 0, 1, "by another")]
    producer.send_offsets_to_transaction(offsets, nobody, 30)
    end = producer.commit_transaction if commit else producer.abort_transaction
    timer = threading.Timer(1.0, end, [30])
    timer.start()
    holder = Holder()
    found = read(kafka_cluster.member(source, claims=holder), 1 if commit else 2)
    timer.join()
    assert values(found) == ([b"2"] if commit else [b"1", b"2"])
    committed = OffsetAndMetadata(1, "by another") if commit else None
    assert holder.committed[Partition(source, 0)] == committed


_KILLED = """
import sys, time
from confluent_kafka import Producer
from knafka.clients.kafka.producers.kafka_transactions import KafkaTransactions
from knafka.ports.transactions import Output

class Claims:
    def find_unready(self, partitions): return ()
    def on_assigned(self, partitions): pass
    def on_revoked(self, partitions): pass

servers, group, source, out, identity = sys.argv[1:]
member = KafkaTransactions({"bootstrap.servers": servers}, group, [source], Claims(), identity)
while not (records := member.read(10, 0.1)):
    pass
def stop(timeout):
    print("under way", flush=True)
    time.sleep(600)
producer = member._producer
class Producer:
    def __getattr__(self, name): return getattr(inner, name)
    commit_transaction = staticmethod(stop)
inner, producer._producer = producer._producer, Producer()
from support.transactions import offsets_behind
member.commit([Output(out, b"k", b"lost", [])], offsets_behind(records))
"""


def test_the_successor_of_a_killed_process_waits_for_no_timeout(
    kafka: Kafka, source: str, out: str
) -> None:
    """Its open transaction would hold every reader up for `transaction.timeout.ms`."""
    kafka_cluster = KafkaCluster(kafka.bootstrap_servers, GroupProtocol.CONSUMER)
    kafka_cluster.append(source, b"1")
    identity = f"slot-{uuid.uuid4().hex}"
    arguments = (kafka.bootstrap_servers, kafka_cluster.group, source, out, identity)
    with subprocess.Popen(
        [sys.executable, "-c", _KILLED, *arguments],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"under way\n"
        process.send_signal(signal.SIGKILL)
    try:
        successor = kafka_cluster.member(source, transactional_id=identity)
        started = time.monotonic()
        assert everything(successor, out) == []
        assert successor.committed(source) == {}
        assert time.monotonic() - started < SOON
    finally:
        kafka_cluster.close()


def test_read_all_begins_where_the_log_does(
    kafka_cluster: KafkaCluster, source: str, out: str
) -> None:
    kafka_cluster.append(out, b"1", b"2", b"3")
    member = kafka_cluster.member(source)
    admin = AdminClient(kafka_cluster.connection)
    for deleted in admin.delete_records([TopicPartition(out, 0, 2)]).values():
        deleted.result(30)
    assert values(everything(member, out)) == [b"3"]
    for deleted in admin.delete_records([TopicPartition(out, 0, 3)]).values():
        deleted.result(30)
    assert everything(member, out) == []
    assert member.ends(out) == {0: 3}


def test_records_that_fit_one_by_one_are_not_too_large_together(
    kafka_cluster: KafkaCluster, source: str, topic: MakeTopic
) -> None:
    """A topic's limit is for the batch in which they come."""
    out = topic(max_message_bytes=10_000)
    kafka_cluster.append(source, b"1")
    member = kafka_cluster.member(source)
    fitting = [output(out, b"x" * 5_000, b"%d" % number) for number in range(10)]
    with pytest.raises(TransactionAborted) as raised:
        member.commit(fitting, offsets_behind(read(member, 1)))
    assert not raised.value.too_large
    member.commit(fitting, offsets_behind(read(member, 1)))
    assert len(everything(member, out)) == 10
    with pytest.raises(RecordTooLarge) as too_large:
        member.commit([*fitting, output(out, b"x" * 20_000, b"large")], {})
    assert too_large.value.key == b"large"


def test_read_all_gives_up_where_there_is_no_progress(
    kafka_cluster: KafkaCluster, source: str, out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_bounded_reader, "STALLED_READ_TIMEOUT", 1.0)
    transaction = kafka_cluster.begin(out, b"1")
    member = kafka_cluster.member(source)
    with pytest.raises(LogError, match=f"partition 0 of {out} can't be read beyond offset 0 of 1"):
        everything(member, out)
    transaction.end(True)
    assert values(everything(member, out)) == [b"1"]


@pytest.mark.slow
async def test_a_broker_with_the_classic_protocol_alone_is_read_by_that(
    kafka_distribution: KafkaDistribution, tmp_path: Path
) -> None:
    properties = {"group.coordinator.rebalance.protocols": "classic"}
    server = KafkaServer(kafka_distribution, tmp_path / "kafka", properties=properties)
    await server.start()

    def wait_until_it_has_failed(member: KafkaTransactions) -> None:
        """On a busy machine the broker refuses the protocol before the first poll."""
        own = member._member
        with pytest.raises(KafkaException, match="Fatal"):
            list(iter(lambda: own.consumer.subscribe(own._topics), "never"))
        own._heartbeat_at = 0

    def use() -> None:
        kafka_cluster = KafkaCluster(server.bootstrap_servers, GroupProtocol.CONSUMER)
        source, out = kafka_cluster.topic(), kafka_cluster.topic()
        kafka_cluster.append(source, b"1")
        member = kafka_member(kafka_cluster, source, claims=Holder())
        wait_until_it_has_failed(member)
        member.commit([output(out)], offsets_behind(read(member, 1)))
        assert member._member.protocol is GroupProtocol.CLASSIC
        assert len(everything(member, out)) == 1
        kafka_cluster.close()

    try:
        await asyncio.to_thread(use)
    finally:
        await server.stop()


@pytest.mark.slow
async def test_without_kafka_reads_give_nothing_and_the_rest_ends_within_a_bound(
    own_kafka: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SEND_TIMEOUT", "END_TIMEOUT"):
        monkeypatch.setattr(kafka_transactional_producer, name, 2.0)
    monkeypatch.setattr(kafka_bounded_reader, "BOUNDED_READ_REQUEST_TIMEOUT", 2.0)
    kafka_cluster = KafkaCluster(own_kafka.bootstrap_servers, GroupProtocol.CONSUMER)

    def fill() -> tuple[KafkaTransactions, str, str]:
        source, out = kafka_cluster.topic(), kafka_cluster.topic()
        kafka_cluster.append(source, b"1")
        return kafka_member(kafka_cluster, source, claims=Holder()), source, out

    def use(member: KafkaTransactions, source: str, out: str) -> None:
        behind = offsets_behind(read(member, 1))
        loop.call_soon_threadsafe(away.set)
        give_up_at = time.monotonic() + 30
        while not stopped and time.monotonic() < give_up_at:
            assert list(member.read(10, 0.1)) == []
        assert list(member.read(10, 0.5)) == []
        started = time.monotonic()
        with pytest.raises(LogError):
            member.commit([output(out)], behind)
        with pytest.raises(LogError):
            member.ends(source)
        member.close(2.0)
        assert time.monotonic() - started < 20

    loop, away, stopped = asyncio.get_running_loop(), asyncio.Event(), []
    member, source, out = await asyncio.to_thread(fill)
    using = asyncio.create_task(asyncio.to_thread(use, member, source, out))
    await away.wait()
    await own_kafka.stop()
    stopped.append(True)
    await using
