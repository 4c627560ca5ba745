"""EventPolicies: which apply, whom they let through, and what the status says (issue 38)."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.channel_world import running_channels
from support.operator_world import OperatorWorld, condition, running_operator

from knafka.core.contract import Policy
from knafka.core.documents import parse
from knafka.core.filters.declared_filters import Exact
from knafka_operator.model.event_policies import POLICIES_VERSION, POLICY, EventPolicySpec
from knafka_operator.model.resources import EVENTING, Resource
from knafka_operator.senders.event_policies import StoredPolicy, applied_policies

SHOP = "shop"
SENDER = "system:serviceaccount:shop:web"
BROKER = {"apiVersion": EVENTING, "kind": "Broker", "name": "default"}
REF = {"ref": {"apiVersion": "sources.knative.dev/v1", "kind": "PingSource", "name": "x"}}
READY = {"conditions": [{"type": "Ready", "status": "True"}]}


def policy(name: Any = "p", **spec: Any) -> dict[str, Any]:
    """With a `spec`, and maybe a `namespace` and a `status`."""
    metadata = {"namespace": spec.pop("namespace", SHOP), "name": name}
    status = spec.pop("status", None)
    document = {"apiVersion": POLICIES_VERSION, "kind": POLICY, "metadata": metadata}
    return {**document, "spec": spec, **({} if status is None else {"status": status})}


def broker(**labels: str) -> Resource:
    metadata = {"namespace": SHOP, "name": "default", "labels": labels}
    return Resource.model_validate({"apiVersion": EVENTING, "kind": "Broker", "metadata": metadata})


def selector(**more: Any) -> dict[str, Any]:
    return {"selector": {"apiVersion": EVENTING, "kind": "Broker", **more}}


def expression(operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": "team", "operator": operator, "values": list(values)}]}


@pytest.mark.parametrize(
    ("to", "labels", "applies"),
    [
        (None, {}, True),
        ([], {}, True),
        ([{"ref": BROKER}], {}, True),
        ([{"ref": {**BROKER, "apiVersion": "eventing.knative.dev/v1beta9"}}], {}, True),
        ([{"ref": {**BROKER, "kind": "broker", "name": "DEFAULT"}}], {}, True),
        ([{"ref": {**BROKER, "name": "other"}}], {}, False),
        ([{"ref": {**BROKER, "kind": "KafkaChannel"}}], {}, False),
        ([{"ref": {**BROKER, "apiVersion": "messaging.knative.dev/v1"}}], {}, False),
        ([{"ref": {**BROKER, "name": "other"}}, {"ref": BROKER}], {}, True),
        ([selector()], {}, True),
        ([selector(matchLabels={"team": "a"})], {"team": "a", "x": "y"}, True),
        ([selector(matchLabels={"team": "a"})], {"team": "b"}, False),
        ([selector(matchLabels={"team": "a"})], {}, False),
        ([selector(**expression("In", "a", "b"))], {"team": "b"}, True),
        ([selector(**expression("In", "a"))], {}, False),
        ([selector(**expression("NotIn", "a"))], {}, True),
        ([selector(**expression("NotIn", "a"))], {"team": "a"}, False),
        ([selector(**expression("Exists"))], {"team": ""}, True),
        ([selector(**expression("Exists"))], {}, False),
        ([selector(**expression("DoesNotExist"))], {}, True),
        ([selector(**expression("DoesNotExist"))], {"team": "a"}, False),
        ([{"selector": {"apiVersion": EVENTING, "kind": "Trigger"}}], {}, False),
        ([{}], {}, False),
    ],
    ids=str,
)
def test_a_policy_says_by_ref_and_selector_what_it_applies_to(
    to: Any, labels: dict[str, str], applies: bool
) -> None:
    declared = policy(**({} if to is None else {"to": to}))
    assert bool(applied_policies([StoredPolicy(declared)], broker(**labels))) is applies


@pytest.mark.parametrize(
    ("sources", "status", "subjects"),
    [
        ([{"sub": SENDER}, {"sub": "system:*"}], None, (SENDER, "system:*")),
        ([], None, ()),
        ([REF], {**READY, "from": [SENDER]}, (SENDER,)),
        ([REF, {"sub": "x"}], {**READY, "from": [SENDER, "x"]}, (SENDER, "x")),
    ],
)
def test_senders_are_those_of_spec_or_as_the_status_has_resolved_them(
    sources: Any, status: Any, subjects: tuple[str, ...]
) -> None:
    declared = policy(status=status, **{"from": sources})
    (applied,) = applied_policies([StoredPolicy(declared)], broker())
    assert applied.is_ready
    assert applied.policy.subjects == subjects


@pytest.mark.parametrize(
    "declared",
    [
        policy(**{"from": [REF]}),
        policy(status={"from": [SENDER]}, **{"from": [REF]}),
        policy(status={**READY, "from": "all"}, **{"from": [REF]}),
        policy(status={"conditions": "x", "from": [SENDER]}, **{"from": [REF]}),
        policy(filters=[{"cesql": "1 +"}], **{"from": [{"sub": "*"}]}),
        policy(to=[selector(**expression("Near", "a"))], **{"from": [{"sub": "*"}]}),
        policy(to="everything", **{"from": [{"sub": "*"}]}),
        policy(filters=[{"exact": {"type": "x"}}] * 2000, **{"from": [{"sub": "*"}]}),
    ],
)
def test_what_is_not_ready_or_cant_be_read_lets_nobody_through(declared: Any) -> None:
    """Without it the installation's default would hold, which may be to allow."""
    (applied,) = applied_policies([StoredPolicy(declared)], broker())
    assert not applied.is_ready
    assert applied.policy == Policy()


def expressions(name: str, characters: int) -> dict[str, Any]:
    """A policy whose filters have about so many characters, and take long to parse."""
    text = f"source='{name}'" + " OR a='b'" * (characters // 9)
    return policy(name, filters=[{"cesql": text}], **{"from": [{"sub": "*"}]})


def test_policies_that_are_too_large_together_let_nobody_through() -> None:
    small = policy("small", **{"from": [{"sub": "*"}]})
    elsewhere = expressions("elsewhere", 20_000)
    elsewhere["spec"]["to"] = [{"ref": {**BROKER, "name": "other"}}]
    declared = [small, expressions("a", 20_000), expressions("b", 20_000), elsewhere]
    applied = applied_policies([StoredPolicy(each) for each in declared], broker())
    assert [each.name for each in applied] == ["a", "b", "small"]
    assert {each.policy for each in applied} == {Policy()}
    declared.pop(2)
    applied = applied_policies([StoredPolicy(each) for each in declared], broker())
    assert all(each.is_ready for each in applied)
    assert applied[-1].policy == Policy(subjects=("*",))


# The operator


def switch(world: OperatorWorld, state: str = "enabled") -> None:
    world.configure("knative-eventing", "config-features", **{"authentication-oidc": state})


@pytest.fixture
async def world() -> AsyncIterator[OperatorWorld]:
    async with running_operator() as world:
        world.declare_broker(SHOP)
        switch(world)
        yield world


def declare(world: OperatorWorld, *policies: dict[str, Any]) -> None:
    world.operator.on_policies(policies, ())


@pytest.mark.conformance("KN-BRK-17")
async def test_where_senders_are_asked_a_brokers_conditions_are_all_of_upstreams(
    world: OperatorWorld,
) -> None:
    """KN-BRK-17: `ContractUpdated` is its `ConfigMapUpdated`, and the last two are ours."""
    status = await world.reconcile_broker(SHOP)
    assert {each["type"]: each["status"] for each in status["conditions"]} == dict.fromkeys(
        (
            *("Ready", "Addressable", "DataPlaneAvailable", "TopicReady", "ContractUpdated"),
            *("ConfigParsed", "ProbeSucceeded", "EventPoliciesReady"),
            *("DeadLetterSinkResolved", "TopicAsDeclared"),
        ),
        "True",
    )


async def test_without_policies_the_default_mode_holds(world: OperatorWorld) -> None:
    status = await world.reconcile_broker(SHOP)
    found = condition(status, "EventPoliciesReady")
    assert (found["status"], found["reason"]) == ("True", "DefaultAuthorizationMode")
    assert found["message"] == 'Default authz mode is "allow-same-namespace"'
    assert status["policies"] == []


async def test_policies_reach_the_receiver_and_the_status(world: OperatorWorld) -> None:
    filters = [{"exact": {"type": "order"}}]
    declare(
        world,
        policy("b", **{"from": [{"sub": SENDER}], "filters": filters, "to": [{"ref": BROKER}]}),
        policy("a", **{"from": [{"sub": "*"}]}),
        policy("other", to=[{"ref": {**BROKER, "name": "other"}}]),
        policy("elsewhere", namespace="elsewhere"),
    )
    status = await world.reconcile_broker(SHOP)
    assert condition(status, "EventPoliciesReady")["status"] == "True"
    names = [{"apiVersion": POLICIES_VERSION, "name": each} for each in ("a", "b")]
    assert status["policies"] == names
    assert world.entries()[f"/{SHOP}/default"].policies == (
        Policy(subjects=("*",)),
        Policy(subjects=(SENDER,), filters=(Exact(exact={"type": "order"}),)),
    )


@pytest.mark.conformance("KN-BRK-17")
async def test_a_policy_that_is_not_ready_is_said_and_opens_nothing(world: OperatorWorld) -> None:
    declare(world, policy("a", **{"from": [REF]}), policy("b", **{"from": [{"sub": SENDER}]}))
    status = await world.reconcile_broker(SHOP)
    found = condition(status, "EventPoliciesReady")
    assert (found["status"], found["reason"]) == ("False", "EventPoliciesNotReady")
    assert "event policies a are not ready" in found["message"]
    assert [each["name"] for each in status["policies"]] == ["b"]
    assert Policy() in world.entries()[f"/{SHOP}/default"].policies
    assert condition(status, "Ready")["status"] == "False"


async def test_policies_that_are_too_large_together_are_a_reason(world: OperatorWorld) -> None:
    declare(world, expressions("a", 20_000), expressions("b", 20_000))
    found = condition(await world.reconcile_broker(SHOP), "EventPoliciesReady")
    assert (found["status"], found["reason"]) == ("False", "EventPoliciesTooLarge")
    assert "filters of all 2 event policies that apply are too large" in found["message"]
    assert world.entries()[f"/{SHOP}/default"].policies == (Policy(), Policy())
    world.operator.on_policies((), [expressions("b", 20_000)])
    status = await world.reconcile_broker(SHOP)
    assert condition(status, "EventPoliciesReady")["status"] == "True"


async def test_large_policies_are_parsed_once_and_beside_the_event_loop(
    world: OperatorWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed_by: list[threading.Thread] = []

    def parse_noting(model: Any, document: Any) -> Any:
        if model is EventPolicySpec:
            parsed_by.append(threading.current_thread())
        return parse(model, document)

    monkeypatch.setattr("knafka_operator.senders.event_policies.parse", parse_noting)
    declare(world, expressions("a", 10_000), expressions("b", 10_000))
    for _ in range(3):
        await world.reconcile_broker(SHOP)
    assert len(parsed_by) == 2
    assert threading.main_thread() not in parsed_by
    declare(world, *(expressions(f"large-{number}", 30_000) for number in range(20)))
    await world.reconcile_broker(SHOP)
    assert len(parsed_by) == 2, "what is too large together isn't parsed at all"


async def test_a_policy_that_goes_is_no_more(world: OperatorWorld) -> None:
    declared = policy(**{"from": [{"sub": SENDER}]})
    declare(world, declared)
    await world.reconcile_broker(SHOP)
    world.operator.on_policies((), [declared])
    assert (await world.reconcile_broker(SHOP))["policies"] == []
    assert world.entries()[f"/{SHOP}/default"].policies == ()


async def test_a_change_wakes_the_brokers_of_its_namespace(world: OperatorWorld) -> None:
    await world.reconcile_broker(SHOP)
    woken: list[Any] = []
    world.operator.queue.enqueue = woken.append  # type: ignore[method-assign,assignment]
    declare(world, policy(namespace="elsewhere"))
    assert woken == []
    declare(world, policy())
    assert woken == [("Broker", SHOP, "default")]


async def test_until_the_policies_are_known_nothing_is_opened(world: OperatorWorld) -> None:
    """An operator that starts must not forget for a moment that there are any."""
    declare(world, policy(**{"from": [{"sub": SENDER}]}))
    await world.reconcile_broker(SHOP)
    before = world.entries()[f"/{SHOP}/default"]
    await world.restart()
    world.operator.on_policies_known(False)
    found = condition(await world.reconcile_broker(SHOP), "ConfigParsed")
    assert (found["status"], found["reason"]) == ("Unknown", "EventPoliciesGetFailed")
    assert world.entries()[f"/{SHOP}/default"] == before


async def test_where_nobody_is_asked_policies_are_not_looked_at(world: OperatorWorld) -> None:
    declare(world, policy(**{"from": [{"sub": SENDER}]}))
    await world.reconcile_broker(SHOP)
    switch(world, "disabled")
    world.operator.on_policies_known(False)
    status = await world.reconcile_broker(SHOP)
    assert condition(status, "Ready")["status"] == "True"
    assert status["policies"] is None
    assert not any(each["type"] == "EventPoliciesReady" for each in status["conditions"])


@pytest.mark.conformance("KN-CHN-09")
async def test_a_channel_has_policies_too() -> None:
    async with running_channels() as world:
        switch(world)
        world.declare_channel(SHOP, "orders")
        declare(world, policy(**{"from": [{"sub": SENDER}]}))
        status = await world.reconcile_channel(SHOP, "orders")
        assert [each["name"] for each in status["policies"]] == ["p"]
        assert condition(status, "EventPoliciesReady")["status"] == "True"
        (entry,) = world.ingresses().values()
        assert entry.policies == (Policy(subjects=(SENDER,)),)
