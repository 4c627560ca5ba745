"""Runs a report: counts the failures in the tables, and remembers the figures for the next report.

No payload is read. The figures are as new as the last compaction.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from knafka.core import names
from knafka_jobs.acknowledgements import Acknowledgement, current_acknowledgements
from knafka_jobs.command_options import TIMELINE_DAYS
from knafka_jobs.failure_groups import group_id
from knafka_jobs.io.delta import Tables
from knafka_jobs.io.kafka import KafkaClient
from knafka_jobs.io.kafka_names import possible_groups
from knafka_jobs.materialize import materialized
from knafka_jobs.report import assemble, report_plan
from knafka_jobs.report.assemble import (
    CountedRows,
    GroupHistory,
    PreviousFigures,
    SettledSpan,
    in_utc,
)
from knafka_jobs.report.report_document import (
    MAX_HISTORY,
    PreviousReport,
    Report,
    bucket_seconds,
)
from knafka_jobs.report.report_plan import SPANS, GroupKey, group_key_of
from knafka_jobs.schema import REPORTS, TRIGGER
from knafka_jobs.topic_offsets import BrokerName, TopicState

MAX_REPLAYS: Final = 50
"""Replays that a report lists: the latest ones."""


def make_report(
    tables: Tables,
    broker: BrokerName | None,
    now: datetime,
    days: float = TIMELINE_DAYS,
    settled: Callable[[DataFrame, datetime], Sequence[SettledSpan]] | None = None,
) -> Report:
    """Make a report on all failures in the tables, or on one Broker's, and remember its figures.

    The timeline goes back `days` at most. `settled` returns the spans of offsets that the Triggers
    of failures have settled since a time; None: shares stay unknown.
    """
    earliest = now - timedelta(days=days)
    failures = (
        tables.read("failures")
        .transform(report_plan.rows_of_broker, broker)
        .transform(report_plan.reported_failures, earliest)
    )
    summaries = materialized(failures.transform(report_plan.summaries))
    failures = failures.transform(report_plan.with_few_summaries, summaries)
    reports = _rows_of_same_broker(tables.read("reports"), broker)
    previous = _previous_figures(reports)
    first = summaries.selectExpr("min(first_failed)").first()
    since = max(earliest, in_utc(first[0])) if first and first[0] else now - timedelta(hours=1)
    seconds = bucket_seconds(since, now)
    since = datetime.fromtimestamp(int(since.timestamp()) // seconds * seconds, UTC)
    previous_made = previous.report.made if previous else None
    sent = tables.read("sent")
    sums = materialized(failures.transform(report_plan.sums, previous_made))
    counted = CountedRows(
        groups=sums.transform(report_plan.groups).collect(),
        failed_again=_rows_by_group(
            failures.transform(report_plan.failed_again, sent, previous_made)
        ),
        buckets=_rows_by_group(failures.transform(report_plan.buckets, since, now, seconds)),
        types=_rows_by_group(sums.transform(report_plan.top_values, "type")),
        sources=_rows_by_group(sums.transform(report_plan.top_values, "source")),
        examples=_rows_by_group(failures.transform(report_plan.examples)),
    )
    spans = settled(failures, since) if settled else ()
    shares = _shares_of_groups(tables, failures, spans, since)
    known, acknowledged = _known_groups(reports, counted), _acknowledgements(tables, now)
    groups = assemble.build_groups(counted, previous, shares, known, acknowledged)
    runs = (
        tables.read("replays")
        .transform(report_plan.replay_counts, sent)
        .limit(MAX_REPLAYS)
        .collect()
    )
    result = Report(
        id=uuid.uuid4().hex[:12],
        made=now,
        namespace=broker.namespace if broker else None,
        broker=broker.name if broker else None,
        since=since,
        until=now,
        bucket_seconds=seconds,
        previous=previous.report if previous else None,
        totals=assemble.sum_totals(groups),
        changes=assemble.count_changes(groups),
        groups=groups,
        replays=tuple(map(assemble.replay_run, runs)),
    )
    _append_figures(tables, result)
    return result


def settled_spans(kafka: KafkaClient, failures: DataFrame, since: datetime) -> list[SettledSpan]:
    """The offsets that each Trigger has settled since then, by its consumer group's commits.

    A settled event was delivered, failed or filtered out.
    """
    rows = failures.select(*TRIGGER, "origin_topic").distinct().collect()
    origins = {
        (row["namespace"], row["broker"], row["trigger"]): str(row["origin_topic"])
        for row in rows
        if row["trigger"]
        and row["origin_topic"]
        and not row["origin_topic"].startswith(names.REPLAYS)
    }
    topics = kafka.topics(sorted(set(origins.values())))
    spans = []
    for trigger, name in origins.items():
        if (topic := topics.get(name)) is not None:
            committed = _committed_offsets(kafka, possible_groups(trigger[0], trigger[2]), topic)
            starts = kafka.offsets_at(
                ((name, partition) for partition in committed), since.timestamp()
            )
            spans += [
                (*trigger, name, partition, starts[name, partition], offset)
                for partition, offset in committed.items()
                if 0 <= starts[name, partition] < offset
            ]
    return spans


def _committed_offsets(
    kafka: KafkaClient, groups: Iterable[str], topic: TopicState
) -> dict[int, int]:
    """The offsets of the first of these groups that has read the topic, by partition."""
    return next(filter(None, (kafka.committed(group, topic) for group in groups)), {})


def _shares_of_groups(
    tables: Tables, failures: DataFrame, spans: Sequence[SettledSpan], since: datetime
) -> dict[GroupKey, float]:
    """Each group's share of deliveries (0 to 1) where it is known (`assemble.delivery_shares`)."""
    if not spans:
        return {}
    rows = failures.transform(report_plan.failed_within, tables.rows(spans, SPANS), since).collect()
    return assemble.delivery_shares(
        {group_key_of(row.asDict()): row["events"] for row in rows}, spans
    )


def _rows_by_group(rows: DataFrame) -> dict[GroupKey, list[Row]]:
    """Collect rows by group, in their order."""
    grouped: dict[GroupKey, list[Row]] = defaultdict(list)
    for row in rows.collect():
        grouped[group_key_of(row.asDict())].append(row)
    return grouped


def _rows_of_same_broker(reports: DataFrame, broker: BrokerName | None) -> DataFrame:
    """The rows of earlier reports about the same Broker; all Brokers have empty names."""
    return reports.transform(report_plan.rows_of_broker, broker or BrokerName("", ""))


def _known_groups(reports: DataFrame, counted: CountedRows) -> dict[str, GroupHistory]:
    """The history of the current groups in the last reports."""
    ids = [group_id(*group_key_of(row.asDict())) for row in counted.groups]
    made = reports.select("made").distinct().orderBy(F.desc("made")).limit(MAX_HISTORY).collect()
    if not ids or not made:
        return {}
    # A row has the session's local time, which is what Spark compares with.
    since = made[-1]["made"]
    return assemble.histories_of(reports.transform(report_plan.past_figures, ids, since).collect())


def _acknowledgements(tables: Tables, now: datetime) -> dict[str, Acknowledgement]:
    """The acknowledgements that hold now, by the group's id; Spark never creates their table."""
    if not tables.exists("acknowledgements"):
        return {}
    rows = (row.asDict() for row in tables.read("acknowledgements").collect())
    return current_acknowledgements(rows, now)


def _previous_figures(reports: DataFrame) -> PreviousFigures | None:
    """The last report among rows of `reports`; None without rows."""
    last = reports.selectExpr("max_by(report_id, made) AS id", "max(made) AS made").first()
    if last is None or last["id"] is None:
        return None
    is_last = (F.col("report_id") == last["id"]) & F.col("group_id").isNotNull()
    rows = reports.where(is_last).collect()
    return PreviousFigures(
        PreviousReport(id=last["id"], made=in_utc(last["made"])),
        {row["group_id"]: (row["failures"], row["unresolved"]) for row in rows},
    )


def _append_figures(tables: Tables, report: Report) -> None:
    """Append the figures of a report's groups to the table `reports`, for later reports."""
    about = (report.id, report.made, report.namespace or "", report.broker or "")
    rows: list[tuple[Any, ...]] = [
        (*about, group.id, group.failures, group.unresolved, group.events - group.unresolved)
        for group in report.groups
    ]
    rows = rows or [(*about, None, 0, 0, 0)]
    tables.append(tables.rows(rows, REPORTS), "reports")
