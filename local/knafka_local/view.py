"""Views: `knafka up` as lines (`Lines`) or as a live table (`Table`), from the same snapshots.

Lines say each change of state once, and a summary now and then; they are for logs and pipes.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Final, Protocol, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table as Grid
from rich.text import Text

from knafka_local.snapshot import Snapshot, TriggerRow

SUMMARY_INTERVAL: Final = 5.0
"""Seconds between two summaries, if there is something new."""
LOOK_INTERVAL: Final = 0.5
COLOURS: Final = ("cyan", "magenta", "green", "yellow", "blue")

Snap = Callable[[], Snapshot]


class View(Protocol):
    """Who shows what happens."""

    def say(self, line: str) -> None:
        """Something happened, for a person."""
        ...

    def printed(self, program: str, line: str) -> None:
        """A subscriber's program printed a line."""
        ...

    async def follow(self, snapshot: Snap) -> None:
        """Show how everything stands, until cancelled."""
        ...


class Lines:
    """One line for each thing that happens."""

    def __init__(self, out: TextIO = sys.stdout) -> None:
        self._out = out

    def say(self, line: str) -> None:
        print(f"{datetime.now():%H:%M:%S} {line}", file=self._out, flush=True)

    def printed(self, program: str, line: str) -> None:
        print(f"{program} | {line}", file=self._out, flush=True)

    async def follow(self, snapshot: Snap) -> None:
        shown, told = Snapshot(""), ""
        waited = 0.0
        while True:
            now = snapshot()
            for line in changes(shown, now):
                self.say(line)
            shown = now
            if waited >= SUMMARY_INTERVAL:
                waited = 0.0
                if (text := summary(now)) != told:
                    told = text
                    self.say(text)
            await asyncio.sleep(LOOK_INTERVAL)
            waited += LOOK_INTERVAL


class Table:
    """A table that stays where it is; what is said scrolls by above it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._colours: dict[str, str] = {}

    def say(self, line: str) -> None:
        self._console.print(Text(line, style="dim"))

    def printed(self, program: str, line: str) -> None:
        colour = self._colours.setdefault(program, COLOURS[len(self._colours) % len(COLOURS)])
        self._console.print(Text.assemble((f"{program} | ", colour), line))

    async def follow(self, snapshot: Snap) -> None:
        with Live(console=self._console, auto_refresh=False) as live:
            while True:
                live.update(render(snapshot()), refresh=True)
                await asyncio.sleep(LOOK_INTERVAL)


def changes(before: Snapshot, now: Snapshot) -> Iterator[str]:
    """What is new in `now`, one sentence each."""
    if now.kafka != before.kafka:
        yield f"Kafka: {now.kafka}"
    yield from (each for each in now.problems if each not in before.problems)
    yield from (f"solved: {each}" for each in before.problems if each not in now.problems)
    brokers = {each.name: each for each in before.brokers}
    for broker in now.brokers:
        old_broker = brokers.pop(broker.name, None)
        if old_broker is None or old_broker.refused != broker.refused:
            state = f"is not served: {broker.refused}" if broker.refused else f"at {broker.url}"
            yield f"Broker {broker.name} {state}"
    yield from (f"Broker {name} is gone" for name in brokers)
    triggers = {each.name: each for each in before.triggers}
    for trigger in now.triggers:
        yield from _changes_of(triggers.pop(trigger.name, None), trigger)
    yield from (f"Trigger {name} is gone" for name in triggers)


def _changes_of(before: TriggerRow | None, now: TriggerRow) -> Iterator[str]:
    name = f"Trigger {now.name}"
    if before is None or before.refused != now.refused:
        yield f"{name} is not ready: {now.refused}" if now.refused else f"{name} is ready"
    if before is not None and before.replicas != now.replicas:
        yield f"{name}: {now.replicas} of {now.most_replicas} replicas ({now.decision})"
    if now.error and (before is None or before.error != now.error):
        yield f"{name}: {now.error}"


def summary(now: Snapshot) -> str:
    """All counts in one line."""
    brokers = [
        f"{each.name} accepted {each.accepted}"
        + (f" rejected {each.rejected}" if each.rejected else "")
        for each in now.brokers
        if not each.refused
    ]
    triggers = [
        f"{each.name} lag {'?' if each.lag is None else each.lag} delivered {each.delivered}"
        f" filtered {each.filtered} retried {each.retried} buried {each.buried}"
        for each in now.triggers
        if not each.refused
    ]
    return "; ".join(brokers + triggers)


def render(now: Snapshot) -> Group:
    """The table of a snapshot."""
    brokers = Grid(title=f"Kafka {now.kafka}", title_justify="left", expand=True)
    for column, right in (("Broker", False), ("accepted", True), ("rejected", True), ("", False)):
        brokers.add_column(column, justify="right" if right else "left", no_wrap=right)
    for broker in now.brokers:
        brokers.add_row(
            broker.name,
            f"{broker.accepted}",
            f"{broker.rejected}",
            Text(f"not served: {broker.refused}", style="red") if broker.refused else broker.url,
        )
    triggers = Grid(expand=True)
    triggers.add_column("Trigger")
    for column in ("lag", "replicas", "read", "filtered", "delivered", "retried", "buried"):
        triggers.add_column(column, justify="right", no_wrap=True)
    triggers.add_column("state")
    for each in now.triggers:
        figures = (each.read, each.filtered, each.delivered, each.retried, each.buried)
        triggers.add_row(
            each.name,
            "?" if each.lag is None else f"{each.lag}",
            f"{each.replicas}/{each.most_replicas}",
            *map(str, figures),
            _state(each),
        )
    problems = [Text(each, style="red") for each in now.problems]
    return Group(brokers, triggers, *problems)


def _state(row: TriggerRow) -> Text:
    if row.refused:
        return Text(f"not ready: {row.refused}", style="red")
    if row.error:
        return Text(row.error, style="yellow")
    return Text(row.decision, style="green" if row.replicas else "dim")


def choose(plain: bool) -> View:
    """The table on a terminal, lines anywhere else."""
    console = Console()
    return Lines() if plain or not console.is_terminal else Table(console)
