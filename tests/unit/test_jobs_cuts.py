"""Logs that were cut, and what of a log may be deleted."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from knafka_jobs.compact.compact_plan import older_ranges
from knafka_jobs.compact.cuts import deletable_until
from knafka_jobs.topic_offsets import OffsetSpan, ReadState, TopicState, read_states_of

TOPIC = "knafka-dead-letters-shop-main-mail-0123456789"


class Placed(NamedTuple):
    """A record, as consumers have it."""

    at: int

    def offset(self) -> int:
        return self.at


def of_kafka(*offsets: int) -> Callable[[OffsetSpan], list[Placed]]:
    """Kafka with records at these offsets, and nothing in between."""
    return lambda span: [Placed(each) for each in offsets if span.start <= each < span.end]


@pytest.mark.parametrize(
    ("tabled", "there", "until"),
    [
        ([OffsetSpan(3, 9)], (), 9),
        ([OffsetSpan(3, 6), OffsetSpan(7, 9)], (7, 8), 9),  # 6 ends a transaction
        ([OffsetSpan(3, 6), OffsetSpan(7, 9)], (6, 7, 8), 6),
        ([OffsetSpan(4, 6)], (4, 5), 9),
        ([OffsetSpan(4, 6)], (3, 4, 5), 3),
        ([OffsetSpan(3, 5)], (7,), 7),
        ([], (), 9),
        ([], (8,), 8),
        ([OffsetSpan(5, 9), OffsetSpan(3, 5)], (), 9),
    ],
)
def test_gaps_in_the_table_may_be_deleted_where_kafka_has_no_record_either(
    tabled: list[OffsetSpan], there: tuple[int, ...], until: int
) -> None:
    assert deletable_until(OffsetSpan(3, 9), tabled, of_kafka(*there)) == until


def test_only_what_was_read_and_is_older_than_the_first_young_record_may_be_deleted() -> None:
    spans = {
        0: OffsetSpan(3, 9),
        1: OffsetSpan(3, 9),
        2: OffsetSpan(3, 9),
        3: OffsetSpan(5, 5),
        4: OffsetSpan(0, 9),
    }
    young = {(TOPIC, 0): 7, (TOPIC, 1): -1, (TOPIC, 2): 3, (TOPIC, 4): -1}
    read = {("id-1", partition): ReadState(9) for partition in range(4)}
    assert older_ranges({TOPIC: TopicState(TOPIC, "id-1", spans)}, young, read) == [
        (TOPIC, "id-1", 0, 3, 7),
        (TOPIC, "id-1", 1, 3, 9),
    ]


def test_of_a_log_that_was_cut_each_part_is_looked_for_under_its_own_id() -> None:
    """Cut at 60, then at 40: what grew at 60 is gone."""
    reached = ReadState(100).after_cut_at(60).after_cut_at(40)._replace(next=90)
    topic = {TOPIC: TopicState(TOPIC, "id-1", {0: OffsetSpan(10, 99)})}
    assert older_ranges(topic, {(TOPIC, 0): -1}, {("id-1", 0): reached}) == [
        (TOPIC, "id-1", 0, 10, 40),
        (TOPIC, "id-1~2", 0, 40, 90),
    ]
    assert read_states_of([("id-1", 0, 0, 100), ("id-1~2", 0, 40, 90), ("id-1~1", 0, 60, 70)]) == {
        ("id-1", 0): reached._replace(mark=None)
    }
