"""Child processes: one that runs (`Child`), and one that is kept running (`Supervised`).

Every child has its own process group, so that Ctrl-C reaches only this process; and it dies when
this process does. Its output goes to its log file, and each line of its stdout also to `show`, if
one is given.

Not here: knowing what a child does.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol, TypeAlias

from knafka.core.errors import KnafkaError
from knafka_local.processes.parent_death import die_with_parent

CHILD_STOP_TIMEOUT: Final = 10.0
"""Seconds from SIGTERM to SIGKILL: time for a receiver or a dispatcher to finish its work."""
FIRST_RESTART_BACKOFF: Final = 0.2
"""Seconds before a child that ended is started again; doubled each time it ends soon after."""
LONGEST_RESTART_BACKOFF: Final = 5.0
"""Seconds at which the backoff isn't doubled any further."""
STEADY_RUN_TIME: Final = 10.0
"""Seconds that a child must run for the next backoff to be the first one again."""
LAST_OUTPUT_TIMEOUT: Final = 1.0
"""Seconds to read the output that a child wrote before it ended."""
MAX_LOG_BYTES: Final = 10 * 1024 * 1024
"""A log file that is larger when a child starts becomes `NAME.log.old`, and a new one begins."""
LONGEST_LINE: Final = 8192
"""Bytes of one printed line that are shown; the log file has all of it."""
OUTPUT_CHUNK_BYTES: Final = 64 * 1024
"""Bytes of a child's output that are read at once."""
Say: TypeAlias = Callable[[str], None]
"""Shows one line of text to a person."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command line, with the environment, folder and log file to run it with."""

    arguments: Sequence[str]
    """The program and its arguments."""
    log: Path
    """The file to which the output is appended."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that are set in addition to our own environment."""
    folder: Path | None = None
    """The working directory; None: ours."""
    listener: socket.socket | None = None
    """A listening socket to inherit, by the same descriptor."""
    stop_timeout: float = CHILD_STOP_TIMEOUT
    """Seconds from SIGTERM to SIGKILL."""


class Child:
    """A process that was started, together with the process group that it leads."""

    running: ClassVar[set[Child]] = set()
    """All children of this process that were started and not yet stopped; Ctrl-C kills them."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        output: asyncio.Task[None] | None,
        stop_timeout: float,
    ) -> None:
        """`output` is the task that forwards what the process prints, None if it only goes to the
        log; `stop_timeout` is in seconds from SIGTERM to SIGKILL."""
        self._process = process
        self._output = output
        self._stop_timeout = stop_timeout
        self.pid = process.pid
        self.running.add(self)

    @staticmethod
    async def start(command: Command, show: Say | None = None) -> Child:
        """Start the command; `show` is called with each line that it prints to stdout (None: all of
        its output goes only to the log).

        Raises `OSError` if the program can't be run. The thread that calls this must live as long
        as the child does (see `die_with_parent`).
        """
        command.log.parent.mkdir(parents=True, exist_ok=True)
        if command.log.exists() and command.log.stat().st_size > MAX_LOG_BYTES:
            command.log.replace(command.log.with_suffix(".log.old"))
        with command.log.open("ab") as log, contextlib.ExitStack() as stack:
            stdout, output = log, None
            if show is not None:
                # A pipe of our own: with asyncio's, `wait` would return only once the process's own
                # children have closed it, too.
                read_end, write_end = os.pipe()
                output = asyncio.create_task(_forward_output(read_end, command.log, show))
                stdout = stack.enter_context(os.fdopen(write_end, "wb"))
            try:
                process = await asyncio.create_subprocess_exec(
                    *command.arguments,
                    env={**os.environ, **_CHILD_ENVIRONMENT, **command.environment},
                    cwd=command.folder,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=stdout,
                    stderr=log,
                    pass_fds=() if command.listener is None else (command.listener.fileno(),),
                    start_new_session=True,
                    preexec_fn=die_with_parent(),
                )
            except ValueError as error:  # a null byte in the command, its folder or its environment
                raise OSError(str(error)) from None
        return Child(process, output, command.stop_timeout)

    @property
    def is_running(self) -> bool:
        """Whether the process has not ended yet."""
        return self._process.returncode is None

    async def wait(self) -> int:
        """Wait until the process ends; returns its exit code, which is negative for a signal."""
        return await self._process.wait()

    async def stop(self) -> None:
        """Send SIGTERM to the process, and wait at most its stop timeout until it ends. Then send
        SIGKILL to all processes that are left in its group."""
        if self.is_running:
            with contextlib.suppress(ProcessLookupError):
                # Not `terminate`, which polls the process first: if it has just died by itself,
                # that poll would take its exit code.
                os.kill(self.pid, signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._stop_timeout):
                    await self._process.wait()
        self.kill()
        await self._process.wait()
        if self._output is not None:
            await asyncio.wait({self._output}, timeout=LAST_OUTPUT_TIMEOUT)
            self._output.cancel()
        self.running.discard(self)

    def kill(self) -> None:
        """Send SIGKILL to every process that is left in the process's group, if any is."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)


_CHILD_ENVIRONMENT = {
    "PYTHONUNBUFFERED": "1",  # what a subscriber prints is shown when it prints it
    # A console script beside our Python is found though its venv isn't activated.
    "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
}
"""Variables that every child gets in addition to our environment."""


async def _forward_output(pipe: int, log: Path, show: Say) -> None:
    """Copy what a child prints from the descriptor `pipe` to its log file, and call `show` with
    each whole line, until the pipe is closed.

    Output that can't be written or shown is dropped: a child must be able to print on.
    """
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(pipe, "rb", buffering=0)
    )
    with contextlib.closing(transport), log.open("ab", buffering=0) as file:
        incomplete_line = b""
        while data := await reader.read(OUTPUT_CHUNK_BYTES):
            with contextlib.suppress(OSError):  # the disk is full, perhaps for a moment
                file.write(data)
            *lines, incomplete_line = (incomplete_line + data).split(b"\n")
            incomplete_line = incomplete_line[:LONGEST_LINE]  # bounds our memory
            for line in lines:
                # The terminal may be gone, or its encoding may lack a character (a ValueError).
                with contextlib.suppress(OSError, ValueError):
                    show(line[:LONGEST_LINE].decode(errors="replace"))


class Runnable(Protocol):
    """A process that `Supervised` can keep running: a `Child`, or Kafka's node."""

    async def wait(self) -> int:
        """Wait until the process has ended; returns its exit code."""
        ...

    async def stop(self) -> None:
        """Stop the process; returns once it has ended."""
        ...


class Supervised:
    """Starts a process again, after a bounded backoff, whenever it ends by itself."""

    def __init__(self, name: str, start: Callable[[], Awaitable[Runnable]], say: Say) -> None:
        """Start the process in a task, at once; this needs a running event loop.

        The function `start` starts the process and returns it. If it raises `OSError` or
        `KnafkaError`, it is called again after the backoff. `name` and `say` are for messages to
        the user about each end of the process.
        """
        self._name = name
        self._start = start
        self._say = say
        self._task = asyncio.create_task(self._run(), name=name)

    async def stop(self) -> None:
        """Stop the process, and don't start it again; returns once it has ended."""
        await cancel(self._task)

    async def _run(self) -> None:
        """Run the process, and start it again after a backoff whenever it ends, until this task is
        cancelled."""
        loop = asyncio.get_running_loop()
        backoff = FIRST_RESTART_BACKOFF
        while True:
            started = loop.time()
            exit_description = await self._run_once()
            if loop.time() - started > STEADY_RUN_TIME:
                backoff = FIRST_RESTART_BACKOFF
            self._say(f"{self._name} {exit_description}; starting it again in {backoff:g} s")
            await asyncio.sleep(backoff)
            backoff = min(2 * backoff, LONGEST_RESTART_BACKOFF)

    async def _run_once(self) -> str:
        """Run the process until it ends by itself; returns how it ended, as part of a sentence."""
        try:
            process = await self._start()
        except (OSError, KnafkaError) as error:
            return f"can't be started: {error}"
        try:
            return describe_exit(await process.wait())
        finally:
            await process.stop()  # also if it has ended: its group may have other processes


async def cancel(task: asyncio.Task[Any]) -> None:
    """Cancel a task and wait until it has ended, with or without an error."""
    task.cancel()
    await asyncio.wait({task})


def describe_exit(code: int) -> str:
    """Return how a process ended, as part of a sentence: `ended with code 1`, `was ended by
    SIGKILL`."""
    if code < 0:
        with contextlib.suppress(ValueError):  # a real-time signal has no name
            return f"was ended by {signal.Signals(-code).name}"
        return f"was ended by signal {-code}"
    return f"ended with code {code}"
