"""Replaying and purging: what a person decides about failures, carried out on tables and topics.

Both can be repeated: a replay sends each event once per replay id, a purge removes what is left. An
event goes to the Trigger that failed it, never to a whole Broker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from itertools import groupby, islice
from typing import Any, Final, TypeAlias

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from knafka.core import names
from knafka.core.contract import MAX_RECORD_BYTES
from knafka.core.dead_letter import REPLAY_TOPIC
from knafka_jobs.errors import JobError
from knafka_jobs.forget import forget
from knafka_jobs.io.delta import Tables
from knafka_jobs.io.kafka import MAX_MESSAGE_BYTES, KafkaClient
from knafka_jobs.options import Selection
from knafka_jobs.positions import bounds, within
from knafka_jobs.replay.plan import (
    BROADCAST_ROWS,
    dead_letters,
    likely_stubs,
    replayable,
    select,
)
from knafka_jobs.replay.send import FailedEvent, Sent, already_sent, send
from knafka_jobs.schema import REPLAYS, SENT, TRIGGER
from knafka_jobs.selecting import SHOWN, SHOWN_COLUMNS, SHOWN_ORDER, Preview, TriggerName
from knafka_jobs.topics import Topic

ROWS_AT_ONCE: Final = 50_000
"""Rows of `sent` that are written at once: some megabytes."""

Progress: TypeAlias = Callable[[str], None]


def preview(tables: Tables, selection: Selection) -> Preview:
    """What a replay would send."""
    wanted = tables.read("failures").transform(select, selection)
    sendable = _sendable(tables, wanted)
    triggers = _by_trigger(sendable)
    shown = sendable.orderBy(*SHOWN_ORDER).limit(SHOWN)
    events = [row.asDict() for row in shown.select(*SHOWN_COLUMNS).collect()]
    return Preview(triggers, wanted.count() - sum(triggers.values()), events)


def replay(
    tables: Tables,
    kafka: KafkaClient,
    selection: Selection,
    replay_id: str,
    by: str,
    rate: float | None,
    progress: Progress,
) -> int:
    """Send what is selected, at most `rate` events a second.

    Returns how many events this replay has sent, in all its runs. Raises `JobError`; the same
    replay id then goes on where this ended.
    """
    _begin(tables, replay_id, by, selection)
    sendable = _sendable(tables, tables.read("failures").transform(select, selection))
    # Once for all Triggers, and of the files only those that may hold what is wanted.
    records = tables.read("records").where(within(bounds(sendable)))
    few = sendable.count() <= BROADCAST_ROWS
    wanted = dead_letters(sendable, records, few=few).toLocalIterator()
    for trigger, its in groupby(wanted, lambda row: tuple(row[name] for name in TRIGGER)):
        topic = replay_topic(kafka, *trigger)
        before = already_sent(kafka, topic, replay_id)

        def say(count: int, to: str = "/".join(trigger)) -> None:
            progress(f"{count} sent to {to}")

        unsent = _unsent(its, {each.failure_id for each in before})
        sent = send(kafka.connection, topic.name, replay_id, unsent, rate, say)
        _record_sent(tables, topic, replay_id, trigger, before + sent)
    return _finish(tables, replay_id, by)


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
    events = names.broker_topic(namespace, broker)
    found = kafka.topics([name, dead_letter_topic, events])
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
    return selected.transform(replayable, tables.read("sent"), stubs).localCheckpoint()


def _by_trigger(sendable: DataFrame) -> dict[TriggerName, int]:
    """Events by Trigger."""
    rows = sendable.groupBy(*TRIGGER).count().orderBy(*TRIGGER).collect()
    return {(row["namespace"], row["broker"], row["trigger"]): row["count"] for row in rows}


def finished(tables: Tables, replay_id: str) -> int | None:
    """How many events a replay has sent that is finished; None: it isn't."""
    run = _run_of(tables, replay_id)
    return None if run is None or run["finished"] is None else int(run["events"])


def _run_of(tables: Tables, replay_id: str) -> Row | None:
    return tables.read("replays").where(F.col("replay_id") == replay_id).first()


def _begin(tables: Tables, replay_id: str, by: str, selection: Selection) -> None:
    """Note a replay that is new; raises `JobError` for one that can't go on so."""
    run = _run_of(tables, replay_id)
    if run is None:
        started = (replay_id, by, str(selection), datetime.now(UTC), None, None)
        tables.append(tables.rows([started], REPLAYS), "replays")
    elif run["finished"] is not None:
        raise JobError(
            f"the replay {replay_id} is finished and sent {run['events']} events: "
            "leave --replay-id out to start another"
        )
    elif run["selection"] != str(selection):
        raise JobError(
            f"the replay {replay_id} was started with another selection: {run['selection']}"
        )


def _finish(tables: Tables, replay_id: str, by: str) -> int:
    """Note that a replay is done; returns how many events it sent in all."""
    total = tables.read("sent").where(F.col("replay_id") == replay_id).count()
    finished = tables.rows([(replay_id, by, "", None, datetime.now(UTC), total)], REPLAYS)
    tables.update(
        finished,
        "replays",
        "replays.replay_id = more.replay_id",
        {"finished": "more.finished", "events": "more.events"},
    )
    return total


def _unsent(rows: Iterable[Row], sent: set[str]) -> Iterator[FailedEvent]:
    for row in rows:
        if row["failure_id"] not in sent:
            headers = [(each["key"], _bytes(each["value"])) for each in row["headers"] or ()]
            yield FailedEvent(row["failure_id"], _bytes(row["key"]), _bytes(row["value"]), headers)


def _bytes(value: Any) -> Any:
    """Spark's bytearray as bytes, None as None."""
    return None if value is None else bytes(value)


def _record_sent(
    tables: Tables, topic: Topic, replay_id: str, trigger: TriggerName, sent: list[Sent]
) -> None:
    to = (*trigger, topic.name, topic.id)
    rows = (
        (replay_id, each.failure_id, *to, each.partition, each.offset, each.at, None, None)
        for each in sent
    )
    while part := list(islice(rows, ROWS_AT_ONCE)):
        tables.upsert(
            tables.rows(part, SENT),
            "sent",
            "sent.replay_id = more.replay_id AND sent.failure_id = more.failure_id",
        )
