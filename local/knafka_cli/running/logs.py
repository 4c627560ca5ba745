"""The logs of one `knafka up`: a file for each process, read by name, and followed as they grow."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from knafka_client.state.installation import Installation

LOOK_INTERVAL: Final = 0.3
"""Seconds between two looks for what is new."""
BLOCK: Final = 64 * 1024
"""Bytes from the end that are searched for the last lines."""
KAFKA: Final = "kafka"


class Logs:
    """The log files of an installation, by name: `receiver`, `dispatcher-default-orders`, …"""

    def __init__(self, installation: Installation) -> None:
        self._installation = installation
        self._read: dict[str, int] = {}
        """Up to where each file was given."""

    def names(self, wanted: str | None = None) -> Sequence[str]:
        """All of them, or those of one process, Trigger or Service."""
        return sorted(name for name in self._files() if wanted is None or is_of(name, wanted))

    def last(self, name: str, lines: int) -> Sequence[str]:
        """The last lines, oldest first."""
        with self._files()[name].open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - BLOCK))
            found = file.read().decode(errors="replace").splitlines()
            self._read[name] = file.tell()
        return found[-lines:] if lines else []

    def follow(self, wanted: str | None = None) -> Iterator[tuple[str, str]]:
        """Name and line of what is written from now on, or since `last`, for ever; new files from
        their start."""
        read = {name: _size(path) for name, path in self._files().items()} | self._read
        while True:
            for name, path in self._files().items():
                if wanted is not None and not is_of(name, wanted):
                    continue
                start = read.get(name, 0)
                if _size(path) < start:
                    start = 0  # it was set aside, and begun anew
                lines, read[name] = _lines_from(path, start)
                yield from ((name, line) for line in lines)
            time.sleep(LOOK_INTERVAL)

    def _files(self) -> dict[str, Path]:
        files = {
            each.stem: each
            for each in sorted(self._installation.logs.glob("*.log"))
            if not each.name.endswith(".old.log")
        }
        kafka = self._installation.kafka / "kafka.log"
        return files | ({KAFKA: kafka} if kafka.exists() else {})


def is_of(name: str, wanted: str) -> bool:
    """Whether a log is that of a process, or of a Trigger or Service by `[NAMESPACE/]NAME`."""
    if name == wanted:
        return True
    namespace, slash, own = wanted.rpartition("/")
    whose = re.escape(f"{namespace if slash else 'default'}-{own}")
    return re.fullmatch(rf"[a-z]+-{whose}", name) is not None


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _lines_from(path: Path, start: int) -> tuple[Sequence[str], int]:
    """The whole lines behind `start`, and where they end."""
    try:
        with path.open("rb") as file:
            file.seek(start)
            data = file.read()
    except FileNotFoundError:
        return [], 0
    whole = data[: data.rfind(b"\n") + 1]
    return whole.decode(errors="replace").splitlines(), start + len(whole)
