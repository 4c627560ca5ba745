"""Slots: no two drains that go on have the same, and the successor of a killed one has its own."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from knafka_operator.scale.holds import Slots


def test_a_slot_is_the_lowest_that_nobody_has() -> None:
    slots = Slots()
    assert [slots.assign("a"), slots.assign("b"), slots.assign("c", other_taken_slots={2, 3})] == [
        0,
        1,
        4,
    ]
    slots.free("b")
    assert slots.assign("d") == 1


def test_a_request_that_finds_another_drain_gives_its_slot_to_whom_that_was() -> None:
    slots = Slots()
    slots.assign("a")
    slots.assign("b")
    slots.note_slot("a", 1)
    assert (slots.slot_of("a"), slots.slot_of("b")) == (1, 0)


requests = st.integers(0, 5)
steps = st.lists(
    st.tuples(st.just("give"), requests, st.sets(requests))
    | st.tuples(st.just("found"), requests, requests)
    | st.tuples(st.just("free"), requests, st.none())
)


@given(steps)
def test_whatever_happens_no_two_requests_have_the_same_slot(
    steps: list[tuple[str, int, set[int] | int | None]],
) -> None:
    slots, held = Slots(), set[int]()
    for what, request, more in steps:
        if what == "give" and request not in held:
            assert isinstance(more, set)
            assert slots.assign(request, more) not in more
            held.add(request)
        elif what == "found":
            assert isinstance(more, int)
            slots.note_slot(request, more)
            assert slots.slot_of(request) == (more if request in held else None)
        elif what == "free":
            slots.free(request)
            held.discard(request)
        of = [slots.slot_of(each) for each in held]
        assert len(set(of)) == len(of)
