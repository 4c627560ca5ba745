"""Notices that topics were deleted and created again while they are read.

librdkafka goes on in the new topic at its old position and reports nothing, unless the position is
beyond the new topic's end: records below the position would never be read. Kafka's clients show a
topic's id to administrators only, so this has an admin client.
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
"""Seconds until the topic's id is first read, so that a cold start isn't slowed down. If the topic
is replaced in these seconds, that may go unnoticed by a reader that began without a marked
commit."""
TOPIC_ID_INTERVAL: Final = 15.0
"""Seconds between two readings of the topic's id, unless `hasten` is called; each is one
request."""
TOPIC_ID_TIMEOUT: Final = 15.0
"""Seconds without an answer after which a request for the topic's id fails."""
UNKNOWN_TOPIC_ID: Final = str(Uuid(0, 0))
"""The id that librdkafka returns if a node of Kafka sends none."""


class TopicIds:
    """Reads the ids of the topics of its followers, with one admin client; used on one event loop,
    except `known_id` and `hasten`."""

    def __init__(self, connection: Connection, calls: AdminCalls | None = None) -> None:
        """Begin without ids; nothing is asked before a follower starts. `calls`: an open client to
        use, which stays open; else one is opened while there are followers."""
        self._connection = without_statistics(connection)
        self._shared_calls = calls
        self._own_calls: AdminCalls | None = None
        self.known: dict[str, set[str]] = {}
        """All ids that were read, by topic. Earlier ones are kept, as a node of Kafka that lags
        behind may return one again, which is no replacement."""
        self.current: dict[str, str] = {}
        """The newest id of each topic: the last one that was new when it was returned."""
        self._read_at: dict[str, float] = {}
        """When the last request that returned the id in `current` was sent, by topic
        (`time.monotonic`)."""
        self.followers: list[ReplacedTopics] = []
        """The consumers' lists of replaced topics, which are told of each replacement."""
        self._comparing: asyncio.Task[None] | None = None
        """Reads the ids regularly, while there are followers that have started."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._hastened = asyncio.Event()
        """Set to compare the ids at once."""

    def start(self, topics: Sequence[str]) -> None:
        """Compare the ids of all followers' topics from now on, every `TOPIC_ID_INTERVAL`; if an id
        of `topics` isn't known yet, first in `FIRST_TOPIC_ID_DELAY` seconds."""
        self._loop = asyncio.get_running_loop()
        if self._comparing is None:
            self._hastened.clear()
            self._comparing = asyncio.create_task(self._compare())
        if not self.current.keys() >= set(topics):
            self._loop.call_later(FIRST_TOPIC_ID_DELAY, self._hastened.set)

    def hasten(self) -> None:
        """Request that the ids are compared now; from any thread. Does nothing before `start`."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._hastened.set)

    async def stop(self) -> None:
        """Stop comparing the ids, and close the client if it was opened here."""
        comparing, self._comparing = self._comparing, None
        if comparing is not None:
            comparing.cancel()
            await asyncio.gather(comparing, return_exceptions=True)
        if self._comparing is None and self._own_calls is not None:
            self._own_calls.close()
            self._own_calls = None

    async def _compare(self) -> None:
        """Read the ids again and again. A reading that fails is tried again after
        `TOPIC_ID_INTERVAL`."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(TOPIC_ID_INTERVAL):
                    await self._hastened.wait()
            self._hastened.clear()
            for topic in sorted(
                {topic for follower in self.followers for topic in follower.topics}
            ):
                try:
                    await self.read(topic)
                except LogError as error:  # also while it is deleted, which the consumer reports
                    log.debug("the id of %s can't be read: %s", topic, error)
                except Exception as error:
                    log.error("the id of %s can't be read", topic, exc_info=error)

    async def read(self, topic: str) -> str:
        """Read and return the topic's present id, not the earlier one that a node of Kafka that
        lags behind may send; empty if Kafka sends none. Raises `LogError`."""
        asked_at = time.monotonic()
        topic_id = await read_topic_id(self._open(), topic)
        if topic_id == UNKNOWN_TOPIC_ID:
            return ""
        self._note(topic, topic_id)
        if topic_id == self.current[topic]:
            self._read_at[topic] = asked_at
        return self.current[topic]

    def known_id(self, topic: str, since: float = -math.inf) -> str:
        """Return the topic's present id; empty if no request that was sent at `since`
        (`time.monotonic`) or later has returned it; from any thread."""
        is_known = self._read_at.get(topic, -math.inf) >= since
        return self.current.get(topic, "") if is_known else ""

    def _open(self) -> AdminCalls:
        """Return the shared client or, opened at its first use, an own one. Raises `LogError`."""
        if self._shared_calls is not None:
            return self._shared_calls
        if self._own_calls is None:
            self._own_calls = AdminCalls(self._connection, TOPIC_ID_TIMEOUT)
        return self._own_calls

    def _note(self, topic: str, topic_id: str) -> None:
        """Note a topic's id, and tell the followers that the topic was replaced if it had other ids
        before, but never this one."""
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
    """The topics of one consumer that were replaced, as its `TopicIds` notice; used on their event
    loop, except `pop`, `id`, `was_read` and `hasten`."""

    def __init__(self, ids: TopicIds, topics: Sequence[str]) -> None:
        """Follow these topics (none: it never asks); nothing is asked before `start`."""
        self._ids = ids
        self.topics = topics
        self._replaced: deque[str] = deque()
        self._started = False
        ids.followers.append(self)

    def start(self) -> None:
        """Compare the ids from now on; do nothing if they are compared already."""
        if not self._started and self.topics:
            self._started = True
            self._ids.start(self.topics)

    def note_replaced(self, topic: str) -> None:
        """Note that a topic was replaced, if it is one of these."""
        if topic in self.topics:
            self._replaced.append(topic)

    def pop(self) -> Sequence[str]:
        """Return the topics that were replaced since the last call; from any thread."""
        replaced: list[str] = []
        while self._replaced:
            replaced.append(self._replaced.popleft())
        return replaced

    def id(self, topic: str, since: float = -math.inf) -> str:
        """Return the id of the topic that has this name now; empty if no request that was sent at
        `since` (`time.monotonic`) or later has returned it. From any thread."""
        return self._ids.known_id(topic, since)

    def was_read(self, topic: str, mark: str) -> bool:
        """Whether an id with this mark was read of a topic, now or earlier; from any thread."""
        known_ids = tuple(self._ids.known.get(topic, ()))  # the set may grow meanwhile
        return mark in map(short_id, known_ids)

    def hasten(self) -> None:
        """Have the ids compared now. To be called when a partition has lost records, as its topic
        may have been replaced. From any thread."""
        if self._started:
            self._ids.hasten()

    async def close(self) -> None:
        """Stop following these topics; the last follower also ends the comparisons."""
        if self in self._ids.followers:
            self._ids.followers.remove(self)
        if not self._ids.followers:
            await self._ids.stop()


class ReplacedTopicsThread:
    """Follows topics on an event loop in a thread of its own, for a consumer that blocks its
    thread."""

    def __init__(self, connection: Connection, topics: Sequence[str]) -> None:
        """Compare the ids of these topics from now on."""
        self.replaced = ReplacedTopics(TopicIds(connection), topics)
        self._loop = asyncio.new_event_loop()
        self._ended = asyncio.Event()
        Thread(target=self._run, name="kafka-topic-ids", daemon=True).start()

    def _run(self) -> None:
        """Compare the ids until `close`."""
        self._loop.run_until_complete(self._follow())
        self._loop.close()

    async def _follow(self) -> None:
        """Compare the ids until `close`, on the thread's loop."""
        self.replaced.start()
        await self._ended.wait()
        await self.replaced.close()

    def close(self) -> None:
        """Have the thread stop following and end; doesn't wait for that."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._ended.set)


async def read_topic_id(calls: AdminCalls, topic: str) -> str:
    """Return the topic's id, which differs from that of an earlier topic of this name; waits up to
    the timeout of `calls`. Raises `LogError`, also if the topic doesn't exist."""
    names = TopicCollection([topic])
    description: TopicDescription = await calls.request_one(
        lambda timeout: calls.admin.describe_topics(names, request_timeout=timeout)[topic]
    )
    return str(description.topic_id)
