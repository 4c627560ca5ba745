"""`knafka convert sensor`: converts Sensors of Argo Events to Knafka's."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
import yaml

from knafka.core.documents import parse
from knafka.core.errors import InvalidDocument
from knafka_cli.shared import event_input
from knafka_cli.shared.options import EXIT_FAILED, add_command, exit_on_bad_input, print_error


def add_to(app: typer.Typer) -> None:
    """Add the commands of `knafka convert` to its `app`."""
    add_command(
        app, "sensor", convert_sensors, "knafka convert sensor argo-sensor.yaml > sensor.yaml"
    )


def convert_sensors(
    file: Annotated[Path, typer.Argument(help="A YAML file with Sensors of Argo Events.")],
    broker: Annotated[
        str | None,
        typer.Option(help="The Broker that becomes the Sensors' bus (default: default)."),
    ] = None,
    channel: Annotated[
        str | None,
        typer.Option(help="The KafkaChannel that becomes the Sensors' bus, instead of a Broker."),
    ] = None,
) -> None:
    """Convert Sensors of Argo Events to Knafka's: YAML on stdout, changes and losses on stderr.

    Dependencies filter by `source` (the EventSource) and `subject` (the event), as Argo's events
    have them; HTTP triggers become subscribers. Exit code 1: something isn't carried over.
    """
    # Imported here, as the operator's models would slow the start of every other command.
    from knafka_cli.sensors import argo
    from knafka_operator.model.sensors import Sensor

    with exit_on_bad_input():
        if broker is not None and channel is not None:
            raise event_input.BadInput("give --broker or --channel, not both")
        conversions = [
            argo.convert_sensor(document, broker or "default", channel)
            for document in _read_sensors(file)
        ]
        typer.echo(
            yaml.safe_dump_all(
                [conversion.document for conversion in conversions], sort_keys=False
            ),
            nl=False,
        )
        for conversion in conversions:
            name = conversion.document["metadata"]["name"]
            for note in (*conversion.changed, *conversion.lost):
                print_error(f"{name}: {note}")
        # Checked last, so that an invalid Sensor was printed and can be corrected by hand. One
        # without triggers, which is invalid, too, is already noted as a loss.
        for conversion in conversions:
            if conversion.document["spec"]["triggers"]:
                try:
                    parse(Sensor, conversion.document)
                except InvalidDocument as error:
                    raise InvalidDocument(
                        "", f"the Sensor converted from {file} is invalid: {error}"
                    ) from None
    if any(conversion.lost for conversion in conversions):
        raise typer.Exit(EXIT_FAILED)


def _read_sensors(file: Path) -> list[dict[str, object]]:
    """Return the objects of kind `Sensor`, of any apiVersion, in a YAML file. Raises `BadInput` if
    there is none, or the file can't be read."""
    sensors = [
        document
        for document in event_input.read_objects(file)
        if isinstance(document, dict) and document.get("kind") == "Sensor"
    ]
    if not sensors:
        raise event_input.BadInput(f"{file} has no Sensor")
    return sensors
