"""Contracts: what a Broker's shared dispatchers deliver, and what receivers accept, each in a topic
of its Kafka.

    read whole, once -> records in mind -> written record by record, and awaited there

A write returns when its record is durable; records that come meanwhile are written together.
After a write that failed nobody knows what the topic has, so it is read again.

Not here: what a record should be (`decide`), and whose Services read it (`shards`, `receivers`).
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from knafka.core import documents
from knafka.core.contract import SharedEgress
from knafka.core.documents import Model
from knafka.core.errors import LogError
from knafka.ports.log import Record
from knafka_operator.decide import shards as deciding
from knafka_operator.decide.desired import Topic
from knafka_operator.decide.status import NotReady
from knafka_operator.model.identity import Identity
from knafka_operator.reconcile.topics import ensure_topic
from knafka_operator.scale.kafka_clusters import KafkaCluster
from knafka_operator.scale.parsing import parsed

log = logging.getLogger(__name__)

EVERYTHING: Final = 1_000_000
"""More records than there are in any contract's topic, before it is compacted too."""

WRITE_TIMEOUT: Final = 30.0
"""Seconds for records to be durable."""

APPLIED_TIMEOUT: Final = 10.0
"""Seconds for every process of a shard to say that it delivers by what was written; after that
the Trigger says so and is looked at again."""


T = TypeVar("T", bound=Model)
"""What one record says."""


@dataclass(eq=False, slots=True)
class _Write(Generic[T]):
    key: str
    entry: T | None
    """None: a tombstone."""
    done: asyncio.Future[None]


@dataclass(eq=False)
class Contract(Generic[T]):
    """A contract's topic in one Kafka; belongs to one event loop."""

    topic: str
    kafka: KafkaCluster
    parse: Callable[[Iterable[Record]], dict[str, T]]
    """What records say, oldest first, by key."""
    exists: bool = False
    known: bool = True
    """Whether `records` is what the topic has."""
    records: dict[str, T] = field(default_factory=dict)
    position: int = 0
    """The topic's end, behind all that was written."""
    readings: int = 0
    """How often the topic was read: another one may stand there since."""
    looked_after: int = 0
    """The reading after which it was seen to that the topic is compacted."""
    checked: float = -math.inf
    """When it was compared with the topic, by the event loop's clock."""
    _writes: list[_Write[T]] = field(default_factory=list)
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def load(self) -> None:
        """Read the topic, unless it is known; raises `LogError`."""
        if self.known:
            return
        async with self._lock:
            if not self.known:
                await self._read()

    async def create(self, topic: Topic) -> None:
        """Have the topic; raises `LogError`."""
        async with self._lock:
            if not self.exists:
                await ensure_topic(self.kafka, topic)
                self.exists = True

    async def write(self, key: str, entry: T | None) -> None:
        """Put down an entry, or that there is none; returns when that is durable.

        Raises `LogError`: then it may be there or not, and the topic is read again.
        """
        mine = _Write(key, entry, asyncio.get_running_loop().create_future())
        # The one that wrote it together with its own may be the only one that is still there.
        mine.done.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._writes.append(mine)
        async with self._lock:
            if not mine.done.done():
                writes, self._writes = self._writes, []
                await self._write(writes)
        await mine.done

    async def delete_if_empty(self) -> None:
        """Delete the topic, unless it has any entry; raises `LogError`."""
        async with self._lock:
            # As it is now: another operator may have written since.
            await self._read()
            if self.exists and not self.records:
                self.known = False
                await self.kafka.topics.delete_topic(self.topic)
                log.info("topic %s is deleted: nobody is left in it", self.topic)

    async def check(self) -> bool:
        """Read the topic again if it isn't as it was left; whether it had changed.

        A write that was given up may have come late, and somebody may have made the topic anew.
        Raises `LogError`.
        """
        if not self.exists or self._lock.locked():
            return False
        before, position = dict(self.records), self.position
        try:
            if sum((await self.kafka.topics.end_offsets(self.topic)).values()) == position:
                return False
        except LogError as error:
            if not error.unknown_topic:
                raise
        async with self._lock:
            if self.position == position:
                await self._read()
        return self.records != before

    async def _read(self) -> None:
        topics = self.kafka.topics
        try:
            records = await topics.read_all(self.topic, EVERYTHING)
            self.position = sum((await topics.end_offsets(self.topic)).values())
            self.exists = True
        except LogError as error:
            if not error.unknown_topic:
                raise
            records, self.exists, self.position = (), False, 0
        # By offset: what was written later may have an earlier time, by another operator's clock.
        stored = sorted(records, key=lambda record: record.offset())
        size = sum(len(record.value() or b"") for record in stored)
        self._found(await parsed(lambda: self.parse(stored), size))
        self.known = True
        self.readings += 1

    def _found(self, records: dict[str, T]) -> None:
        """The topic has these."""
        self.records = records

    def _written(self, key: str, entry: T | None) -> None:
        """This is durable now."""
        if entry is None:
            self.records.pop(key, None)
        else:
            self.records[key] = entry

    async def _write(self, writes: list[_Write[T]]) -> None:
        """Write these together; their futures say how that went."""
        try:
            async with asyncio.timeout(WRITE_TIMEOUT):
                await self._append(writes)
                ends = await self.kafka.topics.end_offsets(self.topic)
        except BaseException as error:
            self.known = False
            if isinstance(error, TimeoutError):
                error = LogError(f"Kafka did not take a record of {self.topic} in time")
            for each in writes:
                if not each.done.done():
                    each.done.set_exception(_told(error))
            if isinstance(error, LogError):
                return
            raise
        self.position = sum(ends.values())
        for each in writes:
            self._written(each.key, each.entry)
            each.done.set_result(None)

    async def _append(self, writes: list[_Write[T]]) -> None:
        loop, writer = asyncio.get_running_loop(), self.kafka.writer()
        stored = []
        for each in writes:
            durable: asyncio.Future[None] = loop.create_future()
            stored.append(durable)

            def reported(error: LogError | None, durable: asyncio.Future[None] = durable) -> None:
                if durable.done():
                    return
                if error is None:
                    durable.set_result(None)
                else:
                    durable.set_exception(error)

            text = None if each.entry is None else _json(each.entry)
            writer.append(self.topic, each.key.encode(), text, [], reported)
        failures = [each for each in await asyncio.gather(*stored, return_exceptions=True) if each]
        if failures:
            raise failures[0]


class ContractLog(Contract[SharedEgress]):
    """What one Broker's shared dispatchers deliver, by consumer group."""

    def __init__(self, broker: Identity, topic: str, kafka: KafkaCluster, *, known: bool) -> None:
        super().__init__(topic, kafka, deciding.read, known=known)
        self.broker = broker
        """Its namespace, and what stands for it in names of shards."""
        self.numbers: dict[str, int] = {}
        """The shard of each group, of those included that were given one and have no record yet."""
        self.leaving: dict[str, tuple[str, int]] = {}
        """Groups whose record is gone: the shard, and the position from which it knows."""

    def view(self) -> deciding.Contract:
        """As it is decided upon."""
        return deciding.Contract(self.exists, self.records, self.leaving, self.numbers)

    def members(self, number: int) -> int:
        """How many are in this shard, or on their way there."""
        return sum(each == number for each in self.numbers.values())

    async def withdraw(self, group: str) -> None:
        """Have no shard deliver this group; returns when every process has let go.

        Raises `LogError`, and `NotReady` while one hasn't.
        """
        await self.load()
        if (record := self.records.get(group)) is not None:
            await self.write(group, None)
            self.leaving[group] = record.shard, self.position
        if (pending := self.leaving.get(group)) is not None:
            await self.applied(*pending)
            self.leaving.pop(group, None)
        self.numbers.pop(group, None)

    async def applied(self, shard: str, position: int | None = None) -> None:
        """Returns when every process of a shard that is asked to drain delivers by what was
        written; raises `NotReady` if that takes long."""
        position = self.position if position is None else position
        if not await self.kafka.scaler.applied(shard, position, APPLIED_TIMEOUT):
            raise NotReady(
                "ShardBehind",
                "a shared dispatcher doesn't say yet that it delivers by what is declared now: "
                f"offset {position} of topic {self.topic}",
                transient=True,
            )

    def _found(self, records: dict[str, SharedEgress]) -> None:
        reserved = {each: self.numbers[each] for each in self.numbers.keys() - self.records.keys()}
        super()._found(records)
        self.numbers = {**reserved, **deciding.numbers_of(*self.broker, records)}

    def _written(self, key: str, entry: SharedEgress | None) -> None:
        super()._written(key, entry)
        if entry is not None:
            self.leaving.pop(key, None)


def _told(error: BaseException) -> LogError:
    return error if isinstance(error, LogError) else LogError(f"it isn't written: {error!r}")


def _json(entry: Model) -> bytes:
    return json.dumps(documents.dump(entry), separators=(",", ":")).encode()
