"""`knafka dead-letters ...`: list, show, compact, report, replay and purge dead letters.

`list`, `show` and a dry run of `replay` read the topics and the tables' files; `compact`, `report`,
`replay` and `purge` run a Spark job (see `dead_letter_jobs`). A replay of single events needs none.
More than 400 lines, since each option of these commands is declared here with its help.
"""

from __future__ import annotations

import itertools
import shlex
import webbrowser
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from knafka.clients.kafka.admin.kafka_admin import KafkaAdmin
from knafka.clients.kafka.producers.kafka_writer import KafkaWriter
from knafka.core import names
from knafka.core.contract import Egress
from knafka_cli.dead_letters import archive_commands, dead_letter_tables
from knafka_cli.dead_letters.archive_commands import (
    WHOSE_DEAD_LETTERS,
    TopicsTarget,
    WaitingTarget,
    on_cluster,
)
from knafka_cli.dead_letters.dead_letter_tables import (
    NO_TABLES,
    TABLES_FOLDER,
    Tables,
    print_error,
    tables_option,
)
from knafka_cli.shared import dead_letter_jobs
from knafka_cli.shared.job_options import JobArguments, run_job, takes_job_options
from knafka_cli.shared.options import (
    EXIT_FAILED,
    DataDir,
    add,
    arguments_of,
    egress_of,
    ingress_of,
    kafka_configuration,
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
from knafka_jobs.event_edits import EventEdits
from knafka_jobs.failure_selection import FailureCondition, TriggerName, conditions
from knafka_jobs.schema import TRIGGER

if TYPE_CHECKING:
    from knafka_jobs.io.table_files import TableFiles

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
FIELD_OPTIONS: Final = ("destination", "reason", "code", "type", "source")
"""Options that select by a field of a dead letter in its topic."""
JOB_OPTIONS: Final = ("summary", "since", "until", "where", "replay-id", "rate")
"""Options that only the Spark job can apply."""
EDIT_OPTIONS: Final = ("set-attribute", "remove-attribute", "set-data")
"""Options that edit events: what `EventEdits.parse` takes."""


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
    groups: Annotated[
        bool,
        typer.Option(
            "--groups",
            help="List compacted dead letters by group, as a report does: the newest groups first, "
            "acknowledged ones last.",
        ),
    ] = False,
    tables: Tables = None,
    data_dir: DataDir = DEFAULT_DATA,
) -> None:
    """Count the dead letters of each Trigger, with their times and reasons.

    Dead letters that were sent again, and have not failed since, are counted apart. Compacted dead
    letters are counted in the tables, once per event; the others in their topics. With --tables
    only the tables are read. Records that hold no event belong to no Trigger: they are listed
    under broker/NAMESPACE/NAME.
    """
    running, files = _open_sources(tables, data_dir)
    if groups:
        _list_groups(files, _failure_conditions(running, trigger))
        return
    by_trigger: dict[TriggerName, dead_letters.DeadLetterOverview] = {}
    if files is not None:
        by_trigger = dead_letter_tables.overviews(files, _failure_conditions(running, trigger))
    if running is not None:
        egresses = list(running.egresses) if trigger is None else [egress_of(running, trigger)]
        if trigger is None:
            egresses += map(dead_letters.broker_dead_letter_egress, running.ingresses)
        tabled = _tabled_offsets(files)

        async def count_letters(admin: KafkaAdmin) -> list[dead_letters.DeadLetterOverview]:
            """Count the dead letters of each Egress."""
            return [await dead_letters.read_overview(admin, egress, tabled) for egress in egresses]

        for egress, overview in zip(egresses, with_kafka(running, count_letters), strict=True):
            name = dead_letters.dead_letter_key(egress)
            if name in by_trigger:
                by_trigger[name] = overview + by_trigger[name]
            elif egress.trigger or overview.count or overview.replayed:
                by_trigger[name] = overview
    columns: Sequence[str] = dead_letters.COLUMNS
    rows: Sequence[Sequence[str]] = [overview.row for overview in by_trigger.values()]
    if any(overview.acknowledged for overview in by_trigger.values()):
        columns = (*columns, dead_letters.ACKNOWLEDGED_COLUMN)
        rows = [(*each.row, str(each.acknowledged)) for each in by_trigger.values()]
    print_table(columns, rows, "no Trigger runs" if running else "no dead letters")


def _list_groups(files: TableFiles | None, conditions: Sequence[FailureCondition]) -> None:
    """Print the groups of compacted dead letters."""
    rows = [] if files is None else dead_letter_tables.group_rows(files, conditions)
    print_table(dead_letter_tables.GROUP_COLUMNS, rows, "no unresolved dead letters are compacted")


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
    running, files = _open_sources(tables, data_dir)
    letters: list[dead_letters.StoredDeadLetter] = []
    if files is not None:
        letters += dead_letter_tables.latest_letters(
            files, _failure_conditions(running, trigger, broker), limit
        )
    if running is not None:
        egress, tabled = _dead_letter_egress(running, trigger, broker), _tabled_offsets(files)
        letters += with_kafka(
            running, lambda admin: dead_letters.read_dead_letters(admin, egress, limit, tabled)
        )
    for letter in letters[-limit:]:
        typer.echo(letter.json() if as_json else letter.text())
    if not letters and not as_json:
        whose = triggers.parse_name(trigger or broker or "", "Trigger")
        typer.echo(f"{whose.namespace}/{whose.name} has no dead letters")


def _open_sources(
    tables: str | None, data_dir: Path
) -> tuple[RunningState | None, TableFiles | None]:
    """The running installation and the tables' files; None for the one that doesn't exist.

    With `tables` only the tables are read. Raises `NotRunning` if neither exists.
    """
    files = dead_letter_tables.open_tables(tables_option(data_dir, tables)["tables"], print_error)
    if tables is not None:
        if files is None:
            raise refuse(NO_TABLES + tables)
        return None, files
    try:
        return Installation(data_dir).read_state(), files
    except NotRunning:
        if files is None:
            raise
        return None, files


def _dead_letter_egress(running: RunningState, trigger: str | None, broker: str | None) -> Egress:
    """The Egress of a Trigger, or the one that stands for the dead letters of a Broker itself."""
    if trigger is not None:
        return egress_of(running, trigger)
    return dead_letters.broker_dead_letter_egress(ingress_of(running, broker))


def _failure_conditions(
    running: RunningState | None, trigger: str | None, broker: str | None = None
) -> Sequence[FailureCondition]:
    """Conditions that select the failures of a Trigger, or of a Broker itself; none select all."""
    if trigger is None and broker is None:
        return ()
    if running is not None:
        parts = dead_letters.dead_letter_key(_dead_letter_egress(running, trigger, broker))
        fields = dict(zip(TRIGGER, parts, strict=True))
    elif trigger is not None:
        identity = triggers.parse_name(trigger, "Trigger")
        fields = {"namespace": identity.namespace, "trigger": identity.name}
    else:
        assert broker is not None
        identity = triggers.parse_name(broker.removeprefix(CHANNEL_PREFIX), "Broker")
        bus = (
            names.of_channel(identity.name) if broker.startswith(CHANNEL_PREFIX) else identity.name
        )
        fields = {"namespace": identity.namespace, "broker": bus, "trigger": ""}
    return [FailureCondition(name, "=", value) for name, value in fields.items()]


def _tabled_offsets(files: TableFiles | None) -> dead_letters.TabledOffsets:
    """Up to which offset the tables hold each dead-letter topic."""
    if files is None:
        return {}
    from knafka_jobs.lookup.lookup_run import tabled_until

    return tabled_until(files)


@takes_job_options("broker", "keep-hours", "forget-resolved-days", "forget-unresolved-days")
@on_cluster(WaitingTarget, archive_commands.compact)
def compact(
    job_options: JobArguments, tables: Tables = None, data_dir: DataDir = DEFAULT_DATA
) -> None:
    """Take dead letters from their topics into compacted tables."""
    result = run_job(
        "compact", tables_option(data_dir, tables), _kafka_option(data_dir), job_options
    )
    typer.echo(
        f"{result['records']} new dead letters in {result['topics']} topics; "
        f"{result['deleted']} deleted"
    )
    if result["missed"]:
        typer.echo(f"{result['missed']} were deleted by somebody else before they were read")


@takes_job_options("broker", "days", "trace-url", "engine")
@on_cluster(WaitingTarget, archive_commands.report)
def report(
    job_options: JobArguments,
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

    Compacts first if the installation runs; otherwise it reports what the tables have, without
    Spark where they fit one machine.
    """
    tables_folder = Installation(data_dir).data / TABLES_FOLDER
    page, document = (
        html or tables_folder / "report.html",
        json_file or tables_folder / "report.json",
    )
    try:
        kafka = {**_kafka_option(data_dir), "compact": True}
    except NotRunning:
        kafka = {}
    files = {"html": page, "json": document, "replay-command": _replay_command(tables, data_dir)}
    options = (tables_option(data_dir, tables), kafka, job_options, files)
    result = None if kafka else dead_letter_tables.report(options, print_error)
    if result is None:
        result = run_job("report", *options, {} if kafka else {"engine": "spark"})
    changes = ", ".join(
        f"{count} {kind.replace('_', ' ')}" for kind, count in result["changes"].items() if count
    )
    groups = "1 group" if result["groups"] == 1 else f"{result['groups']} groups"
    typer.echo(
        f"{result['unresolved']} of {result['events']} events unresolved in {groups}"
        f" ({changes or 'nothing failed'}): {page}"
    )
    if open_page:
        webbrowser.open(page.absolute().as_uri())


@takes_job_options(*(name for name in SELECTION if name != "id"), "dry-run", "replay-id", "rate")
@on_cluster(WaitingTarget, archive_commands.replay)
def replay(
    job_options: JobArguments,
    ids: Annotated[
        list[str] | None,
        typer.Option("--id", help="Only the event with this id. Can be repeated. Needs no Spark."),
    ] = None,
    set_attribute: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Set an attribute. Can be repeated."),
    ] = None,
    remove_attribute: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Remove an attribute. Can be repeated."),
    ] = None,
    set_data: Annotated[
        list[str] | None,
        typer.Option(
            metavar="JSON-POINTER=VALUE",
            help="Set a value in JSON data: JSON, else text. Can be repeated.",
        ),
    ] = None,
    tables: Tables = None,
    data_dir: DataDir = DEFAULT_DATA,
) -> None:
    """Send failed events again, each only to the Trigger that failed it.

    Without options: all compacted events that are unresolved. Single events (--id) are sent
    straight from their topics, without Spark, where there are no tables or the tables lack them;
    later reports don't know of that. Edits apply to every event that is sent; the dead letters stay
    as they are.
    """
    edits = _edits(set_attribute, remove_attribute, set_data)
    dry_run = job_options["dry-run"]
    needs_tables = tables is not None or any(job_options[name] is not None for name in JOB_OPTIONS)
    direct = bool(ids) and not needs_tables and not any(edits.values())
    place = tables_option(data_dir, tables)
    if tables is not None and "://" not in tables and not Path(tables).exists():
        raise refuse(NO_TABLES + tables)
    if (
        ids
        and direct
        and not (Path(place["tables"]).exists() and dead_letter_jobs.is_pyspark_installed())
    ):
        _replay_directly(data_dir, job_options, ids)
        return
    options = dict(job_options)
    if ids and len(ids) > 1:
        options["where"] = _id_predicate(ids, job_options["where"])
    elif ids:
        options["id"] = ids[0]
    result = None
    if dry_run:
        result = _preview_from_tables(place["tables"], job_options, ids or (), edits)
    if result is None:
        result = run_job("replay", place, _kafka_option(data_dir), options, edits)
    if ids and direct and not result["would_send" if dry_run else "sent"]:
        _replay_directly(data_dir, job_options, ids)
        return
    if not dry_run:
        events = "1 event" if result["sent"] == 1 else f"{result['sent']} events"
        typer.echo(f"{events} sent again by the replay {result['replay']}")
        if (cancelled_by := result.get("cancelled_by")) is not None:
            typer.echo(f"cancelled by {cancelled_by}: the rest is not sent")
        if left_out := result.get("left_out"):
            typer.echo(f"{left_out} left out: {'; '.join(result['problems'])}")
        return
    edited = dead_letters.edit_lines(result) if "edits" in result else ()
    for line in itertools.chain(edited, dead_letters.preview_lines(result)):
        typer.echo(line)


def _edits(*given: list[str] | None) -> dict[str, Sequence[str]]:
    """The options that edit events, by name; exits with code 2 if one of them can't be used."""
    options: dict[str, Sequence[str]] = {
        name: texts or () for name, texts in zip(EDIT_OPTIONS, given, strict=True)
    }
    try:
        EventEdits.parse(*options.values())
    except ValueError as error:
        raise refuse(str(error)) from None
    return options


def _preview_from_tables(
    place: str, job_options: JobArguments, ids: Sequence[str], edits: Mapping[str, Sequence[str]]
) -> dict[str, Any] | None:
    """The result of a dry run by the tables' files alone; None if only the Spark job can evaluate
    it."""
    if job_options["where"] is not None:
        return None
    files = dead_letter_tables.open_tables(place, print_error)
    if files is None:
        return None
    from knafka_jobs.lookup.lookup_run import preview

    selection = {name: job_options[name] for name in SELECTION if name in job_options}
    arguments = parser().parse_args(
        ["purge", f"--tables={place}", *arguments_of(selection)]  # which takes what selects
    )
    selected = conditions(FailureSelection.from_arguments(arguments))
    if ids:
        selected.append(FailureCondition("id", "in", tuple(ids)))
    document = preview(files, selected).document()
    if any(edits.values()):
        from knafka_jobs.lookup.edit_preview import preview_edits

        document |= preview_edits(files, selected, EventEdits.parse(*edits.values())).document()
    return document


def _id_predicate(ids: Sequence[str], where: str | None) -> str:
    """A predicate for events with any of these ids that also match `where`: the job itself takes
    one id only."""
    quoted = ["'" + id_.replace("\\", "\\\\").replace("'", "\\'") + "'" for id_ in ids]
    one_of = f"id IN ({', '.join(quoted)})"
    return one_of if where is None else f"({where}) AND {one_of}"


def _replay_directly(data_dir: Path, job_options: JobArguments, ids: Sequence[str]) -> None:
    """Send events again straight from their dead-letter topics, without Spark."""
    running = Installation(data_dir).read_state()
    dry_run, broker, trigger = job_options["dry-run"], job_options["broker"], job_options["trigger"]
    egresses = [
        egress
        for egress in running.egresses
        if broker in (None, f"{egress.namespace}/{egress.broker}")
        and trigger in (None, egress.trigger)
    ]
    fields = {name: job_options[name] for name in FIELD_OPTIONS if job_options[name] is not None}

    async def choose_and_send(admin: KafkaAdmin) -> tuple[Sequence[replaying.ReplayChoice], str]:
        """Choose the dead letters, and send them unless it is a dry run."""
        letters = await replaying.choose_dead_letters(admin, egresses, ids, fields)
        sendable = [letter for letter in letters if not letter.obstacle]
        if dry_run or not sendable:
            return letters, ""
        writer = KafkaWriter(kafka_configuration(running))
        try:
            return letters, await replaying.send_again(admin, writer, sendable)
        finally:
            await writer.close(WRITER_CLOSE_TIMEOUT)

    letters, replay_id = with_kafka(running, choose_and_send)
    for letter in letters:
        typer.echo(
            f"{letter.description}{f': left out: {letter.obstacle}' if letter.obstacle else ''}"
        )
    count = sum(not letter.obstacle for letter in letters)
    if not letters:
        typer.echo(
            "no dead letter in the topics matches: knafka dead-letters list shows which exist"
        )
        raise typer.Exit(EXIT_FAILED)
    by = f" by the replay {replay_id}" if replay_id else ""
    events = "1 event" if count == 1 else f"{count} events"
    typer.echo(f"{events} would be sent" if dry_run else f"{events} sent again{by}")


@takes_job_options(*SELECTION, "unresolved", "dry-run")
@on_cluster(WaitingTarget, archive_commands.purge)
def purge(
    job_options: JobArguments, tables: Tables = None, data_dir: DataDir = DEFAULT_DATA
) -> None:
    """Delete resolved failures and their events for good."""
    result = run_job("purge", tables_option(data_dir, tables), job_options)
    for counted, count in result.items():
        typer.echo(f"{count} failures {counted.replace('_', ' ')}")


def _replay_command(tables: str | None, data_dir: Path) -> str:
    """How a report's commands begin: they run as they are, in any folder of this machine."""
    words = ["knafka", "dead-letters", "replay", "--data-dir", str(data_dir.absolute())]
    if tables is not None:
        words += ["--tables", tables if "://" in tables else str(Path(tables).absolute())]
    return shlex.join(words)


def _kafka_option(data_dir: Path) -> dict[str, Any]:
    """The option that tells a job where Kafka is. Raises `NotRunning`."""
    return {"bootstrap-servers": Installation(data_dir).read_state().bootstrap_servers}
