"""`knafka dead-letters ... --context`: the same commands of a cluster, by its DeadLetterArchives.

`on_cluster` gives a command the options by which it asks about a cluster, and what it does there.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from knafka.clients.kafka_admin import KafkaAdmin
from knafka.core.contract import Egress
from knafka_cli.shared.job_options import Asked
from knafka_cli.shared.options import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    ask_kafka,
    print_table,
    refuse,
    usage,
)
from knafka_cli.shared.source_options import (
    BootstrapServers,
    ContextName,
    Kubeconfig,
    NamespaceName,
    SystemNamespace,
    source_of,
    view_of,
)
from knafka_client.declared.declared_source import SYSTEM_NAMESPACE, DeclaredView
from knafka_client.state.installation import DEFAULT_DATA
from knafka_client.topics import dead_letters
from knafka_jobs.command_options import SELECTION

if TYPE_CHECKING:
    from knafka_cli.dead_letters.archive_operations import ArchiveOperations

INTEGER_OPTIONS: Final = ("code",)
"""Options that a selection has as a number."""
OPTIONS_BY_NAME: Final = {"json_file": "json", "open_page": "open"}
WHOSE_DEAD_LETTERS: Final = (
    "whose dead letters? Name a Trigger, or a Broker with --broker NAMESPACE/NAME"
)
ARCHIVE_SAYS: Final = "where tables are and how long they keep, its DeadLetterArchive says"

ArchiveOption = Annotated[
    str | None,
    typer.Option(
        "--archive", help="The DeadLetterArchive to use in a cluster, if the Broker has several."
    ),
]
Wait = Annotated[
    bool,
    typer.Option(
        help="In a cluster: show progress until the operation ends. Exit code 1: it failed."
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterTarget:
    """Which cluster, and what of it: fields are options."""

    context: ContextName = None
    kubeconfig: Kubeconfig = None
    namespace: NamespaceName = None

    @property
    def is_cluster(self) -> bool:
        return self.context is not None or self.kubeconfig is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsTarget(ClusterTarget):
    """Whose dead letters are read where they lie."""

    bootstrap_servers: BootstrapServers = None
    system_namespace: SystemNamespace = SYSTEM_NAMESPACE

    def view(self, trigger: str | None) -> DeclaredView:
        source = source_of(
            DEFAULT_DATA,
            self.context,
            self.kubeconfig,
            self.namespace,
            self.bootstrap_servers,
            self.system_namespace,
        )
        return view_of(source, self.namespace, trigger)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveTarget(ClusterTarget):
    """What an archive is asked for."""

    archive: ArchiveOption = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingTarget(ArchiveTarget):
    wait: Wait = True


def on_cluster(
    target: type[ClusterTarget], there: Callable[..., None]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A command that also takes these options; with a context or a kubeconfig, `there` is run with
    them in its place."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True)
        added = inspect.signature(target, eval_str=True).parameters
        positional = inspect.Parameter.POSITIONAL_OR_KEYWORD
        parameters = [parameter.replace(kind=positional) for parameter in added.values()]

        @wraps(command)
        def run(*arguments: Any, **given: Any) -> None:
            where = target(
                **{name: given.pop(name, parameter.default) for name, parameter in added.items()}
            )
            if where.is_cluster:
                there(where, *arguments, **given)
                return
            for field in fields(where):
                if getattr(where, field.name) != added[field.name].default:
                    said = field.name.replace("_", "-")
                    raise refuse(f"--{said} needs a cluster: name its --context")
            command(*arguments, **given)

        # `taking` and Typer read both.
        signature = own.replace(parameters=[*own.parameters.values(), *parameters])
        setattr(run, "__signature__", signature)  # noqa: B010  # mypy knows no such attribute
        run.__annotations__ = {
            name: parameter.annotation for name, parameter in signature.parameters.items()
        }
        return run

    return decorate


def list_letters(where: TopicsTarget, trigger: str | None = None, **given: Any) -> None:
    _refuse_given(given)
    view = where.view(trigger)
    with usage():
        chosen = list(view.egresses) if trigger is None else [view.egress(trigger)]
    if trigger is None:
        chosen += map(dead_letters.of_broker, view.ingresses)
    overviews = [(egress, _asked(view, egress, dead_letters.overview)) for egress in chosen]
    rows = [
        overview.row
        for egress, overview in overviews
        if egress.trigger or overview.count or overview.replayed
    ]
    print_table(dead_letters.COLUMNS, rows, "there is no Trigger")


def show_letters(
    where: TopicsTarget,
    trigger: str | None = None,
    broker: str | None = None,
    limit: int = 20,
    as_json: bool = False,
    **given: Any,
) -> None:
    _refuse_given(given)
    if (trigger is None) is (broker is None):
        raise refuse(WHOSE_DEAD_LETTERS)
    view = where.view(trigger or broker)
    with usage():
        if trigger is not None:
            egress = view.egress(trigger)
        else:
            egress = dead_letters.of_broker(view.ingress(broker))

    letters = _asked(view, egress, lambda admin, egress: dead_letters.letters(admin, egress, limit))
    for letter in letters:
        typer.echo(letter.json() if as_json else letter.text())
    if not letters and not as_json:
        whose = dead_letters.owner(*dead_letters.name_of(egress))
        typer.echo(f"the topic of {whose} has no dead letters")


def compact(where: WaitingTarget, asked: Asked, **given: Any) -> None:
    status = _run(where, asked, given)
    if status is not None:
        typer.echo(f"{status['lastRun'].get('records', 0)} new dead letters")


def report(where: WaitingTarget, asked: Asked, **given: Any) -> None:
    status = _run(where, asked, given, needs_report=True)
    if status is None:
        return
    made = status.get("report") or {}
    if not made.get("report"):
        typer.echo("there never was a dead letter, so there is nothing to report")
        return
    count = made.get("groups", 0)
    groups = "1 group" if count == 1 else f"{count} groups"
    typer.echo(
        f"{made.get('unresolved', 0)} of {made.get('events', 0)} events unresolved in {groups}"
    )


def replay(where: WaitingTarget, asked: Asked, ids: list[str] | None = None, **given: Any) -> None:
    _refuse_given({**given, **_pick(asked, "where", "replay-id")})
    spec: dict[str, Any] = {"select": _selected(asked, ids)}
    if asked["rate"] is not None:
        spec["rate"] = float(asked["rate"])
    status = _operate(where, "DeadLetterReplay", asked, spec)
    if status is None:
        return
    if not asked["dry-run"]:
        typer.echo(f"{status.get('sent', 0)} events sent again by the replay {status['replayID']}")
        return
    would = {
        "would_send": status.get("selected", 0),
        "left_out": status.get("leftOut", 0),
        "triggers": status.get("triggers") or {},
        "events": status.get("events") or [],
    }
    for line in dead_letters.preview_lines(would):
        typer.echo(line)


def purge(where: WaitingTarget, asked: Asked, **given: Any) -> None:
    _refuse_given({**given, **_pick(asked, "where")})
    ids = None if asked["id"] is None else [asked["id"]]
    spec = {"select": _selected(asked, ids), "unresolved": asked["unresolved"]}
    status = _operate(where, "DeadLetterPurge", asked, spec)
    if status is not None and asked["dry-run"]:
        typer.echo(f"{status.get('selected', 0)} failures would purge")
    elif status is not None:
        typer.echo(f"{status.get('purged', 0)} failures purged")


def _asked(view: DeclaredView, egress: Egress, ask: Callable[[KafkaAdmin, Egress], Any]) -> Any:
    with view.reaching(egress):
        return ask_kafka(view.connection(egress), lambda admin: ask(admin, egress))


def _refuse_given(given: Mapping[str, Any]) -> None:
    """Options of the same command that are this machine's, or that a cluster has elsewhere."""
    for name, value in given.items():
        if name != "data_dir" and value not in (None, False):
            said = OPTIONS_BY_NAME.get(name, name.replace("_", "-"))
            raise refuse(f"--{said} can't be used with a cluster: leave it out ({ARCHIVE_SAYS})")


def _pick(asked: Asked, *names: str) -> dict[str, Any]:
    return {name: asked[name] for name in names}


@contextmanager
def _interruptible() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        _tell("it goes on without this command: its status tells the rest")
        raise typer.Exit(EXIT_INTERRUPTED) from None


def _tell(line: str) -> None:
    typer.echo(f"knafka: {line}", err=True)


def _operations(where: ClusterTarget, asked: Asked) -> ArchiveOperations:
    # The client takes half a second to import: only commands about a cluster pay for it.
    from knafka_cli.dead_letters import archive_operations
    from knafka_client.declared import cluster_source
    from knafka_client.declared.kubernetes_api import KubernetesApi

    client, own = cluster_source.client_of(where.context, where.kubeconfig)
    return archive_operations.ArchiveOperations(
        KubernetesApi(client), where.namespace or own, _tell
    )


def _operate(
    where: WaitingTarget, kind: str, asked: Asked, spec: dict[str, Any]
) -> Mapping[str, Any] | None:
    """The status of an operation that succeeded; None: nobody waits for it."""
    operations = _operations(where, asked)
    if asked["dry-run"]:
        spec["dryRun"] = True
    with usage():
        archive = operations.archive(where.archive, asked["broker"])
    name = operations.make(kind, archive, spec)
    # A dry run is of no use to somebody who doesn't wait for what it says.
    if not where.wait and not asked["dry-run"]:
        return None
    with _interruptible():
        status: Mapping[str, Any] = operations.follow(kind, name)
    if status["phase"] != "Succeeded":
        _tell(status.get("message") or "it failed")
        raise typer.Exit(EXIT_FAILED)
    return status


def _run(
    where: WaitingTarget, asked: Asked, given: Mapping[str, Any], *, needs_report: bool = False
) -> Mapping[str, Any] | None:
    """The status of an archive that has run; None: nobody waits for it."""
    _refuse_given({**given, **_pick(asked, *(name for name in asked if name != "broker"))})
    operations = _operations(where, asked)
    with usage():
        archive = operations.archive(where.archive, asked["broker"])
    if needs_report and "report" not in archive["spec"]:
        raise refuse(
            f"DeadLetterArchive {archive['metadata']['name']} makes no reports: set its "
            "spec.report.schedule"
        )
    compaction = operations.ask_to_run(archive)
    if not where.wait:
        return None
    with _interruptible():
        status: Mapping[str, Any] = operations.follow_run(archive, compaction)
    if (last := status.get("lastRun") or {}).get("outcome") != "Succeeded":
        _tell(last.get("message") or "it failed")
        raise typer.Exit(EXIT_FAILED)
    return status


def _selected(asked: Asked, ids: list[str] | None) -> dict[str, Any]:
    """As a DeadLetterReplay selects."""
    names = [name for name in SELECTION if name not in ("broker", "id", "where")]
    selection = {name: asked[name] for name in names if asked.get(name) is not None}
    selection |= {name: int(selection[name]) for name in INTEGER_OPTIONS if name in selection}
    return {**selection, "ids": list(ids)} if ids else selection
