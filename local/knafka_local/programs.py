"""Programs: Knative Services as commands on this machine, each kept running on a port of its own.

What a program prints to stdout is shown as it comes, since that is where one sees events arrive;
what it prints to stderr lies in its log file.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final, TypeAlias

from knafka_local.children import Child, Command, Say, Supervised, free_port
from knafka_local.manifests import Identity
from knafka_local.plan import Program

PATIENCE: Final = 1.0
"""Seconds from SIGTERM to SIGKILL: nobody waits for their answers when they are stopped."""

Printed: TypeAlias = Callable[[str, str], None]
"""Is given a program's name and one line that it printed."""


class Programs:
    """Runs the programs of a plan, and those only."""

    def __init__(self, logs: Path, say: Say, printed: Printed) -> None:
        self._logs = logs
        self._say = say
        self._printed = printed
        self._ports: dict[Identity, int] = {}
        self._running: dict[Identity, tuple[Program, Supervised]] = {}

    def ports(self, services: Iterable[Identity]) -> Mapping[Identity, int]:
        """A port for each service, the same one for as long as we run."""
        return {who: self._ports.setdefault(who, free_port()) for who in services}

    async def run(self, wanted: Mapping[Identity, Program]) -> None:
        """Start what is new, start anew what has changed, stop what is gone."""
        unwanted = [
            who for who, (program, _) in self._running.items() if wanted.get(who) != program
        ]
        stopped = [self._running.pop(who)[1].stop() for who in unwanted]
        await asyncio.gather(*stopped)
        for who, program in wanted.items():
            if who not in self._running:
                self._running[who] = program, self._start(who, program)

    async def stop(self) -> None:
        await self.run({})

    def _start(self, who: Identity, program: Program) -> Supervised:
        command = Command(
            program.arguments,
            self._logs / f"service-{who.namespace}-{who.name}.log",
            {**program.environment, "PORT": str(program.port)},
            program.folder,
            patience=PATIENCE,
        )

        def show(line: str) -> None:
            self._printed(who.name, line)

        return Supervised(str(who), lambda: Child.start(command, show), self._say)
