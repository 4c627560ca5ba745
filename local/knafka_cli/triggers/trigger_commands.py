"""`knafka trigger list|test|match|pause|resume|rewind`: show, test, pause and rewind Triggers."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from knafka.core.contract import Egress
from knafka.ports.log import LogAdmin
from knafka_cli.shared import moments
from knafka_cli.shared.options import (
    EXIT_FAILED,
    DataDir,
    Files,
    TriggerName,
    add_command,
    ask_running_kafka,
    egress_of,
    exit_on_bad_input,
    kafka_configuration,
    print_table,
    read_declared,
    read_event,
)
from knafka_cli.triggers import rewinding
from knafka_client.declared import annotating, triggers
from knafka_client.state import snapshot_file
from knafka_client.state.installation import DEFAULT_DATA, Installation
from knafka_operator.model.resources import PAUSED_ANNOTATION, Trigger

EventArgument = Annotated[
    str,
    typer.Argument(help="A structured CloudEvent: a JSON file, - for stdin, or the JSON itself."),
]


def add_to(app: typer.Typer) -> None:
    """Add the commands of `knafka trigger` to its `app`."""
    add_command(app, "list", list_triggers, "knafka trigger list -f examples/quickstart")
    add_command(
        app, "test", match_trigger, "knafka trigger test orders event.json -f examples/quickstart"
    )
    add_command(
        app, "match", match_all_triggers, "knafka trigger match event.json --broker default"
    )
    add_command(app, "pause", pause, "knafka trigger pause orders")
    add_command(app, "resume", resume, "knafka trigger resume orders")
    add_command(app, "rewind", rewind, "knafka trigger rewind orders --to 2h --dry-run")


def match_trigger(
    trigger: TriggerName,
    event: EventArgument,
    files: Files = None,
    data_dir: DataDir = DEFAULT_DATA,
) -> None:
    """Show whether an event matches a Trigger's filters, or which clauses refuse it.

    With -f nothing has to run. Exit code 0: it matches, 1: it doesn't, 2: the event or the
    Trigger can't be read.
    """
    with exit_on_bad_input():
        declared_trigger = triggers.find_trigger(read_declared(files, data_dir), trigger)
        structured_event = read_event(event)
    event_name = f"{structured_event.attributes['type']} {structured_event.attributes['id']}"
    if not (clauses := triggers.refusing_clauses(declared_trigger, structured_event)):
        typer.echo(f"match: {declared_trigger.id} gets {event_name}")
        return
    typer.echo(f"no match: {declared_trigger.id} doesn't get {event_name}")
    for clause in clauses:
        typer.echo(f"  {clause}")
    raise typer.Exit(EXIT_FAILED)


def match_all_triggers(
    event: EventArgument,
    broker: Annotated[
        str | None, typer.Option(help="Ask only the Triggers of this Broker: [NAMESPACE/]NAME.")
    ] = None,
    files: Files = None,
    data_dir: DataDir = DEFAULT_DATA,
) -> None:
    """Show which Triggers would get an event, and which clauses of the others refuse it.

    With -f nothing has to run. Exit code 0: at least one Trigger gets it, 1: none.
    """
    with exit_on_bad_input():
        declared = read_declared(files, data_dir)
        structured_event = read_event(event)
        candidates = triggers.triggers_of_broker(declared, broker)
    rows = []
    for declared_trigger in candidates:
        clauses = triggers.refusing_clauses(declared_trigger, structured_event)
        answer = "no" if clauses else "yes"
        reason = "; ".join(clauses) or triggers.destination_text(declared_trigger.spec.subscriber)
        rows.append([answer, declared_trigger.id, declared_trigger.spec.broker, reason])
    columns = ["GETS IT", "TRIGGER", "BROKER", "SUBSCRIBER, OR WHY NOT"]
    print_table(columns, rows, "there is no Trigger")
    if not any(row[0] == "yes" for row in rows):
        raise typer.Exit(EXIT_FAILED)


def list_triggers(files: Files = None, data_dir: DataDir = DEFAULT_DATA) -> None:
    """List the Triggers that run, or that files declare: filters, subscriber, order, lag.

    Exit code 1 if something in the files can't be used; `knafka check` says more about it.
    """
    with exit_on_bad_input():
        declared = read_declared(files, data_dir)
    lags: dict[str, int] = {}
    if not files:
        running = Installation(data_dir).read_state()
        lags = ask_running_kafka(running, lambda admin: _read_lags(admin, running.egresses))
    any_paused = any(map(triggers.is_paused, declared.of_type(Trigger)))
    columns = ["TRIGGER", "BROKER", "FILTERS", "SUBSCRIBER", "ORDER"]
    # The last two columns are left out if they would be empty.
    if lags:
        columns.append("WAITING")
    if any_paused:
        columns.append("STATE")
    rows = []
    for declared_trigger in declared.of_type(Trigger):
        row = [
            declared_trigger.id,
            declared_trigger.spec.broker,
            triggers.filters_text(declared_trigger),
            triggers.destination_text(declared_trigger.spec.subscriber),
            triggers.order_name(declared_trigger),
        ]
        if lags:
            row.append(str(lags.get(declared_trigger.id, "?")))
        if any_paused:
            row.append("paused" if triggers.is_paused(declared_trigger) else "")
        rows.append(row)
    print_table(columns, rows, "no Trigger is declared")
    if files and declared.problems:
        raise typer.Exit(EXIT_FAILED)


def pause(trigger: TriggerName, files: Files = None, data_dir: DataDir = DEFAULT_DATA) -> None:
    """Pause a Trigger: its events wait until `knafka trigger resume`.

    Writes the annotation knafka.dev/paused into the file that declares the Trigger, as `kubectl
    annotate` does in a cluster. Deliveries that have begun are finished.
    """
    _set_paused(trigger, files, data_dir, "is paused", paused=True)


def resume(trigger: TriggerName, files: Files = None, data_dir: DataDir = DEFAULT_DATA) -> None:
    """Resume a paused Trigger: it continues with the first event that waits."""
    _set_paused(trigger, files, data_dir, "goes on", paused=False)


def rewind(
    trigger: TriggerName,
    to: Annotated[
        str,
        typer.Option(
            help="Go back to a time (ISO 8601), a duration ago (90s, 15m, 2h, 1d), or start."
        ),
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print how many events would be delivered again.")
    ] = False,
    data_dir: DataDir = DEFAULT_DATA,
) -> None:
    """Deliver to a Trigger again every event that its Broker accepted since a time.

    The Trigger must not be delivering (no dispatcher runs). Its position only moves back, so that
    no event is left out; its filters apply again.
    """
    installation = Installation(data_dir)
    running = installation.read_state()
    egress = egress_of(running, trigger)
    with exit_on_bad_input():
        moment = moments.parse_moment(to, time.time())
    name = f"{egress.namespace}/{egress.trigger}"
    rows = snapshot_file.read_snapshot(installation).triggers
    if not dry_run and any(row.replicas for row in rows if row.name == name):
        raise rewinding.TriggerHasDispatchers(egress)
    count = rewinding.rewind(kafka_configuration(running), egress, moment, dry_run=dry_run)
    if count == 0:
        typer.echo(f"{name} has read no record since then: nothing to rewind")
    elif dry_run:
        typer.echo(f"{name} would read {count} records again")
    else:
        # The scaler caches the offsets of a group that had nothing to read, so it notices the
        # rewind by the next event, or when the cached offsets expire.
        when = "it begins with the next event, or within a minute"
        typer.echo(f"{name} reads {count} records again; {when}")


def _set_paused(
    trigger: str, files: list[Path] | None, data_dir: Path, state: str, *, paused: bool
) -> None:
    """Pause a Trigger (`paused` True) or resume it, by an annotation in the file that declares it,
    and print a sentence about the Trigger's new state.

    `files` are the files to search; None: those of the `knafka up` on `data_dir`. `state` is the
    state in the sentence: `is paused` or `goes on`. Exits with code 2 if no file declares the
    Trigger. Raises `NotAnnotated` and `NotRunning`.
    """
    with exit_on_bad_input():
        declared = read_declared(files, data_dir)
        identity = triggers.parse_name(trigger, "Trigger")
        declared_trigger = triggers.find_trigger(declared, trigger)
    if triggers.is_paused(declared_trigger) is paused:
        typer.echo(f"{declared_trigger.id} {state} already")
        return
    _, place = declared.resources[identity]
    annotating.annotate(place.file, identity, PAUSED_ANNOTATION, str(paused).lower())
    typer.echo(f"{declared_trigger.id} {state}: written into {place.file}")


async def _read_lags(admin: LogAdmin, egresses: tuple[Egress, ...]) -> dict[str, int]:
    """Return the lag (number of waiting records) of each Trigger, by `namespace/name`; those of
    Subscriptions are left out. Raises `LogError`."""
    lags = {}
    for egress in egresses:
        if egress.kind == "Subscription":  # it may have the name of a Trigger
            continue
        by_group = await admin.lags([egress.group], egress.topic)
        lags[f"{egress.namespace}/{egress.trigger}"] = by_group[egress.group].total
    return lags
