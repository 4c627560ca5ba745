"""`knafka up` in the background: a process of its own session, that `knafka down` ends.

What it prints lies in DATA/logs/up.log; the terminal that starts it shows that until it is up.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TextIO

from knafka.core.errors import KnafkaError
from knafka_client.state.installation import Installation

DETACHED_POLL_INTERVAL: Final = 0.1
"""Seconds between two looks at a process that starts or stops."""
DETACHED_STOP_TIMEOUT: Final = 60.0
"""Seconds for everything to stop: what is in flight is finished, and Kafka writes its files."""

Say = Callable[[str], None]


class NotStarted(KnafkaError):
    """`knafka up` ended before it was up; its lines have been passed on."""


class NotStopped(KnafkaError):
    """`knafka up` still runs after the time that it had to stop."""


def start(arguments: Sequence[str], installation: Installation, say: Say) -> int:
    """Run `knafka up` with these arguments until it is up; returns its pid. Raises `NotStarted`.

    Its lines go to `say` meanwhile. An interrupted start leaves nothing behind.
    """
    if (running := installation.pid()) is not None:  # whose log is not to be begun anew
        raise NotStarted(
            f"knafka up runs on {installation.data} already (pid {running}): knafka down stops it"
        )
    log = log_file(installation)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "knafka_cli", "up", *arguments, "--plain"],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        with log.open(errors="replace") as lines:
            while not _is_up(installation, process.pid):
                ended = process.poll()
                _pass_on(lines, say)
                if ended is not None:
                    raise NotStarted(f"knafka up ended with code {ended}: see {log}")
                time.sleep(DETACHED_POLL_INTERVAL)
            _pass_on(lines, say)
    except BaseException:
        process.terminate()
        process.wait()
        raise
    process.returncode = 0  # it is nobody's child any more: Popen needn't warn that it still runs
    return process.pid


def stop(installation: Installation, timeout: float = DETACHED_STOP_TIMEOUT) -> bool:
    """Stop what runs cleanly, and wait for it. False: nothing ran. Raises `NotStopped`."""
    pid = installation.pid()
    if pid is None:
        return False
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + timeout
    while installation.pid() == pid:
        if time.monotonic() > deadline:
            raise NotStopped(f"pid {pid} has not stopped within {timeout:g} s: kill -9 {pid}")
        time.sleep(DETACHED_POLL_INTERVAL)
    return True


def log_file(installation: Installation) -> Path:
    """The file that a `knafka up` in the background prints to."""
    return installation.logs / "up.log"


def _is_up(installation: Installation, pid: int) -> bool:
    return installation.pid() == pid and installation.status() is not None


def _pass_on(lines: TextIO, say: Say) -> None:
    for line in lines:
        say(line.rstrip("\n"))
