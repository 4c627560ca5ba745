"""Notices that topics were deleted and created again while they are read.

librdkafka goes on in the new topic at its old position and reports nothing, unless the position is
beyond the new topic's end: records below the position would never be read. Kafka's clients show a
topic's id to administrators only, so this has an admin client.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from confluent_kafka import TopicCollection

from knafka.clients.kafka.kafka_client import Connection
from knafka.clients.kafka.kafka_requests import AdminCalls
from knafka.core.errors import LogError

if TYPE_CHECKING:
    from confluent_kafka.admin._topic import TopicDescription

log = logging.getLogger(__name__)

FIRST_TOPIC_ID_DELAY: Final = 1.0
"""Seconds until the topic's id is first read, so that a cold start isn't slowed down. If the topic
is replaced in these seconds, that may go unnoticed."""
TOPIC_ID_INTERVAL: Final = 15.0
"""Seconds between two readings of the topic's id; each is one request."""
TOPIC_ID_TIMEOUT: Final = 15.0
"""Seconds without an answer after which a request for the topic's id fails."""


class ReplacedTopics:
    """Compares the ids of topics; used on one event loop, except `pop`."""

    def __init__(self, connection: Connection, topics: Sequence[str]) -> None:
        """Begin without ids; nothing is asked before `start`."""
        self._connection = connection
        self._topics = topics
        self.ids: dict[str, str] = {}
        """The topics' ids, as last read."""
        self._replaced: list[str] = []
        self._comparing: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Compare the ids from now on; do nothing if they are compared already."""
        if self._comparing is None and self._topics:
            self._comparing = asyncio.create_task(self._compare())

    def pop(self) -> Sequence[str]:
        """Return the topics that were replaced since the last call; from any thread."""
        if not self._replaced:
            return ()
        replaced, self._replaced = self._replaced, []
        return replaced

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
            calls = AdminCalls(self._connection, TOPIC_ID_TIMEOUT)
        except LogError as error:  # the consumer reports the same
            log.debug("no ids of topics can be read: %s", error)
            return
        try:
            while True:
                for topic in self._topics:
                    try:
                        topic_id = await read_topic_id(calls, topic)
                    except LogError as error:  # also while it is deleted
                        log.debug("the id of %s can't be read: %s", topic, error)
                        continue
                    known_id = self.ids.get(topic)
                    if known_id is None:
                        log.info("reading the topic %s, whose id is %s", topic, topic_id)
                    elif known_id != topic_id:
                        self._replaced = [*self._replaced, topic]
                    self.ids[topic] = topic_id
                await asyncio.sleep(TOPIC_ID_INTERVAL)
        finally:
            calls.close()


async def read_topic_id(calls: AdminCalls, topic: str) -> str:
    """Return the topic's id, which differs from that of an earlier topic of the name. Raises
    `LogError`, also if the topic doesn't exist."""
    names = TopicCollection([topic])
    description: TopicDescription = await calls.result(
        lambda timeout: calls.admin.describe_topics(names, request_timeout=timeout)[topic]
    )
    return str(description.topic_id)
