"""`knafka console`: the console of a cluster, served on this machine."""

from __future__ import annotations

import asyncio
import signal
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from knafka.core.trace_url import EXPECTED_TRACE_URL, is_trace_url
from knafka_cli.shared.options import refuse
from knafka_cli.shared.source_options import BootstrapServers, SystemNamespace
from knafka_client.declared.declared_source import SYSTEM_NAMESPACE
from knafka_console import opening


def add_to(app: typer.Typer) -> None:
    """Add the command `knafka console` to `app`."""
    app.command()(console)


def console(
    context: Annotated[
        str | None,
        typer.Option(
            "--context", help="A context of the kubeconfig (default: its current context)."
        ),
    ] = None,
    kubeconfig: Annotated[
        Path | None,
        typer.Option(
            "--kubeconfig", help="The kubeconfig (default: $KUBECONFIG, or ~/.kube/config)."
        ),
    ] = None,
    namespaces: Annotated[
        list[str] | None,
        typer.Option(
            "-n",
            "--namespace",
            help="Show only this namespace, if you may not list objects of all namespaces. Can "
            "be repeated.",
        ),
    ] = None,
    bootstrap_servers: BootstrapServers = None,
    system_namespace: SystemNamespace = SYSTEM_NAMESPACE,
    trace_url: Annotated[
        str,
        typer.Option(
            "--trace-url",
            envvar="KNAFKA_TRACE_URL",
            help="The address of a trace, to which reports link; {trace} stands for its id.",
        ),
    ] = "",
    port: Annotated[
        int | None,
        typer.Option(
            "--port", help="The console's port on 127.0.0.1 (default: 8090, or the next free one)."
        ),
    ] = None,
    open_browser: Annotated[
        bool, typer.Option("--open", help="Open the console in a browser.")
    ] = False,
) -> None:
    """Serve the console of a cluster on this machine, with the rights of your kubeconfig.

    A page shows Brokers, channels, Triggers, Subscriptions and the reports of DeadLetterArchives,
    and follows changes, until Ctrl-C. `knafka up` serves its own console.
    """
    # Imported here, since the Kubernetes client takes half a second.
    from knafka_client.declared import cluster_source
    from knafka_client.declared.kubernetes_api import KubernetesApi
    from knafka_console.sources.cluster_console import ClusterConsole
    from knafka_console.sources.cluster_kafka import ClusterKafka
    from knafka_console.sources.metrics import ProxiedMetrics, SharedFigures
    from knafka_console.sources.reports import ConsoleScope

    if not is_trace_url(trace_url):
        raise refuse(f"--trace-url {trace_url}: {EXPECTED_TRACE_URL}")
    client, _ = cluster_source.client_of(context, kubeconfig)
    api = KubernetesApi(client)
    cluster_name = context or client.configuration.host
    with opening.open_listener(port, option="--port") as listener:
        if listener is None:
            raise refuse("no port is free: choose one with --port")

        async def serve() -> None:
            """Serve the console until SIGINT or SIGTERM."""
            source = ClusterConsole(
                api,
                SharedFigures(ProxiedMetrics(api, system_namespace)),
                ClusterKafka(client, system_namespace, bootstrap_servers=bootstrap_servers),
                ConsoleScope(
                    cluster_name,
                    tuple(namespaces or ()),
                    trace_url=trace_url,
                    unreached_hint=cluster_source.UNREACHED_HINT,
                ),
            )
            stop = asyncio.Event()
            for signal_number in (signal.SIGINT, signal.SIGTERM):
                asyncio.get_running_loop().add_signal_handler(signal_number, stop.set)
            async with opening.serve_source(source, listener) as url:
                typer.echo(f"console of {cluster_name} at {url}")
                if open_browser:
                    webbrowser.open(url)
                await stop.wait()

        asyncio.run(serve())
