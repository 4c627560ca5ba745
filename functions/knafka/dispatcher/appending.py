"""Appending one record and waiting for its report: for replies and for dead letters.

A dead-letter topic is made here, for the first dead letter: most Triggers never need one.
Each process makes sure of it once, and again whenever a dead letter was not stored, as somebody may
have deleted the topic meanwhile.

Not here: what an event's failure means (`sender`), and what the topic is to be like (`Egress`).
"""

from __future__ import annotations

import asyncio

from knafka.core.contract import TopicSettings
from knafka.core.errors import LogError
from knafka.core.kafka_binding import Draft
from knafka.ports.log import LogWriter, TopicMaker


async def append(writer: LogWriter, topic: str, draft: Draft) -> LogError | None:
    """Append a record; None once it is durable, else why it isn't."""
    stored: asyncio.Future[LogError | None] = asyncio.get_running_loop().create_future()

    def reported(error: LogError | None) -> None:
        if not stored.done():  # nobody may wait any more
            stored.set_result(error)

    try:
        writer.append(topic, draft.key, draft.value, draft.headers, reported)
    except LogError as error:
        return error
    return await stored


class DeadLetterTopic:
    """A topic that keeps dead letters: a Trigger's, or its Broker's."""

    def __init__(
        self, name: str, settings: TopicSettings, writer: LogWriter, topics: TopicMaker
    ) -> None:
        self.name = name
        self._settings = settings
        self._writer = writer
        self._topics = topics
        self._exists = False
        self._making: asyncio.Task[LogError | None] | None = None

    async def append(self, draft: Draft) -> LogError | None:
        """Append a dead letter, and make the topic first if need be; None once it is durable."""
        refused = await self.ensure()
        # Also if it could not be made: who may not make topics may find it there all the same.
        error = await append(self._writer, self.name, draft)
        if error is None or error.too_large:
            self._exists = True
            return error
        self._exists = False
        if refused is None:
            return error
        return LogError(
            f"{error}, and it could not be made ({refused}): make the topic {self.name}, or allow "
            "the Kafka user of this Broker to create topics whose names begin with knafka-"
        )

    async def ensure(self) -> LogError | None:
        """Make it unless it is there, as far as is known; why it could not be made. All that wait
        for the topic share one request."""
        if self._exists:
            return None
        if self._making is None:
            self._making = asyncio.create_task(self._make())
        # Shielded: the one who is cancelled is not the only one who waits.
        return await asyncio.shield(self._making)

    async def _make(self) -> LogError | None:
        settings = self._settings
        try:
            await self._topics.ensure_topic(
                self.name, settings.partitions, settings.replication, settings.config
            )
        except LogError as error:
            return error
        finally:
            self._making = None
        self._exists = True
        return None
