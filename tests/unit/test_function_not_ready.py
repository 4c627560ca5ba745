"""What is said of a function that isn't Ready: its Revision's own words, once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.channel_world import ChannelWorld, running_channels
from support.operator_world import condition

from knafka_operator.decisions.status import ConditionSet, NotReady, why_revision_is_not_ready
from knafka_operator.model.resources import SERVING
from knafka_operator.receivers import receivers

NO_CPU = "0/1 nodes are available: 1 Insufficient cpu."


@pytest.fixture
async def world() -> AsyncIterator[ChannelWorld]:
    async with running_channels() as world:
        yield world


def revision(*conditions: tuple[str, str, str, str]) -> dict[str, Any]:
    names = "type", "status", "reason", "message"
    told = [dict(zip(names, each, strict=True)) for each in conditions]
    return {"status": {"conditions": told}}


async def test_that_no_node_has_room_is_passed_on_from_the_revision(
    world: ChannelWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Issue 30: `RevisionMissing ... failed to become ready` says nothing that can be mended."""
    monkeypatch.setattr(receivers, "APPLY_RETRY_INTERVAL", 0.0)
    receiver = "kafka-channel-receiver"
    world.cluster.unready.add(receiver)
    world.declare_channel("shop", "orders")
    await world.reconcile_channel("shop", "orders")
    newest = world.cluster.objects[SERVING, "Revision", "knafka", f"{receiver}-00001"]
    newest |= revision(("ResourcesAvailable", "Unknown", "Unschedulable", NO_CPU))
    status = await world.reconcile_channel("shop", "orders")
    said = condition(status, "Ready")
    assert said["reason"] == "FunctionNotReady"
    assert f"Revision {receiver}-00001: Unschedulable: {NO_CPU}" in said["message"]


@pytest.mark.parametrize(
    ("conditions", "told"),
    [
        ([], ""),
        ([("Ready", "Unknown", "Deploying", "")], ""),
        ([("Ready", "True", "", "")], ""),
        ([("Active", "False", "NoTraffic", "at zero")], ""),
        (
            [
                ("Ready", "False", "ProgressDeadlineExceeded", "600 s"),
                ("ResourcesAvailable", "Unknown", "Unschedulable", NO_CPU),
            ],
            f"Unschedulable: {NO_CPU}",
        ),
        (
            [
                ("ResourcesAvailable", "Unknown", "Waiting", "a moment"),
                ("ContainerHealthy", "False", "ExitCode1", "a traceback"),
            ],
            "ExitCode1: a traceback",
        ),
    ],
)
def test_the_cause_comes_before_what_follows_from_it(
    conditions: list[tuple[str, str, str, str]], told: str
) -> None:
    assert why_revision_is_not_ready(revision(*conditions)) == told


def test_conditions_that_wait_say_for_which_one_and_not_why() -> None:
    """Issue 30: six lines of `... is not looked at yet` hid the one that mattered."""
    conditions = ConditionSet(["ConfigParsed", "TopicReady", "ContractUpdated", "Addressable"])
    conditions.set_true("ConfigParsed")
    conditions.fail("TopicReady", NotReady("TopicTaken", "the topic is another Broker's"))
    told = {each["type"]: each for each in conditions.merge_into([], "2026-11-21T10:00:00Z")}
    for waiting in ("ContractUpdated", "Addressable"):
        assert told[waiting]["reason"] == "Waiting"
        assert told[waiting]["message"] == "waits for TopicReady"
    assert told["Ready"]["message"] == "the topic is another Broker's"


def test_what_waits_for_the_operator_says_so() -> None:
    (told, ready) = ConditionSet(["TopicReady"]).merge_into([], "2026-11-21T10:00:00Z")
    assert ready["message"] == told["message"] == "waits for the operator"
