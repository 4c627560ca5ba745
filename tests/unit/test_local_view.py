"""Views: each change of state is said once, and the table has a place for everything."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

from knafka_cli.running import terminal_views
from knafka_cli.running.terminal_views import (
    LineView,
    StatusTable,
    choose_view,
    describe_changes,
    summary_line,
)
from knafka_client.state.snapshot import BrokerRow, ConditionRow, Snapshot, TriggerRow
from knafka_operator.dispatchers import dead_letters
from knafka_operator.model.autoscaling import Autoscaling
from knafka_operator.scale.decide import decide_scale

BROKER = BrokerRow("default/shop", "http://127.0.0.1:8080/default/shop", 5, 1)
TRIGGER = TriggerRow(
    "default/orders", "shop", 3, most_replicas=4, delivered=2, decision="nothing waits"
)
NOW = Snapshot("127.0.0.1:9092 (up)", (BROKER,), (TRIGGER,))


def with_trigger(**changed: object) -> Snapshot:
    return replace(NOW, triggers=(replace(TRIGGER, **changed),))  # type: ignore[arg-type]


def test_what_is_new_is_said_once() -> None:
    assert list(describe_changes(Snapshot(""), NOW)) == [
        "Kafka: 127.0.0.1:9092 (up)",
        "Broker default/shop at http://127.0.0.1:8080/default/shop",
        "Trigger default/orders is ready",
    ]
    assert list(describe_changes(NOW, NOW)) == []


def test_a_change_of_scale_is_said_with_its_reason() -> None:
    now = with_trigger(replicas=2, decision="150 events waiting; one dispatcher per 100")
    (line,) = describe_changes(NOW, now)
    assert line == (
        "Trigger default/orders: 2 of 4 dispatchers (150 events waiting; one dispatcher per 100)"
    )


def many(count: int, **changed: object) -> Snapshot:
    """So many Triggers; `changed` gives each value by its number."""
    rows = (
        replace(TRIGGER, name=f"default/t-{number}", **{k: v(number) for k, v in changed.items()})  # type: ignore[operator]
        for number in range(count)
    )
    return replace(NOW, triggers=tuple(rows))


def test_the_same_of_many_triggers_is_said_once_with_their_number() -> None:
    rest = many(1000)
    woken = many(1000, replicas=lambda _: 1, decision=lambda _: "1 event waiting")
    assert list(describe_changes(rest, woken)) == [
        "1000 Triggers: 1 of 4 dispatchers (1 event waiting)"
    ]
    differently = many(1000, replicas=lambda _: 1, decision=lambda n: f"{n} events waiting")
    assert list(describe_changes(rest, differently)) == [
        "1000 Triggers: 1 of 4 dispatchers, such as default/t-0 (0 events waiting)"
    ]
    assert list(describe_changes(NOW, rest)) == [
        "1000 Triggers are ready",
        "Trigger default/orders is gone",
    ]
    assert list(describe_changes(rest, replace(NOW, triggers=()))) == ["1000 Triggers are gone"]
    refused = many(1000, refused=lambda n: f"no address of {n}")
    assert list(describe_changes(rest, refused)) == [
        "1000 Triggers are not ready, such as default/t-0: no address of 0"
    ]
    assert list(describe_changes(rest, many(1000, paused=lambda _: True))) == [
        "1000 Triggers are paused: their events wait"
    ]
    assert list(describe_changes(rest, many(1000, error=lambda _: "no subscriber"))) == [
        "1000 Triggers have trouble: no subscriber"
    ]


def test_few_triggers_have_lines_of_their_own_also_beside_many_others() -> None:
    rest = many(100)
    ten = many(100, replicas=lambda n: 1 + (n < 10))
    one = replace(rest, triggers=(*ten.triggers[:1], *rest.triggers[1:]))
    assert list(describe_changes(rest, one)) == [
        "Trigger default/t-0: 2 of 4 dispatchers (nothing waits)"
    ]
    lines = list(describe_changes(rest, ten))
    assert len(lines) == terminal_views.LINES_FOR_SAME_CHANGE + 1
    assert lines[-1] == "90 Triggers: 1 of 4 dispatchers (nothing waits)"


def test_the_scaler_says_of_a_trigger_at_rest_what_the_view_leaves_out() -> None:
    assert terminal_views.NOTHING_WAITS == decide_scale(0, 10, Autoscaling(), 0).reason


@pytest.mark.conformance("KN-TRG-03")
def test_a_trigger_that_cannot_run_says_why_and_then_that_it_can() -> None:
    """KN-TRG-03."""
    refused = with_trigger(refused="no address")
    assert list(describe_changes(NOW, refused)) == [
        "Trigger default/orders is not ready: no address"
    ]
    assert list(describe_changes(refused, NOW)) == ["Trigger default/orders is ready"]


def test_a_trigger_that_is_paused_says_so_and_that_it_goes_on() -> None:
    paused = with_trigger(paused=True, decision="paused; 3 events waiting")
    assert list(describe_changes(NOW, paused)) == [
        "Trigger default/orders is paused: its events wait"
    ]
    assert list(describe_changes(paused, NOW)) == ["Trigger default/orders goes on"]
    assert "paused: its events wait" in drawn(paused, 80)


def test_problems_in_files_come_and_go() -> None:
    broken = Snapshot(NOW.kafka, NOW.brokers, NOW.triggers, ("shop.yaml: broken",))
    assert list(describe_changes(NOW, broken)) == ["shop.yaml: broken"]
    assert list(describe_changes(broken, NOW)) == ["solved: shop.yaml: broken"]


def test_what_is_removed_is_said() -> None:
    assert list(describe_changes(NOW, Snapshot(NOW.kafka))) == [
        "Broker default/shop is gone",
        "Trigger default/orders is gone",
    ]


def test_the_summary_has_all_counts() -> None:
    assert summary_line(NOW) == (
        "default/shop accepted 5 rejected 1; "
        "default/orders waiting 3 delivered 2 filtered 0 retried 0 dead letters 0"
    )


def test_a_summary_of_many_names_the_busiest_and_sums_the_others() -> None:
    resting = [replace(TRIGGER, name=f"default/rests-{n}", lag=0) for n in range(985)]
    busy = [replace(TRIGGER, name=f"default/busy-{n}", lag=n + 1) for n in range(14)]
    unknown = replace(TRIGGER, name="default/unknown", lag=None)
    now = replace(NOW, triggers=(*resting, *busy, unknown))
    first, *named, more, others = summary_line(now).split("; ")
    assert first == "default/shop accepted 5 rejected 1"
    assert [each.split()[0] for each in named] == [
        "default/unknown",
        *(f"default/busy-{n}" for n in range(13, 4, -1)),
    ]
    assert more == "5 more busy: waiting 15 delivered 10 filtered 0 retried 0 dead letters 0"
    assert others == ("985 at rest: waiting 0 delivered 1970 filtered 0 retried 0 dead letters 0")


def test_the_table_shows_brokers_triggers_and_problems() -> None:
    refused = BrokerRow("default/other", refused="its topic is taken")
    now = Snapshot(NOW.kafka, (BROKER, refused), (TRIGGER,), ("shop.yaml: broken",))
    shown = drawn(now, 140)
    for text in ("default/shop", "default/other", "its topic is taken", "0/4", "shop.yaml: broken"):
        assert text in shown


def test_a_trigger_at_rest_shows_its_dead_letters() -> None:
    waits = ConditionRow(
        terminal_views.DEAD_LETTERS_CONDITION, "False", "DeadLettersWait", "3 dead letters wait"
    )
    assert "3 dead letters wait" in drawn(with_trigger(conditions=(waits,)), 140)
    assert terminal_views.DEAD_LETTERS_CONDITION == dead_letters.DEAD_LETTERS_TYPE


def drawn(now: Snapshot, width: int) -> str:
    """The table on a terminal of this width."""
    console = Console(file=io.StringIO(), width=width)
    console.print(StatusTable(now))
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_at_80_columns_names_urls_and_the_figures_that_matter_are_whole() -> None:
    """They were all `def…` once."""
    names = ["default/orders", "default/large-orders", "warehouse/everything-that-was-shipped"]
    rows = tuple(
        replace(TRIGGER, name=each, lag=9, decision="9 events waiting; one dispatcher per 100")
        for each in names
    )
    shown = drawn(Snapshot("127.0.0.1:9092 (up)", (BROKER,), rows), 80)
    for text in (*names, BROKER.url, "waiting", "delivered", "dispatchers"):
        assert text in shown
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_a_very_narrow_terminal_folds_names_rather_than_cut_them() -> None:
    name = "warehouse/everything-that-was-shipped-or-returned"
    shown = drawn(Snapshot("", (), (replace(TRIGGER, name=name),)), 40)
    assert "…" not in shown
    letters = "".join(each.split("  ")[0].strip() for each in shown.splitlines())
    assert name in letters
    assert "dispatchers" not in shown


def test_a_trigger_that_rests_takes_one_line_so_that_many_fit() -> None:
    many = tuple(replace(TRIGGER, name=f"default/t{n}", lag=0) for n in range(12))
    assert len(drawn(Snapshot("", (BROKER,), many), 80).splitlines()) < 24


def test_a_wide_terminal_shows_every_figure() -> None:
    shown = drawn(NOW, 120)
    for title in ("read", "filtered", "retried", "letters"):
        assert title in shown


def test_lines_where_there_is_no_terminal() -> None:
    assert isinstance(choose_view(plain=True), LineView)
    assert isinstance(choose_view(plain=False), LineView)  # pytest has no terminal


CHANNEL = BrokerRow("default/shop", "http://127.0.0.1:8081/default/shop", 7, kind="KafkaChannel")
SUBSCRIPTION = TriggerRow("default/orders", "shop", 0, delivered=7, kind="Subscription")
WITH_CHANNELS = replace(NOW, brokers=(BROKER, CHANNEL), triggers=(TRIGGER, SUBSCRIPTION))


def test_channels_and_subscriptions_are_said_by_their_kinds_beside_brokers_of_their_names() -> None:
    assert list(describe_changes(NOW, WITH_CHANNELS)) == [
        "KafkaChannel default/shop at http://127.0.0.1:8081/default/shop",
        "Subscription default/orders is ready",
    ]
    assert list(describe_changes(WITH_CHANNELS, NOW)) == [
        "KafkaChannel default/shop is gone",
        "Subscription default/orders is gone",
    ]


def test_the_table_of_channels_is_there_only_where_there_are_some() -> None:
    assert "KafkaChannel" not in drawn(NOW, 100)
    shown = drawn(WITH_CHANNELS, 100)
    kinds = re.findall(r"^ *(Broker|Trigger|KafkaChannel|Subscription)\b", shown, re.MULTILINE)
    assert kinds == ["Broker", "Trigger", "KafkaChannel", "Subscription"]
    assert "http://127.0.0.1:8081/default/shop" in shown


def test_the_summary_says_which_of_one_name_it_means() -> None:
    parts = summary_line(WITH_CHANNELS).split("; ")
    assert parts[0].startswith("default/shop accepted 5")
    assert parts[1].startswith("KafkaChannel default/shop accepted 7")
    assert parts[2].startswith("default/orders waiting 3")
    assert parts[3].startswith("Subscription default/orders waiting 0 delivered 7")
