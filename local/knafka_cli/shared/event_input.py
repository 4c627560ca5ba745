"""Events from options of the command line, and from files of one event a line."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping

from knafka.core import json_format
from knafka.core.errors import InvalidEvent, KnafkaError
from knafka.core.event import Event, validate


class BadInput(KnafkaError):
    """An event that can't be sent as it is written."""


def sample(attributes: Mapping[str, str], data: bytes | None, number: int) -> Event:
    """The `number`-th event of a row; `{n}` in id, subject and data becomes the number.

    Raises `BadInput` with every rule of CloudEvents that it breaks (CE-H12).
    """
    spelt = {name: value.replace("{n}", str(number)) for name, value in attributes.items()}
    defaults = {
        "specversion": "1.0",
        "id": str(uuid.uuid4()),
        "source": "knafka-cli",
        "type": "dev.knafka.sample",
    }
    filled = None if data is None else data.replace(b"{n}", str(number).encode())
    if filled is not None:
        is_json = _is_json(filled)
        defaults["datacontenttype"] = "application/json" if is_json else "text/plain"
    event = Event({**defaults, **spelt}, filled)
    try:
        validate(event.attributes)
    except InvalidEvent as error:
        raise BadInput(str(error)) from None
    return event


def events_of(lines: Iterable[bytes], name: str) -> Iterator[Event]:
    """The events of NDJSON, one structured event a line; empty lines are skipped.

    Raises `BadInput` that names the line.
    """
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                yield json_format.read(line.strip())
            except InvalidEvent as error:
                raise BadInput(f"{name}, line {number}: {error}") from None


def _is_json(data: bytes) -> bool:
    try:
        json.loads(data)
    except ValueError:
        return False
    return True
