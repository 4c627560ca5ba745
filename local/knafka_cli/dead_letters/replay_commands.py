"""`knafka dead-letters cancel`: what can be done to a replay while it runs. Needs no Spark."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from knafka_cli.dead_letters.dead_letter_tables import Tables
from knafka_cli.dead_letters.group_commands import By, open_existing, user_name
from knafka_cli.shared.options import DataDir, add
from knafka_client.state.installation import DEFAULT_DATA


def add_to(app: typer.Typer) -> None:
    """Add the command to `knafka dead-letters`."""
    add(app, "cancel", cancel, "knafka dead-letters cancel 20260131-120000-3fa4c1")


def cancel(
    replay_id: Annotated[
        str,
        typer.Argument(metavar="REPLAY-ID", help="Id of the replay, as it says when it begins."),
    ],
    by: By = None,
    tables: Tables = None,
    data_dir: DataDir = DEFAULT_DATA,
) -> None:
    """End a replay within some seconds; what it has not sent yet stays unresolved.

    Each event is sent as a whole or not at all, and another replay may send the rest. A replay that
    was cut short is not continued any more.
    """
    files = open_existing(tables, data_dir)
    from knafka_jobs.lookup.cancel import cancel_replay

    cancel_replay(files, replay_id, by or user_name(), datetime.now(UTC))
    typer.echo(f"the replay {replay_id} ends; its command says how many events it has sent")
