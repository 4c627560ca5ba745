"""Sensors in tests: events written short, and the reducer played over them."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, cast

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    Message,
    Producer,
    TopicPartition,
)
from support.kafka import Kafka, MakeTopic

from knafka.clients.kafka.kafka_commits import metadata_of
from knafka.clients.kafka.producers.kafka_transactions import KafkaTransactions
from knafka.core.documents import parse
from knafka.core.events.event import Event
from knafka.core.events.kafka_binding import read, to_record
from knafka.core.sensor.backtest import PastEvent
from knafka.core.sensor.contract import SensorContract
from knafka.core.sensor.held import Firing, Held, HeldEvent
from knafka.core.sensor.order import Place
from knafka.core.sensor.rules import Rule, RuleStep, step
from knafka.ports.log import OffsetAndMetadata, Record
from knafka.sensor.processor import Processor


def event(dependency: str, identity: str, at: int, offset: int) -> HeldEvent:
    return HeldEvent(dependency, identity, at, offset, identity.encode())


def played(rule: Rule, events: str) -> RuleStep:
    """What is held and has fired after `a1@3 b1@5`: the dependency's letter and a number, and the
    time; in the order in which they come."""
    held: Held = ()
    firings: list[Firing] = []
    for offset, text in enumerate(events.split()):
        identity, _, at = text.partition("@")
        after = step(rule, held, event(identity[0], identity, int(at), offset))
        held = after.held
        firings += after.firings
    return RuleStep(held, tuple(firings))


class Routed(NamedTuple):
    """An event for a trigger; in the order in which that takes it."""

    at: int
    origin: tuple[int, int]
    """Its partition and offset on the bus."""
    offset: int
    """In the trigger topic."""
    identity: str


def parse_routed(record: Record) -> Routed:
    """What lies in the trigger topic."""
    headers = dict(record.headers() or ())
    partition, offset, _ = headers["origin"].split(b".")
    identity = json.loads(record.value() or b"")["id"]
    origin = int(partition), int(offset)
    return Routed(int(headers["at"]), origin, record.offset(), identity)


class SensorWorld:
    """The topics of one Sensor on a real Kafka, who writes to its bus and who reads its actions."""

    def __init__(
        self, kafka: Kafka, topic: MakeTopic, partitions: int = 1, *, by_sender: bool = False
    ) -> None:
        """`by_sender`: whose clock the bus's times are of, in place of the log's own."""
        self._connection = {"bootstrap.servers": kafka.bootstrap_servers}
        kind = "CreateTime" if by_sender else "LogAppendTime"
        self.bus = topic(partitions, message_timestamp_type=kind)
        self.trigger_topic = topic(partitions)
        self.changelog = topic(partitions, cleanup_policy="compact")
        self.action_topic = topic(partitions)
        self.dead_letter_topic = f"{self.bus}-dead-letters"
        self.group = f"shop-sensor-{uuid.uuid4().hex[:8]}"
        self._producer = Producer({**self._connection, "enable.idempotence": True})

    def sensor(
        self,
        triggers: Mapping[str, str] | Sequence[Mapping[str, object]],
        dependencies: str = "abcd",
        generation: int = 1,
    ) -> SensorContract:
        """`triggers`: conditions by name, or whole documents. A dependency is named like the type
        of its events."""
        if isinstance(triggers, Mapping):
            triggers = [{"name": name, "conditions": text} for name, text in triggers.items()]
        document = {
            "namespace": "shop",
            "name": "sensor",
            "generation": generation,
            "kafka": {"bootstrapServers": self._connection["bootstrap.servers"]},
            "topic": self.bus,
            "group": self.group,
            "triggerTopic": self.trigger_topic,
            "changelogTopic": self.changelog,
            "actionTopic": self.action_topic,
            "bus": "default",
            "deadLetterTopic": self.dead_letter_topic,
            "dependencies": [
                {"name": each, "filter": {"attributes": {"type": each}}} for each in dependencies
            ],
            "triggers": list(triggers),
        }
        return parse(SensorContract, document)

    def processor(self, sensor: SensorContract, transactional_id: str | None = None) -> Processor:
        """One process's part."""
        identity = transactional_id or f"{self.group}-{uuid.uuid4().hex[:8]}"

        def open_log(claims: Processor) -> KafkaTransactions:
            topics = [sensor.topic, sensor.trigger_topic]
            return KafkaTransactions(self._connection, self.group, topics, claims, identity)

        return Processor(sensor, open_log)

    def publish(
        self, *events: str, at: int = 0, data: bytes | None = None, **attributes: str
    ) -> None:
        """Append `a1`: an event of the type a whose id is a1. `at`: the records' timestamp (ms), if
        it isn't now."""
        for identity in events:
            draft = to_record(
                Event(
                    {
                        "specversion": "1.0",
                        "id": identity,
                        "source": "/s",
                        "type": identity[0],
                        **attributes,
                    },
                    data,
                )
            )
            headers: list[tuple[str, str | bytes | None]] = [*draft.headers]
            self._producer.produce(self.bus, draft.value, draft.key, timestamp=at, headers=headers)
        assert self._producer.flush(30) == 0

    def append(self, events: Iterable[tuple[str, int, int]]) -> None:
        """Append events as `publish` does, each with its partition and its record's timestamp."""
        for identity, partition, at in events:
            attributes = {"specversion": "1.0", "id": identity, "source": "/s"}
            draft = to_record(Event({**attributes, "type": identity[0]}, None))
            headers: list[tuple[str, str | bytes | None]] = [*draft.headers]
            self._producer.produce(
                self.bus, draft.value, None, partition, timestamp=at, headers=headers
            )
            self._producer.poll(0)
        assert self._producer.flush(30) == 0

    def past(self) -> Sequence[PastEvent]:
        """What is on the bus, in the order in which triggers take it."""
        found: list[tuple[Place, PastEvent]] = []
        for each in self.read(self.bus):
            record = cast(Record, each)
            envelope, at = read(record.headers() or (), record.value()), record.timestamp()[1]
            place = Place(at, record.partition(), record.offset())
            found.append((place, PastEvent(at, envelope.attributes, b"")))
        return [event for _, event in sorted(found, key=lambda each: each[0])]

    def publish_what_is_none(self) -> None:
        """Append a record to the bus that holds no event."""
        self._producer.produce(self.bus, b"{")
        assert self._producer.flush(30) == 0

    def routed(self) -> Mapping[str, Sequence[Routed]]:
        """What is in the trigger topic, in the order of time, by its records' key."""
        found: dict[str, list[Routed]] = {}
        for each in self.read(self.trigger_topic):
            found.setdefault((each.key() or b"").decode(), []).append(
                parse_routed(cast(Record, each))
            )
        return {key: sorted(events) for key, events in found.items()}

    def actions(self) -> list[str]:
        """What has fired: `t1: a1 b1`, in the order of each partition."""
        return [action_in(record) for record in self.read(self.action_topic)]

    def action_ids(self) -> list[str]:
        """Of the events that have fired."""
        found = (cast(Record, each) for each in self.read(self.action_topic))
        return [read(each.headers(), each.value()).event.attributes["id"] for each in found]

    def read(self, topic: str) -> list[Message]:
        """All committed records of a topic."""
        consumer = Consumer(
            {**self._connection, "group.id": uuid.uuid4().hex, "enable.partition.eof": True}
        )
        try:
            numbers = consumer.list_topics(topic, timeout=30).topics[topic].partitions
            consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in numbers])
            records: list[Message] = []
            ended: set[int | None] = set()
            while len(ended) < len(numbers):
                for message in consumer.consume(1000, 1.0):
                    if (error := message.error()) is None:
                        records.append(message)
                    else:
                        assert error.code() == KafkaError._PARTITION_EOF
                        ended.add(message.partition())
            return records
        finally:
            consumer.close()

    def there(self, topic: str) -> bool:
        """Whether a topic exists."""
        consumer = Consumer({**self._connection, "group.id": self.group})
        try:
            return topic in consumer.list_topics(timeout=30).topics
        finally:
            consumer.close()

    def end(self, topic: str, number: int = 0) -> int:
        consumer = Consumer({**self._connection, "group.id": self.group})
        try:
            _, end = consumer.get_watermark_offsets(TopicPartition(topic, number), 30)
            return end
        finally:
            consumer.close()

    def committed(self, topic: str) -> Mapping[int, OffsetAndMetadata]:
        """What the Sensor's group has committed."""
        consumer = Consumer({**self._connection, "group.id": self.group})
        try:
            numbers = consumer.list_topics(topic, timeout=30).topics[topic].partitions
            found = consumer.committed([TopicPartition(topic, each) for each in numbers], 30)
            return {
                each.partition: OffsetAndMetadata(each.offset, metadata_of(each))
                for each in found
                if each.offset >= 0
            }
        finally:
            consumer.close()


def action_in(record: Message) -> str:
    """What has fired, and with which events."""
    event = read(cast(Record, record).headers(), record.value()).event
    held = [each["id"] for each in json.loads(event.data or b"")]
    return f"{event.attributes['sensortrigger']}: {' '.join(held)}"


def process(
    processors: Sequence[Processor], done: Callable[[], bool], patience: float = 60
) -> None:
    """Have them handle what comes, in turns, until something is done."""
    deadline = time.monotonic() + patience
    while not done():
        for each in processors:
            each.step(round(time.time() * 1000))
        assert time.monotonic() < deadline, "it isn't done"


def rest(processors: Sequence[Processor], quiet: float = 1.0) -> None:
    """Have them handle what comes until nothing has come for a while."""
    since = time.monotonic()
    while time.monotonic() < since + quiet:
        for each in processors:
            if each.step(round(time.time() * 1000)) or each.is_waiting:
                since = time.monotonic()
