"""`knafka dead-letters ...`: looked at, reported on, sent again.

`list` and `show` read the topics; `compact`, `report`, `replay` and `purge` hand their options to a
Spark job (see `dead_letter_jobs`), but for a replay of single events, which needs none.
"""

from __future__ import annotations

import json
import webbrowser
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console

from knafka.clients.kafka_admin import KafkaAdmin
from knafka.clients.kafka_writer import KafkaWriter
from knafka.core.delivery import Reason
from knafka_local import dead_letter_jobs, dead_letters, replaying
from knafka_local.installation import DEFAULT_DATA, Installation, NotRunning
from knafka_local.options import (
    FAILED,
    DataDir,
    add,
    egress_of,
    kafka_of,
    print_table,
    with_kafka,
)
from knafka_local.options import TriggerName as TriggerArgument

TABLES: Final = "dead-letters"
"""The tables' folder within an installation's data."""
CLOSE_TIMEOUT: Final = 5.0
"""Seconds for the writer to let go."""

Tables = Annotated[
    str | None,
    typer.Option(help="The tables' folder or URI, if not dead-letters in the data folder."),
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
    add(app, "list", list_letters, "knafka dead-letters list orders")
    add(app, "show", show_letters, "knafka dead-letters show orders --limit 3 --json")
    add(app, "compact", compact, "knafka dead-letters compact")
    add(app, "report", report, "knafka dead-letters report --open")
    add(app, "replay", replay, "knafka dead-letters replay --id payment-1 --dry-run")
    add(app, "purge", purge, "knafka dead-letters purge --until 2026-01-31 --dry-run")


def list_letters(
    trigger: Annotated[str | None, typer.Argument(help="Only this Trigger's.")] = None,
    data_dir: DataDir = DEFAULT_DATA,
) -> None:
    """How many dead letters each Trigger has, from when, and why.

    Those that were sent again, and have not failed since, are counted by themselves.
    """
    running = Installation(data_dir).running()
    chosen = running.egresses if trigger is None else [egress_of(running, trigger)]

    async def look(admin: KafkaAdmin) -> list[dead_letters.Overview]:
        return [await dead_letters.overview(admin, egress) for egress in chosen]

    rows = [
        [
            each.trigger,
            each.counted,
            str(each.replayed),
            each.oldest,
            each.newest,
            ", ".join(f"{reason} × {count}" for reason, count in each.reasons.items()),
        ]
        for each in with_kafka(running, look)
    ]
    columns = ["TRIGGER", "COUNT", "SENT AGAIN", "OLDEST", "NEWEST", "REASONS"]
    print_table(columns, rows, "no Trigger runs")


def show_letters(
    trigger: TriggerArgument,
    limit: Annotated[int, typer.Option(min=1, help="The last so many.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    data_dir: DataDir = DEFAULT_DATA,
) -> None:
    """The last dead letters of a Trigger: what, why, how often tried, and what was answered."""
    running = Installation(data_dir).running()
    egress = egress_of(running, trigger)
    found = with_kafka(running, lambda admin: dead_letters.letters(admin, egress, limit))
    for each in found:
        typer.echo(each.json() if as_json else each.text())
    if not found and not as_json:
        typer.echo(f"{egress.namespace}/{egress.trigger} has no dead letters")


def compact(
    broker: Broker = None,
    keep_hours: KeepHours = SAFETY_WINDOW,
    tables: Tables = None,
    data_dir: DataDir = DEFAULT_DATA,
) -> None:
    """Take the dead letters from their topics into tables: durable, counted, small."""
    done = _run(
        "compact",
        _place(data_dir, tables),
        _kafka(data_dir),
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
    data_dir: DataDir = DEFAULT_DATA,
) -> None:
    """Say what failed, why, since when, and what has changed since the last report.

    Compacts first if the installation runs; else tells what the last compaction knew.
    """
    beside = Installation(data_dir).data / TABLES
    page, document = html or beside / "report.html", json_file or beside / "report.json"
    try:
        kafka = {**_kafka(data_dir), "compact": True}
    except NotRunning:
        kafka = {}
    options = {"broker": broker, "days": days, "html": page, "json": document}
    done = _run("report", _place(data_dir, tables), kafka, options)
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
    ids: Annotated[
        list[str] | None,
        typer.Option("--id", help="Only the event of this id; can be repeated. Needs no Spark."),
    ] = None,
    since: Since = None,
    until: Until = None,
    where: Where = None,
    dry_run: DryRun = False,
    replay_id: Annotated[
        str | None, typer.Option(help="Continue the replay of this id, which was cut short.")
    ] = None,
    rate: Annotated[float | None, typer.Option(min=0.001, help="Events a second at most.")] = None,
    tables: Tables = None,
    data_dir: DataDir = DEFAULT_DATA,
) -> None:
    """Send failed events again, each to the Trigger that failed it and to no other.

    Without options: everything that is unresolved and was compacted. Single events (--id) are
    taken straight from their topics, without Spark, where there are no tables yet or they don't
    know them; a later report doesn't know of that.
    """
    fields = {
        "destination": destination,
        "reason": None if reason is None else reason.value,
        "code": None if code is None else str(code),
        "type": event_type,
        "source": source,
    }
    only_tables = (since, until, where, replay_id, rate, tables)
    direct = bool(ids) and all(each is None for each in only_tables)
    place = _place(data_dir, tables)
    if direct and not (Path(place["tables"]).exists() and dead_letter_jobs.are_available()):
        _replay_directly(data_dir, broker, trigger, ids or [], fields, dry_run=dry_run)
        return
    selection = _selection(
        broker,
        trigger,
        destination,
        reason,
        code,
        event_type,
        source,
        ids[0] if ids and len(ids) == 1 else None,
        since,
        until,
        where if not ids or len(ids) == 1 else _any_of(ids, where),
    )
    options = {"dry-run": dry_run, "replay-id": replay_id, "rate": rate}
    done = _run("replay", place, _kafka(data_dir), {**selection, **options})
    if direct and not done["would_send" if dry_run else "sent"]:
        _replay_directly(data_dir, broker, trigger, ids or [], fields, dry_run=dry_run)
        return
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


def _any_of(ids: Sequence[str], where: str | None) -> str:
    """A predicate for the job, which takes one id by itself."""
    quoted = ["'" + each.replace("\\", "\\\\").replace("'", "\\'") + "'" for each in ids]
    one_of = f"id IN ({', '.join(quoted)})"
    return one_of if where is None else f"({where}) AND {one_of}"


def _replay_directly(
    data_dir: Path,
    broker: str | None,
    trigger: str | None,
    ids: Sequence[str],
    fields: Mapping[str, str | None],
    *,
    dry_run: bool,
) -> None:
    running = Installation(data_dir).running()
    egresses = [
        each
        for each in running.egresses
        if broker in (None, f"{each.namespace}/{each.broker}") and trigger in (None, each.trigger)
    ]
    wanted = {name: value for name, value in fields.items() if value is not None}

    async def replayed(admin: KafkaAdmin) -> tuple[Sequence[replaying.Chosen], str]:
        found = await replaying.choose(admin, egresses, ids, wanted)
        sendable = [each for each in found if not each.obstacle]
        if dry_run or not sendable:
            return found, ""
        writer = KafkaWriter(kafka_of(running))
        try:
            return found, await replaying.send(admin, writer, sendable)
        finally:
            await writer.close(CLOSE_TIMEOUT)

    found, replay_id = with_kafka(running, replayed)
    for each in found:
        typer.echo(f"{each.about}{f': left out: {each.obstacle}' if each.obstacle else ''}")
    count = sum(not each.obstacle for each in found)
    if not found:
        typer.echo("no dead letter of such an event is in the topics")
        raise typer.Exit(FAILED)
    by = f" by the replay {replay_id}" if replay_id else ""
    events = "1 event" if count == 1 else f"{count} events"
    typer.echo(f"{events} would be sent" if dry_run else f"{events} sent again{by}")


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
    data_dir: DataDir = DEFAULT_DATA,
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
    done = _run("purge", _place(data_dir, tables), {}, options)
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


def _place(data_dir: Path, tables: str | None) -> dict[str, Any]:
    return {"tables": tables or Installation(data_dir).data / TABLES}


def _kafka(data_dir: Path) -> dict[str, Any]:
    return {"bootstrap-servers": Installation(data_dir).running().bootstrap_servers}


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
