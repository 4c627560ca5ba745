"""The receiver's counters as the table shows them."""

from __future__ import annotations

from collections import Counter

from knafka.observability import Metric, prometheus_text
from knafka_local.processes.receiver_process import CounterTotals, RequestCounts, _request_counters

ACCEPTED = ("default", "shop", 202)
REFUSED = ("default", "shop", 400)


def counts(accepted: int, refused: int = 0) -> RequestCounts:
    return Counter({ACCEPTED: accepted, REFUSED: refused})


def test_counts_go_on_when_the_process_that_counts_is_replaced() -> None:
    tally = CounterTotals()
    assert tally.add(counts(5)) == counts(5)
    assert tally.add(counts(9, 1)) == counts(9, 1)
    assert tally.add(counts(2)) == counts(11, 1)
    assert tally.add(counts(2)) == counts(11, 1)
    assert tally.add(counts(3, 1)) == counts(12, 2)


def test_what_the_receiver_writes_is_read() -> None:
    labels = {"namespace": "default", "broker": "shop"}
    samples = [({**labels, "code": "202"}, 12.0), ({**labels, "code": "400"}, 3.0)]
    text = prometheus_text([Metric("knafka_receiver_events_total", "help", samples)])
    assert dict(_request_counters(text.decode())) == counts(12, 3)


def test_a_channel_that_is_gone_is_no_process_that_began_anew() -> None:
    """What the others had would be counted twice."""
    other = ("default", "other", 202)
    tally = CounterTotals()
    tally.add(Counter({ACCEPTED: 5, other: 3}))
    assert tally.add(Counter({ACCEPTED: 6})) == Counter({ACCEPTED: 6, other: 3})
    assert tally.add(Counter({ACCEPTED: 6, other: 1})) == Counter({ACCEPTED: 6, other: 4})
    assert tally.add(Counter()) == Counter({ACCEPTED: 6, other: 4})
    assert tally.add(Counter({ACCEPTED: 1})) == Counter({ACCEPTED: 7, other: 4})


def test_requests_to_channels_are_read_too() -> None:
    labels = {"namespace": "default", "channel": "shop", "code": "202"}
    text = prometheus_text([Metric("knafka_receiver_events_total", "help", [(labels, 12.0)])])
    assert dict(_request_counters(text.decode())) == {ACCEPTED: 12}
