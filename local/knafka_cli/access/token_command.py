"""`knafka token`: prints a service account's token for a Broker, like `kubectl create token`."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from knafka_cli.shared.moments import parse_duration
from knafka_cli.shared.options import (
    DataDir,
    account_of,
    add_command,
    audience_of,
    ingress_of,
    refuse,
)
from knafka_client.state.installation import DEFAULT_DATA, Installation

MAX_TOKEN_LIFETIME: Final = 1_000_000 * 86_400
"""The most seconds for which a token may be valid, a million days: a larger expiry might not fit
into a number."""


def add_to(app: typer.Typer) -> None:
    """Add the command `knafka token` to `app`."""
    add_command(app, "token", print_token, "knafka token shop/checkout --broker default")


def print_token(
    account: Annotated[
        str, typer.Argument(metavar="ACCOUNT", help="The service account: [NAMESPACE/]NAME.")
    ],
    broker: Annotated[
        str | None,
        typer.Option(
            help="The token's audience is this running Broker, [NAMESPACE/]NAME, or "
            "KafkaChannel, channel/[NAMESPACE/]NAME. Not needed if there is only one."
        ),
    ] = None,
    audience: Annotated[
        list[str] | None,
        typer.Option(
            help="The token's audience, as in `status.address.audience`. Can be repeated."
        ),
    ] = None,
    duration: Annotated[
        str, typer.Option(help="How long the token is valid: 90s, 15m, 1h, 1d.")
    ] = "1h",
    data_dir: DataDir = DEFAULT_DATA,
) -> None:
    """Print a token that proves to a Broker which service account sends.

    Brokers of `knafka up --require-auth` accept the token, also after a restart. With --audience
    nothing has to run.

    In a cluster: kubectl -n NAMESPACE create token NAME --audience AUDIENCE
    """
    lifetime = parse_duration(duration)
    if lifetime is None or not 1 <= lifetime <= MAX_TOKEN_LIFETIME:
        raise typer.BadParameter(f"{duration!r} is no duration: give one such as 90s, 15m, 1h, 1d")
    if audience and broker is not None:
        raise typer.BadParameter("give --broker or --audience, not both")
    if audience and not all(audience):
        raise refuse("an --audience is empty: give the audience of a Broker")
    sender, installation = account_of(account), Installation(data_dir)
    audiences = audience or [audience_of(ingress_of(installation.read_state(), broker))]
    # Imported here, as cryptography would slow the start of every other command.
    from knafka_local.tokens.issuer import Issuer

    typer.echo(Issuer.load(installation.issuer).token(sender, audiences, int(lifetime)))
