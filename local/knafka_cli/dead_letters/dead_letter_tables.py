"""Reads compacted dead letters for the command line, from the tables' files.

It needs neither Spark nor Java: `knafka_jobs.lookup` and `knafka_jobs.report` read the files with
the package `deltalake`. Compacted dead letters are those that a job has copied from topics into the
tables, once per event; a group is a set of those that failed alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from knafka.core.dead_letter import timestamp
from knafka_cli.shared.options import arguments_of
from knafka_client.state.installation import Installation
from knafka_client.topics.dead_letters import (
    DeadLetterOverview,
    StoredDeadLetter,
    owner_name,
    parse_dead_letter,
)
from knafka_jobs.command_options import parser
from knafka_jobs.failure_selection import FailureCondition, TriggerName
from knafka_jobs.job_errors import NeedsSpark

if TYPE_CHECKING:
    from knafka_jobs.acknowledgements import Acknowledgement
    from knafka_jobs.io.table_files import TableFiles

TABLES_FOLDER: Final = "dead-letters"
"""Name of the tables' folder in an installation's data folder."""

Tables = Annotated[
    str | None,
    typer.Option(help="Folder or URI of the tables (default: dead-letters in the data folder)."),
]
NO_TABLES: Final = "there are no tables to read at "
"""Beginning of an error message; the place of the tables follows."""
INSTALL_TABLES: Final = (
    "make jobs, or pip install 'knafka[tables]' (55 MB) where Knafka came from pip"
)
"""How to install what reading the tables needs."""


def tables_option(data_dir: Path, tables: str | None) -> dict[str, Any]:
    """Return the job option that says where the tables are: at `tables`, a folder or URI; None: in
    the data folder."""
    return {"tables": tables or str(Installation(data_dir).data / TABLES_FOLDER)}


def kafka_option(data_dir: Path) -> dict[str, Any]:
    """Return the job option with the address of the Kafka of the `knafka up` on `data_dir`. Raises
    `NotRunning`."""
    return {"bootstrap-servers": Installation(data_dir).read_state().bootstrap_servers}


def open_tables(place: str, show_problem: Callable[[str], None]) -> TableFiles | None:
    """Return the tables at `place`, a folder or URI; None if there are none, or if they can't be
    read without Spark or the package `deltalake`.

    If they can't be read, `show_problem` is called with a sentence that says how to change that.
    Raises `JobError` if reading them fails.
    """
    if "://" not in place and not Path(place, "failures").exists():
        return None
    try:
        from knafka_jobs.io.table_files import TableFiles
    except ImportError:
        show_problem(f"compacted dead letters are left out: to read them, {INSTALL_TABLES}")
        return None
    files = TableFiles(place)
    try:
        return files if files.has_table("failures") and files.has_table("records") else None
    except NeedsSpark as error:
        show_problem(f"{error}: the next knafka dead-letters compact brings it up to date")
        return None


def read_overviews(
    files: TableFiles, conditions: Sequence[FailureCondition]
) -> dict[TriggerName, DeadLetterOverview]:
    """Return, by Trigger, the counts of the unresolved dead letters in the tables. Those that were
    sent again, and may still fail again, are counted as `replayed`.

    Only failures that match all `conditions` count. Raises `JobError`.
    """
    from knafka_jobs.lookup import lookup_run as lookup

    counts_sent_again = lookup.count_pending(files, conditions)
    by_trigger: dict[TriggerName, DeadLetterOverview] = {}

    def add_overview(trigger: TriggerName, overview: DeadLetterOverview) -> None:
        """Add an overview's counts to those of the Trigger."""
        known = by_trigger.get(trigger)
        by_trigger[trigger] = overview if known is None else known + overview

    for row in lookup.count_unresolved(files, conditions):  # a row for each Trigger and reason
        reason = f"{row.reason} {'' if row.code is None else row.code}".strip()
        overview = DeadLetterOverview(
            owner_name(*row.trigger),
            row.number,
            oldest=_time_text(row.oldest),
            newest=_time_text(row.newest),
            reasons=Counter({reason: row.number}),
        )
        add_overview(row.trigger, overview)
    for trigger, count in counts_sent_again.items():
        overview = DeadLetterOverview(
            owner_name(*trigger), 0, oldest="", newest="", reasons=Counter(), replayed=count
        )
        add_overview(trigger, overview)
    for trigger, count in _count_acknowledged(files, conditions).items():
        if trigger in by_trigger:  # else a compaction has added the Trigger meanwhile
            by_trigger[trigger] = replace(by_trigger[trigger], acknowledged=count)
    return by_trigger


def _count_acknowledged(
    files: TableFiles, conditions: Sequence[FailureCondition]
) -> Mapping[TriggerName, int]:
    """Return, by Trigger, the number of unresolved dead letters that are in an acknowledged group
    and that no replay has sent. Triggers without any are left out. Raises `JobError`."""
    from knafka_jobs.lookup import acknowledge, groups

    now = datetime.now(UTC)
    acknowledged = acknowledge.read_acknowledgements(files, now)
    counts: Counter[TriggerName] = Counter()
    if not acknowledged:
        return counts
    for group in groups.list_groups(files, conditions, now):
        if group.id in acknowledged and group.waiting:
            counts[group.trigger] += group.waiting
    return counts


GROUP_COLUMNS: Final = (
    "GROUP",
    "TRIGGER",
    "UNRESOLVED",
    "LAST HOUR",
    "FIRST",
    "LAST",
    "REASON",
    "ERROR",
    "ACKNOWLEDGED",
)
"""The columns of the table of groups whose rows `group_rows` returns."""


def group_rows(
    files: TableFiles, conditions: Sequence[FailureCondition]
) -> Sequence[Sequence[str]]:
    """Return a row with the cells of `GROUP_COLUMNS` for each group that has unresolved events
    among the failures that match all `conditions`. The newest groups are first, acknowledged ones
    last. Raises `JobError`."""
    from knafka_jobs.lookup import acknowledge, groups

    now = datetime.now(UTC)
    acknowledged = acknowledge.read_acknowledgements(files, now)
    unresolved_groups = [
        group for group in groups.list_groups(files, conditions, now) if group.unresolved
    ]
    return [
        (
            group.id,
            owner_name(*group.trigger),
            str(group.unresolved),
            str(group.last_hour),
            _time_text(group.first_seen),
            _time_text(group.last_seen),
            f"{group.key['reason']} {group.key['code'] or ''}".strip(),
            group.key["summary"],
            _acknowledgement_text(acknowledged.get(group.id)),
        )
        # `list_groups` has the newest first; sorting keeps that order among groups with one key.
        for group in sorted(unresolved_groups, key=lambda group: group.id in acknowledged)
    ]


def _acknowledgement_text(acknowledgement: Acknowledgement | None) -> str:
    """Return a text that says who acknowledged a group, until when and why; empty for None, a group
    that nobody has acknowledged."""
    if acknowledgement is None:
        return ""
    text = f"by {acknowledgement.by}"
    if acknowledgement.until is not None:
        text += f" until {_time_text(acknowledgement.until)}"
    if acknowledgement.note:
        text += f": {acknowledgement.note}"
    return text


def read_latest_letters(
    files: TableFiles, conditions: Sequence[FailureCondition], limit: int
) -> Sequence[StoredDeadLetter]:
    """Return the newest `limit` dead letters in the tables that match all `conditions`, oldest
    first. Raises `JobError`."""
    from knafka_jobs.lookup import lookup_run as lookup

    return _to_dead_letters(lookup.latest_dead_letters(files, conditions, limit))


def read_page_of_letters(
    files: TableFiles, predicate: str, limit: int, skip: int
) -> Sequence[StoredDeadLetter]:
    """Return at most `limit` dead letters, oldest first, whose failures match `predicate`, a
    condition in SQL on the table of failures: the newest ones, but without the `skip` newest.
    Raises `JobError`."""
    from knafka_jobs.lookup import lookup_run as lookup

    return _to_dead_letters(lookup.page_of_dead_letters(files, predicate, limit, skip))


def _to_dead_letters(rows: Sequence[tuple[Any, datetime | None]]) -> Sequence[StoredDeadLetter]:
    """Return the parsed dead letters of these rows, in reverse order: rows have the newest first,
    the result has the oldest first. A row is a record, and the time at which its failure was
    resolved or its event sent again; None: neither happened."""
    return [
        parse_dead_letter(record, None if replayed is None else round(replayed.timestamp() * 1000))
        for record, replayed in reversed(rows)
    ]


def report(
    options: Sequence[Mapping[str, Any]], show_progress: Callable[[str], None]
) -> dict[str, Any] | None:
    """Make a report in this process, as the job `report` does with Spark; returns the job's result,
    or None if this report can only be made with Spark.

    `options` are mappings from the names of the job's options to their values. `show_progress` is
    called with each message about the report's progress. Raises `JobError`.
    """
    from knafka_jobs.report.report_command import report_without_spark, write_report

    words = [word for mapping in options for word in arguments_of(mapping)]
    arguments = parser().parse_args(["report", *words])
    computed_report = report_without_spark(arguments, show_progress)
    if computed_report is None:
        return None
    return write_report(computed_report, arguments, show_progress)


def _time_text(moment: datetime) -> str:
    """Return a time as text, in the same format as in dead letters."""
    return timestamp(moment.timestamp())
