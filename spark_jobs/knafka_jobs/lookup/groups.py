"""Answers questions about groups of failures from the tables' files, without Spark."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from knafka_jobs.command_options import TIMELINE_DAYS
from knafka_jobs.failure_groups import OTHER_SUMMARIES, group_id
from knafka_jobs.failure_selection import FailureCondition, TriggerName
from knafka_jobs.io.table_files import TableFiles
from knafka_jobs.lookup import groups_plan, lookup_plan
from knafka_jobs.schema import GROUP, TRIGGER


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """The failures in the tables that failed in the same way: a row of a report."""

    id: str
    key: Mapping[str, Any]
    """The columns `GROUP`."""
    events: int
    """Events that failed, however often."""
    unresolved: int
    """Events that no replay has resolved."""
    waiting: int
    """Unresolved events that no replay has sent."""
    last_hour: int
    """Failures within the last hour: an event that failed twice counts twice."""
    first_seen: datetime
    """Time of the group's first failure."""
    last_seen: datetime
    """Time of the group's last failure."""

    @property
    def trigger(self) -> TriggerName:
        """The Trigger whose events failed."""
        namespace, broker, trigger = (self.key[name] for name in TRIGGER)
        return namespace, broker, trigger


def list_groups(
    files: TableFiles, conditions: Sequence[FailureCondition], now: datetime
) -> list[FailureGroup]:
    """Return the groups that a report made at `now` with default options would have; the group
    whose first failure is the latest comes first.

    `conditions` may select only by Trigger or Broker: others would take failures out of groups.
    Raises `JobError`.
    """
    predicate_sql = lookup_plan.predicate(conditions)
    pending = files.has_table("sent") and bool(files.query(lookup_plan.ANY_PENDING, "sent"))
    sql = groups_plan.list_groups(predicate_sql, _timeline_start(now), now, pending=pending)
    groups = []
    for row in files.query(sql, "failures", *(["sent"] if pending else [])):
        key = {name: row.pop(name) for name in GROUP}
        groups.append(FailureGroup(group_id(*key.values()), key, **row))
    return sorted(groups, key=lambda group: (-group.first_seen.timestamp(), group.id))


def find_groups(files: TableFiles, ids: Collection[str], now: datetime) -> dict[str, FailureGroup]:
    """Return the groups that have one of these ids, by id; ids of no group are left out. Raises
    `JobError`."""
    return {group.id: group for group in list_groups(files, (), now) if group.id in ids}


def members_predicate(
    files: TableFiles, group: FailureGroup, now: datetime, *, unresolved: bool = False
) -> str:
    """Return a SQL predicate for the rows of `failures` that belong to a group; with `unresolved`,
    only for those that aren't resolved. `now` is the time with which the group was listed
    (`list_groups`). Raises `JobError`."""
    frequent: Sequence[str] = ()
    # The group of all other summaries has every failure whose summary isn't a frequent one.
    if group.key["summary"] == OTHER_SUMMARIES:
        sql = groups_plan.frequent_summaries_query(group.key, _timeline_start(now))
        frequent = [row["own_summary"] for row in files.query(sql, "failures")]
    return groups_plan.members(group.key, frequent, unresolved=unresolved)


def _timeline_start(now: datetime) -> datetime:
    """Return the time at which the timeline begins in a report made at `now` with default
    options."""
    return now - timedelta(days=TIMELINE_DAYS)
