"""The logs of one `knafka up`: a file for each process, read by name, and followed as they grow."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from knafka_client.state.installation import Installation

LOG_POLL_INTERVAL: Final = 0.3
"""Seconds between two looks for what is new."""
LOG_BLOCK_BYTES: Final = 64 * 1024
"""Bytes from the end that are searched for the last lines."""
KAFKA_LOG: Final = "kafka"


class Logs:
    """The log files of an installation, by name: `receiver`, `dispatcher-default-orders`, …"""

    def __init__(
        self, installation: Installation, pause: Callable[[float], None] = time.sleep
    ) -> None:
        """`pause` waits for the given seconds between two looks."""
        self._installation = installation
        self._pause = pause
        self._read: dict[str, int] = {}
        """Up to where each file was given."""

    def names(self, part: str | None = None) -> Sequence[str]:
        """The names of all logs, or of those of one process, Trigger or Service."""
        return sorted(name for name in self._files() if part is None or is_of(name, part))

    def last(self, name: str, lines: int) -> Sequence[str]:
        """The last lines, oldest first."""
        with self._files()[name].open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - LOG_BLOCK_BYTES))
            all_lines = file.read().decode(errors="replace").splitlines()
            self._read[name] = file.tell()
        return all_lines[-lines:] if lines else []

    def follow(self, part: str | None = None) -> Iterator[tuple[str, str]]:
        """Name and line of what is written from now on, or since `last`, for ever; new files from
        their start."""
        read = {name: _size(path) for name, path in self._files().items()} | self._read
        while True:
            for name, path in self._files().items():
                if part is not None and not is_of(name, part):
                    continue
                start = read.get(name, 0)
                if _size(path) < start:
                    start = 0  # it was set aside, and begun anew
                lines, read[name] = _lines_from(path, start)
                yield from ((name, line) for line in lines)
            self._pause(LOG_POLL_INTERVAL)

    def _files(self) -> dict[str, Path]:
        files = {
            file.stem: file
            for file in sorted(self._installation.logs.glob("*.log"))
            if not file.name.endswith(".old.log")
        }
        kafka = self._installation.kafka / "kafka.log"
        return files | ({KAFKA_LOG: kafka} if kafka.exists() else {})


def is_of(name: str, part: str) -> bool:
    """Whether a log is that of a process, or of a Trigger or Service by `[NAMESPACE/]NAME`."""
    if name == part:
        return True
    namespace, slash, own = part.rpartition("/")
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
