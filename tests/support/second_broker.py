"""A second broker for a node of our own: whose end leaves partitions without a leader."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from confluent_kafka.admin import AdminClient

from knafka_local.kafka.kafka_distribution import KafkaDistribution
from knafka_local.kafka.kafka_server import (
    CONTROLLER,
    DEVELOPMENT_NODE,
    KAFKA_JVM_FLAGS,
    KafkaServer,
)

NODE_ID = 2


@asynccontextmanager
async def second_broker(
    distribution: KafkaDistribution, first: KafkaServer, directory: Path
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Running beside `first`, and killed at the end, if not before."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"CLIENTS://127.0.0.1:{free.getsockname()[1]}"
    topics = directory / "topics"
    topics.mkdir(parents=True)
    named = {"version": "1", "node.id": str(NODE_ID), "cluster.id": first.cluster_id}
    _write(topics / "meta.properties", named)
    _write(
        directory / "server.properties",
        {
            "process.roles": "broker",
            "node.id": str(NODE_ID),
            "controller.quorum.voters": f"1@{first.address(CONTROLLER)}",
            "listeners": address,
            "advertised.listeners": address,
            "inter.broker.listener.name": "CLIENTS",
            "controller.listener.names": CONTROLLER,
            "listener.security.protocol.map": f"CLIENTS:PLAINTEXT,{CONTROLLER}:PLAINTEXT",
            "log.dirs": str(topics),
            **DEVELOPMENT_NODE,
        },
    )
    with (directory / "kafka.log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            distribution.java,
            *KAFKA_JVM_FLAGS,
            "kafka.Kafka",
            str(directory / "server.properties"),
            env={**os.environ, "CLASSPATH": distribution.class_path},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        admin = AdminClient({"bootstrap.servers": first.bootstrap_servers, "log_level": 0})
        async with asyncio.timeout(60):
            while NODE_ID not in await asyncio.to_thread(_brokers, admin):
                assert process.returncode is None, (directory / "kafka.log").read_text()[-3000:]
                await asyncio.sleep(0.1)
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def _brokers(admin: AdminClient) -> set[int]:
    return set(admin.list_topics(timeout=10).brokers)


def _write(path: Path, properties: dict[str, str]) -> None:
    path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
