"""The tables: their columns and what each is for.

    dead-letter topics ──> records ──> failures <── replays, sent
                                          └──> reports

`records` holds every dead letter as it lay in its topic, appended once; `failures` has one row per
failed event and Trigger, folded from them; `replays` has the runs and `sent` what each sent;
`reports` remembers what the last one said. They are read and written by `io.delta`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

Columns: TypeAlias = Mapping[str, str]
"""Column name to SQL type, in order."""

TRIGGER: Final[Columns] = {"namespace": "string", "broker": "string", "trigger": "string"}

POSITION: Final[Columns] = {
    "topic": "string",
    "topic_id": "string",  # a topic that is deleted and made again starts over at offset 0
    "partition": "int",
    "offset": "bigint",
}
"""Of a dead letter in its topic; `topic_id`, `partition` and `offset` never mean another one."""

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
}
"""What failed. Null is what the event does not have; without data, `data_bytes` is null (CE-K3)."""

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
}

HISTORY: Final = "array<struct<at: timestamp, reason: string, code: int, attempts: int>>"

FAILURES: Final[Columns] = {
    "failure_id": "string",
    **TRIGGER,
    **EVENT,
    **LAST_ATTEMPT,
    "failures": "bigint",
    "retries": "bigint",
    "first_failed": "timestamp",
    "last_failed": "timestamp",
    "history": HISTORY,
    **POSITION,
    "resolved": "timestamp",
}
"""`LAST_ATTEMPT` and `POSITION` are of the last dead letter, `EVENT` is of the first one."""

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
"""The two outcomes of an event that was replayed."""

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
}

BOUNDED: Final[Mapping[str, tuple[str, ...]]] = {
    "records": ("topic_id", "partition", "offset", "appended"),
    "failures": (*TRIGGER, "last_failed", "resolved"),
}
"""Columns of large tables whose bounds in each file are worth noting: those that are asked for by
range. Delta would note the first 32, at a tenth of what writing costs."""


def ddl(columns: Columns) -> str:
    """The columns as SQL declares them."""
    return ", ".join(f"`{name}` {kind}" for name, kind in columns.items())
