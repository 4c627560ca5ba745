"""Shows the next record of a Sensor in each partition, and skips one that blocks the Sensor.

    next:  read the record at the committed offset: it blocks a Sensor that makes no progress
    skip:  append the record to the dead-letter topic, then commit the offset after it

Only the next record can be skipped, and only once it is durable as a dead letter. Kafka accepts
offsets from outside a group only while the group has no member.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from confluent_kafka import TopicPartition

from knafka.clients.kafka.admin.kafka_admin import KafkaAdmin
from knafka.clients.kafka.kafka_client import CONSUMER_DEFAULTS
from knafka.clients.kafka.producers.kafka_writer import KafkaWriter
from knafka.core.dead_letter import stub_of
from knafka.core.delivery import Reason
from knafka.core.errors import InvalidEvent, KnafkaError, LogError
from knafka.core.events.kafka_binding import Draft, RecordHeaders, read
from knafka.core.sensor import letters, records
from knafka.core.sensor.contract import SensorContract
from knafka.core.times import rfc3339
from knafka.dispatcher.engine.sending.appending import append
from knafka.ports.log import Record
from knafka.ports.shared_log import GroupHasMembers
from knafka_cli.shared.options import ask_kafka
from knafka_client.state.installation import SensorPlace
from knafka_client.topics.dead_letters import preview_text
from knafka_client.topics.ranges import RangeReader
from knafka_client.topics.replaying import REPLAY_WRITER_CLOSE_TIMEOUT

RECORD_READ_TIMEOUT: Final = 10.0
"""Seconds to read one record."""
SKIPPED_TEXT: Final = "it was skipped by hand (knafka sensor skip)"
"""Error text of the dead letter of a skipped record."""


class CannotSkip(KnafkaError):
    """A record can't be skipped; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class SensorPosition:
    """A Sensor's position in a partition that the Sensor hasn't read to its end."""

    topic: str
    partition: int
    offset: int
    """The committed offset, or the partition's start."""
    metadata: str
    """The commit's metadata, which a new commit must keep; empty if nothing was committed."""
    end: int
    """The partition's end offset."""
    record: Record | None
    """The next record; None if only transaction markers follow, or if it can't be read yet."""
    headers: RecordHeaders | None
    """The record's headers, which the client returns only once; None if there is no record, or if
    they can't be read."""

    @property
    def place(self) -> str:
        """The next record's place, `TOPIC/PARTITION/OFFSET`; without a record, the position
        itself."""
        offset = self.offset if self.record is None else self.record.offset()
        return f"{self.topic}/{self.partition}/{offset}"

    def text(self, sensor: SensorPlace) -> str:
        """Return one line of text: where the next record is, and what it holds for this Sensor."""
        position = f"{self.place}, {self.end - self.offset} offsets before the end"
        if self.record is None:
            return f"{position}: nothing to read"
        return f"{position}: {self._record_description(sensor)}"

    def _record_description(self, sensor: SensorPlace) -> str:
        """Return a text about the next record, which must not be None: an event of the Sensor's
        Broker or channel, an event for one of its triggers (in the trigger topic), or no event."""
        record = cast(Record, self.record)
        value = record.value()
        description = f"{len(value or b'')} bytes of {rfc3339(record.timestamp()[1] / 1000)}"
        headers = self.headers
        if headers is None:
            return f"{description}, no event: its headers can't be read"
        try:
            if self.topic == sensor.trigger_topic:
                trigger_record = records.read_trigger_record(
                    record.key(), value, headers, record.offset()
                )
                source, _, event_id = trigger_record.event.identity.partition(" ")
                generation = f"of generation {trigger_record.generation} of the Sensor"
                description += (
                    f" for {trigger_record.key} as {trigger_record.event.dependency}, {generation}"
                )
                return preview_text(f"{description}: {event_id} from {source}")
            attributes = read(headers, value).attributes
        except InvalidEvent as error:
            return preview_text(f"{description}, no event: {error}")
        return preview_text(
            f"{description}: {attributes['type']} {attributes['id']} from {attributes['source']}"
        )


def unread_positions(
    connection: Mapping[str, Any], sensor: SensorPlace
) -> Sequence[SensorPosition]:
    """Return the Sensor's position in each partition with unread records, first of the topic of its
    Broker or channel, then of its trigger topic. Raises `LogError`."""
    with _open_reader(connection, sensor) as reader:
        return list(_read_positions(reader, sensor))


def skip(connection: Mapping[str, Any], sensor: SensorPlace, place: str) -> SensorPosition:
    """Skip the record at a place (`TOPIC/PARTITION/OFFSET`): store it as a dead letter, then commit
    the offset after it.

    Returns the Sensor's position before the skip. Raises `CannotSkip` if `place` isn't that of the
    next record of a partition, or if the Sensor has running processes; and `LogError`.
    """
    with _open_reader(connection, sensor) as reader:
        by_place = {position.place: position for position in _read_positions(reader, sensor)}
        position = by_place.get(place)
        if position is None or position.record is None:
            next_places = ", ".join(
                next_place
                for next_place, candidate in by_place.items()
                if candidate.record is not None
            )
            raise CannotSkip(f"{place} is not the next record: that is {next_places or 'none'}")
        # Commit the same offset first: if the Sensor has processes, Kafka refuses it, and no dead
        # letter is stored in vain.
        _commit(reader, sensor, position, position.offset)
        _store_dead_letter(connection, sensor, position.record, position.headers)
        _commit(reader, sensor, position, position.record.offset() + 1)
    return position


def _open_reader(connection: Mapping[str, Any], sensor: SensorPlace) -> RangeReader:
    """Return a reader of the Sensor's topics that can commit for its group."""
    return RangeReader(
        connection, sensor.group, {**CONSUMER_DEFAULTS, "auto.offset.reset": "earliest"}
    )


def _read_positions(reader: RangeReader, sensor: SensorPlace) -> Iterator[SensorPosition]:
    """Yield the Sensor's position in each partition with unread records. Reading a partition's next
    record takes at most `RECORD_READ_TIMEOUT` seconds. Raises `LogError`."""
    for topic in (sensor.topic, sensor.trigger_topic):
        spans = reader.spans(topic)
        committed = reader.committed(topic, spans)
        for partition, (low, end) in spans.items():
            # A group without a commit begins at the partition's start, `low`.
            offset, metadata = committed.get(partition, (low, ""))
            if offset < end:
                record = reader.first_record(topic, partition, offset, RECORD_READ_TIMEOUT)
                headers = None if record is None else _read_headers(record)
                yield SensorPosition(topic, partition, offset, metadata, end, record, headers)


def _read_headers(record: Record) -> RecordHeaders | None:
    """Return the record's headers; None if they can't be read. Called once for each record, since
    the client returns its headers only once."""
    try:
        return record.headers() or []
    except Exception:  # the client's, for a name that isn't UTF-8
        return None


def _commit(
    reader: RangeReader, sensor: SensorPlace, position: SensorPosition, offset: int
) -> None:
    """Commit this offset in the partition of `position` for the Sensor's group, and keep the
    metadata of the group's last commit. Raises `CannotSkip` if the Sensor has running processes,
    and `LogError`."""
    topic_partition = TopicPartition(position.topic, position.partition, offset, position.metadata)
    try:
        reader.commit([topic_partition])
    except GroupHasMembers as error:
        raise CannotSkip(
            f"Sensor {sensor.namespace}/{sensor.name} has running processes, which own these "
            'offsets: set its annotation knafka.dev/paused: "true" first, and remove it afterwards'
        ) from error


def _store_dead_letter(
    connection: Mapping[str, Any],
    sensor: SensorPlace,
    record: Record,
    headers: RecordHeaders | None,
) -> None:
    """Store a record as a dead letter of the Sensor; `headers` are the record's, None if they can't
    be read. Raises `LogError` if it isn't stored."""
    sensor_contract = SensorContract.model_construct(
        namespace=sensor.namespace, name=sensor.name, bus=sensor.bus
    )
    value = record.value()
    if record.topic() == sensor.trigger_topic:
        headers = letters.structured_headers(value)  # the value is a structured event
    place = record.topic(), record.partition(), record.offset()
    draft = Draft(record.key(), headers or [], value)
    failure = Reason.INTERNAL_ERROR, SKIPPED_TEXT
    letter = letters.of_record(sensor_contract, place, draft, failure, time.time())

    async def store(admin: KafkaAdmin) -> None:
        """Append the dead letter, without its data if it is too large."""
        settings, topic = sensor.dead_letter_settings, sensor.dead_letter_topic
        await admin.ensure_topic(topic, settings.partitions, settings.replication, settings.config)
        writer = KafkaWriter(dict(connection))
        try:
            error: LogError | None = await append(writer, topic, letter)
            if error is not None and error.too_large:
                error = await append(writer, topic, stub_of(letter))
            if error is not None:
                raise error
        finally:
            await writer.close(REPLAY_WRITER_CLOSE_TIMEOUT)

    ask_kafka(connection, store)
