"""Builds the queries of lookups, in SQL of DataFusion, by the rules of `failure_selection`.

Pure. Column names are quoted, as `offset` is a keyword of SQL.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, date, datetime
from typing import Final

from knafka_jobs.failure_selection import (
    LIKELY_STUB,
    PENDING,
    REPLAYABLE,
    SHOWN_COLUMNS,
    SHOWN_EVENTS,
    SHOWN_ORDER,
    STUB_HEADER,
    FailureCondition,
)
from knafka_jobs.schema import KEY, TRIGGER

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
"""The Unix epoch."""


def column_list(names: Iterable[str], prefix: str = "") -> str:
    """Return a list of quoted columns for SQL, each after `prefix`, such as a table's `f.`."""
    return ", ".join(f'{prefix}"{name}"' for name in names)


def predicate(conditions: Iterable[FailureCondition]) -> str:
    """Return a predicate that is true for rows of `failures` that meet all `conditions`; `true` if
    there are none."""
    comparisons = (
        f'"{column}" {operator} {sql_literal(value)}' for column, operator, value in conditions
    )
    return " AND ".join(comparisons) or "true"


def sql_literal(value: str | int | datetime | tuple[str, ...]) -> str:
    """Return a value as a SQL literal; a quote in a string is doubled, no other character is
    special."""
    if isinstance(value, tuple):
        return f"({', '.join(map(sql_literal, value))})"
    if isinstance(value, datetime):
        microseconds = (value - _EPOCH) // _EPOCH.resolution
        return f"to_timestamp_micros({microseconds})"
    return str(value) if isinstance(value, int) else "'" + value.replace("'", "''") + "'"


ANY_PENDING: Final = f"SELECT 1 FROM sent WHERE {PENDING} LIMIT 1"
"""Query: a row if any replayed event is not settled."""


def likely_stubs(predicate_sql: str) -> str:
    """Return the query for the failures whose dead letter may be a stub (a dead letter without the
    event's data), among the replayable ones for which `predicate_sql` is true: their `number`, and
    the `first` and `last` day of their records."""
    return (
        "SELECT count(*) AS number, min(first_day) AS first, max(last_day) AS last FROM failures "
        f"WHERE {predicate_sql} AND {REPLAYABLE} AND {LIKELY_STUB}"
    )


def sendable(predicate_sql: str, stub_days: tuple[object, object] | None, *, pending: bool) -> str:
    """Return the query for the failures that a replay would send, among those for which
    `predicate_sql` is true: replayable ones that are neither pending nor stubs.

    `stub_days` has the first and last day from `likely_stubs`; None: there are none. `pending`:
    whether any replayed event is not settled.
    """
    joins = ""
    if pending:
        pending_ids = f"SELECT DISTINCT failure_id FROM sent WHERE {PENDING}"
        joins += f" LEFT ANTI JOIN ({pending_ids}) AS p ON f.failure_id = p.failure_id"
    if stub_days is not None:
        headers = (
            f"SELECT {column_list(KEY)}, unnest(headers) AS header FROM records "
            f"WHERE {days_predicate(*stub_days)} AND {LIKELY_STUB}"
        )
        stubs = f"SELECT {column_list(KEY)} FROM ({headers}) WHERE header['key'] = '{STUB_HEADER}'"
        on = " AND ".join(f'f."{name}" = s."{name}"' for name in KEY)
        joins += f" LEFT ANTI JOIN ({stubs}) AS s ON {on}"
    replayable = f"SELECT * FROM failures WHERE {predicate_sql} AND {REPLAYABLE}"
    return f"SELECT f.* FROM ({replayable}) AS f{joins}"


def count_by_trigger(rows: str) -> str:
    """Return the query for the `number` of rows of the query `rows`, by Trigger."""
    return (
        f"SELECT {column_list(TRIGGER)}, count(*) AS number FROM ({rows}) "
        f"GROUP BY {column_list(TRIGGER)} ORDER BY {column_list(TRIGGER)}"
    )


def first_shown(rows: str) -> str:
    """Return the query for the events that a dry run lists, with `SHOWN_COLUMNS`, from the query
    `rows`."""
    return (
        f"SELECT {column_list(SHOWN_COLUMNS)} FROM ({rows}) "
        f"ORDER BY {column_list(SHOWN_ORDER)} LIMIT {SHOWN_EVENTS}"
    )


def count_failures(predicate_sql: str) -> str:
    """Return the query for the `number` of failures for which `predicate_sql` is true."""
    return f"SELECT count(*) AS number FROM failures WHERE {predicate_sql}"


def count_unresolved(predicate_sql: str, *, pending: bool) -> str:
    """Return the query for the unresolved failures for which `predicate_sql` is true, by Trigger,
    reason and code: their `number`, and the `oldest` and `newest` last attempt.

    Pending failures, which a replay has sent and which are not settled, are left out; `pending`:
    whether there are any.
    """
    group = column_list((*TRIGGER, "reason", "code"))
    pending_ids = f"SELECT DISTINCT failure_id FROM sent WHERE {PENDING}"
    anti_join = (
        f" LEFT ANTI JOIN ({pending_ids}) AS p ON f.failure_id = p.failure_id" if pending else ""
    )
    return (
        f"SELECT {group}, count(*) AS number, min(last_failed) AS oldest, "
        f"max(last_failed) AS newest FROM failures AS f{anti_join} "
        f"WHERE {predicate_sql} AND resolved IS NULL GROUP BY {group} ORDER BY number DESC"
    )


def count_pending(predicate_sql: str) -> str:
    """Return the query for the `number` of pending failures by Trigger, among those for which
    `predicate_sql` is true: unresolved, sent by a replay and not settled."""
    sent = f"SELECT DISTINCT failure_id FROM sent WHERE {PENDING}"
    return (
        f"SELECT {column_list(TRIGGER)}, count(*) AS number FROM failures AS f "
        f"LEFT SEMI JOIN ({sent}) AS p ON f.failure_id = p.failure_id "
        f"WHERE {predicate_sql} AND resolved IS NULL GROUP BY {column_list(TRIGGER)}"
    )


def next_offsets(tables: Iterable[str]) -> str:
    """Return the query for the offsets that these tables have of each log; a partition has a
    further log after each unclean election that cut its log. Columns: `topic_id` (a
    `topic_offsets.log_id`), `partition`, `first` (lowest offset), `next` (highest one plus 1)."""
    positions = " UNION ALL ".join(f"SELECT {column_list(KEY)} FROM {table}" for table in tables)
    log_columns = column_list(("topic_id", "partition"))
    ends = 'min("offset") AS first, max("offset") + 1 AS next'
    return f"SELECT {log_columns}, {ends} FROM ({positions}) GROUP BY {log_columns}"


def latest_failures(predicate_sql: str, limit: int, skip: int = 0) -> str:
    """Return the query for the latest failures for which `predicate_sql` is true, with the
    positions of their last dead letters: at most `limit`, after the `skip` latest ones. Failures
    that failed at the same time are ordered by their ids, so that pages don't overlap.
    """
    return (
        f"SELECT failure_id, {column_list(KEY)}, first_day, last_day, resolved FROM failures "
        f"WHERE {predicate_sql} ORDER BY last_failed DESC, failure_id LIMIT {limit} OFFSET {skip}"
    )


def records_at(first: date, last: date, topic_ids: Iterable[str], offsets: Iterable[int]) -> str:
    """Return the query for the rows of `records` from day `first` to day `last` that have one of
    these topics and one of these offsets. As topics, partitions and offsets aren't compared
    together, the result may have rows that weren't asked for."""
    topics = ", ".join(map(sql_literal, topic_ids))
    numbers = ", ".join(map(sql_literal, offsets))
    return (
        f'SELECT failure_id, topic, {column_list(KEY)}, "key", "value", headers, appended '
        f"FROM records WHERE {days_predicate(first, last)} AND topic_id IN ({topics}) AND "
        f'"offset" IN ({numbers})'
    )


def sent_at(failure_ids: Iterable[str]) -> str:
    """Return the query for those of these failures that a replay has sent and that are not settled:
    `failure_id`, and `at`, the time at which the event was last sent."""
    id_list = ", ".join(map(sql_literal, failure_ids))
    return (
        f"SELECT failure_id, max(sent) AS at FROM sent WHERE {PENDING} "
        f"AND failure_id IN ({id_list}) GROUP BY failure_id"
    )


def days_predicate(first: object, last: object) -> str:
    """Return a predicate for rows whose `day` is from `first` to `last`, both included. With it,
    the files of other days aren't opened."""
    return f"day BETWEEN DATE '{first}' AND DATE '{last}'"
