"""Runs `knafka up` in the background, in a session of its own, until `knafka down`.

Its output goes to DATA/logs/up.log; the terminal that starts it shows that output until it is up.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, TextIO

from knafka.core.errors import KnafkaError
from knafka_client.state.installation import Installation

DETACHED_POLL_INTERVAL: Final = 0.1
"""Seconds between two checks of a process that starts or stops."""
DETACHED_STOP_TIMEOUT: Final = 60.0
"""Seconds for everything to stop: deliveries in flight are finished, and Kafka writes its files."""

Say = Callable[[str], None]
"""Shows one line of text to a person."""


class NotStarted(KnafkaError):
    """`knafka up` ended before it was up; its output was shown."""


class NotStopped(KnafkaError):
    """`knafka up` still runs after the timeout."""


def start(arguments: Sequence[str], installation: Installation, say: Say) -> int:
    """Run `knafka up` with these arguments in the background; returns its pid once it is up,
    however long that takes.

    `say` shows its output meanwhile. Raises `NotStarted` if another `knafka up` runs on the
    installation, or if this one ends before it is up. An interrupted start leaves no process
    behind.
    """
    # Checked before the log is opened, which would overwrite that of the other process.
    if (running := installation.running_pid()) is not None:
        raise NotStarted(
            f"knafka up runs on {installation.data} already (pid {running}): knafka down stops it"
        )
    log_path = log_file(installation)
    log_path.parent.mkdir(parents=True, exist_ok=True)
    with log_path.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "knafka_cli", "up", *arguments, "--plain"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        with log_path.open(errors="replace") as open_log:
            while not _is_up(installation, process.pid):
                exit_code = process.poll()
                _show_new_lines(open_log, say)
                if exit_code is not None:
                    raise NotStarted(f"knafka up ended with code {exit_code}: see {log_path}")
                time.sleep(DETACHED_POLL_INTERVAL)
            _show_new_lines(open_log, say)
    except BaseException:  # also Ctrl-C
        process.terminate()
        process.wait()
        raise
    process.returncode = 0  # the process runs on; Popen would warn about that
    return process.pid


def stop(installation: Installation, timeout: float = DETACHED_STOP_TIMEOUT) -> bool:
    """Stop the running `knafka up` cleanly, and wait until it has ended; returns False if nothing
    runs.

    Raises `NotStopped` if it still runs after `timeout` seconds.
    """
    pid = installation.running_pid()
    if pid is None:
        return False
    with suppress(ProcessLookupError):  # it has ended by itself
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + timeout
    while installation.running_pid() == pid:
        if time.monotonic() > deadline:
            raise NotStopped(f"pid {pid} has not stopped within {timeout:g} s: kill -9 {pid}")
        time.sleep(DETACHED_POLL_INTERVAL)
    return True


def log_file(installation: Installation) -> Path:
    """Return the path of the file with the output of a `knafka up` in the background."""
    return installation.logs / "up.log"


def _is_up(installation: Installation, pid: int) -> bool:
    """Whether the process with this pid runs the installation and has written its first status."""
    return installation.running_pid() == pid and installation.read_status() is not None


def _show_new_lines(open_log: TextIO, say: Say) -> None:
    """Call `say` with each line that was written to this log since the last call."""
    for line in open_log:
        say(line.rstrip("\n"))
