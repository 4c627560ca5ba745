"""What tests may do to `MemoryTransactions`; what it does by itself is in
tests/contract/test_transactions_contract.py."""

from __future__ import annotations

import pytest
from support.memory.transactions import Crashed, Interruption, MemoryTransactions
from support.transactions import (
    Holder,
    MemoryCluster,
    everything,
    offsets_behind,
    read,
    values,
    wait_until,
)

from knafka.core.errors import LogError
from knafka.ports.transactions import Output, Partition, TransactionAborted

SLOT = "slot"


class Place:
    """A topic with two records, a topic for what follows from them, and members."""

    def __init__(self) -> None:
        self.cluster = MemoryCluster()
        self.source, self.out = self.cluster.topic(), self.cluster.topic()
        self.cluster.append(self.source, b"1", b"2")

    def member(
        self, transactional_id: str = SLOT, claims: Holder | None = None
    ) -> MemoryTransactions:
        made = self.cluster.member(self.source, claims=claims, transactional_id=transactional_id)
        assert isinstance(made, MemoryTransactions)
        return made

    def work(self, member: MemoryTransactions) -> None:
        records = member.read(100, 0)
        outputs = [Output(self.out, b"k", each.value(), []) for each in records]
        member.commit(outputs, offsets_behind(records))


@pytest.fixture
def place() -> Place:
    return Place()


def test_an_aborted_commit_leaves_nothing_but_offsets_that_are_passed_over(place: Place) -> None:
    member = place.member()
    member.interrupt(Interruption.ABORT)
    with pytest.raises(TransactionAborted):
        place.work(member)
    assert everything(member, place.out) == []
    assert member.ends(place.out) == {0: 3}
    place.work(member)
    assert values(everything(member, place.out)) == [b"1", b"2"]


@pytest.mark.parametrize(
    ("interruption", "stored"),
    [(Interruption.LOSE_BEFORE, []), (Interruption.LOSE_AFTER, [b"1", b"2"])],
)
def test_of_a_commit_whose_outcome_is_lost_the_next_member_sees_it(
    place: Place, interruption: Interruption, stored: list[bytes]
) -> None:
    member = place.member()
    member.interrupt(interruption)
    for _ in range(2):
        with pytest.raises(LogError) as raised:
            place.work(member)
        assert not isinstance(raised.value, TransactionAborted)
    place.cluster.close_member(member)
    successor = place.member()
    assert values(everything(successor, place.out)) == stored
    read(successor, 2 - len(stored))


@pytest.mark.parametrize(
    ("interruption", "stored"),
    [
        (Interruption.CRASH_BEFORE, []),
        (Interruption.CRASH_IN, []),
        (Interruption.CRASH_AFTER, [b"1", b"2"]),
    ],
)
@pytest.mark.parametrize("slot", [SLOT, "another"])
def test_what_a_crash_has_not_committed_is_worked_off_by_the_successor(
    place: Place, interruption: Interruption, stored: list[bytes], slot: str
) -> None:
    holder = Holder()
    member = place.member(claims=holder)
    member.interrupt(interruption)
    with pytest.raises(Crashed):
        place.work(member)
    for call in (lambda: member.read(1, 0), lambda: member.commit([], {}), lambda: member.ends("")):
        with pytest.raises(Crashed):
            call()
    member.close(1)
    assert holder.revocations == [], "it hears nothing any more"
    successor = place.member(slot)
    assert values(everything(successor, place.out)) == stored
    place.work(successor)
    assert values(everything(successor, place.out)) == [b"1", b"2"]


def test_an_open_transaction_keeps_others_waiting_until_it_is_decided(place: Place) -> None:
    member = place.member()
    member.interrupt(Interruption.CRASH_IN)
    with pytest.raises(Crashed):
        place.work(member)
    waits: list[bool] = []
    expire = place.cluster.memory.transactions.expire

    def decide() -> None:
        waits.append(True)
        expire()

    place.cluster.memory.transactions.waiting = decide
    successor = place.member("another")
    assert len(read(successor, 2)) == 2, "the offsets of the crashed one had to be decided"
    assert waits == [True]
    assert everything(successor, place.out) == []
    assert waits == [True]


def test_a_member_whose_session_ran_out_loses_all_and_joins_again(place: Place) -> None:
    holder, partition = Holder(), Partition(place.source, 0)
    member = place.member(claims=holder)
    records = read(member, 2)
    member.expel()
    with pytest.raises(TransactionAborted):
        member.commit([], offsets_behind(records))
    assert len(read(member, 2)) == 2
    assert (holder.revocations, holder.held) == ([{partition}], {partition})


def test_a_rotation_moves_partitions_once_their_holder_has_read(place: Place) -> None:
    first, second = Holder(), Holder()
    members = [place.member("1", first), place.member("2", second)]
    read(members[0], 2)
    assert list(members[1].read(10, 0)) == []
    coordinator = place.cluster.memory.group(place.cluster.group).coordinator
    coordinator.rotate()
    assert list(members[1].read(10, 0)) == []
    assert first.held
    wait_until(lambda: not first.held, members[0])
    assert values(members[1].read(10, 0)) == [b"1", b"2"]
    assert second.held == {Partition(place.source, 0)}
