"""Reads events from command line options, and from files with one event per line; and the objects
of a YAML file."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from knafka.core.errors import InvalidEvent, KnafkaError
from knafka.core.events import json_format
from knafka.core.events.event import Event, validate


class BadInput(KnafkaError):
    """The user's input, typed or in a file, can't be used; the text says why."""


def read_objects(file: Path) -> Sequence[object]:
    """Return every object in a YAML file. Raises `BadInput` if the file can't be read."""
    # Imported here, as the operator's models would slow the start of every other command.
    from knafka_client.declared.manifests import UnreadableFile, read_documents

    try:
        return [document for _, document in read_documents(file)]
    except UnreadableFile as error:
        raise BadInput(f"{file} {error}") from None


def sample_event(attributes: Mapping[str, str], data: bytes | None, number: int) -> Event:
    """Make an event from the user's options; `{n}` in attributes and data is replaced by `number`,
    the event's number in a series.

    Required attributes that aren't given get sample values. With data, `datacontenttype` is added
    if it isn't given: JSON if the data are JSON, else plain text. Raises `BadInput` with every rule
    of CloudEvents that the event breaks (CE-H12).
    """
    numbered = {name: value.replace("{n}", str(number)) for name, value in attributes.items()}
    defaults = {
        "specversion": "1.0",
        "id": str(uuid.uuid4()),
        "source": "knafka-cli",
        "type": "dev.knafka.sample",
    }
    numbered_data = None if data is None else data.replace(b"{n}", str(number).encode())
    if numbered_data is not None:
        is_json = _is_json(numbered_data)
        defaults["datacontenttype"] = "application/json" if is_json else "text/plain"
    event = Event({**defaults, **numbered}, numbered_data)
    try:
        validate(event.attributes)
    except InvalidEvent as error:
        raise BadInput(str(error)) from None
    return event


def read_events(lines: Iterable[bytes], name: str) -> Iterator[Event]:
    """Yield the events in NDJSON, one structured event per line; empty lines are skipped.

    Raises `BadInput` for a line that holds no valid event, with the line's number and the `name` of
    the file.
    """
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                yield json_format.read(line.strip())
            except InvalidEvent as error:
                raise BadInput(f"{name}, line {number}: {error}") from None


def _is_json(data: bytes) -> bool:
    """Whether the bytes are JSON text."""
    try:
        json.loads(data)
    except ValueError:
        return False
    return True
