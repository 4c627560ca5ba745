"""Programs: Knative Services as commands on this machine, each kept running on a port of its own.

    started --its port opens--> serving --it ends--> not serving --after a backoff--> started

A program whose sources change is started anew. What it prints to stdout is shown at once, since
that is how a user sees events arrive; what it prints to stderr is only in its log file.
"""

from __future__ import annotations

import asyncio
import os
import shlex
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from watchfiles import DefaultFilter

from knafka.core.errors import InvalidDocument
from knafka_client.sockets import HOST, free_port, is_port_open
from knafka_client.state.installation import log_name
from knafka_local.processes.children import Child, Command, Say, Supervised, describe_exit
from knafka_local.watching import FolderWatcher
from knafka_operator.model.conditions import Status
from knafka_operator.model.resources import LOCAL_COMMAND, Service, annotation_path

PROGRAM_STOP_TIMEOUT: Final = 1.0
"""Seconds from SIGTERM to SIGKILL; short, as nobody waits for a stopped program's answers."""
PORT_POLL_INTERVAL: Final = 0.05
"""Seconds between two checks whether a port is open."""

Identity: TypeAlias = tuple[str, str]
"""Namespace and name of a Service."""
OnPrinted: TypeAlias = Callable[[str, str], None]
"""Called with a program's name and one line that it printed."""
ReportStatus: TypeAlias = Callable[[Identity, Status, str], Awaitable[None]]
"""Called with a Service, whether its program serves (UNKNOWN: it was just started), and the reason
if it doesn't serve (else empty)."""


@dataclass(frozen=True, slots=True)
class Program:
    """The command that runs in place of a Knative Service's container."""

    arguments: tuple[str, ...]
    """The program and its arguments."""
    folder: Path
    """The manifest's folder: relative paths in the command start there."""
    environment: Mapping[str, str]
    """The variables that the Service's container declares."""

    def source_files(self) -> Iterator[Path]:
        """Yield the existing files that the command names by relative paths."""
        for argument in self.arguments:
            file = os.path.normpath(self.folder / argument)
            # `Path.is_file` raises `OSError` for an argument that is too long for a file's name.
            if not Path(argument).is_absolute() and os.path.isfile(file):
                yield Path(file)


def program_of(service: Service, folder: Path) -> Program:
    """Return the program that a Service's annotation `LOCAL_COMMAND` names in place of its image;
    `folder` is its manifest's. Raises `InvalidDocument` if the annotation is missing, or isn't a
    command line."""
    path = annotation_path(LOCAL_COMMAND)
    if LOCAL_COMMAND not in service.annotations:
        raise InvalidDocument(
            path, "missing: no image runs here, so the template's annotation says what to run"
        )
    try:
        arguments = tuple(shlex.split(service.annotations[LOCAL_COMMAND]))
    except ValueError as error:
        raise InvalidDocument(path, f"can't be read: {error}") from None
    if not arguments:
        raise InvalidDocument(path, "is empty: say what to run")
    return Program(arguments, folder, dict(service.env))


class Programs:
    """Keeps the commands of Services running, and reports their state to `report`."""

    def __init__(self, logs: Path, say: Say, show_program_line: OnPrinted) -> None:
        """`logs` is the folder of the programs' logs; `say` shows a message to the user;
        `show_program_line` is called with each line that a program prints to stdout."""
        self._logs = logs
        self._say = say
        self._show_program_line = show_program_line
        self._ports: dict[Identity, int] = {}
        """The port of each Service's program, kept while it doesn't run."""
        self._running: dict[Identity, tuple[Program, Supervised]] = {}
        """The command and the process of each program that is kept running, by Service."""
        self._watcher = FolderWatcher("source files of Services", say)
        self._programs_changed = asyncio.Event()
        """Set when a program was started or stopped: then other source files are to be
        watched."""
        self._changing = asyncio.Lock()
        """Held while programs are started or stopped."""
        self.report: ReportStatus = _ignore_report
        """Called whenever a program's state changes; `LocalServing` sets it."""

    def url(self, service: Identity) -> str:
        """Return the URL of a Service's program, which stays the same as long as we run."""
        return f"http://{HOST}:{self._port(service)}/"

    def _port(self, service: Identity) -> int:
        """Return the port of a Service's program: a free one at the first call, and then always the
        same."""
        return self._ports.setdefault(service, free_port())

    async def run(self, service: Identity, program: Program) -> None:
        """Run a Service's program. Restarts it if it runs with another command, and does nothing if
        it runs with this one."""
        async with self._changing:
            if service in self._running and self._running[service][0] == program:
                return
            await self._stop_program(service)
            await self._start_program(service, program)
            self._programs_changed.set()

    async def stop(self, service: Identity) -> None:
        """Stop a Service's program, if it runs."""
        async with self._changing:
            await self._stop_program(service)
            self._programs_changed.set()

    async def close(self) -> None:
        """Stop all programs."""
        await asyncio.gather(*map(self._stop_program, list(self._running)))

    async def follow_sources(self) -> None:
        """Restart a program whenever one of its sources changes; runs for ever.

        Sources are the files that its command names, and the files in their folders with the same
        suffix; a program may write other files there.
        """
        while True:
            self._programs_changed.clear()
            programs = [program for program, _ in self._running.values()]
            folders = {file.parent for program in programs for file in program.source_files()}
            if not folders:
                await self._programs_changed.wait()
                continue
            changes = self._watcher.changes(  # ends when a program is started or stopped
                folders, DefaultFilter(), self._programs_changed
            )
            async for changed_paths in changes:
                await self._restart_changed(changed_paths)

    async def _restart_changed(self, changed_paths: set[Path]) -> None:
        """Restart every program whose sources include a changed file: a file that its command
        names, or a file beside it with the same suffix. A changed folder stands for its files."""
        async with self._changing:
            for service, (program, _) in list(self._running.items()):
                source_kinds = {(file.parent, file.suffix) for file in program.source_files()}
                folders = {folder for folder, _ in source_kinds}
                if any(
                    path in folders or (path.parent, path.suffix) in source_kinds
                    for path in changed_paths
                ):
                    self._say(
                        f"Service {'/'.join(service)}: its source has changed, so it starts anew"
                    )
                    await self._stop_program(service)
                    await self._start_program(service, program)

    async def _stop_program(self, service: Identity) -> None:
        """Stop a Service's program, if it runs."""
        if service in self._running:
            _, supervised = self._running.pop(service)
            await supervised.stop()

    async def _start_program(self, service: Identity, program: Program) -> None:
        """Start a program and keep it running. As in Knative, the variable PORT tells the program
        the port of its Service."""
        log = self._logs / f"{log_name('service', *service)}.log"
        port = self._port(service)
        command = Command(
            program.arguments,
            log,
            {**program.environment, "PORT": str(port)},
            program.folder,
            stop_timeout=PROGRAM_STOP_TIMEOUT,
        )

        def show(line: str) -> None:
            """Show a line that the program printed, with the Service's name."""
            self._show_program_line(service[1], line)

        async def start() -> _ReportingChild:
            """Start the program's process, which reports its readiness. Raises `OSError` after
            reporting that it can't be started."""
            try:
                child = await Child.start(command, show)
            except OSError as error:
                await self.report(service, Status.FALSE, f"its command can't be started: {error}")
                raise
            return _ReportingChild(child, service, port, log, self.report)

        await self.report(service, Status.UNKNOWN, f"port {port} is not open yet: see {log}")
        self._running[service] = (
            program,
            Supervised(f"Service {'/'.join(service)}", start, self._say),
        )


class _ReportingChild:
    """A child process that reports when its port opens and when the process ends."""

    def __init__(
        self, child: Child, service: Identity, port: int, log: Path, report: ReportStatus
    ) -> None:
        """`port` is the one that the process opens; `log` is named in reports."""
        self._child = child
        self._service = service
        self._log = log
        self._report = report
        self._opening = asyncio.create_task(self._report_once_open(port))
        """Waits for the port to open."""

    async def wait(self) -> int:
        """Wait until the process ends, report that, and return its exit code."""
        code = await self._child.wait()
        self._opening.cancel()
        await self._report(
            self._service, Status.FALSE, f"its command {describe_exit(code)}: see {self._log}"
        )
        return code

    async def stop(self) -> None:
        """Stop the process without a report."""
        self._opening.cancel()
        await self._child.stop()

    async def _report_once_open(self, port: int) -> None:
        """Report once the port accepts connections."""
        while not await is_port_open(HOST, port):  # noqa: ASYNC110  # nobody else knows when
            await asyncio.sleep(PORT_POLL_INTERVAL)
        await self._report(self._service, Status.TRUE, "")


async def _ignore_report(service: Identity, serves: Status, reason: str) -> None:
    """Do nothing: the value of `Programs.report` until another function is set."""
