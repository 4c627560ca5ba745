"""A receiver process on a topic of its own in real Kafka."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.functions import FunctionProcess, receiver
from support.receiver_requests import (
    ingress,
)
from support.wire import Wire, connected

from knafka.clients.kafka.admin.kafka_admin import KafkaAdmin
from knafka.ports.log import Record

LIMIT = 300_000
"""The largest event, in bytes."""


@dataclass(frozen=True, slots=True)
class Running:
    process: FunctionProcess
    kafka: KafkaAdmin
    topic: str

    def connect(self) -> AbstractAsyncContextManager[Wire]:
        return connected(self.process.port)

    async def status(self, wire_bytes: bytes) -> int:
        async with self.connect() as wire:
            wire.send(wire_bytes)
            return (await wire.response()).status

    async def records(self, limit: int = 1000) -> list[Record]:
        return list(await self.kafka.read_last(self.topic, limit))


@asynccontextmanager
async def running(
    bootstrap_servers: str,
    log: Path,
    *,
    limit: int = LIMIT,
    environment: Mapping[str, str] | None = None,
    **of_ingress: Any,
) -> AsyncIterator[Running]:
    """A receiver on a topic of its own; `environment` is what it has beside its contract."""
    admin = KafkaAdmin({"bootstrap.servers": bootstrap_servers})
    topic = f"receiver-{uuid.uuid4().hex}"
    await admin.ensure_topic(topic, 1, 1, {})
    served = ingress(bootstrap_servers, topic, max_event_bytes=limit, **of_ingress)
    process = receiver([served], log)
    process.environment |= environment or {}
    async with process:
        await process.ready()
        yield Running(process, admin, topic)
    await admin.delete_topic(topic)
