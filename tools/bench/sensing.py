"""A Sensor: what an event costs it, beside a plain Trigger, and how long a start takes that has
much to restore.

Half of the events are of the type a and half of the type b, each pair with an order of its own.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
import uuid
import zlib
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, cast
from urllib.request import urlopen

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from bench.dispatching import WARM, deliver
from bench.document import FAULTS
from bench.results import OURS, Results
from bench.targets import External
from bench.usage import Usage
from bench.world import PYTHON, BenchError, World, listens
from knafka.core.documents import dump, parse
from knafka.core.events import json_format
from knafka.core.events.event import Event
from knafka.core.events.kafka_binding import read, to_record
from knafka.core.sensor import records
from knafka.core.sensor.contract import SensorContract
from knafka.core.sensor.held import HeldEvent
from knafka.ports.log import Record, headers_of
from knafka.settings import DRAIN_AT_START, SENSOR
from knafka_client.sockets import HOST, free_port
from knafka_local.processes.children import Child

PARTITIONS: Final = 4
DATA: Final = b'{"text":"' + b"x" * 190 + b'"}'
LOG_TIME: Final = {"message.timestamp.type": "LogAppendTime"}
"""As a Broker's topic has it."""
PLAIN: Final = "a plain Trigger"
SAME_ORDER: Final = "a && b with the same order"
MILLION: Final = f"{SAME_ORDER}, 1,000,000 over 10 partitions"
TRIGGERS: Final[Mapping[str, Mapping[str, str]]] = {
    "a simple condition": {"conditions": "a || b"},
    "a && b": {"conditions": "a && b"},
    SAME_ORDER: {"conditions": "a && b", "correlation": "order"},
}
LOOK: Final = 0.1
PATIENCE: Final = 300.0
READ: Final = "knafka_sensor_events_total{outcome=read}"
MATCHED: Final = "knafka_sensor_events_total{outcome=matched}"
FIRED: Final = "knafka_sensor_firings_total"
HELD: Final = "knafka_sensor_held_keys"
COMMITTED: Final = "knafka_sensor_transactions_total{outcome=committed}"


async def sensors_case(world: World, results: Results, externals: Sequence[External]) -> None:
    """A backlog through each kind of condition, a large one, and restored keys by their number."""
    count = int(world.sized(100_000, 30_000))
    async with world.topic(PARTITIONS, LOG_TIME) as bus:
        await asyncio.to_thread(_fill, world, bus, count)
        for _ in range(world.options.runs):
            plain = await deliver(world, OURS, bus, count, filters=[])
            # Order is the dispatcher's case: these events have no numbers by which a sink knows it.
            results.add(PLAIN, OURS, **{k: v for k, v in plain.items() if k not in FAULTS})
            for what, trigger in TRIGGERS.items():
                results.add(what, OURS, **await _fire(world, bus, trigger, count))
    if (count := int(world.sized(1_000_000, 0))) > 0:
        async with world.topic(10, LOG_TIME) as bus:
            await asyncio.to_thread(_fill, world, bus, count)
            results.add(MILLION, OURS, **await _fire(world, bus, TRIGGERS[SAME_ORDER], count))
    for keys in (10_000, 100_000, 1_000_000):
        if keys <= world.sized(1_000_000, 10_000):
            start, after_kill = await _restore(world, keys)
            results.add(f"a start with {keys:,} keys", OURS, **start)
            results.add(f"{keys:,} keys after kill -9", OURS, **after_kill)


async def _fire(
    world: World, bus: str, trigger: Mapping[str, str], count: int
) -> dict[str, float | None]:
    """From `WARM` of the events until all have fired that will."""
    firings = count if trigger["conditions"] == "a || b" else count // 2
    async with (
        _declared(world, bus, trigger) as sensor,
        _process(world, sensor) as (url, child, _),
    ):
        await _until(url, READ, count * WARM)
        kafka = [] if world.kafka_pid is None else [world.kafka_pid]
        before, usage = await _counts(url), Usage({"target": [child.pid], "kafka": kafka})
        began = time.monotonic()
        # Of uncorrelated events not all pairs meet: the last one of each type counts.
        done = MATCHED if trigger == TRIGGERS["a && b"] else FIRED
        await _until(url, done, count if done == MATCHED else firings)
        took, found, after = time.monotonic() - began, usage.end(), await _counts(url)
    if (measured := count - before[READ]) <= 0:
        raise BenchError(f"{count} events were read between two looks: want more of them")
    return {
        "cpu_us": found["cpu_s"]["target"] * 1e6 / measured,
        "per_s": measured / took,
        "rss_mb": found["rss_peak_mb"]["target"],
        "kafka_cpu_us": found["cpu_s"]["kafka"] * 1e6 / measured,
        "a_transaction": measured / max(1, after[COMMITTED] - before[COMMITTED]),
    }


async def sensor_latency_case(
    world: World, results: Results, externals: Sequence[External]
) -> None:
    """From the moment Kafka took the last event of a firing until it took its action, by the rate
    at which events come over 10 partitions, of a Sensor that is awake."""
    seconds = world.sized(30, 5)
    for _ in range(world.options.runs):
        for rate in (20, 2_000):
            for what, trigger in list(TRIGGERS.items())[1:]:
                waits = await _fire_at(world, trigger, rate, seconds)
                name = f"{what}, {rate:,}/s"
                p50, p99 = statistics.median(waits), statistics.quantiles(waits, n=100)[98]
                results.add(name, OURS, p50_ms=p50, p99_ms=p99, max_ms=max(waits))
                results.at_most(f"p50, {name}, ms", p50, 150)


async def _fire_at(
    world: World, trigger: Mapping[str, str], rate: int, seconds: float
) -> Sequence[float]:
    """Waits, in ms, of all actions but those of the first second."""
    count = round(rate * (seconds + 1))
    async with (
        world.topic(10, LOG_TIME) as bus,
        _declared(world, bus, trigger) as sensor,
        _process(world, sensor) as (url, _, _),
    ):
        # A first pair, by which it is awake and its transactions have begun.
        await asyncio.to_thread(_pace, world, bus, 0, 2, rate)
        await _until(url, READ, 2)
        await asyncio.to_thread(_pace, world, bus, 2, count, rate)
        await _until(url, MATCHED, count)
        await asyncio.sleep(1.0)  # the last transaction
        taken = {event["id"]: at for at, event in await asyncio.to_thread(_stored, world, bus)}
        waits = []
        for at, action in await asyncio.to_thread(_stored, world, sensor.action_topic):
            numbers = [each["id"] for each in json.loads(action["data"])]
            if max(map(int, numbers)) > rate:
                waits.append(float(at - max(taken[each] for each in numbers)))
    if len(waits) < count // 8:
        raise BenchError(f"{len(waits)} firings of {count} events")
    return waits


def _pace(world: World, topic: str, first: int, end: int, rate: int) -> None:
    """Events of these numbers at a rate, each sent when it is its time."""
    producer = Producer({"bootstrap.servers": world.bootstrap, "linger.ms": 0})
    began = time.monotonic()
    for number in range(first, end):
        while (wait := began + (number - first) / rate - time.monotonic()) > 0:
            producer.poll(min(wait, 0.001))
        draft = to_record(_event(number))
        # Neither of a pair's partitions follows from the other's.
        partition = zlib.crc32(b"%d" % number) % 10
        headers: Any = draft.headers
        producer.produce(topic, draft.value, draft.key, partition, headers=headers)
    if producer.flush(30):
        raise BenchError(f"{topic} takes no records")


def _stored(world: World, topic: str) -> Sequence[tuple[int, Mapping[str, Any]]]:
    """When Kafka took each committed event, in ms since the Unix epoch, and the event."""
    consumer = Consumer(
        {
            "bootstrap.servers": world.bootstrap,
            "group.id": "bench-reads",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    try:
        numbers = consumer.list_topics(topic, timeout=30).topics[topic].partitions
        consumer.assign([TopicPartition(topic, each, OFFSET_BEGINNING) for each in numbers])
        found: list[tuple[int, Mapping[str, Any]]] = []
        ended: set[int | None] = set()
        while len(ended) < len(numbers):
            for record in consumer.consume(1000, 1.0):
                if record.error() is not None:
                    ended.add(record.partition())
                    continue
                event = read(headers_of(cast(Record, record)), record.value()).event
                found.append((record.timestamp()[1], {**event.attributes, "data": event.data}))
        return found
    finally:
        consumer.close()


async def _restore(
    world: World, keys: int
) -> tuple[dict[str, float | None], dict[str, float | None]]:
    """Until a new process holds what the changelog says; and from the kill of that one until its
    successor does, which has the partitions once the group has noticed."""
    trigger = TRIGGERS[SAME_ORDER]
    async with (
        world.topic(PARTITIONS, LOG_TIME) as bus,
        _declared(world, bus, trigger, keys) as sensor,
    ):
        async with _process(world, sensor, mortal=True) as (url, child, began):
            start = await _until_held(url, child, began, keys)
            child.kill()
            killed = time.monotonic()
        async with _process(world, sensor) as (url, child, _):
            return start, await _until_held(url, child, killed, keys)


async def _until_held(url: str, child: Child, began: float, keys: int) -> dict[str, float | None]:
    usage = Usage({"target": [child.pid]})
    await _until(url, HELD, keys)
    found = usage.end()
    return {"seconds": time.monotonic() - began, "rss_mb": found["rss_mb"]["target"]}


@asynccontextmanager
async def _declared(
    world: World, bus: str, trigger: Mapping[str, str], keys: int = 0
) -> AsyncIterator[SensorContract]:
    """A Sensor with topics of its own, whose changelog holds so many keys."""
    async with (
        world.topic(PARTITIONS) as triggers,
        world.topic(PARTITIONS) as changelog,
        world.topic(PARTITIONS, LOG_TIME) as actions,
    ):
        await asyncio.to_thread(_hold, world, changelog, keys)
        yield parse(
            SensorContract,
            {
                "namespace": "bench",
                "name": "sensor",
                "kafka": {"bootstrapServers": world.bootstrap},
                "topic": bus,
                "group": f"bench-{uuid.uuid4().hex[:12]}",
                "triggerTopic": triggers,
                "changelogTopic": changelog,
                "actionTopic": actions,
                "bus": "bench",
                "deadLetterTopic": f"{actions}-dead-letters",
                "dependencies": [
                    {"name": each, "filter": {"attributes": {"type": each}}} for each in "ab"
                ],
                "triggers": [{"name": "t", **trigger}],
            },
        )


@asynccontextmanager
async def _process(
    world: World, sensor: SensorContract, *, mortal: bool = False
) -> AsyncIterator[tuple[str, Child, float]]:
    """A process that drains from its start: where its metrics are, and when it was started."""
    port = free_port()
    environment = {
        "HOST": HOST, "PORT": str(port), DRAIN_AT_START: "true", SENSOR: json.dumps(dump(sensor)),
    }  # fmt: skip
    began = time.monotonic()
    command = PYTHON, "-m", "knafka.sensor"
    async with world.process(*command, environment=environment, mortal=mortal) as child:
        await listens(f"{HOST}:{port}")
        yield f"http://{HOST}:{port}/metrics", child, began


def _event(number: int) -> Event:
    kind = "ab"[number % 2]
    attributes = {
        "specversion": "1.0",
        "id": str(number),
        "source": "/bench",
        "type": kind,
        "datacontenttype": "application/json",
        "order": str(number // 2),
        "partitionkey": str(number),
    }
    return Event(attributes, DATA)


def _fill(world: World, topic: str, count: int) -> None:
    drafts = (to_record(_event(number)) for number in range(count))
    _produce(world, topic, ((each.key, each.value, each.headers, -1) for each in drafts))


def _hold(world: World, changelog: str, keys: int) -> None:
    """As if so many a had come without their b."""

    def held() -> Iterator[tuple[bytes, bytes, Any, int]]:
        for number in range(keys):
            event = _event(2 * number)
            key = records.key_of("t", event.attributes["order"])
            found = HeldEvent(
                "a", records.identity_of(event.attributes), 1, number, json_format.write(event)
            )
            name = records.changelog_key(key, number)
            yield name, found.document, records.headers_of(found, 0), number % PARTITIONS

    _produce(world, changelog, held())


def _produce(world: World, topic: str, found: Iterator[tuple[Any, Any, Any, int]]) -> None:
    producer = Producer(
        {"bootstrap.servers": world.bootstrap, "linger.ms": 20, "enable.idempotence": True}
    )
    for key, value, headers, partition in found:
        while True:
            try:
                producer.produce(topic, value, key, partition, headers=headers)
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    if producer.flush(120):
        raise BenchError(f"{topic} takes no records")


async def _counts(url: str) -> Mapping[str, float]:
    """Its metrics, by name and outcome."""

    def ask() -> bytes:
        with urlopen(url, timeout=60) as answer:
            content: bytes = answer.read()
            return content

    found: dict[str, float] = {READ: 0, MATCHED: 0, FIRED: 0, HELD: 0, COMMITTED: 0}
    for line in (await asyncio.to_thread(ask)).decode().splitlines():
        name, _, value = line.rpartition(" ")
        if line.startswith("#"):
            continue
        for each in found:
            of, _, outcome = each.rstrip("}").partition("{outcome=")
            if name.startswith(f"{of}{{") and (not outcome or f'outcome="{outcome}"' in name):
                found[each] += float(value)
    return found


async def _until(url: str, metric: str, value: float) -> None:
    deadline = time.monotonic() + PATIENCE
    while (found := (await _counts(url))[metric]) < value:
        if time.monotonic() > deadline:
            raise BenchError(f"{metric} is {found}, and not {value}")
        await asyncio.sleep(LOOK)
