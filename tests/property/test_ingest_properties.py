"""Each dead letter goes into the table once, whatever happens to topics and runs."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from knafka_jobs.compact.batches import ingest, next_batch
from knafka_jobs.topics import Offsets, Partition, Span

Row: TypeAlias = tuple[str, int, int]
"""Topic id, partition, offset."""

NAMES = ("a", "b", "c")


class Killed(Exception):
    """A run ends here."""


class Refused(Exception):
    """Spark or Delta does not do what it is asked."""


@dataclass
class Log:
    """Kafka: topics by name, each with an id of its own and partitions from `start` to `end`."""

    topics: dict[str, tuple[str, list[list[int]]]] = field(default_factory=dict)
    ids: Callable[[], int] = field(default_factory=lambda: itertools.count().__next__)

    def make(self, name: str) -> None:
        self.topics[name] = (f"{name}-{self.ids()}", [[0, 0]])

    def spans(self, names: frozenset[str]) -> dict[Partition, Span]:
        """What the metadata say of these, those that are there."""
        return {
            (self.topics[name][0], number): Span(*offsets)
            for name in names & self.topics.keys()
            for number, offsets in enumerate(self.topics[name][1])
        }

    def read(self, ranges: Mapping[Partition, Span]) -> list[Row]:
        """As Spark does when it is given partitions, starts and ends, and failOnDataLoss: what is
        between, or nothing at all; test_dead_letters_once.py sees whether that is so."""
        there = self.spans(frozenset(self.topics))
        for where, span in ranges.items():
            if where not in there or not there[where].start <= span.start < span.end:
                raise Refused
            if span.end > there[where].end:
                raise Refused
        return [
            (*where, offset)
            for where, span in ranges.items()
            for offset in range(span.start, span.end)
        ]


@dataclass
class Table:
    """`records` and its notes; `steps` is how many more a run makes until it is killed."""

    rows: Counter[Row] = field(default_factory=Counter)
    appended: Counter[Row] = field(default_factory=Counter)
    notes: dict[int, dict[Partition, int] | None] = field(default_factory=dict)
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
        found: dict[Partition, int] = {}
        for topic, partition, offset in self.rows:
            found[topic, partition] = max(found.get((topic, partition), 0), offset + 1)
        return found

    def save_offsets(self, batch: int, after: Offsets) -> None:
        self.step()
        self.notes[batch] = None  # a file that is not whole
        self.step()
        self.notes[batch] = dict(after)
        self.step()

    def commit(self, rows: list[Row], batch: int) -> None:
        """As Delta does with txnVersion: rows and number are there at once."""
        self.step()
        assert self.last is None or batch > self.last
        self.rows.update(rows)
        self.appended.update(rows)
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


@dataclass(frozen=True)
class Append:
    name: str
    partition: int
    count: int


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
    """The log's last records are lost."""

    name: str
    partition: int
    count: int


@dataclass(frozen=True)
class Purge:
    """Rows are taken from the table for good."""

    names: frozenset[str]


Event: TypeAlias = Append | Delete | MakeAnew | AddPartition | DeleteRecords | CutOff

a_name = st.sampled_from(NAMES)
some_names = st.frozensets(a_name)
some = st.integers(1, 4)
a_partition = st.integers(0, 2)
happen: st.SearchStrategy[Event] = st.one_of(
    st.builds(Append, a_name, a_partition, some),
    st.builds(Delete, a_name),
    st.builds(MakeAnew, a_name),
    st.builds(AddPartition, a_name),
    st.builds(DeleteRecords, a_name, a_partition, some),
)
runs = st.builds(
    Run,
    st.one_of(st.just(frozenset(NAMES)), some_names),
    st.integers(1, 20),
    st.one_of(st.none(), st.integers(0, 12)),
    st.one_of(st.just(()), st.tuples(happen)),
)
histories = st.lists(st.one_of(happen, runs, runs, st.builds(Purge, some_names)), max_size=30)


def happens(log: Log, event: Event) -> None:
    if isinstance(event, MakeAnew):
        log.make(event.name)
        return
    if event.name not in log.topics:
        return
    partitions = log.topics[event.name][1]
    match event:
        case Delete(name):
            del log.topics[name]
        case AddPartition():
            partitions.append([0, 0])
        case Append(_, number, count):
            partitions[number % len(partitions)][1] += count
        case DeleteRecords(_, number, count):
            offsets = partitions[number % len(partitions)]
            offsets[0] = min(offsets[0] + count, offsets[1])
        case CutOff(_, number, count):
            offsets = partitions[number % len(partitions)]
            offsets[1] = max(offsets[0], offsets[1] - count)


def compact(log: Log, table: Table, run: Run, clock: Callable[[], int]) -> None:
    """A run, as `compact` makes it of `ingest`."""
    spans = log.spans(run.names)
    for event in run.meanwhile:
        happens(log, event)
    table.steps = run.steps

    def append(ranges: Mapping[Partition, Span], batch: int, last: int | None) -> int:
        assert table.last == last
        rows = log.read(ranges)
        table.commit(rows, batch)
        return len(rows)

    try:
        before = sum(table.appended.values())
        done = ingest(table, spans, run.limit, append, clock)
        assert done.records == sum(table.appended.values()) - before
    except (Killed, Refused):
        pass
    finally:
        table.steps = None


EVERYTHING = Run(frozenset(NAMES), 7, None, ())


@settings(max_examples=500)
@given(histories, st.lists(st.integers(0, 5)), st.booleans())
def test_each_position_is_tabled_once_by_any_sequence_of_runs(
    history: list[Event | Run | Purge], times: list[int], has_older_rows: bool
) -> None:
    """Over any subset of topics: all are there in the end, each appended once; clocks may stand
    still or go back, and the table may be an older version's, without notes."""
    log, table = Log(), Table()
    for name in NAMES:
        log.make(name)
    if has_older_rows:
        happens(log, Append("a", 0, 3))
        older = log.read({(log.topics["a"][0], 0): Span(0, 2)})
        table.rows.update(older * 2)
        table.appended.update(older)
    ticks = iter(times)
    for each in history:
        match each:
            case Run():
                compact(log, table, each, lambda: next(ticks, 0))
            case Purge(names):
                # What an older version tabled is known by its rows alone until there is a note.
                if table.last is not None:
                    gone = [row for row in table.rows if row[0].partition("-")[0] in names]
                    for row in gone:
                        del table.rows[row]
            case _:
                happens(log, each)
    compact(log, table, EVERYTHING, lambda: next(ticks, 0))
    assert all(count == 1 for count in table.appended.values())
    there = log.spans(frozenset(NAMES))
    assert (
        set(log.read({w: s for w, s in there.items() if s.start < s.end})) <= table.appended.keys()
    )
    before = table.last
    compact(log, table, EVERYTHING, lambda: next(ticks, 0))
    assert table.last == before, "what has nothing new appends nothing"


@pytest.mark.parametrize("steps", range(12))
def test_a_run_that_is_killed_before_a_purge_brings_nothing_back(steps: int) -> None:
    log, table = Log(), Table()
    log.make("a")
    happens(log, Append("a", 0, 4))
    compact(log, table, Run(frozenset("a"), 2, steps, ()), lambda: 0)
    if table.last is not None:
        table.rows.clear()
    compact(log, table, EVERYTHING, lambda: 0)
    assert sorted(table.appended.values()) == [1] * 4


@given(histories, st.integers(0, 30))
def test_tables_whose_notes_are_lost_go_on_after_their_rows(
    history: list[Event | Run | Purge], lost: int
) -> None:
    log, table = Log(), Table()
    for name in NAMES:
        log.make(name)
    for number, each in enumerate([*history, EVERYTHING]):
        if number == lost:
            table.notes.clear()
        match each:
            case Run():
                compact(log, table, each, lambda: 0)
            case Purge():
                pass
            case _:
                happens(log, each)
    assert all(count == 1 for count in table.rows.values())
    there = log.spans(frozenset(NAMES))
    assert set(log.read({w: s for w, s in there.items() if s.start < s.end})) <= table.rows.keys()


def test_what_is_appended_after_a_log_lost_its_end_is_tabled() -> None:
    """An unclean election: the log ends before where reading would go on, and grows from there."""
    log, table = Log(), Table()
    log.make("a")
    happens(log, Append("a", 0, 8))
    compact(log, table, EVERYTHING, lambda: 0)
    happens(log, CutOff("a", 0, 3))
    compact(log, table, EVERYTHING, lambda: 0)
    happens(log, Append("a", 0, 2))
    compact(log, table, EVERYTHING, lambda: 0)
    offsets = sorted(offset for _, _, offset in table.appended.elements())
    assert offsets == [0, 1, 2, 3, 4, 5, 5, 6, 6, 7], "the 5 and 6 that were lost, and the new ones"


partitions = st.tuples(a_name, a_partition)
spans = st.tuples(st.integers(0, 50), st.integers(0, 50)).map(
    lambda each: Span(min(each), max(each))
)


@given(
    st.dictionaries(partitions, spans),
    st.dictionaries(partitions, st.integers(0, 60)),
    st.integers(1, 40),
)
def test_a_batch_is_bounded_and_reads_where_reading_goes_on(
    there: dict[Partition, Span], read: dict[Partition, int], limit: int
) -> None:
    batch = next_batch(there, read, limit)
    if batch is None:
        assert all(each.start == each.end for where, each in there.items() if where not in read)
        assert all(there[where].end == read[where] for where in read.keys() & there.keys())
        return
    sizes = [each.end - each.start for each in batch.ranges.values()]
    assert all(sizes)
    assert sum(sizes) <= limit + len(sizes), "a partition gives at least one"
    assert read.keys() <= batch.after.keys()
    for where, each in batch.ranges.items():
        assert there[where].start <= each.start < each.end <= there[where].end
        assert batch.after[where] == each.end
        if there[where].start <= read.get(where, 0) <= there[where].end:
            assert each.start == read.get(where, 0)
    for where in read.keys() & there.keys():
        assert there[where].start <= batch.after[where] <= there[where].end
    for where in read.keys() - there.keys():
        assert batch.after[where] == read[where]
