"""Whose Secret goes where: a Broker has those of its namespace, and what the installation names."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from support.operator_world import INSTALLATION, OperatorWorld, condition, running_operator

from knafka_operator.model.resources import CORE

pytestmark = pytest.mark.looptime

SHOP = "shop"
CHANNELS = {"apiVersion": CORE, "kind": "ConfigMap", "namespace": "knafka"}
ELSEWHERE = {"apiVersion": CORE, "kind": "ConfigMap", "namespace": "bank"}
SASL = {"protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "user": "u", "password": "theirs"}


@pytest.fixture
async def world() -> AsyncIterator[OperatorWorld]:
    async with running_operator() as world:
        yield world


def _password_of(world: OperatorWorld) -> list[str]:
    """What was sent to any server."""
    return [each["sasl.password"] for each in world.connected if "sasl.password" in each]


def _copies(world: OperatorWorld) -> list[str]:
    secrets = [each["metadata"] for each in world.cluster.of("Secret")]
    return [each["name"] for each in secrets if each["namespace"] == SHOP]


@pytest.mark.parametrize("project", [True, False])
async def test_no_other_config_map_of_the_operators_namespace_gives_its_secret_away(
    world: OperatorWorld, project: bool
) -> None:
    """That of all channels names another Secret, which is not for tenants."""
    world.declare_secret("knafka", "channels", **SASL)
    data = {"bootstrap.servers": "kafka:9092", "auth.secret.ref.name": "channels"}
    world.configure("knafka", "kafka-channel-config", **data)
    await world.restart(project_secrets=project)
    world.declare_broker(SHOP, config={**CHANNELS, "name": "kafka-channel-config"})
    found = condition(await world.reconcile_broker(SHOP), "ConfigParsed")
    assert (found["status"], found["reason"]) == ("False", "ConfigMapNotAllowed")
    assert "knafka/kafka-broker-config" in found["message"], "it says what to do"
    assert _password_of(world) == []
    assert _copies(world) == []


async def test_one_that_an_administrator_offers_to_all_may_be_named(world: OperatorWorld) -> None:
    world.declare_secret("knafka", "other", **SASL)
    data = {"bootstrap.servers": "other:9092", "auth.secret.ref.name": "other"}
    world.configure("knafka", "other", **data)
    stored = world.cluster.objects[CORE, "ConfigMap", "knafka", "other"]
    stored["metadata"]["labels"] = {"knafka.dev/broker-config": "true"}
    world.declare_broker(SHOP, config={**CHANNELS, "name": "other"})
    found = condition(await world.reconcile_broker(SHOP), "ConfigParsed")
    assert found["reason"] == "SecretNotProjected"
    assert _password_of(world) == []
    await world.restart(project_secrets=True)
    assert condition(await world.reconcile_broker(SHOP), "Ready")["status"] == "True"
    assert _copies(world) == ["default-kn-kafka"]


async def test_whether_a_config_map_of_the_operators_is_there_is_not_told(
    world: OperatorWorld,
) -> None:
    world.declare_broker(SHOP, config={**CHANNELS, "name": "guessed"})
    found = condition(await world.reconcile_broker(SHOP), "ConfigParsed")
    assert found["reason"] == "ConfigMapNotAllowed"


async def test_the_installations_own_may_be_named(world: OperatorWorld) -> None:
    world.declare_secret("knafka", "kafka", **SASL)
    data = {"bootstrap.servers": "kafka:9092", "auth.secret.ref.name": "kafka"}
    world.configure(*INSTALLATION, **data)
    await world.restart(project_secrets=True)
    world.declare_broker(SHOP, config={**CHANNELS, "name": INSTALLATION[1]})
    assert condition(await world.reconcile_broker(SHOP), "Ready")["status"] == "True"
    assert _copies(world) == ["default-kn-kafka"]


async def test_a_broker_of_the_operators_namespace_may_name_any_there(
    world: OperatorWorld,
) -> None:
    world.declare_secret("knafka", "other", **SASL)
    data = {"bootstrap.servers": "kafka:9092", "auth.secret.ref.name": "other"}
    world.configure("knafka", "other", **data)
    world.declare_broker("knafka", config={**CHANNELS, "name": "other"})
    assert condition(await world.reconcile_broker("knafka"), "Ready")["status"] == "True"


@pytest.mark.parametrize("servers", ["kafka:9092", "thief:9092", None])
async def test_another_namespaces_secret_is_sent_nowhere_before_it_is_refused(
    world: OperatorWorld, servers: str | None
) -> None:
    world.declare_secret("bank", "theirs", **SASL)
    data = {"auth.secret.ref.name": "theirs"}
    if servers is not None:
        data["bootstrap.servers"] = servers
    world.configure("bank", "theirs", **data)
    world.declare_broker(SHOP, config={**ELSEWHERE, "name": "theirs"})
    for _ in range(2):
        found = condition(await world.reconcile_broker(SHOP), "ConfigParsed")
        assert (found["status"], found["reason"]) == ("False", "SecretNotProjected")
    await world.delete_broker(SHOP)
    assert _password_of(world) == []


async def test_another_namespaces_config_map_without_a_secret_may_be_named(
    world: OperatorWorld,
) -> None:
    """Upstream's Brokers name one of knative-eventing."""
    world.configure("bank", "open", **{"bootstrap.servers": "kafka:9092"})
    world.declare_broker(SHOP, config={**ELSEWHERE, "name": "open"})
    assert condition(await world.reconcile_broker(SHOP), "Ready")["status"] == "True"
