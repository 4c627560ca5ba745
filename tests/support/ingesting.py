"""A Kafka of dead letters and the table that compactions keep of them, made of numbers.

What a dead letter is, it says itself: after a log was cut, others get its offsets.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, TypeAlias

from knafka_jobs.compact.compact_plan import older_ranges
from knafka_jobs.compact.cuts import deletable_until, find_cuts
from knafka_jobs.compact.ingest_batches import IngestBatch, ingest_spans
from knafka_jobs.topic_offsets import (
    Offsets,
    OffsetSpan,
    Partition,
    ReadState,
    RecordMark,
    TopicState,
    log_id,
    read_states_of,
)

Row: TypeAlias = tuple[str, int, int]
"""Log id, partition, offset."""

NAMES = ("a", "b", "c")


class Killed(Exception):
    """A run ends here."""


class Refused(Exception):
    """Spark or Delta does not do what it is asked."""


class Letter(NamedTuple):
    """A dead letter; no two have one number."""

    number: int
    epoch: int | None


@dataclass
class Part:
    """A partition: what lies from offset 0 on, and where it begins. None is a marker, no record."""

    start: int = 0
    slots: list[Letter | None] = field(default_factory=list)

    @property
    def span(self) -> OffsetSpan:
        return OffsetSpan(self.start, len(self.slots))


class Placed(NamedTuple):
    """A record, as consumers have it."""

    at: int

    def offset(self) -> int:
        return self.at


@dataclass
class Log:
    """Kafka: topics by name, each with an id of its own. `LogView`."""

    has_epochs: bool = True
    topics: dict[str, tuple[str, list[Part]]] = field(default_factory=dict)
    count: Callable[[], int] = field(default_factory=lambda: itertools.count().__next__)
    epoch: int = 0
    gone: list[int] = field(default_factory=list)
    """Letters that a compaction has deleted."""

    def make(self, name: str) -> None:
        self.topics[name] = (f"{name}-{self.count()}", [Part()])

    def parts(self) -> dict[Partition, Part]:
        return {
            (topic_id, number): part
            for topic_id, parts in self.topics.values()
            for number, part in enumerate(parts)
        }

    def spans(self, names: frozenset[str]) -> dict[Partition, OffsetSpan]:
        """What the metadata say of these, those that are there."""
        ids = {self.topics[name][0] for name in names & self.topics.keys()}
        return {
            partition: part.span for partition, part in self.parts().items() if partition[0] in ids
        }

    def read(self, ranges: Mapping[Partition, OffsetSpan]) -> list[tuple[Partition, int, Letter]]:
        """As Spark does when it is given partitions, starts and ends, and failOnDataLoss: what is
        between, or nothing at all; test_dead_letters_once.py sees whether that is so."""
        there = self.parts()
        for partition, span in ranges.items():
            if partition not in there or not there[partition].start <= span.start < span.end:
                raise Refused
            if span.end > there[partition].span.end:
                raise Refused
        return [
            (partition, offset, letter)
            for partition, span in ranges.items()
            for offset in range(span.start, span.end)
            if (letter := there[partition].slots[offset]) is not None
        ]

    def first_at(self, wanted: Mapping[Partition, int]) -> Mapping[Partition, RecordMark]:
        return {
            partition: mark
            for partition, offset in wanted.items()
            if (mark := next(iter(self.marks(partition, OffsetSpan(offset, 10**9))), None))
            is not None
        }

    def last_in(self, spans: Mapping[Partition, OffsetSpan]) -> Mapping[Partition, RecordMark]:
        return {
            partition: marks[-1]
            for partition, span in spans.items()
            if (marks := self.marks(partition, span))
        }

    def marks(self, partition: Partition, span: OffsetSpan) -> list[RecordMark]:
        part = self.parts().get(partition)
        if part is None or span.start < part.start:
            return []
        return [
            RecordMark(offset, str(letter.number), 0, letter.epoch)
            for offset in range(span.start, min(span.end, len(part.slots)))
            if (letter := part.slots[offset]) is not None
        ]

    def letters(self) -> list[int]:
        """All that are there."""
        return [
            letter.number
            for part in self.parts().values()
            for letter in part.slots[part.start :]
            if letter is not None
        ]


@dataclass
class Table:
    """`records` and its notes; `steps` is how many more a run makes until it is killed."""

    rows: dict[Row, int] = field(default_factory=dict)
    purged: set[Row] = field(default_factory=set)
    appended: Counter[int] = field(default_factory=Counter)
    """Letters, by their number."""
    notes: dict[int, Offsets | None] = field(default_factory=dict)
    last: int | None = None
    steps: int | None = None

    def step(self) -> None:
        if self.steps is not None:
            self.steps -= 1
            if self.steps < 0:
                raise Killed

    def last_batch(self) -> int | None:
        return self.last

    def offsets_after(self, batch: int) -> Offsets | None:
        return self.notes.get(batch)

    def offsets_of_rows(self) -> Offsets:
        return read_states_of((*row[:2], row[2], row[2] + 1) for row in sorted(self.rows))

    def rows_read_last(
        self, wanted: Mapping[Partition, ReadState]
    ) -> Mapping[Partition, RecordMark]:
        return {
            partition: mark
            for partition, reached in wanted.items()
            if (mark := self.last_row(partition, reached)) is not None
            and mark.offset == reached.next - 1
        }

    def last_row(self, partition: Partition, reached: ReadState) -> RecordMark | None:
        for number, piece in reversed(reached.split_by_log(OffsetSpan(0, reached.next))):
            for offset in range(piece.end - 1, piece.start - 1, -1):
                if (
                    letter := self.rows.get((log_id(partition[0], number), partition[1], offset))
                ) is not None:
                    return RecordMark(offset, str(letter), 0)
        return None

    def save_offsets(self, batch: int, after: Offsets) -> None:
        self.step()
        self.notes[batch] = None  # a file that is not whole
        self.step()
        self.notes[batch] = dict(after)
        self.step()

    def commit(self, rows: Mapping[Row, int], batch: int) -> None:
        """As Delta does with txnVersion: rows and number are there at once."""
        self.step()
        assert self.last is None or batch > self.last
        assert not rows.keys() & self.rows.keys(), "no two rows have one position"
        self.rows.update(rows)
        self.appended.update(rows.values())
        self.last = batch
        self.step()
        self.notes = {number: note for number, note in self.notes.items() if number >= batch}


@dataclass(frozen=True)
class Run:
    """A compaction over those topics that it sees, killed at a step if need be."""

    names: frozenset[str]
    limit: int
    steps: int | None
    meanwhile: tuple[Event, ...]
    """What happens between its look at Kafka and its reading."""
    deletes: bool = False
    """Whether it then deletes from the topics what is tabled."""


@dataclass(frozen=True)
class Append:
    """Records, and a marker behind them if they are a transaction."""

    name: str
    partition: int
    count: int
    is_transaction: bool = False


@dataclass(frozen=True)
class Delete:
    name: str


@dataclass(frozen=True)
class MakeAnew:
    name: str


@dataclass(frozen=True)
class AddPartition:
    name: str


@dataclass(frozen=True)
class DeleteRecords:
    name: str
    partition: int
    count: int


@dataclass(frozen=True)
class CutOff:
    """The log's last records are lost: an unclean election, so there is a new leader."""

    name: str
    partition: int
    count: int


@dataclass(frozen=True)
class Purge:
    """Rows are taken from the table for good."""

    names: frozenset[str]


Event: TypeAlias = Append | Delete | MakeAnew | AddPartition | DeleteRecords | CutOff


def happens(log: Log, event: Event) -> None:
    if isinstance(event, MakeAnew):
        log.make(event.name)
        return
    if event.name not in log.topics:
        return
    parts = log.topics[event.name][1]
    match event:
        case Delete(name):
            del log.topics[name]
        case AddPartition():
            parts.append(Part())
        case Append(_, number, count, is_transaction):
            epoch = log.epoch if log.has_epochs else None
            slots = parts[number % len(parts)].slots
            slots += [Letter(log.count(), epoch) for _ in range(count)]
            slots += [None] * is_transaction
        case DeleteRecords(_, number, count):
            part = parts[number % len(parts)]
            part.start = min(part.start + count, len(part.slots))
        case CutOff(_, number, count):
            part = parts[number % len(parts)]
            del part.slots[max(part.start, len(part.slots) - count) :]
            log.epoch += 1


def compact(log: Log, table: Table, run: Run, clock: Callable[[], int]) -> None:
    """A run, as `compact` makes it of `ingest`."""
    names = run.names & log.topics.keys()
    topics = {
        name: TopicState(
            name, log.topics[name][0], {n: p.span for n, p in enumerate(log.topics[name][1])}
        )
        for name in names
    }
    spans = log.spans(run.names)
    for event in run.meanwhile:
        happens(log, event)
    table.steps = run.steps

    def append(batch: IngestBatch, number: int, last: int | None) -> int:
        assert table.last == last
        rows = {
            (
                log_id(partition[0], batch.after[partition].logs()[-1][1]),
                partition[1],
                offset,
            ): letter.number
            for partition, offset, letter in log.read(batch.ranges)
        }
        table.commit(rows, number)
        return len(rows)

    try:
        before = sum(table.appended.values())
        done = ingest_spans(table, spans, log, run.limit, append, clock)
        assert done.records == sum(table.appended.values()) - before
        if run.deletes:
            delete(log, table, topics)
    except (Killed, Refused):
        pass
    finally:
        table.steps = None


def delete(log: Log, table: Table, topics: Mapping[str, TopicState]) -> None:
    """As `_delete_from_topics`, of all that is there."""
    read = {} if table.last is None else table.notes[table.last] or {}
    young = {(name, number): -1 for name, topic in topics.items() for number in topic.spans}
    held = table.rows.keys() | table.purged
    until: dict[Partition, int] = {}
    spans: dict[Partition, OffsetSpan] = {}
    tabled: dict[Partition, list[OffsetSpan]] = {}
    for name, log_name, number, start, end in older_ranges(topics, young, read):
        partition = (topics[name].id, number)
        spans[partition] = OffsetSpan(spans.get(partition, OffsetSpan(start, end)).start, end)
        tabled.setdefault(partition, []).extend(
            OffsetSpan(offset, offset + 1)
            for offset in range(start, end)
            if (log_name, number, offset) in held
        )
    there = log.parts()

    def placed(partition: Partition, gap: OffsetSpan) -> list[Placed]:
        return [Placed(mark.offset) for mark in log.marks(partition, gap)]

    for partition, span in spans.items():
        if partition in there:
            until[partition] = deletable_until(span, tabled[partition], partial(placed, partition))
    now = {partition: part.span for partition, part in there.items()}
    cuts, _ = find_cuts(read, now, log, table)
    for partition, offset in until.items():
        if partition not in cuts:
            part = there[partition]
            assert offset <= len(part.slots)
            deleted = part.slots[part.start : max(part.start, offset)]
            log.gone += [letter.number for letter in deleted if letter is not None]
            part.start = max(part.start, offset)
