"""`knafka up` as a process, and what is seen of it from outside."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from knafka_client.sockets import free_port

KNAFKA = Path(sys.executable).with_name("knafka")
WITHIN = 180.0
"""Seconds for anything to happen on a busy machine."""


class Up:
    """A running `knafka up`; `output` is all that it printed."""

    def __init__(self, manifests: Path, data: Path, *options: str | Path) -> None:
        self.data = data
        self._log = data.with_suffix(".out")
        arguments = ["-f", manifests, "--data-dir", data, "--port", free_port(), "--plain"]
        arguments += options
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [KNAFKA, "up", *map(str, arguments)], stdout=log, stderr=subprocess.STDOUT
            )
        try:
            self.wait_for("up after")
        except BaseException:  # a test's timeout, too: it would run on beside all other tests
            self.stop()
            raise

    @property
    def output(self) -> str:
        return self._log.read_text(errors="replace")

    def wait_for(self, pattern: str) -> None:
        self.until(lambda: re.search(pattern, self.output) is not None, pattern)

    def until(self, condition: Callable[[], bool], what: str, *, every: float = 0.05) -> None:
        """Look `every` so many seconds until `condition` holds: seldom where it runs a command,
        which takes a second of CPU."""
        deadline = time.monotonic() + WITHIN
        while not condition():
            ended = self.process.poll()
            assert ended is None, f"ended with {ended} before {what}:\n{self.output}"
            assert time.monotonic() < deadline, f"waited in vain for {what}:\n{self.output}"
            time.sleep(every)

    def arrived(self) -> set[str]:
        """The ids of all events that reached the subscriber `worker`."""
        return set(re.findall(r"^worker \| (\S+)$", self.output, re.MULTILINE))

    def knafka(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Another command that talks to this installation."""
        return self.command(*arguments, "--data-dir", str(self.data))

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Another command."""
        command = [str(KNAFKA), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def pids(self, what: str) -> list[int]:
        """Our children whose command line holds `what`."""
        main = self.process.pid
        children = Path(f"/proc/{main}/task/{main}/children").read_text().split()
        return [int(pid) for pid in children if what in command_line(pid)]

    def stop(self, how: signal.Signals = signal.SIGINT) -> int:
        self.process.send_signal(how)
        return self.process.wait(WITHIN)


def command_line(pid: str) -> str:
    with contextlib.suppress(FileNotFoundError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""
