"""Brokers whose senders go past Knative's proxy, as the operator makes them (issue 37)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
from support.operator_world import OperatorWorld, condition, running_operator

from knafka.settings import SERVICE_URL
from knafka_operator.decisions.status import NotReady
from knafka_operator.functions import services
from knafka_operator.functions.services import KNATIVE_AUTOSCALING, MIN_SCALE
from knafka_operator.model.cluster import NotAllowed
from knafka_operator.model.resources import CORE, SERVING
from knafka_operator.receivers.direct import DIRECT

SHOP = "shop"
RECEIVER = "default-kn-receiver"
SERVICE = "default-kn-receiver-direct"
PATH = f"/{SHOP}/default"
DOMAIN = f"{SHOP}.svc.cluster.local"
KNATIVES = f"http://{RECEIVER}.{DOMAIN}{PATH}"
STRAIGHT = f"http://{SERVICE}.{DOMAIN}{PATH}"
ON = {DIRECT: "true"}


@pytest.fixture
async def world() -> AsyncIterator[OperatorWorld]:
    async with running_operator() as world:
        yield world


async def declared(world: OperatorWorld, annotations: Mapping[str, str] | None = None) -> Any:
    world.declare_broker(SHOP, annotations=annotations)
    return await world.reconcile_broker(SHOP)


def template(world: OperatorWorld) -> Mapping[str, Any]:
    service = world.cluster.objects[SERVING, "Service", SHOP, RECEIVER]
    found: Mapping[str, Any] = service["spec"]["template"]
    return found


def scaling(world: OperatorWorld) -> dict[str, str]:
    annotations = template(world)["metadata"]["annotations"].items()
    return {
        key.removeprefix(KNATIVE_AUTOSCALING): value
        for key, value in annotations
        if key.startswith(KNATIVE_AUTOSCALING)
    }


def environment(world: OperatorWorld) -> dict[str, str]:
    return services.environment_of(template(world)["spec"]["containers"][0])


async def test_senders_are_told_an_address_of_the_receivers_own_port(world: OperatorWorld) -> None:
    status = await declared(world, ON)
    assert status["address"] == {"name": "http", "url": STRAIGHT}
    assert world.probed == [STRAIGHT], "it has answered before anybody is told of it"
    service = world.cluster.objects[CORE, "Service", SHOP, SERVICE]
    labels = template(world)["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    assert service["spec"]["ports"] == [
        {"name": "http", "protocol": "TCP", "port": 80, "targetPort": 8080}
    ]
    assert service["metadata"]["ownerReferences"][0]["kind"] == "Broker"


async def test_its_receiver_shows_its_load_and_always_runs(world: OperatorWorld) -> None:
    await declared(world)
    assert SERVICE_URL not in environment(world)
    assert (scaling(world)["metric"], scaling(world)["min-scale"]) == ("rps", "0")
    await declared(world, ON)
    assert environment(world)[SERVICE_URL] == f"http://{RECEIVER}.{DOMAIN}"
    shown = scaling(world)
    assert (shown["metric"], shown["target"], shown["min-scale"]) == ("concurrency", "10", "1")
    await declared(world, {**ON, MIN_SCALE: "3"})
    assert scaling(world)["min-scale"] == "3"


async def test_until_it_has_answered_the_address_is_knatives(world: OperatorWorld) -> None:
    """The switch on: no sender is told of an address that doesn't answer."""
    await declared(world)
    world.probe_failure = NotReady("ProbeFailed", "no answer")
    status = await declared(world, ON)
    assert status["address"]["url"] == KNATIVES
    world.probe_failure = None
    status = await world.reconcile_broker(SHOP)
    assert status["address"]["url"] == STRAIGHT


async def test_while_its_receiver_is_replaced_the_address_stays(world: OperatorWorld) -> None:
    await declared(world, ON)
    world.probe_failure = NotReady("ProbeFailed", "no answer")
    status = await declared(world, {**ON, MIN_SCALE: "2"})
    assert status["address"]["url"] == STRAIGHT


async def test_switched_off_the_address_is_knatives_and_the_other_leads_on(
    world: OperatorWorld,
) -> None:
    """For senders that haven't read the new one yet."""
    await declared(world, ON)
    status = await declared(world, {DIRECT: "false"})
    assert status["address"]["url"] == KNATIVES
    assert (CORE, "Service", SHOP, SERVICE) in world.cluster.objects
    assert scaling(world)["metric"] == "rps"


@pytest.mark.parametrize(
    ("annotations", "problem"),
    [
        ({DIRECT: "yes"}, "invalid value: yes: want true, false"),
        ({**ON, MIN_SCALE: "0"}, f"set {MIN_SCALE} to 1 or more, or remove it"),
    ],
)
async def test_what_cannot_be_is_said(
    world: OperatorWorld, annotations: dict[str, str], problem: str
) -> None:
    found = condition(await declared(world, annotations), "DataPlaneAvailable")
    assert found["status"] == "False"
    assert problem in found["message"]


async def test_a_service_that_may_not_be_made_says_why_and_events_go_on_by_knative(
    world: OperatorWorld,
) -> None:
    await declared(world)
    world.cluster.refuse("apply", "Service", SERVICE, error=NotAllowed("cannot create services"))
    status = await declared(world, ON)
    found = condition(status, "DataPlaneAvailable")
    assert (found["status"], found["reason"]) == ("False", "DirectServiceRejected")
    assert status["address"]["url"] == KNATIVES


async def test_an_installation_may_say_so_for_those_that_do_not(world: OperatorWorld) -> None:
    await world.restart(direct=True)
    assert (await declared(world))["address"]["url"] == STRAIGHT
    assert (await declared(world, {DIRECT: "false"}))["address"]["url"] == KNATIVES
    assert (await declared(world, {MIN_SCALE: "0"}))["address"]["url"] == KNATIVES


@pytest.mark.parametrize("pods", ["0", "0" * 10])
async def test_a_receiver_that_may_sleep_keeps_knatives_proxy_however_zero_is_written(
    world: OperatorWorld, pods: str
) -> None:
    found = condition(await declared(world, {**ON, MIN_SCALE: pods}), "DataPlaneAvailable")
    assert (found["status"], found["reason"]) == ("False", "Invalid")
    assert "want at most" not in found["message"]
    assert found["message"].startswith(f"metadata.annotations.{DIRECT}")
