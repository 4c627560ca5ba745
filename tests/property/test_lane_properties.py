"""Lanes keep order within a lane, one event at a time, however admitting and settling interleave.

A step either admits the next event, in the lane it names, or settles one of the events that go.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from hypothesis import given
from hypothesis import strategies as st

from knafka.dispatcher.engine.pending import Lane, Lanes

LANES: list[Lane] = [b"a", b"b", b"c", None]
STEPS = st.lists(
    st.one_of(
        st.sampled_from(LANES).map(lambda lane: ("admit", lane)),
        st.integers(0, 50).map(lambda which: ("settle", which)),
    ),
    max_size=80,
)


class Traffic:
    """Events numbered as admitted, those that go now, and every number in the order it went."""

    def __init__(self) -> None:
        self.lanes = Lanes[tuple[Lane, int]]()
        self.admitted = 0
        self.going: list[tuple[Lane, int]] = []
        self.went: dict[Lane, list[int]] = defaultdict(list)

    def admit(self, lane: Lane) -> None:
        event = (lane, self.admitted)
        self.admitted += 1
        if self.lanes.admit(lane, event):
            self._go(event)

    def settle(self, which: int) -> None:
        if self.going:
            lane, _ = self.going.pop(which % len(self.going))
            following = self.lanes.release(lane)
            if following is not None:
                assert following[0] == lane
                self._go(following)

    def _go(self, event: tuple[Lane, int]) -> None:
        self.going.append(event)
        self.went[event[0]].append(event[1])

    def settle_all(self) -> None:
        while self.going:
            self.settle(0)


def played(steps: list[tuple[str, int | Lane]]) -> Traffic:
    traffic = Traffic()
    for step, argument in steps:
        if step == "admit":
            assert not isinstance(argument, int)
            traffic.admit(argument)
        else:
            assert isinstance(argument, int)
            traffic.settle(argument)
        going = Counter(lane for lane, _ in traffic.going if lane is not None)
        assert all(count == 1 for count in going.values())
    return traffic


@given(STEPS)
def test_one_event_of_a_lane_goes_at_a_time_and_in_order(
    steps: list[tuple[str, int | Lane]],
) -> None:
    traffic = played(steps)
    assert all(numbers == sorted(numbers) for numbers in traffic.went.values())


@given(STEPS)
def test_every_event_goes_exactly_once_and_no_lane_is_left_behind(
    steps: list[tuple[str, int | Lane]],
) -> None:
    traffic = played(steps)
    traffic.settle_all()
    went = sorted(number for numbers in traffic.went.values() for number in numbers)
    assert went == list(range(traffic.admitted))
    assert not traffic.lanes._waiting


@given(STEPS)
def test_an_event_without_a_lane_goes_at_once(steps: list[tuple[str, int | Lane]]) -> None:
    traffic = played(steps)
    unordered = sum(step == ("admit", None) for step in steps)
    assert len(traffic.went[None]) == unordered
