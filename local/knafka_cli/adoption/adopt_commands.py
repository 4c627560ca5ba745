"""`knafka adopt` and `knafka release`: Brokers from eventing-kafka-broker to Knafka, and back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from knafka_cli.shared.options import EXIT_FAILED, EXIT_USAGE, add
from knafka_cli.shared.source_options import (
    BootstrapServers,
    ContextName,
    Kubeconfig,
    NamespaceName,
    SystemNamespace,
)
from knafka_client.declared.declared_source import SYSTEM_NAMESPACE
from knafka_operator.model.identity import Identity

if TYPE_CHECKING:
    from knafka_cli.adoption.cluster import Adopter
    from knafka_cli.adoption.plan import Plan

TIMEOUT: Final = 300.0
"""Seconds; a cold start of receivers and dispatchers that pull their image takes a minute."""

Names = Annotated[
    list[str],
    typer.Argument(metavar="BROKER...", help="The Brokers: NAME or NAMESPACE/NAME."),
]
Yes = Annotated[bool, typer.Option("--yes", help="Do it. Without this nothing is changed.")]
Timeout = Annotated[float, typer.Option(help="Seconds to wait until it is done, for each Broker.")]
PeersNamespace = Annotated[
    str, typer.Option(help="The namespace in which eventing-kafka-broker is installed.")
]


def add_to(app: typer.Typer) -> None:
    """Make them commands of `app`."""
    add(app, "adopt", adopt, "knafka adopt default -n shop --context prod")
    add(app, "release", release, "knafka release default -n shop --context prod --yes")


def adopt(
    brokers: Names,
    yes: Yes = False,
    context: ContextName = None,
    kubeconfig: Kubeconfig = None,
    namespace: NamespaceName = None,
    bootstrap_servers: BootstrapServers = None,
    system_namespace: SystemNamespace = SYSTEM_NAMESPACE,
    peers_namespace: PeersNamespace = "knative-eventing",
    timeout: Timeout = TIMEOUT,
) -> None:
    """Take Brokers with their Triggers over from eventing-kafka-broker: same topic, same consumer
    groups, same offsets.

    Prints what stays, what is different, what is in the way and what would be done; --yes does it,
    and waits until all are Ready. Killed in between, run it again. Exit code 1: something is in the
    way, or isn't Ready in time.
    """
    from knafka_cli.adoption import plan as planning
    from knafka_cli.adoption.cluster import not_ready

    adopter, own = _adopter(
        context, kubeconfig, namespace, bootstrap_servers, system_namespace, peers_namespace
    )
    failed = False
    for identity in _identities(brokers, namespace or own):
        seen = adopter.see(identity)
        plan = planning.adoption(seen)
        if yes and plan.waits and not plan.problems:
            plan = adopter.until_left(identity, timeout)
        failed |= not _show(plan, seen.unseen)
        if yes and not plan.problems and not plan.waits:
            adopter.carry_out(plan)
            adopter.until("not Ready", timeout, not_ready)(identity)
            typer.echo(f"\nBroker {identity} is Knafka's, and Ready with its Triggers.")
    _end(failed, yes)


def release(
    brokers: Names,
    yes: Yes = False,
    context: ContextName = None,
    kubeconfig: Kubeconfig = None,
    namespace: NamespaceName = None,
    bootstrap_servers: BootstrapServers = None,
    system_namespace: SystemNamespace = SYSTEM_NAMESPACE,
    peers_namespace: PeersNamespace = "knative-eventing",
    timeout: Timeout = TIMEOUT,
) -> None:
    """Give Brokers with their Triggers back to eventing-kafka-broker: it goes on with their topics
    and groups.

    Prints what would be done; --yes does it, and waits until Knafka delivers nothing more. Start
    their controller after that. Killed in between, run it again.
    """
    from knafka_cli.adoption import plan as planning

    adopter, own = _adopter(
        context, kubeconfig, namespace, bootstrap_servers, system_namespace, peers_namespace
    )
    failed = False
    for identity in _identities(brokers, namespace or own):
        seen = adopter.see(identity)
        plan = planning.release(seen)
        failed |= not _show(plan, seen.unseen)
        if yes and not plan.problems:
            adopter.carry_out(plan)
            adopter.until("not let go of", timeout, planning.not_released)(identity)
            adopter.until_left(identity, timeout)
            typer.echo(f"\nBroker {identity} is let go of: nothing of Knafka's is in its groups.")
    _end(failed, yes)


def _adopter(
    context: str | None,
    kubeconfig: Path | None,
    namespace: str | None,
    bootstrap_servers: str | None,
    system_namespace: str,
    peers_namespace: str,
) -> tuple[Adopter, str]:
    """With the namespace of the context."""
    # The client takes half a second to import: only what is about a cluster pays for it.
    from knafka_cli.adoption.cluster import Adopter
    from knafka_client.declared import cluster_source
    from knafka_client.declared.kubernetes_api import KubernetesApi

    client, own = cluster_source.client_of(context, kubeconfig)
    sources = [
        cluster_source.ClusterSource(
            client,
            namespace or own,
            system_namespace=system_namespace,
            bootstrap_servers=servers,
        )
        for servers in (bootstrap_servers, None)
    ]
    adopter = Adopter(
        KubernetesApi(client),
        *sources,
        system_namespace=system_namespace,
        peers_namespace=peers_namespace,
    )
    return adopter, own


def _identities(brokers: list[str], namespace: str) -> list[Identity]:
    found = []
    for each in brokers:
        before, slash, name = each.rpartition("/")
        if not name or (slash and not before) or "/" in before:
            typer.echo(f"knafka: {each!r} is no Broker: want NAME or NAMESPACE/NAME", err=True)
            raise typer.Exit(EXIT_USAGE)
        found.append(Identity(before or namespace, name))
    return found


def _show(plan: Plan, unseen: object) -> bool:
    """Print a plan; gives whether nothing is in the way."""
    for each in unseen if isinstance(unseen, list) else ():
        typer.echo(f"knafka: {each}", err=True)
    typer.echo(plan.text)
    return not plan.problems and not plan.waits


def _end(failed: bool, yes: bool) -> None:
    if not yes:
        typer.echo("\nNothing was changed. --yes does it.")
    if failed:
        raise typer.Exit(EXIT_FAILED)
