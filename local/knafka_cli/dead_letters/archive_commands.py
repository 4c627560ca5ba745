"""`knafka dead-letters ... --context`: the same commands for a cluster with DeadLetterArchives.

`cluster_targets.on_cluster` runs a public function with a `target` in place of the command of the
same name. `target` holds the options that choose a cluster, `job_options` those of the Spark job,
and `local_options` the command's others, most of which only apply to this machine and are refused.

A failure is one event that failed at one Trigger, with all its dead letters there. Commands select
failures; the option `where` (a predicate in SQL) is refused, as `spec.select` of a DeadLetterReplay
or DeadLetterPurge has no such field.
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
    print_error,
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
"""Names of options by their parameters' names, where they differ."""
WHOSE_DEAD_LETTERS: Final = (
    "whose dead letters? Name a Trigger, or a Broker with --broker NAMESPACE/NAME"
)
"""Error message of `show` unless exactly one of Trigger and Broker is named."""
ARCHIVE_SPEC_HINT: Final = "where tables are and how long they keep, its DeadLetterArchive says"
"""Reason in the error message about an option that can't be used with a cluster."""


def list_letters(target: ListTarget, trigger: str | None = None, **local_options: Any) -> None:
    """Print the number of dead letters of a cluster's Trigger, from its topic; `trigger` None: of
    all Triggers in the namespace, and of its Brokers themselves.

    With the local option `groups`, print the groups of an archive instead, from its tables: a group
    is a set of dead letters that failed alike. Other `local_options` are refused.
    """
    groups = local_options.pop("groups", False)
    _refuse_local_options(local_options)
    if groups:
        from knafka_cli.dead_letters.archive_tables import ArchiveTables, list_groups

        list_groups(ArchiveTables(target, target.archive, target.endpoint), trigger)
        return
    view = target.read_objects(trigger)
    with exit_on_bad_input():
        egresses = list(view.egresses) if trigger is None else [view.find_egress(trigger)]
    if trigger is None:
        egresses += map(dead_letters.broker_dead_letter_egress, view.ingresses)
    overviews = [
        (egress, _ask_kafka_of(view, egress, dead_letters.read_overview)) for egress in egresses
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
    """Print the newest `limit` dead letters of a Trigger or of a Broker itself in a cluster, from
    its topic, oldest first. Exits with code 2 unless exactly one of the two is named."""
    _refuse_local_options(local_options)
    names_exactly_one = (trigger is None) != (broker is None)
    if not names_exactly_one:
        raise refuse(WHOSE_DEAD_LETTERS)
    view = target.read_objects(trigger or broker)
    with exit_on_bad_input():
        if trigger is not None:
            egress = view.find_egress(trigger)
        else:
            egress = dead_letters.broker_dead_letter_egress(view.find_ingress(broker))
    letters = _ask_kafka_of(
        view, egress, lambda admin, egress: dead_letters.read_dead_letters(admin, egress, limit)
    )
    for letter in letters:
        typer.echo(letter.json() if as_json else letter.text())
    if not letters and not as_json:
        owner = dead_letters.owner_name(*dead_letters.dead_letter_key(egress))
        typer.echo(f"the topic of {owner} has no dead letters")


def compact(target: WaitingTarget, job_options: JobArguments, **local_options: Any) -> None:
    """Make a DeadLetterArchive run a compaction now, which copies new dead letters into its tables,
    and print their number; with --no-wait, only start the run."""
    status = _run_archive(target, job_options, local_options)
    if status is not None:
        typer.echo(f"{status['lastRun'].get('records', 0)} new dead letters")


def report(target: WaitingTarget, job_options: JobArguments, **local_options: Any) -> None:
    """Make a DeadLetterArchive run a compaction and a report now, and print the report's totals;
    with --no-wait, only start the run."""
    status = _run_archive(target, job_options, local_options, needs_report=True)
    if status is None:
        return
    last_report = status.get("report") or {}
    if not last_report.get("report"):  # the report's id
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
    """Create a DeadLetterReplay for the selected events, and print what it has sent, or would send
    (dry run); with --no-wait, only create it."""
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
    """Create a DeadLetterPurge, which deletes the selected failures from the archive's tables, and
    print how many it has purged, or would purge (dry run); with --no-wait, only create it."""
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


def _ask_kafka_of(
    view: DeclaredView, egress: Egress, ask: Callable[[KafkaAdmin, Egress], Any]
) -> Any:
    """Call `ask` with a client of the Kafka of an Egress, and with the Egress; return its result.
    `view` has the Kafka's connection. Raises `KafkaNotReached` and `LogError`."""
    with view.explain_unreached_kafka(egress):
        return ask_kafka(view.kafka_configuration(egress), lambda admin: ask(admin, egress))


def _refuse_local_options(options: Mapping[str, Any]) -> None:
    """Exit with code 2 if one of these options, given by parameter name, is set. They can't be used
    with a cluster: they are about this machine, or a DeadLetterArchive's spec replaces them."""
    for name, value in options.items():
        # `data_dir` always has a value, so nobody can tell whether the user gave it.
        if name != "data_dir" and value not in (None, False):
            option = OPTIONS_BY_NAME.get(name, name.replace("_", "-"))
            raise refuse(
                f"--{option} can't be used with a cluster: leave it out ({ARCHIVE_SPEC_HINT})"
            )


def _options_named(job_options: JobArguments, *names: str) -> dict[str, Any]:
    """Return the values of the options `names` of the Spark job, by name."""
    return {name: job_options[name] for name in names}


@contextmanager
def _explain_interrupt() -> Iterator[None]:
    """While the context is open, let Ctrl-C end the command with code 130 and the message that the
    operation continues in the cluster."""
    try:
        yield
    except KeyboardInterrupt:
        print_error("the operation continues in the cluster: follow its status with kubectl")
        raise typer.Exit(EXIT_INTERRUPTED) from None


def open_operations(target: ClusterTarget) -> ArchiveOperations:
    """Return the operations on archives in the chosen cluster and namespace. Raises
    `ClusterError`."""
    # Imported here, since the Kubernetes client takes half a second.
    from knafka_cli.dead_letters import archive_operations
    from knafka_client.declared import cluster_source
    from knafka_client.declared.kubernetes_api import KubernetesApi

    client, context_namespace = cluster_source.client_of(target.context, target.kubeconfig)
    return archive_operations.ArchiveOperations(
        KubernetesApi(client), target.namespace or context_namespace, print_error
    )


def _run_operation(
    target: WaitingTarget, kind: str, job_options: JobArguments, spec: dict[str, Any]
) -> Mapping[str, Any] | None:
    """Create a DeadLetterReplay or DeadLetterPurge (`kind`) with this spec, and wait for its end;
    returns its status, or None with --no-wait.

    The option `dry-run` of `job_options` is added to the spec. Exits with code 1 if the operation
    failed, and with code 2 if no archive, or several, fit the options.
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
    with _explain_interrupt():
        status: Mapping[str, Any] = operations.follow(kind, name)
    if status["phase"] != "Succeeded":
        print_error(status.get("message") or "it failed")
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

    Exits with code 1 if the run failed. Exits with code 2 if one of `local_options` or
    `job_options` is set, except `broker`, since the archive's spec replaces them; or if
    `needs_report` is True and the archive makes no reports.
    """
    replaced_options = {name: value for name, value in job_options.items() if name != "broker"}
    _refuse_local_options({**local_options, **replaced_options})
    operations = open_operations(target)
    with exit_on_bad_input():
        archive = operations.find_archive(target.archive, job_options["broker"])
    if needs_report and "report" not in archive["spec"]:
        raise refuse(
            f"DeadLetterArchive {archive['metadata']['name']} makes no reports: set its "
            "spec.report.schedule"
        )
    request_id = operations.ask_to_run(archive)
    if not target.wait:
        return None
    with _explain_interrupt():
        status: Mapping[str, Any] = operations.follow_run(archive, request_id)
    last_run = status.get("lastRun") or {}
    if last_run.get("outcome") != "Succeeded":
        print_error(last_run.get("message") or "it failed")
        raise typer.Exit(EXIT_FAILED)
    return status


def _selection_document(job_options: JobArguments, ids: list[str] | None) -> dict[str, Any]:
    """Return `spec.select` of a DeadLetterReplay or DeadLetterPurge: the options of `job_options`
    that select failures, and the `ids` of events. Without ids, it selects events with any id."""
    # The archive belongs to one `broker`, `ids` replace `id`, and `select` has no `where`.
    names = [name for name in SELECTION if name not in ("broker", "id", "where")]
    selection = {name: job_options[name] for name in names if job_options.get(name) is not None}
    selection |= {name: int(selection[name]) for name in INTEGER_OPTIONS if name in selection}
    return {**selection, "ids": list(ids)} if ids else selection
