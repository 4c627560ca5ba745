"""A Trigger between a real Kafka and real dispatcher processes, and the drains asked of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from support.functions import FunctionProcess, dispatcher, drain
from support.kafka import Kafka, MakeTopic, transact

from knafka.clients.kafka.admin.kafka_admin import KafkaAdmin
from knafka.core import contract
from knafka.core.contract import Egress, Sink
from knafka.core.drain import DrainProgress, DrainRequest
from knafka.core.events.event import Event
from knafka.core.events.kafka_binding import RecordHeaders, read, to_record

SHORT = DrainRequest(idle=1.0)
LONG = DrainRequest(idle=300.0)


@dataclass
class TriggerWorld:
    """A Broker's topic in Kafka, and one Trigger's dispatchers."""

    kafka: Kafka
    make_topic: MakeTopic
    directory: Path
    partitions: int = 1
    topic: str = field(init=False)
    dead: str = field(init=False)
    _processes: int = 0

    def __post_init__(self) -> None:
        self.topic = self.make_topic(self.partitions)
        self.dead = self.make_topic()
        self._producer = Producer(
            {
                "bootstrap.servers": self.kafka.bootstrap_servers,
                "enable.idempotence": True,  # else refused batches end up last
                "linger.ms": 0,
                "message.max.bytes": 10_000_000,
            }
        )

    def egress(self, url: str, **more: Any) -> Egress:
        return Egress(
            namespace="ns", broker="broker", trigger="trigger",
            topic=self.topic, group=self.topic, dead_letter_topic=self.dead,
            kafka=contract.Kafka(bootstrap_servers=self.kafka.bootstrap_servers),
            subscriber=Sink(url=url),
            **{"shares_topic": False, **more},
        )  # fmt: skip

    def dispatcher(self, url: str, **more: Any) -> FunctionProcess:
        self._processes += 1
        log = self.directory / f"dispatcher-{self._processes}.log"
        return dispatcher(self.egress(url, **more), log)

    def send(
        self,
        *ids: str,
        key: str | None = None,
        data: bytes | None = b"data",
        passed: RecordHeaders | None = None,
        **attributes: str,
    ) -> None:
        """Store an event for each id; the key is its subject, or its id's first letter."""
        for each in ids:
            named = {"specversion": "1.0", "id": each, "source": "/s", "type": "t", **attributes}
            named["subject"] = key or each[0]
            self.store(*to_record(Event(named, data), passed))
        self.flush()

    def transact(self, count: int, *, commit: bool) -> None:
        """Store events in one transaction, as the replays do."""
        named = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t"}
        _, headers, value = to_record(Event(named, b"data"))
        values = [value] * count
        transact(self.kafka.bootstrap_servers, self.topic, values, headers=headers, commit=commit)

    def store(self, key: bytes | None, headers: RecordHeaders, value: bytes | None) -> None:
        self._producer.produce(self.topic, value=value, key=key, headers=headers)  # type: ignore[arg-type]

    def flush(self) -> None:
        assert self._producer.flush(10) == 0

    async def lag(self) -> int:
        admin = KafkaAdmin({"bootstrap.servers": self.kafka.bootstrap_servers})
        return (await admin.lags([self.topic], self.topic))[self.topic].total

    async def records(self, topic: str) -> Sequence[Any]:
        admin = KafkaAdmin({"bootstrap.servers": self.kafka.bootstrap_servers})
        return await admin.read_last(topic, 1000)

    async def letters(self) -> dict[str, dict[str, str]]:
        """The dead letters' attributes by id."""
        events = [read(each.headers(), each.value()) for each in await self.records(self.dead)]
        return {event.attributes["id"]: event.attributes for event in events}


async def drained(function: FunctionProcess, request: DrainRequest = SHORT) -> DrainProgress:
    """One drain to its end."""
    async with asyncio.timeout(60):
        await function.ready()
        lines = [line async for line in drain(function, request)]
    assert lines[-1].ended is not None
    return lines[-1]


class Held:
    """A drain that goes on in the background until it ends or is dropped."""

    def __init__(self, function: FunctionProcess) -> None:
        self.lines: list[DrainProgress] = []
        self._task = asyncio.create_task(self._hold(function))

    async def _hold(self, function: FunctionProcess) -> None:
        await function.ready()
        async for line in drain(function, LONG):
            self.lines.append(line)

    async def ended(self) -> DrainProgress:
        await self._task
        return self.lines[-1]

    async def hang_up(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
