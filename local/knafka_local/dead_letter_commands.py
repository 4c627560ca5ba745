"""`knafka dead-letters compact|report|replay|purge`: the jobs for the installation that runs here.

Refused here: doing any of it. Each command hands its options to the job (see `dead_letter_jobs`).
"""

from __future__ import annotations

import json
import webbrowser
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console

from knafka.core.delivery import Reason
from knafka_local import dead_letter_jobs
from knafka_local.installation import DEFAULT_DATA, Installation, NotRunning

TABLES: Final = "dead-letters"
"""The tables' folder within an installation's data."""

Folder = Annotated[
    Path,
    typer.Option("--installation", envvar="KNAFKA_DATA", help="The --data folder of knafka up."),
]
Tables = Annotated[
    str | None,
    typer.Option(help="The tables' folder or URI, if not dead-letters in the installation."),
]
Broker = Annotated[str | None, typer.Option(help="Only this Broker: NAMESPACE/NAME.")]
KeepHours = Annotated[
    float,
    typer.Option(min=0, help="Hours that a dead letter stays in its topic once it is tabled."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")]

TriggerName = Annotated[str | None, typer.Option(help="Only of the Trigger of this name.")]
Destination = Annotated[str | None, typer.Option(help="Only what failed at this URL.")]
WhatReason = Annotated[Reason | None, typer.Option(help="Only what failed for this reason.")]
Code = Annotated[int | None, typer.Option(help="Only what failed with this HTTP status.")]
EventType = Annotated[str | None, typer.Option(help="Only events of this type.")]
Source = Annotated[str | None, typer.Option(help="Only events of this source.")]
EventId = Annotated[str | None, typer.Option("--id", help="Only the event of this id.")]
Since = Annotated[str | None, typer.Option(help="Only what last failed then or later (ISO 8601).")]
Until = Annotated[str | None, typer.Option(help="Only what last failed before then.")]
Where = Annotated[str | None, typer.Option(help="Only what fits this SQL predicate.")]

SAFETY_WINDOW: Final = 24.0
"""Hours; the job's own default, which can't be imported without Spark."""


def add_to(app: typer.Typer) -> None:
    """Add the commands to `knafka dead-letters`."""
    for command in (compact, report, replay, purge):
        app.command(command.__name__)(command)


def compact(
    broker: Broker = None,
    keep_hours: KeepHours = SAFETY_WINDOW,
    tables: Tables = None,
    installation: Folder = DEFAULT_DATA,
) -> None:
    """Take the dead letters from their topics into tables: durable, counted, small."""
    done = _run(
        "compact",
        _place(installation, tables),
        _kafka(installation),
        {"broker": broker, "keep-hours": keep_hours},
    )
    typer.echo(
        f"{done['records']} new dead letters in {done['topics']} topics; {done['deleted']} deleted"
    )
    if done["missed"]:
        typer.echo(f"{done['missed']} were deleted by somebody else before they were read")


def report(
    broker: Broker = None,
    days: Annotated[float, typer.Option(min=0.01, help="How far back the timeline goes.")] = 30.0,
    html: Annotated[Path | None, typer.Option(help="The page; report.html in the tables.")] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="The JSON; report.json in the tables.")
    ] = None,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    tables: Tables = None,
    installation: Folder = DEFAULT_DATA,
) -> None:
    """Say what failed, why, since when, and what has changed since the last report.

    Compacts first if the installation runs; else tells what the last compaction knew.
    """
    beside = Installation(installation).data / TABLES
    page, document = html or beside / "report.html", json_file or beside / "report.json"
    try:
        kafka = {**_kafka(installation), "compact": True}
    except NotRunning:
        kafka = {}
    options = {"broker": broker, "days": days, "html": page, "json": document}
    done = _run("report", _place(installation, tables), kafka, options)
    changes = ", ".join(
        f"{count} {kind.replace('_', ' ')}" for kind, count in done["changes"].items() if count
    )
    typer.echo(
        f"{done['unresolved']} of {done['events']} events unresolved in {done['groups']} groups"
        f" ({changes or 'nothing failed'}): {page}"
    )
    if open_page:
        webbrowser.open(page.absolute().as_uri())


def replay(
    broker: Broker = None,
    trigger: TriggerName = None,
    destination: Destination = None,
    reason: WhatReason = None,
    code: Code = None,
    event_type: Annotated[
        str | None, typer.Option("--type", help="Only events of this type.")
    ] = None,
    source: Source = None,
    event_id: EventId = None,
    since: Since = None,
    until: Until = None,
    where: Where = None,
    dry_run: DryRun = False,
    replay_id: Annotated[
        str | None, typer.Option(help="Continue the replay of this id, which was cut short.")
    ] = None,
    rate: Annotated[float | None, typer.Option(min=0.001, help="Events a second at most.")] = None,
    tables: Tables = None,
    installation: Folder = DEFAULT_DATA,
) -> None:
    """Send failed events again, each to the Trigger that failed it and to no other.

    Without options: everything that is unresolved and was compacted.
    """
    selection = _selection(
        broker,
        trigger,
        destination,
        reason,
        code,
        event_type,
        source,
        event_id,
        since,
        until,
        where,
    )
    options = {"dry-run": dry_run, "replay-id": replay_id, "rate": rate}
    done = _run(
        "replay", _place(installation, tables), _kafka(installation), {**selection, **options}
    )
    if not dry_run:
        typer.echo(f"{done['sent']} events sent again by the replay {done['replay']}")
        return
    for each in done["events"]:
        how = f"{each['reason']} {each['code'] or ''}".strip()
        typer.echo(f"{each['trigger']}: {each['type']} {each['id']} from {each['source']} ({how})")
    if (more := done["would_send"] - len(done["events"])) > 0:
        typer.echo(f"and {more} more")
    to = ", ".join(f"{count} to {name}" for name, count in done["triggers"].items())
    typer.echo(f"{done['would_send']} would be sent{f': {to}' if to else ''}")
    if done["left_out"]:
        typer.echo(f"{done['left_out']} left out: resolved, on their way, or no events")


def purge(
    broker: Broker = None,
    trigger: TriggerName = None,
    destination: Destination = None,
    reason: WhatReason = None,
    code: Code = None,
    event_type: Annotated[
        str | None, typer.Option("--type", help="Only events of this type.")
    ] = None,
    source: Source = None,
    event_id: EventId = None,
    since: Since = None,
    until: Until = None,
    where: Where = None,
    unresolved: Annotated[
        bool, typer.Option("--unresolved", help="Also what is not resolved: it is given up.")
    ] = False,
    dry_run: DryRun = False,
    tables: Tables = None,
    installation: Folder = DEFAULT_DATA,
) -> None:
    """Forget resolved failures and their events, for good."""
    selection = _selection(
        broker,
        trigger,
        destination,
        reason,
        code,
        event_type,
        source,
        event_id,
        since,
        until,
        where,
    )
    options = {**selection, "unresolved": unresolved, "dry-run": dry_run}
    done = _run("purge", _place(installation, tables), {}, options)
    for what, count in done.items():
        typer.echo(f"{count} failures {what.replace('_', ' ')}")


def _selection(
    broker: str | None,
    trigger: str | None,
    destination: str | None,
    reason: Reason | None,
    code: int | None,
    event_type: str | None,
    source: str | None,
    event_id: str | None,
    since: str | None,
    until: str | None,
    where: str | None,
) -> dict[str, Any]:
    return {
        "broker": broker,
        "trigger": trigger,
        "destination": destination,
        "reason": None if reason is None else reason.value,
        "code": code,
        "type": event_type,
        "source": source,
        "id": event_id,
        "since": since,
        "until": until,
        "where": where,
    }


def _place(installation: Path, tables: str | None) -> dict[str, Any]:
    return {"tables": tables or Installation(installation).data / TABLES}


def _kafka(installation: Path) -> dict[str, Any]:
    return {"bootstrap-servers": Installation(installation).running().bootstrap_servers}


def arguments_of(options: Mapping[str, Any]) -> list[str]:
    """A job's arguments; what is None or False is left out."""
    arguments = []
    for name, value in options.items():
        if value is True:
            arguments.append(f"--{name}")
        elif value is not None and value is not False:
            # With the equals sign, a value may begin with a dash.
            arguments.append(f"--{name}={value}")
    return arguments


def _run(command: str, *options: Mapping[str, Any]) -> dict[str, Any]:
    """The job's answer; its progress is a line that changes on a terminal, lines elsewhere."""
    given = [command, *(word for each in options for word in arguments_of(each))]
    console = Console(stderr=True)
    if not console.is_terminal:
        answer = dead_letter_jobs.run(given, lambda line: typer.echo(line, err=True))
    else:
        with console.status(command) as status:
            answer = dead_letter_jobs.run(given, lambda line: status.update(line))
    found: dict[str, Any] = json.loads(answer)
    return found
