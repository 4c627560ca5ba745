"""`knafka check`: checks files as a cluster would, without a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from knafka_cli.shared.counts import count_text
from knafka_cli.shared.options import EXIT_FAILED, add_command


def add_to(app: typer.Typer) -> None:
    """Add the command `knafka check` to `app`."""
    add_command(app, "check", check, "knafka check examples/quickstart")


def check(
    files: Annotated[
        list[Path],
        typer.Argument(
            help="YAML files, or folders of YAML files. All of them are checked together."
        ),
    ],
    partial: Annotated[
        bool,
        typer.Option(
            "--partial",
            help="Accept references to objects that are not in the files: they may be in the "
            "cluster.",
        ),
    ] = False,
) -> None:
    """Check Brokers, Triggers, channels, Subscriptions, EventPolicies and ConfigMaps without a
    cluster.

    Errors: what admission would refuse (unknown fields, invalid values, CESQL that doesn't parse or
    calls unknown functions), references to missing objects, filters that no event can match.
    Exit code 1 if there is an error; warnings alone: 0.
    """
    # Imported here, as admission would slow the start of every other command.
    from knafka_cli.checks import checking

    checked = checking.check(files, partial=partial)
    for finding in checked.findings:
        typer.echo(str(finding))
    errors = sum(finding.severity is checking.FindingSeverity.ERROR for finding in checked.findings)
    counts = (count_text(errors, "error"), count_text(len(checked.findings) - errors, "warning"))
    typer.echo(f"{count_text(checked.object_count, 'object')} checked: {', '.join(counts)}")
    if checked.failed:
        raise typer.Exit(EXIT_FAILED)
