"""Replaying and purging: what a person decides about failures, carried out on tables and topics.

Both can be repeated: a replay sends each event once per replay id, a purge removes what is left.
Refused here: replaying to a whole Broker. An event goes to the Trigger that failed it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final, TypeAlias

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from knafka.core import names
from knafka_jobs.appending import Appended, Letter, already_appended, append
from knafka_jobs.errors import JobError
from knafka_jobs.failures import Selection, chosen
from knafka_jobs.replay import letters, replayable
from knafka_jobs.schema import REPLAYS, SENT, TRIGGER
from knafka_jobs.storage import Tables
from knafka_jobs.topics import Topic, Topics

KEPT: Final = {"cleanup.policy": "delete", "retention.ms": str(30 * 24 * 3600 * 1000)}
"""Of a replay topic: the table has each event, so a month is enough to deliver it."""

NOTED: Final = 50_000
"""Rows of `sent` that are written at once: some megabytes."""

SHOWN: Final = 20
"""Events that a dry run names."""

Progress: TypeAlias = Callable[[str], None]

TriggerName: TypeAlias = tuple[str, str, str]
"""Namespace, Broker, name."""


@dataclass(frozen=True, slots=True)
class Planned:
    """What would be sent."""

    triggers: dict[TriggerName, int]
    """Events by Trigger."""
    left_out: int
    """Events that were chosen, but are undecodable, without data, resolved or on their way."""
    events: list[dict[str, Any]]
    """The first of them."""

    @property
    def count(self) -> int:
        return sum(self.triggers.values())


def plan(tables: Tables, selection: Selection) -> tuple[Planned, DataFrame]:
    """What a replay would send, and the failures that it means."""
    wanted = chosen(tables.read("failures"), selection)
    sendable = replayable(wanted, tables.read("sent"), tables.read("records"))
    counts = sendable.groupBy(*TRIGGER).count().orderBy(*TRIGGER).collect()
    triggers = {(row["namespace"], row["broker"], row["trigger"]): row["count"] for row in counts}
    shown = sendable.orderBy("first_failed", "failure_id").limit(SHOWN)
    columns = (*TRIGGER, "id", "source", "type", "reason", "code")
    events = [row.asDict() for row in shown.select(*columns).collect()]
    planned = Planned(triggers, wanted.count() - sum(triggers.values()), events)
    return planned, sendable


def replay(
    tables: Tables,
    topics: Topics,
    selection: Selection,
    replay_id: str,
    by: str,
    rate: float | None,
    progress: Progress,
) -> int:
    """Send what is chosen; returns how many events this replay has sent, in all its runs.

    Raises `JobError`; the same replay id then goes on where this ended.
    """
    run = tables.read("replays").where(F.col("replay_id") == replay_id).first()
    if run is not None and run["finished"] is not None:
        raise JobError(
            f"the replay {replay_id} is finished and sent {run['events']} events: "
            "leave --replay-id out to start another"
        )
    if run is not None and run["selection"] != str(selection):
        raise JobError(
            f"the replay {replay_id} was started with another selection: {run['selection']}"
        )
    if run is None:
        started = (replay_id, by, str(selection), datetime.now(UTC), None, None)
        tables.append(tables.rows([started], REPLAYS), "replays")
    planned, failures = plan(tables, selection)
    wanted = letters(failures, tables.read("records"))
    for trigger in planned.triggers:
        topic = _replay_topic(topics, *trigger)
        before = already_appended(topics, topic, replay_id)
        its = [F.col(column) == name for column, name in zip(TRIGGER, trigger, strict=True)]

        def say(count: int, to: str = "/".join(trigger)) -> None:
            progress(f"{count} sent to {to}")

        unsent = _unsent(wanted.where(its[0] & its[1] & its[2]), {e.failure_id for e in before})
        sent = append(topics, topic.name, replay_id, unsent, rate, say)
        _note(tables, topic, replay_id, trigger, before + sent)
    total = tables.read("sent").where(F.col("replay_id") == replay_id).count()
    finished = tables.rows([(replay_id, by, "", None, datetime.now(UTC), total)], REPLAYS)
    tables.update(
        finished,
        "replays",
        "replays.replay_id = more.replay_id",
        {"finished": "more.finished", "events": "more.events"},
    )
    return total


def purge(tables: Tables, selection: Selection, *, unresolved: bool, dry_run: bool) -> int:
    """Forget failures and their records; only resolved ones unless `unresolved`. How many."""
    wanted = chosen(tables.read("failures"), selection)
    if not unresolved:
        wanted = wanted.where("resolved IS NOT NULL")
    wanted = wanted.select("failure_id").localCheckpoint()
    count = wanted.count()
    if count and not dry_run:
        # The failures last: a purge that was cut short finds them again.
        for name in ("records", "failures"):
            tables.remove(wanted, name, f"{name}.failure_id = more.failure_id")
    return count


def _replay_topic(topics: Topics, namespace: str, broker: str, trigger: str) -> Topic:
    """The Trigger's replay topic; made if need be, with as many partitions as the Broker's topic.

    Dead-letter topics have few, and one dispatcher at most for each would be slow.
    """
    name = names.replay_topic(namespace, broker, trigger)
    if found := topics.described([name]):
        return found[name]
    dead_letters = names.dead_letter_topic(namespace, broker, trigger)
    events = names.broker_topic(namespace, broker)
    models = topics.described([dead_letters, events])
    if dead_letters not in models:
        raise JobError(
            f"the Trigger {namespace}/{trigger} has no dead-letter topic any more: is it deleted?"
        )
    partitions = max(len(each.spans) for each in models.values())
    topics.ensure(name, partitions, models[dead_letters].replication, KEPT)
    return topics.wait_for(name)


def _unsent(rows: DataFrame, sent: set[str]) -> Iterator[Letter]:
    before = None
    for row in rows.toLocalIterator():
        # Tables of older versions may hold a dead letter twice: then one follows the other.
        if row["failure_id"] not in sent and row["failure_id"] != before:
            before = row["failure_id"]
            headers = [(each["key"], _bytes(each["value"])) for each in row["headers"] or ()]
            yield Letter(row["failure_id"], _bytes(row["key"]), _bytes(row["value"]), headers)


def _bytes(value: Any) -> Any:
    """Spark's bytearray as bytes, None as None."""
    return None if value is None else bytes(value)


def _note(
    tables: Tables, topic: Topic, replay_id: str, trigger: TriggerName, sent: list[Appended]
) -> None:
    rows = (
        (
            replay_id,
            each.failure_id,
            *trigger,
            topic.name,
            topic.id,
            each.partition,
            each.offset,
            datetime.fromtimestamp(each.at, UTC),
            None,
            None,
        )
        for each in sent
    )
    while part := list(islice(rows, NOTED)):
        tables.upsert(
            tables.rows(part, SENT),
            "sent",
            "sent.replay_id = more.replay_id AND sent.failure_id = more.failure_id",
        )
