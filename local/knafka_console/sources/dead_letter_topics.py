"""DeadLetterTopics: the last dead letters of a Trigger, read and sent again for the console."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from knafka.clients.kafka_admin import KafkaAdmin
from knafka.clients.kafka_client import Connection
from knafka.clients.kafka_writer import KafkaWriter
from knafka.core.contract import Egress
from knafka.ports.log import LogAdmin, LogWriter
from knafka_client.topics import dead_letters, replaying
from knafka_client.topics.dead_letters import DeadLetter
from knafka_console.model.document import Chosen, EventName, Replayed

LAST: Final = 200
"""Dead letters of one Trigger that are shown; the report is for all of them."""
CLOSE_TIMEOUT: Final = 5.0
"""Seconds for the writer to let go."""


@dataclass(frozen=True, slots=True)
class DeadLetterTopics:
    """A client is opened for each call: somebody looks at them now and then."""

    connect: Callable[[Connection], LogAdmin] = KafkaAdmin
    open_writer: Callable[[Connection], LogWriter] = KafkaWriter

    async def last(self, egress: Egress, kafka: dict[str, Any]) -> Sequence[DeadLetter]:
        """`LAST` of them, the oldest first, with its Broker's of records that hold no event: each
        of its Triggers would have them. Raises `LogError`."""
        admin = self.connect(kafka)
        try:
            own = await dead_letters.letters(admin, egress, LAST)
            shared = await dead_letters.letters(admin, dead_letters.of_broker(egress), LAST)
            return sorted([*own, *shared], key=lambda each: each.last_time)[-LAST:]
        finally:
            await admin.close()

    async def replay(
        self, egress: Egress, kafka: dict[str, Any], events: Sequence[EventName], *, dry_run: bool
    ) -> Replayed:
        """Straight from the topic, without Spark: see `replaying`. Raises `KnafkaError`."""
        wanted = {(each.id, each.source) for each in events}
        admin = self.connect(kafka)
        try:
            ids = {each.id for each in events}
            found = [
                each
                for each in await replaying.choose(admin, [egress], ids, {})
                if (each.letter.id, each.letter.source) in wanted
            ]
            sendable = [each for each in found if not each.obstacle]
            replay = ""
            if sendable and not dry_run:
                writer = self.open_writer(kafka)
                try:
                    replay = await replaying.send(admin, writer, sendable)
                finally:
                    await writer.close(CLOSE_TIMEOUT)
        finally:
            await admin.close()
        return Replayed(
            chosen=tuple(Chosen(about=each.about, obstacle=each.obstacle) for each in found),
            replay=replay,
        )
