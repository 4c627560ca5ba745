"""KafkaChannels whose senders go past Knative's proxy, as the operator makes them (issue 37)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.channel_world import GATEWAY, ChannelWorld, running_channels
from support.operator_world import condition

from knafka.settings import SERVICE_URL
from knafka_operator.decisions.status import NotReady
from knafka_operator.functions import receiver_services, services
from knafka_operator.functions.services import KNATIVE_AUTOSCALING
from knafka_operator.model.cluster import NotAllowed
from knafka_operator.model.resources import CORE, SERVING
from knafka_operator.receivers.direct import DIRECT

pytestmark = pytest.mark.looptime

SHOP = "shop"
RECEIVER = "kafka-channel-receiver"
SERVICE = f"{RECEIVER}-direct"
STRAIGHT = f"{SERVICE}.knafka.svc.cluster.local"
HOST = "http://orders-kn-channel.shop.svc.cluster.local"


@pytest.fixture
async def world() -> AsyncIterator[ChannelWorld]:
    async with running_channels() as world:
        world.add_gateway()
        yield world


async def declared(world: ChannelWorld, direct: str | None = None) -> Any:
    world.declare_channel(SHOP, "orders", {} if direct is None else {DIRECT: direct})
    return await world.reconcile_channel(SHOP, "orders")


def leads_to(world: ChannelWorld) -> str:
    name = world.cluster.objects[CORE, "Service", SHOP, "orders-kn-channel"]
    return str(name["spec"]["externalName"])


async def test_a_channels_host_leads_to_its_receivers_own_port(world: ChannelWorld) -> None:
    """The address stays: who resolves it anew is past the proxy."""
    status = await declared(world)
    assert (status["address"]["url"], leads_to(world)) == (HOST, GATEWAY)
    await world.restart(direct=True)
    world.probed.clear()
    status = await declared(world)
    assert condition(status, "Ready")["status"] == "True", status["conditions"]
    assert (status["address"]["url"], leads_to(world)) == (HOST, STRAIGHT)
    assert world.probed == [f"http://{STRAIGHT}/shop/orders"], "it has answered before that"
    template = world.cluster.objects[SERVING, "Service", "knafka", RECEIVER]["spec"]["template"]
    service = world.cluster.objects[CORE, "Service", "knafka", SERVICE]
    assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    assert receiver_services.DIRECT_LABEL.items() <= template["metadata"]["labels"].items()
    environment = services.environment_of(template["spec"]["containers"][0])
    assert environment[SERVICE_URL] == f"http://{RECEIVER}.knafka.svc.cluster.local"
    shown = template["metadata"]["annotations"]
    assert shown[f"{KNATIVE_AUTOSCALING}metric"] == "concurrency"
    assert shown[f"{KNATIVE_AUTOSCALING}min-scale"] == "1"


async def test_without_a_gateway_its_path_at_the_pods_is_its_address(world: ChannelWorld) -> None:
    async with running_channels() as bare:
        await bare.restart(direct=True)
        status = await declared(bare)
    assert status["address"]["url"] == f"http://{STRAIGHT}/shop/orders"


async def test_until_the_pods_have_answered_its_host_leads_to_the_gateway(
    world: ChannelWorld,
) -> None:
    await declared(world)
    await world.restart(direct=True)
    world.probe_failure = NotReady("ProbeFailed", "no answer")
    status = await declared(world)
    assert (status["address"]["url"], leads_to(world)) == (HOST, GATEWAY)
    world.probe_failure = None
    await world.reconcile_channel(SHOP, "orders")
    assert leads_to(world) == STRAIGHT


async def test_one_channel_may_stay_behind_the_proxy_and_all_can_go_back(
    world: ChannelWorld,
) -> None:
    await world.restart(direct=True)
    await declared(world)
    await declared(world, direct="false")
    assert leads_to(world) == GATEWAY
    await declared(world, direct="true")
    assert leads_to(world) == STRAIGHT
    await world.restart()
    await declared(world)
    assert leads_to(world) == GATEWAY


@pytest.mark.parametrize(
    ("word", "problem"),
    [
        ("yes", "invalid value: yes: want true, false"),
        ("true", "its receiver serves other channels, too: set the operator's KNAFKA_DIRECT"),
    ],
)
async def test_what_cannot_be_is_said(world: ChannelWorld, word: str, problem: str) -> None:
    found = condition(await declared(world, direct=word), "DataPlaneAvailable")
    assert found["status"] == "False"
    assert problem in found["message"]


async def test_a_service_that_may_not_be_made_says_why_and_events_go_on_by_knative(
    world: ChannelWorld,
) -> None:
    await declared(world)
    await world.restart(direct=True)
    world.cluster.refuse("apply", "Service", SERVICE, error=NotAllowed("cannot create services"))
    status = await declared(world)
    found = condition(status, "DataPlaneAvailable")
    assert (found["status"], found["reason"]) == ("False", "DirectServiceRejected")
    assert (status["address"]["url"], leads_to(world)) == (HOST, GATEWAY)
