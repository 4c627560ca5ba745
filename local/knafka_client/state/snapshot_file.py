"""The status file: the last snapshot, written by `knafka up` and read by the other commands."""

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
"""Seconds between two snapshots; a snapshot that equals the one before isn't written."""


class StatusDocument(Model):
    """The content of the status file: the snapshot of now."""

    now: Snapshot


def write_snapshot(installation: Installation, snapshot: Snapshot) -> None:
    """Write a snapshot to the status file."""
    installation.write_status(snapshot_json(snapshot))


async def keep_written(installation: Installation, take_snapshot: Callable[[], Snapshot]) -> None:
    """Keep the status file up to date until cancelled: call `take_snapshot` each
    `STATUS_WRITE_INTERVAL` seconds, and write its result if it has changed."""
    last_written = None
    while True:
        if (current := take_snapshot()) != last_written:
            with contextlib.suppress(OSError):  # a full disk is no reason to stop delivering
                write_snapshot(installation, current)
                last_written = current
        await asyncio.sleep(STATUS_WRITE_INTERVAL)


def read_snapshot(installation: Installation) -> Snapshot:
    """Return the last snapshot, at most a second old.

    Raises `NotRunning` if no `knafka up` runs, if it is starting or stopping, or if it is another
    version of Knafka.
    """
    if (text := installation.read_status()) is None:
        installation.read_state()  # if nothing runs, this raises an error that says so
        raise NotRunning(f"what runs on {installation.data} is starting or stopping: try again")
    try:
        return documents.parse_json(StatusDocument, text).now
    except InvalidDocument:
        raise NotRunning(
            f"what runs on {installation.data} is another version of Knafka: restart it"
        ) from None


def snapshot_json(snapshot: Snapshot) -> str:
    """Return the text of the status file: the snapshot in a `StatusDocument`, as JSON."""
    return StatusDocument(now=snapshot).model_dump_json(by_alias=True)


def not_ready_sentences(snapshot: Snapshot) -> list[str]:
    """Return one sentence for each object that isn't Ready, then the snapshot's problems."""
    brokers = [f"{row.kind} {row.name}: {row.refused}" for row in snapshot.brokers if row.refused]
    triggers = [f"{row.kind} {row.name}: {row.refused}" for row in snapshot.triggers if row.refused]
    sensors = [f"Sensor {row.name}: {row.refused}" for row in snapshot.sensors if row.refused]
    return [*brokers, *sensors, *triggers, *snapshot.problems]
