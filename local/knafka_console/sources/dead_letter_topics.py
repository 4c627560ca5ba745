"""DeadLetterTopics: reads and replays a Trigger's latest dead letters for the console."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from knafka.clients.kafka.admin.kafka_admin import KafkaAdmin
from knafka.clients.kafka.kafka_client import Connection
from knafka.clients.kafka.producers.kafka_writer import KafkaWriter
from knafka.core.contract import Egress
from knafka.ports.log import LogAdmin, LogWriter
from knafka_client.topics import dead_letters, replaying
from knafka_client.topics.dead_letters import StoredDeadLetter
from knafka_client.topics.replaying import REPLAY_WRITER_CLOSE_TIMEOUT
from knafka_console.model.document import ChosenEvent, EventName, ReplayResult

SHOWN_DEAD_LETTERS: Final = 200
"""Largest number of a Trigger's dead letters that are shown; the report covers all."""


@dataclass(frozen=True, slots=True)
class DeadLetterTopics:
    """Reads and replays dead letters; it opens a client for each call, since calls are rare."""

    connect: Callable[[Connection], LogAdmin] = KafkaAdmin
    """Opens a client that reads, by a librdkafka configuration."""
    open_writer: Callable[[Connection], LogWriter] = KafkaWriter
    """Opens a client that writes, by a librdkafka configuration."""

    async def read_latest(
        self, egress: Egress, kafka: dict[str, Any]
    ) -> Sequence[StoredDeadLetter]:
        """Return a Trigger's newest dead letters, at most `SHOWN_DEAD_LETTERS`, oldest first.

        The Broker's own dead letters, records that hold no event, are among them. `kafka` is the
        librdkafka configuration. Raises `LogError`.
        """
        admin = self.connect(kafka)
        try:
            own_letters = await dead_letters.read_dead_letters(admin, egress, SHOWN_DEAD_LETTERS)
            broker_letters = await dead_letters.read_dead_letters(
                admin, dead_letters.broker_dead_letter_egress(egress), SHOWN_DEAD_LETTERS
            )
            letters = sorted([*own_letters, *broker_letters], key=lambda letter: letter.last_time)
            return letters[-SHOWN_DEAD_LETTERS:]
        finally:
            await admin.close()

    async def replay(
        self, egress: Egress, kafka: dict[str, Any], events: Sequence[EventName], *, dry_run: bool
    ) -> ReplayResult:
        """Send the dead letters of these events again to the Trigger, and return which were sent.

        `kafka` is the librdkafka configuration. With `dry_run`, send nothing, and return which
        would be sent. Events without a dead letter are left out. Raises `LogError`, and
        `ReplayNotSent` if Kafka doesn't accept an event; the events before it are then sent.
        """
        requested = {(event.id, event.source) for event in events}
        admin = self.connect(kafka)
        try:
            ids = {event.id for event in events}
            # Other sources may have events with the same ids, so compare the sources as well.
            choices = [
                choice
                for choice in await replaying.choose_dead_letters(admin, [egress], ids, fields={})
                if (choice.letter.id, choice.letter.source) in requested
            ]
            sendable = [choice for choice in choices if not choice.obstacle]
            replay_id = ""
            if sendable and not dry_run:
                writer = self.open_writer(kafka)
                try:
                    replay_id = await replaying.send_again(admin, writer, sendable)
                finally:
                    await writer.close(REPLAY_WRITER_CLOSE_TIMEOUT)
        finally:
            await admin.close()
        return ReplayResult(
            chosen=tuple(
                ChosenEvent(about=choice.description, obstacle=choice.obstacle)
                for choice in choices
            ),
            replay=replay_id,
        )
