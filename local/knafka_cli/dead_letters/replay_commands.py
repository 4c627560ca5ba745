"""`knafka dead-letters replay, replays, cancel`: sends failed events again, lists and ends replays.

A replay runs a Spark job; single events, `cancel` and most dry runs need none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from knafka.clients.kafka.admin.kafka_admin import KafkaAdmin
from knafka.clients.kafka.producers.kafka_writer import KafkaWriter
from knafka.core.dead_letter import timestamp
from knafka_cli.dead_letters import archive_commands, dead_letter_tables
from knafka_cli.dead_letters.archive_tables import TablesSource, on_tables
from knafka_cli.dead_letters.cluster_targets import WaitingTarget, on_cluster
from knafka_cli.dead_letters.dead_letter_tables import (
    NO_TABLES,
    Tables,
    kafka_option,
    tables_option,
)
from knafka_cli.dead_letters.group_commands import By, user_name
from knafka_cli.shared import dead_letter_jobs
from knafka_cli.shared.counts import count_text
from knafka_cli.shared.job_options import JobArguments, run_job, takes_job_options
from knafka_cli.shared.options import (
    EXIT_FAILED,
    DataDir,
    add_command,
    arguments_of,
    ask_running_kafka,
    kafka_configuration,
    print_error,
    print_table,
    refuse,
)
from knafka_client.state.installation import DEFAULT_DATA, Installation
from knafka_client.topics import dead_letters, replaying
from knafka_client.topics.replaying import REPLAY_WRITER_CLOSE_TIMEOUT
from knafka_jobs.command_options import SELECTION, FailureSelection, parser
from knafka_jobs.event_edits import EventEdits
from knafka_jobs.failure_selection import FailureCondition, conditions_of

FIELD_OPTIONS: Final = ("destination", "reason", "code", "type", "source")
"""Options that select by a field of a dead letter in its topic."""
JOB_OPTIONS: Final = ("summary", "since", "until", "where", "replay-id", "rate")
"""Options that only the Spark job applies: it reads the tables, not the topics."""
EDIT_OPTIONS: Final = ("set-attribute", "remove-attribute", "set-data")
"""Names of the options that edit events, in the order of the parameters of `EventEdits.parse`."""

REPLAY_COLUMNS: Final = (
    "REPLAY",
    "BEGUN",
    "BY",
    "STATE",
    "SENT",
    "RATE",
    "RESOLVED",
    "FAILED AGAIN",
    "SELECTION",
)
"""The columns of the table that `list_replays` prints."""


def add_to(app: typer.Typer) -> None:
    """Add the commands `replays` and `cancel` to the `app` of `knafka dead-letters`;
    `dead_letter_commands` adds `replay`."""
    add_command(app, "replays", list_replays, "knafka dead-letters replays --limit 5")
    add_command(app, "cancel", cancel, "knafka dead-letters cancel 20260131-120000-3fa4c1")


@on_tables
def list_replays(
    tables: TablesSource,
    limit: Annotated[int, typer.Option(min=1, help="List the newest N.")] = 20,
) -> None:
    """List replays: when each began, its state, how many events it has sent, of how many, how fast.

    A replay notes its progress every fifteen seconds; one of some hours, every few minutes. Needs
    no Spark.
    """
    files = tables.open()
    from knafka_jobs.report import replay_list

    rows = [
        (
            run.id,
            timestamp(run.started.timestamp()),
            run.by,
            "" if run.state is None else run.state.value,
            str(run.sent) if run.total is None else f"{run.sent}/{run.total}",
            "" if run.rate is None else f"{run.rate:g}/s",
            str(run.resolved),
            str(run.failed_again),
            run.selection,
        )
        for run in replay_list.list_replays(files, limit, datetime.now(UTC))
    ]
    print_table(REPLAY_COLUMNS, rows, "there was no replay")


@on_tables
def cancel(
    tables: TablesSource,
    replay_id: Annotated[
        str,
        typer.Argument(
            metavar="REPLAY-ID",
            help="Id of the replay, as it says when it begins; in a cluster also the name of its "
            "DeadLetterReplay.",
        ),
    ],
    by: By = None,
) -> None:
    """End a replay within some seconds; what it has not sent yet stays unresolved.

    Each event is sent as a whole or not at all, and another replay may send the rest. A replay that
    was cut short is not continued any more.
    """
    files = tables.open()
    stored_id = tables.replay_id(replay_id)
    from knafka_jobs.lookup.cancel import cancel_replay

    cancel_replay(files, stored_id, by or user_name(), datetime.now(UTC))
    typer.echo(f"the replay {stored_id} ends; its command says how many events it has sent")


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
    edits = _edit_options(set_attribute, remove_attribute, set_data)
    dry_run = job_options["dry-run"]
    needs_tables = tables is not None or any(job_options[name] is not None for name in JOB_OPTIONS)
    # Ids of the events that may also be sent straight from their topics; empty: none.
    direct_ids: list[str] = []
    if ids and not needs_tables and not any(edits.values()):
        direct_ids = ids
    place = tables_option(data_dir, tables)
    if tables is not None and "://" not in tables and not Path(tables).exists():
        raise refuse(NO_TABLES + tables)
    can_run_job = Path(place["tables"]).exists() and dead_letter_jobs.is_pyspark_installed()
    if direct_ids and not can_run_job:
        _replay_directly(data_dir, job_options, direct_ids)
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
        result = run_job("replay", place, kafka_option(data_dir), options, edits)
    if direct_ids and not result["would_send" if dry_run else "sent"]:
        # The tables have none of the events; the topics may still have them.
        _replay_directly(data_dir, job_options, direct_ids)
        return
    for line in _preview_lines(result) if dry_run else _sent_lines(result):
        typer.echo(line)


def _sent_lines(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines that say which events a replay has sent and left out, from the job's
    `result`."""
    yield f"{count_text(result['sent'], 'event')} sent again by the replay {result['replay']}"
    if (cancelled_by := result.get("cancelled_by")) is not None:
        yield f"cancelled by {cancelled_by}: the rest is not sent"
    if left_out := result.get("left_out"):
        yield f"{left_out} left out: {'; '.join(result['problems'])}"


def _preview_lines(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines that say which events a replay would send, and how edits would change them,
    from the `result` of a dry run."""
    if "edits" in result:
        yield from dead_letters.edit_lines(result)
    yield from dead_letters.preview_lines(result)


def _edit_options(*edit_texts: list[str] | None) -> dict[str, Sequence[str]]:
    """Return the options that edit events, by name; an option that wasn't given (None) is empty.

    `edit_texts` are the values of `EDIT_OPTIONS`, in this order. Exits with code 2 if one of them
    is invalid.
    """
    options: dict[str, Sequence[str]] = {
        name: texts or () for name, texts in zip(EDIT_OPTIONS, edit_texts, strict=True)
    }
    try:
        EventEdits.parse(*options.values())
    except ValueError as error:
        raise refuse(str(error)) from None
    return options


def _preview_from_tables(
    place: str, job_options: JobArguments, ids: Sequence[str], edits: Mapping[str, Sequence[str]]
) -> dict[str, Any] | None:
    """Return the result of a dry run, evaluated here from the tables' files at `place`; None if
    only the Spark job can evaluate it. `ids` are the ids of the selected events; empty: events with
    any id."""
    if job_options["where"] is not None:
        return None
    files = dead_letter_tables.open_tables(place, print_error)
    if files is None:
        return None
    from knafka_jobs.lookup.lookup_run import preview

    selection = {name: job_options[name] for name in SELECTION if name in job_options}
    # Parsed as options of `purge`, which takes all options that select failures.
    arguments = parser().parse_args(["purge", f"--tables={place}", *arguments_of(selection)])
    failure_conditions = conditions_of(FailureSelection.from_arguments(arguments))
    if ids:
        failure_conditions.append(FailureCondition("id", "in", tuple(ids)))
    document = preview(files, failure_conditions).document()
    if any(edits.values()):
        from knafka_jobs.lookup.edit_preview import preview_edits

        event_edits = EventEdits.parse(*edits.values())
        document |= preview_edits(files, failure_conditions, event_edits).document()
    return document


def _id_predicate(ids: Sequence[str], where: str | None) -> str:
    """Return a predicate in Spark SQL for events that have one of these ids and match the predicate
    `where`; `where` None: for all events with these ids. It is needed for several ids, since the
    job's option `id` takes only one."""
    quoted = ["'" + id_.replace("\\", "\\\\").replace("'", "\\'") + "'" for id_ in ids]
    one_of = f"id IN ({', '.join(quoted)})"
    return one_of if where is None else f"({where}) AND {one_of}"


def _replay_directly(data_dir: Path, job_options: JobArguments, ids: Sequence[str]) -> None:
    """Send the events with these ids again straight from their dead-letter topics, without Spark,
    and print each; with the option `dry-run`, only print them.

    `job_options` may select among the events. Exits with code 1 if no dead letter matches. Raises
    `NotRunning`, `LogError` and `ReplayNotSent`.
    """
    running = Installation(data_dir).read_state()
    dry_run, broker, trigger = job_options["dry-run"], job_options["broker"], job_options["trigger"]
    egresses = replaying.select_egresses(running.egresses, broker, trigger)
    fields = {name: job_options[name] for name in FIELD_OPTIONS if job_options[name] is not None}

    async def choose_and_send(admin: KafkaAdmin) -> tuple[Sequence[replaying.ReplayChoice], str]:
        """Choose the dead letters, and send their events again unless it is a dry run; return the
        choices, some of which may have an obstacle and aren't sent, and the replay's id, empty if
        nothing was sent."""
        choices = await replaying.choose_dead_letters(admin, egresses, ids, fields)
        sendable = [choice for choice in choices if not choice.obstacle]
        if dry_run or not sendable:
            return choices, ""
        writer = KafkaWriter(kafka_configuration(running))
        try:
            return choices, await replaying.send_again(admin, writer, sendable)
        finally:
            await writer.close(REPLAY_WRITER_CLOSE_TIMEOUT)

    choices, replay_id = ask_running_kafka(running, choose_and_send)
    for choice in choices:
        obstacle_text = f": left out: {choice.obstacle}" if choice.obstacle else ""
        typer.echo(f"{choice.description}{obstacle_text}")
    sendable_count = sum(not choice.obstacle for choice in choices)
    if not choices:
        typer.echo(
            "no dead letter in the topics matches: knafka dead-letters list shows which exist"
        )
        raise typer.Exit(EXIT_FAILED)
    by_replay = f" by the replay {replay_id}" if replay_id else ""
    events = count_text(sendable_count, "event")
    typer.echo(f"{events} would be sent" if dry_run else f"{events} sent again{by_replay}")
