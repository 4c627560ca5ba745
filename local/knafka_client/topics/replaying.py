"""Sends a few dead letters again without Spark, from their topic to the replay topic.

The Spark job replays thousands and records that in its tables; this is for single events. Both send
the original event, without the attributes of a dead letter, to the one Trigger whose delivery
failed. A replay without Spark isn't in the tables, so later reports still count the event as
failed.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from knafka.core.contract import Egress
from knafka.core.dead_letter import OMITTED, REPLAY_TOPIC, headers_for_replay
from knafka.core.delivery import Reason
from knafka.core.errors import KnafkaError
from knafka.core.events.kafka_binding import Draft
from knafka.dispatcher.engine.sending.appending import append
from knafka.ports.log import LogAdmin, LogWriter, Record
from knafka_client.topics.dead_letters import (
    MOST_RECORDS_READ,
    StoredDeadLetter,
    dead_letter_key,
    parse_dead_letter,
    read_last_replays,
    read_topic,
    replayed_at,
)
from knafka_operator.kafka.egresses import replay_topic

REPLAY_WRITER_CLOSE_TIMEOUT: Final = 5.0
"""Seconds for a writer of replays to close."""
CLUSTER_DEFAULT: Final = -1
"""The replication factor by which Kafka takes the cluster's default."""


class ReplayNotSent(KnafkaError):
    """Kafka has not accepted a record of a replay; the records before it were accepted."""


@dataclass(frozen=True, slots=True)
class ReplayChoice:
    """A dead letter that was chosen for a replay, with the reason if it can't be sent."""

    egress: Egress
    """The Egress of the Trigger to which the event couldn't be delivered."""
    record: Record
    """The record of the dead letter in its topic."""
    letter: StoredDeadLetter
    """What the record says."""
    obstacle: str
    """Why the event can't or needn't be sent again; empty if it can be."""

    @property
    def description(self) -> str:
        """One line of text about the dead letter."""
        reason = f"{self.letter.reason} {self.letter.code}".strip()
        return f"{self.egress.trigger}: {self.letter.event_text} ({reason})"


def select_egresses(
    egresses: Iterable[Egress], broker: str | None, trigger: str | None
) -> list[Egress]:
    """Return the Egresses of a Broker (`NAMESPACE/NAME`) and of a Trigger (`NAME`); None selects
    all.

    A KafkaChannel is compared by its `names.of_channel`, as in the dead-letter tables, so that a
    Broker of the same name doesn't select it.
    """
    selected = []
    for egress in egresses:
        namespace, own_broker, own_trigger = dead_letter_key(egress)
        if broker in (None, f"{namespace}/{own_broker}") and trigger in (None, own_trigger):
            selected.append(egress)
    return selected


async def choose_dead_letters(
    admin: LogAdmin,
    egresses: Collection[Egress],
    ids: Collection[str],
    fields: Mapping[str, str],
) -> Sequence[ReplayChoice]:
    """Return, for each Trigger, the newest dead letter of each event that has one of these ids.

    Only the dead-letter topics of `egresses` (one for each Trigger) are searched, and only the
    newest `MOST_RECORDS_READ` records of each. `fields` are further fields of a `StoredDeadLetter`,
    with the values that they must have. Raises `LogError`.
    """
    choices = []
    for egress in egresses:
        records = await read_topic(admin, egress.dead_letter_topic, MOST_RECORDS_READ)
        newest_by_event = {}
        for record in records:  # oldest first, so that the newest stays
            dead_letter = parse_dead_letter(record)
            if dead_letter.id not in ids:
                continue
            if all(getattr(dead_letter, name) == value for name, value in fields.items()):
                newest_by_event[dead_letter.id, dead_letter.source] = record, dead_letter
        last_replays = await read_last_replays(admin, egress) if newest_by_event else {}
        for record, dead_letter in newest_by_event.values():
            obstacle = _replay_obstacle(record, dead_letter)
            if not obstacle and replayed_at(record, last_replays) is not None:
                obstacle = "sent again already, and it has not failed since"
            choices.append(ReplayChoice(egress, record, dead_letter, obstacle))
    return choices


def _replay_obstacle(record: Record, dead_letter: StoredDeadLetter) -> str:
    """Return why a dead letter can't be replayed; empty if it can. Whether it was sent again
    already isn't checked here."""
    # Every event has an id: a record without one holds no event.
    if dead_letter.reason == Reason.UNDECODABLE.value or not dead_letter.id:
        return "it isn't an event"
    if any(name == f"ce_{OMITTED}" for name, _ in record.headers() or ()):
        return f"too large to be kept: its {dead_letter.omitted} is gone"
    return ""


async def send_again(admin: LogAdmin, writer: LogWriter, choices: Sequence[ReplayChoice]) -> str:
    """Append the chosen dead letters to their Triggers' replay topics, in order; returns the
    replay's id.

    Raises `ReplayNotSent`, and `LogError` if a topic can't be created.
    """
    replay_id = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"
    for choice in choices:
        topic = await _ensure_replay_topic(admin, choice.egress)
        record = choice.record
        headers = headers_for_replay(
            record.headers() or (), f"{replay_id}/{record.partition()}-{record.offset()}"
        )
        if error := await append(writer, topic, Draft(record.key(), headers, record.value())):
            raise ReplayNotSent(f"{choice.description} was not sent: {error}")
    return replay_id


async def _ensure_replay_topic(admin: LogAdmin, egress: Egress) -> str:
    """Return the name of the Trigger's replay topic; creates the topic if it doesn't exist.

    A new topic has as many partitions as the Broker's or the dead-letter topic, whichever has more,
    and the replication factor of the dead-letter topic. Raises `LogError`.
    """
    name = replay_topic(egress)
    partitions_by_topic = await admin.topics()
    if name not in partitions_by_topic:
        partitions = max(
            partitions_by_topic.get(egress.topic, 1),
            partitions_by_topic.get(egress.dead_letter_topic, 1),
        )
        dead_letters = await admin.describe_topic(egress.dead_letter_topic)
        replication = CLUSTER_DEFAULT if dead_letters is None else dead_letters.replication
        await admin.ensure_topic(name, partitions, replication, REPLAY_TOPIC)
    return name
