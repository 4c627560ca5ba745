"""Drains without Kafka, HTTP or waiting: a world of one Broker in memory, for looptime's clock."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from support.memory.admin import MemoryAdmin
from support.memory.log import MemoryLog, MemoryReader, MemoryWriter
from support.memory.records import MemoryRecord
from support.memory.tail import memory_dead_letters

from knafka.core import names
from knafka.core.contract import Delivery, Egress, Kafka, Sink
from knafka.core.drain import DrainProgress
from knafka.core.errors import DeliveryError, LogError
from knafka.core.events.event import Event
from knafka.core.events.kafka_binding import Envelope, RecordHeaders, read, to_record
from knafka.dispatcher.engine.at_most_once import AtMostOnceDrain
from knafka.dispatcher.engine.clients import Clients, OpenReader
from knafka.dispatcher.engine.drain import Drain
from knafka.dispatcher.engine.tracing import EgressTracing
from knafka.ports.log import TopicMaker
from knafka.ports.subscriber import Response, Target
from knafka.tracing.spans import Tracer

TOPIC, DEAD, GROUP = "events", "dead-letters", "group"
BROKER_DEAD = names.broker_dead_letter_topic("ns", "broker")
SUBSCRIBER, SINK = "http://subscriber.test/", "http://sink.test/"
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

FAR = 100_000.0
"""Seconds: longer than any test's drain."""


@dataclass(frozen=True, slots=True)
class Request:
    """One attempt, as the subscriber was asked for it."""

    target: Target
    head: bytes
    body: bytes
    timeout: float

    def header(self, name: bytes) -> bytes | None:
        """The first value of the lower-cased `name`."""
        for line in self.head.split(b"\r\n"):
            each, _, value = line.partition(b":")
            if each.lower() == name:
                return value.strip()
        return None


Answer: TypeAlias = Callable[[Request], Awaitable[Response]]


def response(
    status: int = 200, body: bytes = b"", /, **headers: str
) -> Response:  # headers by name, `-` as `_`
    found = [(name.replace("_", "-").encode(), each.encode()) for name, each in headers.items()]
    return Response(status, found, body)


async def accept(request: Request) -> Response:
    return response()


def id_of(request: Request) -> str:
    return (request.header(b"ce-id") or b"").decode()


def key_of(request: Request) -> str:
    return (request.header(b"ce-subject") or b"").decode()


def always(answer: Response) -> Answer:
    async def give(request: Request) -> Response:
        return answer

    return give


def at_first(*answers: Response) -> Answer:
    """These answers one after the other, then 200 for ever."""
    left = iter(answers)

    async def give(request: Request) -> Response:
        return next(left, response())

    return give


def unless_sink(answer: Response, sink: Response) -> Answer:
    async def give(request: Request) -> Response:
        return sink if request.target.url == SINK else answer

    return give


class NoTopics:
    """A `TopicMaker` that may make none."""

    def __init__(self) -> None:
        self.asked = 0

    async def ensure_topic(
        self, topic: str, partitions: int, replication: int, config: Mapping[str, str]
    ) -> bool:
        self.asked += 1
        await asyncio.sleep(0)
        raise LogError("Broker: Topic authorization failed")


@dataclass(frozen=True, slots=True)
class Post:
    """One attempt and when it began, on the loop's clock."""

    id: str
    at: float
    request: Request


class ScriptedSubscriber:
    """A `Subscriber` that may take its time: its answers are coroutines."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.posts: list[Post] = []
        self.answered: list[str] = []
        self.under_way = self.most_under_way = 0

    async def post(self, target: Target, head: bytes, body: bytes, timeout: float) -> Response:
        request = Request(target, head, body, timeout)
        self.posts.append(Post(id_of(request), asyncio.get_running_loop().time(), request))
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            await asyncio.sleep(0)
            async with asyncio.timeout(timeout):
                answer = await self.answer(request)
        except TimeoutError:
            raise DeliveryError("timeout", "no response in time") from None
        finally:
            self.under_way -= 1
        self.answered.append(id_of(request))
        return answer

    async def close(self) -> None: ...

    @property
    def ids(self) -> list[str]:
        """The events posted, one id per attempt."""
        return [post.id for post in self.posts]

    @property
    def times(self) -> list[float]:
        return [post.at for post in self.posts]


class World:
    """A log with a Broker's topic, a Trigger, and whoever answers its events."""

    def __init__(
        self,
        answer: Answer = accept,
        *,
        partitions: int = 1,
        delivery: Delivery | None = None,
        sink: bool = False,
        shares_topic: bool = False,
        **egress: Any,
    ) -> None:
        self.log = MemoryLog()
        self.log.create(TOPIC, partitions)
        self.topics: TopicMaker = MemoryAdmin(self.log)
        self.subscriber = ScriptedSubscriber(answer)
        self.egress = Egress(
            namespace="ns", broker="broker", trigger="trigger",
            topic=TOPIC, group=GROUP, dead_letter_topic=DEAD,
            kafka=Kafka(bootstrap_servers="memory:1"),
            subscriber=Sink(url=SUBSCRIBER),
            dead_letter_sink=Sink(url=SINK) if sink else None,
            delivery=delivery or Delivery(),
            shares_topic=shares_topic,
            **egress,
        )  # fmt: skip
        self.killing = False
        self.tracer: Tracer | None = None
        self.open_reader: OpenReader
        self.reads_with(MemoryReader)

    def send(
        self,
        id: str,  # noqa: A002  # it is the attribute's name
        key: str | None = None,
        data: bytes | None = b"data",
        passed: RecordHeaders | None = None,
        **attributes: str,
    ) -> None:
        """Store an event; its `subject` is its key."""
        named = {"specversion": "1.0", "id": id, "source": "/s", "type": "t", **attributes}
        if key is not None:
            named["subject"] = key
        draft = to_record(Event(named, data), passed)
        self.log.store(TOPIC, draft.key, draft.value, draft.headers)

    def store_at(
        self,
        partition: int,
        id: str,  # noqa: A002  # it is the attribute's name
        key: str = "k",
        data: bytes = b"data",
    ) -> None:
        """Store an event in the partition of the test's choice."""
        attributes = {"specversion": "1.0", "id": id, "source": "/s", "type": "t", "subject": key}
        draft = to_record(Event(attributes, data))
        records = self.log.topics[TOPIC][partition]
        records.append(
            MemoryRecord(TOPIC, partition, len(records), draft.key, draft.value, draft.headers)
        )
        self.log.wake()

    def reads_with(self, reader: type[MemoryReader]) -> None:
        """Have drains read with a reader of the test's own."""
        world = self

        class Mortal(reader):  # type: ignore[misc, valid-type]
            async def close(self, timeout: float) -> None:
                if not world.killing:
                    await super().close(timeout)
                    return
                self._next.clear()
                self._group.members.remove(self)
                for other in self._group.members[:1]:
                    await other._rebalance()

        self.open_reader = lambda assignment: Mortal(self.log, GROUP, TOPIC, assignment)

    def drain(
        self, subscriber: ScriptedSubscriber | None = None, *, attempts_per_turn: int | None = None
    ) -> Drain:
        """A drain that has not begun, with this world's subscriber or one of its own; with
        `attempts_per_turn` as one that has neighbours."""
        loop = asyncio.get_running_loop()
        make = AtMostOnceDrain if self.egress.at_most_once else Drain
        writer = MemoryWriter(self.log)
        return make(
            self.egress,
            Clients(
                self.open_reader,
                writer,
                subscriber or self.subscriber,
                self.topics,
                memory_dead_letters(self.egress, self.log, writer, self.topics),
                attempts_per_turn=attempts_per_turn,
            ),
            loop.time,
            None if self.tracer is None else EgressTracing(self.tracer, self.egress),
        )

    async def run(self, *, idle: float = 2.0, stop_after: float = FAR) -> DrainProgress:
        """One drain from its beginning to its end."""
        return await self.begin(self.drain(), idle=idle, stop_after=stop_after)

    def begin(
        self, drain: Drain, *, idle: float = 2.0, stop_after: float = FAR
    ) -> asyncio.Task[DrainProgress]:
        """Have it run, and stop it after so many seconds."""
        drain.idle = idle
        asyncio.get_running_loop().call_later(stop_after, drain.stop)
        return asyncio.create_task(drain.run())

    async def kill(self, running: asyncio.Task[DrainProgress]) -> None:
        """End a drain as `kill -9` does: nothing is committed, its partitions go to others."""
        self.killing = True
        try:
            running.cancel()
            await asyncio.wait({running})
        finally:
            self.killing = False

    @property
    def committed(self) -> dict[int, int]:
        """What the group has committed, by partition."""
        return {number: at.offset for (_, number), at in self.log.group(GROUP).committed.items()}

    def events_of(self, topic: str) -> list[Envelope]:
        return [read(record.headers(), record.value()) for record in self.records_of(topic)]

    def records_of(self, topic: str) -> list[MemoryRecord]:
        return [record for partition in self.log.topics.get(topic, ()) for record in partition]


async def until(condition: Callable[[], object], within: float = 600.0) -> None:
    """Wait for something that a drain is to do; on looptime's clock it costs nothing."""
    async with asyncio.timeout(within):
        while not condition():  # noqa: ASYNC110  # whatever it is, nobody signals it
            await asyncio.sleep(0.01)


def slow(seconds: dict[str, float]) -> World:
    """A world whose subscriber takes some seconds for the events of some keys."""

    async def answer(request: Request) -> Response:
        await asyncio.sleep(seconds.get(key_of(request), 0.0))
        return response()

    return World(answer)


async def keep_busy(world: World) -> None:
    """Send an event a second, for ever."""
    number = 0
    while True:
        world.send(str(number))
        number += 1
        await asyncio.sleep(1)
