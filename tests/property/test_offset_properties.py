"""Offsets never pass an unsettled record, whatever the order of settling."""

from hypothesis import given
from hypothesis import strategies as st

from knafka.core.offsets import OffsetTracker

offsets = st.sets(st.integers(0, 2**40), min_size=1, max_size=60).map(sorted)


@given(offsets, st.data())
def test_offsets_never_pass_an_unsettled_record(read: list[int], data: st.DataObject) -> None:
    """Whatever gaps there are, and wherever a reader says that it has reached an end."""
    tracker = OffsetTracker[None]()
    unsettled = set[int]()
    unread = list(reversed(read))
    last = 0
    while unread or unsettled:
        if data.draw(st.integers(0, 3)) == 3:
            # Ends lie before what is still to be read; one may be told late.
            tracker.reach(data.draw(st.integers(0, unread[-1] if unread else read[-1] + 1)))
        elif unread and (not unsettled or data.draw(st.booleans())):
            offset = unread.pop()
            tracker.track(offset, None)
            unsettled.add(offset)
        else:
            offset = data.draw(st.sampled_from(sorted(unsettled)))
            tracker.settle(offset)
            unsettled.remove(offset)
        position = tracker.position
        if position is None:
            continue
        assert all(position <= each for each in unsettled)
        assert position >= last, "a position never falls"
        assert set(tracker.unsettled) == unsettled
        last = position
    assert tracker.position == read[-1] + 1
    tracker.reach(read[-1] + 20)
    assert tracker.position == read[-1] + 20
