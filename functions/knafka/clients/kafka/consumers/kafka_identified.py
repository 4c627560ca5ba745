"""A reader of a topic that must be read anew once it was deleted and created again.

librdkafka goes on in the new topic at its old position and reports nothing, unless the position is
beyond the new topic's end: records below the position would never be read. So this reader compares
the topic's id. Kafka's clients show it to administrators only, so it has an admin client.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence

from knafka.clients.kafka.consumers.kafka_positioned import KafkaPositionedReader
from knafka.clients.kafka.consumers.kafka_replaced_topics import (
    FIRST_TOPIC_ID_DELAY,
    TOPIC_ID_INTERVAL,
    TOPIC_ID_TIMEOUT,
    read_topic_id,
)
from knafka.clients.kafka.kafka_client import Connection
from knafka.clients.kafka.kafka_requests import AdminCalls
from knafka.core.errors import LogError
from knafka.ports.log import Record
from knafka.ports.shared_log import Position

log = logging.getLogger(__name__)


class KafkaIdentifiedReader(KafkaPositionedReader):
    """A `PositionedReader` on real Kafka whose `read` raises `LogError` once its topic was replaced
    by another one of the name."""

    goes_on_if_replaced = False

    def __init__(self, connection: Connection, topic: str) -> None:
        """Open the consumer; the topic's id is compared from `begin` on. Raises `LogError`."""
        super().__init__(connection, topic)
        self._comparing: asyncio.Task[None] | None = None

    def begin(self, positions: Mapping[int, Position]) -> None:
        super().begin(positions)
        if self._comparing is None:
            self._comparing = asyncio.create_task(self._compare_topic_ids())

    async def read(self, limit: int, timeout: float) -> Sequence[Record]:
        """Return records as `KafkaPositionedReader.read`. Raises `LogError`, also once the topic
        was replaced."""
        records = await super().read(limit, timeout)
        if self._comparing is not None and self._comparing.done():
            self._comparing.result()
        return records

    async def close(self, timeout: float) -> None:
        """Close the clients within `timeout` seconds."""
        if self._comparing is not None:
            self._comparing.cancel()
            await asyncio.gather(self._comparing, return_exceptions=True)
        await super().close(timeout)

    async def _compare_topic_ids(self) -> None:
        """Read the topic's id again and again; raises `LogError` once it has changed. A reading
        that fails is tried again after `TOPIC_ID_INTERVAL`."""
        await asyncio.sleep(FIRST_TOPIC_ID_DELAY)
        first_id, calls = "", AdminCalls(self._connection, TOPIC_ID_TIMEOUT)
        try:
            while True:
                try:
                    topic_id = await read_topic_id(calls, self._topic)
                except LogError as error:  # also while it is deleted; the consumer reports the rest
                    log.debug("the id of %s can't be read: %s", self._topic, error)
                else:
                    first_id = first_id or topic_id
                    if topic_id != first_id:
                        raise LogError(f"the topic {self._topic} was deleted and created again")
                await asyncio.sleep(TOPIC_ID_INTERVAL)
        finally:
            calls.close()
