"""The SQL that counts what a report shows: failures by group and over time, examples, and replays.

    failures ─> reported ─┬─> frequent
                          └─> counted ─┬─> sums ────> groups, types, sources
                                       ├─> buckets
                                       └─> limits ──> chosen ──> examples

Pure: returns SQL, for Spark and for DataFusion, that names the sets of rows above (`ReportEngine`
keeps them). `assemble` builds the document from the rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import date, datetime
from typing import Final, TypeAlias

from knafka_jobs.failure_groups import MAX_SUMMARIES, OTHER_SUMMARIES
from knafka_jobs.report.report_document import MAX_EXAMPLES, MAX_TOPS
from knafka_jobs.report.report_engine import ReportRow, SqlDialect
from knafka_jobs.schema import FAILED_AGAIN, FAILURES, GROUP, KIND, RESOLVED, TRIGGER, Columns
from knafka_jobs.topic_offsets import BrokerName

SPANS: Final[Columns] = {
    **TRIGGER,
    "topic": "string",
    "partition": "int",
    "start": "bigint",
    "end": "bigint",
}
"""Columns of the offsets that a Trigger has settled in one of its topics: from `start`, inclusive,
to `end`, exclusive."""

GroupKey: TypeAlias = tuple[str, str, str, str, str, int | None, str]
"""The values of the columns `GROUP`."""

_SUMS: Final = ("events", "failures", "unresolved", "retries")
"""Columns that are summed over the event types and sources of a group."""


def columns_of(names: Iterable[str], table: str = "") -> str:
    """Return a list of quoted columns for SQL. If `table` isn't empty, each column is one of this
    table."""
    return ", ".join(f"{table}.`{name}`" if table else f"`{name}`" for name in names)


def broker_predicate(broker: BrokerName | None, dialect: SqlDialect) -> str:
    """Return a SQL predicate for rows of one Broker; if `broker` is None, it is true for all
    rows."""
    if broker is None:
        return "true"
    return f"namespace = {dialect.text(broker.namespace)} AND broker = {dialect.text(broker.name)}"


def reported_failures(broker: BrokerName | None, since: datetime, dialect: SqlDialect) -> str:
    """Return SQL for the failures in a report about one Broker, or about all if `broker` is None:
    those that are unresolved, and those that last failed or were resolved from `since` on."""
    earliest = dialect.moment(since)
    return (
        f"SELECT {columns_of(FAILURES)} FROM failures "
        f"WHERE {broker_predicate(broker, dialect)} AND "
        f"(resolved IS NULL OR last_failed >= {earliest} OR resolved >= {earliest})"
    )


FIRST_FAILED: Final = "SELECT min(first_failed) AS first FROM reported"
"""When the first failure in a report failed for the first time."""

FREQUENT: Final = (
    f"SELECT {columns_of(KIND)}, said, place FROM ("
    f"SELECT {columns_of(KIND)}, said, row_number() OVER "
    f"(PARTITION BY {columns_of(KIND)} ORDER BY events DESC, said) AS place FROM ("
    f"SELECT {columns_of(KIND)}, coalesce(summary, '') AS said, count(*) AS events "
    f"FROM reported GROUP BY {columns_of(KIND)}, coalesce(summary, ''))) "
    f"WHERE place <= {MAX_SUMMARIES + 1}"
)
"""The most frequent error summaries (`said`) of each kind of failure, with their `place` (1: the
most frequent); one more of each kind than a report has groups for."""

MANY_SUMMARIES: Final = f"SELECT said FROM frequent WHERE place > {MAX_SUMMARIES} LIMIT 1"
"""A row if any kind of failure has more summaries than a report has groups for."""


def counted_failures(*, many_summaries: bool) -> str:
    """Return SQL for the failures in a report, with the summary of their group in place of their
    own.

    `many_summaries`: some kind of failure has more summaries than a report has groups for
    (`MANY_SUMMARIES`), so failures without a frequent summary get `OTHER_SUMMARIES`.
    """
    other_columns = columns_of((name for name in FAILURES if name != "summary"), "r")
    if not many_summaries:
        return f"SELECT {other_columns}, coalesce(r.summary, '') AS summary FROM reported AS r"
    return (
        f"SELECT /*+ BROADCAST(f) */ {other_columns}, "
        f"CASE WHEN f.said IS NULL THEN '{OTHER_SUMMARIES}' "
        "ELSE f.said END AS summary FROM "
        f"(SELECT * FROM frequent WHERE place <= {MAX_SUMMARIES}) AS f RIGHT JOIN reported AS r "
        f"ON {_same_values_sql(KIND, 'r', 'f')} AND coalesce(r.summary, '') = f.said"
    )


def _same_values_sql(names: Iterable[str], left: str, right: str) -> str:
    """Return a SQL predicate: the rows of the tables `left` and `right` have the same values in
    these columns of `GROUP`. Only the column `code` may be null; two nulls are the same value."""
    return " AND ".join(
        # In brackets: DataFusion would take the rest of the condition for the second operand.
        f"({left}.`code` IS NOT DISTINCT FROM {right}.`code`)"
        if name == "code"
        else f"{left}.`{name}` = {right}.`{name}`"
        for name in names
    )


SUMS: Final = (
    f"SELECT {columns_of((*GROUP, 'type', 'source'))}, count(*) AS events, "
    "sum(failures) AS failures, "
    "count(*) FILTER (WHERE resolved IS NULL) AS unresolved, sum(retries) AS retries, "
    "min(first_failed) AS first_seen, max(last_failed) AS last_seen, "
    "min(first_failed) FILTER (WHERE resolved IS NULL) AS oldest_unresolved "
    f"FROM counted GROUP BY {columns_of((*GROUP, 'type', 'source'))}"
)
"""The numbers of events, failures and retries by group, event type and source, with their first and
last times: one row for each combination."""


ALL_ACKNOWLEDGEMENTS: Final = "SELECT * FROM acknowledgements"
"""All acknowledgements of groups, also outdated ones."""

GROUPS: Final = (
    f"SELECT {columns_of(GROUP)}, {', '.join(f'sum({name}) AS {name}' for name in _SUMS)}, "
    "min(first_seen) AS first_seen, max(last_seen) AS last_seen, "
    "min(oldest_unresolved) AS oldest_unresolved "
    f"FROM sums GROUP BY {columns_of(GROUP)}"
)
"""The sums of each group."""


def buckets(since: datetime, until: datetime, seconds: int, dialect: SqlDialect) -> str:
    """Return SQL for how often events failed from `since` on and before `until`, by group and
    period of `seconds`. Columns: `GROUP`, the period's `start` (Unix seconds), `failures`."""
    unix_time = dialect.unix_seconds("at")
    return (
        f"SELECT {columns_of(GROUP)}, `start`, count(*) AS failures FROM ("
        f"SELECT {columns_of(GROUP)}, {unix_time} - {unix_time} % {seconds} AS `start` FROM ("
        f"SELECT {columns_of(GROUP)}, past['at'] AS at FROM ("
        f"SELECT {columns_of(GROUP)}, {dialect.unnested('history')} AS past FROM counted)) "
        f"WHERE at >= {dialect.moment(since)} AND at < {dialect.moment(until)}) "
        f"GROUP BY {columns_of(GROUP)}, `start` ORDER BY `start`"
    )


def recent_failures(
    since_hour: datetime, since_day: datetime, until: datetime, dialect: SqlDialect
) -> str:
    """Return SQL for the number of recent failures before `until`, by group. Columns: `GROUP`,
    `last_hour` (failures from `since_hour` on), `last_day` (from `since_day` on). Groups without
    such failures are left out."""
    # A failure's history has no later time than `last_failed`, so skip rows by that first.
    return (
        f"SELECT {columns_of(GROUP)}, "
        f"count(*) FILTER (WHERE at >= {dialect.moment(since_hour)}) AS last_hour, "
        f"count(*) AS last_day FROM (SELECT {columns_of(GROUP)}, past['at'] AS at FROM ("
        f"SELECT {columns_of(GROUP)}, {dialect.unnested('history')} AS past FROM counted "
        f"WHERE last_failed >= {dialect.moment(since_day)})) "
        f"WHERE at >= {dialect.moment(since_day)} AND at < {dialect.moment(until)} "
        f"GROUP BY {columns_of(GROUP)}"
    )


def top_values(column: str) -> str:
    """Return SQL for the `MAX_TOPS` most frequent values of `column` (`type` or `source`) in each
    group. Columns: `GROUP`, `value`, `events` (how many events have the value)."""
    return (
        f"SELECT {columns_of(GROUP)}, `value`, events FROM ("
        f"SELECT {columns_of(GROUP)}, `value`, events, row_number() OVER "
        f"(PARTITION BY {columns_of(GROUP)} ORDER BY events DESC, `value`) AS place FROM ("
        f"SELECT {columns_of(GROUP)}, `{column}` AS `value`, sum(events) AS events FROM sums "
        f"WHERE `{column}` IS NOT NULL GROUP BY {columns_of(GROUP)}, `{column}`)) "
        f"WHERE place <= {MAX_TOPS} ORDER BY events DESC, `value`"
    )


_RANKED: Final = (
    f"SELECT {columns_of(GROUP)}, "
    "CASE WHEN resolved IS NULL THEN 0 ELSE 2 END + "
    "CASE WHEN head IS NULL AND data_bytes IS NOT NULL THEN 1 ELSE 0 END AS `rank`, "
    "last_failed, failure_id, `day`, `partition`, `offset` FROM counted"
)
"""Failures with the columns by which examples are chosen: a lower `rank` is shown first."""

SPREAD_PARTS: Final = 61
"""Parts into which `LIMITS` divides the failures of each group: with more parts, fewer failures are
sorted to find the examples."""

LIMITS: Final = (
    f"SELECT {columns_of(GROUP)}, "
    f"CASE WHEN parts < {MAX_EXAMPLES} THEN 9 ELSE `rank` END AS `rank`, last_failed FROM ("
    f"SELECT {columns_of(GROUP)}, `rank`, last_failed, "
    f"row_number() OVER (PARTITION BY {columns_of(GROUP)} ORDER BY `rank`, last_failed DESC) "
    f"AS place, count(*) OVER (PARTITION BY {columns_of(GROUP)}) AS parts FROM ("
    f"SELECT {columns_of(GROUP)}, `rank`, (`partition` + `offset`) % {SPREAD_PARTS} AS part, "
    f"max(last_failed) AS last_failed FROM ({_RANKED}) GROUP BY {columns_of(GROUP)}, `rank`, "
    f"(`partition` + `offset`) % {SPREAD_PARTS})) "
    f"WHERE place = CASE WHEN parts < {MAX_EXAMPLES} THEN parts ELSE {MAX_EXAMPLES} END"
)
"""`rank` and `last_failed` of a failure of each group that is no better than its last example, so
that `CHOSEN` sorts only failures that are as good. `rank` 9 is worse than any other: all failures
of a small group are sorted.

Each part of a group has a best failure, and the best `MAX_EXAMPLES` of these could be the examples;
so the examples are as good or better. Sorting all failures would need memory or disk for all.
"""

CHOSEN: Final = (
    "SELECT failure_id, `day`, place FROM (SELECT failure_id, `day`, row_number() OVER ("
    f"PARTITION BY {columns_of(GROUP)} ORDER BY `rank`, last_failed DESC, failure_id) AS place "
    f"FROM (SELECT /*+ BROADCAST(l) */ {columns_of(GROUP, 'r')}, "
    "r.`rank`, r.last_failed, r.failure_id, r.`day` "
    f"FROM limits AS l JOIN ({_RANKED}) AS r ON {_same_values_sql(GROUP, 'r', 'l')} "
    "WHERE r.`rank` < l.`rank` OR (r.`rank` = l.`rank` AND r.last_failed >= l.last_failed))) "
    f"WHERE place <= {MAX_EXAMPLES}"
)
"""A few failures of each group, by `place`: unresolved before resolved, with data that can be shown
before others, late before early. Columns: `failure_id`, `day`, `place`."""

CHOSEN_DAYS: Final = "SELECT DISTINCT `day` FROM chosen"
"""The days under which the chosen failures are kept."""


def examples(days: Collection[date | None]) -> str:
    """Return SQL for the chosen failures (`CHOSEN`) as whole rows, in the order of `place`. `days`
    are the days under which they are kept; None stands for rows without a day.

    Only files of these days are read.
    """
    known_days = sorted(day for day in days if day is not None)
    day_list = ", ".join(f"DATE '{day}'" for day in known_days)
    day_predicates = [f"r.`day` IN ({day_list})"] if known_days else []
    if None in days:
        day_predicates.append("r.`day` IS NULL")
    return (
        f"SELECT /*+ BROADCAST(c) */ {columns_of(FAILURES, 'r')} FROM "
        "(SELECT failure_id, place FROM chosen) AS c JOIN counted AS r "
        "ON r.failure_id = c.failure_id "
        f"WHERE {' OR '.join(day_predicates) or 'false'} ORDER BY c.place"
    )


ORIGINS: Final = f"SELECT DISTINCT {columns_of(TRIGGER)}, origin_topic FROM counted"
"""The topics from which each Trigger's failed events were read."""


def failures_within_spans(since: datetime, dialect: SqlDialect) -> str:
    """Return SQL for the number of events that failed from `since` on and whose positions in their
    origin topics lie within the table `spans` (`SPANS`), by group. Columns: `GROUP`, `events`.

    Events with the same position (topic, partition, offset) count once.
    """
    position = columns_of((*TRIGGER, "origin_topic", "origin_partition", "origin_offset"), "r")
    same_trigger = " AND ".join(f"r.`{name}` = s.`{name}`" for name in TRIGGER)
    return (
        f"SELECT {columns_of(GROUP)}, count(*) AS events FROM ("
        f"SELECT /*+ BROADCAST(s) */ {columns_of(GROUP, 'r')}, row_number() OVER "
        f"(PARTITION BY {position} ORDER BY r.failure_id) AS place FROM spans AS s "
        f"JOIN counted AS r ON {same_trigger} AND r.origin_topic = s.topic "
        "AND r.origin_partition = s.`partition` "
        f"WHERE r.last_failed >= {dialect.moment(since)} "
        "AND r.origin_offset >= s.`start` AND r.origin_offset < s.`end`) "
        f"WHERE place = 1 GROUP BY {columns_of(GROUP)}"
    )


def events_failed_again(previous_made: datetime | None, dialect: SqlDialect) -> str:
    """Return SQL for the number of replayed events that failed again since the previous report, by
    group. Columns: `GROUP`, `events`. `previous_made` is when that report was made; None: there was
    none, so all that failed again count."""
    return _events_judged("counted", FAILED_AGAIN, previous_made, dialect)


def events_resolved(previous_made: datetime | None, dialect: SqlDialect) -> str:
    """Return SQL for the number of events that were resolved since the previous report, by group.
    Columns: `GROUP`, `events`. `previous_made` is as in `events_failed_again`."""
    # Not by the column `resolved` alone: it has when the event was sent, which may have been before
    # that report, though it was judged later.
    resolved = "(SELECT * FROM counted WHERE resolved IS NOT NULL)"
    return _events_judged(resolved, RESOLVED, previous_made, dialect)


def _events_judged(
    failures: str, outcome: str, previous_made: datetime | None, dialect: SqlDialect
) -> str:
    """Return SQL for the number of `failures` (SQL of a table) with an event that has got this
    outcome since `previous_made` (None: at any time), by group. Columns: `GROUP`, `events`."""
    judged = "" if previous_made is None else f" AND judged > {dialect.moment(previous_made)}"
    events = f"SELECT failure_id FROM sent WHERE outcome = '{outcome}'{judged}"
    return (
        f"SELECT {columns_of(GROUP, 'r')}, count(*) AS events FROM {failures} AS r LEFT SEMI JOIN "
        f"({events}) AS s ON r.failure_id = s.failure_id GROUP BY {columns_of(GROUP, 'r')}"
    )


def last_report(broker_sql: str) -> str:
    """Return SQL for the last report about a Broker: `report_id`, `made`; no row if there is none.
    `broker_sql` is the predicate for the Broker (`broker_predicate`)."""
    return f"SELECT report_id, made FROM reports WHERE {broker_sql} ORDER BY made DESC LIMIT 1"


def figures_of_report(broker_sql: str, report_id: str, dialect: SqlDialect) -> str:
    """Return SQL for the figures of the groups of one report: `group_id`, `failures`, `unresolved`.
    `broker_sql` is the predicate for the report's Broker."""
    return (
        f"SELECT group_id, failures, unresolved FROM reports WHERE {broker_sql} "
        f"AND report_id = {dialect.text(report_id)} AND group_id IS NOT NULL"
    )


def last_report_times(broker_sql: str, limit: int) -> str:
    """Return SQL for the times at which the `limit` last reports about a Broker were made, the
    latest first. `broker_sql` is the predicate for the Broker (`broker_predicate`)."""
    return f"SELECT DISTINCT made FROM reports WHERE {broker_sql} ORDER BY made DESC LIMIT {limit}"


def first_report_times(broker_sql: str) -> str:
    """Return SQL for the time of the first report with each group: `group_id`, `first`.
    `broker_sql` is the predicate for the reports' Broker."""
    return (
        f"SELECT group_id, min(made) AS first FROM reports WHERE {broker_sql} "
        "AND group_id IS NOT NULL GROUP BY group_id"
    )


def past_figures(broker_sql: str, since: datetime, dialect: SqlDialect) -> str:
    """Return SQL for the figures of each group in reports made from `since` on, in time order:
    `group_id`, `made`, `failures`, `unresolved`. `broker_sql` is the predicate for the reports'
    Broker."""
    return (
        f"SELECT group_id, made, failures, unresolved FROM reports WHERE {broker_sql} "
        f"AND group_id IS NOT NULL AND made >= {dialect.moment(since)} ORDER BY made"
    )


def replay_counts(limit: int) -> str:
    """Return SQL for the `limit` latest replays, with the numbers of events `sent`, `resolved`,
    `failed_again`.

    Further columns: `first_noted` and `noted`, the times of the first and the last note of its
    progress (null: there is none); `first_sent` and `progressed`, how many events these notes have
    as sent; `total`; and `cancelled`, the time of its cancellation.
    """
    count = "count(*) FILTER (WHERE outcome = '{}') AS {}".format
    return (
        "SELECT r.replay_id, r.`by`, r.selection, r.started, r.finished, "
        "coalesce(s.sent, 0) AS sent, coalesce(s.resolved, 0) AS resolved, "
        "coalesce(s.failed_again, 0) AS failed_again, "
        "p.first_noted, p.first_sent, p.noted, p.progressed, p.total, c.cancelled "
        "FROM replays AS r LEFT JOIN ("
        f"SELECT replay_id, count(*) AS sent, {count(RESOLVED, 'resolved')}, "
        f"{count(FAILED_AGAIN, 'failed_again')} FROM sent GROUP BY replay_id) AS s "
        "ON r.replay_id = s.replay_id LEFT JOIN ("
        "SELECT replay_id, min(at) AS first_noted, min(sent) AS first_sent, max(at) AS noted, "
        "max(sent) AS progressed, max(total) AS total FROM replay_progress GROUP BY replay_id"
        ") AS p ON r.replay_id = p.replay_id LEFT JOIN ("
        "SELECT replay_id, min(at) AS cancelled FROM cancellations GROUP BY replay_id"
        ") AS c ON r.replay_id = c.replay_id "
        f"ORDER BY r.started DESC, r.replay_id LIMIT {limit}"
    )


def group_key_of(row: ReportRow) -> GroupKey:
    """Return the key of a row's group: the row's values of the columns `GROUP`."""
    return tuple(row[name] for name in GROUP)
