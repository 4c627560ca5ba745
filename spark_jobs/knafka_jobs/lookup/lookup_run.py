"""Answers lookups from the tables' files: dry runs, counts and single dead letters.

delta-rs reads Delta's log and Parquet in this process, without Java (`io.table_files`): an answer
takes a second, while Spark takes ten to start. Nothing is ever written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from knafka.core.events.kafka_binding import RecordHeaders
from knafka_jobs.failure_selection import FailureCondition, Preview, TriggerName
from knafka_jobs.io.table_files import TableFiles
from knafka_jobs.lookup import lookup_plan
from knafka_jobs.schema import KEY, TRIGGER
from knafka_jobs.topic_offsets import Partition, read_states_of


def preview(files: TableFiles, conditions: Sequence[FailureCondition]) -> Preview:
    """Return which events a replay of the failures with these `conditions` would send. Failures
    that can't be sent are only counted, as left out (`Preview.left_out`). Raises `JobError`."""
    (selected,) = files.query(
        lookup_plan.count_failures(lookup_plan.predicate(conditions)), "failures"
    )
    rows, tables = sendable_rows(files, conditions)
    rows_by_trigger = files.query(lookup_plan.count_by_trigger(rows), *tables)
    triggers = {_trigger_name(row): int(row["number"]) for row in rows_by_trigger}
    events = files.query(lookup_plan.first_shown(rows), *tables) if triggers else []
    left_out = selected["number"] - sum(triggers.values())
    return Preview(triggers, left_out=left_out, events=events)


def sendable_rows(
    files: TableFiles, conditions: Sequence[FailureCondition]
) -> tuple[str, Sequence[str]]:
    """Return the SQL query for the failures with these `conditions` that a replay would send, and
    the names of the tables that it reads.

    Raises `JobError`.
    """
    predicate_sql = lookup_plan.predicate(conditions)
    pending = files.has_table("sent") and bool(files.query(lookup_plan.ANY_PENDING, "sent"))
    # A stub is a dead letter without the event's data; only its headers in `records` show that.
    (likely_stubs,) = files.query(lookup_plan.likely_stubs(predicate_sql), "failures")
    stub_days = (likely_stubs["first"], likely_stubs["last"]) if likely_stubs["number"] else None
    tables = ["failures", *(["sent"] if pending else []), *(["records"] if stub_days else [])]
    return lookup_plan.sendable(predicate_sql, stub_days, pending=pending), tables


@dataclass(frozen=True, slots=True)
class UnresolvedFailures:
    """The unresolved failures of a Trigger that have one reason and code.

    Failures whose event a replay has sent, and whose delivery isn't decided yet, don't count.
    """

    trigger: TriggerName
    reason: str
    code: int | None
    """HTTP status of the last attempt; None: there was no response."""
    number: int
    """Number of failures."""
    oldest: datetime
    """The earliest of the failures' last attempts."""
    newest: datetime
    """The latest of the failures' last attempts."""


def count_unresolved(
    files: TableFiles, conditions: Sequence[FailureCondition]
) -> Sequence[UnresolvedFailures]:
    """Return the unresolved failures with these `conditions` by Trigger, reason and code, the most
    frequent first.

    Failures whose event a replay has sent, and whose delivery isn't decided yet, don't count.
    Raises `JobError`.
    """
    pending = files.has_table("sent") and bool(files.query(lookup_plan.ANY_PENDING, "sent"))
    sql = lookup_plan.count_unresolved(lookup_plan.predicate(conditions), pending=pending)
    rows = files.query(sql, "failures", *(["sent"] if pending else []))
    return [
        UnresolvedFailures(
            _trigger_name(row),
            row["reason"],
            row["code"],
            row["number"],
            row["oldest"],
            row["newest"],
        )
        for row in rows
    ]


def count_pending(
    files: TableFiles, conditions: Sequence[FailureCondition]
) -> dict[TriggerName, int]:
    """Return the number of unresolved failures with these `conditions`, by Trigger, whose event a
    replay has sent and whose delivery isn't decided yet.

    Raises `JobError`.
    """
    if not files.has_table("sent"):
        return {}
    rows = files.query(
        lookup_plan.count_pending(lookup_plan.predicate(conditions)), "failures", "sent"
    )
    return {_trigger_name(row): row["number"] for row in rows}


def offsets_in_tables(files: TableFiles) -> dict[Partition, int]:
    """Return the offset behind the last record that the tables have, or had before a purge, of each
    partition. Partitions without such records are left out. Raises `JobError`."""
    tables = [name for name in ("records", "purged") if files.has_table(name)]
    rows = files.query(lookup_plan.next_offsets(tables), *tables) if tables else []
    states = read_states_of(
        (row["topic_id"], row["partition"], row["first"], row["next"]) for row in rows
    )
    return {partition: reached.next for partition, reached in states.items()}


def headers_of(row: Mapping[str, Any]) -> RecordHeaders:
    """Return the headers of a dead letter, from its row of the table `records`; empty if it has
    none."""
    return [(header["key"], header["value"]) for header in row["headers"] or ()]


@dataclass(frozen=True, slots=True)
class RecordInTables:
    """A dead letter as it was in its topic: implements `ports.log.Record`."""

    row: dict[str, Any]
    """The row of the table `records` that holds the dead letter."""

    def topic(self) -> str:
        """Return the topic's name."""
        return str(self.row["topic"])

    def partition(self) -> int:
        """Return the partition's number."""
        return int(self.row["partition"])

    def offset(self) -> int:
        """Return the record's offset."""
        return int(self.row["offset"])

    def key(self) -> bytes | None:
        """Return the record's key; None if it has none."""
        key: bytes | None = self.row["key"]
        return key

    def value(self) -> bytes | None:
        """Return the record's value; None if the event has no data."""
        value: bytes | None = self.row["value"]
        return value

    def headers(self) -> RecordHeaders | None:
        """Return the record's headers, never None."""
        return headers_of(self.row)

    def timestamp(self) -> tuple[int, int]:
        """Return the timestamp's type, and its time in milliseconds, as Kafka's clients do."""
        return APPENDED, round(self.row["appended"].timestamp() * 1000)


APPENDED: Final = 2
"""Kafka's number of the timestamp type LogAppendTime."""


def latest_dead_letters(
    files: TableFiles, conditions: Sequence[FailureCondition], limit: int
) -> Sequence[tuple[RecordInTables, datetime | None]]:
    """Return the last dead letters of the `limit` latest failures with these `conditions`, each
    with the time that `page_of_dead_letters` returns: when its failure was resolved or sent by a
    replay, or None. Raises `JobError`."""
    return page_of_dead_letters(files, lookup_plan.predicate(conditions), limit)


def page_of_dead_letters(
    files: TableFiles, predicate_sql: str, limit: int, skip: int = 0
) -> Sequence[tuple[RecordInTables, datetime | None]]:
    """Return the last dead letter of each of the latest failures for which `predicate_sql` is true:
    of at most `limit` failures, after the `skip` latest ones. Failures without a row in `records`
    are left out.

    With each dead letter comes the time at which its failure was resolved, or at which a replay
    sent the event whose delivery isn't decided yet; None: neither happened. Raises `JobError`.
    """
    failures = files.query(lookup_plan.latest_failures(predicate_sql, limit, skip), "failures")
    if not failures:
        return []
    sent_at = {}
    if files.has_table("sent"):
        ids = (row["failure_id"] for row in failures)
        sent_rows = files.query(lookup_plan.sent_at(ids), "sent")
        sent_at = {row["failure_id"]: row["at"] for row in sent_rows}
    topics = _sorted_distinct(row["topic_id"] for row in failures)
    offsets = _sorted_distinct(row["offset"] for row in failures)
    first_day = min(row["first_day"] for row in failures)
    last_day = max(row["last_day"] for row in failures)
    rows = files.query(lookup_plan.records_at(first_day, last_day, topics, offsets), "records")
    records = {_record_key(row): row for row in rows}
    return [
        (RecordInTables(record), failure["resolved"] or sent_at.get(failure["failure_id"]))
        for failure in failures
        if (record := records.get(_record_key(failure))) is not None
    ]


def _record_key(row: dict[str, Any]) -> tuple[Any, ...]:
    """Return what identifies a dead letter in its row of `failures` or `records`: the failure's id,
    the topic's id, partition and offset. The position alone is not enough: if Kafka loses the end
    of a log, a later dead letter gets an offset that an earlier one had."""
    return tuple(row[name] for name in ("failure_id", *KEY))


def _sorted_distinct(values: Iterable[Any]) -> list[Any]:
    """Return the distinct values, sorted."""
    return sorted(set(values))


def _trigger_name(row: dict[str, Any]) -> TriggerName:
    """Return the Trigger that a row names in its columns `TRIGGER`."""
    namespace, broker, trigger = (row[name] for name in TRIGGER)
    return namespace, broker, trigger
