"""Declares the tables: the purpose and the columns of each.

    dead-letter topics ──> records ──> failures <── replays, sent
                                          └──> reports

    records        every dead letter as it lay in its topic, appended once
    failures       one row per failed event and Trigger, folded from `records`
    failure_days   the day under which `failures` keeps each failure
    replays, sent  the replays, and the events that each of them sent
    reports        the figures of each report, to compare the next one with
    acknowledgements  what people noted about groups of failures
    cancellations  replays that were asked to end
    replay_progress  the progress of each replay, noted from time to time
    purged         the positions of deleted records that their topics still have

`io.delta` reads and writes them. Large tables are partitioned by `day` (UTC), so that a run opens
only the days that it needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

Columns: TypeAlias = Mapping[str, str]
"""Column name to SQL type, in order."""

TRIGGER: Final[Columns] = {"namespace": "string", "broker": "string", "trigger": "string"}
"""Columns that name a Trigger."""

POSITION: Final[Columns] = {
    "topic": "string",
    # By id, as a topic that is deleted and created again starts over at offset 0. Records behind
    # the first cut of a log have `ID~1`, and so on (`topic_offsets.log_id`).
    "topic_id": "string",
    "partition": "int",
    "offset": "bigint",
}
"""Columns with the position of a dead letter in its topic."""

KEY: Final = ("topic_id", "partition", "offset")
"""Columns that identify a dead letter."""

EVENT: Final[Columns] = {
    "id": "string",
    "source": "string",
    "type": "string",
    "subject": "string",
    "time": "string",
    "content_type": "string",
    "data_bytes": "int",
    "origin_topic": "string",
    "origin_partition": "int",
    "origin_offset": "bigint",
    "trace": "string",  # the id of its trace: 32 hexadecimal digits
}
"""Columns of the event that failed; null: the event has no such attribute. `data_bytes` is null for
an event without data (CE-K3)."""

KIND: Final = (*TRIGGER, "destination", "reason", "code")
"""Columns with the Trigger, and with where and why the event failed."""

GROUP: Final = (*KIND, "summary")
"""Columns that make a group of a report: failures with equal values are one group."""

LAST_ATTEMPT: Final[Columns] = {
    "destination": "string",
    "reason": "string",
    "code": "int",
    "error": "string",  # base64, as `knativeerrordata` has it
    "attempts": "int",
}
"""Columns of the last attempt to deliver the event."""

RECORDS: Final[Columns] = {
    "failure_id": "string",
    **POSITION,
    "appended": "timestamp",
    "key": "binary",
    "value": "binary",
    "headers": "array<struct<key: string, value: binary>>",
    **TRIGGER,
    **EVENT,
    **LAST_ATTEMPT,
    "first_attempt": "timestamp",
    "last_attempt": "timestamp",
    "day": "date",  # of `appended`
}
"""Columns of a dead letter as it lay in its topic."""

HISTORY: Final = "array<struct<at: timestamp, reason: string, code: int, attempts: int>>"
"""SQL type of a failure's history: its last attempts."""

FAILURES: Final[Columns] = {
    "failure_id": "string",
    **TRIGGER,
    **EVENT,
    **LAST_ATTEMPT,
    "summary": "string",
    "failures": "bigint",
    "retries": "bigint",
    "first_failed": "timestamp",
    "last_failed": "timestamp",
    "history": HISTORY,
    **POSITION,
    "resolved": "timestamp",
    "head": "binary",
    "first_day": "date",
    "last_day": "date",
    "day": "date",
}
"""`EVENT` is of the failure's first dead letter, `LAST_ATTEMPT` and `POSITION` of its last one.
`summary` is the fingerprint of `error`. `head` is the beginning of the event's data, kept for the
likely examples of a report (`HEADS`). The failure's records have days from `first_day` to
`last_day`. `day` is the day on which the failure was first stored: it never changes, and
`failure_days` has it, too."""

FAILURE_DAYS: Final[Columns] = {"key": "bigint", "day": "date"}
"""The day under which `failures` keeps each failure; `key` is 64 bits of the failure's id. The
table is empty at first. Once filled, it has a row for every failure, and may keep rows of deleted
ones."""

HEADS: Final = 10
"""Number of each group's latest failures whose `head` a fold keeps. A report shows fewer examples,
but some may be resolved before it is made."""

HEADS_OF_KIND: Final = 10 * HEADS
"""Number of failures whose `head` a fold keeps, for all groups together that differ only in their
summaries (`KIND`)."""

HEAD_BYTES: Final = 4 * 512 + 1
"""Bytes of a `head`: any 512 characters in UTF-8, and one byte that shows that data follow."""

PURGED: Final[Columns] = {"topic_id": "string", "partition": "int", "offset": "bigint"}
"""Columns with the position of a purged dead letter that its topic may still have."""

REPLAYS: Final[Columns] = {
    "replay_id": "string",
    "by": "string",
    "selection": "string",
    "started": "timestamp",
    "finished": "timestamp",
    "events": "bigint",
}
"""Columns of a replay; `finished` and `events` are null until it has finished."""

SENT: Final[Columns] = {
    "replay_id": "string",
    "failure_id": "string",
    **TRIGGER,
    "topic": "string",
    "topic_id": "string",
    "partition": "int",
    "offset": "bigint",
    "sent": "timestamp",
    "outcome": "string",
    "judged": "timestamp",
}
"""Columns of an event in its Trigger's replay topic; `outcome` is null until the event is
settled."""

RESOLVED: Final = "resolved"
"""Outcome of a replayed event: its Trigger settled it, and it did not fail again."""
FAILED_AGAIN: Final = "failed-again"
"""Outcome of a replayed event: it was dead-lettered again."""
LOST: Final = "lost"
"""Outcome of a replayed event: its replay topic was cut or deleted before it was settled, so it
can be replayed once more."""

REPORTS: Final[Columns] = {
    "report_id": "string",
    "made": "timestamp",
    "namespace": "string",
    "broker": "string",
    "group_id": "string",
    "failures": "bigint",
    "unresolved": "bigint",
    "resolved": "bigint",
}
"""Columns with the figures of a group in a report; a report without groups has one row, whose
`group_id` is null."""

ACKNOWLEDGEMENTS: Final[Columns] = {
    "group_id": "string",
    **TRIGGER,
    "reason": "string",
    "code": "int",
    "action": "string",
    "at": "timestamp",
    "by": "string",
    "until": "timestamp",
    "note": "string",
}
"""What people noted about groups of failures; the latest row of a group counts. No column has text
of events or errors, as a purge doesn't reach this table. Written without Spark
(`lookup.acknowledge`)."""

CANCELLATIONS: Final[Columns] = {"replay_id": "string", "at": "timestamp", "by": "string"}
"""Columns of a request to end a replay. Written without Spark (`lookup.cancel`)."""

REPLAY_PROGRESS: Final[Columns] = {
    "replay_id": "string",
    "at": "timestamp",
    "sent": "bigint",
    "total": "bigint",
}
"""Columns of a note: how many of its `total` events a replay had sent at a time, over all its runs.
Written without Spark (`replay.replay_progress`)."""

TABLES: Final[Mapping[str, Columns]] = {
    "records": RECORDS,
    "failures": FAILURES,
    "replays": REPLAYS,
    "sent": SENT,
    "reports": REPORTS,
    "acknowledgements": ACKNOWLEDGEMENTS,
    "cancellations": CANCELLATIONS,
    "replay_progress": REPLAY_PROGRESS,
    "purged": PURGED,
    "failure_days": FAILURE_DAYS,
}
"""The columns of each table, by the table's name."""

BY_DAY: Final = ("records", "failures", "failure_days")
"""Tables that are partitioned by `day`."""

LAYOUT: Final[Mapping[str, int]] = {"records": 1, "failures": 1}
"""The number of each table's layout, kept as a property of the table; each change of columns raises
it."""

LAYOUT_PROPERTY: Final = "knafka.layout"
"""Delta's table property with the number of the layout; tables without it have layout 1."""

BOUNDED: Final[Mapping[str, tuple[str, ...]]] = {
    "records": ("topic_id", "partition", "offset", "appended"),
    "failures": (*TRIGGER, "last_failed", "resolved", "last_day"),
}
"""Columns of large tables whose bounds Delta notes for each file: queries select by them. By
default Delta notes those of the first 32 columns, which takes a tenth of the time of a write."""


def ddl(columns: Columns) -> str:
    """Return columns as a SQL DDL statement declares them: ``"`key` bigint, `day` date"``."""
    return ", ".join(f"`{name}` {sql_type}" for name, sql_type in columns.items())
