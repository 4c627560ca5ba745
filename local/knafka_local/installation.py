"""An installation: one data folder, at most one `knafka up` on it, and where that can be found.

DATA/lock         held while `knafka up` runs; the kernel lets go of it however that ends
DATA/state.json   what the other commands need to find it
DATA/names.json   which topics and groups are whose (`kept_names`)
DATA/kafka/       Kafka's
DATA/logs/        one file for each process
"""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from knafka.core import contract
from knafka.core.contract import Egress, Ingress, Model
from knafka.core.errors import InvalidDocument, KnafkaError

DEFAULT_DATA: Final = Path(".knafka")


class InUse(KnafkaError):
    """Another `knafka up` runs on the same data."""


class NotRunning(KnafkaError):
    """No `knafka up` runs on the data that a command was pointed at."""


class State(Model):
    """What runs, for the other commands."""

    pid: int
    url: str
    """Where all Brokers are served, without a path."""
    bootstrap_servers: str
    manifests: tuple[str, ...] = ()
    """Absolute paths of the files and folders that it was started with."""
    ingresses: tuple[Ingress, ...] = ()
    egresses: tuple[Egress, ...] = ()


class Installation:
    """The data folder of a local mode."""

    def __init__(self, data: Path) -> None:
        self.data = data.absolute()
        self.logs = self.data / "logs"
        self.kafka = self.data / "kafka"
        self.names = self.data / "names.json"
        self._lock = self.data / "lock"
        self._state = self.data / "state.json"

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Be the one `knafka up` on this data; raises `InUse`."""
        try:
            self.logs.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InUse(f"{self.data} can't be used ({error}): choose --data DIR") from error
        with self._lock.open("a") as file:
            if not _try_lock(file.fileno()):
                raise InUse(
                    f"knafka up runs on {self.data} already{self._by_whom()}: stop that one, or "
                    "give this one --data DIR (and --port, --kafka-port) of its own"
                )
            try:
                yield
            finally:
                self._state.unlink(missing_ok=True)

    def write(self, state: State) -> None:
        """Tell the other commands; they see the old state or the new one, never half of it."""
        unfinished = self._state.with_suffix(".new")
        unfinished.write_text(state.model_dump_json(by_alias=True, indent=2))
        unfinished.replace(self._state)

    def running(self) -> State:
        """What runs on this data; raises `NotRunning`."""
        with contextlib.suppress(OSError, InvalidDocument):
            with self._lock.open() as file:
                held = not _try_lock(file.fileno())
            if held:
                return contract.parse_json(State, self._state.read_text())
        raise NotRunning(
            f"nothing runs on {self.data}: start it with `knafka up`, or name the --data of one "
            "that runs with --installation"
        )

    def _by_whom(self) -> str:
        with contextlib.suppress(OSError, InvalidDocument):
            return f" (pid {contract.parse_json(State, self._state.read_text()).pid})"
        return ""


def _try_lock(descriptor: int) -> bool:
    """Take the lock unless somebody has it; closing the file lets go."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
