"""Runs replays, on tables and topics.

    begin one replay -> select the events -> send them in lanes to the replay topics -> note them
                                             (a lane: events that one producer sends in their order)

A run can be repeated: a replay sends each event once per replay id. An event goes only to the
Trigger that failed it, never to the whole Broker. Sent events are read back from the replay topics,
so a kill between sending and noting loses nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import Final

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from knafka.core import names
from knafka.core.contract import MAX_RECORD_BYTES
from knafka.core.dead_letter import REPLAY_TOPIC
from knafka_jobs.command_options import FailureSelection
from knafka_jobs.event_edits import NO_EDITS, EventEdits
from knafka_jobs.failure_selection import (
    SHOWN_COLUMNS,
    SHOWN_EVENTS,
    SHOWN_ORDER,
    Preview,
    TriggerName,
)
from knafka_jobs.io.delta import Tables
from knafka_jobs.io.kafka import MAX_MESSAGE_BYTES, KafkaClient
from knafka_jobs.io.kafka_names import possible_topics
from knafka_jobs.job_errors import JobError
from knafka_jobs.materialize import compute_rows
from knafka_jobs.positions import offset_bounds, within_bounds
from knafka_jobs.replay.replay_plan import (
    BROADCAST_ROWS,
    ORDER_COLUMNS,
    SENDABLE,
    dead_letters_of,
    likely_stubs,
    replayable_failures,
    select_failures,
    split_into_lanes,
)
from knafka_jobs.replay.replay_progress import Progress, ReplayProgress
from knafka_jobs.replay.runs import (
    begin_replay,
    files_of,
    find_canceller,
    finish_replay,
    note_sent_events,
)
from knafka_jobs.replay.send import (
    MAX_LANES,
    LaneResult,
    ReplaySender,
    fence_senders,
    progress_text,
)
from knafka_jobs.replay.spark_lanes import send_in_lanes
from knafka_jobs.schema import TRIGGER
from knafka_jobs.topic_offsets import NamedPartition, OffsetSpan, TopicState, spans_of

REPLAY_LOCK: Final = "replay"
"""Name of the lock that one replay holds, see `Tables.locked`."""

DRIVER_EVENTS: Final = 5_000
"""The most events that this process sends by itself: starting Python workers would take longer."""
DRIVER_BYTES: Final = 16 * 1024 * 1024
"""The most bytes of event data that this process sends by itself."""

CANCEL_CHECK_INTERVAL: Final = 2.0
"""Seconds between two checks whether a replay is cancelled."""


@dataclass(frozen=True, slots=True)
class ReplayRunResult:
    """The result of a run of a replay."""

    replay_id: str
    sent: int
    """Number of events that all runs of the replay have sent."""
    left_out: int = 0
    """Number of events that this run could not send, as their Trigger has no replay topic or they
    can't be edited."""
    cancelled_by: str | None = None
    """Who has cancelled the replay; its other events were not sent. None: nobody."""
    problems: tuple[str, ...] = ()
    """Why events were left out, and how many: one text for each Trigger without a replay topic, and
    one for the events that can't be edited."""


class Cancellation:
    """Checks whether a replay is cancelled, at most every `CANCEL_CHECK_INTERVAL` seconds."""

    def __init__(self, find_canceller: Callable[[], str | None]) -> None:
        """`find_canceller` reads who has cancelled the replay, and returns None if nobody has."""
        self._find_canceller = find_canceller
        self._asked_at = float("-inf")
        """Monotonic time at which `_find_canceller` was last called."""
        self.canceller: str | None = None
        """Who had cancelled the replay at the last check; None: nobody."""

    def read_canceller(self) -> str | None:
        """Return who has cancelled the replay; None: nobody. The answer None may be up to
        `CANCEL_CHECK_INTERVAL` seconds old. Once somebody has cancelled, there are no more checks,
        as a cancellation is never taken back. Raises `JobError`."""
        now = time.monotonic()
        if self.canceller is None and now - self._asked_at >= CANCEL_CHECK_INTERVAL:
            self.canceller = self._find_canceller()
            self._asked_at = now
        return self.canceller


def preview(tables: Tables, selection: FailureSelection) -> Preview:
    """Preview the events that a replay of this selection would send. Failures that can't be sent
    are only counted, as left out (`Preview.left_out`). Raises `JobError`."""
    selected = tables.read("failures").transform(select_failures, selection)
    sendable = compute_rows(_sendable_failures(tables, selected))
    triggers = _count_by_trigger(sendable)
    shown = sendable.orderBy(*SHOWN_ORDER).limit(SHOWN_EVENTS)
    events = [row.asDict() for row in shown.select(*SHOWN_COLUMNS).collect()]
    left_out = selected.count() - sum(triggers.values())
    return Preview(triggers, left_out=left_out, events=events)


def replay(
    tables: Tables,
    kafka: KafkaClient,
    selection: FailureSelection,
    replay_id: str | None,
    by: str,
    rate: float | None,
    progress: Progress,
    *,
    edits: EventEdits = NO_EDITS,
    is_alone: bool = False,
) -> ReplayRunResult:
    """Send the events of the selected failures again, with `edits` applied, at most `rate` events a
    second (None: no limit). `by` is the name of the person who replays. `progress` is called with
    lines for users.

    If `replay_id` is None, an interrupted replay of the same selection and edits is continued, else
    a new one begins. `is_alone`: the caller makes sure that no other replay runs on these tables;
    for tables on a local path a lock makes sure of it. After a `JobError`, the same call goes on
    where this one ended.
    """
    with tables.locked(REPLAY_LOCK):
        is_alone = is_alone or tables.has_locks
        options = f"{selection} {edits}" if edits else str(selection)
        row = begin_replay(tables, kafka, options, replay_id, by, progress, is_alone=is_alone)
        replay_id = row["replay_id"]
        progress(f"replay {replay_id} (if it is interrupted, the same command continues it)")
        sendable = _sendable_failures(
            tables, tables.read("failures").transform(select_failures, selection)
        )
        # Leave out what earlier runs have sent, also if its outcome is known by now and it failed
        # again.
        sent_ids = tables.read("sent").where(F.col("replay_id") == replay_id).select("failure_id")
        sent_earlier = sent_ids.count()
        sendable = compute_rows(
            sendable.select(*SENDABLE).join(sent_ids, "failure_id", "left_anti")
        )
        counts = _count_by_trigger(sendable)
        topics, problems = _ensure_replay_topics(kafka, counts)
        for problem in problems:
            progress(f"not sent: {problem}")
        cancellation = Cancellation(partial(find_canceller, tables, replay_id))
        result = LaneResult()
        if topics and cancellation.read_canceller() is None:
            total = sent_earlier + sum(counts[trigger] for trigger in topics)
            files = files_of(tables)
            notes = ReplayProgress(files, replay_id, sent_earlier, total, progress)
            result = _send_events(
                tables,
                kafka,
                sendable,
                topics,
                replay_id,
                rate,
                edits,
                cancellation,
                notes,
                progress,
            )
        if result.not_editable:
            problems.append(f"{_events_text(result.not_editable)} not edited: {result.problem}")
            progress(f"not sent: {problems[-1]}")
        sent = finish_replay(tables, replay_id)
        if cancellation.canceller is not None:
            progress(f"cancelled by {cancellation.canceller}")
        elif problems and not sent:  # no event could be sent at all
            raise JobError(problems[0])
        left_out = sum(count for trigger, count in counts.items() if trigger not in topics)
        left_out += result.not_editable
        return ReplayRunResult(replay_id, sent, left_out, cancellation.canceller, tuple(problems))


def _events_text(count: int) -> str:
    """Return a number of events as text: `1 event`, `2 events`."""
    return "1 event" if count == 1 else f"{count} events"


def _ensure_replay_topics(
    kafka: KafkaClient, counts: Mapping[TriggerName, int]
) -> tuple[dict[TriggerName, TopicState], list[str]]:
    """Return the replay topic of each Trigger that can have one, created if it is missing, and a
    text about each Trigger that can't. `counts` has the number of events to send by Trigger.

    A dead letter may name any Trigger, also one that never existed.
    """
    topics: dict[TriggerName, TopicState] = {}
    problems = []
    for trigger, count in counts.items():
        try:
            topics[trigger] = ensure_replay_topic(kafka, *trigger)
        except JobError as error:
            problems.append(f"{_events_text(count)} of {'/'.join(trigger):.100}: {error!s:.200}")
    return topics, problems


def _send_events(
    tables: Tables,
    kafka: KafkaClient,
    sendable: DataFrame,
    topics: Mapping[TriggerName, TopicState],
    replay_id: str,
    rate: float | None,
    edits: EventEdits,
    cancellation: Cancellation,
    notes: ReplayProgress,
    progress: Progress,
) -> LaneResult:
    """Send the events of the failures `sendable` whose Trigger has a replay topic in `topics`, at
    most `rate` a second (None: no limit), and note them in the table `sent`. If they are few and
    small, this process sends them, else Spark's tasks do, in lanes. Stops once the replay is
    cancelled. `notes` stores the progress in a table, `progress` is called with lines for users.
    Returns how many events were sent or left out. Raises `JobError`."""
    triggers = tables.rows(list(topics), {name: "string" for name in TRIGGER})
    sendable = sendable.join(F.broadcast(triggers), list(TRIGGER), "left_semi")
    total = sendable.count()
    by_name = {topic.name: topic for topic in topics.values()}
    starts = {partition: span.end for partition, span in spans_of(by_name).items()}
    topic_names = {trigger: topic.name for trigger, topic in topics.items()}
    sender = ReplaySender(kafka.connection, replay_id, topic_names, starts, rate, edits)
    sent_so_far = _sent_event_counter(kafka, starts)
    notes.note(lambda: 0)  # the first note: this run has sent nothing yet
    # Read only files that may have these records.
    records = tables.read("records").where(within_bounds(offset_bounds(sendable)))
    letters = dead_letters_of(sendable, records, few=total <= BROADCAST_ROWS)
    if total <= DRIVER_EVENTS and _data_bytes(letters) <= DRIVER_BYTES:
        lane = split_into_lanes(letters, 1).drop(*ORDER_COLUMNS).toLocalIterator()

        def note_progress(_: Row) -> bool:
            """Note the progress; called before each event is sent. Returns whether to go on: False
            if the replay is cancelled, so that neither this event nor a later one is sent."""
            notes.note(sent_so_far)
            return cancellation.read_canceller() is None

        result = sender.send(0, map(tuple, takewhile(note_progress, lane)))
        progress(progress_text(result.sent, total, 0))
    else:
        # As many lanes as Spark runs tasks at once; one if there is a rate, which holds per lane.
        slots = max(1, tables.spark.sparkContext.defaultParallelism)
        lanes = min(MAX_LANES, slots) if rate is None else 1
        rows = split_into_lanes(letters, lanes).drop(*ORDER_COLUMNS)
        result = send_in_lanes(
            rows,
            sender,
            sent_so_far,
            total,
            lambda: cancellation.read_canceller() is not None,
            notes,
            progress,
        )
        if cancellation.canceller is not None:
            fence_senders(kafka.connection, replay_id)  # aborts transactions of cancelled tasks
    # The offsets that the replay topics have gained: there, all sent events are found.
    ends = spans_of(kafka.topics_at_rest(sorted(by_name)))
    ranges = {
        partition: OffsetSpan(starts.get(partition, span.start), span.end)
        for partition, span in ends.items()
    }
    note_sent_events(tables, kafka, replay_id, ranges, topics)
    return result


def _data_bytes(letters: DataFrame) -> int:
    """Return the total bytes of the dead letters' event data."""
    row = letters.agg(F.sum(F.octet_length("value"))).first()
    return 0 if row is None or row[0] is None else int(row[0])


def _sent_event_counter(
    kafka: KafkaClient, starts: Mapping[NamedPartition, int]
) -> Callable[[], int]:
    """Return a function that counts the events sent to replay topics since their partitions ended
    at the offsets `starts`. It counts offsets, so its result is a little too high: Kafka's markers
    of transactions take offsets, too."""
    topics = sorted({name for name, _ in starts})

    def count() -> int:
        """Return how many offsets the partitions have gained since `starts`."""
        ends = spans_of(kafka.topics(topics))
        return sum(max(0, span.end - starts.get(partition, 0)) for partition, span in ends.items())

    return count


def ensure_replay_topic(
    kafka: KafkaClient, namespace: str, broker: str, trigger: str
) -> TopicState:
    """Return a Trigger's replay topic, to which the Trigger's events are sent again. It is created
    if it is missing, and takes records as large as the dead-letter topic does: the limit of an
    existing one is raised if needed.

    A new topic gets as many partitions as the Broker's topic: dead-letter topics have few, and
    each partition has one dispatcher at most. Raises `JobError` if there is neither a replay topic
    nor a dead-letter topic.
    """
    replay_topic = names.replay_topic(namespace, broker, trigger)
    dead_letter_topic = names.dead_letter_topic(namespace, broker, trigger)
    broker_topics = possible_topics(namespace, broker)
    topics = kafka.topics([replay_topic, dead_letter_topic, *broker_topics])
    limit = kafka.record_limit(dead_letter_topic) if dead_letter_topic in topics else None
    if replay_topic in topics:
        present_limit = kafka.record_limit(replay_topic)
        if limit is not None and present_limit is not None and present_limit < limit:
            kafka.raise_record_limit(replay_topic, limit)
        return topics[replay_topic]
    if dead_letter_topic not in topics:
        raise JobError(
            f"the Trigger {namespace}/{trigger} has no dead-letter topic any more: "
            "check whether the Trigger was deleted"
        )
    partitions = max(len(topic.spans) for topic in topics.values())
    # Never below the largest batch of librdkafka, which fills batches whatever the topic's limit.
    size_config = {} if limit is None else {MAX_MESSAGE_BYTES: str(max(limit, MAX_RECORD_BYTES))}
    replication = topics[dead_letter_topic].replication
    return kafka.create_topic(replay_topic, partitions, replication, REPLAY_TOPIC | size_config)


def _sendable_failures(tables: Tables, selected: DataFrame) -> DataFrame:
    """Return the selected failures that can be sent now (`replayable_failures`)."""
    # Read only files that may have these records.
    stub_bounds = offset_bounds(likely_stubs(selected))
    possible_stubs = tables.read("records").where(within_bounds(stub_bounds))
    return selected.transform(replayable_failures, tables.read("sent"), possible_stubs)


def _count_by_trigger(sendable: DataFrame) -> dict[TriggerName, int]:
    """Return the number of these failures by Trigger, in the order of the Triggers' names."""
    rows = sendable.groupBy(*TRIGGER).count().orderBy(*TRIGGER).collect()
    return {(row["namespace"], row["broker"], row["trigger"]): row["count"] for row in rows}
