"""Measures a Sensor: the cost of an event, beside a plain Trigger, and the time that a start with
many held events takes.

Half of the events have the type a and half the type b; each pair has its own value of `order`.
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
from knafka.core.events.kafka_binding import headers_of, read, to_record
from knafka.core.sensor import records
from knafka.core.sensor.contract import SensorContract
from knafka.core.sensor.held import HeldEvent
from knafka.ports.log import Record
from knafka.settings import DRAIN_AT_START, SENSOR
from knafka_client.sockets import HOST, free_port
from knafka_local.processes.children import Child

PARTITIONS: Final = 4
DATA: Final = b'{"text":"' + b"x" * 190 + b'"}'
LOG_TIME: Final = {"message.timestamp.type": "LogAppendTime"}
"""Configuration of topics whose records get Kafka's time, as a Broker's topic has it."""
PLAIN: Final = "a plain Trigger"
SAME_ORDER: Final = "a && b with the same order"
MILLION: Final = f"{SAME_ORDER}, 1,000,000 over 10 partitions"
TRIGGERS: Final[Mapping[str, Mapping[str, str]]] = {
    "a simple condition": {"conditions": "a || b"},
    "a && b": {"conditions": "a && b"},
    SAME_ORDER: {"conditions": "a && b", "correlation": "order"},
}
LOOK: Final = 0.1
"""Seconds between two looks at a process's metrics."""
PATIENCE: Final = 300.0
"""Seconds within which a metric must reach a value."""
READ: Final = "knafka_sensor_events_total{outcome=read}"
MATCHED: Final = "knafka_sensor_events_total{outcome=matched}"
FIRED: Final = "knafka_sensor_firings_total"
HELD: Final = "knafka_sensor_held_keys"
COMMITTED: Final = "knafka_sensor_transactions_total{outcome=committed}"


async def sensors_case(world: World, results: Results, externals: Sequence[External]) -> None:
    """Measure a backlog with each kind of condition, a larger one, and restores of several numbers
    of keys."""
    count = int(world.sized(100_000, 30_000))
    async with world.topic(PARTITIONS, LOG_TIME) as bus:
        await asyncio.to_thread(_fill, world, bus, count)
        for _ in range(world.options.runs):
            plain = await deliver(world, OURS, bus, count, filters=[])
            # These events have no numbers by which the sink checks their order (see
            # `dispatcher_case`).
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
    """Measure a Sensor from the read of the share `WARM` of the events until all firings are done;
    returns its metrics."""
    firings = count if trigger["conditions"] == "a || b" else count // 2
    async with (
        _declared(world, bus, trigger) as sensor,
        _process(world, sensor) as (url, child, _),
    ):
        await _until(url, READ, count * WARM)
        kafka = [] if world.kafka_pid is None else [world.kafka_pid]
        counts_before, usage = await _counts(url), Usage({"target": [child.pid], "kafka": kafka})
        began = time.monotonic()
        # Without correlation not all events fire: the last one of each type is used.
        done = MATCHED if trigger == TRIGGERS["a && b"] else FIRED
        await _until(url, done, count if done == MATCHED else firings)
        took, used, counts_after = time.monotonic() - began, usage.end(), await _counts(url)
    if (measured := count - counts_before[READ]) <= 0:
        raise BenchError(f"{count} events were read between two looks: want more of them")
    return {
        "cpu_us": used["cpu_s"]["target"] * 1e6 / measured,
        "per_s": measured / took,
        "rss_mb": used["rss_peak_mb"]["target"],
        "kafka_cpu_us": used["cpu_s"]["kafka"] * 1e6 / measured,
        "a_transaction": measured / max(1, counts_after[COMMITTED] - counts_before[COMMITTED]),
    }


async def sensor_latency_case(
    world: World, results: Results, externals: Sequence[External]
) -> None:
    """Measure the time from Kafka's receipt of a firing's last event to that of its action, at
    several rates of events over 10 partitions, for a Sensor that is awake."""
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
    """Return the waits, in ms, of all actions but those of the first second."""
    count = round(rate * (seconds + 1))
    async with (
        world.topic(10, LOG_TIME) as bus,
        _declared(world, bus, trigger) as sensor,
        _process(world, sensor) as (url, _, _),
    ):
        # A first pair wakes the Sensor and begins its transactions.
        await asyncio.to_thread(_pace, world, bus, 0, 2, rate)
        await _until(url, READ, 2)
        await asyncio.to_thread(_pace, world, bus, 2, count, rate)
        await _until(url, MATCHED, count)
        await asyncio.sleep(1.0)  # the last transaction
        taken_at = {
            event["id"]: time_ms for time_ms, event in await asyncio.to_thread(_stored, world, bus)
        }
        waits = []
        for time_ms, action in await asyncio.to_thread(_stored, world, sensor.action_topic):
            ids = [event["id"] for event in json.loads(action["data"])]
            if max(map(int, ids)) > rate:
                waits.append(float(time_ms - max(taken_at[id_] for id_ in ids)))
    if len(waits) < count // 8:
        raise BenchError(f"{len(waits)} firings of {count} events")
    return waits


def _pace(world: World, topic: str, first: int, end: int, rate: int) -> None:
    """Send the events with the numbers from `first` to `end` at a rate (events per second)."""
    producer = Producer({"bootstrap.servers": world.bootstrap, "linger.ms": 0})
    began = time.monotonic()
    for number in range(first, end):
        while (wait := began + (number - first) / rate - time.monotonic()) > 0:
            producer.poll(min(wait, 0.001))
        draft = to_record(_event(number))
        # The two events of a pair have independent partitions.
        partition = zlib.crc32(b"%d" % number) % 10
        headers: Any = draft.headers
        producer.produce(topic, draft.value, draft.key, partition, headers=headers)
    if producer.flush(30):
        raise BenchError(f"{topic} takes no records")


def _stored(world: World, topic: str) -> Sequence[tuple[int, Mapping[str, Any]]]:
    """Return for each committed event when Kafka got it, in ms since the Unix epoch, and the
    event."""
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
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in numbers])
        stored: list[tuple[int, Mapping[str, Any]]] = []
        ended: set[int | None] = set()
        while len(ended) < len(numbers):
            for record in consumer.consume(1000, 1.0):
                if record.error() is not None:
                    ended.add(record.partition())
                    continue
                event = read(headers_of(cast(Record, record)), record.value()).event
                stored.append((record.timestamp()[1], {**event.attributes, "data": event.data}))
        return stored
    finally:
        consumer.close()


async def _restore(
    world: World, keys: int
) -> tuple[dict[str, float | None], dict[str, float | None]]:
    """Measure until a new process has restored `keys` keys from the changelog; then kill it, and
    measure until another process has, which gets the partitions once the group has noticed."""
    trigger = TRIGGERS[SAME_ORDER]
    async with (
        world.topic(PARTITIONS, LOG_TIME) as bus,
        _declared(world, bus, trigger, keys) as sensor,
    ):
        async with _process(world, sensor, mortal=True) as (url, child, began):
            start = await _wait_until_held(url, child, began, keys)
            child.kill()
            killed = time.monotonic()
        async with _process(world, sensor) as (url, child, _):
            return start, await _wait_until_held(url, child, killed, keys)


async def _wait_until_held(
    url: str, child: Child, began: float, keys: int
) -> dict[str, float | None]:
    """Wait until a Sensor's process holds `keys` keys; return the seconds since `began`, and its
    memory."""
    usage = Usage({"target": [child.pid]})
    await _until(url, HELD, keys)
    used = usage.end()
    return {"seconds": time.monotonic() - began, "rss_mb": used["rss_mb"]["target"]}


@asynccontextmanager
async def _declared(
    world: World, bus: str, trigger: Mapping[str, str], keys: int = 0
) -> AsyncIterator[SensorContract]:
    """Declare a Sensor with topics of its own, whose changelog has `keys` held events with a key
    each."""
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
                    {"name": letter, "filter": {"attributes": {"type": letter}}} for letter in "ab"
                ],
                "triggers": [{"name": "t", **trigger}],
            },
        )


@asynccontextmanager
async def _process(
    world: World, sensor: SensorContract, *, mortal: bool = False
) -> AsyncIterator[tuple[str, Child, float]]:
    """Run a Sensor's process that drains from its start. Yields the URL of its metrics, the
    process, and when it was started (monotonic)."""
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
    """Return the event with this number; two consecutive ones are a pair."""
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
    """Write the first `count` events to a topic."""
    drafts = (to_record(_event(number)) for number in range(count))
    _produce(world, topic, ((draft.key, draft.value, draft.headers, -1) for draft in drafts))


def _hold(world: World, changelog: str, keys: int) -> None:
    """Write a changelog as if `keys` events a had come without their b."""

    def held() -> Iterator[tuple[bytes, bytes, Any, int]]:
        """Yield key, value, headers and partition of each record of the changelog."""
        for number in range(keys):
            event = _event(2 * number)
            key = records.key_of("t", event.attributes["order"])
            held_event = HeldEvent(
                "a", records.identity_of(event.attributes), 1, number, json_format.write(event)
            )
            name = records.changelog_key(key, number)
            yield name, held_event.document, records.headers_of(held_event, 0), number % PARTITIONS

    _produce(world, changelog, held())


def _produce(world: World, topic: str, records: Iterator[tuple[Any, Any, Any, int]]) -> None:
    """Append records, each as key, value, headers and partition (-1: any), and wait until all are
    stored. Raises `BenchError`."""
    producer = Producer(
        {"bootstrap.servers": world.bootstrap, "linger.ms": 20, "enable.idempotence": True}
    )
    for key, value, headers, partition in records:
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
    """Return the process's counters that are used here, by name and outcome."""

    def request_metrics() -> bytes:
        """Return the metrics as Prometheus's text."""
        with urlopen(url, timeout=60) as answer:
            content: bytes = answer.read()
            return content

    counts: dict[str, float] = {READ: 0, MATCHED: 0, FIRED: 0, HELD: 0, COMMITTED: 0}
    for line in (await asyncio.to_thread(request_metrics)).decode().splitlines():
        name, _, value = line.rpartition(" ")
        if line.startswith("#"):
            continue
        for metric in counts:
            metric_name, _, outcome = metric.rstrip("}").partition("{outcome=")
            if name.startswith(f"{metric_name}{{") and (
                not outcome or f'outcome="{outcome}"' in name
            ):
                counts[metric] += float(value)
    return counts


async def _until(url: str, metric: str, value: float) -> None:
    """Wait until a metric has reached a value; raises `BenchError` after `PATIENCE` seconds."""
    deadline = time.monotonic() + PATIENCE
    while (reached := (await _counts(url))[metric]) < value:
        if time.monotonic() > deadline:
            raise BenchError(f"{metric} is {reached}, and not {value}")
        await asyncio.sleep(LOOK)
