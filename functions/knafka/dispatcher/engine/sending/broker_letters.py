"""Dead letters of a Broker: one for each record that holds no event, however many Triggers read
it.

    A dispatcher reads the dead-letter topic. If it holds the record's dead letter, the record is
    settled and nothing is written. If not, and this dispatcher's turn is later, it reads the topic
    again soon. If not, and its turn has begun, it writes the dead letter, and the record is settled
    once that is durable.

The dispatchers of all Triggers read such a record at about the same moment, and one of them should
write its dead letter. No Trigger is elected for that, as the elected one may lag behind, be paused
or be deleted. Instead each dispatcher reads the dead-letter topic up to its end before it writes
there, and waits for its turn: a random moment within `TURN_WINDOW`, by which the others will see
its dead letter. A dispatcher whose turn has passed writes at once from then on. A dispatcher that
has seen another one's dead letter waits `DELAY_AFTER_OTHERS` longer. If two turns are closer
together than reading and writing take, two dead letters are written (at least once); `compact.plan`
merges dead letters of one origin.

The number of remembered dead letters is bounded: if one is forgotten, a second one may be written.

Not here: which records hold no event (`sender`), and creating the topic (`appending`).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

from knafka.core.dead_letter import origin_of
from knafka.core.delivery import Done, Retry
from knafka.core.errors import InvalidEvent, LogError
from knafka.core.events.kafka_binding import headers_of
from knafka.dispatcher.engine.sending.appending import DeadLetterTopic
from knafka.observability import RateLimitedFilter
from knafka.ports.log import Record, TopicTail

log = logging.getLogger(__name__)
log.addFilter(RateLimitedFilter(by_wording=True))

TURN_WINDOW: Final = 5.0
"""Seconds within which each dispatcher's turn lies. If 38 dispatchers read a record at the same
moment, and reading and writing take 15 ms, only one of them writes, nine times out of ten."""
DELAY_AFTER_OTHERS: Final = 1.0
"""Seconds by which the turn of a dispatcher is later once it has seen another one's dead letter."""
READ_AGAIN_INTERVAL: Final = 0.25
"""Seconds between two reads of the dead-letter topic before this dispatcher's turn."""
LETTERS_PER_READ: Final = 100
"""Dead letters that one read returns at most; each may take a megabyte."""
MAX_REMEMBERED_LETTERS: Final = 10_000
"""Dead letters that are remembered: one or two megabytes."""
MAX_CLOCK_DIFFERENCE: Final = 300_000
"""Milliseconds by which the clocks of two Kafka brokers may differ, and so a dead letter may have
an earlier timestamp than its record."""
LOG_APPEND_TIME: Final = 2
"""The type of a timestamp that a Kafka broker has set. Only such a timestamp bounds when the
record's dead letter was written."""


class _RecordIdentity(NamedTuple):
    """A record's topic, partition and offset, and a hash of its value: a topic that was created
    anew holds other records at the same offsets."""

    topic: str
    partition: int
    offset: int
    value_hash: int | None
    """A hash of the record's value; None: the record has no value, or its dead letter was stored
    without it."""


class BrokerDeadLetters:
    """Writes the dead letters of one Broker or KafkaChannel, for all of its Triggers in this
    process."""

    def __init__(
        self,
        topic: DeadLetterTopic,
        tail: TopicTail,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """`topic` stores the dead letters, and `tail` reads that topic. `draw` returns random
        numbers from 0 to 1, from which this dispatcher's turns are computed."""
        self.topic = topic
        self._tail = tail
        self._draw = draw
        self._read_since: int | None = None
        """Timestamp (ms) from which on the topic is read; None: the next read has to begin anew."""
        self._known: dict[_RecordIdentity, bool] = {}
        """Records whose dead letter exists, and whether this process wrote it; oldest first."""
        self._turn_begins_at: float | None = None
        """When this dispatcher's turn begins, on the event loop's clock; None: not drawn yet."""
        self._has_seen_others = False
        """Whether another process was seen to write a dead letter."""
        self._locks: WeakValueDictionary[_RecordIdentity, asyncio.Lock] = WeakValueDictionary()
        """A lock for each record in `write_once`, so that only one drain writes its dead letter."""
        self._read_lock = asyncio.Lock()
        """Held during a read of the topic, as all records share `_tail`."""
        self._reads_begun = self._last_complete_read = 0
        """`_reads_begun`: number of reads of the topic that have begun; `_last_complete_read`: the
        number of the last one that reached the end."""

    async def write_once(
        self, record: Record, write: Callable[[], Awaitable[Done | Retry]]
    ) -> Done | Retry | None:
        """Make sure that the record's dead letter is stored once. `write` writes it.

        Returns None if the dead letter exists already. Before this dispatcher's turn, returns a
        `Retry`, which says when to call again. Otherwise calls `write` and returns its result.
        Raises `LogError` if the topic can't be read.
        """
        identity = _identity_of(record.topic(), record.partition(), record.offset(), record.value())
        # In a shared dispatcher, many drains may hold the same record.
        lock = self._locks.setdefault(identity, asyncio.Lock())
        async with lock:
            if await self._look_for_letter(identity, record):
                if not self._is_ours(identity):
                    self._turn_begins_at, self._has_seen_others = None, True
                return None
            now = asyncio.get_running_loop().time()
            if self._turn_begins_at is None:
                # The topic is created first, as that takes longer than reading and writing it.
                await self.topic.ensure()
                wait = TURN_WINDOW * self._draw() + (
                    DELAY_AFTER_OTHERS if self._has_seen_others else 0.0
                )
                self._turn_begins_at = now + wait
            if now < self._turn_begins_at:
                return Retry(min(READ_AGAIN_INTERVAL, self._turn_begins_at - now))
            decision = await write()
            if isinstance(decision, Done):
                self._remember(identity, is_ours=True)
            return decision

    async def close(self, timeout: float) -> None:
        """Close the reader of the dead-letter topic, within `timeout` seconds."""
        await self._tail.close(timeout)

    async def _look_for_letter(self, identity: _RecordIdentity, record: Record) -> bool:
        """Return whether there is a dead letter of this record; read the topic up to its end if
        that isn't known. Without the right to read the topic, log that, and return what earlier
        reads have shown. Raises any other `LogError`."""
        reads_begun_before = self._reads_begun
        async with self._read_lock:
            # A complete read that began after this call answers it, too.
            if self._is_remembered(identity) or self._last_complete_read > reads_begun_before:
                return self._is_remembered(identity)
            kind, timestamp = record.timestamp()
            since = max(0, timestamp - MAX_CLOCK_DIFFERENCE) if kind == LOG_APPEND_TIME else 0
            if self._read_since is None or since < self._read_since:
                self._tail.begin(since)
                self._read_since = since
            self._reads_begun += 1
            try:
                while not self._is_remembered(identity):
                    if not (letters := await self._tail.read_on(LETTERS_PER_READ)):
                        self._last_complete_read = self._reads_begun
                        break
                    for letter in letters:
                        self._remember_record_of(letter)
            except asyncio.CancelledError:
                self._read_since = None  # the letters of this read are lost: read them again
                raise
            except LogError as error:
                if not error.denied:
                    raise
                log.warning(
                    "%s can't be read, so a record that holds no event may get a dead letter of "
                    "each Trigger: %s",
                    self.topic.name,
                    error,
                )
            return self._is_remembered(identity)

    def _is_remembered(self, identity: _RecordIdentity) -> bool:
        """Whether a dead letter of this record was seen or written."""
        return identity in self._known or identity._replace(value_hash=None) in self._known

    def _is_ours(self, identity: _RecordIdentity) -> bool:
        """Whether this process wrote the record's dead letter."""
        without_value = identity._replace(value_hash=None)
        return self._known.get(identity, False) or self._known.get(without_value, False)

    def _remember_record_of(self, letter: Record) -> None:
        """Remember the record that is named in a dead letter's headers."""
        # Anybody with the right to write to the topic can forge these headers.
        with suppress(InvalidEvent):
            if (origin := origin_of(headers_of(letter) or [])) is not None:
                self._remember(_identity_of(*origin, letter.value()), is_ours=False)

    def _remember(self, identity: _RecordIdentity, *, is_ours: bool) -> None:
        """Remember that the record has a dead letter, and whether this process wrote it; forget the
        oldest beyond `MAX_REMEMBERED_LETTERS`."""
        self._known.setdefault(identity, is_ours)
        while len(self._known) > MAX_REMEMBERED_LETTERS:
            del self._known[next(iter(self._known))]


def _identity_of(topic: str, partition: int, offset: int, value: bytes | None) -> _RecordIdentity:
    """Return the identity of the record at this offset with this value."""
    return _RecordIdentity(topic, partition, offset, None if value is None else hash(value))
