"""`knafka dead-letters ... --context`: the same commands for a cluster with DeadLetterArchives.

Each function is run in place of the command of its name (`cluster_targets.on_cluster`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import typer

from knafka.clients.kafka.admin.kafka_admin import KafkaAdmin
from knafka.core.contract import Egress
from knafka_cli.dead_letters.cluster_targets import (
    ClusterTarget,
    ListTarget,
    TopicsTarget,
    WaitingTarget,
)
from knafka_cli.shared.counts import count_text
from knafka_cli.shared.job_options import JobArguments
from knafka_cli.shared.options import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    ask_kafka,
    exit_on_bad_input,
    print_table,
    refuse,
)
from knafka_client.declared.declared_source import DeclaredView
from knafka_client.topics import dead_letters
from knafka_jobs.command_options import SELECTION

if TYPE_CHECKING:
    from knafka_cli.dead_letters.archive_operations import ArchiveOperations

INTEGER_OPTIONS: Final = ("code",)
"""Options whose value is a number in a DeadLetterReplay's `spec.select`."""
OPTIONS_BY_NAME: Final = {"json_file": "json", "open_page": "open"}
"""Names of options that differ from their parameters' names."""
WHOSE_DEAD_LETTERS: Final = (
    "whose dead letters? Name a Trigger, or a Broker with --broker NAMESPACE/NAME"
)
ARCHIVE_SPEC_HINT: Final = "where tables are and how long they keep, its DeadLetterArchive says"


def list_letters(target: ListTarget, trigger: str | None = None, **local_options: Any) -> None:
    """Count the dead letters of a cluster's Triggers, from their topics; list groups from an
    archive's tables."""
    groups = local_options.pop("groups", False)
    _refuse_local_options(local_options)
    if groups:
        from knafka_cli.dead_letters.archive_tables import ArchiveTables, list_groups

        list_groups(ArchiveTables(target, target.archive, target.endpoint), trigger)
        return
    view = target.view(trigger)
    with exit_on_bad_input():
        egresses = list(view.egresses) if trigger is None else [view.find_egress(trigger)]
    if trigger is None:
        egresses += map(dead_letters.broker_dead_letter_egress, view.ingresses)
    overviews = [
        (egress, _ask_about(view, egress, dead_letters.read_overview)) for egress in egresses
    ]
    rows = [
        overview.row
        for egress, overview in overviews
        if egress.trigger or overview.count or overview.replayed
    ]
    print_table(dead_letters.COLUMNS, rows, "there is no Trigger")


def show_letters(
    target: TopicsTarget,
    trigger: str | None = None,
    broker: str | None = None,
    limit: int = 20,
    as_json: bool = False,
    **local_options: Any,
) -> None:
    """Show the newest dead letters of a Trigger or Broker in a cluster, from its topic."""
    _refuse_local_options(local_options)
    if (trigger is None) is (broker is None):
        raise refuse(WHOSE_DEAD_LETTERS)
    view = target.view(trigger or broker)
    with exit_on_bad_input():
        if trigger is not None:
            egress = view.find_egress(trigger)
        else:
            egress = dead_letters.broker_dead_letter_egress(view.find_ingress(broker))

    letters = _ask_about(
        view, egress, lambda admin, egress: dead_letters.read_dead_letters(admin, egress, limit)
    )
    for letter in letters:
        typer.echo(letter.json() if as_json else letter.text())
    if not letters and not as_json:
        owner = dead_letters.owner_name(*dead_letters.dead_letter_key(egress))
        typer.echo(f"the topic of {owner} has no dead letters")


def compact(target: WaitingTarget, job_options: JobArguments, **local_options: Any) -> None:
    """Make a DeadLetterArchive compact now; print the number of new dead letters, except with
    --no-wait."""
    status = _run_archive(target, job_options, local_options)
    if status is not None:
        typer.echo(f"{status['lastRun'].get('records', 0)} new dead letters")


def report(target: WaitingTarget, job_options: JobArguments, **local_options: Any) -> None:
    """Let a DeadLetterArchive compact and make a report now; with --wait, print its totals."""
    status = _run_archive(target, job_options, local_options, needs_report=True)
    if status is None:
        return
    last_report = status.get("report") or {}
    if not last_report.get("report"):
        typer.echo("there never was a dead letter, so there is nothing to report")
        return
    count = last_report.get("groups", 0)
    groups = count_text(count, "group")
    typer.echo(
        f"{last_report.get('unresolved', 0)} of {last_report.get('events', 0)} events unresolved "
        f"in {groups}"
    )


def replay(
    target: WaitingTarget,
    job_options: JobArguments,
    ids: list[str] | None = None,
    **local_options: Any,
) -> None:
    """Create a DeadLetterReplay for the selected events."""
    _refuse_local_options({**local_options, **_options_named(job_options, "where", "replay-id")})
    spec: dict[str, Any] = {"select": _selection_document(job_options, ids)}
    if job_options["rate"] is not None:
        spec["rate"] = float(job_options["rate"])
    status = _run_operation(target, "DeadLetterReplay", job_options, spec)
    if status is None:
        return
    if not job_options["dry-run"]:
        typer.echo(f"{status.get('sent', 0)} events sent again by the replay {status['replayID']}")
        return
    preview = {
        "would_send": status.get("selected", 0),
        "left_out": status.get("leftOut", 0),
        "triggers": status.get("triggers") or {},
        "events": status.get("events") or [],
    }
    for line in dead_letters.preview_lines(preview):
        typer.echo(line)


def purge(target: WaitingTarget, job_options: JobArguments, **local_options: Any) -> None:
    """Create a DeadLetterPurge for the selected failures."""
    _refuse_local_options({**local_options, **_options_named(job_options, "where")})
    ids = None if job_options["id"] is None else [job_options["id"]]
    spec = {
        "select": _selection_document(job_options, ids),
        "unresolved": job_options["unresolved"],
    }
    status = _run_operation(target, "DeadLetterPurge", job_options, spec)
    if status is not None and job_options["dry-run"]:
        typer.echo(f"{status.get('selected', 0)} failures would be purged")
    elif status is not None:
        typer.echo(f"{status.get('purged', 0)} failures purged")


def _ask_about(view: DeclaredView, egress: Egress, ask: Callable[[KafkaAdmin, Egress], Any]) -> Any:
    """Return the result of `ask` for one Egress, from its Kafka."""
    with view.explain_unreached_kafka(egress):
        return ask_kafka(view.connection(egress), lambda admin: ask(admin, egress))


def _refuse_local_options(options: Mapping[str, Any]) -> None:
    """Refuse options that only apply to this machine, or that a DeadLetterArchive's spec sets in a
    cluster."""
    for name, value in options.items():
        if name != "data_dir" and value not in (None, False):
            option = OPTIONS_BY_NAME.get(name, name.replace("_", "-"))
            raise refuse(
                f"--{option} can't be used with a cluster: leave it out ({ARCHIVE_SPEC_HINT})"
            )


def _options_named(job_options: JobArguments, *names: str) -> dict[str, Any]:
    """Return some of the options, by name."""
    return {name: job_options[name] for name in names}


@contextmanager
def _allow_interrupt() -> Iterator[None]:
    """Let Ctrl-C end the command while the operation continues in the cluster."""
    try:
        yield
    except KeyboardInterrupt:
        _print_error("the operation continues in the cluster: follow its status with kubectl")
        raise typer.Exit(EXIT_INTERRUPTED) from None


def _print_error(line: str) -> None:
    """Print one line on stderr."""
    typer.echo(f"knafka: {line}", err=True)


def open_operations(target: ClusterTarget) -> ArchiveOperations:
    """Return the operations on archives in the chosen cluster and namespace."""
    # The client takes half a second to import: only commands about a cluster pay for it.
    from knafka_cli.dead_letters import archive_operations
    from knafka_client.declared import cluster_source
    from knafka_client.declared.kubernetes_api import KubernetesApi

    client, context_namespace = cluster_source.client_of(target.context, target.kubeconfig)
    return archive_operations.ArchiveOperations(
        KubernetesApi(client), target.namespace or context_namespace, _print_error
    )


def _run_operation(
    target: WaitingTarget, kind: str, job_options: JobArguments, spec: dict[str, Any]
) -> Mapping[str, Any] | None:
    """Create an operation and wait for it; returns its status, or None with --no-wait.

    Exits with code 1 if it failed.
    """
    operations = open_operations(target)
    if job_options["dry-run"]:
        spec["dryRun"] = True
    with exit_on_bad_input():
        archive = operations.find_archive(target.archive, job_options["broker"])
    name = operations.create(kind, archive, spec)
    # A dry run always waits: its result is all that it is for.
    if not target.wait and not job_options["dry-run"]:
        return None
    with _allow_interrupt():
        status: Mapping[str, Any] = operations.follow(kind, name)
    if status["phase"] != "Succeeded":
        _print_error(status.get("message") or "it failed")
        raise typer.Exit(EXIT_FAILED)
    return status


def _run_archive(
    target: WaitingTarget,
    job_options: JobArguments,
    local_options: Mapping[str, Any],
    *,
    needs_report: bool = False,
) -> Mapping[str, Any] | None:
    """Make an archive run now and wait for the run's end; returns the archive's status, or None
    with --no-wait.

    Exits with code 1 if the run failed.
    """
    _refuse_local_options(
        {
            **local_options,
            **_options_named(job_options, *(name for name in job_options if name != "broker")),
        }
    )
    operations = open_operations(target)
    with exit_on_bad_input():
        archive = operations.find_archive(target.archive, job_options["broker"])
    if needs_report and "report" not in archive["spec"]:
        raise refuse(
            f"DeadLetterArchive {archive['metadata']['name']} makes no reports: set its "
            "spec.report.schedule"
        )
    compaction = operations.ask_to_run(archive)
    if not target.wait:
        return None
    with _allow_interrupt():
        status: Mapping[str, Any] = operations.follow_run(archive, compaction)
    if (last := status.get("lastRun") or {}).get("outcome") != "Succeeded":
        _print_error(last.get("message") or "it failed")
        raise typer.Exit(EXIT_FAILED)
    return status


def _selection_document(job_options: JobArguments, ids: list[str] | None) -> dict[str, Any]:
    """Return the selection as `spec.select` of a DeadLetterReplay has it."""
    names = [name for name in SELECTION if name not in ("broker", "id", "where")]
    selection = {name: job_options[name] for name in names if job_options.get(name) is not None}
    selection |= {name: int(selection[name]) for name in INTEGER_OPTIONS if name in selection}
    return {**selection, "ids": list(ids)} if ids else selection
