"""Targets: the functions that are measured, all started in the same way.

`ours`, `before` and `floor` are started here. Any other target runs already; the command line names
it by its URL (a receiver), or by its topic and the sink it delivers to (a dispatcher). Not here:
measuring.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

from confluent_kafka import Producer

from bench.results import BEFORE, FLOOR, OURS
from bench.world import HERE, PYTHON, BenchError, World, listens
from knafka.core.contract import Egress, Ingress, Kafka, Sink
from knafka.core.documents import dump, parse
from knafka.core.drain import MAX_BUDGET, DrainRequest
from knafka.settings import DRAIN_AT_START, EGRESS, INGRESSES, SHARD
from knafka_client.sockets import HOST, free_port

EXACT: Final = [{"exact": {"type": "com.example.bench"}}]
IN_FLIGHT: Final = 100
"""Most attempts under way at once in ours and in the floor: our default, and the size of the peer's
pool."""
DRAIN: Final = DrainRequest(idle=7200, budget=MAX_BUDGET)
"""A request for a drain that lasts as long as any measurement: neither its idle time nor its budget
runs out."""


@dataclass(frozen=True, slots=True)
class External:
    """A target that runs already and isn't ours.

    name=peer,url=http://host/ns/broker,pid=123              a receiver
    name=peer,topic=T,sink=127.0.0.1:18090,pid=123           a dispatcher that reads T
    """

    name: str
    url: str = ""
    topic: str = ""
    sink: str = ""
    pid: int | None = None

    @staticmethod
    def parse(text: str) -> External:
        """Return the target that a text as above names. Raises ValueError that says what is
        wrong."""
        fields: dict[str, Any] = {}
        for part in text.split(","):
            key, equals_sign, value = part.partition("=")
            if not equals_sign or key not in ("name", "url", "topic", "sink", "pid"):
                raise ValueError(f"{part!r}: want name=, url=, topic=, sink= or pid=")
            fields[key] = int(value) if key == "pid" else value
        external = External(**{"name": "", **fields})
        if not external.name or external.name in (OURS, FLOOR):
            raise ValueError(f"want a name of its own, not {external.name!r}")
        if bool(external.url) == bool(external.topic and external.sink):
            raise ValueError("want a url (receiver), or a topic and a sink (dispatcher)")
        return external


@dataclass(frozen=True, slots=True)
class Running:
    """A running target: its name, its processes and, for a receiver, its URL."""

    name: str
    pids: Sequence[int]
    url: str = ""


def ingress(world: World, topic: str, **more: Any) -> Ingress:
    """Return the Ingress of a Broker with this topic; `more` are further fields of it."""
    kafka = Kafka(bootstrap_servers=world.bootstrap)
    whole = Ingress(namespace="bench", broker="broker", topic=topic, kafka=kafka)
    return whole.model_copy(update=more)


def contract_of(served: Sequence[Ingress]) -> str:
    """Return a receiver's contract, as the value of its environment variable."""
    return json.dumps([dump(ingress_) for ingress_ in served])


def egress(world: World, topic: str, path: str = "/", **more: Any) -> str:
    """Return the contract (JSON) of a Trigger with a new group, which begins at the start of the
    topic; `path` is its subscriber's at the sink, `more` are further fields."""
    whole = Egress(
        namespace="bench", broker="broker", trigger="trigger", topic=topic,
        group=f"bench-{uuid.uuid4().hex[:12]}", dead_letter_topic=f"{topic}-dead",
        kafka=Kafka(bootstrap_servers=world.bootstrap),
        subscriber=Sink(url=f"http://{world.sink}{path}"), max_in_flight=IN_FLIGHT,
    )  # fmt: skip
    return json.dumps(dump(parse(Egress, {**dump(whole), "filters": EXACT, **more})))


def _source(world: World, name: str) -> Mapping[str, str]:
    """Return the environment variables with which a process runs the code of the target `name`."""
    if name != BEFORE:
        return {}
    return {"PYTHONPATH": str(world.options.before / "functions")}


@asynccontextmanager
async def receiver(
    world: World, name: str, topic: str, more: Mapping[str, str] | None = None
) -> AsyncIterator[Running]:
    """Run our receiver or its floor until the end of the block; `more` is added to its
    environment."""
    async with _receiver(world, name, [ingress(world, topic)], more) as (target,):
        yield target


@asynccontextmanager
async def channels(world: World, topics: Sequence[str]) -> AsyncIterator[Sequence[Running]]:
    """Run one receiver that serves KafkaChannels with these topics; yields a target for each."""
    served = [
        ingress(world, topic, broker=f"channel-{number}", kind="KafkaChannel")
        for number, topic in enumerate(topics)
    ]
    async with _receiver(world, OURS, served) as targets:
        yield targets


@asynccontextmanager
async def _receiver(
    world: World, name: str, served: Sequence[Ingress], more: Mapping[str, str] | None = None
) -> AsyncIterator[Sequence[Running]]:
    """Run one receiver that serves these Ingresses; yields a target for each."""
    port = free_port()
    environment = {
        "HOST": HOST, "PORT": str(port), INGRESSES: contract_of(served), **_source(world, name),
        **(more or {}),
    }  # fmt: skip
    command: tuple[str, ...] = ("-m", "knafka.receiver")
    if name == FLOOR:
        command = (
            str(HERE / "floor_receiver.py"), str(port), world.bootstrap, served[0].topic
        )  # fmt: skip
    async with world.process(PYTHON, *command, environment=environment) as process:
        await listens(f"{HOST}:{port}")
        urls = [f"http://{HOST}:{port}{ingress_.path}" for ingress_ in served]
        yield [Running(name, [process.pid], url) for url in urls]


@asynccontextmanager
async def dispatcher(
    world: World, name: str, topic: str, path: str = "/", **more: Any
) -> AsyncIterator[Running]:
    """Run our dispatcher in a drain, or its floor; `more` are fields of our contract."""
    if name == FLOOR:
        command = (
            str(HERE / "floor_dispatcher.py"), world.bootstrap, topic, world.sink,
            str(IN_FLIGHT), path,
        )  # fmt: skip
        async with world.process(PYTHON, *command) as process:
            yield Running(name, [process.pid])
        return
    port = free_port()
    environment = {
        "HOST": HOST, "PORT": str(port), EGRESS: egress(world, topic, path, **more),
        **_source(world, name),
    }  # fmt: skip
    async with world.process(PYTHON, "-m", "knafka.dispatcher", environment=environment) as process:
        await listens(f"{HOST}:{port}")
        async with drain(*await asyncio.open_connection(HOST, port)):
            yield Running(name, [process.pid])


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A Trigger of a shard: the path of its subscriber at the sink, and fields of its contract."""

    path: str
    more: Mapping[str, Any] = field(default_factory=dict)
    behind: bool = False
    """Whether it begins at the topic's start; otherwise it begins at the topic's end."""


@asynccontextmanager
async def shard(world: World, topic: str, triggers: int, **more: Any) -> AsyncIterator[Running]:
    """Run one dispatcher with many Egresses, which all drain from the topic's start; `more` are
    fields of their contracts."""
    paths = [Neighbour(f"/trigger-{number}", more, behind=True) for number in range(triggers)]
    async with neighbours(world, topic, paths) as target:
        yield target


@asynccontextmanager
async def neighbours(
    world: World, topic: str, triggers: Sequence[Neighbour], *, name: str = OURS
) -> AsyncIterator[Running]:
    """Run one dispatcher with these Triggers, which all drain."""
    port, group = free_port(), f"shard-{uuid.uuid4().hex[:8]}"
    egresses = [
        json.loads(egress(world, topic, trigger.path, **trigger.more)) for trigger in triggers
    ]
    for trigger, contract in zip(triggers, egresses, strict=True):
        if not trigger.behind:
            await world.begin_at_end(contract["group"], topic)
    async with world.topic(1) as rules:
        await asyncio.to_thread(_write_contract, world, rules, group, egresses)
        whole = {
            "group": group, "contractTopic": rules,
            "kafka": {"bootstrapServers": world.bootstrap},
        }  # fmt: skip
        environment = {
            "HOST": HOST, "PORT": str(port), SHARD: json.dumps(whole), DRAIN_AT_START: "true",
            **_source(world, name),
        }  # fmt: skip
        process_of = world.process(PYTHON, "-m", "knafka.dispatcher", environment=environment)
        async with process_of as process:
            await listens(f"{HOST}:{port}")
            yield Running(name, [process.pid])


def _write_contract(world: World, topic: str, shard: str, egresses: Sequence[Any]) -> None:
    """Write the shard's contract to its topic, as an operator does."""
    producer = Producer({"bootstrap.servers": world.bootstrap})
    for contract in egresses:
        value = json.dumps({"shard": shard, "egress": contract}).encode()
        producer.produce(topic, value, contract["group"].encode())
    if producer.flush(60):
        raise BenchError("the contract's topic takes no records")


@asynccontextmanager
async def drain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> AsyncIterator[None]:
    """Hold a drain over this connection until the end of the block; raises `BenchError` if it ended
    before."""
    body = json.dumps(dump(DRAIN)).encode()  # `dump` omits defaults, which `before` may not know
    writer.write(
        b"POST /drain HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    )
    reading = asyncio.create_task(_last_line(reader))
    try:
        yield
        if reading.done() and b'"ended":"budget"' not in reading.result():
            raise BenchError(f"the drain ended by itself: {reading.result()!r}")
    finally:
        reading.cancel()
        with suppress(asyncio.CancelledError):
            await reading
        writer.close()


async def _last_line(reader: asyncio.StreamReader) -> bytes:
    """Read a response to its end; return its last line that isn't empty."""
    last = b""
    async for line in reader:
        last = line.strip() or last
    return last
