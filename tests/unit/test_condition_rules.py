"""The rules by which the run's Brokers and Triggers are judged find what they look for (KN-CON)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support import watched as rules

Document = dict[str, Any]


def document(*conditions: dict[str, str], generation: int = 1) -> Document:
    status = {"observedGeneration": generation, "conditions": list(conditions)}
    return {"metadata": {"generation": generation}, "status": status}


def condition(type_: str, status: str = "True", **more: str) -> dict[str, str]:
    return {
        "type": type_,
        "status": status,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
        **({} if status == "True" else {"reason": "Why", "message": "because"}),
        **more,
    }


GOOD = document(condition("Ready"), condition("A"), condition("B", "False", severity="Warning"))
LATER = {"lastTransitionTime": "2026-01-02T00:00:00Z"}


@pytest.mark.parametrize("rule", [rules.form, rules.sums, rules.reasons])
def test_what_keeps_the_rules_is_let_pass(rule: Callable[[Document], Iterator[str]]) -> None:
    assert list(rule(GOOD)) == []
    assert list(rule({"metadata": {"generation": 1}})) == []


@pytest.mark.parametrize(
    ("rule", "broken"),
    [
        (rules.form, document(condition("A"), condition("A"))),
        (rules.form, document(condition("not a word"))),
        (rules.form, document(condition("A", "true"))),
        (rules.form, document(condition("A", reason="two words"))),
        (rules.form, document(condition("A", severity="Error"))),
        (rules.form, document(condition("A", lastTransitionTime="now"))),
        (rules.form, document(condition("A", colour="red"))),
        (rules.sums, document(condition("A"))),
        (rules.sums, document(condition("Ready"), condition("A", "False"))),
        (rules.sums, document(condition("Ready"), condition("A", "Unknown"))),
        (rules.sums, document(condition("Ready", "Unknown"), condition("A", "False"))),
        (rules.sums, document(condition("Ready", severity="Info"))),
        (rules.reasons, document(condition("A", "False", reason=""))),
        (rules.reasons, document(condition("A", "Unknown", message=""))),
    ],
)
def test_what_breaks_a_rule_is_told(
    rule: Callable[[Document], Iterator[str]], broken: Document
) -> None:
    assert list(rule(broken)) != []


@pytest.mark.parametrize(
    ("rule", "after", "wrong"),
    [
        (rules.transitions, document(condition("A", "False", **LATER)), False),
        (rules.transitions, document(condition("A", **LATER)), True),
        (
            rules.transitions,
            document(condition("A", "False", lastTransitionTime="2025-01-01T00:00:00Z")),
            True,
        ),
        (rules.observed, document(condition("A"), generation=2), False),
        (rules.observed, document(generation=2), True),
        (rules.observed, document(condition("A"), generation=0), True),
    ],
)
def test_a_change_is_judged_by_what_was_before(
    rule: Callable[[Document, Document], Iterator[str]], after: Document, wrong: bool
) -> None:
    assert bool(list(rule(document(condition("A")), after))) is wrong


def test_ready_counts_for_what_is_declared_now_only() -> None:
    assert rules.is_ready(GOOD)
    assert not rules.is_ready({**GOOD, "metadata": {"generation": 2}})
    assert not rules.is_ready(document(condition("Ready", "False")))
