"""Options of `knafka dead-letters` that choose a cluster, an archive in it, and how to reach it.

`on_cluster` adds them to a command, with the function to run if the user chooses a cluster.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from typing import Annotated, Any

import typer

from knafka_cli.shared.options import refuse
from knafka_cli.shared.source_options import (
    BootstrapServers,
    ContextName,
    Kubeconfig,
    NamespaceName,
    SystemNamespace,
    read_view,
    source_of,
)
from knafka_client.declared.declared_source import SYSTEM_NAMESPACE, DeclaredView
from knafka_client.state.installation import DEFAULT_DATA

ArchiveOption = Annotated[
    str | None,
    typer.Option(
        "--archive", help="The DeadLetterArchive to use in a cluster, if the Broker has several."
    ),
]
Endpoint = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="The address of the archive's S3 store as seen from here, if the one in the archive "
        "can't be reached.",
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
    """Options that choose a cluster and a namespace in it."""

    context: ContextName = None
    kubeconfig: Kubeconfig = None
    namespace: NamespaceName = None

    @property
    def is_cluster(self) -> bool:
        """Whether the user chose a cluster."""
        return self.context is not None or self.kubeconfig is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsTarget(ClusterTarget):
    """Options of commands that read dead letters from a cluster's topics."""

    bootstrap_servers: BootstrapServers = None
    system_namespace: SystemNamespace = SYSTEM_NAMESPACE

    def read_objects(self, name: str | None) -> DeclaredView:
        """Read the declared objects of one namespace of the cluster: the one in `name`, if that is
        NAMESPACE/NAME of a Trigger or Broker, or else the one that the user chose. Raises
        `ClusterError`."""
        source = source_of(
            DEFAULT_DATA,
            self.context,
            self.kubeconfig,
            self.namespace,
            self.bootstrap_servers,
            self.system_namespace,
        )
        return read_view(source, self.namespace, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveTarget(ClusterTarget):
    """Options of commands that use a DeadLetterArchive."""

    archive: ArchiveOption = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TablesTarget(ArchiveTarget):
    """Options of commands that use the tables of a DeadLetterArchive from here."""

    endpoint: Endpoint = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListTarget(TopicsTarget):
    """Options of the command that counts dead letters in topics, or lists groups of an archive."""

    # As in `TablesTarget`: a class with slots can't inherit fields from two classes.
    archive: ArchiveOption = None
    endpoint: Endpoint = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingTarget(ArchiveTarget):
    """Options of commands that start an operation and wait for it."""

    wait: Wait = True


def on_cluster(
    target: type[ClusterTarget], run_on_cluster: Callable[..., None]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that adds the options of the class `target` to a command.

    If the user chooses a cluster, `run_on_cluster` is called in place of the command, with an
    instance of `target`, then with the command's own arguments. Otherwise the command runs, or
    exits with code 2 if the user gave one of these options.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        """Give the command the options of `target`."""
        command_signature = inspect.signature(command, eval_str=True)
        target_parameters = inspect.signature(target, eval_str=True).parameters
        positional = inspect.Parameter.POSITIONAL_OR_KEYWORD

        @wraps(command)
        def run(*arguments: Any, **options: Any) -> None:
            """Run the command, or `run_on_cluster` if the user chose a cluster."""
            chosen_target = target(
                **{
                    name: options.pop(name, parameter.default)
                    for name, parameter in target_parameters.items()
                }
            )
            if chosen_target.is_cluster:
                run_on_cluster(chosen_target, *arguments, **options)
                return
            for field in fields(chosen_target):
                if getattr(chosen_target, field.name) != target_parameters[field.name].default:
                    option = field.name.replace("_", "-")
                    raise refuse(f"--{option} needs a cluster: name its --context")
            command(*arguments, **options)

        # `takes_job_options` and Typer read the signature and the annotations.
        signature = command_signature.replace(
            parameters=[
                *command_signature.parameters.values(),
                *(parameter.replace(kind=positional) for parameter in target_parameters.values()),
            ]
        )
        setattr(run, "__signature__", signature)  # noqa: B010  # mypy knows no such attribute
        run.__annotations__ = {
            name: parameter.annotation for name, parameter in signature.parameters.items()
        }
        return run

    return decorate
