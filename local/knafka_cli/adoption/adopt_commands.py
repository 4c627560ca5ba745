"""`knafka adopt` and `knafka release`: move Brokers, KafkaChannels and KafkaSources from
eventing-kafka-broker to Knafka, and back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from knafka_cli.shared.options import EXIT_FAILED, add_command, print_error, refuse
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
"""Seconds to wait for each object; receivers and dispatchers that pull their image take a
minute."""
PREFIXES: Final = {"channel/": KAFKA_CHANNEL, "source/": KAFKA_SOURCE}
"""Kinds by the prefix of a name; a name without a prefix is a Broker's."""
NAME_FORMS: Final = "want [NAMESPACE/]NAME, channel/[NAMESPACE/]NAME or source/[NAMESPACE/]NAME"
"""End of the error message about a malformed name."""

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
    """Add the commands `knafka adopt` and `knafka release` to `app`."""
    add_command(app, "adopt", adopt, "knafka adopt default -n shop --context prod")
    add_command(app, "release", release, "knafka release default -n shop --context prod --yes")


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
    # Imported here, as the operator's decisions would slow the start of every other command.
    from knafka_cli.adoption.cluster import explain_not_ready

    adopter, context_namespace = _make_adopter(
        context, kubeconfig, namespace, bootstrap_servers, system_namespace, peers_namespace
    )
    failed = False
    for kind, identity in _parse_names(names, namespace or context_namespace):
        plan, unseen = adopter.make_plan(kind, identity)
        # What a plan waits for ends by itself. A problem doesn't, so waiting would be in vain.
        if yes and plan.waits and not plan.problems:
            plan = adopter.wait_for_preconditions(kind, identity, timeout)
        _print_plan(plan, unseen)
        failed |= not plan.can_be_carried_out
        if yes and plan.can_be_carried_out:
            adopter.carry_out(plan)
            adopter.wait_until_complete("not Ready", kind, identity, timeout, explain_not_ready)
            typer.echo(f"\n{kind} {identity} is Knafka's, and Ready.")
    _exit_by_outcome(failed, yes)


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
    # Imported here, as the operator's decisions would slow the start of every other command.
    from knafka_cli.adoption.plan import find_not_released

    adopter, context_namespace = _make_adopter(
        context, kubeconfig, namespace, bootstrap_servers, system_namespace, peers_namespace
    )
    failed = False
    for kind, identity in _parse_names(names, namespace or context_namespace):
        plan, unseen = adopter.make_plan(kind, identity, release=True)
        _print_plan(plan, unseen)
        failed |= not plan.can_be_carried_out
        if yes and plan.can_be_carried_out:
            adopter.carry_out(plan)
            adopter.wait_until_complete("not released", kind, identity, timeout, find_not_released)
            # As before an adoption, but the members that must leave are Knafka's.
            adopter.wait_for_preconditions(kind, identity, timeout)
            typer.echo(f"\n{kind} {identity} is released: nothing of Knafka's is in its groups.")
    _exit_by_outcome(failed, yes)


def _make_adopter(
    context: str | None,
    kubeconfig: Path | None,
    namespace: str | None,
    bootstrap_servers: str | None,
    system_namespace: str,
    peers_namespace: str,
) -> tuple[Adopter, str]:
    """Return an adopter for the chosen cluster, and the namespace of the kubeconfig's context. The
    parameters are the commands' options. Raises `ClusterError`."""
    # Imported here, since the Kubernetes client takes half a second.
    from knafka_cli.adoption.cluster import Adopter
    from knafka_client.declared import cluster_source
    from knafka_client.declared.kubernetes_api import KubernetesApi

    client, context_namespace = cluster_source.client_of(context, kubeconfig)

    def make_source(servers: str | None) -> cluster_source.ClusterSource:
        """Return a source whose connections have these bootstrap servers; None: the declared
        ones."""
        return cluster_source.ClusterSource(
            client,
            namespace or context_namespace,
            system_namespace=system_namespace,
            bootstrap_servers=servers,
        )

    adopter = Adopter(
        KubernetesApi(client),
        make_source(bootstrap_servers),
        make_source(None),
        system_namespace=system_namespace,
        peers_namespace=peers_namespace,
        bootstrap_servers=bootstrap_servers,
    )
    return adopter, context_namespace


def _parse_names(names: list[str], namespace: str) -> list[tuple[str, Identity]]:
    """Return the kind and the identity of each named object; `NAME_FORMS` says how names are
    written. A name without a namespace means an object in `namespace`.

    Prints an error and exits with code 2 if a name is malformed.
    """
    objects = []
    for text in names:
        prefix = next(filter(text.startswith, PREFIXES), "")
        own_namespace, slash, name = text.removeprefix(prefix).rpartition("/")
        lacks_part = not name or (slash and not own_namespace)
        if lacks_part or "/" in own_namespace:
            raise refuse(f"{text!r} is no name: {NAME_FORMS}")
        objects.append((PREFIXES.get(prefix, "Broker"), Identity(own_namespace or namespace, name)))
    return objects


def _print_plan(plan: Plan, unseen: Sequence[str]) -> None:
    """Print a plan, and before it, on stderr, the sentences about objects that could not be
    read."""
    for sentence in unseen:
        print_error(sentence)
    typer.echo(plan.text)


def _exit_by_outcome(failed: bool, yes: bool) -> None:
    """Print that nothing was changed, unless the user gave --yes; then exit with code 1 if a plan
    could not be carried out (`failed`)."""
    if not yes:
        typer.echo("\nNothing was changed. --yes does it.")
    if failed:
        raise typer.Exit(EXIT_FAILED)
