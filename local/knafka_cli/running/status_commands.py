"""`knafka status`, `broker list` and `logs`: show what runs."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from knafka_cli.running import logs
from knafka_cli.running.terminal_views import StatusTable
from knafka_cli.shared.options import (
    EXIT_FAILED,
    DataDir,
    Files,
    add_command,
    exit_on_bad_input,
    print_table,
    read_declared,
    refuse,
)
from knafka_client.state import snapshot_file
from knafka_client.state.installation import DEFAULT_DATA, Installation
from knafka_operator.model.resources import Broker, Trigger


def add_to(app: typer.Typer, broker_app: typer.Typer) -> None:
    """Add `knafka status` and `knafka logs` to `app`, and `knafka broker list` to `broker_app`."""
    add_command(app, "status", show_status, "knafka status --json")
    add_command(app, "logs", show_logs, "knafka logs orders -f")
    add_command(broker_app, "list", list_brokers, "knafka broker list")


def show_status(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    data_dir: DataDir = DEFAULT_DATA,
) -> None:
    """Show the state of Kafka, Brokers and Triggers, and how many events wait.

    Exit code 0: all are ready, 1: something isn't (or nothing runs).
    """
    installation = Installation(data_dir)
    snapshot = snapshot_file.read_snapshot(installation)
    if as_json:
        typer.echo(snapshot_file.snapshot_json(snapshot))
    else:
        typer.echo(f"knafka up runs on {installation.data} (pid {installation.running_pid()})")
        Console().print(StatusTable(snapshot))
    if snapshot_file.not_ready_sentences(snapshot):
        raise typer.Exit(EXIT_FAILED)


def list_brokers(files: Files = None, data_dir: DataDir = DEFAULT_DATA) -> None:
    """List the Brokers that run, with URL, topic, Triggers and counts; or those that files declare,
    with the number of their Triggers."""
    if files:
        _list_declared_brokers(files, data_dir)
    else:
        _list_running_brokers(Installation(data_dir))


def _list_declared_brokers(files: list[Path], data_dir: Path) -> None:
    """Print the Brokers that files declare, with the number of their Triggers. Exits with code 1 if
    a file has a problem, which is printed, too."""
    with exit_on_bad_input():
        declared = read_declared(files, data_dir)
    # One entry for each Trigger: the Broker that it names.
    brokers_of_triggers = [
        (trigger.metadata.namespace, trigger.spec.broker) for trigger in declared.of_type(Trigger)
    ]
    rows = [
        [
            broker.id,
            str(brokers_of_triggers.count((broker.metadata.namespace, broker.metadata.name))),
        ]
        for broker in declared.of_type(Broker)
    ]
    print_table(["BROKER", "TRIGGERS"], rows, "no Broker is declared")
    if declared.problems:
        raise typer.Exit(EXIT_FAILED)


def _list_running_brokers(installation: Installation) -> None:
    """Print the Brokers that run, with URL, topic, and the numbers of their Triggers and events.
    Raises `NotRunning`."""
    running, snapshot = installation.read_state(), snapshot_file.read_snapshot(installation)
    topics = {
        f"{ingress.namespace}/{ingress.broker}": ingress.topic
        for ingress in running.ingresses
        if ingress.kind == "Broker"
    }
    # One entry for each Trigger: the Broker that it names.
    brokers_of_running_triggers = [
        f"{egress.namespace}/{egress.broker}"
        for egress in running.egresses
        if egress.kind == "Trigger"
    ]
    rows = [
        [
            row.name,
            row.url or f"not served: {row.refused}",
            topics.get(row.name, ""),
            str(brokers_of_running_triggers.count(row.name)),
            str(row.accepted),
            str(row.rejected),
        ]
        for row in snapshot.brokers
        if row.kind == "Broker"
    ]
    columns = ["BROKER", "URL", "TOPIC", "TRIGGERS", "ACCEPTED", "REJECTED"]
    print_table(columns, rows, "no Broker runs")


def show_logs(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Whose log: [NAMESPACE/]NAME of a Trigger or Service, receiver, kafka or up "
            "(default: all)."
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print new lines as they are written.")
    ] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="Show the newest N.")] = 20,
    data_dir: DataDir = DEFAULT_DATA,
) -> None:
    """Show the logs of the processes, also after they have ended."""
    log_files = logs.Logs(Installation(data_dir))
    if not (names := log_files.names(name)):
        known_logs = ", ".join(log_files.names()) or "none"
        raise refuse(f"there is no log{f' of {name}' if name else ''}: there is {known_logs}")
    for log_name in names:
        for line in log_files.last_lines(log_name, lines):
            typer.echo(line if len(names) == 1 else f"{log_name} | {line}")
    if not follow:
        return
    # While all logs are followed, another one may appear, so each line needs its log's name.
    one_log = name is not None and len(names) == 1
    with contextlib.suppress(KeyboardInterrupt):
        for log_name, line in log_files.follow(name):
            typer.echo(line if one_log else f"{log_name} | {line}")
