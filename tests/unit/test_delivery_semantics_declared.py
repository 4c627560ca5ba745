"""Where `knafka.dev/delivery-semantics` is said: admission, and the contract (BUS-5)."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from support.admitted import refusal, trigger
from support.operator_world import OperatorWorld, condition, running_operator

from knafka.core.documents import dump
from knafka_operator.kafka import kafka_settings
from knafka_operator.model.identity import Identity
from knafka_operator.model.isolation import Isolation
from knafka_operator.model.resources import ISOLATION, SEMANTICS

SHOP = "shop"


@pytest.fixture
async def world() -> AsyncIterator[OperatorWorld]:
    async with running_operator() as world:
        world.declare_broker(SHOP)
        await world.reconcile_broker(SHOP)
        yield world


@pytest.mark.parametrize("declared", ["at-least-once", "at-most-once"])
def test_the_webhook_takes_both(declared: str) -> None:
    assert refusal(trigger({SEMANTICS: declared})) == ""
    assert refusal(trigger(), trigger({SEMANTICS: declared})) == "", "it may be changed"


def test_the_webhook_refuses_another() -> None:
    assert refusal(trigger({SEMANTICS: "exactly-once"})) == (
        "invalid value: exactly-once: metadata.annotations[knafka.dev/delivery-semantics]\n"
        "want at-least-once or at-most-once"
    )


def test_a_trigger_that_is_to_be_shared_is_delivered_at_least_once_only() -> None:
    shared = {ISOLATION: "shared"}
    assert "a shared dispatcher delivers at least once" in refusal(
        trigger(shared | {SEMANTICS: "at-most-once"})
    )
    assert refusal(trigger(shared | {SEMANTICS: "at-least-once"})) == ""


@pytest.mark.parametrize("isolation", [None, "own", "auto"])
def test_one_that_is_delivered_at_most_once_has_a_dispatcher_of_its_own(
    isolation: str | None,
) -> None:
    declared = {SEMANTICS: "at-most-once"} | ({ISOLATION: isolation} if isolation else {})
    assert kafka_settings.required_isolation(declared) is Isolation.OWN


@pytest.mark.looptime
@pytest.mark.parametrize(
    ("declared", "expected"), [(None, False), ("at-least-once", False), ("at-most-once", True)]
)
async def test_its_dispatcher_is_told_so(
    world: OperatorWorld, declared: str | None, expected: bool
) -> None:
    world.declare_trigger(SHOP, "mail", annotations={SEMANTICS: declared} if declared else {})
    await world.reconcile_trigger(SHOP, "mail")
    egress = world.operator.triggers.watched[Identity(SHOP, "mail")].egress
    assert egress.at_most_once is expected
    assert ("atMostOnce" in dump(egress)) is expected, "others have the contract that they had"


@pytest.mark.looptime
async def test_where_webhooks_are_off_a_condition_says_what_is_wrong(world: OperatorWorld) -> None:
    world.declare_trigger(SHOP, "mail", annotations={SEMANTICS: "once"})
    found = condition(await world.reconcile_trigger(SHOP, "mail"), "Ready")
    assert found["status"] == "False"
    assert SEMANTICS in found["message"]
