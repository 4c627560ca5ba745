"""Traces an event from its record in the Broker's topic to each Trigger of the Broker.

A trace is made of the filters as they are declared now and of what Kafka keeps anyway: the record,
the commits of each Trigger's group, dead letters and replays. So a trace can't tell whether a
settled event is older than its Trigger, nor which reply it got: a reply doesn't name its event.
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
from knafka.core.errors import LogError
from knafka.core.events.kafka_binding import Envelope, read
from knafka.core.filters.predicates import why_not
from knafka.core.progress import DeliveryStage, DeliveryState, decode, policy_of
from knafka.ports.log import Commits, LogAdmin, OffsetAndMetadata, Record
from knafka_cli.events.searching import holds_event_with
from knafka_cli.events.steps import ATTEMPT, TraceStep
from knafka_client.declared.declared_source import trigger_name_of
from knafka_client.topics.dead_letters import (
    MOST_RECORDS_READ,
    StoredDeadLetter,
    parse_dead_letter,
    preview_text,
    read_topic,
)
from knafka_client.topics.ranges import RangeReader, TopicMarks
from knafka_operator.kafka.egresses import replay_egress

_DELIVERED_OR_IN_TABLES: Final = (
    "delivered, or its dead letter is no longer in its topic (knafka dead-letters report)"
)
"""Detail of a settled event if not all dead letters could be read from their topic."""

TRACEPARENT: Final = "traceparent"
"""Name of the header and the attribute of W3C Trace Context."""
_match_traceparent = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-([0-9a-f]{2})").fullmatch
"""Matches a `traceparent`; groups are the trace's id and the flags, of which bit 0 is `sampled`."""

ReadCommits: TypeAlias = Callable[[str, str, Collection[int]], Commits]
"""Reads a group's commits for these partitions of a topic. Raises `LogError`."""


class TracedState(StrEnum):
    """How far one Trigger is with one event."""

    NOT_WANTED = "not wanted"
    """The Trigger's filters refuse the event."""
    WAITING = "waiting"
    """The event is not settled; a delivery may be in progress."""
    RETRYING = "retrying"
    """At least one attempt has failed."""
    SETTLED = "settled"
    """The Trigger is done with the event."""
    DEAD_LETTER = "dead letter"
    """The event could not be delivered, and is kept."""
    UNKNOWN = "unknown"
    """Kafka didn't answer, for example since a partition of the dead-letter topic has no leader."""


@dataclass(frozen=True, slots=True)
class TracedReplay:
    """A replay of an event, and how far its Trigger is with the replayed event."""

    at: str
    """When the event was sent again, in RFC 3339."""
    state: TracedState
    detail: str
    """A short explanation of the state; may be empty."""


@dataclass(frozen=True, slots=True)
class TracedDelivery:
    """How far one Trigger or Subscription is with one event."""

    trigger: str
    """Name of the Trigger or Subscription, as `trigger_name_of` writes it."""
    state: TracedState
    """The latest state: a dead letter that was replayed and settled is settled."""
    detail: str
    """Everything known about the delivery, on one line."""
    clauses: Sequence[str] = ()
    """The filter clauses that refuse the event."""
    dead_letters: Sequence[StoredDeadLetter] = ()
    replays: Sequence[TracedReplay] = ()
    steps: Sequence[TraceStep] = ()
    """The steps that are known, in the order of time."""


@dataclass(frozen=True, slots=True)
class Trace:
    """One record of an event, and its deliveries; an event that was sent several times has several
    records."""

    id: str
    type: str
    source: str
    broker: str
    topic: str
    partition: int
    offset: int
    accepted: str
    """When the Broker accepted the event, in RFC 3339."""
    deliveries: Sequence[TracedDelivery]
    trace_id: str = ""
    """The id of W3C Trace Context, 32 hexadecimal digits; empty if the event has none."""
    sampled: bool = False
    """Whether the sender asked for spans to be recorded."""


async def trace_record(
    admin: LogAdmin,
    read_commits: ReadCommits,
    record: Record,
    broker: str,
    egresses: Sequence[Egress],
    paused: Collection[str] = (),
) -> Trace:
    """Trace a record through the Triggers of its Broker: one delivery for each of `egresses`.

    `broker` is the Broker's name, and `paused` are the names of paused Triggers. Raises `LogError`
    if no delivery can be traced, and `InvalidEvent` if the record holds no event.
    """
    envelope = read(record.headers(), record.value())
    topics = await admin.topics()
    tracing_deliveries = (
        _trace_delivery(admin, read_commits, record, envelope, egress, topics, paused)
        for egress in egresses
    )
    outcomes = await asyncio.gather(*tracing_deliveries, return_exceptions=True)
    attributes = envelope.attributes
    trace_id, sampled = trace_context(envelope)
    return Trace(
        id=attributes["id"],
        type=attributes["type"],
        source=attributes["source"],
        broker=broker,
        topic=record.topic(),
        partition=record.partition(),
        offset=record.offset(),
        accepted=timestamp(record.timestamp()[1] / 1000),
        deliveries=_errors_as_unknown(egresses, outcomes),
        trace_id=trace_id,
        sampled=sampled,
    )


def _errors_as_unknown(
    egresses: Sequence[Egress], outcomes: Sequence[TracedDelivery | BaseException]
) -> Sequence[TracedDelivery]:
    """Return the deliveries among `outcomes`; in place of each `LogError`, return a delivery in the
    state unknown. Raises an error if all outcomes are errors, or if it is no `LogError`."""
    errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    for error in errors:
        if len(errors) == len(outcomes) or not isinstance(error, LogError):
            raise error
    return [
        TracedDelivery(trigger_name_of(egress), TracedState.UNKNOWN, str(outcome))
        if isinstance(outcome, BaseException)
        else outcome
        for egress, outcome in zip(egresses, outcomes, strict=True)
    ]


def trace_context(envelope: Envelope) -> tuple[str, bool]:
    """Return the id of the event's trace and whether the trace is sampled, from the header or else
    the attribute `traceparent`; an empty id and False if neither is valid."""
    # `passed` has the headers that are passed on with the event; one may have no value (None).
    header = next((value for name, value in envelope.passed if name == TRACEPARENT), b"") or b""
    for text in (header.decode(errors="replace"), envelope.attributes.get(TRACEPARENT, "")):
        if match := _match_traceparent(text):
            is_sampled = bool(int(match[2], 16) & 1)  # bit 0 of the flags
            return match[1], is_sampled
    return "", False


async def _trace_delivery(
    admin: LogAdmin,
    read_commits: ReadCommits,
    record: Record,
    envelope: Envelope,
    egress: Egress,
    topics: Mapping[str, int],
    paused: Collection[str],
) -> TracedDelivery:
    """Trace one record, whose content is `envelope`, at one Trigger or Subscription.

    `topics` are the existing topics in its Kafka, and `paused` the names of paused Triggers. Raises
    `LogError`.
    """
    name = trigger_name_of(egress)
    is_same_event = holds_event_with(envelope.attributes["id"], envelope.attributes["source"])
    refusals = why_not(egress.filter, egress.filters, envelope.attributes)
    dead_letters, all_read = await _find_dead_letters(admin, record, is_same_event, egress, topics)
    if dead_letters:
        replays = await _find_replays(admin, read_commits, is_same_event, egress, topics)
        letters = [_with_replay_time(dead_letter, replays) for dead_letter in dead_letters]
        state, detail = _state_and_history(letters, replays)
        steps = [step for dead_letter in dead_letters for step in _dead_letter_steps(dead_letter)]
        steps += [TraceStep(replay.at, "sent again", replay.state.value) for replay in replays]
        return TracedDelivery(name, state, detail, refusals, letters, replays, sorted(steps))
    if refusals:
        return TracedDelivery(name, TracedState.NOT_WANTED, "; ".join(refusals), refusals)
    state, detail, last_attempt = await _read_group_progress(read_commits, record, egress)
    if state is TracedState.SETTLED:
        detail = "no dead letter: delivered" if all_read else _DELIVERED_OR_IN_TABLES
        if egress.dead_letter_sink is not None:
            detail += f", or taken by the dead letter sink {egress.dead_letter_sink.url}"
        if egress.reply is not None:
            detail += f"; a reply, if it had one, was taken by {egress.reply.url}"
    elif name in paused:
        detail = f"the {egress.kind} is paused; {detail}"
    return TracedDelivery(name, state, detail, steps=last_attempt)


def _dead_letter_steps(record: Record) -> Sequence[TraceStep]:
    """Return the attempts that the record of a dead letter lists, and last the step of keeping the
    dead letter."""
    details = parse_dead_letter(record)
    reason = f"{details.reason} {details.code}".strip()
    place = f"{record.topic()}/{record.partition()}/{record.offset()}"
    kept_step = TraceStep(
        timestamp(record.timestamp()[1] / 1000), "dead letter", f"{reason}, at {place}"
    )
    return [*(TraceStep(time, ATTEMPT, result) for time, result in details.attempt_log), kept_step]


def _state_and_history(
    letters: Sequence[StoredDeadLetter], replays: Sequence[TracedReplay]
) -> tuple[TracedState, str]:
    """Return the event's latest state, and a text with its dead letters and replays in order."""
    parts = [(dead_letter.last_time, _dead_letter_text(dead_letter)) for dead_letter in letters]
    parts += [(replay.at, f"sent again {replay.at}") for replay in replays]
    history = "; ".join(text for _, text in sorted(parts))
    last_replay = max(replays, key=lambda replay: replay.at, default=None)
    if last_replay is None or last_replay.at < max(letter.last_time for letter in letters):
        return TracedState.DEAD_LETTER, history
    detail = "delivered" if last_replay.state is TracedState.SETTLED else last_replay.detail
    return last_replay.state, f"{history}: {detail}"


def _dead_letter_text(dead_letter: StoredDeadLetter) -> str:
    """Return a text about a dead letter: its reason, its number of attempts, and its time."""
    reason = f"{dead_letter.reason} {dead_letter.code}".strip()
    if dead_letter.reason == Reason.REPLY_NOT_DELIVERED:
        reason += f" to {preview_text(dead_letter.destination)}"
    return f"{reason} after {dead_letter.attempts} attempts, {dead_letter.last_time}"


async def _read_group_progress(
    read_commits: ReadCommits, record: Record, egress: Egress
) -> tuple[TracedState, str, Sequence[TraceStep]]:
    """Return how far a Trigger's consumer group is with a record, a short explanation, and the last
    failed attempt as the only step; no step if none has failed. Raises `LogError`."""
    partition, offset = record.partition(), record.offset()
    commits = await asyncio.to_thread(read_commits, egress.group, egress.topic, [partition])
    committed, policy = commits.get(partition), policy_of(egress)
    state, detail = offset_state(offset, committed, policy)
    if state is not TracedState.RETRYING or committed is None:
        return state, detail, ()
    delivery = decode(committed.offset, committed.metadata, policy).deliveries[offset]
    if delivery.failed is None:
        return state, detail, ()
    last_attempt = TraceStep(timestamp(delivery.last_attempt), ATTEMPT, delivery.failed.text)
    return state, detail, (last_attempt,)


def offset_state(
    offset: int, committed: OffsetAndMetadata | None, policy: int = 0
) -> tuple[TracedState, str]:
    """Return how far a consumer group is with one offset, as a state and a short explanation.

    `committed` is the group's commit, None if it has none; its metadata lists what is settled, or
    was tried, after its offset. `policy` is the checksum of the Trigger's retry policy
    (`progress.policy_of`), with which the metadata is decoded.
    """
    if committed is None:
        return TracedState.WAITING, "nothing of its partition is settled"
    if offset < committed.offset:
        return TracedState.SETTLED, ""
    progress = decode(committed.offset, committed.metadata, policy)
    if any(first <= offset < range_end for first, range_end in progress.settled):
        return TracedState.SETTLED, ""
    if (delivery := progress.deliveries.get(offset)) is not None:
        return TracedState.RETRYING, _attempts_text(delivery)
    # How many offsets after the commit and before this one are settled.
    settled_before = sum(
        min(range_end, offset) - first for first, range_end in progress.settled if first < offset
    )
    unsettled = offset - committed.offset - settled_before
    return (
        TracedState.WAITING,
        f"{unsettled} before it aren't settled" if unsettled else "it is next",
    )


def _attempts_text(delivery: DeliveryState) -> str:
    """Return a text about the attempts of an unsettled delivery: their number, the destination that
    is tried now, the time and result of the last one, and when the next one is due."""
    stage = {
        DeliveryStage.SUBSCRIBER: "",
        DeliveryStage.SINK: ", now at the dead letter sink",
        DeliveryStage.TOPIC: ", now to be kept as a dead letter",
    }[delivery.stage]
    attempts = f"{delivery.attempts} attempt{'' if delivery.attempts == 1 else 's'}"
    result = "" if delivery.failed is None else f" ({delivery.failed.text})"
    return (
        f"{attempts}{stage}, the last {timestamp(delivery.last_attempt)}{result}, "
        f"the next {timestamp(delivery.due)}"
    )


async def _find_dead_letters(
    admin: LogAdmin,
    record: Record,
    is_same_event: Callable[[Record], bool],
    egress: Egress,
    topics: Mapping[str, int],
) -> tuple[Sequence[Record], bool]:
    """Return the records of the Trigger's dead letters of `record` and of that record's replays,
    and whether all dead letters ever written to the Trigger's dead-letter topic were read.

    `is_same_event` returns whether a record holds the same event; `topics` are the existing topics.
    Raises `LogError`.
    """
    if egress.dead_letter_topic not in topics:
        return [], True
    dead_letters = await read_topic(admin, egress.dead_letter_topic, MOST_RECORDS_READ)
    ever_written = sum((await admin.end_offsets(egress.dead_letter_topic)).values())
    all_read = ever_written <= len(dead_letters)
    of_event = [
        (dead_letter, parse_dead_letter(dead_letter).position)
        for dead_letter in dead_letters
        if is_same_event(dead_letter)
    ]
    position_of_record = f"{record.topic()}/{record.partition()}/{record.offset()}"
    # Another record may hold the same event. Dead letters of replays can be about this record only
    # if it has a dead letter of its own.
    if all(position != position_of_record for _, position in of_event):
        return [], all_read
    replay_prefix = f"{replay_egress(egress).topic}/"
    of_record = [
        dead_letter
        for dead_letter, position in of_event
        if position == position_of_record or position.startswith(replay_prefix)
    ]
    return of_record, all_read


def _with_replay_time(record: Record, replays: Sequence[TracedReplay]) -> StoredDeadLetter:
    """Return the dead letter in a record; its `replayed` is the time of the first replay since the
    record was written, empty if there was none."""
    written = timestamp(record.timestamp()[1] / 1000)
    return replace(
        parse_dead_letter(record),
        replayed=min((replay.at for replay in replays if replay.at >= written), default=""),
    )


async def _find_replays(
    admin: LogAdmin,
    read_commits: ReadCommits,
    is_same_event: Callable[[Record], bool],
    egress: Egress,
    topics: Mapping[str, int],
) -> Sequence[TracedReplay]:
    """Return the replays of an event to this Trigger, from the Trigger's replay topic;
    `is_same_event` returns whether a record holds the event. Raises `LogError`."""
    egress_of_replays = replay_egress(egress)
    if egress_of_replays.topic not in topics:
        return []
    replays = []
    for record in await read_topic(admin, egress_of_replays.topic, MOST_RECORDS_READ):
        if is_same_event(record):
            state, detail, _ = await _read_group_progress(read_commits, record, egress_of_replays)
            replays.append(TracedReplay(timestamp(record.timestamp()[1] / 1000), state, detail))
    return replays


def commits_reader(connection: Mapping[str, Any]) -> ReadCommits:
    """Return a function that reads commits from the Kafka of this librdkafka configuration, without
    joining the group."""
    marks = TopicMarks(connection)

    def read_commits(group: str, topic: str, partitions: Collection[int]) -> Commits:
        """Return the group's commits for these partitions of the topic. Raises `LogError`."""
        with RangeReader(connection, group, marks=marks) as reader:
            return reader.committed(topic, partitions)

    return read_commits
