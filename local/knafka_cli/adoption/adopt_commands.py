"""`knafka adopt` and `knafka release`: Brokers, KafkaChannels and KafkaSources go from
eventing-kafka-broker to Knafka, and back."""

from __future__ import annotations

from collections.abc import Sequence
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
from knafka_operator.model.channels import KAFKA_CHANNEL
from knafka_operator.model.identity import Identity
from knafka_operator.model.sources import KAFKA_SOURCE

if TYPE_CHECKING:
    from knafka_cli.adoption.cluster import Adopter
    from knafka_cli.adoption.plan import Plan

ADOPTION_TIMEOUT: Final = 300.0
"""Seconds; a cold start of receivers and dispatchers that pull their image takes a minute."""
PREFIXES: Final = {"channel/": KAFKA_CHANNEL, "source/": KAFKA_SOURCE}
"""Which kind a name is of; without any of these a Broker's."""
NAME_FORMS: Final = "want [NAMESPACE/]NAME, channel/[NAMESPACE/]NAME or source/[NAMESPACE/]NAME"

Names = Annotated[
    list[str],
    typer.Argument(
        metavar="NAME...",
        help="Brokers: [NAMESPACE/]NAME; KafkaChannels: channel/[NAMESPACE/]NAME; KafkaSources: "
        "source/[NAMESPACE/]NAME.",
    ),
]
Yes = Annotated[bool, typer.Option("--yes", help="Do it. Without this nothing is changed.")]
Timeout = Annotated[float, typer.Option(help="Seconds to wait until it is done, for each name.")]
PeersNamespace = Annotated[
    str, typer.Option(help="The namespace in which eventing-kafka-broker is installed.")
]


def add_to(app: typer.Typer) -> None:
    """Make them commands of `app`."""
    add(app, "adopt", adopt, "knafka adopt default -n shop --context prod")
    add(app, "release", release, "knafka release default -n shop --context prod --yes")


def adopt(
    names: Names,
    yes: Yes = False,
    context: ContextName = None,
    kubeconfig: Kubeconfig = None,
    namespace: NamespaceName = None,
    bootstrap_servers: BootstrapServers = None,
    system_namespace: SystemNamespace = SYSTEM_NAMESPACE,
    peers_namespace: PeersNamespace = "knative-eventing",
    timeout: Timeout = ADOPTION_TIMEOUT,
) -> None:
    """Take Brokers with their Triggers, KafkaChannels with their Subscriptions, or KafkaSources,
    over from eventing-kafka-broker: same topics, same consumer groups, same offsets.

    Prints what stays, what is different, what is in the way and what would be done; --yes does it,
    and waits until all are Ready. Killed in between, run it again. Exit code 1: something is in the
    way, or isn't Ready in time.
    """
    from knafka_cli.adoption.cluster import explain_not_ready

    adopter, own = _make_adopter(
        context, kubeconfig, namespace, bootstrap_servers, system_namespace, peers_namespace
    )
    failed = False
    for kind, identity in _parse_names(names, namespace or own):
        plan, unseen = adopter.make_plan(kind, identity)
        if yes and plan.waits and not plan.problems:
            plan = adopter.wait_until_group_empty(kind, identity, timeout)
        failed |= not _show(plan, unseen)
        if yes and not plan.problems and not plan.waits:
            adopter.carry_out(plan)
            adopter.wait_until_complete("not Ready", kind, identity, timeout, explain_not_ready)
            typer.echo(f"\n{kind} {identity} is Knafka's, and Ready.")
    _end(failed, yes)


def release(
    names: Names,
    yes: Yes = False,
    context: ContextName = None,
    kubeconfig: Kubeconfig = None,
    namespace: NamespaceName = None,
    bootstrap_servers: BootstrapServers = None,
    system_namespace: SystemNamespace = SYSTEM_NAMESPACE,
    peers_namespace: PeersNamespace = "knative-eventing",
    timeout: Timeout = ADOPTION_TIMEOUT,
) -> None:
    """Give Brokers with their Triggers, KafkaChannels with their Subscriptions, or KafkaSources,
    back to eventing-kafka-broker: it goes on with their topics and groups.

    Prints what would be done; --yes does it, and waits until Knafka delivers nothing more. Start
    their controller after that. Killed in between, run it again.
    """
    from knafka_cli.adoption.plan import find_not_released

    adopter, own = _make_adopter(
        context, kubeconfig, namespace, bootstrap_servers, system_namespace, peers_namespace
    )
    failed = False
    for kind, identity in _parse_names(names, namespace or own):
        plan, unseen = adopter.make_plan(kind, identity, back=True)
        failed |= not _show(plan, unseen)
        if yes and not plan.problems:
            adopter.carry_out(plan)
            adopter.wait_until_complete("not let go of", kind, identity, timeout, find_not_released)
            adopter.wait_until_group_empty(kind, identity, timeout)
            typer.echo(f"\n{kind} {identity} is let go of: nothing of Knafka's is in its groups.")
    _end(failed, yes)


def _make_adopter(
    context: str | None,
    kubeconfig: Path | None,
    namespace: str | None,
    bootstrap_servers: str | None,
    system_namespace: str,
    peers_namespace: str,
) -> tuple[Adopter, str]:
    """Return an adopter for the chosen cluster, and the namespace of its context."""
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
        bootstrap_servers=bootstrap_servers,
    )
    return adopter, own


def _parse_names(names: list[str], namespace: str) -> list[tuple[str, Identity]]:
    """Parse the command's arguments to kind and identity each; prints a malformed one and exits."""
    named = []
    for text in names:
        prefix = next(filter(text.startswith, PREFIXES), "")
        before, slash, name = text.removeprefix(prefix).rpartition("/")
        if not name or (slash and not before) or "/" in before:
            typer.echo(f"knafka: {text!r} is no name: {NAME_FORMS}", err=True)
            raise typer.Exit(EXIT_USAGE)
        named.append((PREFIXES.get(prefix, "Broker"), Identity(before or namespace, name)))
    return named


def _show(plan: Plan, unseen: Sequence[str]) -> bool:
    """Print a plan; gives whether nothing is in the way."""
    for each in unseen:
        typer.echo(f"knafka: {each}", err=True)
    typer.echo(plan.text)
    return not plan.problems and not plan.waits


def _end(failed: bool, yes: bool) -> None:
    """Print that nothing was changed unless `yes`, and exit with an error if adopting `failed`."""
    if not yes:
        typer.echo("\nNothing was changed. --yes does it.")
    if failed:
        raise typer.Exit(EXIT_FAILED)
