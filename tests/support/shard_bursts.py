"""Bursts that a shard of two Egresses delivers, in processes that are kept up as a cluster keeps pods.

A process that ends is started again, and is asked again for its drain, as the scaler's requests are:
`deaths` counts those that nobody asked for.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final

from support.contracts import KafkaContract
from support.functions import FunctionProcess
from support.kafka import fill
from support.traffic import CountingSubscriber

from knafka.clients.kafka_admin import KafkaAdmin
from knafka.core import contract
from knafka.core.contract import Delivery, Egress, Shard, Sink
from knafka.core.documents import dump
from knafka.core.drain import ShardProgress
from knafka.settings import SHARD
from knafka_local.kafka_server import KafkaServer

KEYS: Final = 100
PARTITIONS: Final = 3
TAKES: Final = 0.02
"""Seconds that a subscriber takes: what is in flight is then a small part."""
IN_FLIGHT: Final = 50
"""Of each Egress."""
LATE: Final = 1.5
"""Seconds in which what comes late comes twice."""
ASK_AGAIN: Final = 0.2
"""Seconds between two requests."""


class Keeper:
    """Keeps one process of the shard up and draining, until it is told to let it end."""

    def __init__(self, function: FunctionProcess, shard: Shard) -> None:
        self.function = function
        self.deaths: list[int] = []
        """How it ended each time that nobody wanted it to."""
        self.contract = -1
        """The position that it delivers by."""
        self.killed = False
        """Whether its next end is meant."""
        self._shard = shard
        self._over = False
        self._task = asyncio.create_task(self._keep())

    async def _keep(self) -> None:
        while not self._over:
            if (code := self.function.process.returncode) is not None:
                if not self.killed:
                    self.deaths.append(code)
                self.killed = False
                await self.function.start()
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                if (await self.function.get("/health/readiness"))[0] == 200:
                    await self._drain()
            await asyncio.sleep(ASK_AGAIN)

    async def _drain(self) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.function.port)
        try:
            body = json.dumps({"shard": self._shard.group, "idle": "PT1H"}).encode()
            head = b"POST /drain HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
            writer.write(head + body)
            async for line in reader:
                if line.startswith(b"{"):  # between the lines are the sizes of the chunks
                    self.contract = ShardProgress.model_validate_json(line).contract
                if line == b"0\r\n":
                    return
        finally:
            writer.close()

    async def terminate(self) -> int:
        """SIGTERM, for good."""
        self._over = True
        code = await self.function.terminate(within=20)
        await self.end()
        return code

    async def kill(self) -> None:
        """`kill -9`; it is started again."""
        self.killed = True
        await self.function.kill()

    async def end(self) -> None:
        self._over = True
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


@dataclass
class Receiving:
    """A subscriber that notes when what arrived."""

    times: list[float] = field(default_factory=list)
    subscriber: CountingSubscriber = field(init=False)

    async def answer(self, key: str, number: int) -> int:
        self.times.append(time.monotonic())
        await asyncio.sleep(TAKES)
        return 200

    @property
    def distinct(self) -> int:
        return self.subscriber.arrivals.distinct()

    @property
    def twice(self) -> int:
        return self.subscriber.attempts - self.distinct

    @property
    def longest_pause(self) -> float:
        return max(b - a for a, b in pairwise(self.times))

    @property
    def is_in_order(self) -> bool:
        """Within each key."""
        arrivals = self.subscriber.arrivals
        return all(arrivals.first(key) == sorted(arrivals.first(key)) for key in arrivals.by_key)


class ShardBurst:
    """A topic with a burst in it, a contract for two Egresses, and processes that deliver."""

    def __init__(self, kafka: KafkaServer, count: int, logs: Path, stack: AsyncExitStack) -> None:
        self.kafka = kafka
        self.count = count // KEYS * KEYS
        self.receiving = [Receiving(), Receiving()]
        self.keepers: list[Keeper] = []
        self._logs = logs
        self._stack = stack

    async def start(self) -> None:
        bootstrap = self.kafka.bootstrap_servers
        admin = KafkaAdmin({"bootstrap.servers": bootstrap})
        await admin.ensure_topic("events", PARTITIONS, 1, {})
        await admin.ensure_topic("dead", 1, 1, {})
        await admin.ensure_topic("contract", 1, 1, {"cleanup.policy": "compact"})
        for number, each in enumerate(self.receiving):
            each.subscriber = await self._stack.enter_async_context(CountingSubscriber(each.answer))
            await admin.ensure_committed(self.egress(number).group, "events")
        await admin.close()
        self.contract = KafkaContract(bootstrap, "contract")
        self.contract.write("shard", *map(self.egress, range(len(self.receiving))))
        fill(bootstrap, "events", KEYS, self.count // KEYS)

    def egress(self, number: int, retry: int = 10) -> Egress:
        return Egress(
            namespace="test", broker="burst", trigger=f"t-{number}", topic="events",
            group=f"group-{number}", dead_letter_topic="dead",
            subscriber=Sink(url=self.receiving[number].subscriber.url),
            kafka=contract.Kafka(bootstrap_servers=self.kafka.bootstrap_servers),
            delivery=Delivery(retry=retry), max_in_flight=IN_FLIGHT,
        )  # fmt: skip

    async def dispatch(self, count: int = 1) -> list[Keeper]:
        """As many processes more."""
        found = []
        for _ in range(count):
            shard = Shard(
                group="shard",
                kafka=contract.Kafka(bootstrap_servers=self.kafka.bootstrap_servers),
                contract_topic=self.contract.topic,
            )
            log = self._logs / f"shard-{len(self.keepers)}.log"
            function = FunctionProcess("knafka.dispatcher", {SHARD: json.dumps(dump(shard))}, log)
            await self._stack.enter_async_context(function)
            await function.ready()
            keeper = Keeper(function, shard)
            self._stack.push_async_callback(keeper.end)
            self.keepers.append(keeper)
            found.append(keeper)
        return found

    async def reach(self, part: float, within: float = 240) -> None:
        """Until each subscriber has got this part."""
        for each in self.receiving:
            await each.subscriber.arrivals.reach(int(self.count * part), within)

    @property
    def deaths(self) -> list[int]:
        return [code for each in self.keepers for code in each.deaths]


@contextlib.asynccontextmanager
async def shard_burst(kafka: KafkaServer, count: int, logs: Path) -> AsyncIterator[ShardBurst]:
    async with AsyncExitStack() as stack:
        burst = ShardBurst(kafka, count, logs, stack)
        await burst.start()
        yield burst
