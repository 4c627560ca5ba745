"""What may be committed, given what is settled."""

import sys

import pytest

from knafka.core.offsets import OffsetTracker


def tracker_of(*offsets: int) -> OffsetTracker[None]:
    tracker = OffsetTracker[None]()
    for offset in offsets:
        tracker.track(offset, None)
    return tracker


def test_a_partition_that_was_never_read_has_nothing_to_commit() -> None:
    assert OffsetTracker[None]().position is None


def test_the_position_is_the_lowest_unsettled_record() -> None:
    tracker = tracker_of(5, 6, 7)
    tracker.settle(6)
    assert tracker.position == 5
    tracker.settle(5)
    assert tracker.position == 7


def test_when_all_is_settled_the_position_is_the_next_record_to_read() -> None:
    tracker = tracker_of(5, 6)
    tracker.settle(6)
    tracker.settle(5)
    assert tracker.position == 7
    assert not tracker.unsettled


def test_a_record_that_is_skipped_is_settled() -> None:
    tracker = tracker_of(5)
    tracker.skip(6)
    tracker.settle(5)
    assert tracker.position == 7


def test_gaps_in_the_offsets_cost_nothing() -> None:
    """Compaction and transactions leave offsets that nobody reads."""
    tracker = tracker_of(1, 1_000_000, 9_000_000_000)
    tracker.settle(1)
    assert tracker.position == 1_000_000


def test_an_end_that_is_reached_passes_what_holds_no_records() -> None:
    """A transaction's marker, or records of one that was aborted."""
    tracker = tracker_of(5, 6)
    tracker.settle(6)
    tracker.reach(9)
    assert tracker.position == 5, "never an unsettled record"
    tracker.settle(5)
    assert tracker.position == 9


def test_an_end_is_a_position_where_nothing_was_read() -> None:
    tracker = OffsetTracker[None]()
    tracker.reach(108)
    assert tracker.position == 108


def test_an_end_that_comes_late_takes_no_position_back() -> None:
    tracker = tracker_of(5, 6)
    tracker.reach(6)
    tracker.settle(5)
    tracker.settle(6)
    assert tracker.position == 7


@pytest.mark.parametrize("offset", [4, 6], ids=["never tracked", "settled twice"])
def test_a_record_is_settled_exactly_once(offset: int) -> None:
    tracker = tracker_of(5, 6, 7)
    tracker.settle(6)
    with pytest.raises(KeyError):
        tracker.settle(offset)


def test_offsets_that_fall_are_refused() -> None:
    with pytest.raises(ValueError, match="offset 5 was read after 7"):
        tracker_of(7, 5)


def test_what_is_settled_ahead_of_the_position_is_told_as_ranges() -> None:
    tracker = tracker_of(*range(10))
    for offset in (1, 2, 5, 7, 8, 9):
        tracker.settle(offset)
    assert tracker.position == 0
    assert tracker.settled_ahead() == [(1, 3), (5, 6), (7, 10)]


def test_nothing_is_settled_ahead_where_nothing_is_unsettled() -> None:
    tracker = tracker_of(1, 2)
    for offset in (1, 2):
        tracker.settle(offset)
    assert tracker.settled_ahead() == []


def test_what_an_earlier_owner_settled_is_passed_over() -> None:
    tracker = OffsetTracker[None]([(3, 5), (7, 8)])
    settled = [tracker.was_settled(offset) for offset in range(2, 10)]
    assert settled == [False, True, True, False, False, True, False, False]
    assert not tracker.has_inherited_ranges


def test_what_an_earlier_owner_settled_is_told_on_until_it_was_read() -> None:
    tracker = OffsetTracker[None]([(3, 5), (7, 9)])
    assert tracker.settled_ahead() == [(3, 5), (7, 9)]
    tracker.track(2, None)
    for offset in (3, 4):
        assert tracker.was_settled(offset)
        tracker.skip(offset)
    assert tracker.settled_ahead() == [(3, 5), (7, 9)]
    assert not tracker.was_settled(5)
    tracker.track(5, None)
    assert tracker.settled_ahead() == [(3, 5), (7, 9)]


def test_millions_of_records_settled_behind_an_unsettled_one_cost_what_that_one_costs() -> None:
    """Six million were 244 MB, and a stop of the event loop of a second."""
    tracker = tracker_of(0)
    largest = 0
    for offset in range(1, 300_000):
        tracker.track(offset, None)
        tracker.settle(offset)
        largest = max(largest, sys.getsizeof(tracker.unsettled))
    assert largest < 1_000
    assert tracker.settled_ahead() == [(1, 300_000)]
