"""The table of replays: begins, continues and ends replays, and notes the events they sent.

One replay runs at a time, so an unfinished one was interrupted. It is continued or ended: in both
cases earlier senders are fenced off (Kafka takes nothing of them any more), and the events that
they sent are noted.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from pyspark.sql import Row
from pyspark.sql import functions as F

from knafka.core import names
from knafka_jobs.failure_selection import TriggerName
from knafka_jobs.io.delta import Tables
from knafka_jobs.io.kafka import KafkaClient, read_spans
from knafka_jobs.io.session import object_store
from knafka_jobs.job_errors import JobError
from knafka_jobs.replay.replay_plan import sent_rows
from knafka_jobs.replay.replay_progress import Progress
from knafka_jobs.replay.send import fence_senders
from knafka_jobs.schema import REPLAYS, TRIGGER
from knafka_jobs.topic_offsets import (
    MAX_CLOCK_DIFFERENCE,
    NamedPartition,
    OffsetSpan,
    TopicState,
    spans_of,
)

if TYPE_CHECKING:
    from knafka_jobs.io.table_files import TableFiles

CONTINUABLE_AGE: Final = timedelta(days=1)
"""Age up to which an interrupted replay is continued by the same selection, so that events which it
sent and which failed again are not sent once more. Later, a new replay begins."""


def finished_event_count(tables: Tables, replay_id: str) -> int | None:
    """Return the number of events that a finished replay sent; None: it doesn't exist, or isn't
    finished."""
    run = _replay_row(tables, replay_id)
    return None if run is None or run["finished"] is None else int(run["events"])


def _replay_row(tables: Tables, replay_id: str) -> Row | None:
    """Return the row of a replay in the table `replays`; None if there is none."""
    return tables.read("replays").where(F.col("replay_id") == replay_id).first()


def begin_replay(
    tables: Tables,
    kafka: KafkaClient,
    selection: str,
    replay_id: str | None,
    by: str,
    progress: Progress,
    *,
    is_alone: bool,
) -> Row:
    """Begin a replay, or continue an interrupted one, and return its row of the table `replays`.
    From then on no other process can send for this replay, and all other unfinished replays are
    ended.

    `selection` says what is selected and edited, as options of the command line. `by` is the name
    of the person who replays. `is_alone`: whether it is certain that no other replay runs on these
    tables.

    `replay_id` None: continue the latest interrupted replay of this selection, else begin a new
    one. If `is_alone`, a replay that isn't `_is_continuable` is ended instead of continued. Raises
    `JobError` if the replay is finished or has another selection, or if another replay may run.
    """
    unfinished = tables.read("replays").where("finished IS NULL").orderBy("started").collect()
    if replay_id is None:
        earliest_start = datetime.now(UTC) - CONTINUABLE_AGE
        continuable_ids = [
            run["replay_id"]
            for run in unfinished
            if run["selection"] == selection
            and (not is_alone or _is_continuable(tables, run, earliest_start))
        ]
        replay_id = continuable_ids[-1] if continuable_ids else _new_replay_id()
    run = _replay_row(tables, replay_id)
    if run is not None and run["finished"] is not None:
        raise JobError(
            f"the replay {replay_id} is finished and sent {run['events']} events: "
            "leave --replay-id out to start another"
        )
    if run is not None and run["selection"] != selection:
        raise JobError(
            f"the replay {replay_id} was started with another selection: give the same options "
            f"({run['selection']}), or leave --replay-id out to start another"
        )
    for other in unfinished:
        if other["replay_id"] != replay_id:
            _end_interrupted(tables, kafka, other, progress, is_alone=is_alone)
    if run is None:
        row = (replay_id, by, selection, datetime.now(UTC), None, None)
        tables.append(tables.rows([row], REPLAYS), "replays")
    else:
        progress(f"the replay {replay_id} was interrupted and is now continued")
        _take_over(tables, kafka, run)
    run = _replay_row(tables, replay_id)
    assert run is not None
    return run


def _is_continuable(tables: Tables, run: Row, earliest_start: datetime) -> bool:
    """Whether a replay of the same selection continues the interrupted replay with the row `run`:
    it began after `earliest_start`, and nobody has cancelled it meanwhile."""
    if run["started"].astimezone(UTC) <= earliest_start:
        return False
    return find_canceller(tables, run["replay_id"]) is None


def _end_interrupted(
    tables: Tables, kafka: KafkaClient, run: Row, progress: Progress, *, is_alone: bool
) -> None:
    """End another, interrupted replay (`run` is its row), and note the events that it sent. These
    events are then pending, so the new replay does not send them. Raises `JobError` unless
    `is_alone`, as the other replay may still be running."""
    replay_id = run["replay_id"]
    if not is_alone:
        raise JobError(
            f"the replay {replay_id} ({run['selection']}), begun by {run['by']}, is not finished: "
            "if it runs, wait until it has ended; if it was interrupted, --replay-id "
            f"{replay_id} with the same selection continues it"
        )
    _take_over(tables, kafka, run)
    sent = finish_replay(tables, replay_id)
    progress(
        f"the replay {replay_id} ({run['selection']}) was interrupted: it is ended, "
        f"with {sent} sent"
    )


def _take_over(tables: Tables, kafka: KafkaClient, run: Row) -> None:
    """Fence off earlier senders of a replay (`run` is its row), so that Kafka takes nothing of them
    any more, and note the events that they sent in the table `sent`. Raises `JobError`."""
    fence_senders(kafka.connection, run["replay_id"])
    rows = tables.read("failures").select(*TRIGGER).distinct().collect()
    trigger_by_topic = {names.replay_topic(*row): tuple(row) for row in rows}
    replay_topics = [name for name in kafka.topic_names() if name in trigger_by_topic]
    topics = kafka.topics_at_rest(replay_topics)
    earliest_start = run["started"].astimezone(UTC) - MAX_CLOCK_DIFFERENCE
    spans = spans_of(topics)
    first_offsets = kafka.offsets_at(spans, earliest_start.timestamp())
    ranges = {
        partition: OffsetSpan(max(first_offsets[partition], span.start), span.end)
        for partition, span in spans.items()
        if first_offsets[partition] >= 0  # -1: nothing was appended since
    }
    note_sent_events(
        tables,
        kafka,
        run["replay_id"],
        ranges,
        {trigger_by_topic[name]: topic for name, topic in topics.items()},
    )


def files_of(tables: Tables) -> TableFiles | None:
    """Return the tables' files, as they are now, for reading and writing without Spark; None: the
    package deltalake isn't installed."""
    try:
        from knafka_jobs.io.table_files import TableFiles
    except ImportError:
        return None
    return TableFiles(tables.root, store=object_store(tables.spark))


def find_canceller(tables: Tables, replay_id: str) -> str | None:
    """Return who was the first to cancel a replay; None: nobody has cancelled it. Raises
    `JobError`."""
    if not tables.exists("cancellations"):
        return None  # the first cancellation creates the table
    # Opened anew at each call, as another process writes the table.
    if (files := files_of(tables)) is not None:
        # Read without Spark, as all of its tasks may be busy with sending. The table is small, so
        # its rows are filtered here.
        cancellations = files.query("SELECT * FROM cancellations ORDER BY at", "cancellations")
        cancellers = (
            cancellation["by"]
            for cancellation in cancellations
            if cancellation["replay_id"] == replay_id
        )
        return next(cancellers, None)
    rows = tables.read("cancellations").where(F.col("replay_id") == replay_id)
    row = rows.orderBy("at").first()
    return None if row is None else str(row["by"])


def finish_replay(tables: Tables, replay_id: str) -> int:
    """Mark a replay as finished; returns how many events it sent, also before interruptions."""
    total = tables.read("sent").where(F.col("replay_id") == replay_id).count()
    # `update` calls this new row `more`; only its columns `finished` and `events` are copied.
    finished_row = tables.rows([(replay_id, "", "", None, datetime.now(UTC), total)], REPLAYS)
    tables.update(
        finished_row,
        "replays",
        "replays.replay_id = more.replay_id",
        {"finished": "more.finished", "events": "more.events"},
    )
    return total


def _new_replay_id() -> str:
    """Return a replay id that sorts by time, such as `20260131-120000-3fa4c1`."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"


def note_sent_events(
    tables: Tables,
    kafka: KafkaClient,
    replay_id: str,
    ranges: Mapping[NamedPartition, OffsetSpan],
    topics: Mapping[TriggerName, TopicState],
) -> None:
    """Add to the table `sent` the events that a replay committed in these ranges of the replay
    topics. If this is repeated, the table still has each event once. `topics` has the replay topic
    of each Trigger. Raises `JobError`."""
    ranges = {partition: span for partition, span in ranges.items() if span.start < span.end}
    if not ranges:
        return
    topic_rows = [(topic.name, topic.id, *trigger) for trigger, topic in topics.items()]
    columns = {name: "string" for name in ("topic", "topic_id", *TRIGGER)}
    noted_ids = tables.read("sent").where(F.col("replay_id") == replay_id).select("failure_id")
    new_rows = (
        read_spans(tables.spark, kafka.connection, ranges)
        .transform(sent_rows, replay_id, tables.rows(topic_rows, columns))
        .join(noted_ids, "failure_id", "left_anti")
        .dropDuplicates(["failure_id"])
    )
    tables.append(new_rows, "sent")
