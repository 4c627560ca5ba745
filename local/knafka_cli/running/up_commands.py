"""`knafka up` and `knafka down`: start and stop everything on this machine."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from knafka_cli.running import detached, terminal_views
from knafka_cli.running.up import run_until_stopped
from knafka_cli.shared.options import DataDir, Files, add_command, arguments_of
from knafka_client.state.installation import DEFAULT_DATA, Installation
from knafka_local.supervisor import UpOptions


def add_to(app: typer.Typer) -> None:
    """Add the commands `knafka up` and `knafka down` to `app`."""
    add_command(app, "up", up, "knafka up -f examples/quickstart --detach")
    add_command(app, "down", down, "knafka down")


def up(
    files: Files = None,
    bootstrap_servers: Annotated[
        str | None,
        typer.Option(help="Use a Kafka that is running (host:port,...) instead of starting one."),
    ] = None,
    port: Annotated[
        int,
        typer.Option(min=1, max=65535, help="The port on 127.0.0.1 at which Brokers take events."),
    ] = 8080,
    channels_port: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=65535,
            help="The port on 127.0.0.1 at which KafkaChannels take events (default: the one "
            "after --port, or any free one).",
        ),
    ] = None,
    kafka_port: Annotated[
        int,
        typer.Option(min=1, max=65535, help="The port on 127.0.0.1 of the Kafka that is started."),
    ] = 9092,
    console_port: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=65535,
            help="The port on 127.0.0.1 of the console (default: 8090, or the next free one).",
        ),
    ] = None,
    console: Annotated[
        bool,
        typer.Option(
            "--console/--no-console", help="Serve the console, a web page that shows what runs."
        ),
    ] = True,
    data_dir: DataDir = DEFAULT_DATA,
    detach: Annotated[
        bool,
        typer.Option("--detach", "-d", help="Run in the background; return once everything is up."),
    ] = False,
    plain: Annotated[
        bool, typer.Option("--plain", help="Print lines instead of a live table.")
    ] = False,
    send_file: Annotated[
        Path | None,
        typer.Option(
            "--send",
            exists=True,
            dir_okay=False,
            help="Send the events of this NDJSON file once everything is up, and keep running.",
        ),
    ] = None,
    require_auth: Annotated[
        bool,
        typer.Option(
            "--require-auth",
            help="Require a token of `knafka token` from senders, and apply EventPolicies, as "
            "the feature authentication-oidc does in a cluster.",
        ),
    ] = False,
) -> None:
    """Run Brokers and Triggers from YAML: Kafka, receiver, dispatchers and subscribers.

    Without -f, the YAML files of the current folder are used. Changed files are applied while it
    runs. Ctrl-C (or `knafka down`) stops everything; the data is kept for the next start.
    """
    manifests = tuple(files or [Path()])
    if not detach:
        options = UpOptions(
            manifests,
            data_dir,
            port=port,
            kafka_port=kafka_port,
            bootstrap_servers=bootstrap_servers,
            console_port=console_port,
            console=console,
            channels_port=channels_port,
            require_auth=require_auth,
        )
        asyncio.run(run_until_stopped(options, terminal_views.choose_view(plain), send_file))
        return
    arguments = [f"--file={path}" for path in manifests]
    other_options: dict[str, object] = {
        "data-dir": data_dir,
        "port": port,
        "kafka-port": kafka_port,
        "send": send_file,
        "console-port": console_port,
        "no-console": not console,
        "channels-port": channels_port,
        "require-auth": require_auth,
        "bootstrap-servers": bootstrap_servers,
    }
    arguments += arguments_of(other_options)
    pid = detached.start(arguments, Installation(data_dir), typer.echo)
    typer.echo(
        f"knafka runs in the background (pid {pid}): "
        "see knafka status and knafka logs -f; knafka down stops it"
    )


def down(data_dir: DataDir = DEFAULT_DATA) -> None:
    """Stop what `knafka up` runs, and wait until it has ended. The data is kept."""
    installation = Installation(data_dir)
    if detached.stop(installation):
        typer.echo(f"stopped; everything is kept in {installation.data}")
    else:
        typer.echo(f"nothing runs on {installation.data}")
