"""Bursts that a shard of two Egresses delivers, in processes that are kept up as pods are.

A process that ends is started again, and asked again for its drain, as the scaler does.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final, Protocol

from support.contracts import KafkaContract
from support.functions import FunctionProcess
from support.kafka import fill
from support.traffic import CountingSubscriber

from knafka.clients.kafka.admin.kafka_admin import KafkaAdmin
from knafka.core import contract
from knafka.core.contract import Delivery, Egress, Shard, Sink
from knafka.core.documents import dump
from knafka.core.drain import ShardProgress
from knafka.settings import SHARD

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
SOON: Final = 60.0


class HasAddress(Protocol):
    """A Kafka, whether it is a test's own or not."""

    @property
    def bootstrap_servers(self) -> str: ...


class Keeper:
    """Keeps one process of the shard up and draining, until `terminate`."""

    def __init__(self, function: FunctionProcess, shard: Shard) -> None:
        self.function = function
        self.deaths: list[int] = []
        """How it ended each time that nobody wanted it to."""
        self.contract = -1
        """The position that it delivers by."""
        self._shard = shard
        self._killed = False
        """Whether its next end is wanted."""
        self._over = False
        self._task = asyncio.create_task(self._keep())

    async def _keep(self) -> None:
        while not self._over:
            if (code := self.function.process.returncode) is not None:
                if not self._killed:
                    self.deaths.append(code)
                self._killed = False
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
        self._killed = True
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

    def __init__(self, kafka: HasAddress, count: int, logs: Path, stack: AsyncExitStack) -> None:
        self.kafka = kafka
        self.events = f"burst-{uuid.uuid4().hex}"
        self.count = count // KEYS * KEYS
        self.receiving = [Receiving(), Receiving()]
        self.keepers: list[Keeper] = []
        self._logs = logs
        self._stack = stack

    async def start(self) -> None:
        bootstrap = self.kafka.bootstrap_servers
        admin = KafkaAdmin({"bootstrap.servers": bootstrap})
        await admin.ensure_topic(self.events, PARTITIONS, 1, {})
        rules = f"{self.events}-rules"
        await admin.ensure_topic(rules, 1, 1, {"cleanup.policy": "compact"})
        for number, each in enumerate(self.receiving):
            each.subscriber = await self._stack.enter_async_context(CountingSubscriber(each.answer))
            await admin.ensure_committed(self.egress(number).group, self.events)
        await admin.close()
        self.contract = KafkaContract(bootstrap, rules)
        self.contract.write(self.shard, *map(self.egress, range(len(self.receiving))))
        fill(bootstrap, self.events, KEYS, self.count // KEYS)

    async def clean_up(self) -> None:
        admin = KafkaAdmin({"bootstrap.servers": self.kafka.bootstrap_servers})
        for topic in (self.events, self.contract.topic):
            await admin.delete_topic(topic)
        await admin.close()

    @property
    def shard(self) -> str:
        return f"{self.events}-shard"

    def egress(self, number: int, retry: int = 10) -> Egress:
        return Egress(
            namespace="test", broker="burst", trigger=f"t-{number}", topic=self.events,
            group=f"{self.events}-{number}", dead_letter_topic="unused",
            subscriber=Sink(url=self.receiving[number].subscriber.url),
            kafka=contract.Kafka(bootstrap_servers=self.kafka.bootstrap_servers),
            delivery=Delivery(retry=retry), max_in_flight=IN_FLIGHT,
        )  # fmt: skip

    async def dispatch(self, count: int = 1) -> list[Keeper]:
        """As many processes more."""
        found = []
        for _ in range(count):
            shard = Shard(
                group=self.shard,
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

    async def edit(self, number: int) -> None:
        """Change how often it is retried; returns when every process delivers by that."""
        position = self.contract.write(self.shard, self.egress(number, retry=5))
        async with asyncio.timeout(SOON):
            while any(each.contract < position for each in self.keepers):  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    async def reach(self, part: float) -> None:
        """Until each subscriber has got this part."""
        for each in self.receiving:
            await each.subscriber.arrivals.reach(int(self.count * part), within=240)

    @property
    def deaths(self) -> list[int]:
        """How processes ended that were to run."""
        return [code for each in self.keepers for code in each.deaths]


@contextlib.asynccontextmanager
async def shard_burst(kafka: HasAddress, count: int, logs: Path) -> AsyncIterator[ShardBurst]:
    async with AsyncExitStack() as stack:
        burst = ShardBurst(kafka, count, logs, stack)
        await burst.start()
        yield burst
        for each in burst.keepers:
            await each.end()
        await burst.clean_up()
