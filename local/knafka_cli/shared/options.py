"""What the commands share: their options, what they ask of Kafka, and how they say no.

Exit codes: 0 done, 1 it failed or said no, 2 it was asked in a way that can't be answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import typer

from knafka.clients.kafka_admin import KafkaAdmin
from knafka.clients.kafka_connection import connection_configuration
from knafka.core import json_format
from knafka.core.contract import Egress, Ingress, Kafka
from knafka.core.errors import InvalidDocument, InvalidEvent
from knafka.core.event import Event
from knafka_cli.shared import event_input
from knafka_client.declared import triggers
from knafka_client.declared.manifests import DeclaredObjects, Manifests, ObjectIdentity
from knafka_client.state.installation import (
    CHANNEL_PREFIX,
    SUBSCRIPTION_PREFIX,
    Installation,
    RunningState,
)
from knafka_client.topics import dead_letters
from knafka_local.tokens.accounts import ServiceAccount

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130
"""Exit code after Ctrl-C, as a shell gives it."""

DATA_DIR: Final = "--data-dir"


T = TypeVar("T")

Files = Annotated[
    list[Path] | None,
    typer.Option("-f", "--file", help="A YAML file, or a folder of YAML files. Can be repeated."),
]
DataDir = Annotated[
    Path,
    typer.Option(
        DATA_DIR,
        envvar="KNAFKA_DATA",
        help="The data folder of one `knafka up`: Kafka's data, logs, state.",
    ),
]
TriggerName = Annotated[
    str, typer.Argument(help="The Trigger: NAMESPACE/NAME, or NAME in the namespace default.")
]
BrokerName = Annotated[
    str | None,
    typer.Argument(
        help="The Broker: NAMESPACE/NAME, or NAME in the namespace default. A KafkaChannel: "
        "channel/[NAMESPACE/]NAME. Not needed if there is only one."
    ),
]


def add(app: typer.Typer, name: str, command: Callable[..., None], example: str) -> None:
    """Add a command to `app`; its help ends with the example."""
    app.command(name, epilog=f"Example: {example}")(command)


@contextlib.contextmanager
def usage() -> Iterator[None]:
    """End the command with exit code 2 for input that can't be used; other errors pass through and
    end it with 1."""
    try:
        yield
    except (event_input.BadInput, triggers.Unknown, InvalidDocument, InvalidEvent) as error:
        typer.echo(f"knafka: {error}", err=True)
        raise typer.Exit(EXIT_USAGE) from None


def refuse(problem: str) -> typer.Exit:
    """Print what is wrong with the command's options; raise what is returned."""
    typer.echo(f"knafka: {problem}", err=True)
    return typer.Exit(EXIT_USAGE)


def declared_in(files: list[Path] | None, data_dir: Path) -> DeclaredObjects:
    """From files, or from those that the running installation was started with."""
    paths = files or [Path(path) for path in Installation(data_dir).running().manifests]
    declared = Manifests(paths).read()
    for problem in declared.problems:
        typer.echo(f"knafka: {problem}", err=True)
    return declared


def read_event(text: str) -> Event:
    """A structured event: JSON, the name of a file, or - for stdin. Raises `BadInput`."""
    if text == "-":
        return json_format.read(sys.stdin.buffer.read())
    if text.lstrip().startswith("{"):
        return json_format.read(text.encode())
    try:
        return json_format.read(Path(text).read_bytes())
    except OSError as error:
        raise event_input.BadInput(f"the event can't be read: {error}") from None


def ingress_of(running: RunningState, broker: str | None) -> Ingress:
    """The Broker of this name, or the KafkaChannel of `channel/[NAMESPACE/]NAME`, or the only one
    of both."""
    ingresses = running.ingresses
    if broker is not None:
        by_name = {
            ObjectIdentity(ingress.kind, ingress.namespace, ingress.broker): ingress
            for ingress in ingresses
        }
        ingress = by_name.get(triggers.named(broker, "Broker"))
        if ingress is None and broker.startswith(CHANNEL_PREFIX):
            ingress = by_name.get(
                triggers.named(broker.removeprefix(CHANNEL_PREFIX), "KafkaChannel")
            )
        ingresses = () if ingress is None else (ingress,)
    if len(ingresses) == 1:
        return ingresses[0]
    known = ", ".join(map(_target, running.ingresses))
    problem = "which Broker?" if broker is None else f"there is no Broker {broker}:"
    raise refuse(f"{problem} there is {known or 'none'}")


def audience_of(ingress: Ingress) -> str:
    """Whom tokens for this Broker or KafkaChannel are for."""
    if ingress.audience is None:
        what = f"{ingress.kind} {ingress.namespace}/{ingress.broker}"
        raise refuse(f"{what} requires no tokens: start it with `knafka up --require-auth`")
    return ingress.audience


def account_of(text: str) -> ServiceAccount:
    """The service account of this name."""
    account = ServiceAccount.parse(text)
    if account is None:
        raise refuse(
            f"{text!r} is no service account: want [NAMESPACE/]NAME of a-z, 0-9, '-' and '.'"
        )
    return account


def _target(ingress: Ingress) -> str:
    name = f"{ingress.namespace}/{ingress.broker}"
    return CHANNEL_PREFIX + name if ingress.kind == "KafkaChannel" else name


def egress_of(running: RunningState, trigger: str) -> Egress:
    """The Trigger of this name, else the Subscription; that of `subscription/[NAMESPACE/]NAME`."""
    prefixed = trigger.startswith(SUBSCRIPTION_PREFIX)
    name = triggers.named(trigger.removeprefix(SUBSCRIPTION_PREFIX), "Subscription")
    candidates = [name] if prefixed else [triggers.named(trigger, "Trigger"), name]
    by_name = {
        ObjectIdentity(egress.kind, egress.namespace, egress.trigger): egress
        for egress in running.egresses
    }
    for candidate in candidates:
        if candidate in by_name:
            return by_name[candidate]
    known = ", ".join(f"{egress.namespace}/{egress.trigger}" for egress in running.egresses)
    raise refuse(f"no {candidates[0]} runs: there is {known or 'none'}")


def kafka_of(running: RunningState) -> dict[str, Any]:
    """The librdkafka configuration that reaches the Kafka of what runs."""
    return connection_configuration(Kafka(bootstrap_servers=running.bootstrap_servers))


def with_kafka(running: RunningState, ask: Callable[[KafkaAdmin], Coroutine[Any, Any, T]]) -> T:
    """Ask the Kafka of what runs."""
    return ask_kafka(kafka_of(running), ask)


def ask_kafka(reached: Mapping[str, Any], ask: Callable[[KafkaAdmin], Coroutine[Any, Any, T]]) -> T:
    """Ask the Kafka that is reached this way, by librdkafka's configuration."""

    async def asked() -> T:
        admin = KafkaAdmin(reached)
        try:
            return await ask(admin)
        finally:
            await admin.close()

    return asyncio.run(asked())


def arguments_of(options: Mapping[str, Any]) -> list[str]:
    """Options as words of a command line; what is None or False is left out."""
    arguments = []
    for name, value in options.items():
        if value is True:
            arguments.append(f"--{name}")
        elif value is not None and value is not False:
            # With the equals sign, a value may begin with a dash.
            arguments.append(f"--{name}={value}")
    return arguments


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], otherwise: str) -> None:
    """Columns as wide as their cells, for people and for awk; `otherwise` if there are no rows."""
    if not rows:
        typer.echo(otherwise)
        return
    lines = [columns, *([dead_letters.shown(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        typer.echo("  ".join(cells).rstrip())
