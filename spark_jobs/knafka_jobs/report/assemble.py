"""Builds the report's document from the rows that the plan module counts. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias

from knafka_jobs.acknowledgements import Acknowledgement
from knafka_jobs.failure_groups import group_id
from knafka_jobs.replay_state import events_a_second, replay_state
from knafka_jobs.report.report_document import (
    MAX_BUCKETS,
    Acknowledged,
    Bucket,
    Change,
    ChangeKind,
    Changes,
    Example,
    Group,
    GroupAge,
    Past,
    PreviousReport,
    ReplayRun,
    Top,
    Totals,
    error_text,
    preview,
    replay_command,
)
from knafka_jobs.report.report_engine import ReportRow
from knafka_jobs.report.report_plan import GroupKey, group_key_of

HOUR: Final = timedelta(hours=1)
"""The period of `Group.last_hour` and of `GroupAge.LAST_HOUR`."""
DAY: Final = timedelta(days=1)
"""The period of `Group.rate` and of `GroupAge.LAST_DAY`."""

SettledSpan: TypeAlias = tuple[str, str, str, str, int, int, int]
"""A row with the columns `SPANS` of the plan module."""


@dataclass(frozen=True, slots=True)
class PreviousFigures:
    """The previous report about the same Broker, with figures of its groups."""

    report: PreviousReport
    groups: Mapping[str, tuple[int, int]]
    """Failures and unresolved events by the group's id."""


@dataclass(frozen=True, slots=True)
class CountedRows:
    """The rows of the plan module's queries; each field has the rows of one query.

    `groups` has one row per group. The other fields have rows by group; a group may have none.
    """

    groups: Sequence[ReportRow]
    """The sums of each group (`report_plan.GROUPS`)."""
    failed_again: Mapping[GroupKey, list[ReportRow]]
    """Events that failed again since the previous report (`events_failed_again`)."""
    resolved: Mapping[GroupKey, list[ReportRow]]
    """Events that were resolved since the previous report (`events_resolved`)."""
    buckets: Mapping[GroupKey, list[ReportRow]]
    """Failures over time (`buckets`)."""
    recent: Mapping[GroupKey, list[ReportRow]]
    """Failures in the last hour and day (`recent_failures`)."""
    types: Mapping[GroupKey, list[ReportRow]]
    """The most frequent event types (`top_values`)."""
    sources: Mapping[GroupKey, list[ReportRow]]
    """The most frequent sources (`top_values`)."""
    examples: Mapping[GroupKey, list[ReportRow]]
    """Whole rows of a few failures (`examples`)."""


@dataclass(frozen=True, slots=True)
class GroupHistory:
    """A group's history in earlier reports."""

    first_reported: datetime
    """When the first report that has the group was made."""
    history: tuple[Past, ...]
    """The group's figures in the latest reports before this one, in time order."""


def histories_of(first: Iterable[ReportRow], past: Iterable[ReportRow]) -> dict[str, GroupHistory]:
    """Return the history of each group in earlier reports, by the group's id.

    `first` has a row for each group: its `group_id`, and the time `first` at which the first report
    with the group was made. `past` has a row for each group and report, with the group's figures in
    that report, in time order.
    """
    histories: dict[str, list[Past]] = defaultdict(list)
    for row in past:
        histories[row["group_id"]].append(
            Past(made=row["made"], failures=row["failures"], unresolved=row["unresolved"])
        )
    return {
        row["group_id"]: GroupHistory(row["first"], tuple(histories[row["group_id"]]))
        for row in first
    }


def build_groups(
    counted_rows: CountedRows,
    previous: PreviousFigures | None,
    shares: Mapping[GroupKey, float],
    histories: Mapping[str, GroupHistory],
    acknowledged: Mapping[str, Acknowledgement],
    made: datetime,
) -> tuple[Group, ...]:
    """Build the groups of a report that is made at the time `made`, in their order (`group_order`).

    `previous` has the figures of the previous report; None: there is none. `shares` are the groups'
    shares of their Triggers' deliveries (`delivery_shares`). `histories` and `acknowledged` are by
    the group's id.
    """
    unsorted_groups = (
        _build_group(row, counted_rows, previous, shares, histories, acknowledged, made)
        for row in counted_rows.groups
    )
    return tuple(sorted(unsorted_groups, key=group_order))


def group_order(group: Group) -> tuple[bool, int, int, int, str]:
    """Return the sort key of a group in a report: acknowledged groups last, then by age with the
    newest first, then by unresolved events and failures with the most first."""
    age = list(GroupAge).index(group.age)
    return group.acknowledged is not None, age, -group.unresolved, -group.failures, group.id


def group_age(first_seen: datetime, made: datetime) -> GroupAge:
    """Return the age of a group that was first seen at `first_seen`, in a report made at `made`."""
    if first_seen >= made - HOUR:
        return GroupAge.LAST_HOUR
    return GroupAge.LAST_DAY if first_seen >= made - DAY else GroupAge.OLDER


def failure_rate(last_day: int, first_seen: datetime, made: datetime) -> float:
    """Return a group's failures per hour, rounded to two decimals. `last_day` is the number of its
    failures in the day before the report, which is made at `made`. The rate of a group younger than
    a day is measured since its first failure, but over at least one hour."""
    hours = min(DAY, max(HOUR, made - first_seen)) / HOUR
    return round(last_day / hours, 2)


def delivery_shares(
    failed_counts: Mapping[GroupKey, int], spans: Sequence[SettledSpan]
) -> dict[GroupKey, float]:
    """Return each group's share of its Trigger's deliveries (0 to 1). Groups whose share isn't
    known are left out.

    `spans` are the offsets that each Trigger has settled, that is, has done with for good.
    `failed_counts` has the number of failed events at these offsets, by group. A settled event that
    did not fail was either delivered or filtered out: Kafka doesn't tell which. So the share is
    known only if every event that the Trigger settled has failed.
    """
    settled_by_trigger: dict[tuple[str, ...], int] = defaultdict(int)
    for namespace, broker, trigger, _, _, start, end in spans:
        settled_by_trigger[namespace, broker, trigger] += end - start
    # The first three columns of a group's key, `key[:3]`, name its Trigger.
    failed_by_trigger: dict[tuple[str, ...], int] = defaultdict(int)
    for key, events in failed_counts.items():
        failed_by_trigger[key[:3]] += events
    return {
        key: events / failed_by_trigger[key[:3]]
        for key, events in failed_counts.items()
        if failed_by_trigger[key[:3]] == settled_by_trigger[key[:3]]
    }


def _build_group(
    row: ReportRow,
    counted_rows: CountedRows,
    previous: PreviousFigures | None,
    shares: Mapping[GroupKey, float],
    histories: Mapping[str, GroupHistory],
    acknowledged: Mapping[str, Acknowledgement],
    made: datetime,
) -> Group:
    """Build one group from its sums (`row`) and its rows in `counted_rows`. The other parameters
    have the figures of all groups, as in `build_groups`."""
    key = group_key_of(row)
    _, _, _, subscriber, _, status, summary = key
    id_ = group_id(*key)
    group_history = histories.get(id_)
    (recent,) = counted_rows.recent.get(key) or [{"last_hour": 0, "last_day": 0}]
    return Group(
        id=id_,
        subscriber=subscriber,
        status=status,
        summary=summary,
        share=shares.get(key),
        **_columns(row, "namespace", "broker", "trigger", "reason"),
        **_columns(row, "events", "failures", "unresolved", "retries"),
        **_columns(row, "first_seen", "last_seen", "oldest_unresolved"),
        last_hour=recent["last_hour"],
        rate=failure_rate(recent["last_day"], row["first_seen"], made),
        age=group_age(row["first_seen"], made),
        buckets=tuple(
            Bucket(start=datetime.fromtimestamp(bucket["start"], UTC), failures=bucket["failures"])
            for bucket in counted_rows.buckets.get(key, [])[-MAX_BUCKETS:]
        ),
        top_types=_top_values(counted_rows.types.get(key, [])),
        top_sources=_top_values(counted_rows.sources.get(key, [])),
        examples=tuple(map(_build_example, counted_rows.examples.get(key, []))),
        change=group_change(
            row["failures"],
            row["unresolved"],
            sum(group_row["events"] for group_row in counted_rows.resolved.get(key, [])),
            sum(group_row["events"] for group_row in counted_rows.failed_again.get(key, [])),
            previous.groups.get(id_) if previous else None,
        ),
        first_reported=group_history.first_reported if group_history else None,
        history=group_history.history if group_history else (),
        acknowledged=_reported_acknowledgement(acknowledged.get(id_)),
        replay_command=replay_command(*key),
    )


def group_change(
    failures: int,
    unresolved: int,
    resolved: int,
    failed_again: int,
    previous: tuple[int, int] | None,
) -> Change:
    """Return the changes of a group since the previous report.

    `failures` and `unresolved` are the group's figures now. `resolved` and `failed_again` count the
    events that were resolved or failed again since the previous report. `previous` has the group's
    failures and unresolved events in the previous report; None: that report lacks the group.
    """
    previous_failures, previous_unresolved = previous or (0, 0)
    if failed_again:
        kind = ChangeKind.FAILED_AGAIN
    elif previous is None:
        kind = ChangeKind.NEW
    elif failures > previous_failures:
        kind = ChangeKind.GROWING
    elif previous_unresolved and not unresolved:
        kind = ChangeKind.RESOLVED
    else:
        kind = ChangeKind.STEADY
    # Not below 0: failures of the previous report may have been deleted since then.
    new_failures = max(0, failures - previous_failures)
    return Change(kind=kind, failures=new_failures, resolved=resolved, failed_again=failed_again)


def sum_totals(groups: Sequence[Group]) -> Totals:
    """Return the totals of a report: sums over its groups, and when the event that has been
    unresolved longest failed first."""
    waiting = [group.oldest_unresolved for group in groups if group.oldest_unresolved]
    return Totals(
        groups=len(groups),
        events=sum(group.events for group in groups),
        failures=sum(group.failures for group in groups),
        unresolved=sum(group.unresolved for group in groups),
        retries=sum(group.retries for group in groups),
        oldest_unresolved=min(waiting, default=None),
    )


def count_changes(groups: Sequence[Group]) -> Changes:
    """Return the number of groups by kind of change since the previous report."""
    counts: dict[str, int] = defaultdict(int)
    for group in groups:
        field_name = group.change.kind.name.lower()  # a field of `Changes`
        counts[field_name] += 1
    return Changes(**counts)


def replay_run(row: ReportRow, made: datetime) -> ReplayRun:
    """Build the entry of a replay in a report that is made at the time `made`. `row` has the
    columns of `report_plan.replay_counts`."""
    sent = row["sent"]
    # The table `sent` gets a run's events only when the run ends; until then, notes count them.
    if row["finished"] is None:
        sent = max(sent, row["progressed"] or 0)
    first_note = None if row["first_noted"] is None else (row["first_noted"], row["first_sent"])
    state = replay_state(row["started"], row["finished"], row["noted"], row["cancelled"], made)
    return ReplayRun(
        id=row["replay_id"],
        state=state,
        sent=sent,
        total=None if row["total"] is None else max(row["total"], sent),
        rate=events_a_second(sent, first_note, row["finished"] or row["noted"]),
        **_columns(row, "by", "selection", "started", "finished", "resolved", "failed_again"),
    )


def _build_example(row: ReportRow) -> Example:
    """Build an example of a group's failed events from a row of `failures`."""
    origin = [row[f"origin_{part}"] for part in ("topic", "partition", "offset")]
    return Example(
        id=row["id"] or "/".join(map(str, origin)),
        failed_at=row["last_failed"],
        attempts=max(0, row["attempts"]),  # a dead letter's header may have any number
        resolved=row["resolved"] is not None,
        error=error_text(row["error"]),
        data_preview=preview(row["head"]),
        data_content_type=row["content_type"],
        topic=row["origin_topic"],
        partition=row["origin_partition"],
        offset=row["origin_offset"],
        **_columns(row, "source", "type", "failures", "data_bytes", "trace"),
    )


def _reported_acknowledgement(acknowledgement: Acknowledgement | None) -> Acknowledged | None:
    """Convert a group's acknowledgement to the report's model of it; None stays None."""
    if acknowledgement is None:
        return None
    return Acknowledged(
        by=acknowledgement.by,
        at=acknowledgement.at,
        until=acknowledgement.until,
        note=acknowledgement.note,
    )


def _top_values(rows: Sequence[ReportRow]) -> tuple[Top, ...]:
    """Return the most frequent values from rows with `value` and `events`."""
    return tuple(Top(value=row["value"], events=row["events"]) for row in rows)


def _columns(row: ReportRow, *names: str) -> dict[str, Any]:
    """Return these columns of a row by name, to set the document's fields of the same names."""
    return {name: row[name] for name in names}
