"""Reads the logs of one `knafka up`, a file for each process, and follows them as they grow."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from knafka_client.state.installation import Installation, log_name

LOG_POLL_INTERVAL: Final = 0.3
"""Seconds between two reads of followed logs."""
LOG_BLOCK_BYTES: Final = 64 * 1024
"""Bytes at the end of a log that are searched for its last lines."""
KAFKA_LOG: Final = "kafka"
"""Name of Kafka's log."""


class Logs:
    """The log files of an installation, by name: `receiver`, `dispatcher-default.orders`, …"""

    def __init__(
        self, installation: Installation, pause: Callable[[float], None] = time.sleep
    ) -> None:
        """`pause` waits for a number of seconds, between two reads in `follow`."""
        self._installation = installation
        self._pause = pause
        self._read_until: dict[str, int] = {}
        """Offset up to which `last_lines` has read each log, by the log's name."""

    def names(self, owner: str | None = None) -> Sequence[str]:
        """Return the sorted names of all logs, or of those of one `owner`: a process (`receiver`),
        or a Trigger or Service (`[NAMESPACE/]NAME`)."""
        return sorted(name for name in self._log_files() if owner is None or is_log_of(name, owner))

    def last_lines(self, name: str, count: int) -> Sequence[str]:
        """Return the last `count` lines of a log, oldest first, as far as they are in its last
        `LOG_BLOCK_BYTES`; `follow` continues after them. Raises `KeyError` if there is no log of
        this name."""
        with self._log_files()[name].open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - LOG_BLOCK_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
            self._read_until[name] = file.tell()
        return lines[-count:] if count else []  # since [-0:] would be all lines

    def follow(self, owner: str | None = None) -> Iterator[tuple[str, str]]:
        """Yield each new line of the logs of one `owner`, or of all logs if that is None, as the
        log's name and the line; never ends.

        A log that `last_lines` has read continues after what it read; of any other log that exists
        now, only future lines are read. A log that is created later is read from its start.
        """
        present_ends = {name: _file_size(path) for name, path in self._log_files().items()}
        read_until = present_ends | self._read_until
        while True:
            for name, path in self._log_files().items():
                if owner is not None and not is_log_of(name, owner):
                    continue
                start = read_until.get(name, 0)
                if _file_size(path) < start:
                    start = 0  # the log was rotated: a new file has its name
                lines, read_until[name] = _read_lines(path, start)
                yield from ((name, line) for line in lines)
            self._pause(LOG_POLL_INTERVAL)

    def _log_files(self) -> dict[str, Path]:
        """Return the log files by name, without those that were rotated (`.log.old`)."""
        files = {file.stem: file for file in sorted(self._installation.logs.glob("*.log"))}
        kafka = self._installation.kafka / "kafka.log"
        return files | ({KAFKA_LOG: kafka} if kafka.exists() else {})


def is_log_of(name: str, owner: str) -> bool:
    """Whether the log with this name belongs to `owner`: a process (`receiver`), or a Trigger or
    Service (`[NAMESPACE/]NAME`), whose logs have the names that `log_name` returns."""
    namespace, slash, object_name = owner.rpartition("/")
    function = name.partition("-")[0]
    return name in (owner, log_name(function, namespace if slash else "default", object_name))


def _file_size(path: Path) -> int:
    """Return a file's size in bytes; 0 if it doesn't exist."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _read_lines(path: Path, start: int) -> tuple[Sequence[str], int]:
    """Return the complete lines of a file from the offset `start` on, and the offset at which they
    end. If the file doesn't exist, return no lines and 0."""
    try:
        with path.open("rb") as file:
            file.seek(start)
            data = file.read()
    except FileNotFoundError:
        return [], 0
    complete_lines = data[: data.rfind(b"\n") + 1]
    return complete_lines.decode(errors="replace").splitlines(), start + len(complete_lines)
