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
from knafka_client.topics.dead_letters import StoredDeadLetter
from knafka_client.topics.replaying import WRITER_CLOSE_TIMEOUT
from knafka_console.model.document import ChosenEvent, EventName, ReplayResult

SHOWN_DEAD_LETTERS: Final = 200
"""Dead letters of one Trigger that are shown; the report is for all of them."""


@dataclass(frozen=True, slots=True)
class DeadLetterTopics:
    """A client is opened for each call: somebody looks at them now and then."""

    connect: Callable[[Connection], LogAdmin] = KafkaAdmin
    open_writer: Callable[[Connection], LogWriter] = KafkaWriter

    async def last(self, egress: Egress, kafka: dict[str, Any]) -> Sequence[StoredDeadLetter]:
        """The last `SHOWN_DEAD_LETTERS` of a Trigger, the oldest first. The Broker's dead letters,
        which are records that hold no event, are among them. Raises `LogError`."""
        admin = self.connect(kafka)
        try:
            own = await dead_letters.letters(admin, egress, SHOWN_DEAD_LETTERS)
            shared = await dead_letters.letters(
                admin, dead_letters.of_broker(egress), SHOWN_DEAD_LETTERS
            )
            return sorted([*own, *shared], key=lambda letter: letter.last_time)[
                -SHOWN_DEAD_LETTERS:
            ]
        finally:
            await admin.close()

    async def replay(
        self, egress: Egress, kafka: dict[str, Any], events: Sequence[EventName], *, dry_run: bool
    ) -> ReplayResult:
        """Straight from the topic, without Spark: see `replaying`. Raises `KnafkaError`."""
        named = {(event.id, event.source) for event in events}
        admin = self.connect(kafka)
        try:
            ids = {event.id for event in events}
            choices = [
                choice
                for choice in await replaying.choose(admin, [egress], ids, {})
                if (choice.letter.id, choice.letter.source) in named
            ]
            sendable = [choice for choice in choices if not choice.obstacle]
            replay = ""
            if sendable and not dry_run:
                writer = self.open_writer(kafka)
                try:
                    replay = await replaying.send(admin, writer, sendable)
                finally:
                    await writer.close(WRITER_CLOSE_TIMEOUT)
        finally:
            await admin.close()
        return ReplayResult(
            chosen=tuple(
                ChosenEvent(about=choice.about, obstacle=choice.obstacle) for choice in choices
            ),
            replay=replay,
        )
