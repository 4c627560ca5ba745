"""Builds the queries about groups of failures, in SQL of DataFusion.

Pure. A group is what a report shows as one row (`failure_groups`): failures of one kind (Trigger,
destination, reason and code) with the same summary of their error. The most frequent summaries of a
kind have groups of their own; all others share one, `OTHER_SUMMARIES`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from knafka_jobs.failure_groups import MAX_SUMMARIES, OTHER_SUMMARIES
from knafka_jobs.failure_selection import PENDING
from knafka_jobs.lookup.lookup_plan import column_list, days_predicate, sql_literal
from knafka_jobs.schema import KEY, KIND, TRIGGER

LAST_HOUR: Final = timedelta(hours=1)
"""Period before now for which the failures of a group are counted separately."""

EXPORTED_RECORD: Final = (
    *("failure_id", *TRIGGER, "id", "source", "type", "subject", "time", "content_type"),
    *("origin_topic", "origin_partition", "origin_offset", "trace"),
    *("destination", "reason", "code", "error", "attempts"),
)
"""Columns of `records` that an export has."""
EXPORTED_FAILURE: Final = ("failures", "first_failed", "last_failed", "resolved")
"""Columns of `failures` that an export has: few, as all rows of a group are in memory."""

_OWN_SUMMARY: Final = "coalesce(summary, '')"
"""SQL: a failure's own summary of its error, empty without one; the column `own_summary`."""
_SUMS: Final = ("events", "unresolved", "waiting", "last_hour")
"""Columns that are summed up when rare summaries become one group."""


def list_groups(predicate_sql: str, since: datetime, now: datetime, *, pending: bool) -> str:
    """Return the query for the groups of failures in a report whose timeline begins at `since`.
    Only failures for which `predicate_sql` is true are counted.

    Columns: `GROUP`, `events`, `unresolved`, `waiting` (unresolved and not sent by a replay),
    `last_hour` (failures within `LAST_HOUR` before `now`), `first_seen`, `last_seen`.
    `pending`: whether any replayed event is not settled.
    """
    kind, is_sent = column_list(KIND), "false"
    hour_start = sql_literal(now - LAST_HOUR)
    # Each failure of the report, with a `sent_id` if a replay has sent it and it isn't settled ...
    rows = f"SELECT * FROM failures WHERE {predicate_sql} AND {_reported_predicate(since)}"
    if pending:
        sent = f"SELECT DISTINCT failure_id AS sent_id FROM sent WHERE {PENDING}"
        rows = f"SELECT * FROM ({rows}) AS f LEFT JOIN ({sent}) AS p ON f.failure_id = p.sent_id"
        is_sent = "sent_id IS NOT NULL"
    # ... and with the number of its failures within the hour. The history has no later time than
    # `last_failed`, so only these failures need to be looked at.
    recent = (
        "SELECT failure_id AS recent_id, count(*) AS recent FROM ("
        "SELECT failure_id, unnest(history) AS past FROM failures "
        f"WHERE {predicate_sql} AND last_failed >= {hour_start}) AS h "
        f"WHERE past['at'] >= {hour_start} GROUP BY failure_id"
    )
    rows = f"SELECT * FROM ({rows}) AS e LEFT JOIN ({recent}) AS h ON e.failure_id = h.recent_id"
    # Count by kind and summary, then once more with the rare summaries put together.
    counted = (
        f"SELECT {kind}, {_OWN_SUMMARY} AS own_summary, count(*) AS events, "
        "count(*) FILTER (WHERE resolved IS NULL) AS unresolved, "
        f"count(*) FILTER (WHERE resolved IS NULL AND NOT ({is_sent})) AS waiting, "
        "coalesce(sum(recent), 0) AS last_hour, "
        f"min(first_failed) AS first_seen, max(last_failed) AS last_seen FROM ({rows}) AS r "
        f"GROUP BY {kind}, {_OWN_SUMMARY}"
    )
    summary = f"CASE WHEN place <= {MAX_SUMMARIES} THEN own_summary ELSE '{OTHER_SUMMARIES}' END"
    named = f"SELECT *, {summary} AS summary FROM ({_rank_by_frequency(counted)}) AS c"
    sums = ", ".join(f"sum({name}) AS {name}" for name in _SUMS)
    return (
        f"SELECT {kind}, summary, {sums}, min(first_seen) AS first_seen, "
        f"max(last_seen) AS last_seen FROM ({named}) AS n GROUP BY {kind}, summary"
    )


def frequent_summaries_query(group: Mapping[str, Any], since: datetime) -> str:
    """Return the query for the `MAX_SUMMARIES` most frequent error summaries of one kind, in a
    report whose timeline begins at `since`. The result has one column, `own_summary`. Of `group`
    only the columns `KIND` are used, which say the kind."""
    counted = (
        f"SELECT {column_list(KIND)}, {_OWN_SUMMARY} AS own_summary, count(*) AS events "
        f"FROM failures WHERE {_kind_predicate(group)} AND {_reported_predicate(since)} "
        f"GROUP BY {column_list(KIND)}, {_OWN_SUMMARY}"
    )
    ranked = _rank_by_frequency(counted)
    return f"SELECT own_summary FROM ({ranked}) AS c WHERE place <= {MAX_SUMMARIES}"


def members(group: Mapping[str, Any], frequent: Collection[str], *, unresolved: bool) -> str:
    """Return a predicate for the failures of a group; with `unresolved`, only for its unresolved
    ones.

    `group` has the columns `GROUP`. `frequent` has the result of `frequent_summaries_query`. It is
    used only for the group of all other summaries: every failure of the kind whose summary isn't in
    `frequent`.
    """
    parts = [_kind_predicate(group)]
    if group["summary"] != OTHER_SUMMARIES:
        parts.append(f"{_OWN_SUMMARY} = {sql_literal(group['summary'])}")
    elif frequent:
        parts.append(f"{_OWN_SUMMARY} NOT IN {sql_literal(tuple(frequent))}")
    if unresolved:
        parts.append("resolved IS NULL")
    return " AND ".join(parts)


def _kind_predicate(group: Mapping[str, Any]) -> str:
    """Return a predicate for failures with a group's Trigger, destination, reason and code
    (`KIND`)."""
    return " AND ".join(
        f'"{name}" IS NULL' if group[name] is None else f'"{name}" = {sql_literal(group[name])}'
        for name in KIND
    )


def _reported_predicate(since: datetime) -> str:
    """Return a predicate for the failures in a report whose timeline begins at `since`: unresolved
    ones, and those that failed or were resolved since then."""
    moment = sql_literal(since)
    return f"(resolved IS NULL OR last_failed >= {moment} OR resolved >= {moment})"


def _rank_by_frequency(counted: str) -> str:
    """Return the query for the rows of the query `counted` (one per kind and summary), each with
    its `place` among the summaries of its kind; 1 is the most frequent one. Reports rank summaries
    in the same way."""
    order = f"PARTITION BY {column_list(KIND)} ORDER BY events DESC, own_summary"
    return f"SELECT *, row_number() OVER ({order}) AS place FROM ({counted}) AS s"


def totals_of(predicate_sql: str, failures: str = "failures") -> str:
    """Return the query for totals of the failures for which `predicate_sql` is true: their
    `number`, the `bytes` of their data, and the `first` and `last` day of their records. `failures`
    is the table, or a query in parentheses."""
    return (
        "SELECT count(*) AS number, coalesce(sum(data_bytes), 0) AS bytes, "
        f"min(first_day) AS first, max(last_day) AS last FROM {failures} AS f WHERE {predicate_sql}"
    )


def last_dead_letters(
    predicate_sql: str, first: object, last: object, failures: str = "failures"
) -> str:
    """Return the query for the failures for which `predicate_sql` is true, each with its last dead
    letter.

    Columns: `EXPORTED_RECORD`, `EXPORTED_FAILURE`, `key`, `data`, `headers`. `first` and `last` are
    the days from `totals_of`; `failures` is the table, or a query in parentheses.
    """
    # `KEY` in `failures` is the position of the failure's last dead letter.
    on = " AND ".join(f'r."{name}" = f."{name}"' for name in ("failure_id", *KEY))
    chosen = column_list(("failure_id", *KEY, *EXPORTED_FAILURE))
    # DataFusion holds the first table of a join in memory: the one without data.
    return (
        f"SELECT {column_list(EXPORTED_RECORD, 'r.')}, {column_list(EXPORTED_FAILURE, 'f.')}, "
        f'r."key", r."value" AS data, r.headers '
        f"FROM (SELECT {chosen} FROM {failures} WHERE {predicate_sql}) AS f "
        f"JOIN (SELECT * FROM records WHERE {days_predicate(first, last)}) AS r ON {on}"
    )


def copy_to_parquet(query: str, url: str) -> str:
    """Return the statement that writes the rows of a query to one Parquet file at `url`. Its result
    is one row, whose `count` is the number of rows written."""
    return f"COPY ({query}) TO {sql_literal(url)} STORED AS PARQUET"
