"""`knafka send`: sends events from options, a file or stdin to a running Broker or to a URL."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Annotated, Final

import typer

from knafka.core.events.event import Event
from knafka.core.events.http_binding import MAX_BATCH
from knafka_cli.shared import event_input, sending
from knafka_cli.shared.options import (
    EXIT_FAILED,
    BrokerName,
    DataDir,
    account_of,
    add_command,
    audience_of,
    exit_on_bad_input,
    ingress_of,
)
from knafka_client.state.installation import DEFAULT_DATA, Installation

SHOWN_ANSWERS: Final = 20
"""Number of answers that are printed; after them only refusals are printed."""


def add_to(app: typer.Typer) -> None:
    """Add the command `knafka send` to `app`."""
    example = "knafka send --type com.example.order.placed --data '{\"amount\": 40}'"
    add_command(app, "send", send, example)


def send(
    broker: BrokerName = None,
    event_type: Annotated[
        str | None, typer.Option("--type", "-t", help="The event's type.")
    ] = None,
    source: Annotated[str | None, typer.Option(help="The event's source.")] = None,
    event_id: Annotated[
        str | None, typer.Option("--id", help="The event's id (default: a new UUID).")
    ] = None,
    subject: Annotated[
        str | None,
        typer.Option(help="The event's subject. Events of one subject are delivered in order."),
    ] = None,
    data: Annotated[str | None, typer.Option("--data", "-d", help="The event's data.")] = None,
    data_file: Annotated[
        typer.FileBinaryRead | None, typer.Option(help="A file with the event's data; - is stdin.")
    ] = None,
    content_type: Annotated[
        str | None,
        typer.Option(help="The data's media type (default: JSON if it is JSON, else plain text)."),
    ] = None,
    extension: Annotated[
        list[str] | None,
        typer.Option("--extension", "-e", help="An extension attribute. Can be repeated."),
    ] = None,
    file: Annotated[
        typer.FileBinaryRead | None,
        typer.Option(
            help="Send the events of this NDJSON file: one structured CloudEvent per line; - is "
            "stdin."
        ),
    ] = None,
    count: Annotated[
        int,
        typer.Option(
            min=1,
            help="Send N events; {n} in id, subject and data becomes the number of the event.",
        ),
    ] = 1,
    rate: Annotated[
        float | None, typer.Option(min=0.001, help="Send at most N events per second.")
    ] = None,
    in_order: Annotated[
        bool,
        typer.Option(
            "--in-order", help="Wait for the answer to each event before sending the next one."
        ),
    ] = False,
    batch: Annotated[
        int,
        typer.Option(
            min=0, max=MAX_BATCH, help="Send batches of N events per request; 0: no batches."
        ),
    ] = 0,
    no_retry: Annotated[
        bool, typer.Option("--no-retry", help="Don't retry after a 503 or a failed connection.")
    ] = False,
    url: Annotated[
        str | None, typer.Option(help="Send to this URL instead of a Broker that runs here.")
    ] = None,
    account: Annotated[
        str | None,
        typer.Option(
            "--as",
            help="Send with a token of this service account, [NAMESPACE/]NAME.",
        ),
    ] = None,
    data_dir: DataDir = DEFAULT_DATA,
) -> None:
    """Send one event, or many, to a Broker or a KafkaChannel.

    Prints the answer to each event; of many events, only refusals and a summary.
    Exit code 1 if any event was not accepted.
    """
    options = {"type": event_type, "source": source, "id": event_id, "subject": subject}
    attributes = {name: value for name, value in options.items() if value is not None}
    attributes.update(map(_parse_extension, extension or []))
    if content_type is not None:
        attributes["datacontenttype"] = content_type
    if file is not None and (attributes or data is not None or data_file or count != 1):
        raise typer.BadParameter("--file has whole events: leave the options for one event out")
    payload = _read_data(data, data_file)
    if url is not None and account is not None:
        raise typer.BadParameter("--as is for a Broker that runs here: leave --url out")
    target, authorization = _send_target(Installation(data_dir), broker, url, account)
    with exit_on_bad_input():
        events: Iterable[Event]
        if file is not None:
            events = event_input.read_events(file, file.name)
        else:
            # All are made before the first is sent, so that invalid options send nothing.
            events = [
                event_input.sample_event(attributes, payload, number)
                for number in range(1, count + 1)
            ]
        answer_numbers = itertools.count(1)

        def show(answer: sending.SendResult) -> None:
            """Print an answer, if it is one of the first `SHOWN_ANSWERS` or a refusal."""
            if next(answer_numbers) <= SHOWN_ANSWERS or not answer.is_accepted:
                typer.echo(str(answer))

        summary = sending.SendSummary()
        try:
            asyncio.run(
                sending.send(
                    events,
                    target,
                    show,
                    retry=not no_retry,
                    rate=rate,
                    connections=1 if in_order else sending.SEND_CONNECTIONS,
                    batch=batch,
                    authorization=authorization,
                    summary=summary,
                )
            )
        finally:  # also after a broken line of the file: the events before it are sent
            if sum(summary.statuses.values()) > 1:
                typer.echo(str(summary))
    if summary.statuses[HTTPStatus.UNAUTHORIZED] and url is None and account is None:
        typer.echo(
            "knafka: the Broker requires a token: name a service account with --as", err=True
        )
    raise typer.Exit(0 if summary.all_accepted else EXIT_FAILED)


def _read_data(data: str | None, data_file: typer.FileBinaryRead | None) -> bytes | None:
    """Return the data in the option `--data`, or in the file of `--data-file`; None if neither is
    given. Raises `typer.BadParameter` if both are."""
    if data is not None and data_file is not None:
        raise typer.BadParameter("give --data or --data-file, not both")
    if data_file is not None:
        return data_file.read()
    return None if data is None else data.encode()


def _parse_extension(text: str) -> tuple[str, str]:
    """Return the name and the value in the option `--extension NAME=VALUE`. Raises
    `typer.BadParameter` if `text` isn't of this form."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise typer.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--extension")
    return name, value


def _send_target(
    installation: Installation, broker: str | None, url: str | None, account: str | None
) -> tuple[str, Callable[[], bytes]]:
    """Return the URL to send to, and a function that returns the `authorization` header line of a
    request: with a token of `account`, or an empty line if `account` is None.

    The URL is `url`, or else the running Broker's. Exits with code 2 if there is no such
    Broker, or if an account is given and the Broker requires no tokens. Raises `NotRunning` and
    `BadIssuer`.
    """
    if url is not None:
        return url, bytes  # `bytes()` is an empty line
    running = installation.read_state()
    ingress = ingress_of(running, broker)
    if account is None:
        return running.url_of(ingress), bytes
    # Imported here, as cryptography would slow the start of every other command.
    from knafka_local.tokens.issuer import Issuer, TokenProvider

    sender = TokenProvider(
        Issuer.load(installation.issuer), account_of(account), audience_of(ingress)
    )
    return running.url_of(ingress), sender.header
