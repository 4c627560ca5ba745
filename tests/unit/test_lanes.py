"""Lanes: which event may be sent next, for each of the three orders."""

from __future__ import annotations

import pytest

from knafka.core.contract import Order
from knafka.dispatcher.engine.pending import Lanes, lane_function


def test_the_first_event_of_a_lane_may_go_at_once() -> None:
    lanes = Lanes[str]()
    assert lanes.admit(b"a", "first")


def test_an_event_waits_for_the_one_before_it_in_its_lane() -> None:
    lanes = Lanes[str]()
    lanes.admit(b"a", "first")
    assert not lanes.admit(b"a", "second")
    assert not lanes.admit(b"a", "third")
    assert lanes.release(b"a") == "second"
    assert lanes.release(b"a") == "third"
    assert lanes.release(b"a") is None


def test_lanes_do_not_wait_for_each_other() -> None:
    lanes = Lanes[str]()
    lanes.admit(b"slow", "first")
    assert lanes.admit(b"quick", "second")


def test_an_event_admitted_while_the_lane_was_handed_on_waits_too() -> None:
    lanes = Lanes[str]()
    lanes.admit(b"a", "first")
    lanes.admit(b"a", "second")
    lanes.release(b"a")
    assert not lanes.admit(b"a", "third")


def test_a_lane_that_ran_empty_begins_anew() -> None:
    lanes = Lanes[str]()
    lanes.admit(b"a", "first")
    lanes.release(b"a")
    assert lanes.admit(b"a", "second")


def test_events_without_a_lane_wait_for_nothing() -> None:
    lanes = Lanes[str]()
    assert lanes.admit(None, "first")
    assert lanes.admit(None, "second")
    assert lanes.release(None) is None


def test_releasing_a_lane_in_which_nothing_goes_is_a_bug_that_shows() -> None:
    with pytest.raises(KeyError):
        Lanes[str]().release(b"a")


@pytest.mark.conformance("CHN-4", "CHN-31")
@pytest.mark.parametrize(
    ("order", "key", "other", "shared"),
    [
        pytest.param(Order.KEY, b"a", b"a", True, id="key-same"),
        pytest.param(Order.KEY, b"a", b"b", False, id="key-other"),
        pytest.param(Order.KEY, None, None, False, id="key-none"),
        pytest.param(Order.KEY, b"", b"", False, id="key-empty"),
        pytest.param(Order.PARTITION, b"a", b"b", True, id="partition-other-key"),
        pytest.param(Order.PARTITION, None, b"b", True, id="partition-no-key"),
        pytest.param(Order.NONE, b"a", b"a", False, id="none-same-key"),
    ],
)
def test_the_order_decides_who_waits_for_whom(
    order: Order, key: bytes | None, other: bytes | None, shared: bool
) -> None:
    lanes, lane = Lanes[str](), lane_function(order)
    assert lanes.admit(lane(key), "first")
    assert lanes.admit(lane(other), "second") is not shared
