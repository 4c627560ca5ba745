"""An installation: one data folder, at most one `knafka up` on it, and where that can be found.

DATA/lock         held while `knafka up` runs, with its pid; the kernel lets go however that ends
DATA/state.json   what the other commands need to find it
DATA/names.json   which topics and groups are whose (`kept_names`)
DATA/kafka/       Kafka's
DATA/issuer/      the key that signs tokens (`knafka up --require-auth`)
DATA/logs/        one file for each process
DATA/status.json  how everything stands, a second old at most (see `status`)
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from knafka.core import documents
from knafka.core.contract import KEPT_FOR_EVER, Egress, Ingress, TopicSettings
from knafka.core.documents import Model
from knafka.core.errors import InvalidDocument, KnafkaError

DEFAULT_DATA: Final = Path(".knafka")

CHANNEL_PREFIX: Final = "channel/"
"""What precedes the name of a KafkaChannel where a Broker's may stand, too; a Broker in a namespace
of this name comes first."""

SUBSCRIPTION_PREFIX: Final = "subscription/"
"""The same before the name of a Subscription, where a Trigger's may stand."""

LOCK_TRIES: Final = 5
LOCK_PAUSE: Final = 0.02
"""Seconds between two tries."""


class InUse(KnafkaError):
    """Another `knafka up` runs on the same data."""


class NotRunning(KnafkaError):
    """No `knafka up` runs on the data that a command was pointed at."""


class SensorPlace(Model):
    """Where a Sensor's records lie in Kafka."""

    namespace: str
    name: str
    bus: str
    """The name of its Broker, or `names.of_channel` of its KafkaChannel."""
    topic: str
    group: str
    trigger_topic: str
    dead_letter_topic: str
    dead_letter_settings: TopicSettings = TopicSettings(config=dict(KEPT_FOR_EVER))


class RunningState(Model):
    """What runs, for the other commands."""

    pid: int
    url: str
    """Where all Brokers are served, without a path."""
    channels_url: str = ""
    """The same for KafkaChannels."""
    bootstrap_servers: str
    manifests: tuple[str, ...] = ()
    """Absolute paths of the files and folders that it was started with."""
    ingresses: tuple[Ingress, ...] = ()
    """Those of Brokers, then those of KafkaChannels."""
    egresses: tuple[Egress, ...] = ()
    """Those of Triggers, then those of Subscriptions."""
    sensors: tuple[SensorPlace, ...] = ()

    def url_of(self, ingress: Ingress) -> str:
        """The URL at which a Broker or KafkaChannel takes events."""
        is_channel = ingress.kind == "KafkaChannel"
        return (self.channels_url if is_channel else self.url) + ingress.path


class Installation:
    """The data folder of a local mode."""

    def __init__(self, data: Path) -> None:
        self.data = data.absolute()
        self.logs = self.data / "logs"
        self.kafka = self.data / "kafka"
        self.names = self.data / "names.json"
        self.issuer = self.data / "issuer"
        self._lock = self.data / "lock"
        self._state = self.data / "state.json"
        self._status = self.data / "status.json"

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Hold this data folder's lock inside: only one `knafka up` runs on it. Raises `InUse`."""
        try:
            self.logs.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InUse(f"{self.data} can't be used ({error}): choose --data-dir DIR") from error
        with self._lock.open("a") as file:
            if not _lock(file.fileno()):
                raise InUse(
                    f"knafka up runs on {self.data} already{self._by_whom()}: stop that one, or "
                    "give this one --data-dir DIR (and --port, --kafka-port) of its own"
                )
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            self._forget()  # what one that was killed has left
            try:
                yield
            finally:
                self._forget()

    def write(self, state: RunningState) -> None:
        """Write what runs to the state file, which the other commands read; they see the old state
        or the new one, never half of it."""
        replace_file(self._state, state.model_dump_json(by_alias=True, indent=2))

    def write_status(self, text: str) -> None:
        """Write the snapshot, as JSON, to the status file that the other commands read."""
        replace_file(self._status, text)

    def running(self) -> RunningState:
        """Read what runs on this data. Raises `NotRunning`."""
        if self.pid() is not None:
            with contextlib.suppress(OSError, InvalidDocument):
                return documents.parse_json(RunningState, self._state.read_text())
        raise NotRunning(
            f"nothing runs on {self.data}: start it with `knafka up`, or name the folder of one "
            "that runs with --data-dir"
        )

    def status(self) -> str | None:
        """The snapshot as JSON; None: nothing runs, or it is just starting."""
        if self.pid() is not None:
            with contextlib.suppress(OSError):
                return self._status.read_text()
        return None

    def pid(self) -> int | None:
        """The process that runs on this data, also while it starts and stops; None: there is none.

        A pid that is given is that of a process that is there: it holds the lock.
        """
        with contextlib.suppress(OSError, ValueError), self._lock.open() as file:
            if not _try_lock(file.fileno()):
                return int(file.read())
        return None

    def _forget(self) -> None:
        for file in (self._state, self._status):
            file.unlink(missing_ok=True)

    def _by_whom(self) -> str:
        pid = self.pid()
        return "" if pid is None else f" (pid {pid})"


def _lock(descriptor: int) -> bool:
    """Take the lock, also from somebody who only looks whether it is free, which takes no time."""
    for _ in range(LOCK_TRIES):
        if _try_lock(descriptor):
            return True
        time.sleep(LOCK_PAUSE)
    return False


def replace_file(file: Path, text: str) -> None:
    """Write it so that a reader sees the old text or the new one."""
    unfinished = file.with_suffix(".new")
    unfinished.write_text(text)
    unfinished.replace(file)


def _try_lock(descriptor: int) -> bool:
    """Take the lock unless somebody has it; closing the file lets go."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
