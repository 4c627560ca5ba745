"""Append one record to Kafka and wait until it is stored: for replies and for dead letters.

A dead-letter topic is created at its first dead letter, as most Triggers never need one. Each
process creates the topic once if it is missing, and checks again after a dead letter could not be
stored, as somebody may have deleted the topic.

Not here: what an event's failure means (`sender`), and the topic's settings (`Egress`).
"""

from __future__ import annotations

import asyncio

from knafka.core.contract import TopicSettings
from knafka.core.errors import LogError
from knafka.core.events.kafka_binding import Draft
from knafka.ports.log import LogWriter, TopicMaker


async def append(writer: LogWriter, topic: str, draft: Draft) -> LogError | None:
    """Append a record to `topic` and wait for Kafka; returns None once the record is durable, else
    why it was not stored."""
    stored_result: asyncio.Future[LogError | None] = asyncio.get_running_loop().create_future()

    def on_report(error: LogError | None) -> None:
        """Pass Kafka's report of the record on to `append`, if that still waits."""
        if not stored_result.done():  # the caller may have been cancelled
            stored_result.set_result(error)

    try:
        writer.append(topic, draft.key, draft.value, draft.headers, on_report)
    except LogError as error:
        return error
    return await stored_result


class DeadLetterTopic:
    """A dead-letter topic of a Trigger or Broker, created when the first dead letter is written."""

    def __init__(
        self, name: str, settings: TopicSettings, writer: LogWriter, topics: TopicMaker
    ) -> None:
        """Note the topic's name and settings, without a request to Kafka. `writer` appends its dead
        letters; `topics` creates it at the first `append` or `ensure`."""
        self.name = name
        self._settings = settings
        self._writer = writer
        self._topics = topics
        self._exists = False
        """Whether this process knows that the topic exists."""
        self._creating: asyncio.Task[LogError | None] | None = None
        """The request that creates the topic, while it is under way."""

    async def append(self, draft: Draft) -> LogError | None:
        """Append a dead letter, after creating the topic if necessary; returns None once the dead
        letter is durable, else why it was not stored."""
        creation_error = await self.ensure()
        # Append even if creating failed: without the right to create topics, the topic may still
        # exist.
        error = await append(self._writer, self.name, draft)
        if error is None or error.too_large:  # the topic answered
            self._exists = True
            return error
        self._exists = False
        if creation_error is None:
            return error
        return LogError(
            f"{error}, and it could not be made ({creation_error}): make the topic {self.name}, or "
            "allow the Kafka user of this Broker to create topics whose names begin with knafka-"
        )

    async def ensure(self) -> LogError | None:
        """Create the topic unless this process knows that it exists; returns None if it exists
        then, else why it could not be created. Concurrent callers share one request."""
        if self._exists:
            return None
        if self._creating is None:
            self._creating = asyncio.create_task(self._create())
        # Shielded: other callers wait for the same request.
        return await asyncio.shield(self._creating)

    async def _create(self) -> LogError | None:
        """Create the topic unless it exists in Kafka; returns None, or why that failed."""
        settings = self._settings
        try:
            await self._topics.ensure_topic(
                self.name, settings.partitions, settings.replication, settings.config
            )
        except LogError as error:
            return error
        finally:
            self._creating = None
        self._exists = True
        return None
