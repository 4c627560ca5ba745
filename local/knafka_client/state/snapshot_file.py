"""The status: the snapshot of what runs, kept in a file by `knafka up` for the other commands."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from knafka.core import documents
from knafka.core.documents import Model
from knafka.core.errors import InvalidDocument
from knafka_client.state.installation import Installation, NotRunning
from knafka_client.state.snapshot import Snapshot

STATUS_WRITE_INTERVAL: Final = 1.0
"""Seconds between two looks; nothing is written if nothing has changed."""


class StatusDocument(Model):
    """The file's content."""

    now: Snapshot


def write(installation: Installation, now: Snapshot) -> None:
    """Write a snapshot to the file that the other commands read."""
    installation.write_status(as_json(now))


async def keep(installation: Installation, snapshot: Callable[[], Snapshot]) -> None:
    """Keep the file up to date until cancelled."""
    written = None
    while True:
        if (now := snapshot()) != written:
            with contextlib.suppress(OSError):  # a full disk is no reason to stop delivering
                write(installation, now)
                written = now
        await asyncio.sleep(STATUS_WRITE_INTERVAL)


def read(installation: Installation) -> Snapshot:
    """The last snapshot, a second old at most. Raises `NotRunning`, also while `knafka up`
    starts."""
    if (text := installation.status()) is None:
        installation.running()  # which says better what is wrong
        raise NotRunning(f"what runs on {installation.data} is starting or stopping: ask again")
    try:
        return documents.parse_json(StatusDocument, text).now
    except InvalidDocument:
        raise NotRunning(
            f"what runs on {installation.data} is another version of Knafka: start it anew"
        ) from None


def as_json(now: Snapshot) -> str:
    """The snapshot for machines."""
    return StatusDocument(now=now).model_dump_json(by_alias=True)


def not_ready(now: Snapshot) -> list[str]:
    """One sentence for each object that isn't Ready."""
    brokers = [f"{row.kind} {row.name}: {row.refused}" for row in now.brokers if row.refused]
    triggers = [f"{row.kind} {row.name}: {row.refused}" for row in now.triggers if row.refused]
    sensors = [f"Sensor {row.name}: {row.refused}" for row in now.sensors if row.refused]
    return [*brokers, *sensors, *triggers, *now.problems]
