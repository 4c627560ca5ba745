"""A few dead letters sent again without Spark: from their topic straight to the replay topic.

The Spark job replays thousands and keeps tables of it; this is for the one event that somebody has
in front of them. What arrives is the same: the event as it was, without what a dead letter adds, to
the one Trigger that failed it. The tables don't know of it, so a later report goes on to count it.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from knafka.core.contract import Egress
from knafka.core.dead_letter import OMITTED, REPLAY_TOPIC, restored
from knafka.core.delivery import Reason
from knafka.core.errors import KnafkaError
from knafka.core.kafka_binding import Draft
from knafka.dispatcher.appending import append
from knafka.ports.log import LogAdmin, LogWriter, Record
from knafka_client.topics.dead_letters import (
    READ_AT_MOST,
    StoredDeadLetter,
    letter,
    read_topic,
    replayed_at,
    replays,
)
from knafka_operator.decide.desired import replay_topic

WRITER_CLOSE_TIMEOUT: Final = 5.0
"""Seconds for a writer of dead letters or replays to close."""


class NotSent(KnafkaError):
    """Kafka has not taken a dead letter; those before it are on their way."""


@dataclass(frozen=True, slots=True)
class ReplayChoice:
    """One dead letter that was chosen for a replay, and why it can't be sent, if so."""

    egress: Egress
    """Of the Trigger that failed it."""
    record: Record
    letter: StoredDeadLetter
    obstacle: str
    """Why it can't be sent again, or needn't; empty: it can."""

    @property
    def about(self) -> str:
        """One line for a person."""
        event, trigger = self.letter, self.egress.trigger
        how = f"{event.reason} {event.code}".strip()
        return f"{trigger}: {event.type} {event.id} from {event.source} ({how})"


async def choose(
    admin: LogAdmin,
    egresses: Collection[Egress],
    ids: Collection[str],
    fields: Mapping[str, str],
) -> Sequence[ReplayChoice]:
    """The dead letters of events with one of these ids; `fields` are other fields of a
    `StoredDeadLetter` and the values they must have. If an event has several, the last one.

    Raises `LogError`.
    """
    chosen = []
    for egress in egresses:
        records = await read_topic(admin, egress.dead_letter_topic, READ_AT_MOST)
        last = {}
        for record in records:
            id_ = (dict(record.headers() or ()).get("ce_id") or b"").decode(errors="replace")
            dead_letter = letter(record)
            if id_ in ids and all(getattr(dead_letter, name) == it for name, it in fields.items()):
                last[id_, dead_letter.source] = record, dead_letter
        sent = await replays(admin, egress) if last else {}
        for record, dead_letter in last.values():
            why = _obstacle(record, dead_letter)
            if not why and replayed_at(record, sent) is not None:
                why = "sent again already, and it has not failed since"
            chosen.append(ReplayChoice(egress, record, dead_letter, why))
    return chosen


def _obstacle(record: Record, dead_letter: StoredDeadLetter) -> str:
    if dead_letter.reason == Reason.UNDECODABLE.value or not dead_letter.id:
        return "no event"
    if any(name == f"ce_{OMITTED}" for name, _ in record.headers() or ()):
        return f"too large to be kept: its {dead_letter.omitted} is gone"
    return ""


async def send(admin: LogAdmin, writer: LogWriter, chosen: Sequence[ReplayChoice]) -> str:
    """Append them to their Triggers' replay topics, in order; returns the id of this replay.

    Raises `NotSent`, and `LogError` if a topic can't be made.
    """
    replay = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"
    for choice in chosen:
        topic = await _topic(admin, choice.egress)
        record = choice.record
        marked = restored(
            record.headers() or (), f"{replay}/{record.partition()}-{record.offset()}"
        )
        if error := await append(writer, topic, Draft(record.key(), marked, record.value())):
            raise NotSent(f"{choice.about} was not sent: {error}")
    return replay


async def _topic(admin: LogAdmin, egress: Egress) -> str:
    """The Trigger's replay topic; made if need be, with as many partitions as its Broker's."""
    name = replay_topic(egress)
    there = await admin.topics()
    if name not in there:
        dead_letters = await admin.describe_topic(egress.dead_letter_topic)
        await admin.ensure_topic(
            name,
            max(there.get(egress.topic, 1), there.get(egress.dead_letter_topic, 1)),
            -1 if dead_letters is None else dead_letters.replication,
            REPLAY_TOPIC,
        )
    return name
