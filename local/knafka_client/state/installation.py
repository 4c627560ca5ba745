"""An installation: a data folder, on which at most one `knafka up` runs.

DATA/lock         locked while `knafka up` runs, with its pid; the kernel unlocks it at the end
DATA/state.json   what runs and at which addresses, for the other commands
DATA/names.json   which topics and groups belong to which objects (`kept_names`)
DATA/kafka/       Kafka's directory
DATA/issuer/      the key that signs tokens (`knafka up --require-auth`)
DATA/logs/        one file for each process (`log_name`)
DATA/status.json  the last snapshot, at most a second old (`snapshot_file`)
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from knafka.core import documents, names
from knafka.core.contract import DEAD_LETTER_TOPIC_CONFIG, Egress, Ingress, TopicSettings
from knafka.core.documents import Model
from knafka.core.errors import InvalidDocument, KnafkaError

DEFAULT_DATA: Final = Path(".knafka")
"""The data folder unless --data-dir names another."""

CHANNEL_PREFIX: Final = "channel/"
"""Prefix of a KafkaChannel's name where an option takes a Broker's, too.

A Broker in a namespace called `channel` has precedence.
"""

SUBSCRIPTION_PREFIX: Final = "subscription/"
"""Prefix of a Subscription's name where an option takes a Trigger's, too."""

LONGEST_LOG_NAME: Final = 255 - len(".log.old")
"""Characters of a log's name; a file system allows 255 bytes for a file's name."""

LOCK_TRIES: Final = 100
"""Number of attempts to take the lock while only commands hold it that check whether it is free,
each for a moment."""
LOCK_PAUSE: Final = 0.02
"""Seconds between two attempts."""


class DataFolderInUse(KnafkaError):
    """Another `knafka up` runs on the same data folder."""


class NotRunning(KnafkaError):
    """No `knafka up` runs on the data folder."""


class SensorPlace(Model):
    """The topics and the consumer group of a Sensor in Kafka."""

    namespace: str
    name: str
    bus: str
    """The name of its Broker, or `names.of_channel` of its KafkaChannel."""
    topic: str
    """Topic of the Broker or KafkaChannel whose events the Sensor evaluates."""
    group: str
    """The Sensor's consumer group."""
    trigger_topic: str
    """Topic into which the Sensor copies each event for those of its triggers that use it."""
    dead_letter_topic: str
    """Topic of records and events that the Sensor couldn't handle."""
    dead_letter_settings: TopicSettings = TopicSettings(config=dict(DEAD_LETTER_TOPIC_CONFIG))
    """Settings with which its dead-letter topic is created."""


class RunningState(Model):
    """What runs, and at which addresses; written for the other commands."""

    pid: int
    url: str
    """The address of all Brokers, without a path."""
    channels_url: str = ""
    """The address of all KafkaChannels, without a path."""
    bootstrap_servers: str
    manifests: tuple[str, ...] = ()
    """Absolute paths of the files and folders that `knafka up` was started with."""
    ingresses: tuple[Ingress, ...] = ()
    """The Ingress of each Broker, then of each KafkaChannel."""
    egresses: tuple[Egress, ...] = ()
    """The Egress of each Trigger, then of each Subscription."""
    sensors: tuple[SensorPlace, ...] = ()
    """The topics and the group of each Sensor that is ready to run."""

    def url_of(self, ingress: Ingress) -> str:
        """Return the URL at which the Broker or KafkaChannel of this Ingress takes events."""
        is_channel = ingress.kind == "KafkaChannel"
        return (self.channels_url if is_channel else self.url) + ingress.path


class Installation:
    """The data folder of one `knafka up`: its paths, its lock and the state that is kept in it."""

    def __init__(self, data: Path) -> None:
        """`data` is the folder, which needn't exist yet; the module's text lists what is in it."""
        self.data = data.absolute()
        # Paths of folders and files in it; they needn't exist.
        self.logs = self.data / "logs"
        self.kafka = self.data / "kafka"
        self.names = self.data / "names.json"
        self.issuer = self.data / "issuer"
        self._lock_file = self.data / "lock"
        self._state_file = self.data / "state.json"
        self._status_file = self.data / "status.json"

    @contextlib.contextmanager
    def hold_lock(self) -> Iterator[None]:
        """Hold this data folder's lock while the context is open, so that only one `knafka up` runs
        on it. Creates the folder if it doesn't exist, and deletes the state and status files at the
        start and at the end.

        Raises `DataFolderInUse` if another process holds the lock, or if the folder or the lock
        file can't be made or written.
        """
        with contextlib.ExitStack() as stack:
            try:
                self.logs.mkdir(parents=True, exist_ok=True)
                file = stack.enter_context(self._lock_file.open("a+"))
            except OSError as error:
                raise DataFolderInUse(
                    f"{self.data} can't be used ({error}): choose --data-dir DIR"
                ) from error
            if not _lock_with_retries(file.fileno()):
                raise DataFolderInUse(
                    f"knafka up already runs on {self.data}{self._holder_text()}: stop it, or "
                    "give this one --data-dir DIR (and --port, --kafka-port) of its own"
                )
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            self._delete_state()  # the files of a `knafka up` that was killed
            try:
                yield
            finally:
                self._delete_state()
                file.truncate(0)  # the pid may soon be another program's

    def write_state(self, state: RunningState) -> None:
        """Write the state file that other commands read; they see the old state or the new one,
        never a part."""
        replace_file(self._state_file, state.model_dump_json(by_alias=True, indent=2))

    def write_status(self, text: str) -> None:
        """Write the status file, a snapshot as JSON, that other commands read."""
        replace_file(self._status_file, text)

    def read_state(self) -> RunningState:
        """Return the state of the `knafka up` that runs on this folder. Raises `NotRunning`, also
        while it starts and has written no state."""
        if self.running_pid() is not None:
            with contextlib.suppress(OSError, InvalidDocument):
                return documents.parse_json(RunningState, self._state_file.read_text())
        raise NotRunning(
            f"nothing runs on {self.data}: start it with `knafka up`, or name the folder of one "
            "that runs with --data-dir"
        )

    def read_status(self) -> str | None:
        """Return the last snapshot as JSON; None if nothing runs, or it is just starting."""
        if self.running_pid() is not None:
            with contextlib.suppress(OSError):
                return self._status_file.read_text()
        return None

    def running_pid(self) -> int | None:
        """Return the pid of the `knafka up` on this folder, also while it starts or stops; None if
        there is none. Tries the lock to find out.

        The process with this pid exists, since it holds the lock.
        """
        with contextlib.suppress(OSError, ValueError), self._lock_file.open() as file:
            # If the lock can be shared, nothing runs; closing the file releases it at once. A
            # second command that asks at the same moment can share it, too.
            if not _try_lock(file.fileno(), fcntl.LOCK_SH):
                return int(file.read())
        return None

    def _delete_state(self) -> None:
        """Delete the state and the status file."""
        for file in (self._state_file, self._status_file):
            file.unlink(missing_ok=True)

    def _holder_text(self) -> str:
        """Return the pid of the process that holds the lock, as part of a sentence; empty if no
        process holds it any more."""
        pid = self.running_pid()
        return "" if pid is None else f" (pid {pid})"


def _lock_with_retries(descriptor: int) -> bool:
    """Take the lock of an open file, given by its file descriptor; returns whether it was taken.

    Returns False at once if another `knafka up` holds the lock. Commands that check whether it is
    free share it for a moment: then try again, `LOCK_TRIES` times at most.
    """
    for _ in range(LOCK_TRIES):
        if _try_lock(descriptor, fcntl.LOCK_EX):
            return True
        if not _try_lock(descriptor, fcntl.LOCK_SH):
            return False
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        time.sleep(LOCK_PAUSE)
    return False


def log_name(function: str, namespace: str, name: str) -> str:
    """Return the name of the log (without `.log`) of an object's function, such as
    `dispatcher-default.orders`.

    Neither a function's name nor a namespace has a dot, so no two objects share a log. A name that
    is too long for a file is cut and ends in a digest.
    """
    full_name = f"{function}-{namespace}.{name}"
    if len(full_name) <= LONGEST_LOG_NAME:
        return full_name
    digest = names.short_digest(full_name)
    # No object's name has an underscore.
    return f"{full_name[: LONGEST_LOG_NAME - len(digest) - 1]}_{digest}"


def replace_file(file: Path, text: str) -> None:
    """Write a file so that readers see the old text or the new one, never a part."""
    unfinished = file.with_suffix(".new")
    unfinished.write_text(text)
    unfinished.replace(file)


def _try_lock(descriptor: int, kind: int) -> bool:
    """Take the lock of an open file, given by its file descriptor, unless another process prevents
    it: `LOCK_EX` for this process alone, or `LOCK_SH` together with others that share it. Returns
    whether it was taken. Closing the file releases it."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
