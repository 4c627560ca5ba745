"""Views: `knafka up` as lines (`Lines`) or as a live table (`Table`), from the same snapshots.

Lines say each change of state once, one line for all where many change alike, and a summary now and
then; they are for logs and pipes.
"""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TextIO

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from knafka_client.state.snapshot import BrokerRow, Snapshot, TriggerRow
from knafka_local.view import Snap, View

SUMMARY_INTERVAL: Final = 5.0
"""Seconds between two summaries, if there is something new."""
SUMMARY_TRIGGERS: Final = 10
"""Triggers that a summary names at most."""
LINES_OF_ONE_KIND: Final = 10
"""Triggers of which the same is said in lines of their own; of more it is said once."""
VIEW_REFRESH_INTERVAL: Final = 0.5
AT_REST: Final = "nothing waits"
"""The scaler's reason (`decide.scaling.NOTHING_WAITS`, whose import would take longer than a whole
command) where the figures say it already."""
DEAD_LETTERS_CONDITION: Final = "DeadLetters"
"""A condition (`decide.dead_letters.DEAD_LETTERS`, for whose import the same is true)."""
COLOURS: Final = ("cyan", "magenta", "green", "yellow", "blue")


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
            if now != shown:
                for line in changes(shown, now):
                    self.say(line)
                shown = now
            if waited >= SUMMARY_INTERVAL:
                waited = 0.0
                if (text := summary(now)) != told:
                    told = text
                    self.say(text)
            await asyncio.sleep(VIEW_REFRESH_INTERVAL)
            waited += VIEW_REFRESH_INTERVAL


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
        shown = None
        with Live(console=self._console, auto_refresh=False) as live:
            while True:
                if (now := (snapshot(), self._console.size)) != shown:
                    live.update(StatusTable(now[0]), refresh=True)
                    shown = now
                await asyncio.sleep(VIEW_REFRESH_INTERVAL)


def changes(previous: Snapshot, now: Snapshot) -> Iterator[str]:
    """What is new in `now`, one sentence each."""
    if now.kafka != previous.kafka:
        yield f"Kafka: {now.kafka}"
    yield from (problem for problem in now.problems if problem not in previous.problems)
    yield from (
        f"solved: {problem}" for problem in previous.problems if problem not in now.problems
    )
    brokers = {(row.kind, row.name): row for row in previous.brokers}
    for broker in now.brokers:
        old_broker = brokers.pop((broker.kind, broker.name), None)
        if old_broker is None or old_broker.refused != broker.refused:
            state = f"is not served: {broker.refused}" if broker.refused else f"at {broker.url}"
            yield f"{broker.kind} {broker.name} {state}"
    yield from (f"{kind} {name} is gone" for kind, name in brokers)
    yield from _said(_changes_of_triggers(previous.sensors, now.sensors))
    yield from _said(_changes_of_triggers(previous.triggers, now.triggers))


@dataclass(frozen=True, slots=True)
class _Change:
    """What is new of a Trigger or Subscription."""

    row: TriggerRow
    one: str
    """What is said of it alone, behind its name."""
    many: str
    """What is said of several at once, behind their number."""
    more: str = ""
    """What may be another thing of each."""


def _said(changes: Iterable[_Change]) -> Iterator[str]:
    """A line for each, but one for all of which the same is to be said where they are many."""
    same: dict[tuple[str, str], list[_Change]] = {}
    for change in changes:
        same.setdefault((change.row.kind, change.many), []).append(change)
    for (kind, many), alike in same.items():
        if len(alike) <= LINES_OF_ONE_KIND:
            yield from (f"{kind} {change.row.name}{change.one}{change.more}" for change in alike)
            continue
        more = {change.more for change in alike}
        such = f", such as {alike[0].row.name}{alike[0].more}" if len(more) > 1 else more.pop()
        yield f"{len(alike)} {kind}s{many}{such}"


def _changes_of_triggers(
    previous: Sequence[TriggerRow], now: Sequence[TriggerRow]
) -> Iterator[_Change]:
    old = {(row.kind, row.name): row for row in previous}
    for row in now:
        if (known := old.pop((row.kind, row.name), None)) is not row:
            yield from _changes_of(known, row)
    yield from (_Change(row, " is gone", " are gone") for row in old.values())


def _changes_of(previous: TriggerRow | None, now: TriggerRow) -> Iterator[_Change]:
    if previous is None or previous.refused != now.refused:
        if now.refused:
            yield _Change(now, " is not ready", " are not ready", f": {now.refused}")
        else:
            yield _Change(now, " is ready", " are ready")
    if now.paused != (previous is not None and previous.paused):
        if now.paused:
            yield _Change(now, " is paused: its events wait", " are paused: their events wait")
        else:
            yield _Change(now, " goes on", " go on")
    if previous is not None and previous.replicas != now.replicas:
        why = f" ({now.decision})" if now.decision else ""
        what = "processes" if now.kind == "Sensor" else "dispatchers"
        dispatchers = f": {now.replicas} of {now.most_replicas} {what}"
        yield _Change(now, dispatchers, dispatchers, why)
    if now.error and (previous is None or previous.error != now.error):
        yield _Change(now, "", " have trouble", f": {now.error}")


def summary(now: Snapshot) -> str:
    """The counts in one line: of each Trigger while they are few, else of the busiest, and sums of
    the others."""
    brokers = [
        f"{_named(broker)} accepted {broker.accepted}"
        + (f" rejected {broker.rejected}" if broker.rejected else "")
        for broker in now.brokers
        if not broker.refused
    ]
    brokers += [
        f"Sensor {sensor.name} waiting {'?' if sensor.lag is None else sensor.lag} "
        f"fired {sensor.delivered}"
        for sensor in now.sensors
        if not sensor.refused
    ]
    triggers = [trigger for trigger in now.triggers if not trigger.refused]
    if len(triggers) <= SUMMARY_TRIGGERS:
        return "; ".join([*brokers, *map(_counts, triggers)])
    busy = sorted(filter(_is_busy, triggers), key=_waiting, reverse=True)
    resting = [trigger for trigger in triggers if not _is_busy(trigger)]
    parts = [*brokers, *map(_counts, busy[:SUMMARY_TRIGGERS])]
    for what, others in (("more busy", busy[SUMMARY_TRIGGERS:]), ("at rest", resting)):
        if others:
            parts.append(_counts(_sum(f"{len(others)} {what}:", others)))
    return "; ".join(parts)


def _named(row: BrokerRow | TriggerRow) -> str:
    """Brokers and Triggers by their names alone: nothing else is there mostly."""
    return row.name if row.kind in ("Broker", "Trigger") else f"{row.kind} {row.name}"


def _is_busy(row: TriggerRow) -> bool:
    return row.lag != 0 or row.error != ""


def _waiting(row: TriggerRow) -> float:
    """How much, for the order; of unknown lag it may be anything."""
    return math.inf if row.lag is None else row.lag


def _counts(row: TriggerRow) -> str:
    return (
        f"{_named(row)} waiting {'?' if row.lag is None else row.lag} delivered {row.delivered}"
        f" filtered {row.filtered} retried {row.retried} dead letters {row.dead_lettered}"
    )


def _sum(name: str, rows: Sequence[TriggerRow]) -> TriggerRow:
    known = [row.lag for row in rows if row.lag is not None]
    return TriggerRow(
        name,
        lag=sum(known) if known else None,
        delivered=sum(row.delivered for row in rows),
        filtered=sum(row.filtered for row in rows),
        retried=sum(row.retried for row in rows),
        dead_lettered=sum(row.dead_lettered for row in rows),
    )


@dataclass(frozen=True, slots=True)
class _Column:
    """A figure of a row, and the terminal's width from which on there is room for it."""

    title: str
    figure: Callable[[Any], str]
    from_width: int = 0


_BROKER: Final = (
    _Column("accepted", lambda row: f"{row.accepted}"),
    _Column("rejected", lambda row: f"{row.rejected}"),
)
_SENSOR: Final = (
    _Column("waiting", lambda row: "?" if row.lag is None else f"{row.lag}"),
    _Column("processes", lambda row: f"{row.replicas}/{row.most_replicas}", 72),
    _Column("read", lambda row: f"{row.read}", 110),
    _Column("fired", lambda row: f"{row.delivered}"),
)
_TRIGGER: Final = (
    _Column("waiting", lambda row: "?" if row.lag is None else f"{row.lag}"),
    _Column("dispatchers", lambda row: f"{row.replicas}/{row.most_replicas}", 72),
    _Column("read", lambda row: f"{row.read}", 110),
    _Column("filtered", lambda row: f"{row.filtered}", 110),
    _Column("delivered", lambda row: f"{row.delivered}"),
    _Column("retried", lambda row: f"{row.retried}", 90),
    _Column("dead\nletters", lambda row: f"{row.dead_lettered}", 60),
)


@dataclass(frozen=True, slots=True)
class StatusTable:
    """The table of a snapshot, as wide as the terminal is when it is drawn.

    A name is never cut: it has a line of its own, and what there is to say of how the object stands
    is in the line below.
    Where there is little room, the lesser figures are left out. Also `knafka status` prints it.
    """

    now: Snapshot

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> RenderResult:
        width = options.max_width
        yield Text(f"Kafka {self.now.kafka}", style="italic")
        shown = (
            ("Broker", _BROKER, [(row, _place(row)) for row in self.now.brokers]),
            ("Sensor", _SENSOR, [(row, _state(row)) for row in self.now.sensors]),
            ("Trigger", _TRIGGER, [(row, _state(row)) for row in self.now.triggers]),
            ("KafkaChannel", _BROKER, [(row, _place(row)) for row in self.now.brokers]),
            ("Subscription", _TRIGGER, [(row, _state(row)) for row in self.now.triggers]),
        )
        for kind, columns, candidates in shown:
            rows = [(row, row.name, state) for row, state in candidates if row.kind == kind]
            if rows or kind in ("Broker", "Trigger"):
                yield _grid(kind, columns, rows, width)
        yield from (Text(problem, style="red") for problem in self.now.problems)


def _grid(
    what: str, columns: Sequence[_Column], rows: Sequence[tuple[Any, str, Text]], width: int
) -> Grid:
    shown = [column for column in columns if column.from_width <= width]
    grid = Grid(expand=True, box=SIMPLE_HEAD, padding=0, pad_edge=False, show_edge=False)
    grid.add_column(what, overflow="fold", ratio=1)
    for column in shown:
        grid.add_column(column.title, justify="right", no_wrap=True)
    for row, name, state in rows:
        lines: list[RenderableType] = [Text(name, overflow="fold")]
        if state:
            lines.append(Padding(state, (0, 0, 0, 2)))
        grid.add_row(Group(*lines), *(column.figure(row) for column in shown))
    return grid


def _place(row: BrokerRow) -> Text:
    if row.refused:
        return Text(f"not served: {row.refused}", style="red")
    return Text(row.url, style="dim")


def _state(row: TriggerRow) -> Text:
    if row.refused:
        return Text(f"not ready: {row.refused}", style="red")
    if row.error:
        return Text(row.error, style="yellow")
    if row.paused:
        return Text("paused: its events wait", style="yellow")
    if row.decision == AT_REST:  # the figures say so, and the table stays short
        left = (
            condition for condition in row.conditions if condition.type == DEAD_LETTERS_CONDITION
        )
        return Text(
            next((condition.message for condition in left if condition.status == "False"), ""),
            "yellow",
        )
    return Text(row.decision, style="green" if row.replicas else "dim")


def choose(plain: bool) -> View:
    """The table on a terminal, lines anywhere else."""
    console = Console()
    return Lines() if plain or not console.is_terminal else Table(console)
