"""Contracts: compacted Kafka topics that tell a Broker's shared dispatchers (its shards) what to
deliver, and receivers what to accept.

    read the whole topic once -> keep its records in memory -> append one record for each change

`write` returns when its record is durable; entries that arrive meanwhile are written as one batch,
of which each has its own result. A failed write leaves the topic's content unknown, so the topic is
read again; a record that is too large was surely not stored.

Not here: what a record should be (`shards`, `receivers.contract_topics`), and whose Services read
it (`dispatchers.shard_services`, `receivers.receivers`).
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Generic, TypeVar

from knafka.core import documents
from knafka.core.contract import SharedEgress
from knafka.core.documents import Model
from knafka.core.errors import LogError
from knafka.ports.log import Record
from knafka_operator.decisions.status import NotReady
from knafka_operator.kafka import shards
from knafka_operator.kafka.clusters import KafkaCluster
from knafka_operator.kafka.topic_creation import ensure_topic
from knafka_operator.model.identity import Identity
from knafka_operator.model.topics import Topic
from knafka_operator.scale.parsing import parse_off_loop

log = logging.getLogger(__name__)

MAX_RECORDS: Final = 1_000_000
"""Most records read from a contract topic; none has as many, even before compaction."""

WRITE_TIMEOUT: Final = 30.0
"""Seconds to wait until appended records are durable."""

APPLIED_TIMEOUT: Final = 10.0
"""Seconds for every process of a shard to report that it delivers by the written contract; after
that the Trigger isn't Ready and is reconciled again."""


T = TypeVar("T", bound=Model)
"""The model of an entry: a record's value."""


@dataclass(eq=False, slots=True)
class _Write(Generic[T]):
    """An entry to be written, and the future of its writing."""

    key: str
    """The record's key: a consumer group, or the path of a Broker or channel."""
    entry: T | None
    """The record's value; None: the entry is removed by a tombstone."""
    written: asyncio.Future[None]
    """Done once the record is durable; has the error if writing failed."""


@dataclass(eq=False)
class ContractTopic(Generic[T]):
    """A contract topic in one Kafka, with its records in memory; belongs to one event loop."""

    topic: str
    """The topic's name."""
    kafka: KafkaCluster
    """The Kafka with the topic; callers replace it when its Secret, and so the client, changes."""
    parse: Callable[[Iterable[Record]], dict[str, T]]
    """Parses the topic's records, oldest first, to entries by key."""
    exists: bool = False
    """Whether the topic is known to exist."""
    known: bool = True
    """Whether `records` matches the topic, as far as this process knows. If False, `load` reads the
    topic."""
    records: dict[str, T] = field(default_factory=dict)
    """The topic's entries by key: a consumer group, or the path of a Broker or channel."""
    position: int = 0
    """The topic's end offset after the last read or write."""
    compared: int = 0
    """The end offset up to which `records` surely matches the topic. Less than `position` if other
    processes have written in between; then `reload_if_changed` reads the topic again."""
    times_read: int = 0
    """How often the topic was read; a position from before the latest reading is invalid."""
    compaction_checked: int = 0
    """The value of `times_read` at which the topic's compaction was last checked; kept here for
    `receivers.receivers`."""
    checked_at: float = -math.inf
    """When `records` was last compared with the topic, by the event loop's clock; kept here for
    `receivers.receivers`."""
    _pending: list[_Write[T]] = field(default_factory=list)
    """Writes that the next holder of the lock appends together."""
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while the topic is read or written."""

    async def load(self) -> None:
        """Read the topic, unless `records` matches it; raises `LogError`."""
        if self.known:
            return
        async with self._lock:
            if not self.known:
                await self._read()

    async def ensure_created(self, topic: Topic) -> None:
        """Create the topic unless it exists; raises `LogError`."""
        async with self._lock:
            if not self.exists:
                await ensure_topic(self.kafka, topic)
                self.exists = True

    async def write(self, key: str, entry: T | None) -> None:
        """Write the entry of this key (None: remove it); returns when the record is durable.

        Raises `LogError`; then the record may be written or not, and the next `load` reads the
        topic again, unless the record is too large.
        """
        own_write = _Write(key, entry, asyncio.get_running_loop().create_future())
        # Retrieve an error even if this caller is cancelled while another one writes the entry:
        # asyncio would log an error that nobody has retrieved.
        own_write.written.add_done_callback(
            lambda written: written.cancelled() or written.exception()
        )
        self._pending.append(own_write)
        async with self._lock:
            # It is done already if the previous holder of the lock wrote all pending entries.
            if not own_write.written.done():
                writes, self._pending = self._pending, []
                await self._write_together(writes)
        await own_write.written

    async def delete_if_empty(self) -> None:
        """Delete the topic if it has no entries any more; raises `LogError`."""
        async with self._lock:
            # Read again first: another operator may have written since.
            await self._read()
            if self.exists and not self.records:
                self.known = False
                await self.kafka.topics.delete_topic(self.topic)
                self.exists, self.position, self.compared = False, 0, 0
                log.info("topic %s is deleted, as it has no entries any more", self.topic)

    async def reload_if_changed(self) -> bool:
        """Read the topic again if it has records that were neither read nor written here; returns
        whether `records` is different then.

        A write that timed out may have arrived late, another operator may have written, or the
        topic may have been recreated. Does nothing while the topic doesn't exist, or is read or
        written. Raises `LogError`.
        """
        if not self.exists or self._lock.locked():
            return False
        previous_records, compared = dict(self.records), self.compared
        try:
            if await self._read_end() == compared:
                return False
        except LogError as error:
            if not error.unknown_topic:
                raise
        async with self._lock:
            # If `compared` has changed, another task has read or written the topic meanwhile.
            if self.compared == compared:
                await self._read()
        return self.records != previous_records

    async def _read(self) -> None:
        """Read all records of the topic, and replace those in memory; a topic that doesn't exist
        has none. Raises `LogError`."""
        try:
            # The end is read before the records, so records appended in between count as not read.
            compared = await self._read_end()
            records = await self.kafka.topics.read_last(self.topic, MAX_RECORDS)
            self.position, self.compared = await self._read_end(), compared
            self.exists = True
        except LogError as error:
            if not error.unknown_topic:
                raise
            records, self.exists, self.position, self.compared = (), False, 0, 0
        # Sort by offset, not by time: another operator's clock may differ.
        stored = sorted(records, key=lambda record: record.offset())
        size = sum(len(record.value() or b"") for record in stored)
        self._set_records(await parse_off_loop(lambda: self.parse(stored), size))
        self.known = True
        self.times_read += 1

    async def _read_end(self) -> int:
        """Return the sum of the end offsets of the topic's partitions. Raises `LogError`."""
        return sum((await self.kafka.topics.end_offsets(self.topic)).values())

    def _set_records(self, records: dict[str, T]) -> None:
        """Replace the entries in memory by those that were read."""
        self.records = records

    def _set_record(self, key: str, entry: T | None) -> None:
        """Update an entry in memory after it was written durably; None: remove it."""
        if entry is None:
            self.records.pop(key, None)
        else:
            self.records[key] = entry

    async def _write_together(self, writes: list[_Write[T]]) -> None:
        """Write these entries to the topic and then to `records`, and complete their futures, each
        with its own `LogError` if its record failed. Raises only other errors, such as a
        cancellation."""
        try:
            async with asyncio.timeout(WRITE_TIMEOUT):
                errors = await self._append_durably(writes)
                for index, write in enumerate(writes if len(writes) > 1 else ()):
                    if (failure := errors[index]) is not None and failure.too_large:
                        # Kafka may have refused a whole batch of records for one of them.
                        (errors[index],) = await self._append_durably([write])
                position = await self._read_end()
        except BaseException as error:
            self.known = False
            if isinstance(error, TimeoutError):
                error = LogError(f"Kafka did not take a record of {self.topic} in time")
            for write in writes:
                if not write.written.done():
                    write.written.set_exception(_as_log_error(error))
            if isinstance(error, LogError):
                return
            raise
        if any(error is not None and not error.too_large for error in errors):
            self.known = False
        # `compared` counts only our own records: so it stays behind if others have written, too.
        self.position, self.compared = position, self.compared + errors.count(None)
        for write, log_error in zip(writes, errors, strict=True):
            if log_error is None:
                self._set_record(write.key, write.entry)
                write.written.set_result(None)
            else:
                write.written.set_exception(log_error)

    async def _append_durably(self, writes: list[_Write[T]]) -> list[LogError | None]:
        """Append a record for each entry; returns each one's error, or None, once all are durable
        or have failed."""
        loop, writer = asyncio.get_running_loop(), self.kafka.ensure_writer()
        reports = []
        for write in writes:
            report: asyncio.Future[LogError | None] = loop.create_future()
            reports.append(report)
            value = None if write.entry is None else _encode(write.entry)
            on_report = partial(_complete, report)
            try:
                writer.append(self.topic, write.key.encode(), value, [], on_report)
            except LogError as error:  # nothing was taken
                report.set_result(error)
        return await asyncio.gather(*reports)


class SharedContractTopic(ContractTopic[SharedEgress]):
    """The contract topic of one Broker's shared dispatchers: one record per consumer group."""

    def __init__(self, broker: Identity, topic: str, kafka: KafkaCluster, *, known: bool) -> None:
        """`known`: whether the topic is known to have no records, so that it needn't be read."""
        super().__init__(topic, kafka, shards.read_shared_egresses, known=known)
        self.broker = broker
        """Namespace and internal name (`Family.own_name`) of the Broker."""
        self.numbers: dict[str, int] = {}
        """The shard number of each group, including groups whose record is about to be written."""
        self.leaving: dict[str, tuple[str, int]] = {}
        """By group whose record was removed: its shard, and the topic's end offset after the
        removal. A group stays here until its shard is known to have read that far."""

    def snapshot(self) -> shards.SharedContract:
        """Return the contract as a value for decisions. It shares this topic's mappings, so later
        writes show in it."""
        return shards.SharedContract(self.exists, self.records, self.leaving, self.numbers)

    def group_count(self, number: int) -> int:
        """Return how many consumer groups shard `number` has, including groups whose record is
        about to be written."""
        return sum(shard == number for shard in self.numbers.values())

    async def withdraw(self, group: str) -> None:
        """Remove a group's record; returns when every process of its shard has stopped delivering
        the group's events.

        Raises `LogError`, and `NotReady` while a process may still deliver them.
        """
        await self.load()
        if (record := self.records.get(group)) is not None:
            await self.write(group, None)
            self.leaving[group] = record.shard, self.position
        if (removal := self.leaving.get(group)) is not None:
            await self.wait_until_applied(*removal)
            self.leaving.pop(group, None)
        self.numbers.pop(group, None)

    async def wait_until_applied(self, shard: str, position: int | None = None) -> None:
        """Wait until every delivering process of `shard` has applied the contract's records before
        offset `position`; None: before the topic's end, as last known. Raises `NotReady` after
        `APPLIED_TIMEOUT` seconds."""
        position = self.position if position is None else position
        if not await self.kafka.scaler.wait_until_applied(shard, position, APPLIED_TIMEOUT):
            raise NotReady(
                "ShardBehind",
                "a shared dispatcher hasn't confirmed yet that it delivers as declared now: "
                f"offset {position} of topic {self.topic}",
                transient=True,
            )

    def _set_records(self, records: dict[str, SharedEgress]) -> None:
        """Replace the entries in memory, and compute the groups' shard numbers again; numbers of
        groups whose record is about to be written stay."""
        reserved = {
            group: self.numbers[group] for group in self.numbers.keys() - self.records.keys()
        }
        super()._set_records(records)
        self.numbers = {**reserved, **shards.shard_numbers(*self.broker, records)}
        # A topic that was created again may be shorter: no process gets further than its end.
        self.leaving = {
            group: (shard, min(position, self.position))
            for group, (shard, position) in self.leaving.items()
        }

    def _set_record(self, key: str, entry: SharedEgress | None) -> None:
        """Update a group's entry in memory; a group with an entry isn't leaving any more, and has a
        shard number, which `withdraw` may have removed since it was reserved."""
        super()._set_record(key, entry)
        if entry is not None:
            self.leaving.pop(key, None)
            if key not in self.numbers:
                self.numbers.update(shards.shard_numbers(*self.broker, {key: entry}))


def _complete(report: asyncio.Future[LogError | None], error: LogError | None) -> None:
    """Complete the future that waits for the report about a record; `error` is None if Kafka has
    stored the record. Does nothing if the future is done already, as after a cancellation."""
    if not report.done():
        report.set_result(error)


def _as_log_error(error: BaseException) -> LogError:
    """Return `error` if it is a `LogError`, else a new `LogError` that describes it."""
    return error if isinstance(error, LogError) else LogError(f"it isn't written: {error!r}")


def _encode(entry: Model) -> bytes:
    """Return the value of an entry's record: compact JSON."""
    return json.dumps(documents.dump(entry), separators=(",", ":")).encode()
