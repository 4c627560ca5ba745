"""`knafka dead-letters ...`: looked at, reported on, sent again.

`list`, `show` and a dry run of `replay` read the topics and the tables' files; `compact`, `report`,
`replay` and `purge` hand their options to a Spark job (see `dead_letter_jobs`), but for a replay of
single events, which needs none.
"""

from __future__ import annotations

import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from knafka.clients.kafka_admin import KafkaAdmin
from knafka.clients.kafka_writer import KafkaWriter
from knafka.core import names
from knafka.core.contract import Egress
from knafka_cli.dead_letters import archive_commands, dead_letter_tables
from knafka_cli.dead_letters.archive_commands import (
    WHOSE_DEAD_LETTERS,
    TopicsTarget,
    WaitingTarget,
    on_cluster,
)
from knafka_cli.shared import dead_letter_jobs
from knafka_cli.shared.job_options import Asked, run_job, taking
from knafka_cli.shared.options import (
    EXIT_FAILED,
    DataDir,
    add,
    arguments_of,
    egress_of,
    ingress_of,
    kafka_of,
    print_table,
    refuse,
    with_kafka,
)
from knafka_client.declared import triggers
from knafka_client.state.installation import (
    CHANNEL_PREFIX,
    DEFAULT_DATA,
    Installation,
    NotRunning,
    RunningState,
)
from knafka_client.topics import dead_letters, replaying
from knafka_client.topics.replaying import WRITER_CLOSE_TIMEOUT
from knafka_jobs.command_options import SELECTION, FailureSelection, parser
from knafka_jobs.failure_selection import FailureCondition, TriggerName, conditions
from knafka_jobs.schema import TRIGGER

if TYPE_CHECKING:
    from knafka_jobs.lookup.lookup_run import TableFiles

TABLES_FOLDER: Final = "dead-letters"
"""The tables' folder within an installation's data."""

Tables = Annotated[
    str | None,
    typer.Option(help="Folder or URI of the tables (default: dead-letters in the data folder)."),
]
OneTrigger = Annotated[
    str | None,
    typer.Argument(
        metavar="TRIGGER", help="The Trigger: NAMESPACE/NAME, or NAME in the namespace default."
    ),
]
OneBroker = Annotated[
    str | None,
    typer.Option(
        "--broker",
        help="Show records of this Broker that hold no event, and so belong to no Trigger: "
        "NAMESPACE/NAME, or channel/NAMESPACE/NAME of a KafkaChannel.",
    ),
]
NO_TABLES: Final = "there are no tables to read at "
FIELD_OPTIONS: Final = ("destination", "reason", "code", "type", "source")
"""Options that ask for a field of a dead letter, as it lies in its topic."""
JOB_OPTIONS: Final = ("summary", "since", "until", "where", "replay-id", "rate")
"""Options that only the job knows, which needs Spark."""


def add_to(app: typer.Typer) -> None:
    """Add the commands to `knafka dead-letters`."""
    add(app, "list", list_letters, "knafka dead-letters list orders")
    add(app, "show", show_letters, "knafka dead-letters show orders --limit 3 --json")
    add(app, "compact", compact, "knafka dead-letters compact")
    add(app, "report", report, "knafka dead-letters report --open")
    add(app, "replay", replay, "knafka dead-letters replay --id payment-1 --dry-run")
    add(app, "purge", purge, "knafka dead-letters purge --until 2026-01-31 --dry-run")


@on_cluster(TopicsTarget, archive_commands.list_letters)
def list_letters(
    trigger: Annotated[
        str | None, typer.Argument(help="Count only the dead letters of this Trigger.")
    ] = None,
    tables: Tables = None,
    data_dir: DataDir = DEFAULT_DATA,
) -> None:
    """Count the dead letters of each Trigger, with their times and reasons.

    Dead letters that were sent again, and have not failed since, are counted apart. Compacted dead
    letters are counted in the tables, once per event; the others in their topics. With --tables
    only the tables are read. Records that hold no event belong to no Trigger: they are listed
    under broker/NAMESPACE/NAME.
    """
    running, files = _sources(tables, data_dir)
    by_trigger: dict[TriggerName, dead_letters.Overview] = {}
    if files is not None:
        by_trigger = dead_letter_tables.overviews(files, _of(running, trigger))
    if running is not None:
        chosen = list(running.egresses) if trigger is None else [egress_of(running, trigger)]
        if trigger is None:
            chosen += map(dead_letters.of_broker, running.ingresses)
        tabled = _tabled(files)

        async def look(admin: KafkaAdmin) -> list[dead_letters.Overview]:
            return [await dead_letters.overview(admin, egress, tabled) for egress in chosen]

        for egress, overview in zip(chosen, with_kafka(running, look), strict=True):
            name = dead_letters.name_of(egress)
            if name in by_trigger:
                by_trigger[name] = overview + by_trigger[name]
            elif egress.trigger or overview.count or overview.replayed:
                by_trigger[name] = overview
    rows = [overview.row for overview in by_trigger.values()]
    print_table(dead_letters.COLUMNS, rows, "no Trigger runs" if running else "no dead letters")


@on_cluster(TopicsTarget, archive_commands.show_letters)
def show_letters(
    trigger: OneTrigger = None,
    broker: OneBroker = None,
    limit: Annotated[int, typer.Option(min=1, help="Show the newest N.")] = 20,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per line.")
    ] = False,
    tables: Tables = None,
    data_dir: DataDir = DEFAULT_DATA,
) -> None:
    """Show the newest dead letters of a Trigger: event, reason, attempts and the answer.

    Compacted dead letters come first, one per event, then those in the topic. With --broker: the
    records of a Broker that hold no event, and so belong to no Trigger.
    """
    if (trigger is None) is (broker is None):
        raise refuse(WHOSE_DEAD_LETTERS)
    running, files = _sources(tables, data_dir)
    letters: list[dead_letters.StoredDeadLetter] = []
    if files is not None:
        letters += dead_letter_tables.latest(files, _of(running, trigger, broker), limit)
    if running is not None:
        egress, tabled = _egress(running, trigger, broker), _tabled(files)
        letters += with_kafka(
            running, lambda admin: dead_letters.letters(admin, egress, limit, tabled)
        )
    for letter in letters[-limit:]:
        typer.echo(letter.json() if as_json else letter.text())
    if not letters and not as_json:
        whose = triggers.named(trigger or broker or "", "Trigger")
        typer.echo(f"{whose.namespace}/{whose.name} has no dead letters")


def _sources(tables: str | None, data_dir: Path) -> tuple[RunningState | None, TableFiles | None]:
    """The running installation, and the tables; None for what there isn't. With `tables` only the
    tables are read."""
    files = dead_letter_tables.open_tables(_place(data_dir, tables)["tables"], _tell)
    if tables is not None:
        if files is None:
            raise refuse(NO_TABLES + tables)
        return None, files
    try:
        return Installation(data_dir).running(), files
    except NotRunning:
        if files is None:
            raise
        return None, files


def _egress(running: RunningState, trigger: str | None, broker: str | None) -> Egress:
    """The Egress of a Trigger, or the one that stands for a Broker's own dead letters."""
    if trigger is not None:
        return egress_of(running, trigger)
    return dead_letters.of_broker(ingress_of(running, broker))


def _of(
    running: RunningState | None, trigger: str | None, broker: str | None = None
) -> Sequence[FailureCondition]:
    """Conditions that select the failures of a Trigger, or of a Broker's own; empty: all."""
    if trigger is None and broker is None:
        return ()
    if running is not None:
        parts = dead_letters.name_of(_egress(running, trigger, broker))
        named = dict(zip(TRIGGER, parts, strict=True))
    elif trigger is not None:
        identity = triggers.named(trigger, "Trigger")
        named = {"namespace": identity.namespace, "trigger": identity.name}
    else:
        assert broker is not None
        identity = triggers.named(broker.removeprefix(CHANNEL_PREFIX), "Broker")
        bus = (
            names.of_channel(identity.name) if broker.startswith(CHANNEL_PREFIX) else identity.name
        )
        named = {"namespace": identity.namespace, "broker": bus, "trigger": ""}
    return [FailureCondition(name, "=", value) for name, value in named.items()]


def _tabled(files: TableFiles | None) -> dead_letters.Tabled:
    if files is None:
        return {}
    from knafka_jobs.lookup.lookup_run import tabled_until

    return tabled_until(files)


def _tell(line: str) -> None:
    typer.echo(f"knafka: {line}", err=True)


@taking("broker", "keep-hours", "forget-resolved-days", "forget-unresolved-days")
@on_cluster(WaitingTarget, archive_commands.compact)
def compact(asked: Asked, tables: Tables = None, data_dir: DataDir = DEFAULT_DATA) -> None:
    """Take dead letters from their topics into compacted tables."""
    done = run_job("compact", _place(data_dir, tables), _kafka(data_dir), asked)
    typer.echo(
        f"{done['records']} new dead letters in {done['topics']} topics; {done['deleted']} deleted"
    )
    if done["missed"]:
        typer.echo(f"{done['missed']} were deleted by somebody else before they were read")


@taking("broker", "days", "trace-url")
@on_cluster(WaitingTarget, archive_commands.report)
def report(
    asked: Asked,
    html: Annotated[
        Path | None,
        typer.Option(help="File for the HTML page (default: report.html in the tables' folder)."),
    ] = None,
    json_file: Annotated[
        Path | None,
        typer.Option(
            "--json", help="File for the JSON report (default: report.json in the tables' folder)."
        ),
    ] = None,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    tables: Tables = None,
    data_dir: DataDir = DEFAULT_DATA,
) -> None:
    """Report what failed, why, since when, and what changed since the last report.

    Compacts first if the installation runs; otherwise it reports what the tables have.
    """
    beside = Installation(data_dir).data / TABLES_FOLDER
    page, document = html or beside / "report.html", json_file or beside / "report.json"
    try:
        kafka = {**_kafka(data_dir), "compact": True}
    except NotRunning:
        kafka = {}
    files = {"html": page, "json": document}
    done = run_job("report", _place(data_dir, tables), kafka, asked, files)
    changes = ", ".join(
        f"{count} {kind.replace('_', ' ')}" for kind, count in done["changes"].items() if count
    )
    groups = "1 group" if done["groups"] == 1 else f"{done['groups']} groups"
    typer.echo(
        f"{done['unresolved']} of {done['events']} events unresolved in {groups}"
        f" ({changes or 'nothing failed'}): {page}"
    )
    if open_page:
        webbrowser.open(page.absolute().as_uri())


@taking(*(name for name in SELECTION if name != "id"), "dry-run", "replay-id", "rate")
@on_cluster(WaitingTarget, archive_commands.replay)
def replay(
    asked: Asked,
    ids: Annotated[
        list[str] | None,
        typer.Option("--id", help="Only the event with this id. Can be repeated. Needs no Spark."),
    ] = None,
    tables: Tables = None,
    data_dir: DataDir = DEFAULT_DATA,
) -> None:
    """Send failed events again, each only to the Trigger that failed it.

    Without options: all compacted events that are unresolved. Single events (--id) are sent
    straight from their topics, without Spark, where there are no tables or the tables lack them;
    later reports don't know of that.
    """
    dry_run = asked["dry-run"]
    needs_tables = tables is not None or any(asked[name] is not None for name in JOB_OPTIONS)
    direct = bool(ids) and not needs_tables
    place = _place(data_dir, tables)
    if tables is not None and "://" not in tables and not Path(tables).exists():
        raise refuse(NO_TABLES + tables)
    if ids and direct and not (Path(place["tables"]).exists() and dead_letter_jobs.are_available()):
        _replay_directly(data_dir, asked, ids)
        return
    given = dict(asked)
    if ids and len(ids) > 1:
        given["where"] = _any_of(ids, asked["where"])
    elif ids:
        given["id"] = ids[0]
    done = _previewed(place["tables"], asked, ids or ()) if dry_run else None
    if done is None:
        done = run_job("replay", place, _kafka(data_dir), given)
    if ids and direct and not done["would_send" if dry_run else "sent"]:
        _replay_directly(data_dir, asked, ids)
        return
    if not dry_run:
        events = "1 event" if done["sent"] == 1 else f"{done['sent']} events"
        typer.echo(f"{events} sent again by the replay {done['replay']}")
        if left_out := done.get("left_out"):
            typer.echo(f"{left_out} left out: {'; '.join(done['problems'])}")
        return
    for line in dead_letters.preview_lines(done):
        typer.echo(line)


def _previewed(place: str, asked: Asked, ids: Sequence[str]) -> dict[str, Any] | None:
    """A dry run without Spark; None where only Spark can tell."""
    if asked["where"] is not None:
        return None
    files = dead_letter_tables.open_tables(place, _tell)
    if files is None:
        return None
    from knafka_jobs.lookup.lookup_run import preview

    said = {name: asked[name] for name in SELECTION if name in asked}
    given = parser().parse_args(
        ["purge", f"--tables={place}", *arguments_of(said)]  # which takes what selects
    )
    selected = conditions(FailureSelection.from_arguments(given))
    if ids:
        selected.append(FailureCondition("id", "in", tuple(ids)))
    return preview(files, selected).document()


def _any_of(ids: Sequence[str], where: str | None) -> str:
    """A predicate for the job, which takes one id by itself."""
    quoted = ["'" + id_.replace("\\", "\\\\").replace("'", "\\'") + "'" for id_ in ids]
    one_of = f"id IN ({', '.join(quoted)})"
    return one_of if where is None else f"({where}) AND {one_of}"


def _replay_directly(data_dir: Path, asked: Asked, ids: Sequence[str]) -> None:
    running = Installation(data_dir).running()
    dry_run, broker, trigger = asked["dry-run"], asked["broker"], asked["trigger"]
    egresses = [
        egress
        for egress in running.egresses
        if broker in (None, f"{egress.namespace}/{egress.broker}")
        and trigger in (None, egress.trigger)
    ]
    fields = {name: asked[name] for name in FIELD_OPTIONS if asked[name] is not None}

    async def replayed(admin: KafkaAdmin) -> tuple[Sequence[replaying.ReplayChoice], str]:
        letters = await replaying.choose(admin, egresses, ids, fields)
        sendable = [letter for letter in letters if not letter.obstacle]
        if dry_run or not sendable:
            return letters, ""
        writer = KafkaWriter(kafka_of(running))
        try:
            return letters, await replaying.send(admin, writer, sendable)
        finally:
            await writer.close(WRITER_CLOSE_TIMEOUT)

    letters, replay_id = with_kafka(running, replayed)
    for letter in letters:
        typer.echo(f"{letter.about}{f': left out: {letter.obstacle}' if letter.obstacle else ''}")
    count = sum(not letter.obstacle for letter in letters)
    if not letters:
        typer.echo("no dead letter of such an event is in the topics")
        raise typer.Exit(EXIT_FAILED)
    by = f" by the replay {replay_id}" if replay_id else ""
    events = "1 event" if count == 1 else f"{count} events"
    typer.echo(f"{events} would be sent" if dry_run else f"{events} sent again{by}")


@taking(*SELECTION, "unresolved", "dry-run")
@on_cluster(WaitingTarget, archive_commands.purge)
def purge(asked: Asked, tables: Tables = None, data_dir: DataDir = DEFAULT_DATA) -> None:
    """Delete resolved failures and their events for good."""
    done = run_job("purge", _place(data_dir, tables), asked)
    for what, count in done.items():
        typer.echo(f"{count} failures {what.replace('_', ' ')}")


def _place(data_dir: Path, tables: str | None) -> dict[str, Any]:
    return {"tables": tables or str(Installation(data_dir).data / TABLES_FOLDER)}


def _kafka(data_dir: Path) -> dict[str, Any]:
    return {"bootstrap-servers": Installation(data_dir).running().bootstrap_servers}
