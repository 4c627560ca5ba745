"""A reader of given positions: `ports.shared_log.PositionedReader` on a consumer.

The consumer never joins a group, so a slow reader can't be removed from one.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple, cast

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from knafka.clients.kafka.call_thread import CallThread
from knafka.clients.kafka.consumers.kafka_cut_logs import assign_checked, cut_of
from knafka.clients.kafka.consumers.kafka_replaced_topics import ReplacedTopics, TopicIds
from knafka.clients.kafka.consumers.kafka_stalled_partitions import StalledPartitions
from knafka.clients.kafka.kafka_acls import name_missing_right
from knafka.clients.kafka.kafka_client import (
    CONSUMER_DEFAULTS,
    LOST_OFFSET_ERRORS,
    TRANSIENT_ERRORS,
    Connection,
    log_error_of,
    open_client,
    raising_log_errors,
)
from knafka.clients.kafka.kafka_commits import epoch_of
from knafka.clients.kafka.kafka_liveness import Liveness
from knafka.core.errors import LogError
from knafka.observability import RateLimitedFilter
from knafka.ports.log import Positions, Record
from knafka.ports.shared_log import BEGINNING, NO_EPOCH, EpochStart, Position

log = logging.getLogger(__name__)
_librdkafka = logging.getLogger("librdkafka.positioned")
_librdkafka.addFilter(RateLimitedFilter())

POSITIONED_GROUP_PREFIX: Final = "knafka-positioned-reader"
"""Prefix of the group id that librdkafka requires; Kafka never sees it, as nothing subscribes or
commits."""


class KafkaPositionedReader:
    """A `PositionedReader` on real Kafka: one consumer, used only by its own thread
    (docs/decisions/0004)."""

    def __init__(self, connection: Connection, topic: str, ids: TopicIds | None = None) -> None:
        """Open the consumer and its thread; nothing is read until `begin`. `ids` reads the topic's
        id; several readers can share one `TopicIds`, and so its admin client. None: this reader
        creates one of its own. Raises `LogError`."""
        self._topic = topic
        self._thread = CallThread(asyncio.get_running_loop(), "kafka-positioned")
        self.ends: Positions = {}
        """Partitions whose end the last read has reached, with the offset of the end."""
        self.new_epochs: Mapping[int, Sequence[EpochStart]] = {}
        """Leader epochs that begin in the records of the last read, by partition."""
        self.restarted: Mapping[int, Position] = {}
        """Partitions whose log was another one at the last read, and is read again from its start.
        The value is the position up to which the old and the new log are equal; `BEGINNING` if they
        may differ from the start."""
        self._connection = connection
        # Used only on the thread from here on:
        self._consumer = self._open_consumer()
        self._replaced = ReplacedTopics(ids or TopicIds(connection), [topic])
        self._active_partitions: set[int] = set()
        """Partitions that are being read."""
        self._epochs: dict[int, int] = {}
        """Leader epoch of the last record of each partition."""
        self._failure: LogError | None = None
        """The error that the next read raises, once; None: there is none."""
        self._liveness = Liveness(connection, topic)
        self._stalled = StalledPartitions(connection)

    def _open_consumer(self) -> Consumer:
        """Open and return a consumer without partitions. librdkafka requires a group id, so it gets
        one that nobody else has; it never joins that group. Raises `LogError`."""
        group = f"{POSITIONED_GROUP_PREFIX}-{uuid.uuid4().hex[:8]}"
        return open_client(
            Consumer,
            {"logger": _librdkafka, **CONSUMER_DEFAULTS, **self._connection, "group.id": group},
        )

    def begin(self, positions: Mapping[int, Position]) -> None:
        """Start to read partitions at these positions; if that fails, the next read raises the
        error."""
        self._thread.call(partial(self._begin, dict(positions)))

    def drop(self, partitions: Collection[int]) -> None:
        """Stop reading these partitions."""
        self._thread.call(partial(self._drop, set(partitions)))

    def pause(self, partitions: Collection[int]) -> None:
        """Read no records of these partitions until `resume`."""
        self._thread.call(partial(self._set_paused, set(partitions), paused=True))

    def resume(self, partitions: Collection[int]) -> None:
        """Read records of these partitions again."""
        self._thread.call(partial(self._set_paused, set(partitions), paused=False))

    async def read(self, limit: int, timeout: float) -> Sequence[Record]:
        """Return up to `limit` records, waiting up to `timeout` seconds for the first. Raises
        `LogError`."""
        self._replaced.start()
        answer: _PositionedRead = await self._thread.call(partial(self._read, limit, timeout))
        self.ends, self.restarted = answer.ends, answer.restarted
        self.new_epochs = answer.new_epochs
        return answer.records

    async def close(self, timeout: float) -> None:
        """Close the consumer; wait for that at most `timeout` seconds."""
        closing = self._thread.call(lambda: self._consumer.close())
        self._thread.end()
        try:
            await asyncio.wait({closing}, timeout=timeout)
        finally:
            closing.cancel()
            await self._replaced.close()

    # On the thread

    def _begin(self, positions: Mapping[int, Position]) -> None:
        """Start to read partitions at these positions, on the consumer's thread; `BEGINNING`, or an
        offset below that, stands for the partition's start. If this fails, the next `_read` raises
        the error."""
        start_positions = [
            TopicPartition(
                self._topic, number, max(position.offset, OFFSET_BEGINNING), "", position.epoch
            )
            for number, position in positions.items()
        ]
        try:
            assign_checked(self._consumer, start_positions)
            self._stalled.begin(start_positions)
        except LogError as error:
            self._failure = error
        self._active_partitions.update(positions)

    def _drop(self, numbers: set[int]) -> None:
        """Stop reading these partitions, if they are being read; called on the consumer's
        thread."""
        dropped = numbers & self._active_partitions
        self._active_partitions -= dropped
        for number in dropped:
            self._epochs.pop(number, None)
        if dropped:
            self._stalled.drop(self._partitions(dropped))
            self._consumer.incremental_unassign(self._partitions(dropped))

    def _set_paused(self, numbers: set[int], *, paused: bool) -> None:
        """Pause or resume these partitions, without those that aren't being read; called on the
        consumer's thread. If this fails, the next `_read` raises the error."""
        partitions = self._partitions(numbers & self._active_partitions)
        try:
            if paused:
                self._consumer.pause(partitions)
                self._stalled.pause(partitions)
            else:
                self._consumer.resume(partitions)
                self._stalled.resume(partitions)
        except KafkaException as error:
            self._failure = log_error_of(error.args[0])

    def _partitions(self, numbers: Collection[int]) -> list[TopicPartition]:
        """Return confluent-kafka's objects for these partitions."""
        return [TopicPartition(self._topic, number) for number in numbers]

    def _read(self, limit: int, timeout: float) -> _PositionedRead:
        """Read up to `limit` records on the consumer's thread, waiting up to `timeout` seconds for
        the first. Raises `LogError`."""
        with raising_log_errors():
            return self._read_messages(limit, timeout)

    def _read_messages(self, limit: int, timeout: float) -> _PositionedRead:
        """Poll up to `limit` messages once, waiting up to `timeout` seconds for the first, and sort
        them into records, ends and restarted partitions. Raises `LogError` and `KafkaException`."""
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        records: list[Record] = []
        last_messages: dict[int, Message] = {}
        ends: dict[int, int] = {}
        restarted: dict[int, Position] = {}
        if self._replaced.pop():
            restarted = self._react_to_replacement()
        messages = self._poll_messages(limit, timeout, ends)
        for message in messages:
            error, number = message.error(), cast(int, message.partition())
            if number not in self._active_partitions:
                continue  # dropped after librdkafka has queued the message
            if error is None:
                records.append(cast(Record, message))
                last_messages[number] = message
                ends.pop(number, None)
            elif error.code() in LOST_OFFSET_ERRORS:
                position = self._restart_partition(message, number)
                # If the topic was replaced as well, `BEGINNING` is stored already, and must stay.
                restarted[number] = min(position, restarted.get(number, position))
                ends.pop(number, None)
                last_messages.pop(number, None)
                # Earlier records of this batch are from a log that is gone.
                records = [record for record in records if record.partition() != number]
            elif error.code() == KafkaError._PARTITION_EOF:
                ends[number] = cast(int, message.offset())
                self._stalled.note_end(message)
            elif not error.retriable() and error.code() not in TRANSIENT_ERRORS:
                self._failure = name_missing_right(log_error_of(error), topic=("Read", self._topic))
        self._liveness.check(self._consumer, heard=bool(records or ends or restarted))
        if len(messages) < limit:
            self._replace_if_stalled()
        new_epochs: dict[int, Sequence[EpochStart]] = {}
        for number, message in last_messages.items():
            epoch = _epoch_of(message)
            # Epochs only grow: if the last record has the known one, none began before it either.
            if epoch != self._epochs.get(number):
                new_epochs[number] = _epoch_starts(records, number, self._epochs.get(number))
                self._epochs[number] = epoch
        return _PositionedRead(records, ends, restarted, new_epochs)

    def _react_to_replacement(self) -> dict[int, Position]:
        """Read all partitions from their start, as the topic was deleted and created again. Returns
        their entries of `restarted`. `KafkaIdentifiedReader` overrides this to raise an error."""
        log.warning("%s was deleted and created again: it is read from its start", self._topic)
        for number in self._active_partitions:
            self._restart(number)
        return dict.fromkeys(self._active_partitions, Position(BEGINNING))

    def _poll_messages(self, limit: int, timeout: float, ends: dict[int, int]) -> list[Message]:
        """Return up to `limit` messages, waiting up to `timeout` seconds for the first. Reports of
        partitions' ends that arrive before the first are stored in `ends` instead."""
        # `consume` alone would wait until the batch is full, so `poll` waits for the first record.
        # A partition's end is no record, so the wait goes on after it.
        deadline = time.monotonic() + timeout
        while (first_message := self._consumer.poll(timeout)) is not None and _is_end(
            first_message
        ):
            ends[cast(int, first_message.partition())] = cast(int, first_message.offset())
            self._stalled.note_end(first_message)
            timeout = max(0.0, deadline - time.monotonic())
        if first_message is None:
            return []
        return (
            [first_message, *self._consumer.consume(limit - 1, 0)] if limit > 1 else [first_message]
        )

    def _replace_if_stalled(self) -> None:
        """Replace the consumer if it has stalled in a partition (`kafka_stalled_partitions`). The
        new consumer continues at the same positions; if a log is another one now, it reports that.
        Call this only when no record waits in the consumer's queue. Raises `LogError` if no new
        consumer can be opened."""
        if not (stalled := self._stalled.find(self._consumer)):
            return
        log.warning(
            "the consumer of %s has stalled in partitions %s, where a new one would go on: it is "
            "replaced", self._topic, sorted(partition.partition for partition in stalled),
        )  # fmt: skip
        positions, paused = self._stalled.positions(self._consumer), self._stalled.paused
        new_consumer = self._open_consumer()
        self._consumer.close()
        self._consumer = new_consumer
        try:
            assign_checked(new_consumer, positions)
            new_consumer.pause(paused)
        except LogError as error:
            self._failure = error
        except KafkaException as error:
            self._failure = log_error_of(error.args[0])
        self._stalled.begin(positions)
        self._stalled.pause(paused)

    def _restart_partition(self, message: Message, number: int) -> Position:
        """Read a partition from its start: `message` reports that its log no longer has the next
        offset. Returns the partition's entry of `restarted`: the position up to which the old
        and the new log are equal; `BEGINNING` if they may differ from the start."""
        cut = cut_of(self._consumer, message)
        log.warning(
            "partition %d of %s is another log than before, and is read again: %s",
            number, self._topic, message.error(),
        )  # fmt: skip
        if cut is None:
            self._replaced.hasten()  # other partitions of the topic may be other logs, too
        self._restart(number)
        return Position(BEGINNING) if cut is None else Position(cut.offset, epoch_of(cut))

    def _restart(self, number: int) -> None:
        """Let the consumer read a partition from its start. This ends a pause of the partition.
        Raises `KafkaException`."""
        partition = TopicPartition(self._topic, number)
        self._consumer.incremental_unassign([partition])
        partition.offset = OFFSET_BEGINNING
        self._consumer.incremental_assign([partition])
        self._consumer.resume([partition])
        self._stalled.begin([partition])
        self._epochs.pop(number, None)


class _PositionedRead(NamedTuple):
    """The result of one read on the thread. The attributes of `KafkaPositionedReader` with the same
    names explain the last three fields."""

    records: list[Record]
    ends: dict[int, int]
    restarted: dict[int, Position]
    new_epochs: dict[int, Sequence[EpochStart]]


def _epoch_of(message: Message) -> int:
    """Return the leader epoch of a record; `NO_EPOCH` if it has none."""
    epoch = message.leader_epoch()
    return NO_EPOCH if epoch is None else epoch


def _epoch_starts(
    records: Sequence[Record], number: int, epoch: int | None
) -> Sequence[EpochStart]:
    """Return the leader epochs that begin in the partition `number` within these records; records
    of other partitions are ignored. `epoch`: the leader epoch of the partition's record before
    these; None: not known, so an epoch counts as beginning at the partition's first record."""
    starts: list[EpochStart] = []
    for record in records:
        if record.partition() != number:
            continue
        record_epoch = _epoch_of(cast(Message, record))
        if record_epoch != epoch:
            starts.append(EpochStart(record.offset(), record_epoch))
            epoch = record_epoch
    return starts


def _is_end(message: Message) -> bool:
    """Whether a message says that its partition is read to its end."""
    error = message.error()
    return error is not None and error.code() == KafkaError._PARTITION_EOF
