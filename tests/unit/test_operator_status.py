"""What was found out, as a status (KN-CON, KN-BRK-14, KN-TRG-01)."""

from __future__ import annotations

from typing import Any

import pytest

from knafka.core.drain import DrainProgress
from knafka.core.errors import InvalidDocument, LogError
from knafka_operator.decisions import status
from knafka_operator.decisions.resolving import Unresolved
from knafka_operator.decisions.status import ConditionSet, NotReady
from knafka_operator.dispatchers.conditions import delivering_condition
from knafka_operator.model.conditions import Condition, Status
from knafka_operator.model.topics import TopicRefused
from knafka_operator.scale.decide import Scale, ScalingStatus

AT = "2026-11-21T12:00:00Z"


def _ready(conditions: ConditionSet) -> dict[str, str]:
    return dict(status.ready_condition(conditions.merge_into((), AT)))


def test_what_was_not_looked_at_is_unknown() -> None:
    assert _ready(ConditionSet(status.BROKER_CONDITIONS))["status"] == "Unknown"


def test_it_is_ready_when_every_step_got_through() -> None:
    conditions = ConditionSet(status.TRIGGER_CONDITIONS)
    for each in status.TRIGGER_CONDITIONS:
        with conditions.step(each):
            pass
    assert _ready(conditions)["status"] == "True"


def test_a_step_that_set_its_condition_keeps_its_reason() -> None:
    conditions = ConditionSet(["DeadLetterSinkResolved"])
    with conditions.step("DeadLetterSinkResolved"):
        conditions.set(Condition("DeadLetterSinkResolved", Status.TRUE, "NotConfigured"))
    (found, _) = conditions.merge_into((), AT)
    assert found["reason"] == "NotConfigured"


@pytest.mark.conformance("KN-CON-03")
@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (NotReady("ConfigMapNotFound", "it is gone"), ("False", "ConfigMapNotFound")),
        (NotReady("FunctionNotReady", "wait", transient=True), ("Unknown", "FunctionNotReady")),
        (Unresolved("NotFound", "no such Service"), ("False", "NotFound")),
        (TopicRefused("TopicNotOurs", "another's"), ("False", "TopicNotOurs")),
        (InvalidDocument("spec", "wrong"), ("False", "Invalid")),
        (LogError("did not answer within 15 s"), ("False", "KafkaNotReachable")),
        (LogError("authentication failed: no"), ("False", "KafkaAuthenticationFailed")),
        (LogError("TLS failed: unknown CA"), ("False", "KafkaAuthenticationFailed")),
        (LogError("Topic authorization failed"), ("False", "KafkaNotAuthorized")),
    ],
    ids=str,
)
def test_what_stands_in_the_way_is_the_condition(
    error: Exception, expected: tuple[str, str]
) -> None:
    """KN-CON-03: with a reason in one word, and a message."""
    conditions = ConditionSet(["TopicReady"])
    with conditions.step("TopicReady"):
        raise error
    ready = _ready(conditions)
    assert (ready["status"], ready["reason"]) == expected
    assert not conditions.holds("TopicReady")


def test_a_bug_is_not_hidden_in_a_condition() -> None:
    with pytest.raises(ZeroDivisionError), ConditionSet(["TopicReady"]).step("TopicReady"):
        _ = 1 // 0


def test_only_what_changed_is_written() -> None:
    before = {"observedGeneration": 1, "annotations": {"a": "1", "b": "2"}, "address": {"url": "x"}}
    now = {"observedGeneration": 1, "annotations": {"a": "1", "c": "3"}, "address": None}
    assert status.merge_patch(before, now) == {
        "annotations": {"b": None, "c": "3"},
        "address": None,
    }
    assert status.merge_patch(before, before) == {}


@pytest.mark.parametrize(
    ("generation", "observed", "ready", "expected"),
    [(2, 2, "True", True), (2, 1, "True", False), (2, 2, "False", False), (2, None, "True", True)],
)
def test_ready_means_ready_for_what_is_declared_now(
    generation: int, observed: int | None, ready: str, expected: bool
) -> None:
    told = {"conditions": [{"type": "Ready", "status": ready}]}
    seen = {} if observed is None else {"observedGeneration": observed}
    document = {"metadata": {"generation": generation}, "status": {**told, **seen}}
    assert status.is_ready(document) is expected


@pytest.mark.parametrize(
    ("told", "reason", "says"),
    [
        ({"error": "no route"}, "DrainFailed", "no route"),
        (
            {"counts": DrainProgress(congestion="10 attempts in a row failed")},
            "SubscriberUnavailable",
            "10 attempts in a row failed",
        ),
        ({"beyond_end": frozenset({3, 1})}, "CommittedBeyondEnd", "partitions 1, 3"),
        ({"paused": True, "error": "no route"}, "Paused", "its events wait"),
        ({}, "", ""),
    ],
)
def test_a_condition_says_why_a_trigger_does_not_deliver(
    told: dict[str, Any], reason: str, says: str
) -> None:
    """KN-DP-05: congestion; and offsets that lie beyond the log's end."""
    known: dict[str, Any] = {"lag": 1, "replicas": 1, "scale": Scale(1, "lag 1"), "error": None}
    condition = delivering_condition(ScalingStatus(**{"counts": DrainProgress(), **known, **told}))
    assert (condition.status is Status.TRUE) == (not reason)
    assert condition.reason == reason
    assert says in condition.message
