"""What became of an event: from its record in the Broker's topic to each Trigger of the Broker.

All from what is kept anyway: the record itself, the filters as they are declared now, what each
Trigger's or Subscription's group has committed, dead letters and what was sent again of them. So it
can't be known whether an event that a group has settled came before its Trigger, nor whether a
reply came of it: a reply is an event of its own, and nothing in it leads back.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final, TypeAlias

from knafka.core.contract import Egress
from knafka.core.dead_letter import timestamp
from knafka.core.delivery import Reason
from knafka.core.errors import InvalidEvent
from knafka.core.filters import why_not
from knafka.core.kafka_binding import Envelope, read
from knafka.core.progress import DeliveryStage, DeliveryState, decode, policy_of
from knafka.ports.log import Commits, LogAdmin, OffsetAndMetadata, Record
from knafka_cli.events.searching import is_event
from knafka_cli.events.steps import ATTEMPT, TraceStep
from knafka_client.declared.declared_source import trigger_of
from knafka_client.topics.dead_letters import READ_AT_MOST, StoredDeadLetter, letter, read_topic
from knafka_client.topics.ranges import RangeReader
from knafka_operator.decide.desired import replay_egress

_MAYBE_TABLED: Final = (
    "delivered, or its dead letter is no longer in its topic (knafka dead-letters report)"
)

TRACEPARENT: Final = "traceparent"
_traceparent = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-([0-9a-f]{2})").fullmatch

Committed: TypeAlias = Callable[[str, str, Collection[int]], Commits]
"""What a group has committed of these partitions of a topic. Raises `LogError`."""


class TracedState(StrEnum):
    """How far one Trigger is with one event."""

    NOT_WANTED = "not wanted"
    """Its filters refuse it."""
    WAITING = "waiting"
    """Not settled; it may be on its way."""
    RETRYING = "retrying"
    """At least one attempt has failed."""
    SETTLED = "settled"
    DEAD_LETTER = "dead letter"
    """It could not be delivered, and is kept."""


@dataclass(frozen=True, slots=True)
class TracedReplay:
    """A dead letter that was sent again."""

    at: str
    state: TracedState
    detail: str


@dataclass(frozen=True, slots=True)
class TracedDelivery:
    """One event at one Trigger or Subscription."""

    trigger: str
    """As `trigger_of` gives it."""
    state: TracedState
    """The last of it: a dead letter that was sent again and settled is settled."""
    detail: str
    """All that is known, on one line."""
    clauses: Sequence[str] = ()
    """Of its filters, those that refuse the event."""
    dead_letters: Sequence[StoredDeadLetter] = ()
    replays: Sequence[TracedReplay] = ()
    steps: Sequence[TraceStep] = ()
    """What has happened, in the order of time, as far as it is known one by one."""


@dataclass(frozen=True, slots=True)
class Trace:
    """One record of an event; there are several if it was sent several times."""

    id: str
    type: str
    source: str
    broker: str
    topic: str
    partition: int
    offset: int
    accepted: str
    deliveries: Sequence[TracedDelivery]
    trace_id: str = ""
    """Of W3C Trace Context, 32 hexadecimal digits, if it came with one."""
    sampled: bool = False
    """Whether its sender asked for spans to be kept."""


async def trace(
    admin: LogAdmin,
    committed: Committed,
    record: Record,
    broker: str,
    egresses: Sequence[Egress],
    paused: Collection[str] = (),
) -> Trace:
    """Trace a record through these Triggers, which are of its Broker; `paused` names those that are
    paused. Raises `LogError`, and `InvalidEvent` if the record holds no event."""
    envelope = read(record.headers(), record.value())
    topics = await admin.topics()
    deliveries = [
        _delivery(admin, committed, record, envelope, egress, topics, paused) for egress in egresses
    ]
    about = envelope.attributes
    return Trace(
        about["id"],
        about["type"],
        about["source"],
        broker,
        record.topic(),
        record.partition(),
        record.offset(),
        timestamp(record.timestamp()[1] / 1000),
        await asyncio.gather(*deliveries),
        *trace_context(envelope),
    )


def trace_context(envelope: Envelope) -> tuple[str, bool]:
    """The trace's id, and whether it is sampled: by the header beside the event, else by the
    extension attribute; empty if neither is there and valid."""
    header = next((value for name, value in envelope.passed if name == TRACEPARENT), b"") or b""
    for text in (header.decode(errors="replace"), envelope.attributes.get(TRACEPARENT, "")):
        if parts := _traceparent(text):
            return parts[1], bool(int(parts[2], 16) & 1)
    return "", False


async def _delivery(
    admin: LogAdmin,
    committed: Committed,
    record: Record,
    envelope: Envelope,
    egress: Egress,
    topics: Mapping[str, int],
    paused: Collection[str],
) -> TracedDelivery:
    name = trigger_of(egress)
    is_it = is_event(envelope.attributes["id"], envelope.attributes["source"])
    clauses = why_not(egress.filter, egress.filters, envelope.attributes)
    records, complete = await _dead_letters(admin, record, is_it, egress, topics)
    if records:
        replays = await _replays(admin, committed, is_it, egress, topics)
        letters = [_letter(dead_letter, replays) for dead_letter in records]
        state, detail = _history(letters, replays)
        steps = [step for dead_letter in records for step in _steps(dead_letter)]
        steps += [TraceStep(replay.at, "sent again", replay.state.value) for replay in replays]
        return TracedDelivery(name, state, detail, clauses, letters, replays, sorted(steps))
    if clauses:
        return TracedDelivery(name, TracedState.NOT_WANTED, "; ".join(clauses), clauses)
    state, detail, last = await _progress(committed, record, egress)
    if state is TracedState.SETTLED:
        detail = "no dead letter: delivered" if complete else _MAYBE_TABLED
        if egress.dead_letter_sink is not None:
            detail += f", or taken by the dead letter sink {egress.dead_letter_sink.url}"
        if egress.reply is not None:
            detail += f"; a reply, if it had one, was taken by {egress.reply.url}"
    elif name in paused:
        detail = f"the {egress.kind} is paused; {detail}"
    return TracedDelivery(name, state, detail, steps=last)


def _steps(record: Record) -> Sequence[TraceStep]:
    """The attempts that a dead letter lists, and that it was kept."""
    details = letter(record)
    how = f"{details.reason} {details.code}".strip()
    place = f"{record.topic()}/{record.partition()}/{record.offset()}"
    kept = TraceStep(timestamp(record.timestamp()[1] / 1000), "dead letter", f"{how}, at {place}")
    return [*(TraceStep(time, ATTEMPT, result) for time, result in details.attempt_log), kept]


def _history(
    letters: Sequence[StoredDeadLetter], replays: Sequence[TracedReplay]
) -> tuple[TracedState, str]:
    """What is the case now, and how it came to that."""
    parts = [(dead_letter.last_time, _failed(dead_letter)) for dead_letter in letters]
    parts += [(replay.at, f"sent again {replay.at}") for replay in replays]
    history = "; ".join(text for _, text in sorted(parts))
    last = max(replays, key=lambda replay: replay.at, default=None)
    if last is None or last.at < max(dead_letter.last_time for dead_letter in letters):
        return TracedState.DEAD_LETTER, history
    detail = "delivered" if last.state is TracedState.SETTLED else last.detail
    return last.state, f"{history}: {detail}"


def _failed(dead_letter: StoredDeadLetter) -> str:
    how = f"{dead_letter.reason} {dead_letter.code}".strip()
    if dead_letter.reason == Reason.REPLY_NOT_DELIVERED:
        how += f" to {dead_letter.destination}"
    return f"{how} after {dead_letter.attempts} attempts, {dead_letter.last_time}"


async def _progress(
    committed: Committed, record: Record, egress: Egress
) -> tuple[TracedState, str, Sequence[TraceStep]]:
    """How far the group of an Egress is with a record of its topic, and its last attempt, if that
    has failed."""
    partition, offset = record.partition(), record.offset()
    commits = await asyncio.to_thread(committed, egress.group, egress.topic, [partition])
    place, policy = commits.get(partition), policy_of(egress)
    state, detail = state_of(offset, place, policy)
    if state is not TracedState.RETRYING or place is None:
        return state, detail, ()
    delivery = decode(place.offset, place.metadata, policy).deliveries[offset]
    if delivery.failed is None:
        return state, detail, ()
    return (
        state,
        detail,
        (TraceStep(timestamp(delivery.last_attempt), ATTEMPT, delivery.failed.text),),
    )


def state_of(
    offset: int, committed: OffsetAndMetadata | None, policy: int = 0
) -> tuple[TracedState, str]:
    """How far a consumer group is with one offset, as a state and a short explanation."""
    if committed is None:
        return TracedState.WAITING, "nothing of its partition is settled"
    if offset < committed.offset:
        return TracedState.SETTLED, ""
    progress = decode(committed.offset, committed.metadata, policy)
    if any(first <= offset < behind for first, behind in progress.settled):
        return TracedState.SETTLED, ""
    if (delivery := progress.deliveries.get(offset)) is not None:
        return TracedState.RETRYING, _attempted(delivery)
    settled = sum(
        min(behind, offset) - first for first, behind in progress.settled if first < offset
    )
    unsettled = offset - committed.offset - settled
    return (
        TracedState.WAITING,
        f"{unsettled} before it aren't settled" if unsettled else "it is next",
    )


def _attempted(delivery: DeliveryState) -> str:
    where = {
        DeliveryStage.SUBSCRIBER: "",
        DeliveryStage.SINK: ", now at the dead letter sink",
        DeliveryStage.TOPIC: ", now to be kept as a dead letter",
    }[delivery.stage]
    attempts = f"{delivery.attempts} attempt{'' if delivery.attempts == 1 else 's'}"
    result = "" if delivery.failed is None else f" ({delivery.failed.text})"
    return (
        f"{attempts}{where}, the last {timestamp(delivery.last_attempt)}{result}, "
        f"the next {timestamp(delivery.due)}"
    )


async def _dead_letters(
    admin: LogAdmin,
    record: Record,
    is_it: Callable[[Record], bool],
    egress: Egress,
    topics: Mapping[str, int],
) -> tuple[Sequence[Record], bool]:
    """This record's dead letters, also those of what was sent again of it; and whether all that
    there ever were are still in their topic, and not too many to be read."""
    if egress.dead_letter_topic not in topics:
        return [], True
    dead_letters = await read_topic(admin, egress.dead_letter_topic, READ_AT_MOST)
    complete = sum((await admin.end_offsets(egress.dead_letter_topic)).values()) <= len(
        dead_letters
    )
    records = [
        (dead_letter, letter(dead_letter).position)
        for dead_letter in dead_letters
        if is_it(dead_letter)
    ]
    own = f"{record.topic()}/{record.partition()}/{record.offset()}"
    if all(position != own for _, position in records):
        return [], complete
    replays = f"{replay_egress(egress).topic}/"
    its = [
        dead_letter
        for dead_letter, position in records
        if position == own or position.startswith(replays)
    ]
    return its, complete


def _letter(record: Record, replays: Sequence[TracedReplay]) -> StoredDeadLetter:
    written = timestamp(record.timestamp()[1] / 1000)
    return replace(
        letter(record),
        replayed=min((replay.at for replay in replays if replay.at >= written), default=""),
    )


async def _replays(
    admin: LogAdmin,
    committed: Committed,
    is_it: Callable[[Record], bool],
    egress: Egress,
    topics: Mapping[str, int],
) -> Sequence[TracedReplay]:
    again = replay_egress(egress)
    if again.topic not in topics:
        return []
    replays = []
    for record in await read_topic(admin, again.topic, READ_AT_MOST):
        if is_it(record):
            state, detail, _ = await _progress(committed, record, again)
            replays.append(TracedReplay(timestamp(record.timestamp()[1] / 1000), state, detail))
    return replays


def holds_event(record: Record) -> bool:
    """Whether the record can be traced: one with the id of an event may lack the rest."""
    try:
        read(record.headers(), record.value())
    except InvalidEvent:
        return False
    return True


def committed_in(connection: Mapping[str, Any]) -> Committed:
    """A function that asks Kafka for committed offsets, without joining the group."""

    def committed(group: str, topic: str, partitions: Collection[int]) -> Commits:
        with RangeReader(connection, group) as reader:
            return reader.committed(topic, partitions)

    return committed
