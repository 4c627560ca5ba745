"""A dispatcher of a shard in memory, for looptime's clock."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from functools import partial
from typing import Any

from support.contracts import MemoryContract
from support.dispatchers import Exchange
from support.drains import TOPIC, Answer, ScriptedSubscriber, World, accept
from support.logs import shared_memory
from support.memory.admin import MemoryAdmin
from support.memory.log import MemoryLog, MemoryWriter
from support.memory.shared import MemoryMember, MemoryOffsets, MemoryPositionedReader
from support.memory.tail import memory_dead_letters

from knafka.core.contract import Egress, Kafka
from knafka.core.contract import Shard as Contract
from knafka.core.documents import dump
from knafka.core.drain import ShardProgress
from knafka.dispatcher.engine.clients import Clients
from knafka.dispatcher.engine.sending.broker_letters import BrokerDeadLetters
from knafka.dispatcher.function import Dispatcher
from knafka.dispatcher.shared.record import SharedParser
from knafka.dispatcher.shared.topic import SharedTopic
from knafka.ports.log import Assignment, LogReader, LogWriter
from knafka.ports.shared_log import PositionedReader
from knafka.ports.subscriber import Subscriber
from knafka.settings import SHARD


class LateMember(MemoryMember):
    """Is assigned its partitions `seconds` after it has joined."""

    def __init__(
        self, seconds: float, memory: MemoryLog, group: str, assignment: Assignment
    ) -> None:
        super().__init__(memory, group, TOPIC, assignment)
        self._seconds = seconds

    async def serve(self, timeout: float) -> None:
        waiting, self._seconds = self._seconds, 0.0
        await asyncio.sleep(waiting)
        await super().serve(timeout)


class Shard:
    """A dispatcher and what it works with: it is its own `ShardClients`."""

    def __init__(self, world: World, name: str = "shard") -> None:
        self.world = world
        self.name = name
        self.contract = MemoryContract(world.log)
        self.writer: LogWriter = MemoryWriter(world.log)
        self.subscriber: Subscriber = ScriptedSubscriber(accept)
        self.egresses: list[Egress] = []
        self.subscribers: list[ScriptedSubscriber] = []
        self.among: list[Callable[[], int]] = []
        self.start_again()

    def start_again(self) -> None:
        """Another process, which isn't started."""
        self.broker_dead_letters: BrokerDeadLetters | None = None
        self.shared = shared_memory(self.world.log, self.name, TOPIC)
        self.dispatcher = Dispatcher(connect_shard=lambda shard: self)

    def join_after(self, seconds: float) -> None:
        """Another process, which waits so long for its partitions, as Kafka has it wait."""
        self.start_again()
        log = self.world.log
        self.shared = SharedTopic(
            TOPIC,
            partial(LateMember, seconds, log, self.name),
            partial(MemoryPositionedReader, log, TOPIC),
            MemoryOffsets(log),
        )

    def add(self, number: int, answer: Answer = accept, **changes: Any) -> Egress:
        """An Egress that isn't in the contract yet, unless the dispatcher is still to start."""
        names = {"trigger": f"trigger-{number}", "group": f"group-{number}"}
        self.egresses.append(self.world.egress.model_copy(update={**names, **changes}))
        self.subscribers.append(ScriptedSubscriber(answer))
        return self.egresses[-1]

    def clients_for(self, egress: Egress, among: Callable[[], int]) -> Clients:
        groups = [each.group for each in self.egresses]
        subscriber = self.subscribers[groups.index(egress.group)]
        self.among.append(among)
        topics = MemoryAdmin(self.world.log)
        if self.broker_dead_letters is None:
            self.broker_dead_letters = memory_dead_letters(
                egress, self.world.log, self.writer, topics
            )
        return Clients(
            self._opener(egress),
            self.writer,
            subscriber,
            topics,
            self.broker_dead_letters,
            SharedParser(),
        )

    def _opener(self, egress: Egress) -> Any:
        def open_reader(assignment: Assignment) -> LogReader:
            return self.shared.open_reader(egress.group, assignment)

        return open_reader

    def open_contract(self) -> PositionedReader:
        return MemoryPositionedReader(self.world.log, self.contract.topic)

    async def close(self) -> None:
        await self.shared.close()

    async def start(self, **environment: str) -> None:
        """Ready when it returns; all Egresses so far are in the contract."""
        self.contract.write(self.name, *self.egresses)
        await self.begin(**environment)

    async def begin(self, **environment: str) -> None:
        """Ready when it returns, with the contract as it is."""
        await self.dispatcher.start({SHARD: json.dumps(dump(self.document))} | environment)
        side = self.dispatcher._side
        assert side is not None
        await side._follower.wait_until_ready()  # type: ignore[attr-defined]

    @property
    def document(self) -> Contract:
        kafka = Kafka(bootstrap_servers="memory:1")
        return Contract(group=self.name, kafka=kafka, contract_topic=self.contract.topic)

    def drain(self, **request: str) -> Exchange:
        body = json.dumps({"shard": self.name, **request}).encode()
        return Exchange(self.dispatcher, "POST", "/drain", body + b"\n")

    async def ask(self, method: str, path: str, body: bytes = b"") -> Exchange:
        exchange = Exchange(self.dispatcher, method, path, body)
        await exchange.task
        return exchange

    def committed(self, number: int) -> int:
        committed = self.world.log.group(f"group-{number}").committed
        return sum(each.offset for each in committed.values())


def lines_of(exchange: Exchange) -> list[ShardProgress]:
    return [ShardProgress.model_validate_json(line) for line in exchange.body.splitlines()]
