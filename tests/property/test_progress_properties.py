"""What a commit tells of what is above its position: it reads back, and always fits."""

from __future__ import annotations

import base64

from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.examples import examples

from knafka.core.delivery import Outcome, Reason
from knafka.core.offsets import OffsetTracker
from knafka.core.progress import (
    MAX_DELIVERIES,
    MAX_METADATA,
    DeliveryStage,
    DeliveryState,
    Progress,
    decode,
    encode,
    settled_ahead,
)

POLICY = 0xFEDCBA98
NOW = 1_795_000_000_000
"""Milliseconds."""

outcomes = st.builds(
    Outcome, st.none() | st.integers(100, 599), st.none() | st.sampled_from(list(Reason))
)


@st.composite
def states(draw: st.DrawFn) -> DeliveryState:
    first = NOW + draw(st.integers(0, 400 * 24 * 3600 * 1000))
    last = first + draw(st.integers(0, 300 * 24 * 3600 * 1000))
    due = last + draw(st.integers(0, 300 * 24 * 3600 * 1000))
    stage = draw(st.sampled_from(list(DeliveryStage)))
    return DeliveryState(
        stage,
        draw(st.integers(0, 2**31)),
        draw(st.integers(0, 2**31)),
        first / 1000,
        last / 1000,
        due / 1000,
        None if stage is DeliveryStage.SUBSCRIBER else draw(outcomes),
        draw(st.integers(0, 2**31)),
    )


@st.composite
def ranges(draw: st.DrawFn, position: int) -> list[tuple[int, int]]:
    steps = draw(st.lists(st.tuples(st.integers(1, 2**20), st.integers(1, 2**24)), max_size=40))
    found = []
    behind = position
    for gap, length in steps:
        found.append((behind + gap, behind + gap + length))
        behind += gap + length
    return found


@given(st.data(), st.integers(0, 2**45))
def test_progress_reads_back_as_it_was_told(data: st.DataObject, position: int) -> None:
    offsets = sorted(data.draw(st.sets(st.integers(position, position + 2**30), max_size=20)))
    progress = Progress(
        tuple(data.draw(ranges(position))), {offset: data.draw(states()) for offset in offsets}
    )
    metadata, complete = encode(position, progress, POLICY)
    assert complete
    assert len(metadata) <= MAX_METADATA
    assert decode(position, metadata, POLICY) == progress
    assert settled_ahead(position, metadata) == sum(b - a for a, b in progress.settled)
    if metadata:
        assert not decode(position, metadata, POLICY + 1).same_policy


@settings(max_examples=examples(20))
@given(st.lists(states(), min_size=MAX_DELIVERIES, max_size=MAX_DELIVERIES), st.integers(0, 5000))
def test_the_deliveries_always_fit_and_the_lowest_ranges_with_them(
    deliveries: list[DeliveryState], count: int
) -> None:
    settled = [(10 + 2 * each, 11 + 2 * each) for each in range(count)]
    told = Progress(settled, {2**33 * n: each for n, each in enumerate(deliveries)})
    metadata, complete = encode(0, told, POLICY)
    found = decode(0, metadata, POLICY)
    assert len(metadata) <= MAX_METADATA
    assert found.deliveries == told.deliveries
    assert list(found.settled) == settled[: len(found.settled)]
    assert complete == (len(found.settled) == count)


@given(st.text(max_size=200) | st.text("k1:AB+/=", max_size=60).map("k1:".__add__))
def test_metadata_of_somebody_else_tells_nothing_and_breaks_nothing(text: str) -> None:
    assert isinstance(decode(7, text, POLICY), Progress)


@given(st.binary(max_size=200), st.integers(0, 3000), st.binary(max_size=40))
@example(bytes(4), 2000, b"\x01\x01" + bytes(7))
def test_numbers_of_any_length_break_nothing(start: bytes, length: int, rest: bytes) -> None:
    body = start + b"\xff" * length + rest
    decoded = decode(7, "k1:" + base64.b64encode(body).decode(), POLICY)
    assert all(first < 2**70 for first, _ in decoded.settled)


def test_twenty_thousand_settled_ahead_of_a_hundred_take_some_hundred_characters() -> None:
    tracker = OffsetTracker[None]()
    for offset in range(20_100):
        tracker.track(offset, None)
    for offset in range(20_100):
        if offset % 201:
            tracker.settle(offset)
    metadata, complete = encode(0, Progress(tracker.settled_ahead()), POLICY)
    assert complete
    assert len(metadata) < 600


@given(st.lists(st.tuples(st.integers(1, 4), st.booleans()), max_size=60), st.integers(0, 60))
def test_whoever_goes_on_reads_what_is_unsettled_and_nothing_else(
    records: list[tuple[int, bool]], read_again: int
) -> None:
    """A record is either unsettled or passed over, also if the next owner stops half-way."""
    offset, unsettled, everything = 0, set(), []
    tracker = OffsetTracker[None]()
    for gap, settles in records:
        offset += gap
        everything.append(offset)
        tracker.track(offset, None)
        if settles:
            tracker.settle(offset)
        else:
            unsettled.add(offset)
    for _ in range(2):
        position = tracker.position
        if position is None:
            return
        metadata, _ = encode(position, Progress(tracker.settled_ahead()), POLICY)
        following = OffsetTracker[None](decode(position, metadata, POLICY).settled)
        behind = [each for each in everything if each >= position]
        for each in behind[:read_again]:
            if following.was_settled(each):
                assert each not in unsettled
                following.skip(each)
            else:
                assert each in unsettled
                following.track(each, None)
        tracker, read_again = following, len(everything)
