"""`knafka dead-letters list, show, compact, report, purge`.

`list` and `show` read the topics and the tables' files; `compact`, `report` and `purge` run a Spark
job (see `dead_letter_jobs`), a report only where it must.
"""

from __future__ import annotations

import shlex
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from knafka.clients.kafka.admin.kafka_admin import KafkaAdmin
from knafka.core import names
from knafka.core.contract import Egress
from knafka_cli.dead_letters import archive_commands, dead_letter_tables
from knafka_cli.dead_letters.archive_commands import WHOSE_DEAD_LETTERS
from knafka_cli.dead_letters.cluster_targets import (
    ListTarget,
    TopicsTarget,
    WaitingTarget,
    on_cluster,
)
from knafka_cli.dead_letters.dead_letter_tables import (
    NO_TABLES,
    TABLES_FOLDER,
    Tables,
    kafka_option,
    tables_option,
)
from knafka_cli.dead_letters.replay_commands import replay
from knafka_cli.shared.counts import count_text
from knafka_cli.shared.job_options import JobArguments, run_job, takes_job_options
from knafka_cli.shared.options import (
    DataDir,
    add_command,
    ask_running_kafka,
    egress_of,
    ingress_of,
    print_error,
    print_table,
    refuse,
)
from knafka_client.declared import triggers
from knafka_client.state.installation import (
    CHANNEL_PREFIX,
    DEFAULT_DATA,
    SUBSCRIPTION_PREFIX,
    Installation,
    NotRunning,
    RunningState,
)
from knafka_client.topics import dead_letters
from knafka_jobs.command_options import SELECTION
from knafka_jobs.failure_selection import FailureCondition, TriggerName
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


def add_to(app: typer.Typer) -> None:
    """Add these commands of `knafka dead-letters` to its `app`."""
    add_command(app, "list", list_letters, "knafka dead-letters list orders")
    add_command(app, "show", show_letters, "knafka dead-letters show orders --limit 3 --json")
    add_command(app, "compact", compact, "knafka dead-letters compact")
    add_command(app, "report", report, "knafka dead-letters report --open")
    add_command(app, "replay", replay, "knafka dead-letters replay --id payment-1 --dry-run")
    add_command(app, "purge", purge, "knafka dead-letters purge --until 2026-01-31 --dry-run")


@on_cluster(ListTarget, archive_commands.list_letters)
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
        by_trigger = dead_letter_tables.read_overviews(files, _failure_conditions(running, trigger))
    if running is not None:
        egresses = list(running.egresses) if trigger is None else [egress_of(running, trigger)]
        if trigger is None:
            egresses += map(dead_letters.broker_dead_letter_egress, running.ingresses)
        _add_counts_of_topics(by_trigger, running, egresses, _offsets_in_tables(files))
    columns: Sequence[str] = dead_letters.COLUMNS
    rows: Sequence[Sequence[str]] = [overview.row for overview in by_trigger.values()]
    if any(overview.acknowledged for overview in by_trigger.values()):
        columns = (*columns, dead_letters.ACKNOWLEDGED_COLUMN)
        rows = [(*overview.row, str(overview.acknowledged)) for overview in by_trigger.values()]
    print_table(columns, rows, "no Trigger runs" if running else "no dead letters")


def _add_counts_of_topics(
    by_trigger: dict[TriggerName, dead_letters.DeadLetterOverview],
    running: RunningState,
    egresses: Sequence[Egress],
    table_offsets: dead_letters.OffsetsInTables,
) -> None:
    """Count the dead letters in the topics of these Egresses, and add the counts to `by_trigger`,
    which has the counts of the tables. Records below the offsets in `table_offsets` aren't counted,
    since the tables have them. Raises `LogError`."""

    async def count_letters(admin: KafkaAdmin) -> list[dead_letters.DeadLetterOverview]:
        """Count the dead letters of each Egress."""
        return [
            await dead_letters.read_overview(admin, egress, table_offsets) for egress in egresses
        ]

    for egress, overview in zip(egresses, ask_running_kafka(running, count_letters), strict=True):
        key = dead_letters.dead_letter_key(egress)
        if key in by_trigger:
            by_trigger[key] = overview + by_trigger[key]
        # A Broker itself (without a Trigger) is only listed if it has dead letters.
        elif egress.trigger or overview.count or overview.replayed:
            by_trigger[key] = overview


def _list_groups(files: TableFiles | None, conditions: Sequence[FailureCondition]) -> None:
    """Print the groups of compacted dead letters that match all these conditions. A group is a set
    of dead letters that failed alike. `files` None: there are no tables, and so no groups."""
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
    names_exactly_one = (trigger is None) != (broker is None)
    if not names_exactly_one:
        raise refuse(WHOSE_DEAD_LETTERS)
    running, files = _open_sources(tables, data_dir)
    letters: list[dead_letters.StoredDeadLetter] = []
    if files is not None:
        letters += dead_letter_tables.read_latest_letters(
            files, _failure_conditions(running, trigger, broker), limit
        )
    if running is not None:
        egress = _dead_letter_egress(running, trigger, broker)
        in_tables = _offsets_in_tables(files)
        letters += ask_running_kafka(
            running, lambda admin: dead_letters.read_dead_letters(admin, egress, limit, in_tables)
        )
    for letter in letters[-limit:]:
        typer.echo(letter.json() if as_json else letter.text())
    if not letters and not as_json:
        owner = triggers.parse_name(trigger or broker or "", "Trigger")
        typer.echo(f"{owner.namespace}/{owner.name} has no dead letters")


def _open_sources(
    tables: str | None, data_dir: Path
) -> tuple[RunningState | None, TableFiles | None]:
    """Return the state of the `knafka up` on `data_dir` (None if nothing runs), and the tables'
    files (None if there are no tables).

    If the user names `tables` (a folder or URI), only these are used: the state is None, and the
    command exits with code 2 if there are no tables. Otherwise raises `NotRunning` if nothing runs
    and there are no tables.
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
    """Return the Egress of a running Trigger. If `trigger` is None, return the Egress that stands
    for the dead letters of the Broker itself. Exits with code 2 if the named object doesn't run."""
    if trigger is not None:
        return egress_of(running, trigger)
    return dead_letters.broker_dead_letter_egress(ingress_of(running, broker))


def _failure_conditions(
    running: RunningState | None, trigger: str | None, broker: str | None = None
) -> Sequence[FailureCondition]:
    """Return the conditions that select the failures of a Trigger, or of a Broker itself, in the
    tables; empty, which selects all failures, if neither is named.

    If `running` isn't None, exits with code 2 if the named object doesn't run.
    """
    if trigger is None and broker is None:
        return ()
    if running is not None:
        key = dead_letters.dead_letter_key(_dead_letter_egress(running, trigger, broker))
        # The parts of the key are in the order of the columns `TRIGGER`.
        fields = dict(zip(TRIGGER, key, strict=True))
    # Nothing runs, so nothing is known about the object but its name.
    elif trigger is not None:
        identity = triggers.parse_name(trigger.removeprefix(SUBSCRIPTION_PREFIX), "Trigger")
        fields = {"namespace": identity.namespace, "trigger": identity.name}
    else:
        assert broker is not None
        identity = triggers.parse_name(broker.removeprefix(CHANNEL_PREFIX), "Broker")
        is_channel = broker.startswith(CHANNEL_PREFIX)
        stored_name = names.of_channel(identity.name) if is_channel else identity.name
        fields = {"namespace": identity.namespace, "broker": stored_name, "trigger": ""}
    conditions = [FailureCondition(name, "=", value) for name, value in fields.items()]
    if running is None and trigger is not None and trigger.startswith(SUBSCRIPTION_PREFIX):
        # Those of any channel, but not of a Broker: every name of an object sorts before a `{`.
        conditions.append(FailureCondition("broker", ">=", names.of_channel("")))
        conditions.append(FailureCondition("broker", "<", names.of_channel("{")))
    return conditions


def _offsets_in_tables(files: TableFiles | None) -> dead_letters.OffsetsInTables:
    """Return, by partition of the dead-letter topics, the offset below which all records are in the
    tables; empty if there are no tables (`files` None)."""
    if files is None:
        return {}
    from knafka_jobs.lookup.lookup_run import offsets_in_tables

    return offsets_in_tables(files)


@takes_job_options("broker", "keep-hours", "forget-resolved-days", "forget-unresolved-days")
@on_cluster(WaitingTarget, archive_commands.compact)
def compact(
    job_options: JobArguments, tables: Tables = None, data_dir: DataDir = DEFAULT_DATA
) -> None:
    """Copy new dead letters into the tables, one row per event, and delete old ones from their
    topics."""
    result = run_job(
        "compact", tables_option(data_dir, tables), kafka_option(data_dir), job_options
    )
    typer.echo(
        f"{result['records']} new dead letters in {result['topics']} topics; "
        f"{result['deleted']} deleted from the topics"
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
    page = html or tables_folder / "report.html"
    report_options = {
        "html": page,
        "json": json_file or tables_folder / "report.json",
        "replay-command": _replay_command(tables, data_dir),
    }
    try:
        compaction = {**kafka_option(data_dir), "compact": True}
    except NotRunning:
        compaction = {}
    options = (tables_option(data_dir, tables), compaction, job_options, report_options)
    result = None if compaction else dead_letter_tables.report(options, print_error)
    if result is None:  # it compacts first, or its tables are too large: that needs Spark
        result = run_job("report", *options, {} if compaction else {"engine": "spark"})
    changes = ", ".join(
        f"{count} {kind.replace('_', ' ')}" for kind, count in result["changes"].items() if count
    )
    groups = count_text(result["groups"], "group")
    typer.echo(
        f"{result['unresolved']} of {result['events']} events unresolved in {groups}"
        f" ({changes or 'nothing failed'}): {page}"
    )
    if open_page:
        webbrowser.open(page.absolute().as_uri())


@takes_job_options(*SELECTION, "unresolved", "dry-run")
@on_cluster(WaitingTarget, archive_commands.purge)
def purge(
    job_options: JobArguments, tables: Tables = None, data_dir: DataDir = DEFAULT_DATA
) -> None:
    """Delete resolved failures and their events for good."""
    result = run_job("purge", tables_option(data_dir, tables), job_options)
    for outcome, count in result.items():  # such as `purged`, `would_purge`
        typer.echo(f"{count} failures {outcome.replace('_', ' ')}")


def _replay_command(tables: str | None, data_dir: Path) -> str:
    """Return the beginning of the replay commands in a report: `knafka dead-letters replay` with
    these options. Their paths are absolute, so that the command works in every folder."""
    words = ["knafka", "dead-letters", "replay", "--data-dir", str(data_dir.absolute())]
    if tables is not None:
        words += ["--tables", tables if "://" in tables else str(Path(tables).absolute())]
    return shlex.join(words)
