"""Finds out for a writer whether records time out because their topic was created anew.

librdkafka keeps the leader epoch that it saw of a partition. If the topic is deleted and created
again, librdkafka ignores the new partitions' leaders, whose epochs begin at 0, and each record
times out (confluentinc/librdkafka#4898, in 2.16.0). Only another producer helps. Records also time
out for other reasons, such as too few replicas in sync, and another producer doesn't help then. So
the producers are replaced only if the partition has a leader, and only `MAX_REPLACEMENTS` times for
each id of a topic.

Not here: replacing the producers (`kafka_writer_producers`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from typing import Final

from confluent_kafka import KafkaException, TopicCollection

from knafka.clients.kafka.kafka_client import Connection, PartitionKey, log_error_of, open_admin
from knafka.core.errors import LogError

log = logging.getLogger(__name__)

DESCRIBE_DELAY: Final = 1.0
"""Seconds to wait after the first record times out, so that one request describes all topics whose
records time out."""
DESCRIBE_TIMEOUT: Final = 5.0
"""Seconds that Kafka may take to describe the topics."""
REPLACEMENT_INTERVAL: Final = 30.0
"""Least seconds between two replacements of the producers."""
MAX_REPLACEMENTS: Final = 2
"""Most replacements for one id of a topic: the first may have come before all brokers knew the
topic."""


class TimedOutTopics:
    """Notes partitions whose records time out, and has the producers replaced if that may help. All
    methods must be called on the event loop."""

    def __init__(self, connection: Connection, replace: Callable[[], Awaitable[None]]) -> None:
        """Begin without topics. `connection` opens an admin client; `replace` replaces all
        producers, and raises `LogError` if it can't."""
        self._connection = connection
        self._replace = replace
        self._timed_out: set[PartitionKey] = set()
        """Partitions whose records have timed out since the last check."""
        self._replacements: dict[str, tuple[str, int]] = {}
        """By topic: its last known id, and how often the producers were replaced for this id."""
        self._next_replacement_at = 0.0
        """Monotonic time before which the producers aren't replaced again."""
        self._task: asyncio.Task[None] | None = None
        """The last check, planned, running or done; None: there was none."""

    def note_timeout(self, topic: str, partition: int) -> None:
        """Note that a record of the partition has timed out, and start a check unless one is under
        way."""
        self._timed_out.add((topic, partition))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._replace_if_recreated())

    async def _replace_if_recreated(self) -> None:
        """Wait for more topics whose records time out, then ask Kafka for the topics' ids. Replace
        the producers if one of the topics has an id for which the producers were replaced fewer
        than `MAX_REPLACEMENTS` times."""
        await asyncio.sleep(max(DESCRIBE_DELAY, self._next_replacement_at - time.monotonic()))
        timed_out, self._timed_out = self._timed_out, set()
        # If Kafka doesn't answer, the next record that times out starts another attempt.
        with suppress(LogError):
            ids = await asyncio.to_thread(ids_of_topics_with_leader, self._connection, timed_out)
            # The topics because of which the producers are replaced, all of them counted.
            new_topics = [
                topic
                for topic, id_ in ids.items()
                if self._count_replacement_if_allowed(topic, id_)
            ]
            if new_topics:
                log.warning(
                    "records of %s time out, as after their topic was deleted and created again: "
                    "the producers are replaced", ", ".join(sorted(new_topics)),
                )  # fmt: skip
                self._next_replacement_at = time.monotonic() + REPLACEMENT_INTERVAL
                try:
                    await self._replace()
                except LogError:
                    for topic in new_topics:
                        id_, count = self._replacements[topic]
                        self._replacements[topic] = id_, count - 1  # there was no replacement
                    raise

    def _count_replacement_if_allowed(self, topic: str, topic_id: str) -> bool:
        """Count a replacement of the producers because of a topic with this id, and return True; or
        return False if there were `MAX_REPLACEMENTS` for this id already."""
        known_id, count = self._replacements.get(topic, (topic_id, 0))
        count = count + 1 if known_id == topic_id else 1
        if count > MAX_REPLACEMENTS:
            return False
        self._replacements[topic] = topic_id, count
        return True

    def close(self) -> None:
        """Cancel the planned or running check for topics that were created anew."""
        if self._task is not None:
            self._task.cancel()


def ids_of_topics_with_leader(
    connection: Connection, partitions: Collection[PartitionKey]
) -> Mapping[str, str]:
    """Return the id of each topic, by name, that has a leader for one of these partitions. Blocks.
    Raises `LogError` if Kafka doesn't answer."""
    admin = open_admin(connection, lambda error: None)
    try:
        # A new client's `describe_topics` waits until it knows the controller, beyond its timeout.
        admin.list_topics(timeout=DESCRIBE_TIMEOUT)
    except KafkaException as error:
        raise log_error_of(error.args[0]) from error
    topics = TopicCollection(sorted({topic for topic, _ in partitions}))
    ids: dict[str, str] = {}
    for topic, answer in admin.describe_topics(topics, request_timeout=DESCRIBE_TIMEOUT).items():
        try:
            description = answer.result(2 * DESCRIBE_TIMEOUT)
        except TimeoutError as error:
            raise LogError("Kafka does not describe the topic") from error
        except KafkaException as error:
            if error.args[0].retriable():
                raise log_error_of(error.args[0]) from error
            continue  # such as for a topic that is gone
        partitions_with_leader = {
            (topic, partition.id)
            for partition in description.partitions
            if partition.leader is not None
        }
        if partitions_with_leader & set(partitions):
            ids[topic] = str(description.topic_id)
    return ids
