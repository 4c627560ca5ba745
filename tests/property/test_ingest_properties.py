"""Each dead letter goes into the table once, whatever happens to topics and runs."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.ingesting import (
    NAMES,
    AddPartition,
    Append,
    CutOff,
    Delete,
    DeleteRecords,
    Event,
    Log,
    MakeAnew,
    Purge,
    Run,
    Table,
    compact,
    delete,
    happens,
)

from knafka_jobs.compact.ingest_batches import next_batch
from knafka_jobs.topic_offsets import OffsetSpan, Partition, ReadState, TopicState

a_name = st.sampled_from(NAMES)
some_names = st.frozensets(a_name)
some = st.integers(1, 4)
a_partition = st.integers(0, 2)
happen: st.SearchStrategy[Event] = st.one_of(
    st.builds(Append, a_name, a_partition, some, st.booleans()),
    st.builds(Delete, a_name),
    st.builds(MakeAnew, a_name),
    st.builds(AddPartition, a_name),
    st.builds(DeleteRecords, a_name, a_partition, some),
    st.builds(CutOff, a_name, a_partition, st.integers(1, 6)),
)
runs = st.builds(
    Run,
    st.one_of(st.just(frozenset(NAMES)), some_names),
    st.integers(1, 20),
    st.one_of(st.none(), st.integers(0, 12)),
    st.one_of(st.just(()), st.tuples(happen)),
    st.booleans(),
)
histories = st.lists(st.one_of(happen, runs, runs, st.builds(Purge, some_names)), max_size=30)

EVERYTHING = Run(frozenset(NAMES), 7, None, ())
AND_DELETES = Run(frozenset(NAMES), 7, None, (), deletes=True)


def judge(log: Log, table: Table) -> None:
    assert set(log.letters()) <= table.appended.keys(), "each is tabled"
    assert set(log.gone) <= table.appended.keys(), "none was deleted untabled"


@settings(max_examples=examples(500))
@given(histories, st.lists(st.integers(0, 5)), st.booleans())
@example([Append("a", 0, 1, is_transaction=True), EVERYTHING, CutOff("a", 0, 1)], [], False)
def test_each_letter_is_tabled_once_by_any_sequence_of_runs(
    history: list[Event | Run | Purge], times: list[int], has_older_rows: bool
) -> None:
    """Over any subset of topics, with logs that are cut: all are there in the end, each appended
    once, and none deleted before; clocks may stand still or go back, and the table may be an older
    version's, without notes."""
    log, table = Log(), Table()
    for name in NAMES:
        log.make(name)
    if has_older_rows:
        happens(log, Append("a", 0, 3))
        for where, offset, letter in log.read({(log.topics["a"][0], 0): OffsetSpan(0, 2)}):
            table.rows[*where, offset] = letter.number
            table.appended[letter.number] += 1
    ticks = iter(times)
    for each in history:
        match each:
            case Run():
                compact(log, table, each, lambda: next(ticks, 0))
            case Purge(names):
                # What an older version tabled is known by its rows alone until there is a note.
                if table.last is not None and not has_older_rows:
                    gone = {row for row in table.rows if row[0].partition("-")[0] in names}
                    table.purged |= gone
                    for row in gone:
                        del table.rows[row]
            case _:
                happens(log, each)
    compact(log, table, EVERYTHING, lambda: next(ticks, 0))
    # A log that was cut since it was read is noted first.
    compact(log, table, AND_DELETES, lambda: next(ticks, 0))
    assert all(count == 1 for count in table.appended.values())
    judge(log, table)
    assert log.letters() == []
    before = table.last
    compact(log, table, EVERYTHING, lambda: next(ticks, 0))
    assert table.last == before, "what has nothing new appends nothing"


@given(histories)
def test_without_leader_epochs_the_rows_tell_where_a_log_was_cut(
    history: list[Event | Run | Purge],
) -> None:
    log, table = Log(has_epochs=False), Table()
    for name in NAMES:
        log.make(name)
    for each in history:
        match each:
            case Run():
                compact(log, table, each, lambda: 0)
            case Purge():
                pass
            case _:
                happens(log, each)
    compact(log, table, AND_DELETES, lambda: 0)
    judge(log, table)
    assert all(count == 1 for count in table.appended.values())


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
    judge(log, table)
    assert all(count == 1 for count in table.appended.values())


@pytest.mark.parametrize("new", [0, 5, 35, 40, 65, 70])
@pytest.mark.parametrize("runs_between", [True, False])
@pytest.mark.parametrize("has_epochs", [True, False])
def test_of_a_log_that_was_cut_from_100_to_60_all_old_and_all_new_letters_are_tabled(
    new: int, runs_between: bool, has_epochs: bool
) -> None:
    """An unclean election. Whether the log is shorter than what was read of it, as long, or
    longer, and whether or not anybody looked before it grew."""
    log, table = Log(has_epochs), Table()
    log.make("a")
    happens(log, Append("a", 0, 100))
    compact(log, table, EVERYTHING, lambda: 0)
    happens(log, CutOff("a", 0, 40))
    if runs_between:
        compact(log, table, EVERYTHING, lambda: 0)
    happens(log, Append("a", 0, new))
    compact(log, table, AND_DELETES, lambda: 0)
    assert len(table.appended) == 100 + new
    assert set(table.appended.values()) == {1}
    assert (log.letters(), len(log.gone)) == ([], 60 + new)


def test_what_is_deleted_is_looked_at_last_of_all() -> None:
    """A log that is cut, and grows, after it was read and before it is deleted."""
    log, table = Log(), Table()
    log.make("a")
    happens(log, Append("a", 0, 10))
    compact(log, table, EVERYTHING, lambda: 0)
    topics = {"a": TopicState("a", log.topics["a"][0], {0: OffsetSpan(0, 10)})}
    happens(log, CutOff("a", 0, 4))
    happens(log, Append("a", 0, 8))
    delete(log, table, topics)
    assert log.gone == []
    compact(log, table, AND_DELETES, lambda: 0)
    judge(log, table)
    assert log.letters() == []


partitions = st.tuples(a_name, a_partition)
spans = st.tuples(st.integers(0, 50), st.integers(0, 50)).map(
    lambda each: OffsetSpan(min(each), max(each))
)


@given(
    st.dictionaries(partitions, spans),
    st.dictionaries(partitions, st.integers(0, 60)),
    st.integers(1, 40),
)
def test_a_batch_is_bounded_and_reads_where_reading_goes_on(
    there: dict[Partition, OffsetSpan], offsets: dict[Partition, int], limit: int
) -> None:
    # Of a log that ends before, reading goes on at its cut.
    read = {
        where: ReadState(min(offset, there[where].end) if where in there else offset)
        for where, offset in offsets.items()
    }
    batch = next_batch(there, read, limit)
    if batch is None:
        assert all(each.start == each.end for where, each in there.items() if where not in read)
        assert all(there[where].end == read[where].next for where in read.keys() & there.keys())
        return
    sizes = [each.end - each.start for each in batch.ranges.values()]
    assert all(sizes)
    assert sum(sizes) <= limit + len(sizes), "a partition gives at least one"
    assert read.keys() <= batch.after.keys()
    for where, each in batch.ranges.items():
        assert there[where].start <= each.start < each.end <= there[where].end
        assert batch.after[where].next == each.end
        if where in read and there[where].start <= read[where].next:
            assert each.start == read[where].next
    for where in read.keys() & there.keys():
        assert there[where].start <= batch.after[where].next <= there[where].end
    for where in read.keys() - there.keys():
        assert batch.after[where] == read[where]
