"""Conditions: one list per status, kept the way Knative's ConditionSet keeps it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from knafka_operator.model.conditions import (
    READY,
    Condition,
    Severity,
    Status,
    merge_conditions,
    summary_condition,
)

EARLIER = "2026-11-21T09:00:00Z"
NOW = "2026-11-21T10:00:00Z"
ADDRESSABLE = Condition("Addressable", Status.TRUE)
NO_TOPIC = Condition("TopicReady", Status.FALSE, "TopicTaken", "The topic is another Broker's")
NO_ANSWER = Condition("ProbeSucceeded", Status.UNKNOWN, "Waiting", "No receiver answered yet")


def of(conditions: Sequence[dict[str, Any]], type_: str) -> dict[str, Any]:
    return next(each for each in conditions if each["type"] == type_)


@pytest.mark.conformance("KN-CON-01", "KN-CON-02")
def test_the_list_is_sorted_and_holds_the_summary() -> None:
    """KN-CON-01, KN-CON-02."""
    assert merge_conditions([], [NO_TOPIC, ADDRESSABLE], NOW) == [
        {"type": "Addressable", "status": "True", "lastTransitionTime": NOW},
        {
            "type": "Ready",
            "status": "False",
            "lastTransitionTime": NOW,
            "reason": "TopicTaken",
            "message": "The topic is another Broker's",
        },
        {
            "type": "TopicReady",
            "status": "False",
            "lastTransitionTime": NOW,
            "reason": "TopicTaken",
            "message": "The topic is another Broker's",
        },
    ]


@pytest.mark.conformance("KN-CON-02", "KN-CON-04")
@pytest.mark.parametrize(
    ("conditions", "ready"),
    [
        pytest.param([], (Status.TRUE, ""), id="nothing-to-hold"),
        pytest.param([ADDRESSABLE], (Status.TRUE, ""), id="all-true"),
        pytest.param([ADDRESSABLE, NO_ANSWER], (Status.UNKNOWN, "Waiting"), id="one-unknown"),
        pytest.param([NO_ANSWER, NO_TOPIC], (Status.FALSE, "TopicTaken"), id="false-over-unknown"),
        pytest.param(
            [NO_TOPIC, Condition("Addressable", Status.FALSE, "NoService", "None yet")],
            (Status.FALSE, "TopicTaken"),
            id="the-first-cause",
        ),
        pytest.param(
            [ADDRESSABLE, Condition("Fresh", Status.FALSE, "Lag", "Much", Severity.WARNING)],
            (Status.TRUE, ""),
            id="a-warning-does-not-count",
        ),
        pytest.param(
            [ADDRESSABLE, Condition("Rolled", Status.UNKNOWN, "Rolling", "Yet", Severity.INFO)],
            (Status.TRUE, ""),
            id="information-does-not-count",
        ),
    ],
)
def test_ready_sums_up_what_counts(conditions: list[Condition], ready: tuple[Status, str]) -> None:
    """KN-CON-02, KN-CON-04."""
    found = summary_condition(conditions)
    assert (found.type, found.status, found.reason) == (READY, *ready)
    assert found.severity is Severity.ERROR


@pytest.mark.conformance("KN-CON-01")
def test_the_transition_time_moves_only_with_the_status() -> None:
    """KN-CON-01."""
    before = merge_conditions([], [NO_TOPIC, ADDRESSABLE], EARLIER)
    retold = Condition("TopicReady", Status.FALSE, "KafkaUnreachable", "Nobody answers")
    after = merge_conditions(before, [retold, ADDRESSABLE], NOW)
    assert of(after, "TopicReady")["lastTransitionTime"] == EARLIER
    assert of(after, "Ready") == {**of(before, "Ready"), "reason": "KafkaUnreachable"} | {
        "message": "Nobody answers"
    }
    mended = merge_conditions(after, [Condition("TopicReady", Status.TRUE), ADDRESSABLE], NOW)
    assert of(mended, "TopicReady")["lastTransitionTime"] == NOW
    assert of(mended, "Ready")["lastTransitionTime"] == NOW
    assert of(mended, "Addressable")["lastTransitionTime"] == EARLIER


def test_what_is_not_found_any_more_goes() -> None:
    """A condition that nobody keeps would be False, or True, for ever."""
    before = merge_conditions([], [NO_TOPIC, ADDRESSABLE], EARLIER)
    assert [each["type"] for each in merge_conditions(before, [ADDRESSABLE], NOW)] == [
        "Addressable",
        "Ready",
    ]


@pytest.mark.parametrize("before", [{}, {"type": "Addressable", "status": "True"}], ids=repr)
def test_a_condition_that_never_had_a_time_gets_one(before: dict[str, Any]) -> None:
    assert (
        of(merge_conditions([before], [ADDRESSABLE], NOW), "Addressable")["lastTransitionTime"]
        == NOW
    )


def test_a_severity_is_told() -> None:
    warning = Condition("TopicAsDeclared", Status.FALSE, "Drift", "3, not 4", Severity.WARNING)
    assert of(merge_conditions([], [warning], NOW), "TopicAsDeclared")["severity"] == "Warning"


@pytest.mark.conformance("KN-CON-01", "KN-CON-03")
@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        pytest.param(("", Status.TRUE), "the type", id="no-type"),
        pytest.param(("topicReady", Status.TRUE), "the type", id="type-not-camel-case"),
        pytest.param(("TopicReady", Status.TRUE, "Topic t created"), "the reason", id="sentence"),
        pytest.param(("TopicReady", Status.FALSE, "topic_gone", "x"), "the reason", id="snake"),
        pytest.param(("TopicReady", Status.FALSE, "Gone.", "x"), "the reason", id="full-stop"),
        pytest.param(
            ("TopicReady", Status.FALSE, "", "Gone"), "needs a reason", id="false-no-reason"
        ),
        pytest.param(("TopicReady", Status.FALSE, "Gone"), "a message", id="false-no-message"),
        pytest.param(("TopicReady", Status.UNKNOWN), "needs a reason", id="unknown-no-reason"),
        pytest.param(("TopicReady", Status.UNKNOWN, "Waiting"), "a message", id="unknown-message"),
    ],
)
def test_a_condition_that_tells_too_little_is_a_bug(
    values: tuple[Any, ...], complaint: str
) -> None:
    """KN-CON-01, KN-CON-03."""
    with pytest.raises(ValueError, match=complaint):
        Condition(*values)


@pytest.mark.parametrize(
    "conditions",
    [
        pytest.param([ADDRESSABLE, ADDRESSABLE], id="twice"),
        pytest.param([Condition("Ready", Status.TRUE)], id="the-summary"),
    ],
)
def test_a_condition_is_given_once_and_the_summary_not_at_all(conditions: list[Condition]) -> None:
    with pytest.raises(ValueError, match="given once"):
        merge_conditions([], conditions, NOW)


@pytest.mark.conformance("KN-CON-01")
@pytest.mark.parametrize("at", ["", "now", "2026-11-21", "2026-11-21 10:00:00Z"])
def test_a_time_is_rfc_3339(at: str) -> None:
    """KN-CON-01."""
    with pytest.raises(ValueError, match="RFC 3339"):
        merge_conditions([], [ADDRESSABLE], at)


FOUND = st.lists(
    st.builds(
        Condition,
        type=st.sampled_from(["Addressable", "ConfigParsed", "TopicReady", "Wide"]),
        status=st.sampled_from(Status),
        reason=st.sampled_from(["Waiting", "Failed"]),
        message=st.text(min_size=1),
        severity=st.sampled_from(Severity),
    ),
    unique_by=lambda each: each.type,
)


@pytest.mark.conformance("KN-CON-01", "KN-CON-02")
@given(FOUND, FOUND)
def test_the_rules_hold_over_any_change(before: list[Condition], after: list[Condition]) -> None:
    """KN-CON-01, KN-CON-02."""
    old = merge_conditions([], before, EARLIER)
    new = merge_conditions(old, after, NOW)
    assert [each["type"] for each in new] == sorted({each.type for each in after} | {READY})
    was = {each["type"]: each["status"] for each in old}
    for each in new:
        moved = each["lastTransitionTime"] == NOW
        assert moved == (was.get(each["type"]) != each["status"])
    counting = {each.status for each in after if each.severity is Severity.ERROR}
    ready = next((each for each in (Status.FALSE, Status.UNKNOWN) if each in counting), Status.TRUE)
    assert of(new, READY)["status"] == ready
    assert merge_conditions(new, after, "2027-01-01T00:00:00Z") == new
