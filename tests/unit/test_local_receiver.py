"""The receiver's counters as the table shows them."""

from __future__ import annotations

from collections import Counter

from knafka.observability import Metric, prometheus_text
from knafka_local.receiver_process import Answered, Tally, _samples

ACCEPTED = ("default", "shop", 202)
REFUSED = ("default", "shop", 400)


def counts(accepted: int, refused: int = 0) -> Answered:
    return Counter({ACCEPTED: accepted, REFUSED: refused})


def test_counts_go_on_when_the_process_that_counts_is_replaced() -> None:
    tally = Tally()
    assert tally.add(counts(5)) == counts(5)
    assert tally.add(counts(9, 1)) == counts(9, 1)
    assert tally.add(counts(2)) == counts(11, 1)
    assert tally.add(counts(2)) == counts(11, 1)
    assert tally.add(counts(3, 1)) == counts(12, 2)


def test_what_the_receiver_writes_is_read() -> None:
    labels = {"namespace": "default", "broker": "shop"}
    samples = [({**labels, "code": "202"}, 12.0), ({**labels, "code": "400"}, 3.0)]
    text = prometheus_text([Metric("knafka_receiver_events_total", "help", samples)])
    assert dict(_samples(text.decode())) == counts(12, 3)
