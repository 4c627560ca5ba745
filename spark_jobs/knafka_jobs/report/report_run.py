"""Runs a report: counts the failures in the tables, and stores the figures for the next report.

No payload is read. The figures are as new as the last compaction.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from knafka.core import names
from knafka_jobs.acknowledgements import current_acknowledgements
from knafka_jobs.command_options import TIMELINE_DAYS
from knafka_jobs.failure_groups import group_id
from knafka_jobs.io.kafka_names import possible_groups
from knafka_jobs.report import assemble, report_plan
from knafka_jobs.report.assemble import (
    CountedRows,
    GroupHistory,
    PreviousFigures,
    SettledSpan,
)
from knafka_jobs.report.report_document import (
    MAX_HISTORY,
    PreviousReport,
    Report,
    bucket_seconds,
)
from knafka_jobs.report.report_engine import ReportEngine, ReportRow
from knafka_jobs.report.report_plan import SPANS, GroupKey, group_key_of
from knafka_jobs.topic_offsets import BrokerName, TopicState

if TYPE_CHECKING:
    from knafka_jobs.io.kafka import KafkaClient  # imports Spark, which may not be installed

MAX_REPLAYS: Final = 50
"""Largest number of replays that a report lists: the latest ones."""

SettledSpansReader: TypeAlias = Callable[[Sequence[ReportRow], datetime], Sequence[SettledSpan]]
"""Returns the spans of offsets that Triggers have settled since a time (see `settled_spans`). The
rows that it is given have `TRIGGER` and the `origin_topic` of the Triggers' failed events."""


def make_report(
    engine: ReportEngine,
    broker: BrokerName | None,
    now: datetime,
    days: float = TIMELINE_DAYS,
    settled: SettledSpansReader | None = None,
) -> Report:
    """Return a report on one Broker's failures in the tables, or on all failures if `broker` is
    None, and store its figures in the table `reports`.

    `now` is the report's time; its timeline goes back `days` at most. `settled` reads which offsets
    Triggers have settled; None: the groups' shares of deliveries stay unknown. Raises `JobError`.
    """
    dialect = engine.dialect
    earliest = now - timedelta(days=days)
    # The order matters: each query reads the results of earlier ones, by the names given here.
    engine.derive("reported", report_plan.reported_failures(broker, earliest, dialect))
    engine.compute_now("frequent", report_plan.FREQUENT)
    many_summaries = bool(engine.query(report_plan.MANY_SUMMARIES))
    engine.derive("counted", report_plan.counted_failures(many_summaries=many_summaries))
    # In the table `reports`, a report about all Brokers has an empty namespace and Broker.
    broker_sql = report_plan.broker_predicate(broker or BrokerName("", ""), dialect)
    previous = _previous_figures(engine, broker_sql)
    previous_made = previous.report.made if previous else None
    (first,) = engine.query(report_plan.FIRST_FAILED)
    # The timeline begins with the first failure, or at `earliest` if that is later; without a
    # failure it covers an hour.
    since = max(earliest, first["first"]) if first["first"] else now - timedelta(hours=1)
    seconds = bucket_seconds(since, now)
    # Round down to the start of a bucket.
    since = datetime.fromtimestamp(int(since.timestamp()) // seconds * seconds, UTC)
    counted_rows = _count_by_group(engine, previous_made, since, now, seconds)
    shares: dict[GroupKey, float] = {}
    if settled and (spans := settled(engine.query(report_plan.ORIGINS), since)):
        shares = _shares_of_groups(engine, spans, since)
    histories = _group_histories(engine, broker_sql, counted_rows)
    acknowledged = current_acknowledgements(engine.query(report_plan.ALL_ACKNOWLEDGEMENTS), now)
    groups = assemble.build_groups(counted_rows, previous, shares, histories, acknowledged, now)
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
        replays=tuple(
            assemble.replay_run(row, now)
            for row in engine.query(report_plan.replay_counts(MAX_REPLAYS))
        ),
    )
    engine.append_figures(_figure_rows(result))
    return result


def _count_by_group(
    engine: ReportEngine,
    previous_made: datetime | None,
    since: datetime,
    now: datetime,
    seconds: int,
) -> CountedRows:
    """Count the failures in a report by group, with their examples. The timeline goes from `since`
    to `now`, in buckets of `seconds`. `previous_made` is when the previous report was made (None:
    there is none)."""
    dialect = engine.dialect
    engine.derive("sums", report_plan.SUMS, repeated=True)
    engine.compute_now("limits", report_plan.LIMITS)
    engine.compute_now("chosen", report_plan.CHOSEN)
    chosen_days = [row["day"] for row in engine.query(report_plan.CHOSEN_DAYS)]
    return CountedRows(
        groups=engine.query(report_plan.GROUPS),
        failed_again=_by_group(
            engine.query(report_plan.events_failed_again(previous_made, dialect))
        ),
        resolved=_by_group(engine.query(report_plan.events_resolved(previous_made, dialect))),
        buckets=_by_group(engine.query(report_plan.buckets(since, now, seconds, dialect))),
        recent=_by_group(
            engine.query(
                report_plan.recent_failures(now - assemble.HOUR, now - assemble.DAY, now, dialect)
            )
        ),
        types=_by_group(engine.query(report_plan.top_values("type"))),
        sources=_by_group(engine.query(report_plan.top_values("source"))),
        examples=_by_group(engine.query(report_plan.examples(chosen_days))),
    )


def settled_spans(
    kafka: KafkaClient, rows: Sequence[ReportRow], since: datetime
) -> list[SettledSpan]:
    """Return, for each Trigger, the offsets of its topics' records from the time `since` on that it
    has settled: those below the committed offsets of its consumer group.

    `rows` have `TRIGGER` and an `origin_topic` of its failed events; a Trigger may have several.
    Origins that can't be the name of a topic are left out: a dead letter may claim any.
    A settled event was delivered, failed or filtered out. Triggers that have settled no such
    records are left out. Raises `JobError`.
    """
    origins = [
        ((row["namespace"], row["broker"], row["trigger"]), str(row["origin_topic"]))
        for row in rows
        if row["trigger"]
        and names.is_topic(row["origin_topic"] or "")
        and not row["origin_topic"].startswith(names.REPLAYS)
    ]
    topics = kafka.topics(sorted({name for _, name in origins}))
    spans = []
    for trigger, name in origins:
        if (topic := topics.get(name)) is not None:
            committed = _committed_offsets(kafka, possible_groups(trigger[0], trigger[2]), topic)
            starts = kafka.offsets_at(
                ((name, partition) for partition in committed), since.timestamp()
            )
            spans += [
                (*trigger, name, partition, starts[name, partition], offset)
                for partition, offset in committed.items()
                if 0 <= starts[name, partition] < offset  # -1: no record since then
            ]
    return spans


def _committed_offsets(
    kafka: KafkaClient, groups: Iterable[str], topic: TopicState
) -> dict[int, int]:
    """Return the committed offsets of the first of these groups that has read the topic, by
    partition; empty if none has."""
    for group in groups:
        if committed := kafka.committed(group, topic):
            return committed
    return {}


def _shares_of_groups(
    engine: ReportEngine, spans: Sequence[SettledSpan], since: datetime
) -> dict[GroupKey, float]:
    """Return each group's share of its Trigger's deliveries (0 to 1) from `since` on, where it is
    known. `spans` are the offsets that Triggers have settled since then."""
    engine.put("spans", SPANS, spans)
    rows = engine.query(report_plan.failures_within_spans(since, engine.dialect))
    return assemble.delivery_shares({group_key_of(row): row["events"] for row in rows}, spans)


def _by_group(rows: Iterable[ReportRow]) -> dict[GroupKey, list[ReportRow]]:
    """Return rows by their group, each group's rows in their order. The rows have the columns
    `GROUP`."""
    grouped: dict[GroupKey, list[ReportRow]] = defaultdict(list)
    for row in rows:
        grouped[group_key_of(row)].append(row)
    return grouped


def _group_histories(
    engine: ReportEngine, broker_sql: str, counted_rows: CountedRows
) -> dict[str, GroupHistory]:
    """Return the histories of the current groups in the last `MAX_HISTORY` reports, by the group's
    id. A group that is in no earlier report is left out. `broker_sql` is the predicate for the
    reports' Broker."""
    ids: Collection[str] = {group_id(*group_key_of(row)) for row in counted_rows.groups}
    report_times = engine.query(report_plan.last_report_times(broker_sql, MAX_HISTORY))
    if not ids or not report_times:
        return {}
    oldest = report_times[-1]["made"]
    past = engine.query(report_plan.past_figures(broker_sql, oldest, engine.dialect))
    first = engine.query(report_plan.first_report_times(broker_sql))
    return assemble.histories_of(
        (row for row in first if row["group_id"] in ids),
        (row for row in past if row["group_id"] in ids),
    )


def _previous_figures(engine: ReportEngine, broker_sql: str) -> PreviousFigures | None:
    """Return the figures of the last report about a Broker; None if there is none. `broker_sql` is
    the predicate for the Broker."""
    last = engine.query(report_plan.last_report(broker_sql))
    if not last:
        return None
    id_ = last[0]["report_id"]
    rows = engine.query(report_plan.figures_of_report(broker_sql, id_, engine.dialect))
    return PreviousFigures(
        PreviousReport(id=id_, made=last[0]["made"]),
        {row["group_id"]: (row["failures"], row["unresolved"]) for row in rows},
    )


def _figure_rows(report: Report) -> list[tuple[Any, ...]]:
    """Return the figures of a report's groups, as rows of the table `reports` (`schema.REPORTS`).
    A group's events that aren't unresolved count as resolved. If the report has no groups, one row
    says that it was made."""
    report_columns = (report.id, report.made, report.namespace or "", report.broker or "")
    rows: list[tuple[Any, ...]] = [
        (
            *report_columns,
            group.id,
            group.failures,
            group.unresolved,
            group.events - group.unresolved,
        )
        for group in report.groups
    ]
    return rows or [(*report_columns, None, 0, 0, 0)]
