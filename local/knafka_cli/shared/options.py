"""Options that several commands take, requests to Kafka, and errors of usage.

Exit codes: 0 success, 1 the command failed or its answer is no, 2 its input can't be used. An
Ingress describes a Broker or KafkaChannel that runs, an Egress a Trigger or Subscription: with its
topic, consumer group, filters and sinks (`core.contract`).
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import typer

from knafka.clients.kafka.admin.kafka_admin import KafkaAdmin
from knafka.clients.kafka.kafka_connection import connection_configuration
from knafka.core.contract import Egress, Ingress, Kafka
from knafka.core.errors import InvalidDocument, InvalidEvent
from knafka.core.events import json_format
from knafka.core.events.event import Event
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
"""Name of the option for the data folder of a `knafka up`."""

T = TypeVar("T")
"""Result of a coroutine that makes requests to Kafka."""

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


def add_command(app: typer.Typer, name: str, command: Callable[..., None], example: str) -> None:
    """Add the function `command` to `app` as the command `name`. Its help is the function's
    docstring, and ends with the `example`, a command line."""
    app.command(name, epilog=f"Example: {example}")(command)


def print_error(sentence: str) -> None:
    """Print a sentence on stderr, after the name of the program."""
    typer.echo(f"knafka: {sentence}", err=True)


@contextlib.contextmanager
def exit_on_bad_input() -> Iterator[None]:
    """Print an error about the user's input that is raised while the context is open, and exit with
    code 2. Other errors pass, and end the command with code 1."""
    try:
        yield
    except (event_input.BadInput, triggers.UnknownObject, InvalidDocument, InvalidEvent) as error:
        print_error(str(error))
        raise typer.Exit(EXIT_USAGE) from None


def refuse(problem: str) -> typer.Exit:
    """Print what is wrong with the command's options; returns the exception that the caller must
    raise, with exit code 2."""
    print_error(problem)
    return typer.Exit(EXIT_USAGE)


def read_declared(files: list[Path] | None, data_dir: Path) -> DeclaredObjects:
    """Return the objects declared in these files; without files, in those of the `knafka up` that
    runs on `data_dir`.

    Problems with a file are printed on stderr. Raises `NoManifests` if a file doesn't exist, and
    `NotRunning` if no files are given and nothing runs.
    """
    paths = files or [Path(path) for path in Installation(data_dir).read_state().manifests]
    declared = Manifests(paths).read()
    for problem in declared.problems:
        print_error(str(problem))
    return declared


def read_event(text: str) -> Event:
    """Return the structured event in `text`: JSON, the name of a file with JSON, or `-` for stdin.
    Raises `BadInput` if the file can't be read, and `InvalidEvent`."""
    if text == "-":
        return json_format.read(sys.stdin.buffer.read())
    if text.lstrip().startswith("{"):
        return json_format.read(text.encode())
    try:
        return json_format.read(Path(text).read_bytes())
    except OSError as error:
        raise event_input.BadInput(f"the event can't be read: {error}") from None


def ingress_of(running: RunningState, broker: str | None) -> Ingress:
    """Return the Ingress of the running Broker or KafkaChannel with this name: `[NAMESPACE/]NAME`
    or `channel/[NAMESPACE/]NAME`. With None, return the only Ingress that runs.

    Exits with code 2 if none has the name; with None, unless exactly one runs.
    """
    ingresses = running.ingresses
    if broker is not None:
        by_name = {
            ObjectIdentity(ingress.kind, ingress.namespace, ingress.broker): ingress
            for ingress in ingresses
        }
        ingress = by_name.get(triggers.parse_name(broker, "Broker"))
        if ingress is None and broker.startswith(CHANNEL_PREFIX):
            ingress = by_name.get(
                triggers.parse_name(broker.removeprefix(CHANNEL_PREFIX), "KafkaChannel")
            )
        ingresses = () if ingress is None else (ingress,)
    if len(ingresses) == 1:
        return ingresses[0]
    known = ", ".join(map(_ingress_name, running.ingresses))
    problem = "which Broker?" if broker is None else f"there is no Broker {broker}:"
    raise refuse(f"{problem} there is {known or 'none'}")


def audience_of(ingress: Ingress) -> str:
    """Return the audience that tokens for this Broker or KafkaChannel must have; exits with code 2
    if it requires no tokens."""
    if ingress.audience is None:
        receiving_object = f"{ingress.kind} {ingress.namespace}/{ingress.broker}"
        raise refuse(
            f"{receiving_object} requires no tokens: start it with `knafka up --require-auth`"
        )
    return ingress.audience


def account_of(text: str) -> ServiceAccount:
    """Return the service account of this name; exits with code 2 if the name is invalid."""
    account = ServiceAccount.parse(text)
    if account is None:
        raise refuse(
            f"{text!r} is no service account: give [NAMESPACE/]NAME of a-z, 0-9, '-' and '.'"
        )
    return account


def _ingress_name(ingress: Ingress) -> str:
    """Return the full name of this Broker or KafkaChannel, as the option --broker takes it."""
    name = f"{ingress.namespace}/{ingress.broker}"
    return CHANNEL_PREFIX + name if ingress.kind == "KafkaChannel" else name


def egress_of(running: RunningState, trigger: str) -> Egress:
    """Return the Egress of the named Trigger, or of the Subscription if no Trigger has that name.

    `subscription/[NAMESPACE/]NAME` names a Subscription only. Exits with code 2 if neither runs.
    """
    if trigger.startswith(SUBSCRIPTION_PREFIX):
        name = trigger.removeprefix(SUBSCRIPTION_PREFIX)
        candidates = [triggers.parse_name(name, "Subscription")]
    else:  # a Trigger has precedence, also in the error message
        candidates = [triggers.parse_name(trigger, kind) for kind in ("Trigger", "Subscription")]
    by_name = {
        ObjectIdentity(egress.kind, egress.namespace, egress.trigger): egress
        for egress in running.egresses
    }
    for candidate in candidates:
        if candidate in by_name:
            return by_name[candidate]
    known = ", ".join(f"{egress.namespace}/{egress.trigger}" for egress in running.egresses)
    raise refuse(f"no {candidates[0]} runs: there is {known or 'none'}")


def kafka_configuration(running: RunningState) -> dict[str, Any]:
    """Return the librdkafka configuration for the Kafka of the running installation."""
    return connection_configuration(Kafka(bootstrap_servers=running.bootstrap_servers))


def ask_running_kafka(
    running: RunningState, ask: Callable[[KafkaAdmin], Coroutine[Any, Any, T]]
) -> T:
    """Call `ask` in an event loop of its own, with a client of the running installation's Kafka;
    returns the result of `ask`. Raises `LogError`."""
    return ask_kafka(kafka_configuration(running), ask)


def ask_kafka(
    configuration: Mapping[str, Any], ask: Callable[[KafkaAdmin], Coroutine[Any, Any, T]]
) -> T:
    """Call `ask` in an event loop of its own, with a client of the Kafka that this librdkafka
    configuration reaches; returns the result of `ask`. Raises `LogError`."""

    async def ask_and_close() -> T:
        """Return the result of `ask`; close the client, also after an error."""
        admin = KafkaAdmin(configuration)
        try:
            return await ask(admin)
        finally:
            await admin.close()

    return asyncio.run(ask_and_close())


def arguments_of(options: Mapping[str, Any]) -> list[str]:
    """Return options, given by name, as command line arguments. None and False are left out, True
    is a flag, and a list becomes one argument for each of its entries."""
    arguments = []
    for name, value in options.items():
        if value is True:
            arguments.append(f"--{name}")
        elif isinstance(value, (list, tuple)):
            arguments += [f"--{name}={entry}" for entry in value]
        elif value is not None and value is not False:
            # With the equals sign, a value may begin with a dash.
            arguments.append(f"--{name}={value}")
    return arguments


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], empty_text: str) -> None:
    """Print the rows' cells in aligned columns, under the titles in `columns`; print only
    `empty_text` if there are no rows."""
    if not rows:
        typer.echo(empty_text)
        return
    lines = [columns, *([dead_letters.preview_text(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        typer.echo("  ".join(cells).rstrip())
