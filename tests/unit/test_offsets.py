"""What may be committed, given what is settled."""

import pytest

from knafka.core.offsets import Ledger


def ledger_of(*offsets: int) -> Ledger:
    ledger = Ledger()
    for offset in offsets:
        ledger.track(offset)
    return ledger


def test_a_partition_that_was_never_read_has_nothing_to_commit() -> None:
    assert Ledger().position is None
    assert Ledger().uncommitted() is None


def test_the_position_is_the_lowest_unsettled_record() -> None:
    ledger = ledger_of(5, 6, 7)
    ledger.settle(6)
    assert ledger.position == 5
    ledger.settle(5)
    assert ledger.position == 7


def test_when_all_is_settled_the_position_is_the_next_record_to_read() -> None:
    ledger = ledger_of(5, 6)
    ledger.settle(6)
    ledger.settle(5)
    assert ledger.position == 7
    assert ledger.unsettled == 0


def test_gaps_in_the_offsets_cost_nothing() -> None:
    """Compaction and transactions leave offsets that nobody reads."""
    ledger = ledger_of(1, 1_000_000, 9_000_000_000)
    ledger.settle(1)
    assert ledger.position == 1_000_000


def test_an_end_that_is_reached_passes_what_holds_no_records() -> None:
    """A transaction's marker, or records of one that was aborted."""
    ledger = ledger_of(5, 6)
    ledger.settle(6)
    ledger.reach(9)
    assert ledger.position == 5, "never an unsettled record"
    ledger.settle(5)
    assert ledger.position == 9


def test_an_end_is_a_position_where_nothing_was_read() -> None:
    ledger = Ledger()
    ledger.reach(108)
    assert ledger.uncommitted() == 108


def test_an_end_that_comes_late_takes_no_position_back() -> None:
    ledger = ledger_of(5, 6)
    ledger.reach(6)
    ledger.settle(5)
    ledger.settle(6)
    assert ledger.position == 7


def test_a_position_is_offered_for_commit_only_when_it_moved() -> None:
    ledger = ledger_of(1, 2)
    assert ledger.uncommitted() == 1
    ledger.committed(1)
    assert ledger.uncommitted() is None
    ledger.settle(1)
    assert ledger.uncommitted() == 2


@pytest.mark.parametrize("offset", [4, 6], ids=["never tracked", "settled twice"])
def test_a_record_is_settled_exactly_once(offset: int) -> None:
    ledger = ledger_of(5, 6, 7)
    ledger.settle(6)
    with pytest.raises(KeyError):
        ledger.settle(offset)


def test_offsets_that_fall_are_refused() -> None:
    with pytest.raises(ValueError, match="offset 5 was read after 7"):
        ledger_of(7, 5)
