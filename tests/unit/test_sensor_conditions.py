"""A Sensor's conditions: what they mean, and what is refused of them (BUS-2, BUS-3, BUS-S1)."""

from __future__ import annotations

import pytest

from knafka.core.errors import InvalidExpression
from knafka.core.sensor.conditions import TriggerCondition, all_of, parse


def holds(condition: TriggerCondition, *names: str) -> bool:
    return condition.holds({name: names.count(name) for name in names})


@pytest.mark.conformance("BUS-S1")
@pytest.mark.parametrize(
    ("text", "true_for", "false_for"),
    [
        ("a", ["a", "a b"], ["", "b"]),
        ("a && b", ["a b", "a b c"], ["a", "b", ""]),
        ("a || b", ["a", "b", "a b"], ["", "c"]),
        ("a && b || c", ["a b", "c"], ["a", "b"]),
        ("a || b && c", ["a", "b c"], ["b", "c"]),
        ("a && (b || c)", ["a b", "a c"], ["a", "b c"]),
        ("(a||b)&&(c||d)", ["a c", "b d"], ["a b", "c d"]),
        ("((a))", ["a"], ["b"]),
        ("3 of a", ["a a a", "a a a a"], ["a a", ""]),
        ("2 of a && b", ["a a b"], ["a b", "a a"]),
        ("2 of a || b", ["a a", "b"], ["a"]),
        ("dep-1 && dep_2.x", ["dep-1 dep_2.x"], ["dep-1"]),
        ("3 && of", ["3 of"], ["3", "of"]),
        ("2 of of", ["of of"], ["of"]),
    ],
)
def test_a_condition_is_a_boolean_expression_of_dependencies(
    text: str, true_for: list[str], false_for: list[str]
) -> None:
    """BUS-S1."""
    condition = parse(text)
    assert [each for each in true_for if not holds(condition, *each.split())] == []
    assert [each for each in false_for if holds(condition, *each.split())] == []


@pytest.mark.conformance("BUS-S1")
def test_a_trigger_without_a_condition_wants_every_dependency() -> None:
    """BUS-S1: missing means all of them joined by &&."""
    assert all_of(["a", "b", "c"]) == parse("a && b && c")
    assert all_of(["a"]) == parse("a")


@pytest.mark.conformance("BUS-2", "BUS-S2")
@pytest.mark.parametrize("text", ["a", "a || b", "(a || b) || c"])
def test_a_condition_that_any_event_satisfies_is_simple(text: str) -> None:
    """BUS-S2: it has no &&, so nothing is held for it."""
    assert parse(text).is_simple


@pytest.mark.conformance("BUS-3", "BUS-S2")
@pytest.mark.parametrize("text", ["a && b", "a || b && c", "2 of a", "a || 2 of b", "a && !b"])
def test_a_condition_that_takes_more_than_one_event_is_complex(text: str) -> None:
    """BUS-3."""
    assert not parse(text).is_simple


def test_a_condition_names_its_dependencies_and_how_many_events_of_each_it_may_want() -> None:
    condition = parse("a && (3 of b || 2 of b && c) && !d")
    assert condition.wanted == {"a": 1, "b": 3, "c": 1}
    assert condition.unwanted == {"d"}
    assert condition.names == {"a", "b", "c", "d"}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "want the name of a dependency, not the end (at character 0)"),
        ("  ", "want the name of a dependency, not the end (at character 2)"),
        ("a &&", "want the name of a dependency, not the end (at character 4)"),
        ("a b", "want && or ||, not 'b' (at character 2)"),
        ("a & b", "'&' has no meaning in a condition: want names, &&, ||, ! and () (at"),
        ("a && (b", "want ), not the end (at character 7)"),
        ("a)", "want && or ||, not ')' (at character 1)"),
        ("&& a", "want the name of a dependency, not '&&' (at character 0)"),
        ("0 of a", "want 1 to 1000 events, not 0 (at character 0)"),
        ("1001 of a", "want 1 to 1000 events, not 1001 (at character 0)"),
        ("3 of", "want && or ||, not 'of' (at character 2)"),
        ("!a", "a condition wants at least one event that comes: a && !b"),
        ("!a && !b", "a condition wants at least one event that comes"),
        ("a || !b", "what is negated is joined to the rest by &&"),
        ("a && (b || !c)", "what is negated is joined to the rest by &&"),
        ("a && !(b)", "want the name of a dependency, not '(' (at character 6)"),
        ("a && !a", "a is wanted and unwanted"),
        ("(" * 33 + "a" + ")" * 33, "at most 32 parentheses within each other (at character"),
        ("a" * 4097, "a condition has 4096 characters at most"),
    ],
)
def test_what_is_no_condition_is_refused_with_its_place(text: str, problem: str) -> None:
    with pytest.raises(InvalidExpression) as refused:
        parse(text)
    assert problem in str(refused.value)
