"""`knafka policy test`: would a sender's event be accepted, and which EventPolicy decides?"""

from __future__ import annotations

from typing import Annotated

import typer

from knafka_cli.shared.options import (
    EXIT_FAILED,
    DataDir,
    Files,
    account_of,
    add_command,
    exit_on_bad_input,
    read_declared,
    read_event,
)
from knafka_client.state.installation import DEFAULT_DATA


def add_to(app: typer.Typer) -> None:
    """Add the commands of `knafka policy` to its `app`."""
    example = "knafka policy test shop/checkout event.json -f examples/policies"
    add_command(app, "test", check_sender, example)


def check_sender(
    sender: Annotated[
        str,
        typer.Argument(
            help="The sender: a service account, [NAMESPACE/]NAME, or the whole subject of a "
            "token, which has colons."
        ),
    ],
    event: Annotated[
        str | None,
        typer.Argument(
            help="A structured CloudEvent: a JSON file, - for stdin, or the JSON itself. Without "
            "an event: whether the sender may send any event."
        ),
    ] = None,
    broker: Annotated[
        str | None,
        typer.Option(
            help="The receiving Broker, [NAMESPACE/]NAME, or KafkaChannel, "
            "channel/[NAMESPACE/]NAME. Not needed if there is only one."
        ),
    ] = None,
    files: Files = None,
    data_dir: DataDir = DEFAULT_DATA,
) -> None:
    """Show whether a sender's event would be accepted, and which EventPolicy decides it.

    Files alone decide, by the same code as in a cluster: Brokers, EventPolicies (with their status,
    as `kubectl get eventpolicy -o yaml` writes it) and config-features. With -f nothing has to run.

    Exit code 0: it is accepted, 1: it is refused, 2: something can't be read.
    """
    # Imported here, as the operator's decisions would slow the start of every other command.
    from knafka_cli.access import policies

    subject = sender if ":" in sender else account_of(sender).subject
    with exit_on_bad_input():
        declared = read_declared(files, data_dir)
        target = policies.find_target(declared, broker)
        structured_event = None if event is None else read_event(event)
        authentication = policies.authentication_of(declared, target.metadata.namespace)
        attributes = None if structured_event is None else structured_event.attributes
        verdict = policies.policy_verdict(authentication, target, subject, attributes)
    event_text = (
        "any event"
        if structured_event is None
        else f"{structured_event.attributes['type']} {structured_event.attributes['id']}"
    )
    receiving_object = f"{target.kind} {target.id}"
    match verdict.accepts:
        case True:
            typer.echo(f"passes: {receiving_object} accepts {event_text} of {subject}")
        case None:
            typer.echo(f"passes: {receiving_object} accepts some events of {subject}")
        case _:
            typer.echo(f"refused: {receiving_object} doesn't accept {event_text} of {subject}")
    for reason in verdict.reasons:
        typer.echo(f"  {reason}")
    if verdict.accepts is False:
        raise typer.Exit(EXIT_FAILED)
