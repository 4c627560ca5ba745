"""The tables: their columns and what each is for.

    dead-letter topics ──> records ──> failures <── replays, sent
                                          └──> reports

`records` holds every dead letter as it lay in its topic, appended once; `failures` has one row per
failed event and Trigger, folded from them; `failure_days` says under which day each of them is
kept; `replays` has the runs and `sent` what each sent; `reports` remembers what the last one said;
`purged` has the positions of records that are forgotten. They are read and written by `io.delta`.

Large tables are partitioned by `day` (UTC), so that a run opens the days that it concerns.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

Columns: TypeAlias = Mapping[str, str]
"""Column name to SQL type, in order."""

TRIGGER: Final[Columns] = {"namespace": "string", "broker": "string", "trigger": "string"}

POSITION: Final[Columns] = {
    "topic": "string",
    # A topic that is deleted and made again starts over at offset 0. Of a log that was cut, what
    # grew after the first cut has `~1` behind it, and so on (`topics.log_id`).
    "topic_id": "string",
    "partition": "int",
    "offset": "bigint",
}
"""Of a dead letter in its topic."""

KEY: Final = ("topic_id", "partition", "offset")
"""What no two dead letters share."""

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
"""What failed. Null is what the event does not have; without data, `data_bytes` is null (CE-K3)."""

KIND: Final = (*TRIGGER, "destination", "reason", "code")
"""The columns that say where and how it failed."""

GROUP: Final = (*KIND, "summary")
"""The columns that make a group: what failed alike."""

LAST_ATTEMPT: Final[Columns] = {
    "destination": "string",
    "reason": "string",
    "code": "int",
    "error": "string",  # base64, as `knativeerrordata` has it
    "attempts": "int",
}
"""How it failed, at last."""

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

HISTORY: Final = "array<struct<at: timestamp, reason: string, code: int, attempts: int>>"

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
"""`LAST_ATTEMPT` and `POSITION` are of the last dead letter, `EVENT` is of the first one. `summary`
is the fingerprint of `error`. `head` is the beginning of the event's data, kept for the likely
examples of a report (`HEADS`). Its records are of the days from `first_day` to `last_day`. `day` is
when it was first tabled: it never changes, and `failure_days` has it."""

FAILURE_DAYS: Final[Columns] = {"key": "bigint", "day": "date"}
"""Under which day `failures` keeps a failure; `key` is 64 bits of its id. It may know more failures
than there are, never fewer, once it has any."""

HEADS: Final = 10
"""Failures of each group whose `head` a fold keeps, the latest: some of them may be resolved before
the report shows its few examples."""

HEADS_OF_KIND: Final = 10 * HEADS
"""Of all groups that differ in what the error says alone."""

HEAD_BYTES: Final = 4 * 512 + 1
"""512 characters in UTF-8, whichever they are, and a byte that shows that there is more."""

PURGED: Final[Columns] = {"topic_id": "string", "partition": "int", "offset": "bigint"}
"""Where a purged dead letter lies in its topic, until it is deleted from there, too."""

REPLAYS: Final[Columns] = {
    "replay_id": "string",
    "by": "string",
    "selection": "string",
    "started": "timestamp",
    "finished": "timestamp",
    "events": "bigint",
}

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
"""Events in their Trigger's replay topic; `outcome` is null until they are settled."""

RESOLVED: Final = "resolved"
FAILED_AGAIN: Final = "failed-again"
LOST: Final = "lost"
"""The outcomes of an event that was replayed; one is lost with the end of its replay topic's log,
which was cut, and can be replayed once more."""

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
"""What each report said of each group; a report without groups has one row with a null group."""

TABLES: Final[Mapping[str, Columns]] = {
    "records": RECORDS,
    "failures": FAILURES,
    "replays": REPLAYS,
    "sent": SENT,
    "reports": REPORTS,
    "purged": PURGED,
    "failure_days": FAILURE_DAYS,
}

BY_DAY: Final = ("records", "failures", "failure_days")
"""Tables that are partitioned by `day`."""

LAYOUT: Final[Mapping[str, int]] = {"records": 1, "failures": 1}
"""The number of a table's layout, a property of the table: it grows when columns change."""

LAYOUT_PROPERTY: Final = "knafka.layout"

BOUNDED: Final[Mapping[str, tuple[str, ...]]] = {
    "records": ("topic_id", "partition", "offset", "appended"),
    "failures": (*TRIGGER, "last_failed", "resolved", "last_day"),
}
"""Columns of large tables whose bounds in each file are worth noting: those that are asked for by
range. Delta would note the first 32, at a tenth of what writing costs."""


def ddl(columns: Columns) -> str:
    """The columns as SQL declares them."""
    return ", ".join(f"`{name}` {kind}" for name, kind in columns.items())
