"""Views: each change of state is said once, and the table has a place for everything."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from knafka_local.snapshot import BrokerRow, Snapshot, TriggerRow
from knafka_local.view import Lines, changes, choose, render, summary

BROKER = BrokerRow("default/shop", "http://127.0.0.1:8080/default/shop", 5, 1)
TRIGGER = TriggerRow("default/orders", "shop", 3, most_replicas=4, delivered=2, decision="no lag")
NOW = Snapshot("127.0.0.1:9092 (up)", (BROKER,), (TRIGGER,))


def with_trigger(**changed: object) -> Snapshot:
    return replace(NOW, triggers=(replace(TRIGGER, **changed),))  # type: ignore[arg-type]


def test_what_is_new_is_said_once() -> None:
    assert list(changes(Snapshot(""), NOW)) == [
        "Kafka: 127.0.0.1:9092 (up)",
        "Broker default/shop at http://127.0.0.1:8080/default/shop",
        "Trigger default/orders is ready",
    ]
    assert list(changes(NOW, NOW)) == []


def test_a_change_of_scale_is_said_with_its_reason() -> None:
    now = with_trigger(replicas=2, decision="lag 150, 100 per drain")
    (line,) = changes(NOW, now)
    assert line == "Trigger default/orders: 2 of 4 replicas (lag 150, 100 per drain)"


@pytest.mark.conformance("KN-TRG-03")
def test_a_trigger_that_cannot_run_says_why_and_then_that_it_can() -> None:
    """KN-TRG-03."""
    refused = with_trigger(refused="no address")
    assert list(changes(NOW, refused)) == ["Trigger default/orders is not ready: no address"]
    assert list(changes(refused, NOW)) == ["Trigger default/orders is ready"]


def test_problems_in_files_come_and_go() -> None:
    broken = Snapshot(NOW.kafka, NOW.brokers, NOW.triggers, ("shop.yaml: broken",))
    assert list(changes(NOW, broken)) == ["shop.yaml: broken"]
    assert list(changes(broken, NOW)) == ["solved: shop.yaml: broken"]


def test_what_is_removed_is_said() -> None:
    assert list(changes(NOW, Snapshot(NOW.kafka))) == [
        "Broker default/shop is gone",
        "Trigger default/orders is gone",
    ]


def test_the_summary_has_all_counts() -> None:
    assert summary(NOW) == (
        "default/shop accepted 5 rejected 1; "
        "default/orders lag 3 delivered 2 filtered 0 retried 0 buried 0"
    )


def test_the_table_shows_brokers_triggers_and_problems() -> None:
    refused = BrokerRow("default/other", refused="its topic is taken")
    now = Snapshot(NOW.kafka, (BROKER, refused), (TRIGGER,), ("shop.yaml: broken",))
    console = Console(file=io.StringIO(), width=140)
    console.print(render(now))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    for text in ("default/shop", "default/other", "its topic is taken", "0/4", "shop.yaml: broken"):
        assert text in shown


def test_lines_where_there_is_no_terminal() -> None:
    assert isinstance(choose(plain=True), Lines)
    assert isinstance(choose(plain=False), Lines)  # pytest has no terminal
