"""Dead letters of a Broker's records that hold no event: one each, whoever reads the record first.

    a letter of the record is there ----------------------------> settled, nothing written
    none, and it isn't our turn --------------------------------> look again soon
    none, and it is our turn ------------> written, durable ----> settled

Each Trigger of a Broker reads such a record, and each dispatcher looks into the one topic of these
letters before it writes into it, on from where it looked last. Nobody is elected, as whoever is may
be behind, paused or deleted. So that those that read a record at the same moment don't write at
the same moment, a dispatcher has its turn at random within `TURN`; the others see its letter by
then. Who has had its turn writes at once from then on, and who has seen a letter of somebody else's
lets that one go first. Two whose turns are closer than a look and a write take still write two (at
least once): the tables fold what has one origin (`compact.plan`).

What is remembered of the topic is bounded: of a letter that is forgotten a second one is written.

Not here: what is no event (`sender`), and making the topic (`appending`).
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
from knafka.dispatcher.appending import DeadLetterTopic
from knafka.observability import RateLimitedFilter
from knafka.ports.log import Record, TopicTail, headers_of

log = logging.getLogger(__name__)
log.addFilter(RateLimitedFilter(by_wording=True))

TURN: Final = 5.0
"""Seconds within which a dispatcher has its turn. Where a look and a write take 15 ms together, of
38 that read a record at the same moment one alone writes nine times out of ten."""
AFTER_OTHERS: Final = 1.0
"""Seconds by which the turn of one comes later that has seen somebody else's letter."""
LOOK_AGAIN: Final = 0.25
"""Seconds until the next look while it isn't our turn."""
READ_LIMIT: Final = 100
"""Letters that are held at once while they are looked through; each may have a megabyte."""
REMEMBERED: Final = 10_000
"""Letters: a megabyte or two."""
CLOCKS_DIFFER: Final = 300_000
"""Milliseconds by which the clocks of two Kafka brokers may differ: a letter may look that much
older than its record."""
LOG_APPEND_TIME: Final = 2
"""The kind of a record's timestamp that Kafka has given it; a sender's says nothing."""


class _Place(NamedTuple):
    """Where a record lies, and what it holds: a topic that was made anew has others there."""

    topic: str
    partition: int
    offset: int
    value_hash: int | None
    """None of a record without a value, and of a letter that was stored without it."""


class BrokerDeadLetters:
    """Those of one Broker or KafkaChannel, for all of its Triggers in this process."""

    def __init__(
        self,
        topic: DeadLetterTopic,
        tail: TopicTail,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """`draw` gives numbers from 0 to 1."""
        self.topic = topic
        self._tail = tail
        self._draw = draw
        self._began: int | None = None
        """Since when (ms) the topic is read; None: it isn't yet."""
        self._known: dict[_Place, bool] = {}
        """Records of which a letter is there, and whether we have written it; oldest first."""
        self._turn: float | None = None
        """From when on we write, by the event loop's clock; None: that isn't decided."""
        self._sees_others = False
        self._keeping: WeakValueDictionary[_Place, asyncio.Lock] = WeakValueDictionary()
        self._looking = asyncio.Lock()
        self._looks = self._complete = 0
        """Looks that have begun, and the last one of them that has reached the end."""

    async def keep(
        self, record: Record, write: Callable[[], Awaitable[Done | Retry]]
    ) -> Done | Retry | None:
        """Have a dead letter of a record, which is durable then: `write` has written it; None: it
        was there; `Retry`: neither yet. Raises `LogError` if it can't be looked whether it is."""
        place = _place_of(record.topic(), record.partition(), record.offset(), record.value())
        # In a shared dispatcher many have the same record.
        lock = self._keeping.setdefault(place, asyncio.Lock())
        async with lock:
            if await self._is_there(place, record):
                if not self._is_ours(place):
                    self._turn, self._sees_others = None, True
                return None
            now = asyncio.get_running_loop().time()
            if self._turn is None:
                # Made first, as that takes longer than a look and a write.
                await self.topic.ensure()
                wait = TURN * self._draw() + (AFTER_OTHERS if self._sees_others else 0.0)
                self._turn = now + wait
            if now < self._turn:
                return Retry(min(LOOK_AGAIN, self._turn - now))
            decision = await write()
            if isinstance(decision, Done):
                self._remember(place, is_ours=True)
            return decision

    async def close(self, timeout: float) -> None:
        await self._tail.close(timeout)

    async def _is_there(self, place: _Place, record: Record) -> bool:
        asked = self._looks
        async with self._looking:
            # A look that began after we asked has answered us, too.
            if self._knows(place) or self._complete > asked:
                return self._knows(place)
            kind, at = record.timestamp()
            since = max(0, at - CLOCKS_DIFFER) if kind == LOG_APPEND_TIME else 0
            if self._began is None or since < self._began:
                self._tail.begin(since)
                self._began = since
            self._looks += 1
            try:
                while not self._knows(place):
                    if not (letters := await self._tail.read_on(READ_LIMIT)):
                        self._complete = self._looks
                        break
                    for letter in letters:
                        self._note(letter)
            except asyncio.CancelledError:
                self._began = None  # what it was given is lost: it is read again
                raise
            except LogError as error:
                if not error.denied:
                    raise
                log.warning(
                    "%s can't be read, so a record that holds no event may get a dead letter of "
                    "each Trigger: %s",
                    *(self.topic.name, error),
                )
            return self._knows(place)

    def _knows(self, place: _Place) -> bool:
        return place in self._known or place._replace(value_hash=None) in self._known

    def _is_ours(self, place: _Place) -> bool:
        without_value = place._replace(value_hash=None)
        return self._known.get(place, False) or self._known.get(without_value, False)

    def _note(self, letter: Record) -> None:
        # Anybody with the right to write to the topic can forge these headers.
        with suppress(InvalidEvent):
            if (origin := origin_of(headers_of(letter) or [])) is not None:
                self._remember(_place_of(*origin, letter.value()), is_ours=False)

    def _remember(self, place: _Place, *, is_ours: bool) -> None:
        self._known.setdefault(place, is_ours)
        while len(self._known) > REMEMBERED:
            del self._known[next(iter(self._known))]


def _place_of(topic: str, partition: int, offset: int, value: bytes | None) -> _Place:
    return _Place(topic, partition, offset, None if value is None else hash(value))
