"""`knafka dead-letters forward`: posts the events of a group to a URL of the user's choice.

A replay delivers to the Trigger that failed; this is for another destination. Needs no Spark.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Final

import typer

from knafka_cli.dead_letters.archive_tables import TablesSource, on_tables
from knafka_cli.dead_letters.group_commands import OneGroup, select_members
from knafka_cli.shared import sending
from knafka_cli.shared.counts import count_text
from knafka_cli.shared.options import EXIT_FAILED, add_command, exit_on_bad_input, refuse

if TYPE_CHECKING:
    from knafka.core.events.event import Event

SHOWN_REFUSALS: Final = 20
"""Number of answers to refused events that are printed; further ones are only counted."""


def add_to(app: typer.Typer) -> None:
    """Add the command `forward` to the `app` of `knafka dead-letters`."""
    example = "knafka dead-letters forward 0f3c5a9e77b1 --to http://localhost:9000/ --dry-run"
    add_command(app, "forward", forward, example)


@on_tables
def forward(
    tables: TablesSource,
    group: OneGroup,
    to: Annotated[str, typer.Option(metavar="URL", help="Where to post the events.")],
    include_resolved: Annotated[
        bool, typer.Option("--all", help="Resolved events, too, instead of unresolved ones only.")
    ] = False,
    rate: Annotated[
        float | None, typer.Option(min=0.001, help="Post at most N events per second.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say how many events would be posted.")
    ] = False,
) -> None:
    """Post the unresolved events of a group to another destination, one by one, in their order.

    They are the original events, as CloudEvents in binary mode, without any credentials. Every 2xx
    accepts an event; 429 and 503 are tried again. The tables don't change: the events stay
    unresolved until they are replayed or purged. Exit code 1 if any event was not accepted.
    """
    if not to.startswith(("http://", "https://")):
        raise refuse(f"--to {to!r} is no URL: give http://HOST/PATH or https://HOST/PATH")
    with exit_on_bad_input():
        sending.target_of(to)  # a dry run must refuse what the real one would refuse
    files = tables.open()
    count, predicate = select_members(files, group, unresolved=not include_resolved)
    if dry_run:
        typer.echo(f"{count_text(count, 'event')} would be posted to {to}")
        return
    from knafka_jobs.lookup.export import read_events

    refused, left_out = 0, 0

    def read_whole_events() -> Iterator[Event]:
        """Yield the group's events that the tables have whole, and count the others in
        `left_out`."""
        nonlocal left_out
        for event in read_events(files, predicate):
            if event is None:
                left_out += 1
            else:
                yield event

    def count_refusal(answer: sending.SendResult) -> None:
        """Count the answer in `refused` if it doesn't accept its event; the first `SHOWN_REFUSALS`
        such answers are printed, too."""
        nonlocal refused
        if not _is_success(answer.status):
            refused += 1
            if refused <= SHOWN_REFUSALS:
                typer.echo(str(answer))

    with exit_on_bad_input():
        # With one connection, each event waits for the answer to the one before: order is kept.
        summary = asyncio.run(
            sending.send(read_whole_events(), to, count_refusal, rate=rate, connections=1)
        )
    accepted = sum(number for status, number in summary.statuses.items() if _is_success(status))
    typer.echo(f"{count_text(accepted, 'event')} accepted by {to}")
    if refused:
        typer.echo(f"{refused} not accepted")
    if left_out:
        typer.echo(f"{left_out} left out: no events, or their data were too large to be kept")
    raise typer.Exit(EXIT_FAILED if refused else 0)


def _is_success(status: int | None) -> bool:
    """Whether this HTTP status code, any 2xx, says that an event was accepted. None: there was no
    answer, so the event wasn't accepted."""
    return status is not None and HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES
