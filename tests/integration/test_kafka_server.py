"""A node of our own, as a user meets it: started, killed, moved, refused, stopped."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TypeAlias

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from support.kafka import Kafka, MakeTopic

from knafka_local.kafka import kafka_server
from knafka_local.kafka.kafka_distribution import KafkaDistribution, LocalKafkaError
from knafka_local.kafka.kafka_server import KAFKA_STOP_TIMEOUT, KafkaServer, await_cluster
from knafka_local.processes.children import Child

pytestmark = pytest.mark.kafka

MakeServer: TypeAlias = Callable[..., KafkaServer]
VALUES = [b"value %d" % number for number in range(1000)]

STARTER = """
import asyncio, sys
from pathlib import Path
from knafka_local.kafka.kafka_distribution import obtain
from knafka_local.kafka.kafka_server import KafkaServer

async def main() -> None:
    server = KafkaServer(obtain(), Path(sys.argv[1]))
    await server.start()
    print(server.pid, flush=True)
    await server.wait()

asyncio.run(main())
"""


@pytest.fixture
async def make_server(
    kafka_distribution: KafkaDistribution, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[MakeServer]:
    made: list[KafkaServer] = []

    # Every character that means something else in a file or an argument that Kafka reads, in a
    # locale that lacks some of them.
    monkeypatch.setenv("LC_ALL", "POSIX")
    node = tmp_path / "Größe, 100 %i #1 ${x} 木 🎈" / "node"

    def make(directory: Path = node, port: int = 0, **properties: str) -> KafkaServer:
        settings = {key.replace("_", "."): value for key, value in properties.items()}
        made.append(KafkaServer(kafka_distribution, directory, port=port, properties=settings))
        return made[-1]

    yield make
    for server in made:
        await server.stop()


def write(bootstrap_servers: str, topic: str) -> None:
    """Write `VALUES` and wait until each is acknowledged by all replicas."""
    problems: list[KafkaError] = []
    producer = Producer({"bootstrap.servers": bootstrap_servers, "acks": "all"})
    for value in VALUES:
        producer.produce(
            topic, value, on_delivery=lambda error, _: problems.append(error) if error else None
        )
    assert producer.flush(30) == 0
    assert problems == []


def read(bootstrap_servers: str, topic: str) -> list[bytes | None]:
    """Everything in the topic's only partition."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap_servers, "group.id": "reader", "enable.auto.commit": False}
    )
    partition = TopicPartition(topic, 0, 0)
    consumer.assign([partition])
    _, end = consumer.get_watermark_offsets(partition, timeout=30)
    values: list[bytes | None] = []
    deadline = time.monotonic() + 30
    while len(values) < end and time.monotonic() < deadline:
        values += [record.value() for record in consumer.consume(len(VALUES), timeout=1)]
    consumer.close()
    return values


def create(bootstrap_servers: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result()


def runs(pid: int) -> bool:
    """Whether it still executes; a zombie that nobody reaped doesn't."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except FileNotFoundError:
        return False


def test_what_is_written_to_the_shared_kafka_is_read_back(kafka: Kafka, topic: MakeTopic) -> None:
    name = topic(partitions=1, retention_ms=60_000)
    write(kafka.bootstrap_servers, name)
    assert read(kafka.bootstrap_servers, name) == VALUES


async def test_a_killed_node_starts_again_with_every_acknowledged_record(
    make_server: MakeServer,
) -> None:
    server = make_server()
    await server.start()
    address, cluster_id = server.bootstrap_servers, server.cluster_id
    await asyncio.to_thread(create, address, "kept")
    await asyncio.to_thread(write, address, "kept")

    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)
    assert await server.wait() == -signal.SIGKILL
    assert server.pid is None

    await server.start()
    assert (server.bootstrap_servers, server.cluster_id) == (address, cluster_id)
    assert await asyncio.to_thread(read, address, "kept") == VALUES


async def test_a_node_that_could_not_load_its_consumer_groups_is_started_again(
    make_server: MakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KAFKA-16030: after `kill -9` under load the only node served no group of a partition any
    more, and nothing was delivered until somebody restarted it."""
    pids: list[int] = []
    until_ready = KafkaServer._wait_until_ready

    async def ready_without_groups_at_first(
        server: KafkaServer, node: Child, log_size_before: int
    ) -> None:
        await until_ready(server, node, log_size_before)
        pids.append(node.pid)
        if len(pids) == 1:
            with server.log_file.open("ab") as log:
                log.write(kafka_server.GROUPS_NOT_LOADED + b"consumer_offsets-0 with epoch 0\n")

    monkeypatch.setattr(KafkaServer, "_wait_until_ready", ready_without_groups_at_first)
    server = make_server()
    await server.start()
    assert len(pids) == 2
    assert server.pid == pids[1]
    assert not runs(pids[0])


async def test_a_directory_is_served_on_another_port_by_the_next_start(
    make_server: MakeServer,
) -> None:
    first = make_server()
    await first.start()
    await asyncio.to_thread(create, first.bootstrap_servers, "moved")
    await asyncio.to_thread(write, first.bootstrap_servers, "moved")
    began = time.monotonic()
    await first.stop()
    assert time.monotonic() - began < KAFKA_STOP_TIMEOUT
    assert await first.wait() == 128 + signal.SIGTERM

    second = make_server()
    await second.start()
    assert second.bootstrap_servers != first.bootstrap_servers
    assert second.cluster_id == first.cluster_id
    assert await asyncio.to_thread(read, second.bootstrap_servers, "moved") == VALUES


async def test_a_node_dies_with_its_killed_parent_and_its_directory_is_free_at_once(
    make_server: MakeServer, tmp_path: Path
) -> None:
    directory = tmp_path / "orphaned"
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", STARTER, str(directory), stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    orphan = int(await parent.stdout.readline())
    assert runs(orphan)
    parent.kill()
    await parent.wait()

    try:
        await make_server(directory).start()
        assert not runs(orphan)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(orphan, signal.SIGKILL)


async def test_a_node_that_ignores_sigterm_is_killed_in_bounded_time(
    make_server: MakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = make_server()
    await server.start()
    assert server.pid is not None
    os.kill(server.pid, signal.SIGSTOP)
    monkeypatch.setattr(kafka_server, "KAFKA_STOP_TIMEOUT", 0.2)
    await server.stop()
    assert await server.wait() == -signal.SIGKILL


async def test_a_taken_port_is_refused_with_two_ways_out(make_server: MakeServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(LocalKafkaError) as refusal:
            await make_server(port=port).start()
    assert f"port {port} is in use" in str(refusal.value)
    assert "--kafka-port" in str(refusal.value)
    assert f"--bootstrap-servers 127.0.0.1:{port}" in str(refusal.value)


async def test_another_cluster_that_answers_on_our_port_is_not_taken_for_ours(
    kafka: Kafka,
) -> None:
    with pytest.raises(LocalKafkaError, match="not ours"):
        await await_cluster(kafka.bootstrap_servers, "some-other-cluster-id")


async def test_a_directory_with_files_of_others_is_left_alone(
    make_server: MakeServer, tmp_path: Path
) -> None:
    (tmp_path / "holiday.jpg").touch()
    with pytest.raises(LocalKafkaError, match=r"holiday\.jpg, which is not Knafka's"):
        await make_server(tmp_path).start()
    assert os.listdir(tmp_path) == ["holiday.jpg"]


async def test_a_directory_of_another_kafka_is_refused(
    make_server: MakeServer, tmp_path: Path
) -> None:
    (tmp_path / "topics").mkdir()
    (tmp_path / "topics" / "meta.properties").write_text("version=1\nnode.id=7\ncluster.id=theirs")
    with pytest.raises(LocalKafkaError, match="node 7 of another Kafka"):
        await make_server(tmp_path).start()


async def test_a_directory_in_use_is_refused_while_its_node_runs(
    make_server: MakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = make_server()
    await running.start()
    monkeypatch.setattr(kafka_server, "KAFKA_LOCK_TIMEOUT", 0.1)
    with pytest.raises(LocalKafkaError, match="another Kafka runs on"):
        await make_server().start()
    assert running.pid is not None


async def test_a_node_that_cannot_start_says_why(make_server: MakeServer) -> None:
    server = make_server(log_retention_ms="soon")
    with pytest.raises(LocalKafkaError) as failure:
        await server.start()
    assert str(server.log_file) in str(failure.value)
    assert "Invalid value soon for configuration log.retention.ms" in str(failure.value)
    assert server.pid is None
