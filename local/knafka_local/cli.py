"""The command line: `knafka up` runs everything on this machine, the rest talk to what it runs.

Exit codes: 0 done, 1 it failed or said no, 2 it was asked in a way that can't be answered.
Refused here: doing anything. Each command reads its arguments, calls `local`, and prints.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
from collections.abc import Callable, Coroutine, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import typer

from knafka.clients.kafka_admin import KafkaAdmin
from knafka.clients.kafka_connection import connection
from knafka.core import json_format
from knafka.core.contract import Egress, Kafka
from knafka.core.documents import explained_faults
from knafka.core.errors import InvalidDocument, InvalidEvent, KnafkaError
from knafka.core.event import Event
from knafka_local import dead_letter_commands, dead_letters, sending, triggers, view
from knafka_local.installation import DEFAULT_DATA, Installation, State
from knafka_local.manifests import Declared, Manifests
from knafka_local.supervisor import Options
from knafka_local.up import up as run_until_stopped
from knafka_operator.model.resources import Trigger

FAILED: Final = 1
USAGE: Final = 2
SHOWN_ANSWERS: Final = 20
"""So many answers are shown one by one; of more, only those that say no."""

T = TypeVar("T")

app = typer.Typer(
    name="knafka",
    help="A Kafka-backed Knative Broker on your machine: Brokers and Triggers from YAML, events "
    "over HTTP, through a real Kafka, to your functions.",
    epilog="Start with: knafka up -f examples/quickstart",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
trigger_app = typer.Typer(help="Ask what Triggers want.", no_args_is_help=True)
letters_app = typer.Typer(
    help="Look at events that could not be delivered, report on them, send them again.",
    no_args_is_help=True,
)
app.add_typer(trigger_app, name="trigger")
app.add_typer(letters_app, name="dead-letters")
dead_letter_commands.add_to(letters_app)

Files = Annotated[
    list[Path] | None,
    typer.Option("-f", "--file", help="A YAML file, or a folder of them. Can be repeated."),
]
Folder = Annotated[
    Path,
    typer.Option(
        "--installation", envvar="KNAFKA_DATA", help="The --data folder of the running knafka up."
    ),
]


def main() -> None:
    """Run a command; what went wrong is one line on stderr."""
    try:
        with explained_faults():
            app()
    except KnafkaError as error:
        typer.echo(f"knafka: {error}", err=True)
        sys.exit(FAILED)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"knafka {version('knafka')}")
        raise typer.Exit


@app.callback()
def knafka(
    _: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    pass


@app.command()
def up(
    files: Files = None,
    bootstrap_servers: Annotated[
        str | None,
        typer.Option(help="Use a Kafka that runs already (host:port,...) instead of our own."),
    ] = None,
    port: Annotated[
        int, typer.Option(min=1, max=65535, help="Where Brokers take events, on 127.0.0.1.")
    ] = 8080,
    kafka_port: Annotated[
        int, typer.Option(min=1, max=65535, help="Where our own Kafka listens, on 127.0.0.1.")
    ] = 9092,
    data: Annotated[
        Path,
        typer.Option(
            envvar="KNAFKA_DATA", help="Where everything is kept: Kafka's data, the logs, a lock."
        ),
    ] = DEFAULT_DATA,
    plain: Annotated[bool, typer.Option("--plain", help="Lines instead of a live table.")] = False,
    send_file: Annotated[
        Path | None,
        typer.Option(
            "--send",
            exists=True,
            dir_okay=False,
            help="Once all is up, send the events of this NDJSON file, and stay up.",
        ),
    ] = None,
) -> None:
    """Run Brokers and Triggers from YAML: Kafka, receiver, dispatchers and subscribers.

    Without -f, the YAML files of the current folder are used. Changed files are applied while it
    runs. Ctrl-C stops everything; the data is there again the next time.
    """
    options = Options(
        tuple(files or [Path()]), data, port, kafka_port, bootstrap_servers=bootstrap_servers
    )
    asyncio.run(run_until_stopped(options, view.choose(plain), send_file))


@app.command()
def send(
    broker: Annotated[
        str | None,
        typer.Argument(help="NAMESPACE/NAME, or NAME in the namespace default; or the only one."),
    ] = None,
    event_type: Annotated[str | None, typer.Option("--type", "-t", help="Its type.")] = None,
    source: Annotated[str | None, typer.Option(help="Its source.")] = None,
    event_id: Annotated[
        str | None, typer.Option("--id", help="Its id; a new UUID if not given.")
    ] = None,
    subject: Annotated[
        str | None, typer.Option(help="Its subject, by which events are kept in order.")
    ] = None,
    data: Annotated[str | None, typer.Option("--data", "-d", help="Its data.")] = None,
    data_file: Annotated[
        typer.FileBinaryRead | None, typer.Option(help="A file with its data; - is stdin.")
    ] = None,
    content_type: Annotated[
        str | None, typer.Option(help="Of the data; JSON or plain text if not given.")
    ] = None,
    extension: Annotated[
        list[str] | None,
        typer.Option("--extension", "-e", help="NAME=VALUE; can be repeated."),
    ] = None,
    file: Annotated[
        typer.FileBinaryRead | None,
        typer.Option(help="Many events: a structured CloudEvent as JSON a line; - is stdin."),
    ] = None,
    count: Annotated[
        int, typer.Option(min=1, help="How many; {n} in id, subject and data is the number.")
    ] = 1,
    rate: Annotated[float | None, typer.Option(min=0.001, help="Events a second, at most.")] = None,
    in_order: Annotated[
        bool, typer.Option("--in-order", help="Wait for each answer before the next event.")
    ] = False,
    no_retry: Annotated[
        bool, typer.Option("--no-retry", help="Don't try again when nobody answers, or 503.")
    ] = False,
    url: Annotated[
        str | None, typer.Option(help="Where to send, instead of a Broker that runs here.")
    ] = None,
    installation: Folder = DEFAULT_DATA,
) -> None:
    """Send one event, or many, to a Broker.

    Prints the answer to each, or of many, those that were not accepted and a summary. Exit code 1
    if any was not accepted.
    """
    options = {"type": event_type, "source": source, "id": event_id, "subject": subject}
    attributes = {name: value for name, value in options.items() if value is not None}
    attributes.update(map(_extension, extension or []))
    if content_type is not None:
        attributes["datacontenttype"] = content_type
    if file is not None and (attributes or data is not None or data_file or count != 1):
        raise typer.BadParameter("--file has whole events: leave the options for one event out")
    if data is not None and data_file is not None:
        raise typer.BadParameter("give --data or --data-file, not both")
    payload = data_file.read() if data_file is not None else None if data is None else data.encode()
    target = url or _broker_url(Installation(installation).running(), broker)
    with _usage():
        events = (
            sending.events_of(file, file.name)
            if file is not None
            else iter([sending.sample(attributes, payload, n) for n in range(1, count + 1)])
        )
        shown = itertools.count(1)

        def show(answer: sending.Answer) -> None:
            if next(shown) <= SHOWN_ANSWERS or not answer.accepted:
                typer.echo(str(answer))

        summary = asyncio.run(
            sending.send(
                events,
                target,
                show,
                retry=not no_retry,
                rate=rate,
                connections=1 if in_order else sending.CONNECTIONS,
            )
        )
    if sum(summary.statuses.values()) > 1:
        typer.echo(str(summary))
    raise typer.Exit(0 if summary.all_accepted else FAILED)


@trigger_app.command("test")
def trigger_test(
    trigger: Annotated[str, typer.Argument(help="NAMESPACE/NAME, or NAME in default.")],
    event: Annotated[
        str, typer.Argument(help="A structured CloudEvent: a JSON file, - for stdin, or the JSON.")
    ],
    files: Files = None,
    installation: Folder = DEFAULT_DATA,
) -> None:
    """Would this event match, and if not, which clause says no?

    Nothing has to run if -f says where the Trigger is declared. Exit code 0: it matches, 1: it
    doesn't, 2: the event or the Trigger can't be read.
    """
    with _usage():
        wanted = triggers.find(_declared(files, installation), trigger)
        read = _read_event(event)
    about = f"{read.attributes['type']} {read.attributes['id']}"
    if not (clauses := triggers.refusals(wanted, read)):
        typer.echo(f"match: {wanted.id} wants {about}")
        return
    typer.echo(f"no match: {wanted.id} doesn't want {about}")
    for clause in clauses:
        typer.echo(f"  {clause}")
    raise typer.Exit(FAILED)


@trigger_app.command("list")
def list_triggers(files: Files = None, installation: Folder = DEFAULT_DATA) -> None:
    """The Triggers that run, or those declared in files: filters, subscriber, order, lag."""
    with _usage():
        declared = _declared(files, installation)
    lags: dict[str, int] = {}
    if not files:
        running = Installation(installation).running()
        lags = _with_kafka(running, lambda admin: _lags(admin, running.egresses))
    columns = ["TRIGGER", "BROKER", "FILTERS", "SUBSCRIBER", "ORDER", *(["LAG"] if lags else [])]
    rows = [
        [
            each.id,
            each.spec.broker,
            triggers.filters_in_short(each),
            triggers.subscriber_in_short(each.spec.subscriber),
            triggers.order_in_short(each),
            *([str(lags.get(each.id, "?"))] if lags else []),
        ]
        for each in declared.all(Trigger)
    ]
    _print_table(columns, rows, "no Trigger is declared")


@letters_app.command("list")
def list_letters(
    trigger: Annotated[str | None, typer.Argument(help="Only this Trigger's.")] = None,
    installation: Folder = DEFAULT_DATA,
) -> None:
    """How many dead letters each Trigger has, from when, and why."""
    running = Installation(installation).running()
    chosen = running.egresses if trigger is None else [_egress(running, trigger)]

    async def look(admin: KafkaAdmin) -> list[dead_letters.Overview]:
        return [await dead_letters.overview(admin, egress) for egress in chosen]

    rows = [
        [
            each.trigger,
            each.counted,
            each.oldest,
            each.newest,
            ", ".join(f"{reason} × {count}" for reason, count in each.reasons.items()),
        ]
        for each in _with_kafka(running, look)
    ]
    _print_table(["TRIGGER", "COUNT", "OLDEST", "NEWEST", "REASONS"], rows, "no Trigger runs")


@letters_app.command("show")
def show_letters(
    trigger: Annotated[str, typer.Argument(help="NAMESPACE/NAME, or NAME in default.")],
    limit: Annotated[int, typer.Option(min=1, help="The last so many.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    installation: Folder = DEFAULT_DATA,
) -> None:
    """The last dead letters of a Trigger: what, why, how often tried, and what was answered."""
    running = Installation(installation).running()
    egress = _egress(running, trigger)
    found = _with_kafka(running, lambda admin: dead_letters.letters(admin, egress, limit))
    for each in found:
        typer.echo(each.json() if as_json else each.text())
    if not found and not as_json:
        typer.echo(f"{egress.namespace}/{egress.trigger} has no dead letters")


@contextlib.contextmanager
def _usage() -> Iterator[None]:
    """What can't be read ends with exit code 2; that nothing runs, or answers, is no such thing."""
    try:
        yield
    except (sending.BadInput, triggers.Unknown, InvalidDocument, InvalidEvent) as error:
        typer.echo(f"knafka: {error}", err=True)
        raise typer.Exit(USAGE) from None


def _extension(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise typer.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--extension")
    return name, value


def _broker_url(running: State, broker: str | None) -> str:
    ingresses = running.ingresses
    if broker is not None:
        wanted = triggers.named(broker, "Broker")
        ingresses = tuple(each for each in ingresses if (each.namespace, each.broker) == wanted[1:])
    if len(ingresses) == 1:
        return running.url + ingresses[0].path
    known = ", ".join(f"{each.namespace}/{each.broker}" for each in running.ingresses)
    problem = "which Broker?" if broker is None else f"there is no Broker {broker}:"
    typer.echo(f"knafka: {problem} there is {known or 'none'}", err=True)
    raise typer.Exit(USAGE)


def _declared(files: list[Path] | None, installation: Path) -> Declared:
    """From files, or from those that the running installation was started with."""
    paths = files or [Path(each) for each in Installation(installation).running().manifests]
    declared = Manifests(paths).read()
    for problem in declared.problems:
        typer.echo(f"knafka: {problem}", err=True)
    return declared


def _read_event(text: str) -> Event:
    if text == "-":
        return json_format.read(sys.stdin.buffer.read())
    if text.lstrip().startswith("{"):
        return json_format.read(text.encode())
    try:
        return json_format.read(Path(text).read_bytes())
    except OSError as error:
        raise sending.BadInput(f"the event can't be read: {error}") from None


def _egress(running: State, trigger: str) -> Egress:
    wanted = triggers.named(trigger, "Trigger")
    for each in running.egresses:
        if (each.namespace, each.trigger) == wanted[1:]:
            return each
    known = ", ".join(f"{each.namespace}/{each.trigger}" for each in running.egresses)
    typer.echo(f"knafka: no {wanted} runs: there is {known or 'none'}", err=True)
    raise typer.Exit(USAGE)


async def _lags(admin: KafkaAdmin, egresses: tuple[Egress, ...]) -> dict[str, int]:
    lags = {}
    for each in egresses:
        found = await admin.lags([each.group], each.topic)
        lags[f"{each.namespace}/{each.trigger}"] = found[each.group].total
    return lags


def _with_kafka(running: State, ask: Callable[[KafkaAdmin], Coroutine[Any, Any, T]]) -> T:
    async def asked() -> T:
        admin = KafkaAdmin(connection(Kafka(bootstrap_servers=running.bootstrap_servers)))
        try:
            return await ask(admin)
        finally:
            await admin.close()

    return asyncio.run(asked())


def _print_table(columns: list[str], rows: list[list[str]], otherwise: str) -> None:
    if not rows:
        typer.echo(otherwise)
        return
    lines = [columns, *([dead_letters.shown(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        typer.echo("  ".join(cells).rstrip())
