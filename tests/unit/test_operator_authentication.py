"""What the operator makes of `authentication-oidc` (issue 38, KN-BRK-20)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
from support.channel_world import ChannelWorld, running_channels
from support.operator_world import OperatorWorld, condition, running_operator

from knafka.settings import API_FOLDER, OIDC_URL
from knafka_operator.dispatchers.resuming import read_receiver
from knafka_operator.functions import services
from knafka_operator.model.resources import SERVING, ConfigMap
from knafka_operator.senders.authentication import NO_AUTHENTICATION, Authentication

SHOP = "shop"
AUDIENCE = "eventing.knative.dev/broker/shop/default"


def features(**data: str) -> ConfigMap:
    metadata = {"namespace": "knative-eventing", "name": "config-features"}
    document = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
    return ConfigMap.model_validate({**document, "data": data})


def switch(world: OperatorWorld, state: str, **more: str) -> None:
    world.configure("knative-eventing", "config-features", **{"authentication-oidc": state, **more})


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (None, NO_AUTHENTICATION),
        ({}, NO_AUTHENTICATION),
        ({"authentication-oidc": "disabled", "default-authorization-mode": "x"}, NO_AUTHENTICATION),
        ({"authentication-oidc": "Enabled"}, Authentication(True, "allow-same-namespace")),
        (
            {"authentication-oidc": "enabled", "default-authorization-mode": "Deny-All"},
            Authentication(True, "deny-all"),
        ),
    ],
)
def test_upstreams_features_say_who_may_send(
    data: dict[str, str] | None, found: Authentication
) -> None:
    assert Authentication.of(None if data is None else features(**data)) == found


@pytest.fixture
async def world() -> AsyncIterator[OperatorWorld]:
    async with running_operator() as world:
        world.declare_broker(SHOP)
        yield world


def receiver(world: OperatorWorld, namespace: str, name: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = world.cluster.objects[SERVING, "Service", namespace, name]
    return found


async def test_without_the_feature_nothing_is_asked_of_senders(world: OperatorWorld) -> None:
    status = await world.reconcile_broker(SHOP)
    assert "audience" not in status["address"]
    assert "addresses" not in status
    assert world.entries()[f"/{SHOP}/default"].audience is None
    template = receiver(world, SHOP, "default-kn-receiver")["spec"]["template"]
    assert "volumes" not in template["spec"]
    assert OIDC_URL not in services.environment_of(template["spec"]["containers"][0])


@pytest.mark.conformance("KN-BRK-20")
async def test_with_it_a_brokers_address_has_an_audience(world: OperatorWorld) -> None:
    switch(world, "enabled", **{"default-authorization-mode": "deny-all"})
    status = await world.reconcile_broker(SHOP)
    assert condition(status, "Ready")["status"] == "True"
    assert status["address"]["audience"] == AUDIENCE
    assert status["addresses"] == [status["address"]]
    entry = world.entries()[f"/{SHOP}/default"]
    assert (entry.audience, entry.default_authorization) == (AUDIENCE, "deny-all")


async def test_a_receiver_that_verifies_tokens_has_one_of_its_own(world: OperatorWorld) -> None:
    switch(world, "enabled")
    await world.reconcile_broker(SHOP)
    template = receiver(world, SHOP, "default-kn-receiver")["spec"]["template"]
    container, (volume,) = template["spec"]["containers"][0], template["spec"]["volumes"]
    assert container["volumeMounts"] == [{"name": "api", "mountPath": API_FOLDER, "readOnly": True}]
    sources = volume["projected"]["sources"]
    assert [list(each) for each in sources] == [["serviceAccountToken"], ["configMap"]]
    assert services.environment_of(container)[OIDC_URL] == "https://kubernetes.default.svc"
    assert template["spec"]["automountServiceAccountToken"] is False
    assert read_receiver(template)[1] is None, "no Secret for Kafka is mounted"


async def test_the_feature_may_be_turned_off_again(world: OperatorWorld) -> None:
    switch(world, "enabled")
    await world.reconcile_broker(SHOP)
    switch(world, "disabled")
    status = await world.reconcile_broker(SHOP)
    assert "audience" not in status["address"]
    assert status["addresses"] is None
    assert not world.document("Broker", SHOP)["status"].get("addresses")
    assert world.entries()[f"/{SHOP}/default"].audience is None


async def test_a_mode_that_is_not_known_is_said_and_opens_nothing(world: OperatorWorld) -> None:
    switch(world, "enabled")
    await world.reconcile_broker(SHOP)
    switch(world, "enabled", **{"default-authorization-mode": "allow"})
    found = condition(await world.reconcile_broker(SHOP), "ConfigParsed")
    assert found["status"] == "False"
    assert "knative-eventing/config-features: data.default-authorization-mode" in found["message"]
    assert "want allow-all, deny-all, allow-same-namespace" in found["message"]
    assert world.entries()[f"/{SHOP}/default"].audience == AUDIENCE


async def test_another_config_map_may_say_it(world: OperatorWorld) -> None:
    await world.restart(features="knafka/features")
    world.configure("knafka", "features", **{"authentication-oidc": "enabled"})
    assert "audience" in (await world.reconcile_broker(SHOP))["address"]


async def test_a_triggers_broker_as_a_sink_is_found_with_an_audience(world: OperatorWorld) -> None:
    """What we send carries no token yet: the address is as good as before for others."""
    switch(world, "enabled")
    await world.reconcile_broker(SHOP)
    world.declare_trigger(SHOP, "mail")
    status = await world.reconcile_trigger(SHOP, "mail")
    assert condition(status, "Ready")["status"] == "True"


async def test_a_channels_address_has_an_audience_too() -> None:
    async with running_channels() as world:
        await _channel_is_authenticated(world)


async def _channel_is_authenticated(world: ChannelWorld) -> None:
    switch(world, "enabled")
    world.declare_channel(SHOP, "orders")
    status = await world.reconcile_channel(SHOP, "orders")
    audience = "messaging.knative.dev/kafkachannel/shop/orders"
    assert status["address"]["audience"] == audience
    assert status["addresses"] == [status["address"]]
    template = receiver(world, "knafka", "kafka-channel-receiver")["spec"]["template"]
    assert [each["name"] for each in template["spec"]["volumes"]] == ["api"]
