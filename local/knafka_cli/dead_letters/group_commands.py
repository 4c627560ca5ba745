"""`knafka dead-letters acknowledge, unacknowledge, events, export`: groups of dead letters.

A group is a set of dead letters that failed alike: a row of a report, named by its id. None of
these commands needs Spark.
"""

from __future__ import annotations

import getpass
import math
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from knafka_cli.dead_letters import dead_letter_tables
from knafka_cli.dead_letters.archive_tables import TablesSource, on_tables
from knafka_cli.shared.counts import count_text
from knafka_cli.shared.event_input import BadInput
from knafka_cli.shared.moments import parse_end
from knafka_cli.shared.options import add_command, exit_on_bad_input, refuse
from knafka_jobs.acknowledgements import (
    MAX_NAME_CHARACTERS,
    MAX_NOTE_CHARACTERS,
    AcknowledgementAction,
)
from knafka_jobs.schema import ACKNOWLEDGEMENTS

if TYPE_CHECKING:
    from knafka_jobs.io.table_files import TableFiles

OneGroup = Annotated[
    str,
    typer.Argument(metavar="GROUP", help="Id of the group, as list --groups and reports show it."),
]
Groups = Annotated[
    list[str],
    typer.Argument(
        metavar="GROUP...", help="Ids of groups, as list --groups and reports show them."
    ),
]
By = Annotated[
    str | None,
    typer.Option(help="Name to record as the person who does it (default: your user name)."),
]
Unresolved = Annotated[bool, typer.Option("--unresolved", help="Only unresolved events.")]
Note = Annotated[str, typer.Option(help="Why, or what is done about it.")]
HOW_TO_LIST: Final = "knafka dead-letters list --groups shows those with unresolved events"
"""Hint in the error message about a group that doesn't exist."""


def add_to(app: typer.Typer) -> None:
    """Add these commands of `knafka dead-letters` to its `app`."""
    add_command(
        app, "acknowledge", acknowledge, "knafka dead-letters acknowledge 0f3c5a9e77b1 --until 3d"
    )
    add_command(
        app, "unacknowledge", unacknowledge, "knafka dead-letters unacknowledge 0f3c5a9e77b1"
    )
    add_command(app, "events", show_events, "knafka dead-letters events 0f3c5a9e77b1 --page 2")
    add_command(app, "export", export, "knafka dead-letters export 0f3c5a9e77b1 -o failed.ndjson")


@on_tables
def acknowledge(
    tables: TablesSource,
    groups: Groups,
    until: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Ignore the groups up to this time: 3d (from now), or 2026-01-31T12:00 "
            "(default: for good).",
        ),
    ] = None,
    note: Note = "",
    by: By = None,
) -> None:
    """Mark groups of dead letters as taken care of, or as to be ignored.

    `list` and reports show acknowledged groups last, with who acknowledged them, until when and
    why. Nothing else changes: their events can be replayed as before. Needs no Spark.
    """
    now = datetime.now(UTC)
    end = None
    if until is not None:
        with exit_on_bad_input():
            end = _parse_until(until, now)
    files = tables.open()
    _record_acknowledgements(files, groups, AcknowledgementAction.ACKNOWLEDGE, by, now, end, note)
    typer.echo(
        f"acknowledged: {', '.join(groups)}{'' if end is None else f' until {end:%F %R} UTC'}"
    )


@on_tables
def unacknowledge(
    tables: TablesSource,
    groups: Groups,
    note: Note = "",
    by: By = None,
) -> None:
    """Withdraw the acknowledgement of groups of dead letters: they need attention again."""
    files = tables.open()
    action = AcknowledgementAction.UNACKNOWLEDGE
    _record_acknowledgements(files, groups, action, by, datetime.now(UTC), None, note)
    typer.echo(f"no longer acknowledged: {', '.join(groups)}")


@on_tables
def show_events(
    tables: TablesSource,
    group: OneGroup,
    page: Annotated[int, typer.Option(min=1, help="The page; 1 has the newest events.")] = 1,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Events on a page.")] = 20,
    unresolved: Unresolved = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per line.")
    ] = False,
) -> None:
    """Show the events of a group, a page at a time: event, reason, attempts and the answer.

    Each event is shown with its last dead letter, as `show` does; the newest event is the last one
    of page 1.
    """
    files = tables.open()
    event_count, predicate = select_members(files, group, unresolved=unresolved)
    for letter in dead_letter_tables.read_page_of_letters(
        files, predicate, limit, (page - 1) * limit
    ):
        typer.echo(letter.json() if as_json else letter.text())
    pages = max(1, math.ceil(event_count / limit))
    events = count_text(event_count, "event")
    typer.echo(f"page {page} of {pages} ({events})", err=True)


@on_tables
def export(
    tables: TablesSource,
    group: OneGroup,
    output: Annotated[Path, typer.Option("-o", "--output", help="The file to write.")],
    file_format: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="ndjson|parquet",
            help="ndjson: the original events, one in JSON per line. parquet: a row for each "
            "failure, with key, data and headers of its dead letter (default: by the file's name, "
            "else ndjson).",
        ),
    ] = None,
    unresolved: Unresolved = False,
) -> None:
    """Write the events of a group to a file: all of them, or with --unresolved only the unresolved
    ones.

    The file appears, or is replaced, when it is complete. Memory does not grow with the data of the
    events.
    """
    if file_format is None:
        file_format = "parquet" if output.suffix == ".parquet" else "ndjson"
    if file_format not in ("ndjson", "parquet"):
        raise refuse(f"--format {file_format!r} is unknown: give ndjson or parquet")
    files = tables.open()
    from knafka_jobs.lookup.export import ExportFormat, export_failures

    _, predicate = select_members(files, group, unresolved=unresolved)
    result = export_failures(files, predicate, output, ExportFormat(file_format))
    events = count_text(result.events, "event")
    typer.echo(f"{events} written to {output}")
    if result.left_out:
        typer.echo(
            f"{result.left_out} left out: no events, or their data were too large to be kept"
        )


def select_members(files: TableFiles, group_id: str, *, unresolved: bool) -> tuple[int, str]:
    """Return the number of a group's events, and a predicate in SQL that selects their failures in
    the tables. `unresolved` True: only unresolved events count. Exits with code 2 if there is no
    such group."""
    from knafka_jobs.lookup.groups import find_groups, members_predicate

    now = datetime.now(UTC)
    group = find_groups(files, [group_id], now).get(group_id)
    if group is None:
        raise refuse(f"the tables have no group {group_id}: {HOW_TO_LIST}")
    predicate = members_predicate(files, group, now, unresolved=unresolved)
    return group.unresolved if unresolved else group.events, predicate


def _record_acknowledgements(
    files: TableFiles,
    ids: Sequence[str],
    action: AcknowledgementAction,
    by: str | None,
    now: datetime,
    until: datetime | None,
    note: str,
) -> None:
    """Record in the tables that a person acknowledges the groups with these ids, or withdraws the
    acknowledgement (`action`); `note` says why.

    `by` is the person's name; None: the user's name. `until` is the end of the acknowledgement;
    None: for good. Exits with code 2 if a group doesn't exist, or a text is too long or not UTF-8.
    """
    from knafka_jobs.lookup.acknowledge import append_acknowledgements

    name = by or user_name()
    _check_text("note", note, MAX_NOTE_CHARACTERS)
    _check_text("by", name, MAX_NAME_CHARACTERS)
    is_withdrawal = action is AcknowledgementAction.UNACKNOWLEDGE
    key_fields = _find_key_fields(files, ids, now, with_deleted_groups=is_withdrawal)
    append_acknowledgements(files, key_fields, action, name, now, until, note)


def _find_key_fields(
    files: TableFiles, ids: Sequence[str], now: datetime, *, with_deleted_groups: bool
) -> dict[str, dict[str, Any]]:
    """Return for each of these groups, by id, the fields of its key (what its failures have in
    common) that are columns of the table of acknowledgements. Exits with code 2 if a group doesn't
    exist.

    `with_deleted_groups` True: an acknowledged group whose events were all deleted counts as
    existing. Only its id is known, so it has no fields.
    """
    from knafka_jobs.lookup.acknowledge import read_acknowledgements
    from knafka_jobs.lookup.groups import find_groups

    key_fields: dict[str, dict[str, Any]] = {
        group_id: {field: value for field, value in group.key.items() if field in ACKNOWLEDGEMENTS}
        for group_id, group in find_groups(files, ids, now).items()
    }
    if with_deleted_groups:
        key_fields = {group_id: {} for group_id in read_acknowledgements(files, now)} | key_fields
    if unknown := [group_id for group_id in ids if group_id not in key_fields]:
        raise refuse(f"the tables have no group {', '.join(unknown)}: {HOW_TO_LIST}")
    return {group_id: key_fields[group_id] for group_id in ids}


def _check_text(option: str, text: str, max_characters: int) -> None:
    """Exit with code 2 if the text of this option is longer than `max_characters`, or isn't
    UTF-8."""
    if len(text) > max_characters:
        raise refuse(f"--{option} has {len(text)} characters: give {max_characters} at most")
    # Python decodes bytes of an argument that aren't UTF-8 as surrogates.
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise refuse(f"--{option} isn't UTF-8")


def _parse_until(text: str, now: datetime) -> datetime:
    """Return the time that `--until` names: a duration after `now` such as `3d`, or an ISO 8601
    time. Raises `BadInput`, also for a time that `datetime` can't represent."""
    try:
        return datetime.fromtimestamp(parse_end(text, now.timestamp()), UTC)
    except (ValueError, OverflowError, OSError):
        raise BadInput(f"{text!r} is too far away") from None


def user_name() -> str:
    """Return the name of the user who runs the command, or the user id if there is no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return str(os.getuid())
