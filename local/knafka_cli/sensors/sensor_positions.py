"""Where a Sensor's group stands: the record that is next in each partition, and passing over one.

    committed offset --read--> the next record          what a Sensor that doesn't go on stands at
    the record --> the dead-letter topic --> the group's offset behind it

A record is passed over only once it is durable as a dead letter, and only where it is the next one.
Kafka takes offsets from somebody who isn't in the group only while nobody is in it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from confluent_kafka import TopicPartition

from knafka.clients.kafka_admin import KafkaAdmin
from knafka.clients.kafka_client import READING
from knafka.clients.kafka_writer import KafkaWriter
from knafka.core.delivery import Reason
from knafka.core.errors import InvalidEvent, KnafkaError, LogError
from knafka.core.kafka_binding import Draft, RecordHeaders, read
from knafka.core.sensor import letters, records
from knafka.core.sensor.contract import Sensor
from knafka.core.times import rfc3339
from knafka.dispatcher.appending import append
from knafka.ports.log import Record
from knafka.ports.shared_log import GroupHasMembers
from knafka_cli.shared.options import ask_kafka
from knafka_client.state.installation import SensorPlace
from knafka_client.topics.dead_letters import shown
from knafka_client.topics.ranges import RangeReader
from knafka_client.topics.replaying import WRITER_CLOSE_TIMEOUT

RECORD_READ_TIMEOUT: Final = 10.0
"""Seconds to get one record."""
SKIPPED: Final = "it was skipped by hand (knafka sensor skip)"


class CannotSkip(KnafkaError):
    """A record is not passed over; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Standing:
    """A partition in which a Sensor's group has something to read."""

    topic: str
    partition: int
    offset: int
    """Committed, or the partition's start."""
    metadata: str
    """Committed beside it."""
    end: int
    record: Record | None
    """The next one; None: only transactions' markers follow, or it can't be read yet."""
    headers: RecordHeaders | None
    """The record's, which are asked for once; None: they can't be read."""

    @property
    def place(self) -> str:
        offset = self.offset if self.record is None else self.record.offset()
        return f"{self.topic}/{self.partition}/{offset}"

    def text(self, sensor: SensorPlace) -> str:
        """One line for a person about the next record."""
        unread = f"{self.place}, {self.end - self.offset} offsets before the end"
        return f"{unread}: {'nothing to read' if self.record is None else self._about(sensor)}"

    def _about(self, sensor: SensorPlace) -> str:
        record = cast(Record, self.record)
        value = record.value()
        what = f"{len(value or b'')} bytes of {rfc3339(record.timestamp()[1] / 1000)}"
        headers = self.headers
        if headers is None:
            return f"{what}, no event: its headers can't be read"
        try:
            if self.topic == sensor.trigger_topic:
                trigger_record = records.read_trigger(record.key(), value, headers, record.offset())
                source, _, identity = trigger_record.event.identity.partition(" ")
                generation = f"of generation {trigger_record.generation} of the Sensor"
                what += (
                    f" for {trigger_record.key} as {trigger_record.event.dependency}, {generation}"
                )
                return shown(f"{what}: {identity} from {source}")
            about = read(headers, value).attributes
        except InvalidEvent as error:
            return shown(f"{what}, no event: {error}")
        return shown(f"{what}: {about['type']} {about['id']} from {about['source']}")


def standings(connection: Mapping[str, Any], sensor: SensorPlace) -> Sequence[Standing]:
    """The next record of a Sensor in each partition of its bus and its trigger topic that has
    unread records. Raises `LogError`."""
    with _reader(connection, sensor) as reader:
        return list(_standings(reader, sensor))


def skip(connection: Mapping[str, Any], sensor: SensorPlace, place: str) -> Standing:
    """Pass over the record at a place (`TOPIC/PARTITION/OFFSET`), which must be the next one; gives
    where the group stood. Raises `CannotSkip` and `LogError`."""
    with _reader(connection, sensor) as reader:
        there = {standing.place: standing for standing in _standings(reader, sensor)}
        standing = there.get(place)
        if standing is None or standing.record is None:
            following = ", ".join(
                name for name, standing in there.items() if standing.record is not None
            )
            raise CannotSkip(f"{place} is not the next record: that is {following or 'none'}")
        # First as it stands: a Sensor that has processes refuses it, and nothing was written.
        _commit(reader, sensor, standing, standing.offset)
        _dead_letter(connection, sensor, standing.record, standing.headers)
        _commit(reader, sensor, standing, standing.record.offset() + 1)
    return standing


def _reader(connection: Mapping[str, Any], sensor: SensorPlace) -> RangeReader:
    return RangeReader(connection, sensor.group, {**READING, "auto.offset.reset": "earliest"})


def _standings(reader: RangeReader, sensor: SensorPlace) -> Iterator[Standing]:
    for topic in (sensor.topic, sensor.trigger_topic):
        spans = reader.spans(topic)
        committed = reader.committed(topic, spans)
        for number, (low, end) in spans.items():
            offset, metadata = committed.get(number, (low, ""))
            if offset < end:
                record = reader.first_record(topic, number, offset, RECORD_READ_TIMEOUT)
                headers = None if record is None else _headers(record)
                yield Standing(topic, number, offset, metadata, end, record, headers)


def _headers(record: Record) -> RecordHeaders | None:
    """None: they can't be read, as one's name isn't UTF-8. To be asked for once."""
    try:
        return record.headers() or []
    except Exception:
        return None


def _commit(reader: RangeReader, sensor: SensorPlace, standing: Standing, offset: int) -> None:
    position = TopicPartition(standing.topic, standing.partition, offset, standing.metadata)
    try:
        reader.commit([position])
    except GroupHasMembers as error:
        raise CannotSkip(
            f"Sensor {sensor.namespace}/{sensor.name} has running processes, which own these "
            'offsets: set its annotation knafka.dev/paused: "true" first, and remove it afterwards'
        ) from error


def _dead_letter(
    connection: Mapping[str, Any],
    sensor: SensorPlace,
    record: Record,
    headers: RecordHeaders | None,
) -> None:
    """Raises `LogError`, and nothing was passed over."""
    whose = Sensor.model_construct(namespace=sensor.namespace, name=sensor.name, bus=sensor.bus)
    value = record.value()
    if record.topic() == sensor.trigger_topic:
        headers = letters.structured(value)
    place = record.topic(), record.partition(), record.offset()
    draft = Draft(record.key(), headers or [], value)
    failure = Reason.INTERNAL_ERROR, SKIPPED
    letter = letters.of_record(whose, place, draft, failure, time.time())

    async def store(admin: KafkaAdmin) -> None:
        settings, topic = sensor.dead_letter_settings, sensor.dead_letter_topic
        await admin.ensure_topic(topic, settings.partitions, settings.replication, settings.config)
        writer = KafkaWriter(dict(connection))
        try:
            error: LogError | None = await append(writer, topic, letter)
            if error is not None and error.too_large:
                error = await append(writer, topic, letters.cut(letter))
            if error is not None:
                raise error
        finally:
            await writer.close(WRITER_CLOSE_TIMEOUT)

    ask_kafka(connection, store)
