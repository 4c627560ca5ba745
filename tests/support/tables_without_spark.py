"""Tables of dead letters that delta-rs has written, with the columns that lookups read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Final

from deltalake import QueryBuilder, write_deltalake

from knafka_jobs.lookup.lookup_plan import sql_literal
from knafka_jobs.schema import FAILURES, HISTORY, RECORDS, SENT, Columns

NOW: Final = datetime(2026, 11, 21, 12, tzinfo=UTC)
_ARROW_TYPES: Final = {
    "string": "Utf8",
    "int": "Int32",
    "bigint": "Int64",
    "binary": "Binary",
    "date": "Date32",
    "timestamp": 'Timestamp(Microsecond, Some("UTC"))',
}


def failure(word: str, **changed: Any) -> dict[str, Any]:
    """A row of `failures`; what is not `changed` is like all others', but for `word`."""
    usual: dict[str, Any] = {
        **{"failure_id": word, "id": word, "source": "/shop", "type": "order", "data_bytes": 9},
        **{"namespace": "shop", "broker": "main", "trigger": "mail"},
        **{"destination": "http://mail/", "reason": "status", "code": 503, "attempts": 1},
        **{"summary": "no money", "failures": 1, "retries": 0},
        **{"first_failed": NOW, "last_failed": NOW, "first_day": NOW.date()},
        **{"last_day": NOW.date(), "day": NOW.date()},
        **{"topic": "dead-letters", "topic_id": "id-1", "partition": 0, "offset": 0},
    }
    row = {**dict.fromkeys(FAILURES), **usual, **changed}
    if row["history"] is None:
        row["history"] = [(row["last_failed"], row["reason"], row["code"], row["attempts"])]
    return row


def record(of: Mapping[str, Any], value: bytes | None = b"{}", **headers: str) -> dict[str, Any]:
    """The row of `records` with the last dead letter of a row of `failures`."""
    attributes = {
        **{"ce_specversion": "1.0", "ce_id": of["id"], "ce_source": of["source"]},
        **{"ce_type": of["type"], "content-type": "application/json", "ce_knafkareason": "status"},
        **headers,
    }
    own = {
        "appended": of["last_failed"],
        "key": None,
        "value": value,
        "headers": [(name, text.encode()) for name, text in attributes.items()],
        "day": of["last_day"],
    }
    return {name: {**of, **own}.get(name) for name in RECORDS}


def write_failures(root: Path, *rows: Mapping[str, Any]) -> None:
    """Append rows to the table `failures`."""
    _write(root / "failures", FAILURES, rows)


def write_records(root: Path, *rows: Mapping[str, Any]) -> None:
    """Append rows to the table `records`."""
    _write(root / "records", RECORDS, rows)


def write_sent(root: Path, *rows: Mapping[str, Any]) -> None:
    """Append rows to the table `sent`."""
    _write(root / "sent", SENT, rows)


def _write(place: Path, columns: Columns, rows: Sequence[Mapping[str, Any]]) -> None:
    names = list(columns)
    query = " UNION ALL ".join(
        "SELECT " + ", ".join(f'{_sql(columns[name], row.get(name))} AS "{name}"' for name in names)
        for row in rows
    )
    write_deltalake(place, QueryBuilder().execute(query), mode="append")


def _sql(kind: str, value: Any) -> str:
    """A value of a column as SQL."""
    if kind.startswith("array<struct<key"):
        pairs = ", ".join(
            f"named_struct('key', arrow_cast({sql_literal(name)}, 'Utf8'), 'value', {_bytes(raw)})"
            for name, raw in value
        )
        return f"make_array({pairs})"
    if kind == HISTORY:
        columns = {"at": "timestamp", "reason": "string", "code": "int", "attempts": "int"}
        structs = (
            "named_struct("
            + ", ".join(
                f"'{name}', {_sql(of, each)}"
                for (name, of), each in zip(columns.items(), values, strict=True)
            )
            + ")"
            for values in value
        )
        return f"make_array({', '.join(structs)})"
    if isinstance(value, bytes):
        return _bytes(value)
    if isinstance(value, date) and not isinstance(value, datetime):
        return f"DATE '{value}'"
    return f"arrow_cast({'NULL' if value is None else sql_literal(value)}, '{_ARROW_TYPES[kind]}')"


def _bytes(raw: bytes) -> str:
    return f"arrow_cast(decode('{raw.hex()}', 'hex'), 'Binary')"
