"""What every `TransactionalLog` does: in memory and on real Kafka, by both group protocols."""

from __future__ import annotations

import time
import uuid

import pytest
from support.logs import SOON
from support.transactions import (
    Holder,
    Transactions,
    everything,
    offsets_behind,
    place_of,
    read,
    values,
    wait_until,
)

from knafka.clients.kafka.consumers import kafka_undecided_partitions
from knafka.core.errors import LogError
from knafka.core.progress import MAX_METADATA
from knafka.ports.log import OffsetAndMetadata, Record
from knafka.ports.transactions import (
    Output,
    Partition,
    RecordTooLarge,
    TransactionAborted,
    TransactionalLog,
)


def output(topic: str, value: bytes | None = b"", key: bytes = b"k") -> Output:
    return Output(topic, key, value, [])


def test_records_of_all_topics_come_in_order_for_each_partition(
    transactions: Transactions,
) -> None:
    first, second = transactions.topic(2), transactions.topic()
    holder = Holder()
    for number in range(20):
        transactions.append(first, b"%d" % number, partition=number % 2)
        transactions.append(second, b"%d" % number)
    records = read(transactions.member(first, second, claims=holder), 40, limit=7)
    assert holder.held == {Partition(first, 0), Partition(first, 1), Partition(second, 0)}
    for place in holder.held:
        offsets = [each.offset() for each in records if place_of(each) == place]
        assert offsets == list(range(len(offsets))) != []


def test_a_read_of_nothing_gives_nothing(
    transactions: Transactions,
) -> None:
    assert list(transactions.member(transactions.topic()).read(10, 0.1)) == []
    assert list(transactions.member("transactions-nowhere").read(10, 0.1)) == []


@pytest.mark.conformance("BUS-23")
def test_records_and_offsets_are_stored_together(
    transactions: Transactions,
) -> None:
    """BUS-23"""
    first, second, out = transactions.topic(), transactions.topic(), transactions.topic()
    transactions.append(first, b"1", b"2")
    transactions.append(second, b"3")
    member = transactions.member(first, second)
    records = read(member, 3)
    sent = [Output(out, b"k", each.value(), [("h", b"x")]) for each in records]
    member.commit(sent, offsets_behind(records))
    assert sorted(str(each) for each in values(everything(member, out))) == [
        "b'1'", "b'2'", "b'3'",
    ]  # fmt: skip
    assert everything(member, out)[0].headers() == [("h", b"x")]
    assert member.committed(first) == {0: 2}
    assert member.committed(second) == {0: 1}


def test_a_new_member_hears_what_is_committed_with_its_metadata(
    transactions: Transactions,
) -> None:
    first, second = transactions.topic(), transactions.topic()
    for each in (first, second):
        transactions.append(each, b"1", b"2")
    member = transactions.member(first, second)
    read(member, 4)
    committed = {Partition(first, 0): OffsetAndMetadata(1, '{"t1": 0} and an ümlaut')}
    member.commit([], committed)
    transactions.close_member(member)
    holder = Holder()
    records = read(transactions.member(first, second, claims=holder), 3)
    assert sorted(str(each) for each in values(records)) == ["b'1'", "b'2'", "b'2'"]
    assert holder.committed == {**committed, Partition(second, 0): None}


def test_key_value_headers_timestamp_and_partition_are_kept(
    transactions: Transactions,
) -> None:
    source, out = transactions.topic(), transactions.topic(3)
    member = transactions.member(source)
    wait_until(lambda: member.reached, member)
    headers = [("a", b"1"), ("a", b""), ("b", b"\xff")]
    member.commit(
        [
            Output(out, b"one", b"x", headers, partition=2, timestamp=1_700_000_000_123),
            Output(out, b"two", None, [], partition=2),
        ],
        {Partition(source, 0): OffsetAndMetadata(0)},
    )
    found, tombstone = everything(member, out, 2)
    assert (found.key(), found.value(), found.headers()) == (b"one", b"x", headers)
    assert found.timestamp()[1] == 1_700_000_000_123
    assert (tombstone.key(), tombstone.value()) == (b"two", None)
    assert abs(tombstone.timestamp()[1] / 1000 - time.time()) < 60


@pytest.mark.conformance("BUS-18")
def test_records_of_one_key_go_to_one_partition(
    transactions: Transactions,
) -> None:
    source, out = transactions.topic(), transactions.topic(8)
    transactions.append(source, b"1")
    member = transactions.member(source)
    behind = offsets_behind(read(member, 1))
    for _ in range(3):
        member.commit([output(out, b"x", b"%d" % key) for key in range(20)], behind)
    keys = [{each.key() for each in everything(member, out, number)} for number in range(8)]
    assert sum(map(len, keys)) == len(set().union(*keys)) == 20


def test_nothing_of_an_aborted_transaction_is_stored_and_its_records_come_again(
    transactions: Transactions,
) -> None:
    first, second, out = transactions.topic(), transactions.topic(), transactions.topic()
    transactions.append(first, b"1", b"2", b"3")
    transactions.append(second, b"4")
    member = transactions.member(first, second)
    records = read(member, 4)
    committed = {Partition(first, 0): OffsetAndMetadata(1, "kept")}
    member.commit([output(out, b"before")], committed)
    with pytest.raises(TransactionAborted) as raised:
        member.commit(
            [output(out, b"lost"), output("transactions-nowhere")], offsets_behind(records)
        )
    assert raised.value.unknown_topic
    assert values(everything(member, out)) == [b"before"]
    again = read(member, 3)
    assert sorted(str(each) for each in values(again)) == ["b'2'", "b'3'", "b'4'"]
    member.commit([output(out, b"after")], offsets_behind(again))
    assert values(everything(member, out)) == [b"before", b"after"]
    assert (member.committed(first), member.committed(second)) == ({0: 3}, {0: 1})
    assert list(member.read(10, 0.3)) == []


def test_a_record_that_is_too_large_is_named(
    transactions: Transactions,
) -> None:
    source, out = transactions.topic(), transactions.topic()
    transactions.append(source, b"1")
    member = transactions.member(source)
    behind = offsets_behind(read(member, 1))
    with pytest.raises(RecordTooLarge) as raised:
        member.commit([output(out, b"small"), output(out, b"x" * 2_000_000, b"large")], behind)
    assert (raised.value.topic, raised.value.key) == (out, b"large")
    assert raised.value.too_large
    assert not raised.value.retriable
    read(member, 1)
    member.commit([output(out, b"small")], behind)
    assert values(everything(member, out)) == [b"small"]


def test_a_topic_is_made_once_and_written_without_a_key(
    transactions: Transactions,
) -> None:
    """As the one for dead letters is, with the first of them."""
    source, name = transactions.topic(), f"transactions-made-{uuid.uuid4().hex[:8]}"
    transactions.append(source, b"1")
    member = transactions.member(source)
    behind = offsets_behind(read(member, 1))
    for _ in range(2):
        member.ensure_topic(name, 2, -1, {"cleanup.policy": "delete"})
    assert len(member.ends(name)) == 2
    member.commit([Output(name, None, b"letter", [], partition=1)], behind)
    (found,) = everything(member, name, 1)
    assert (found.key(), found.value()) == (None, b"letter")


def test_metadata_beyond_kafkas_limit_aborts(
    transactions: Transactions,
) -> None:
    source, out = transactions.topic(), transactions.topic()
    transactions.append(source, b"1")
    member = transactions.member(source)
    records = read(member, 1)
    with pytest.raises(TransactionAborted):
        member.commit([output(out)], offsets_behind(records, "x" * (MAX_METADATA + 1)))
    member.commit([output(out)], offsets_behind(read(member, 1), "x" * MAX_METADATA))
    assert len(everything(member, out)) == 1


def test_another_with_its_transactional_id_fences_a_member(
    transactions: Transactions,
) -> None:
    source, out = transactions.topic(), transactions.topic()
    transactions.append(source, b"1")
    zombie = transactions.member(source, transactional_id=f"slot-{source}")
    records = read(zombie, 1)
    zombie.commit([output(out, b"before")], {})
    successor = transactions.member(source, transactional_id=f"slot-{source}")
    successor.read(1, 0.0)
    for _ in range(2):
        with pytest.raises(LogError) as raised:
            zombie.commit([output(out, b"zombie")], offsets_behind(records))
        assert not isinstance(raised.value, TransactionAborted)
    with pytest.raises(LogError):
        zombie.read(1, 0.1)
    transactions.close_member(zombie)
    successor.commit([output(out, b"after")], offsets_behind(read(successor, 1)))
    assert values(everything(successor, out)) == [b"before", b"after"]


def test_partitions_that_went_to_another_member_are_neither_committed_nor_given_again(
    transactions: Transactions,
) -> None:
    source, out = transactions.topic(2), transactions.topic()
    for number in (0, 1):
        transactions.append(source, b"%d" % number, partition=number)
    first_holder, second_holder = Holder(), Holder()
    first = transactions.member(source, claims=first_holder)
    records = read(first, 2)
    second = transactions.member(source, claims=second_holder)
    found: list[Record] = []
    give_up_at = time.monotonic() + SOON
    while not second_holder.held and time.monotonic() < give_up_at:
        assert list(first.read(10, 0.05)) == []
        found += second.read(10, 0.05)
    (kept,), (gone,) = first_holder.held, second_holder.held
    assert {kept, gone} == {Partition(source, 0), Partition(source, 1)}
    assert first_holder.revocations == [{gone}]
    with pytest.raises(TransactionAborted):
        first.commit([output(out, b"no")], offsets_behind(records))
    assert values(read(first, 1)) == [b"%d" % kept.number]
    found += read(second, 1 - len(found))
    assert values(found) == [b"%d" % gone.number]
    assert everything(first, out) == []
    assert list(first.read(10, 0.3)) == []


@pytest.mark.conformance("BUS-6", "BUS-24", "BUS-28")
def test_each_record_has_its_effect_once_whichever_members_come_and_go(
    transactions: Transactions,
) -> None:
    """BUS-6, BUS-14"""
    source, out = transactions.topic(4), transactions.topic()
    total, members = 0, [transactions.member(source)]

    def work(member: TransactionalLog) -> None:
        records = member.read(7, 0.02)
        if records:
            try:
                member.commit(
                    [output(out, each.value()) for each in records], offsets_behind(records)
                )
            except TransactionAborted:
                pass

    for turn in range(12):
        for _ in range(10):
            transactions.append(source, b"%d" % total, partition=total % 4)
            total += 1
        if turn % 4 == 1:
            members.append(transactions.member(source))
        if turn % 4 == 3:
            transactions.close_member(members.pop(0))
        for _ in range(3):
            for each in members:
                work(each)
    give_up_at = time.monotonic() + SOON
    while time.monotonic() < give_up_at:
        for each in members:
            work(each)
        if sum(members[0].committed(source).values()) == total:
            break
    assert sorted(int(each or b"") for each in values(everything(members[0], out))) == list(
        range(total)
    )


def test_a_commit_between_a_rebalance_and_the_next_read_is_made_or_aborted(
    transactions: Transactions,
) -> None:
    source, out = transactions.topic(2), transactions.topic()
    for number in (0, 1):
        transactions.append(source, b"%d" % number, partition=number)
    first = transactions.member(source)
    records = read(first, 2)
    second = transactions.member(source)
    for _ in range(3):
        list(second.read(10, 0.1))
    try:
        first.commit([output(out, each.value()) for each in records], offsets_behind(records))
        committed = True
    except TransactionAborted:
        committed = False
    found: list[Record] = []
    for _ in range(20):
        found += [*first.read(10, 0.05), *second.read(10, 0.05)]
    assert len(found) == (0 if committed else 2)
    assert len(everything(first, out)) == (2 if committed else 0)


def test_read_all_gives_nothing_of_an_empty_partition(
    transactions: Transactions,
) -> None:
    source, out = transactions.topic(), transactions.topic(2)
    assert everything(transactions.member(source), out, 1) == []


def test_read_all_of_a_missing_topic_says_so(
    transactions: Transactions,
) -> None:
    member = transactions.member(transactions.topic())
    with pytest.raises(LogError) as raised:
        everything(member, "transactions-nowhere")
    assert raised.value.unknown_topic
    with pytest.raises(LogError):
        member.ends("transactions-nowhere")


@pytest.mark.parametrize("commit", [True, False], ids=["committed", "aborted"])
def test_read_all_waits_for_a_transaction_under_way(
    transactions: Transactions, commit: bool
) -> None:
    source, out = transactions.topic(), transactions.topic()
    transactions.append(out, b"1")
    transaction = transactions.begin(out, b"2", b"3")
    transactions.append(out, b"4")
    member = transactions.member(source)
    assert member.ends(out) == {0: 4}
    transaction.end_while_others_wait(commit)
    assert values(everything(member, out)) == ([b"1", b"2", b"3", b"4"] if commit else [b"1", b"4"])


def test_read_all_may_be_left_and_begun_again(
    transactions: Transactions,
) -> None:
    source, out = transactions.topic(), transactions.topic(2)
    transactions.append(out, *[b"%d" % number for number in range(100)])
    transactions.append(out, b"other", partition=1)
    member = transactions.member(source)
    batches = member.read_all(out, 0)
    assert next(iter(batches))[0].value() == b"0"
    batches.close()  # type: ignore[attr-defined]
    assert values(everything(member, out, 1)) == [b"other"]
    assert len(everything(member, out)) == 100


def test_read_all_may_be_called_while_partitions_are_assigned(
    transactions: Transactions,
) -> None:
    """There a member's state is read."""
    source, changelog = transactions.topic(), transactions.topic()
    transactions.append(changelog, b"state")
    transactions.append(source, b"1")
    holder = Holder()
    member = transactions.member(source, claims=holder)
    found: list[bytes | None] = []
    holder.after_assigned = lambda: found.extend(values(everything(member, changelog)))
    assert values(read(member, 1)) == [b"1"]
    assert found == [b"state"]


def test_an_error_of_claims_is_raised_by_the_read(
    transactions: Transactions,
) -> None:
    source = transactions.topic()
    transactions.append(source, b"1")
    holder = Holder()

    def fail() -> None:
        raise LogError("no state")

    holder.after_assigned = fail
    member = transactions.member(source, claims=holder)
    with pytest.raises(LogError, match="no state"):
        read(member, 1)


@pytest.mark.parametrize("commit", [True, False], ids=["committed", "aborted"])
def test_the_end_that_is_reached_lies_behind_markers(
    transactions: Transactions, commit: bool
) -> None:
    source = transactions.topic()
    transactions.append(source, b"1")
    member = transactions.member(source)
    transactions.begin(source, b"2").end(commit)
    records = read(member, 2 if commit else 1)
    assert values(records) == [b"1", b"2"][: len(records)]
    reached = dict(member.reached)
    give_up_at = time.monotonic() + SOON
    while not reached and time.monotonic() < give_up_at:
        assert list(member.read(10, 0.1)) == []
        reached = dict(member.reached)
    assert reached == {Partition(source, 0): 3}
    assert list(member.read(10, 0.3)) == []
    assert member.reached == {}, "an end is given once"
    member.commit([], {place: OffsetAndMetadata(each) for place, each in reached.items()})
    assert member.committed(source) == member.ends(source) == {0: 3}


def test_what_was_aborted_counts_towards_no_limit(transactions: Transactions) -> None:
    source = transactions.topic()
    holder = Holder()
    member = transactions.member(source, claims=holder)
    wait_until(lambda: holder.held, member)
    for _ in range(3):
        transactions.begin(source, b"1", b"2", b"3").end(False)
    transactions.append(source, b"4")
    assert values(member.read(1, SOON)) == [b"4"]


def test_an_end_is_given_again_behind_an_aborted_commit(transactions: Transactions) -> None:
    source, other, out = transactions.topic(), transactions.topic(), transactions.topic()
    transactions.append(source, b"1")
    transactions.append(other, b"1")
    member = transactions.member(source, other)

    def ends_of(count: int) -> dict[Partition, int]:
        read(member, count)
        found = dict(member.reached)
        give_up_at = time.monotonic() + SOON
        while len(found) < 2 and time.monotonic() < give_up_at:
            assert list(member.read(10, 0.1)) == []
            found |= member.reached
        return found

    ends = ends_of(2)
    assert ends == {Partition(source, 0): 1, Partition(other, 0): 1}
    member.commit([], {Partition(source, 0): OffsetAndMetadata(1)})
    with pytest.raises(RecordTooLarge):
        member.commit([output(out, b"x" * 2_000_000)], {})
    assert ends_of(1) == ends


def test_a_record_of_a_transaction_under_way_is_not_read(
    transactions: Transactions,
) -> None:
    source = transactions.topic()
    transactions.append(source, b"1")
    transaction = transactions.begin(source, b"2")
    transactions.append(source, b"3")
    member = transactions.member(source)
    assert values(read(member, 1)) == [b"1"]
    assert list(member.read(10, 0.3)) == []
    transaction.end(True)
    assert values(read(member, 2)) == [b"2", b"3"]


def test_a_commit_beyond_the_end_begins_at_the_start_of_what_is_there(
    transactions: Transactions,
) -> None:
    source = transactions.topic()
    transactions.append(source, b"1")
    member = transactions.member(source)
    read(member, 1)
    place = Partition(source, 0)
    member.commit([], {place: OffsetAndMetadata(70, "of another log")})
    transactions.close_member(member)
    holder = Holder()
    assert values(read(transactions.member(source, claims=holder), 1)) == [b"1"]
    assert holder.revocations == [{place}]
    assert (holder.held, holder.committed) == ({place}, {place: None})


def test_close_revokes_what_is_held(
    transactions: Transactions,
) -> None:
    source = transactions.topic(2)
    holder = Holder()
    member = transactions.member(source, claims=holder)
    wait_until(lambda: len(holder.held) == 2, member)
    transactions.close_member(member)
    assert holder.held == set()
    assert holder.revocations == [{Partition(source, 0), Partition(source, 1)}]
    with pytest.raises(LogError):
        member.read(1, 0.1)


def test_a_member_that_never_read_can_be_closed(
    transactions: Transactions,
) -> None:
    transactions.close_member(transactions.member(transactions.topic()))


def test_what_is_committed_of_other_members_partitions_is_known(
    transactions: Transactions,
) -> None:
    source = transactions.topic(2)
    for number in (0, 1):
        transactions.append(source, b"1", partition=number)
    member = transactions.member(source)
    member.commit([], offsets_behind(read(member, 2)))
    assert transactions.member(source).committed(source) == {0: 1, 1: 1}
    assert transactions.member(source).committed(transactions.topic()) == {}


def test_a_partition_that_is_paused_gives_nothing_and_goes_on_where_it_was(
    transactions: Transactions,
) -> None:
    topic = transactions.topic(2)
    member = transactions.member(topic)
    for partition in range(2):
        transactions.append(topic, b"1", partition=partition)
    read(member, 2)
    member.set_paused([Partition(topic, 0)], paused=True)
    for partition in range(2):
        transactions.append(topic, b"2", partition=partition)
    assert [each.partition() for each in read(member, 1)] == [1]
    assert list(member.read(10, 0.2)) == []
    member.set_paused([Partition(topic, 0)], paused=False)
    (record,) = read(member, 1)
    assert (record.partition(), record.value()) == (0, b"2")


def test_a_partition_that_cant_be_taken_over_yet_is_read_from_its_commit_later(
    transactions: Transactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_undecided_partitions, "MIN_ASK_INTERVAL", 0.05)
    topic = transactions.topic(2)
    ready, waiting = Partition(topic, 0), Partition(topic, 1)
    former = transactions.member(topic)
    for partition in range(2):
        transactions.append(topic, b"1", partition=partition)
    former.commit([], offsets_behind(read(former, 2), "metadata"))
    transactions.close_member(former)
    for partition in range(2):
        transactions.append(topic, b"2", b"3", partition=partition)

    holder = Holder()
    holder.missing = {waiting}
    member = transactions.member(topic, claims=holder)
    assert [place_of(each) for each in read(member, 2)] == [ready, ready]
    wait_until(lambda: holder.asked > 3, member)
    assert holder.held == {ready}
    holder.missing = set()
    assert values(read(member, 2)) == [b"2", b"3"]
    assert holder.held == {ready, waiting}
    assert holder.committed[waiting] == OffsetAndMetadata(1, "metadata")
    holder.missing = {ready}
    transactions.append(topic, b"4")
    assert values(read(member, 1)) == [b"4"]


def test_how_far_all_partitions_were_read_is_known_with_its_metadata_whoever_has_read_them(
    transactions: Transactions,
) -> None:
    """A transaction under way is passed over, where `committed` waits for it."""
    topic, output_topic = transactions.topic(2), transactions.topic()
    member = transactions.member(topic)
    transactions.append(topic, b"1", b"2")
    records = read(member, 2)
    member.commit([output(output_topic)], offsets_behind(records, '{"@until": 3}'))
    # Not before: nobody polls it, and one that joins first keeps the other waiting.
    other = transactions.member(output_topic)
    wait_until(lambda: other.committed_now(topic).keys() == {0}, member)
    assert other.committed_now(topic) == {0: OffsetAndMetadata(2, '{"@until": 3}')}
    assert other.reachable_ends(topic) == {0: 2, 1: 0}
