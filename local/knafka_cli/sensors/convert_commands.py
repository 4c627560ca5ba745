"""`knafka convert sensor`: what others run, declared for Knafka."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
import yaml

from knafka.core.documents import parse
from knafka.core.errors import InvalidDocument
from knafka_cli.shared import event_input
from knafka_cli.shared.options import FAILED, add, usage


def add_to(app: typer.Typer) -> None:
    """Add the commands to `knafka convert`."""
    add(app, "sensor", sensor, "knafka convert sensor argo-sensor.yaml > sensor.yaml")


def sensor(
    file: Annotated[Path, typer.Argument(help="A YAML file with Sensors of Argo Events.")],
    broker: Annotated[
        str | None, typer.Option(help="The Broker that is their bus; not set, default.")
    ] = None,
    channel: Annotated[
        str | None, typer.Option(help="The KafkaChannel that is their bus, in place of a Broker.")
    ] = None,
) -> None:
    """Argo Events' Sensors as Knafka's: YAML on stdout, what is changed or left out on stderr.

    Dependencies filter by `source` (the EventSource) and `subject` (the event), as Argo's events
    have them; HTTP triggers become subscribers. Exit code 1: something isn't carried over.
    """
    # Here, as the operator's models cost every other command's start.
    from knafka_cli.sensors import argo
    from knafka_operator.model.sensors import Sensor

    with usage():
        if broker is not None and channel is not None:
            raise event_input.BadInput("want --broker or --channel, not both")
        found = [argo.convert(each, broker or "default", channel) for each in _sensors(file)]
        typer.echo(yaml.safe_dump_all([each.document for each in found], sort_keys=False), nl=False)
        for each in found:
            name = each.document["metadata"]["name"]
            for told in (*each.changed, *each.lost):
                typer.echo(f"knafka: {name}: {told}", err=True)
        for each in found:
            if each.document["spec"]["triggers"]:
                try:
                    parse(Sensor, each.document)
                except InvalidDocument as error:
                    raise InvalidDocument("", f"what came of {file}: {error}") from None
    if any(each.lost for each in found):
        raise typer.Exit(FAILED)


def _sensors(file: Path) -> list[dict[str, object]]:
    try:
        documents = [each for each in yaml.safe_load_all(file.read_text()) if each]
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise event_input.BadInput(f"{file} can't be read: {error}") from None
    found = [each for each in documents if isinstance(each, dict) and each.get("kind") == "Sensor"]
    if not found:
        raise event_input.BadInput(f"{file} has no Sensor")
    return found
