"""Options that make a command use a cluster in place of what `knafka up` runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from knafka_cli.shared.options import print_error, refuse
from knafka_client.declared.declared_source import (
    SYSTEM_NAMESPACE,
    DeclaredSource,
    DeclaredView,
    InstallationSource,
    namespace_in,
)
from knafka_client.state.installation import Installation

ContextName = Annotated[
    str | None,
    typer.Option(
        "--context",
        help="Ask the cluster of this context of the kubeconfig, instead of what `knafka up` runs.",
    ),
]
Kubeconfig = Annotated[
    Path | None,
    typer.Option(
        "--kubeconfig",
        help="Ask the cluster of this kubeconfig (default: $KUBECONFIG, or ~/.kube/config).",
    ),
]
NamespaceName = Annotated[
    str | None,
    typer.Option(
        "-n",
        "--namespace",
        help="The namespace of names given without one (default: the context's, or default).",
    ),
]
BootstrapServers = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-servers",
        metavar="HOST:PORT",
        help="The address of the cluster's Kafka as seen from here, if its Brokers name one "
        "that can't be reached.",
    ),
]
SystemNamespace = Annotated[
    str,
    typer.Option(
        "--system-namespace", help="The namespace in which Knafka is installed in the cluster."
    ),
]


def source_of(
    data_dir: Path,
    context: str | None,
    kubeconfig: Path | None,
    namespace: str | None,
    bootstrap_servers: str | None,
    system_namespace: str = SYSTEM_NAMESPACE,
) -> DeclaredSource:
    """Return the source of declared objects: the cluster if a context or kubeconfig is given, or
    else what `knafka up` runs on `data_dir`.

    The other parameters are the command's options for a cluster. Raises `ClusterError`; exits with
    code 2 if `bootstrap_servers` is given without a cluster.
    """
    if context is None and kubeconfig is None:
        if bootstrap_servers is not None:
            raise refuse("--bootstrap-servers needs a cluster: name its --context")
        return InstallationSource(Installation(data_dir))
    # Imported here, since the Kubernetes client takes half a second.
    from knafka_client.declared import cluster_source

    client, context_namespace = cluster_source.client_of(context, kubeconfig)
    return cluster_source.ClusterSource(
        client,
        namespace or context_namespace,
        system_namespace=system_namespace,
        bootstrap_servers=bootstrap_servers,
    )


def read_view(source: DeclaredSource, namespace: str | None, name: str | None) -> DeclaredView:
    """Read the declared objects of one namespace: the namespace in `name` (the name of a Broker or
    Trigger, such as NAMESPACE/NAME), else `namespace`, else the source's default.

    A sentence about each object that can't be read is printed on stderr. Raises `KnafkaError` if
    nothing can be read.
    """
    named_namespace = namespace_in(name) if name else None
    view = source.read(named_namespace or namespace)
    for problem in view.problems:
        print_error(problem)
    return view
