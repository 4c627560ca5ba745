"""Runs of replays: which one is to go on, which others have ended, and what they have sent.

One replay runs at a time. What is not finished is then one that was cut short: it is continued, or
ended; either way nobody sends for it any more, and what it has sent is noted.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias

from pyspark.sql import Row
from pyspark.sql import functions as F

from knafka.core import names
from knafka_jobs.errors import JobError
from knafka_jobs.io.delta import Tables
from knafka_jobs.io.kafka import KafkaClient, read_spans
from knafka_jobs.options import Selection
from knafka_jobs.replay.plan import sent_rows
from knafka_jobs.replay.send import fence
from knafka_jobs.schema import REPLAYS, TRIGGER
from knafka_jobs.selecting import TriggerName
from knafka_jobs.topics import Position, Span, Topic, spans_of

CONTINUED_FOR: Final = timedelta(days=1)
"""How long a replay that was cut short is continued by the same selection: what it sent and failed
again is not sent once more by it. A later one begins anew, after what was sent is noted."""

CLOCKS: Final = timedelta(hours=1)
"""By which the clocks of two machines may differ."""

Progress: TypeAlias = Callable[[str], None]


def finished(tables: Tables, replay_id: str) -> int | None:
    """How many events a replay has sent that is finished; None: it isn't."""
    run = _run_of(tables, replay_id)
    return None if run is None or run["finished"] is None else int(run["events"])


def _run_of(tables: Tables, replay_id: str) -> Row | None:
    return tables.read("replays").where(F.col("replay_id") == replay_id).first()


def begin(
    tables: Tables,
    kafka: KafkaClient,
    selection: Selection,
    replay_id: str | None,
    by: str,
    progress: Progress,
    *,
    is_alone: bool,
) -> Row:
    """The replay that is to run, noted, with nobody else sending for it; raises `JobError` for one
    that can't go on so."""
    unfinished = tables.read("replays").where("finished IS NULL").orderBy("started").collect()
    if replay_id is None:
        since = datetime.now(UTC) - CONTINUED_FOR
        same = [
            run["replay_id"]
            for run in unfinished
            if run["selection"] == str(selection)
            and (not is_alone or run["started"].astimezone(UTC) > since)
        ]
        replay_id = same[-1] if same else _new_id()
    run = _run_of(tables, replay_id)
    if run is not None and run["finished"] is not None:
        raise JobError(
            f"the replay {replay_id} is finished and sent {run['events']} events: "
            "leave --replay-id out to start another"
        )
    if run is not None and run["selection"] != str(selection):
        raise JobError(
            f"the replay {replay_id} was started with another selection: {run['selection']}"
        )
    for other in unfinished:
        if other["replay_id"] != replay_id:
            _end(tables, kafka, other, by, progress, is_alone=is_alone)
    if run is None:
        started = (replay_id, by, str(selection), datetime.now(UTC), None, None)
        tables.append(tables.rows([started], REPLAYS), "replays")
    else:
        progress(f"the replay {replay_id} was cut short: it is continued")
        _take_over(tables, kafka, run)
    run = _run_of(tables, replay_id)
    assert run is not None
    return run


def _end(
    tables: Tables, kafka: KafkaClient, run: Row, by: str, progress: Progress, *, is_alone: bool
) -> None:
    """End another replay that was cut short; what it has sent is on its way, and is not sent by
    this one. Raises `JobError` if it may be running."""
    replay_id = run["replay_id"]
    if not is_alone:
        raise JobError(
            f"the replay {replay_id} ({run['selection']}), begun by {run['by']}, is not finished: "
            "if it runs, wait until it is done; if it was cut short, --replay-id "
            f"{replay_id} with the same selection continues it"
        )
    _take_over(tables, kafka, run)
    sent = finish(tables, replay_id, by)
    progress(f"the replay {replay_id} ({run['selection']}) was cut short: it ends with {sent} sent")


def _take_over(tables: Tables, kafka: KafkaClient, run: Row) -> None:
    """Have nobody else send for a replay that was begun earlier, and note what it has sent."""
    fence(kafka.connection, run["replay_id"])
    rows = tables.read("failures").select(*TRIGGER).distinct().collect()
    triggers = {names.replay_topic(*row): tuple(row) for row in rows}
    there = kafka.topics_at_rest([name for name in kafka.topic_names() if name in triggers])
    began = run["started"].astimezone(UTC) - CLOCKS
    spans = spans_of(there)
    firsts = kafka.offsets_at(spans, began.timestamp())
    ranges = {
        w: Span(max(firsts[w], span.start), span.end) for w, span in spans.items() if firsts[w] >= 0
    }
    note(tables, kafka, run["replay_id"], ranges, {triggers[name]: t for name, t in there.items()})


def finish(tables: Tables, replay_id: str, by: str) -> int:
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


def _new_id() -> str:
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"


def note(
    tables: Tables,
    kafka: KafkaClient,
    replay_id: str,
    ranges: Mapping[Position, Span],
    topics: Mapping[TriggerName, Topic],
) -> None:
    """Note in `sent` what a replay has committed in these ranges, each event once."""
    ranges = {where: span for where, span in ranges.items() if span.start < span.end}
    if not ranges:
        return
    rows = [(topic.name, topic.id, *trigger) for trigger, topic in topics.items()]
    columns = {name: "string" for name in ("topic", "topic_id", *TRIGGER)}
    noted = tables.read("sent").where(F.col("replay_id") == replay_id).select("failure_id")
    found = (
        read_spans(tables.spark, kafka.connection, ranges)
        .transform(sent_rows, replay_id, tables.rows(rows, columns))
        .join(noted, "failure_id", "left_anti")
        .dropDuplicates(["failure_id"])
    )
    tables.append(found, "sent")
