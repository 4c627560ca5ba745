"""Notices that topics were deleted and created again while they are read.

librdkafka goes on in the new topic at its old position and reports nothing, unless the position is
beyond the new topic's end: records below the position would never be read. Of confluent-kafka's
clients, only the admin client returns a topic's id, so an admin client reads the ids.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from threading import Thread
from typing import TYPE_CHECKING, Final

from confluent_kafka import TopicCollection, Uuid

from knafka.clients.kafka.kafka_client import Connection
from knafka.clients.kafka.kafka_requests import AdminCalls
from knafka.clients.kafka.kafka_statistics import without_statistics
from knafka.core.commit_metadata import short_id
from knafka.core.errors import LogError

if TYPE_CHECKING:
    from confluent_kafka.admin._topic import TopicDescription

log = logging.getLogger(__name__)

FIRST_TOPIC_ID_DELAY: Final = 1.0
"""Seconds until a topic's id is first read, so that a cold start isn't slowed down. If the topic is
replaced in these seconds, a reader that began without a marked commit may not notice that."""
TOPIC_ID_INTERVAL: Final = 15.0
"""Seconds between two readings of a topic's id, unless `hasten` is called; each is one request."""
TOPIC_ID_TIMEOUT: Final = 15.0
"""Seconds without an answer after which a request for a topic's id fails."""
UNKNOWN_TOPIC_ID: Final = str(Uuid(0, 0))
"""The id that librdkafka returns if a node of Kafka sends no id."""


class TopicIds:
    """Reads the ids of the topics of its followers (`ReplacedTopics`), with one admin client. Used
    on one event loop; `known_id` and `hasten` may be called from any thread."""

    def __init__(self, connection: Connection, calls: AdminCalls | None = None) -> None:
        """Begin without ids; no request is sent before a follower starts, or `read` is called.
        `calls`: an open client to use, which stays open; None: one is opened when it is needed."""
        self._connection = without_statistics(connection)
        self._shared_calls = calls
        self._own_calls: AdminCalls | None = None
        """The client that was opened here; None: there is none."""
        self.known: dict[str, set[str]] = {}
        """All ids that were read, by topic. Earlier ids are kept: a node of Kafka that lags behind
        may return one again, which is no replacement."""
        self.current: dict[str, str] = {}
        """The present id of each topic: of all its ids, the one that was new most recently."""
        self._read_at: dict[str, float] = {}
        """When the last request that returned the id in `current` was sent, by topic
        (`time.monotonic`)."""
        self.followers: list[ReplacedTopics] = []
        """Each of them notes replacements of one consumer's topics."""
        self._comparison: asyncio.Task[None] | None = None
        """Reads the ids regularly; None: no follower has started."""
        self._loop: asyncio.AbstractEventLoop | None = None
        """The event loop of `start`; None before."""
        self._comparison_requested = asyncio.Event()
        """Set to have `_comparison` read and compare the ids at once."""

    def start(self, topics: Sequence[str]) -> None:
        """Read the ids of all followers' topics from now on, every `TOPIC_ID_INTERVAL` seconds, and
        compare them with the known ones; for the first time in `FIRST_TOPIC_ID_DELAY` seconds if an
        id of `topics` isn't known yet."""
        self._loop = asyncio.get_running_loop()
        if self._comparison is None:
            self._comparison_requested.clear()
            self._comparison = asyncio.create_task(self._compare_regularly())
        if not self.current.keys() >= set(topics):
            self._loop.call_later(FIRST_TOPIC_ID_DELAY, self._comparison_requested.set)

    def hasten(self) -> None:
        """Let the ids be read and compared at once; does nothing before `start`. May be called from
        any thread."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._comparison_requested.set)

    async def stop(self) -> None:
        """Stop comparing the ids, and close the client if it was opened here."""
        comparison, self._comparison = self._comparison, None
        if comparison is not None:
            comparison.cancel()
            await asyncio.gather(comparison, return_exceptions=True)
        # Another follower may have called `start` meanwhile: then it needs the client.
        if self._comparison is None and self._own_calls is not None:
            self._own_calls.close()
            self._own_calls = None

    async def _compare_regularly(self) -> None:
        """Read the ids every `TOPIC_ID_INTERVAL`, and when `hasten` requests it, until cancelled. A
        reading that fails is only logged."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(TOPIC_ID_INTERVAL):
                    await self._comparison_requested.wait()
            self._comparison_requested.clear()
            for topic in sorted(
                {topic for follower in self.followers for topic in follower.topics}
            ):
                try:
                    await self.read(topic)
                except LogError as error:  # such as a deleted topic, which the consumer reports
                    log.debug("the id of %s can't be read: %s", topic, error)
                except Exception as error:
                    log.error("the id of %s can't be read", topic, exc_info=error)

    async def read(self, topic: str) -> str:
        """Ask Kafka for the topic's id, and return the present one; an earlier id, from a node of
        Kafka that lags behind, is ignored. Empty if Kafka sends none. If the id is new, and another
        one was known, all followers note that the topic was replaced. Raises `LogError`."""
        asked_at = time.monotonic()
        topic_id = await read_topic_id(self._ensure_calls(), topic)
        if topic_id == UNKNOWN_TOPIC_ID:
            return ""
        self._note_id(topic, topic_id)
        if topic_id == self.current[topic]:
            self._read_at[topic] = asked_at
        return self.current[topic]

    def known_id(self, topic: str, since: float = -math.inf) -> str:
        """Return the topic's present id, without a request; empty if no request that was sent at
        `since` (`time.monotonic`) or later has returned it. May be called from any thread."""
        is_known = self._read_at.get(topic, -math.inf) >= since
        return self.current.get(topic, "") if is_known else ""

    def _ensure_calls(self) -> AdminCalls:
        """Return the shared client; without one, return our own, which is opened at its first use.
        Raises `LogError`."""
        if self._shared_calls is not None:
            return self._shared_calls
        if self._own_calls is None:
            self._own_calls = AdminCalls(self._connection, TOPIC_ID_TIMEOUT)
        return self._own_calls

    def _note_id(self, topic: str, topic_id: str) -> None:
        """Note an id that Kafka has returned for a topic. If it is new, and the topic had another
        one before, all followers note that the topic was replaced."""
        known_ids = self.known.setdefault(topic, set())
        if topic_id in known_ids:
            return
        self.current[topic] = topic_id
        if known_ids:
            for follower in self.followers:
                follower.note_replaced(topic)
        else:
            log.info("reading the topic %s, whose id is %s", topic, topic_id)
        known_ids.add(topic_id)


class ReplacedTopics:
    """Notes which topics of one consumer were replaced: a follower of `TopicIds`. Used on the same
    event loop; `pop`, `topic_id`, `was_read` and `hasten` may be called from any thread."""

    def __init__(self, ids: TopicIds, topics: Sequence[str]) -> None:
        """Follow these topics. No request is sent before `start`, and none at all if there are no
        topics."""
        self._ids = ids
        self.topics = topics
        self._replaced: deque[str] = deque()
        """The topics whose replacement `pop` has not returned yet."""
        self._has_started = False
        ids.followers.append(self)

    def start(self) -> None:
        """Have `TopicIds` read and compare the topics' ids from now on; do nothing if it does so
        already, or if there are no topics."""
        if not self._has_started and self.topics:
            self._has_started = True
            self._ids.start(self.topics)

    def note_replaced(self, topic: str) -> None:
        """Note that a topic was replaced, if it is one of `topics`."""
        if topic in self.topics:
            self._replaced.append(topic)

    def pop(self) -> Sequence[str]:
        """Return the topics that were replaced since the last call. May be called from any
        thread."""
        replaced: list[str] = []
        while self._replaced:
            replaced.append(self._replaced.popleft())
        return replaced

    def topic_id(self, topic: str, since: float = -math.inf) -> str:
        """Return the present topic's id as last read from Kafka, without a request; empty if it
        was never read, or last before `since` (`time.monotonic`). May be called from any thread."""
        return self._ids.known_id(topic, since)

    def was_read(self, topic: str, mark: str) -> bool:
        """Whether this is the mark of a topic of this name, the present or an earlier one, whose id
        was read here. May be called from any thread."""
        known_ids = tuple(self._ids.known.get(topic, ()))  # the set may grow meanwhile
        return mark in map(short_id, known_ids)

    def hasten(self) -> None:
        """Let the ids be read and compared at once. Call this when a partition has lost records:
        its topic may have been replaced. May be called from any thread."""
        if self._has_started:
            self._ids.hasten()

    async def close(self) -> None:
        """Stop following these topics; the last follower also ends the comparisons."""
        if self in self._ids.followers:
            self._ids.followers.remove(self)
        if not self._ids.followers:
            await self._ids.stop()


class ReplacedTopicsThread:
    """Runs a `ReplacedTopics` on an event loop in a thread of its own, for a consumer whose own
    thread blocks."""

    def __init__(self, connection: Connection, topics: Sequence[str]) -> None:
        """Start the thread, which compares the ids of these topics until `close`."""
        self.replaced = ReplacedTopics(TopicIds(connection), topics)
        self._loop = asyncio.new_event_loop()
        self._ended = asyncio.Event()
        """Set by `close`, on the thread's loop."""
        Thread(target=self._run, name="kafka-topic-ids", daemon=True).start()

    def _run(self) -> None:
        """Run the event loop until `close`; the thread runs this."""
        self._loop.run_until_complete(self._follow())
        self._loop.close()

    async def _follow(self) -> None:
        """Compare the ids until `close`, on the thread's loop."""
        self.replaced.start()
        await self._ended.wait()
        await self.replaced.close()

    def close(self) -> None:
        """Let the thread stop following the topics, and end; returns at once."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._ended.set)


async def read_topic_id(calls: AdminCalls, topic: str) -> str:
    """Read and return the id of the topic that has this name now; an earlier topic of the name had
    another id. Raises `LogError`, also if the topic doesn't exist, or Kafka doesn't answer within
    the timeout of `calls`."""
    names = TopicCollection([topic])
    description: TopicDescription = await calls.request_one(
        lambda timeout: calls.admin.describe_topics(names, request_timeout=timeout)[topic]
    )
    return str(description.topic_id)
