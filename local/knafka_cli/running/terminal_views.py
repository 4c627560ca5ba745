"""Shows snapshots of `knafka up`, as lines (`LineView`) or as a live table (`TableView`).

Lines are for logs and pipes: one for each change of state, one for all objects when many change in
the same way, and a summary every few seconds.
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
from knafka_local.view import TakeSnapshot, View

SUMMARY_INTERVAL: Final = 5.0
"""Seconds between two summaries; one without news is left out."""
SUMMARY_TRIGGERS: Final = 10
"""The most Triggers that a summary names."""
LINES_FOR_SAME_CHANGE: Final = 10
"""The most Triggers that get a line each for the same change; more get one line together."""
VIEW_REFRESH_INTERVAL: Final = 0.5
"""Seconds between two snapshots."""
NOTHING_WAITS: Final = "nothing waits"
"""The scaler's reason while no event waits, which other figures show already
(`scale.decide.NOTHING_WAITS`, whose import would take longer than a whole command)."""
DEAD_LETTERS_CONDITION: Final = "DeadLetters"
"""Type of the condition about dead letters (`dispatchers.dead_letters.DEAD_LETTERS`, not imported
for the same reason)."""
COLOURS: Final = ("cyan", "magenta", "green", "yellow", "blue")
"""Colours of programs' names."""


class LineView:
    """Prints a line for each thing that happens."""

    def __init__(self, out: TextIO = sys.stdout) -> None:
        """`out` is the stream to print to."""
        self._out = out

    def say(self, line: str) -> None:
        """Print one line with the time."""
        print(f"{datetime.now():%H:%M:%S} {line}", file=self._out, flush=True)

    def show_program_line(self, program: str, line: str) -> None:
        """Print one line of a subscriber's program, after its name."""
        print(f"{program} | {line}", file=self._out, flush=True)

    async def follow(self, snapshot: TakeSnapshot) -> None:
        """Print the changes from one snapshot to the next, and a summary every `SUMMARY_INTERVAL`
        seconds, until cancelled; calling `snapshot` takes a snapshot."""
        previous, last_summary = Snapshot(""), ""  # nothing was shown yet
        since_summary = 0.0  # seconds
        while True:
            current = snapshot()
            if current != previous:
                for line in describe_changes(previous, current):
                    self.say(line)
                previous = current
            if since_summary >= SUMMARY_INTERVAL:
                since_summary = 0.0
                if (text := summary_line(current)) != last_summary:
                    last_summary = text
                    self.say(text)
            await asyncio.sleep(VIEW_REFRESH_INTERVAL)
            since_summary += VIEW_REFRESH_INTERVAL


class TableView:
    """Shows a live table; other lines scroll by above it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._colours: dict[str, str] = {}
        """Colour of each program's lines, by the program's name."""

    def say(self, line: str) -> None:
        """Print one line above the table."""
        self._console.print(Text(line, style="dim"))

    def show_program_line(self, program: str, line: str) -> None:
        """Print one line of a subscriber's program above the table, in the program's colour."""
        colour = self._colours.setdefault(program, COLOURS[len(self._colours) % len(COLOURS)])
        self._console.print(Text.assemble((f"{program} | ", colour), line))

    async def follow(self, snapshot: TakeSnapshot) -> None:
        """Draw the table anew whenever the snapshot or the terminal's size changes, until
        cancelled; calling `snapshot` takes a snapshot."""
        drawn = None  # the snapshot and the terminal's size that are drawn
        with Live(console=self._console, auto_refresh=False) as live:
            while True:
                current, size = snapshot(), self._console.size
                if (current, size) != drawn:
                    live.update(StatusTable(current), refresh=True)
                    drawn = current, size
                await asyncio.sleep(VIEW_REFRESH_INTERVAL)


def describe_changes(previous: Snapshot, current: Snapshot) -> Iterator[str]:
    """Yield a sentence for each difference between two snapshots."""
    if current.kafka != previous.kafka:
        yield f"Kafka: {current.kafka}"
    yield from (problem for problem in current.problems if problem not in previous.problems)
    yield from (
        f"solved: {problem}" for problem in previous.problems if problem not in current.problems
    )
    # Brokers that still exist are removed from it below.
    gone_brokers = {(row.kind, row.name): row for row in previous.brokers}
    for broker in current.brokers:
        old_broker = gone_brokers.pop((broker.kind, broker.name), None)
        if old_broker is None or old_broker.refused != broker.refused:
            state = f"is not served: {broker.refused}" if broker.refused else f"at {broker.url}"
            yield f"{broker.kind} {broker.name} {state}"
    yield from (f"{kind} {name} is gone" for kind, name in gone_brokers)
    yield from _change_lines(_trigger_changes(previous.sensors, current.sensors))
    yield from _change_lines(_trigger_changes(previous.triggers, current.triggers))


@dataclass(frozen=True, slots=True)
class _Change:
    """A change of one Trigger, Subscription or Sensor, in words."""

    row: TriggerRow
    """The object's row in the newer snapshot; of an object that is gone, in the older one."""
    text: str
    """The text after the object's name: ` is ready`."""
    text_of_several: str
    """The text after the number of objects, when several change in the same way: ` are ready`."""
    detail: str = ""
    """The end of the text, which may differ between objects that change in the same way."""


def _change_lines(changes: Iterable[_Change]) -> Iterator[str]:
    """Yield a line for each change; more than `LINES_FOR_SAME_CHANGE` objects of one kind that
    change in the same way get one line together."""
    by_text: dict[tuple[str, str], list[_Change]] = {}
    for change in changes:
        by_text.setdefault((change.row.kind, change.text_of_several), []).append(change)
    for (kind, text_of_several), same_changes in by_text.items():
        if len(same_changes) <= LINES_FOR_SAME_CHANGE:
            yield from (
                f"{kind} {change.row.name}{change.text}{change.detail}" for change in same_changes
            )
            continue
        example = same_changes[0]
        has_one_detail = all(change.detail == example.detail for change in same_changes)
        detail = (
            example.detail if has_one_detail else f", such as {example.row.name}{example.detail}"
        )
        yield f"{len(same_changes)} {kind}s{text_of_several}{detail}"


def _trigger_changes(
    previous: Sequence[TriggerRow], current: Sequence[TriggerRow]
) -> Iterator[_Change]:
    """Yield the changes from `previous` to `current`, the rows of two snapshots about Triggers and
    Subscriptions, or about Sensors."""
    # Rows of objects that still exist are removed from it below.
    gone_rows = {(row.kind, row.name): row for row in previous}
    for row in current:
        previous_row = gone_rows.pop((row.kind, row.name), None)
        if previous_row is not row:  # the same object has not changed
            yield from _row_changes(previous_row, row)
    yield from (_Change(row, " is gone", " are gone") for row in gone_rows.values())


def _row_changes(previous: TriggerRow | None, row: TriggerRow) -> Iterator[_Change]:
    """Yield the changes of one Trigger, Subscription or Sensor; `previous` is None if it is new."""
    if previous is None or previous.refused != row.refused:
        if row.refused:
            yield _Change(row, " is not ready", " are not ready", f": {row.refused}")
        else:
            yield _Change(row, " is ready", " are ready")
    was_paused = previous is not None and previous.paused
    if row.paused != was_paused:
        if row.paused:
            yield _Change(row, " is paused: its events wait", " are paused: their events wait")
        else:
            yield _Change(row, " goes on", " go on")
    if previous is not None and previous.replicas != row.replicas:
        reason = f" ({row.decision})" if row.decision else ""
        process_kind = "processes" if row.kind == "Sensor" else "dispatchers"
        replicas_text = f": {row.replicas} of {row.most_replicas} {process_kind}"
        yield _Change(row, replicas_text, replicas_text, reason)
    if row.error and (previous is None or previous.error != row.error):
        yield _Change(row, "", " have trouble", f": {row.error}")


def summary_line(snapshot: Snapshot) -> str:
    """Return one line with the counts of all Brokers, Sensors and Triggers that are served.

    If there are more than `SUMMARY_TRIGGERS` Triggers, the line has only those with the most
    waiting events, the sums of the other busy ones, and the sums of the idle ones (`_is_busy`).
    """
    parts = [
        f"{_display_name(broker)} accepted {broker.accepted}"
        + (f" rejected {broker.rejected}" if broker.rejected else "")
        for broker in snapshot.brokers
        if not broker.refused
    ]
    parts += [
        f"Sensor {sensor.name} waiting {'?' if sensor.lag is None else sensor.lag} "
        f"fired {sensor.delivered}"
        for sensor in snapshot.sensors
        if not sensor.refused
    ]
    triggers = [trigger for trigger in snapshot.triggers if not trigger.refused]
    if len(triggers) <= SUMMARY_TRIGGERS:
        return "; ".join([*parts, *map(_counts_text, triggers)])
    busy = sorted(filter(_is_busy, triggers), key=_waiting_events, reverse=True)
    idle = [trigger for trigger in triggers if not _is_busy(trigger)]
    parts += map(_counts_text, busy[:SUMMARY_TRIGGERS])
    for group_name, group_triggers in (
        ("more busy", busy[SUMMARY_TRIGGERS:]),
        ("at rest", idle),
    ):
        if group_triggers:
            parts.append(
                _counts_text(_sum_row(f"{len(group_triggers)} {group_name}:", group_triggers))
            )
    return "; ".join(parts)


def _display_name(row: BrokerRow | TriggerRow) -> str:
    """Return the object's name; the kind precedes it unless that is Broker or Trigger."""
    return row.name if row.kind in ("Broker", "Trigger") else f"{row.kind} {row.name}"


def _is_busy(row: TriggerRow) -> bool:
    """Whether events wait for the Trigger, or their number isn't known, or it has an error."""
    return row.lag != 0 or row.error != ""


def _waiting_events(row: TriggerRow) -> float:
    """Return the number of waiting events, for sorting; an unknown lag comes first."""
    return math.inf if row.lag is None else row.lag


def _counts_text(row: TriggerRow) -> str:
    """Return the name and the counts of a Trigger or Subscription as text."""
    return (
        f"{_display_name(row)} waiting {'?' if row.lag is None else row.lag}"
        f" delivered {row.delivered} filtered {row.filtered} retried {row.retried}"
        f" dead letters {row.dead_lettered}"
    )


def _sum_row(name: str, rows: Sequence[TriggerRow]) -> TriggerRow:
    """Return a row with this name and the sums of several rows' counts; unknown lags are left out
    of the sum, which is None if no lag is known."""
    known_lags = [row.lag for row in rows if row.lag is not None]
    return TriggerRow(
        name,
        lag=sum(known_lags) if known_lags else None,
        delivered=sum(row.delivered for row in rows),
        filtered=sum(row.filtered for row in rows),
        retried=sum(row.retried for row in rows),
        dead_lettered=sum(row.dead_lettered for row in rows),
    )


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of figures, shown if the terminal is at least `from_width` characters wide."""

    title: str
    figure: Callable[[Any], str]
    """Returns the cell's text for a row."""
    from_width: int = 0


_BROKER_COLUMNS: Final = (
    _Column("accepted", lambda row: f"{row.accepted}"),
    _Column("rejected", lambda row: f"{row.rejected}"),
)
_SENSOR_COLUMNS: Final = (
    _Column("waiting", lambda row: "?" if row.lag is None else f"{row.lag}"),
    _Column("processes", lambda row: f"{row.replicas}/{row.most_replicas}", 72),
    _Column("read", lambda row: f"{row.read}", 110),
    _Column("fired", lambda row: f"{row.delivered}"),
)
_TRIGGER_COLUMNS: Final = (
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
    """A table of a snapshot, as wide as the terminal; `knafka status` prints it, too.

    A name is never cut: it has a line of its own, with the object's state in the line below. A
    narrow terminal gets fewer columns of figures.
    """

    snapshot: Snapshot

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the tables of Brokers, Triggers and the other kinds that exist, then the
        problems."""
        width = options.max_width
        yield Text(f"Kafka {self.snapshot.kafka}", style="italic")
        brokers = [(row, _address_text(row)) for row in self.snapshot.brokers]
        sensors = [(row, _state_text(row)) for row in self.snapshot.sensors]
        triggers = [(row, _state_text(row)) for row in self.snapshot.triggers]
        sections: Sequence[tuple[str, Sequence[_Column], Sequence[tuple[Any, Text]]]] = (
            ("Broker", _BROKER_COLUMNS, brokers),
            ("Sensor", _SENSOR_COLUMNS, sensors),
            ("Trigger", _TRIGGER_COLUMNS, triggers),
            # A snapshot has channels among the Brokers, and Subscriptions among the Triggers.
            ("KafkaChannel", _BROKER_COLUMNS, brokers),
            ("Subscription", _TRIGGER_COLUMNS, triggers),
        )
        for kind, columns, candidates in sections:
            rows = [(row, state) for row, state in candidates if row.kind == kind]
            if rows or kind in ("Broker", "Trigger"):
                yield _objects_table(kind, columns, rows, width)
        yield from (Text(problem, style="red") for problem in self.snapshot.problems)


def _objects_table(
    title: str, columns: Sequence[_Column], rows: Sequence[tuple[Any, Text]], width: int
) -> Grid:
    """Return the table of the objects of one kind, for a terminal of `width` characters. `rows` has
    for each object its row of the snapshot, and the text about its state."""
    shown_columns = [column for column in columns if column.from_width <= width]
    grid = Grid(expand=True, box=SIMPLE_HEAD, padding=0, pad_edge=False, show_edge=False)
    grid.add_column(title, overflow="fold", ratio=1)
    for column in shown_columns:
        grid.add_column(column.title, justify="right", no_wrap=True)
    for row, state in rows:
        lines: list[RenderableType] = [Text(row.name, overflow="fold")]
        if state:
            lines.append(Padding(state, (0, 0, 0, 2)))
        grid.add_row(Group(*lines), *(column.figure(row) for column in shown_columns))
    return grid


def _address_text(row: BrokerRow) -> Text:
    """Return a Broker's or channel's address, or why it isn't served."""
    if row.refused:
        return Text(f"not served: {row.refused}", style="red")
    return Text(row.url, style="dim")


def _state_text(row: TriggerRow) -> Text:
    """Return the text about the state of a Trigger, Subscription or Sensor: why it isn't ready,
    else its error, else that it is paused, else the scaler's decision. If that says only that no
    event waits, return the problem with its dead letters instead, empty if there is none."""
    if row.refused:
        return Text(f"not ready: {row.refused}", style="red")
    if row.error:
        return Text(row.error, style="yellow")
    if row.paused:
        return Text("paused: its events wait", style="yellow")
    if row.decision == NOTHING_WAITS:  # the figures say so, and the table stays short
        dead_letter_problems = (
            condition.message
            for condition in row.conditions
            if condition.type == DEAD_LETTERS_CONDITION and condition.status == "False"
        )
        return Text(next(dead_letter_problems, ""), "yellow")
    return Text(row.decision, style="green" if row.replicas else "dim")


def choose_view(plain: bool) -> View:
    """Return the view that writes to stdout: a live table on a terminal, unless `plain` is True;
    otherwise lines."""
    console = Console()
    return LineView() if plain or not console.is_terminal else TableView(console)
