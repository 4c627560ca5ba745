"""Reporting: the tables read once, told as a `Report`, and remembered for the next one.

Refused here: the page (see `page`), and any count that isn't in the tables, which are as new as the
last compaction.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias

from pyspark.sql import DataFrame, Row

from knafka.core import names
from knafka.core.delivery import Reason
from knafka_jobs import failures as told
from knafka_jobs import replay
from knafka_jobs.failures import GroupKey, Selection, key_of
from knafka_jobs.report import (
    MAX_BUCKETS,
    Bucket,
    Change,
    ChangeKind,
    Changes,
    Example,
    Group,
    PreviousReport,
    ReplayRun,
    Report,
    Top,
    Totals,
    bucket_seconds,
    error_text,
    group_id,
    preview,
    replay_command,
)
from knafka_jobs.schema import REPORTS, TRIGGER
from knafka_jobs.storage import Tables
from knafka_jobs.topics import Topics

DAYS: Final = 30.0
"""How far back the buckets go at most."""

REPLAYS: Final = 50
"""Replays that are told, the latest."""

Settled: TypeAlias = Mapping[tuple[str, str, str], int]
"""Events that a Trigger (namespace, broker, name) has settled, if known."""

SettledSince: TypeAlias = Callable[[DataFrame, datetime], Settled]
"""Asks Kafka about the Triggers of these failures, from a moment on."""


@dataclass(frozen=True, slots=True)
class Before:
    """The last report about the same, and each group's failures and unresolved events in it."""

    report: PreviousReport
    groups: Mapping[str, tuple[int, int]]


def report(
    tables: Tables,
    broker: str | None,
    now: datetime,
    days: float = DAYS,
    settled: SettledSince | None = None,
) -> Report:
    """Tell what the tables hold of everything, or of a Broker (`namespace/name`); remember it."""
    failures = told.chosen(tables.read("failures"), Selection(broker=broker))
    sent, records = tables.read("sent"), tables.read("records")
    before = _before(tables.read("reports"), broker)
    since = now - timedelta(days=days)
    reported = told.reported(failures, since)
    first = reported.selectExpr("min(first_failed)").first()
    since = max(since, _aware(first[0])) if first and first[0] else now - timedelta(hours=1)
    seconds = bucket_seconds(since, now)
    since = datetime.fromtimestamp(int(since.timestamp()) // seconds * seconds, UTC)
    made = before.report.made if before else None
    made_report = Telling(
        groups=told.groups(reported, since, made).collect(),
        again=_by_group(told.failed_again(reported, sent, made)),
        buckets=_by_group(told.buckets(reported, since, now, seconds)),
        types=_by_group(told.tops(reported, "type")),
        sources=_by_group(told.tops(reported, "source")),
        examples=_by_group(told.examples(reported, records)),
        before=before,
        settled=settled(reported, since) if settled else {},
    )
    namespace, _, name = (broker or "").partition("/")
    groups = made_report.told()
    result = Report(
        id=uuid.uuid4().hex[:12],
        made=now,
        namespace=namespace or None,
        broker=name or None,
        since=since,
        until=now,
        bucket_seconds=seconds,
        previous=before.report if before else None,
        totals=totals(groups),
        changes=changes(groups),
        groups=tuple(groups),
        replays=_runs(tables),
    )
    _remember(tables, result)
    return result


@dataclass(frozen=True, slots=True)
class Telling:
    """What was collected, by group."""

    groups: list[Row]
    again: Mapping[GroupKey, list[Row]]
    buckets: Mapping[GroupKey, list[Row]]
    types: Mapping[GroupKey, list[Row]]
    sources: Mapping[GroupKey, list[Row]]
    examples: Mapping[GroupKey, list[Row]]
    before: Before | None
    settled: Settled

    def told(self) -> list[Group]:
        """The groups, the most unresolved events first."""
        groups = [self._group(row) for row in self.groups]
        return sorted(groups, key=lambda each: (-each.unresolved, -each.failures, each.id))

    def _group(self, row: Row) -> Group:
        key = key_of(row.asDict())
        namespace, broker, trigger, subscriber, reason, status = key
        name = group_id(*key)
        settled = self.settled.get((namespace, broker, trigger))
        return Group(
            id=name,
            namespace=namespace,
            broker=broker,
            trigger=trigger,
            subscriber=subscriber,
            reason=Reason(reason),
            status=status,
            events=row["events"],
            failures=row["failures"],
            unresolved=row["unresolved"],
            share=min(1.0, row["recent"] / settled) if settled else None,
            retries=row["retries"],
            first_seen=_aware(row["first_seen"]),
            last_seen=_aware(row["last_seen"]),
            oldest_unresolved=_aware(row["oldest_unresolved"]),
            buckets=tuple(
                Bucket(start=datetime.fromtimestamp(each["start"], UTC), failures=each["failures"])
                for each in self.buckets.get(key, [])[-MAX_BUCKETS:]
            ),
            top_types=_tops(self.types.get(key, [])),
            top_sources=_tops(self.sources.get(key, [])),
            examples=tuple(map(_example, self.examples.get(key, []))),
            change=change(
                row["failures"],
                row["unresolved"],
                row["resolved"],
                sum(each["events"] for each in self.again.get(key, [])),
                self.before.groups.get(name) if self.before else None,
            ),
            replay_command=replay_command(namespace, broker, trigger, reason, status),
        )


def change(
    failures: int, unresolved: int, resolved: int, failed_again: int, before: tuple[int, int] | None
) -> Change:
    """A group beside what the last report said of it: its failures and unresolved events."""
    if failed_again:
        kind = ChangeKind.FAILED_AGAIN
    elif before is None:
        kind = ChangeKind.NEW
    elif failures > before[0]:
        kind = ChangeKind.GROWING
    elif not unresolved and before[1]:
        kind = ChangeKind.RESOLVED
    else:
        kind = ChangeKind.STEADY
    more = failures - (before[0] if before else 0)
    return Change(kind=kind, failures=max(0, more), resolved=resolved, failed_again=failed_again)


def totals(groups: list[Group]) -> Totals:
    waiting = [each.oldest_unresolved for each in groups if each.oldest_unresolved]
    return Totals(
        groups=len(groups),
        events=sum(each.events for each in groups),
        failures=sum(each.failures for each in groups),
        unresolved=sum(each.unresolved for each in groups),
        retries=sum(each.retries for each in groups),
        oldest_unresolved=min(waiting, default=None),
    )


def changes(groups: list[Group]) -> Changes:
    counts: dict[str, int] = defaultdict(int)
    for each in groups:
        counts[each.change.kind.name.lower()] += 1
    return Changes(**counts)


def settled_since(topics: Topics) -> SettledSince:
    """How many events each Trigger has settled, by its group's commits; filtered ones count."""

    def ask(failures: DataFrame, since: datetime) -> Settled:
        rows = failures.select(*TRIGGER, "origin_topic").distinct().collect()
        origins = {
            (row["namespace"], row["broker"], row["trigger"]): row["origin_topic"]
            for row in rows
            if row["origin_topic"] and not row["origin_topic"].startswith(names.REPLAYS)
        }
        found = topics.described(sorted(set(origins.values())))
        settled = {}
        for trigger, name in origins.items():
            if (topic := found.get(name)) is not None:
                group = names.trigger_group(trigger[0], trigger[2])
                committed = topics.committed(group, topic)
                starts = topics.offsets_at(((name, each) for each in committed), since.timestamp())
                settled[trigger] = sum(
                    max(0, offset - starts[name, each])
                    for each, offset in committed.items()
                    if starts[name, each] >= 0
                )
        return settled

    return ask


def _example(row: Row) -> Example:
    origin = "/".join(str(row[f"origin_{part}"]) for part in ("topic", "partition", "offset"))
    return Example(
        id=row["id"] or origin,
        source=row["source"],
        type=row["type"],
        failed_at=_aware(row["last_failed"]),
        attempts=max(0, row["attempts"]),
        failures=row["failures"],
        resolved=row["resolved"] is not None,
        error=error_text(row["error"]),
        data_bytes=row["data_bytes"],
        data_preview=preview(None if row["head"] is None else bytes(row["head"])),
        data_content_type=row["content_type"],
        topic=row["origin_topic"],
        partition=row["origin_partition"],
        offset=row["origin_offset"],
    )


def _tops(rows: list[Row]) -> tuple[Top, ...]:
    return tuple(Top(value=each["value"], events=each["events"]) for each in rows)


def _by_group(rows: DataFrame) -> dict[GroupKey, list[Row]]:
    """Rows by their group, in their order."""
    grouped: dict[GroupKey, list[Row]] = defaultdict(list)
    for row in rows.collect():
        grouped[key_of(row.asDict())].append(row)
    return grouped


def _before(reports: DataFrame, broker: str | None) -> Before | None:
    namespace, _, name = (broker or "").partition("/")
    same = reports.where(f"namespace = {_sql(namespace)} AND broker = {_sql(name)}")
    last = same.selectExpr("max_by(report_id, made) AS id", "max(made) AS made").first()
    if last is None or last["id"] is None:
        return None
    rows = same.where(f"report_id = {_sql(last['id'])} AND group_id IS NOT NULL").collect()
    return Before(
        PreviousReport(id=last["id"], made=_aware(last["made"])),
        {row["group_id"]: (row["failures"], row["unresolved"]) for row in rows},
    )


def _remember(tables: Tables, made: Report) -> None:
    about = (made.id, made.made, made.namespace or "", made.broker or "")
    rows: list[tuple[Any, ...]] = [
        (*about, each.id, each.failures, each.unresolved, each.events - each.unresolved)
        for each in made.groups
    ]
    rows = rows or [(*about, None, 0, 0, 0)]
    tables.append(tables.rows(rows, REPORTS), "reports")


def _runs(tables: Tables) -> tuple[ReplayRun, ...]:
    rows = replay.runs(tables.read("replays"), tables.read("sent")).limit(REPLAYS).collect()
    return tuple(
        ReplayRun(
            id=row["replay_id"],
            by=row["by"],
            started=_aware(row["started"]),
            finished=_aware(row["finished"]),
            selection=row["selection"],
            sent=row["sent"],
            resolved=row["resolved"],
            failed_again=row["failed_again"],
        )
        for row in rows
    )


def _sql(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _aware(moment: Any) -> Any:
    """Spark's naive local time as a moment, None as None."""
    return None if moment is None else moment.astimezone(UTC)
