"""Replaying and purging: what a person decides about failures, carried out on tables and topics.

    begin: one replay at a time -> what can be sent -> in lanes, to the replay topics -> note it

Both can be repeated: a replay sends each event once per replay id, a purge removes what is left. An
event goes to the Trigger that failed it, never to a whole Broker. What was sent is asked of the
replay topics themselves, so no kill comes between sending and noting.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

from pyspark import InheritableThread
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from knafka.core import names
from knafka.core.contract import MAX_RECORD_BYTES
from knafka.core.dead_letter import REPLAY_TOPIC
from knafka_jobs.errors import JobError, said_by_worker
from knafka_jobs.forget import forget
from knafka_jobs.io.delta import Tables
from knafka_jobs.io.kafka import MAX_MESSAGE_BYTES, KafkaClient
from knafka_jobs.io.names import possible_topics
from knafka_jobs.options import Selection
from knafka_jobs.positions import bounds, within
from knafka_jobs.replay.plan import (
    BROADCAST_ROWS,
    ORDER,
    SENDABLE,
    dead_letters,
    in_lanes,
    likely_stubs,
    replayable,
    select,
)
from knafka_jobs.replay.runs import begin, finish, note
from knafka_jobs.replay.send import LANES, Sender, rate_and_rest
from knafka_jobs.schema import TRIGGER
from knafka_jobs.selecting import SHOWN, SHOWN_COLUMNS, SHOWN_ORDER, Preview, TriggerName
from knafka_jobs.topics import Position, Span, Topic, spans_of

LOCK: Final = "replay"

HERE_EVENTS: Final = 5_000
HERE_BYTES: Final = 16 * 1024 * 1024
"""Up to so many events, with so much data, are sent by this process: starting Python workers takes
longer."""

LOOK_INTERVAL: Final = 1.0
"""Seconds between two looks at how far a replay is."""
TELL_INTERVAL: Final = 5.0
"""Seconds between two lines about that."""

ORDERED: Final = ORDER[len(TRIGGER) : -1]
"""Columns that only order what is sent."""

Progress: TypeAlias = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a replay did, in all its runs."""

    replay_id: str
    sent: int
    left_out: int = 0
    """Events that this run could not send, as nobody takes them."""
    problems: tuple[str, ...] = ()
    """Whose they are, and why."""


def preview(tables: Tables, selection: Selection) -> Preview:
    """What a replay would send."""
    wanted = tables.read("failures").transform(select, selection)
    sendable = _sendable(tables, wanted).localCheckpoint()
    triggers = _by_trigger(sendable)
    shown = sendable.orderBy(*SHOWN_ORDER).limit(SHOWN)
    events = [row.asDict() for row in shown.select(*SHOWN_COLUMNS).collect()]
    return Preview(triggers, wanted.count() - sum(triggers.values()), events)


def replay(
    tables: Tables,
    kafka: KafkaClient,
    selection: Selection,
    replay_id: str | None,
    by: str,
    rate: float | None,
    progress: Progress,
    *,
    is_alone: bool = False,
) -> Replayed:
    """Send what is selected, at most `rate` events a second.

    Without an id one is begun, or one of the same selection continued that was cut short.
    `is_alone`: somebody sees to it that no other replay runs on these tables; where they are on a
    local path, a lock does. Raises `JobError`; the same then goes on where this ended.
    """
    with tables.locked(LOCK):
        is_alone = is_alone or tables.has_locks
        run = begin(tables, kafka, selection, replay_id, by, progress, is_alone=is_alone)
        replay_id = run["replay_id"]
        progress(f"replay {replay_id} (should it be cut short: the same again continues it)")
        sendable = _sendable(tables, tables.read("failures").transform(select, selection))
        # Each once, also if what came of it is known by now.
        own = tables.read("sent").where(F.col("replay_id") == replay_id).select("failure_id")
        sendable = sendable.select(*SENDABLE).join(own, "failure_id", "left_anti").localCheckpoint()
        counts = _by_trigger(sendable)
        topics, problems = _replay_topics(kafka, counts)
        for each in problems:
            progress(f"left out: {each}")
        if topics:
            _send(tables, kafka, sendable, topics, replay_id, rate, progress)
        sent = finish(tables, replay_id, by)
        if problems and not sent:
            raise JobError(problems[0])
        left_out = sum(count for trigger, count in counts.items() if trigger not in topics)
        return Replayed(replay_id, sent, left_out, tuple(problems))


def _replay_topics(
    kafka: KafkaClient, counts: Mapping[TriggerName, int]
) -> tuple[dict[TriggerName, Topic], list[str]]:
    """The replay topic of each Trigger, and who can't have one: a dead letter may name anybody."""
    topics: dict[TriggerName, Topic] = {}
    problems = []
    for trigger, count in counts.items():
        try:
            topics[trigger] = replay_topic(kafka, *trigger)
        except JobError as error:
            events = "1 event" if count == 1 else f"{count} events"
            problems.append(f"{events} of {'/'.join(trigger):.100}: {error!s:.200}")
    return topics, problems


def _send(
    tables: Tables,
    kafka: KafkaClient,
    sendable: DataFrame,
    topics: Mapping[TriggerName, Topic],
    replay_id: str,
    rate: float | None,
    progress: Progress,
) -> None:
    """Send all that goes to these topics, and note what was sent."""
    triggers = tables.rows(list(topics), {name: "string" for name in TRIGGER})
    sendable = sendable.join(F.broadcast(triggers), list(TRIGGER), "left_semi")
    total = sendable.count()
    by_name = {topic.name: topic for topic in topics.values()}
    starts = {where: span.end for where, span in spans_of(by_name).items()}
    sender = Sender(
        kafka.connection, replay_id, {name: t.name for name, t in topics.items()}, starts, rate
    )
    # Of the files only those that may hold what is wanted.
    records = tables.read("records").where(within(bounds(sendable)))
    letters = dead_letters(sendable, records, few=total <= BROADCAST_ROWS)
    size = letters.agg(F.sum(F.octet_length("value"))) if total <= HERE_EVENTS else None
    row = None if size is None else size.first()
    if row is not None and (row[0] or 0) <= HERE_BYTES:
        lane = in_lanes(letters, 1).drop(*ORDERED).toLocalIterator()
        progress(rate_and_rest(sender.send(0, map(tuple, lane)), total, 0))
    else:
        # As many as begin at once.
        slots = max(1, tables.spark.sparkContext.defaultParallelism)
        lanes = min(LANES, slots) if rate is None else 1
        rows = in_lanes(letters, lanes).drop(*ORDERED)
        _send_in_lanes(rows, sender, _sent_since(kafka, starts), total, progress)
    ends = spans_of(kafka.topics_at_rest(sorted(by_name)))
    ranges = {where: Span(starts.get(where, span.start), span.end) for where, span in ends.items()}
    note(tables, kafka, replay_id, ranges, topics)


def _send_in_lanes(
    rows: DataFrame,
    sender: Sender,
    sent_so_far: Callable[[], int],
    total: int,
    progress: Progress,
) -> None:
    """Send each partition as a lane, in Spark's Python workers, and tell how far that is."""
    context = rows.sparkSession.sparkContext
    group = f"knafka-replay-{secrets.token_hex(4)}"
    errors: list[Exception] = []

    def run() -> None:
        context.setJobGroup(group, "replay", interruptOnCancel=True)
        try:
            rows.rdd.mapPartitionsWithIndex(partial(_send_lane, sender)).count()
        except Exception as error:
            errors.append(error)

    thread = InheritableThread(target=run)
    begun = told = time.monotonic()
    first: tuple[float, int] | None = None  # before there are any, what is sent is sorted
    thread.start()
    try:
        while thread.is_alive():
            thread.join(LOOK_INTERVAL)
            if time.monotonic() - told >= TELL_INTERVAL:
                told, sent = time.monotonic(), min(sent_so_far(), total)
                first = first or ((told, sent) if sent else None)
                rate = (sent - first[1]) / (told - first[0]) if first and told > first[0] else 0.0
                progress(rate_and_rest(sent, total, rate))
    finally:
        if thread.is_alive():
            context.cancelJobGroup(group)
            thread.join()
    if errors:
        raise JobError(said_by_worker(errors[0])) from errors[0]
    progress(rate_and_rest(total, total, total / (time.monotonic() - begun)))


def _send_lane(sender: Sender, lane: int, rows: Iterator[Row]) -> Iterator[int]:
    """In a Python worker of Spark's."""
    yield sender.send(lane, map(tuple, rows))


def _sent_since(kafka: KafkaClient, starts: Mapping[Position, int]) -> Callable[[], int]:
    """How many events lie in replay topics since then; a little more, as transactions have ends."""
    topics = sorted({name for name, _ in starts})

    def count() -> int:
        ends = spans_of(kafka.topics(topics))
        return sum(max(0, span.end - starts.get(where, 0)) for where, span in ends.items())

    return count


def purge(tables: Tables, selection: Selection, unresolved: bool, fold: Callable[[], None]) -> int:
    """Forget failures and their records for good; only resolved ones unless `unresolved`. How many.

    No file below the tables' root has them afterwards, nor anything else that the tables had before
    and have no longer. `fold` brings all of `records` into `failures`: what is not folded yet could
    not be read any more. Raises `JobError`.
    """

    def choose(failures: DataFrame) -> DataFrame:
        return _purgeable(failures, selection, unresolved)

    with tables.locked():
        return forget(tables, choose, fold)


def purgeable(tables: Tables, selection: Selection, unresolved: bool) -> DataFrame:
    """What a purge would forget: `failure_id`."""
    return _purgeable(tables.read("failures"), selection, unresolved).select("failure_id")


def replay_topic(kafka: KafkaClient, namespace: str, broker: str, trigger: str) -> Topic:
    """The Trigger's replay topic, fit for all of its dead letters; made if need be.

    It gets as many partitions as the Broker's topic: dead-letter topics have few, and one
    dispatcher at most for each would be slow. It takes records as large as the dead-letter topic
    does. Raises `JobError`.
    """
    name = names.replay_topic(namespace, broker, trigger)
    dead_letter_topic = names.dead_letter_topic(namespace, broker, trigger)
    found = kafka.topics([name, dead_letter_topic, *possible_topics(namespace, broker)])
    limit = kafka.record_limit(dead_letter_topic) if dead_letter_topic in found else None
    if name in found:
        own = kafka.record_limit(name)
        if limit is not None and own is not None and own < limit:
            kafka.raise_record_limit(name, limit)
        return found[name]
    if dead_letter_topic not in found:
        raise JobError(
            f"the Trigger {namespace}/{trigger} has no dead-letter topic any more: is it deleted?"
        )
    partitions = max(len(each.spans) for each in found.values())
    # Never below librdkafka's batches, which it fills whatever the topic takes.
    size = {} if limit is None else {MAX_MESSAGE_BYTES: str(max(limit, MAX_RECORD_BYTES))}
    return kafka.create(name, partitions, found[dead_letter_topic].replication, REPLAY_TOPIC | size)


def _purgeable(failures: DataFrame, selection: Selection, unresolved: bool) -> DataFrame:
    wanted = failures.transform(select, selection)
    return wanted if unresolved else wanted.where("resolved IS NOT NULL")


def _sendable(tables: Tables, selected: DataFrame) -> DataFrame:
    """What can be sent of the selected failures, as it is now."""
    stubs = tables.read("records").where(within(bounds(likely_stubs(selected))))
    return selected.transform(replayable, tables.read("sent"), stubs)


def _by_trigger(sendable: DataFrame) -> dict[TriggerName, int]:
    """Events by Trigger."""
    rows = sendable.groupBy(*TRIGGER).count().orderBy(*TRIGGER).collect()
    return {(row["namespace"], row["broker"], row["trigger"]): row["count"] for row in rows}
