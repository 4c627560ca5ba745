"""What the operator doesn't do for a Secret that a user wrote: lend its identity, ask its pod."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
from support.operator_world import INSTALLATION, OperatorWorld, condition, running_operator

from knafka.core.errors import InvalidDocument
from knafka.core.kafka_settings.kafka_secret import for_java, for_librdkafka
from knafka_operator.model.kafka_trust import AWS_ROLES, AWS_SERVERS, KafkaTrust, parse_patterns
from knafka_operator.model.resources import CORE
from knafka_operator.model.settings import Settings

pytestmark = pytest.mark.looptime

SHOP = "shop"
MINE = {"apiVersion": CORE, "kind": "ConfigMap", "name": "mine"}
SERVER = "b-1.events.abc.kafka.eu-west-1.amazonaws.com:9098"
ARN = "arn:aws:iam::123456789012:role/kafka"
MSK = {
    "protocol": "SASL_SSL",
    "sasl.mechanism": "OAUTHBEARER",
    "tokenProvider": "MSKAccessTokenProvider",
    "awsRegion": "eu-west-1",
}
MSK_ROLE = {**MSK, "tokenProvider": "MSKRoleAccessTokenProvider", "roleARN": ARN}


def oidc(url: str) -> dict[str, str]:
    return {
        "protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": url,
        "sasl.oauthbearer.client.id": "knafka",
        "sasl.oauthbearer.client.secret": "secret",
    }


@pytest.fixture
async def world() -> AsyncIterator[OperatorWorld]:
    async with running_operator() as world:
        yield world


async def parsed(
    world: OperatorWorld, secret: Mapping[str, str], servers: str = "thief:9098"
) -> Mapping[str, str]:
    """The condition ConfigParsed of a Broker with a ConfigMap and a Secret of its own."""
    world.declare_secret(SHOP, "mine", **secret)
    data = {"bootstrap.servers": servers, "auth.secret.ref.name": "mine"}
    world.configure(SHOP, "mine", **data)
    world.declare_broker(SHOP, config=MINE)
    return condition(await world.reconcile_broker(SHOP), "ConfigParsed")


def connected_to(world: OperatorWorld, servers: str) -> bool:
    return any(each["bootstrap.servers"] == servers for each in world.connected)


# The operator's own identity.


@pytest.mark.parametrize("secret", [MSK, MSK_ROLE], ids=["own", "role"])
async def test_no_server_of_a_tenants_gets_a_token_of_the_operators_identity(
    world: OperatorWorld, secret: Mapping[str, str]
) -> None:
    found = await parsed(world, secret)
    assert (found["status"], found["reason"]) == ("False", "Invalid")
    assert "KNAFKA_AWS_SERVERS" in found["message"]
    assert not connected_to(world, "thief:9098")


async def test_an_allowed_server_does(world: OperatorWorld) -> None:
    await world.restart(aws_servers=("b-*.events.abc.kafka.eu-west-1.amazonaws.com:9098",))
    assert (await parsed(world, MSK, SERVER))["status"] == "True"


@pytest.mark.parametrize(
    "servers", [f"{SERVER},thief:9098", f"SASL_SSL://{SERVER}", f"{SERVER} thief:9098", SERVER[:-1]]
)
async def test_every_server_must_be_allowed(world: OperatorWorld, servers: str) -> None:
    await world.restart(aws_servers=(SERVER,))
    assert (await parsed(world, MSK, servers))["reason"] == "Invalid"
    assert not connected_to(world, servers)


async def test_a_role_must_be_allowed_too(world: OperatorWorld) -> None:
    """Else a tenant takes on every role that trusts the operator."""
    await world.restart(aws_servers=(SERVER,))
    found = await parsed(world, MSK_ROLE, SERVER)
    assert found["reason"] == "Invalid"
    assert "KNAFKA_AWS_ROLES" in found["message"]
    await world.restart(aws_servers=(SERVER,), aws_roles=(ARN,))
    assert (await parsed(world, MSK_ROLE, SERVER))["status"] == "True"


async def test_neither_does_the_installations_server_for_a_tenants_secret(
    world: OperatorWorld,
) -> None:
    """Else she acts there as the operator, or has it take on any role."""
    world.declare_secret(SHOP, "mine", **MSK_ROLE)
    world.configure(SHOP, "mine", **{"auth.secret.ref.name": "mine"})
    world.declare_broker(SHOP, config=MINE)
    found = condition(await world.reconcile_broker(SHOP), "ConfigParsed")
    assert found["reason"] == "Invalid"


async def test_the_installations_own_secret_needs_no_list(world: OperatorWorld) -> None:
    world.declare_secret("knafka", "kafka", **MSK)
    data = {"bootstrap.servers": SERVER, "auth.secret.ref.name": "kafka"}
    world.configure(*INSTALLATION, **data)
    await world.restart(project_secrets=True)
    world.declare_broker(SHOP)
    assert condition(await world.reconcile_broker(SHOP), "Ready")["status"] == "True"


async def test_neither_is_lent_to_what_a_service_says_when_an_operator_begins(
    world: OperatorWorld,
) -> None:
    """Services lie in tenants' namespaces, and are read before anything is reconciled."""
    await world.restart(aws_servers=(SERVER,))
    await parsed(world, MSK, SERVER)
    world.declare_trigger(SHOP, "orders")
    await world.reconcile_trigger(SHOP, "orders")
    world.connected.clear()
    await world.restart()
    assert await world.operator.resume() == 0
    assert world.connected == []


@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SSL"])
@pytest.mark.parametrize("translate", [for_librdkafka, for_java])
def test_a_token_of_an_identity_is_only_shown_to_a_server_that_proves_who_it_is(
    translate: Any, protocol: str
) -> None:
    secret = {**MSK, "protocol": protocol, "user.skip": "true"}
    if protocol == "SSL":
        assert "OAUTHBEARER" not in str(translate(secret)), "no token is asked for"
        return
    with pytest.raises(InvalidDocument, match="want SASL_SSL"):
        translate(secret)


def test_the_lists_are_patterns_and_what_is_none_is_told() -> None:
    environment = {
        "KNAFKA_NAMESPACE": "knafka",
        "KNAFKA_IMAGE": "knafka",
        AWS_SERVERS: "B-*.example.com:9098, other:9098",
        AWS_ROLES: ARN,
    }
    settings = Settings.from_environment(environment)
    assert settings.kafka_trust == KafkaTrust(
        aws_servers=("b-*.example.com:9098", "other:9098"), aws_roles=(ARN,)
    )
    for name, text in ((AWS_SERVERS, "example.com"), (AWS_ROLES, "kafka")):
        with pytest.raises(InvalidDocument, match=name):
            parse_patterns(text, name)


# Token endpoints.


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/latest/meta-data",
        "http://127.0.0.1:8080/metrics",
        "https://0x7f000001/",
        "http://[::1]/",
        "http://metadata.google.internal/computeMetadata/v1/instance/service-accounts/",
    ],
)
async def test_no_token_endpoint_leads_to_the_operators_pod_or_node(
    world: OperatorWorld, url: str
) -> None:
    found = await parsed(world, oidc(url), "kafka:9093")
    assert (found["status"], found["reason"]) == ("False", "Invalid")
    assert "KNAFKA_LOCAL_ADDRESSES" in found["message"]
    assert not connected_to(world, "kafka:9093")
    await world.restart(local_addresses=True)
    assert (await parsed(world, oidc(url), "kafka:9093"))["status"] == "True"


async def test_neither_does_one_by_a_name_of_its_own(
    world: OperatorWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def getaddrinfo(host: str, *_: Any, **__: Any) -> list[Any]:
        if host != "login.thief.test":
            raise socket.gaierror("no such host")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("169.254.169.254", 0))]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    found = await parsed(world, oidc("https://login.thief.test/token"), "kafka:9093")
    assert found["reason"] == "Invalid"
    assert "link-local" in found["message"]
    found = await parsed(world, oidc("https://login.unknown.test/token"), "kafka:9093")
    assert found["status"] == "True", "that there is no such name is Kafka's client's to tell"


def test_a_url_that_cannot_be_read_has_no_host() -> None:
    KafkaTrust().check("kafka:9093", oidc("http://[::1"))
