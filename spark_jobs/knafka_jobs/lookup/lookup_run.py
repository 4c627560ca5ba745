"""Answers lookups from the tables' files: dry runs, counts and single dead letters.

delta-rs reads Delta's log and Parquet in this process, without Java: an answer takes a second,
while Spark takes ten to start. Nothing is ever written. Tables in S3 are found by the usual
variables (AWS_ENDPOINT_URL, AWS_REGION and the keys).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import TableNotFoundError

from knafka.core.kafka_binding import RecordHeaders
from knafka_jobs.failure_selection import FailureCondition, Preview, TriggerName
from knafka_jobs.job_errors import JobError, NeedsSpark
from knafka_jobs.lookup import lookup_plan
from knafka_jobs.schema import KEY, LAYOUT, LAYOUT_PROPERTY, TRIGGER
from knafka_jobs.topic_offsets import Partition, read_states_of


class TableFiles:
    """The tables below `root`, each in the version that it had when it was first used."""

    def __init__(self, root: str) -> None:
        self._root = root.rstrip("/")
        self._opened: dict[str, bool] = {}
        self._session = QueryBuilder()

    def path(self, name: str) -> str:
        """The path or URI of a table."""
        return f"{self._root}/{name}"

    def has_table(self, name: str) -> bool:
        """Whether a table exists. Raises `JobError`, and `NeedsSpark` for another layout."""
        if name not in self._opened:
            path = self.path(name)
            try:
                table = DeltaTable(path, storage_options=storage_options(path))
            except TableNotFoundError:
                self._opened[name] = False
                return False
            except Exception as error:  # delta-rs raises what it likes here
                raise JobError(f"the table {path} can't be read: {error_line(error)}") from error
            _check_layout(name, path, table.metadata().configuration)
            self._session.register(name, table)
            self._opened[name] = True
        return self._opened[name]

    def query(self, sql: str, *tables: str) -> list[dict[str, Any]]:
        """Run a query over these tables; returns rows by column. Raises `JobError`."""
        return [row for batch in self.query_in_batches(sql, *tables) for row in batch]

    def set_option(self, name: str, value: int) -> None:
        """Set an option of DataFusion (`datafusion.NAME`) for further queries."""
        self._session.execute(f"SET datafusion.{name} = {value}").read_all()

    def query_in_batches(self, sql: str, *tables: str) -> Iterator[list[dict[str, Any]]]:
        """Run a query over these tables; yields thousands of rows at a time. Raises `JobError`."""
        for name in tables:
            if not self.has_table(name):
                raise JobError(
                    f"there is no table {self.path(name)}: compact the dead letters first"
                )
        try:
            for batch in self._session.execute(sql):
                yield batch.to_struct_array().to_pylist()
        except Exception as error:  # as above
            raise JobError(
                f"the tables in {self._root} can't be read: {error_line(error)}"
            ) from error


def preview(files: TableFiles, conditions: Sequence[FailureCondition]) -> Preview:
    """Preview the events that a replay would send. Raises `JobError`."""
    (selected,) = files.query(
        lookup_plan.count_failures(lookup_plan.predicate(conditions)), "failures"
    )
    rows, tables = sendable_rows(files, conditions)
    counted = files.query(lookup_plan.count_by_trigger(rows), *tables)
    triggers = {_trigger_name(row): int(row["number"]) for row in counted}
    events = files.query(lookup_plan.first_shown(rows), *tables) if triggers else []
    return Preview(triggers, selected["number"] - sum(triggers.values()), events)


def sendable_rows(
    files: TableFiles, conditions: Sequence[FailureCondition]
) -> tuple[str, Sequence[str]]:
    """The query for the failures that a replay would send, and the tables that it reads.

    Raises `JobError`.
    """
    fits = lookup_plan.predicate(conditions)
    pending = files.has_table("sent") and bool(files.query(lookup_plan.ANY_PENDING, "sent"))
    (likely,) = files.query(lookup_plan.likely_stubs(fits), "failures")
    stubs_in = (likely["first"], likely["last"]) if likely["number"] else None
    tables = ["failures", *(["sent"] if pending else []), *(["records"] if stubs_in else [])]
    return lookup_plan.sendable(fits, stubs_in, pending=pending), tables


@dataclass(frozen=True, slots=True)
class UnresolvedFailures:
    """The unresolved failures of a Trigger that have one reason and code.

    Failures that a replay has sent and that are not settled don't count.
    """

    trigger: TriggerName
    reason: str
    code: int | None
    number: int
    oldest: datetime
    newest: datetime


def count_unresolved(
    files: TableFiles, conditions: Sequence[FailureCondition]
) -> Sequence[UnresolvedFailures]:
    """The unresolved failures by Trigger, reason and code, the most frequent first.

    Failures that a replay has sent and that are not settled don't count. Raises `JobError`.
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
    """Number of unresolved failures by Trigger that a replay has sent and that are not settled.

    Raises `JobError`.
    """
    if not files.has_table("sent"):
        return {}
    rows = files.query(
        lookup_plan.count_pending(lookup_plan.predicate(conditions)), "failures", "sent"
    )
    return {_trigger_name(row): row["number"] for row in rows}


def tabled_until(files: TableFiles) -> dict[Partition, int]:
    """The first offset of each partition that is not in the tables yet. Raises `JobError`."""
    tables = [name for name in ("records", "purged") if files.has_table(name)]
    rows = files.query(lookup_plan.next_offsets(tables), *tables) if tables else []
    read = read_states_of(
        (row["topic_id"], row["partition"], row["first"], row["next"]) for row in rows
    )
    return {partition: reached.next for partition, reached in read.items()}


@dataclass(frozen=True, slots=True)
class TabledRecord:
    """A dead letter as it lay in its topic: implements `ports.log.Record`."""

    row: dict[str, Any]

    def topic(self) -> str:
        """The topic's name."""
        return str(self.row["topic"])

    def partition(self) -> int:
        """The partition's number."""
        return int(self.row["partition"])

    def offset(self) -> int:
        """The record's offset."""
        return int(self.row["offset"])

    def key(self) -> bytes | None:
        """The record's key."""
        key: bytes | None = self.row["key"]
        return key

    def value(self) -> bytes | None:
        """The record's value."""
        value: bytes | None = self.row["value"]
        return value

    def headers(self) -> RecordHeaders | None:
        """The record's headers."""
        return [(header["key"], header["value"]) for header in self.row["headers"] or ()]

    def timestamp(self) -> tuple[int, int]:
        """Type and time of the timestamp, as Kafka's clients return it (ms)."""
        return APPENDED, round(self.row["appended"].timestamp() * 1000)


APPENDED: Final = 2
"""Kafka's number of the timestamp type LogAppendTime."""


def latest_dead_letters(
    files: TableFiles, conditions: Sequence[FailureCondition], limit: int
) -> Sequence[tuple[TabledRecord, datetime | None]]:
    """The last dead letters of the latest failures, each with when it was resolved or sent again.

    Raises `JobError`.
    """
    return page_of_dead_letters(files, lookup_plan.predicate(conditions), limit)


def page_of_dead_letters(
    files: TableFiles, fits: str, limit: int, skip: int = 0
) -> Sequence[tuple[TabledRecord, datetime | None]]:
    """As `latest_dead_letters`, for the predicate `fits` and without the latest `skip` failures."""
    failures = files.query(lookup_plan.latest_failures(fits, limit, skip), "failures")
    if not failures:
        return []
    sent = {}
    if files.has_table("sent"):
        ids = (row["failure_id"] for row in failures)
        sent = {
            row["failure_id"]: row["at"] for row in files.query(lookup_plan.sent_at(ids), "sent")
        }
    topics, offsets = (
        _sorted_distinct(row[name] for row in failures) for name in ("topic_id", "offset")
    )
    first, last = (
        min(row["first_day"] for row in failures),
        max(row["last_day"] for row in failures),
    )
    rows = files.query(lookup_plan.records_at(first, last, topics, offsets), "records")
    records = {_record_key(row): row for row in rows}
    return [
        (TabledRecord(records[_record_key(row)]), row["resolved"] or sent.get(row["failure_id"]))
        for row in failures
        if _record_key(row) in records
    ]


def _record_key(row: dict[str, Any]) -> tuple[Any, ...]:
    """The failure and position of a row: after a cut of its log, two rows may share a position."""
    return tuple(row[name] for name in ("failure_id", *KEY))


def _sorted_distinct(values: Iterable[Any]) -> list[Any]:
    """The distinct values, sorted."""
    return sorted(set(values))


def _trigger_name(row: dict[str, Any]) -> TriggerName:
    """The Trigger of a row."""
    namespace, broker, trigger = (row[name] for name in TRIGGER)
    return namespace, broker, trigger


def _check_layout(name: str, path: str, properties: dict[str, str]) -> None:
    """Raise `NeedsSpark` if another version of Knafka made the table."""
    layout = LAYOUT.get(name)
    if layout is not None and int(properties.get(LAYOUT_PROPERTY, "1")) != layout:
        raise NeedsSpark(
            f"{path} was made by another version of Knafka: only a job with Spark can read it"
        )


def storage_options(path: str) -> dict[str, str] | None:
    """Options of delta-rs for S3 that it does not take from the AWS_* variables by itself."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL", "")
    if not path.startswith("s3") or not endpoint:
        return None
    default_region = {} if "AWS_REGION" in os.environ else {"AWS_REGION": "us-east-1"}
    return {**default_region, "AWS_ALLOW_HTTP": str(endpoint.startswith("http://")).lower()}


def error_line(error: Exception) -> str:
    """The whole error on one line, at most 500 characters: the reason comes last."""
    return " ".join(str(error).split())[:500]
