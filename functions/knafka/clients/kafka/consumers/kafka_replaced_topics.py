"""Notices that topics were deleted and created again while they are read.

librdkafka goes on in the new topic at its old position and reports nothing, unless the position is
beyond the new topic's end: records below the position would never be read. Kafka's clients show a
topic's id to administrators only, so this has an admin client.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from confluent_kafka import TopicCollection, Uuid

from knafka.clients.kafka.kafka_client import Connection
from knafka.clients.kafka.kafka_requests import AdminCalls
from knafka.clients.kafka.kafka_statistics import without_statistics
from knafka.core.errors import LogError

if TYPE_CHECKING:
    from confluent_kafka.admin._topic import TopicDescription

log = logging.getLogger(__name__)

FIRST_TOPIC_ID_DELAY: Final = 1.0
"""Seconds until the topic's id is first read, so that a cold start isn't slowed down. If the topic
is replaced in these seconds, that may go unnoticed."""
TOPIC_ID_INTERVAL: Final = 15.0
"""Seconds between two readings of the topic's id, unless `hasten` is called; each is one
request."""
TOPIC_ID_TIMEOUT: Final = 15.0
"""Seconds without an answer after which a request for the topic's id fails."""
UNKNOWN_TOPIC_ID: Final = str(Uuid(0, 0))
"""The id that librdkafka returns if a node of Kafka sends none."""


class ReplacedTopics:
    """Compares the ids of topics; used on one event loop, except `pop` and `hasten`."""

    def __init__(self, connection: Connection, topics: Sequence[str]) -> None:
        """Begin without ids; nothing is asked before `start`."""
        self._connection = without_statistics(connection)
        self._topics = topics
        self.ids: dict[str, set[str]] = {}
        """All ids that were read, by topic: a node of Kafka that lags behind may return an earlier
        one again."""
        self._replaced: deque[str] = deque()
        self._calls: AdminCalls | None = None
        self._comparing: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._hastened = asyncio.Event()

    def start(self) -> None:
        """Compare the ids from now on; do nothing if they are compared already."""
        if self._comparing is None and self._topics:
            self._loop = asyncio.get_running_loop()
            self._comparing = asyncio.create_task(self._compare())

    def pop(self) -> Sequence[str]:
        """Return the topics that were replaced since the last call; from any thread."""
        replaced: list[str] = []
        while self._replaced:
            replaced.append(self._replaced.popleft())
        return replaced

    def hasten(self) -> None:
        """Compare the ids now, as a log was lost: its topic may have been replaced; from any
        thread."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._hastened.set)

    async def close(self) -> None:
        """Stop to compare, and close the client."""
        if self._comparing is not None:
            self._comparing.cancel()
            await asyncio.gather(self._comparing, return_exceptions=True)

    async def _compare(self) -> None:
        """Read the ids again and again. A reading that fails is tried again after
        `TOPIC_ID_INTERVAL`."""
        await asyncio.sleep(FIRST_TOPIC_ID_DELAY)
        try:
            while True:
                self._hastened.clear()
                for topic in self._topics:
                    try:
                        self._note(topic, await read_topic_id(self._open(), topic))
                    except LogError as error:  # also while it is deleted; the consumer tells more
                        log.debug("the id of %s can't be read: %s", topic, error)
                    except Exception as error:
                        log.error("the id of %s can't be read", topic, exc_info=error)
                with suppress(TimeoutError):
                    async with asyncio.timeout(TOPIC_ID_INTERVAL):
                        await self._hastened.wait()
        finally:
            if self._calls is not None:
                self._calls.close()

    def _open(self) -> AdminCalls:
        """Return the client, opened at its first use. Raises `LogError`."""
        if self._calls is None:
            self._calls = AdminCalls(self._connection, TOPIC_ID_TIMEOUT)
        return self._calls

    def _note(self, topic: str, topic_id: str) -> None:
        """Note a topic's id; another one than ever before means that the topic was replaced."""
        if topic_id == UNKNOWN_TOPIC_ID:
            return
        if (known_ids := self.ids.get(topic)) is None:
            log.info("reading the topic %s, whose id is %s", topic, topic_id)
            self.ids[topic] = {topic_id}
        elif topic_id not in known_ids:
            known_ids.add(topic_id)
            self._replaced.append(topic)


async def read_topic_id(calls: AdminCalls, topic: str) -> str:
    """Return the topic's id, which differs from that of an earlier topic of the name. Raises
    `LogError`, also if the topic doesn't exist."""
    names = TopicCollection([topic])
    description: TopicDescription = await calls.result(
        lambda timeout: calls.admin.describe_topics(names, request_timeout=timeout)[topic]
    )
    return str(description.topic_id)
