"""What the operator makes of `transport-encryption` (issue 38, KN-BRK-20)."""

from __future__ import annotations

import datetime
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
from support.certificates import PEM
from support.channel_world import running_channels
from support.operator_world import OperatorWorld, condition, running_operator
from support.web_certificates import WebAuthority

from knafka.settings import TLS
from knafka_operator.functions import services
from knafka_operator.functions.services import MIN_SCALE, TLS_PATH
from knafka_operator.model.cluster import NotAllowed
from knafka_operator.model.resources import CORE, SERVING, ConfigMap
from knafka_operator.senders.encryption import TLS_SECRET, Encryption

SHOP = "shop"
RECEIVER = "default-kn-receiver"
PATH = f"/{SHOP}/default"
PLAIN = f"http://{RECEIVER}.{SHOP}.svc.cluster.local{PATH}"
UNKNOWN_KEY = """-----BEGIN PRIVATE KEY-----
MC4CAQAwBQYDK2UBBCIEIAEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEB
-----END PRIVATE KEY-----
"""
"""A private key of a kind that is not known (object identifier 1.3.101.1)."""
HOST = f"default-kn-receiver-tls.{SHOP}.svc.cluster.local"
OWN = {TLS_SECRET: "receiver-tls", MIN_SCALE: "1"}


@pytest.fixture
async def world() -> AsyncIterator[OperatorWorld]:
    async with running_operator() as world:
        yield world


@pytest.fixture(scope="module")
def authority() -> WebAuthority:
    return WebAuthority("one")


def switch(world: OperatorWorld, mode: str) -> None:
    world.configure("knative-eventing", "config-features", **{"transport-encryption": mode})


def has_https(world: OperatorWorld, namespace: str, name: str, **more: str) -> None:
    """Knative Serving with `cluster-local-domain-tls`."""
    key = SERVING, "Service", namespace, name
    service = world.cluster.objects[key]
    address = {"url": f"https://{name}.{namespace}.svc.cluster.local", **more}
    world.cluster.objects[key] = {**service, "status": {**service["status"], "address": address}}


def receiver(world: OperatorWorld) -> Mapping[str, Any]:
    found: Mapping[str, Any] = world.cluster.objects[SERVING, "Service", SHOP, RECEIVER]
    return found["spec"]["template"]["spec"]  # type: ignore[no-any-return]


async def declared(world: OperatorWorld, annotations: Mapping[str, str] | None = None) -> Any:
    """The status of a Broker, once Knative has told of its receiver."""
    world.declare_broker(SHOP, annotations=annotations)
    await world.reconcile_broker(SHOP)
    return await world.reconcile_broker(SHOP)


def told(status: Any) -> tuple[str, str, str]:
    found = condition(status, "TransportEncrypted")
    return found["status"], found.get("severity", ""), found.get("reason", "")


@pytest.mark.parametrize(
    ("data", "mode"),
    [
        (None, "disabled"),
        ({}, "disabled"),
        ({"transport-encryption": ""}, "disabled"),
        ({"transport-encryption": "Permissive "}, "permissive"),
        ({"transport-encryption": "strict"}, "strict"),
    ],
)
def test_upstreams_features_say_what_is_encrypted(data: dict[str, str] | None, mode: str) -> None:
    features = None
    if data is not None:
        metadata = {"namespace": "knative-eventing", "name": "config-features"}
        document = {"apiVersion": CORE, "kind": "ConfigMap", "metadata": metadata, "data": data}
        features = ConfigMap.model_validate(document)
    assert Encryption.of(features).mode == mode


async def test_without_the_feature_nothing_is_looked_for(world: OperatorWorld) -> None:
    status = await declared(world, OWN)
    assert status["address"] == {"name": "http", "url": PLAIN}
    assert "addresses" not in status
    assert all(each["type"] != "TransportEncrypted" for each in status["conditions"])
    assert "volumes" not in receiver(world)
    assert not world.entries()[PATH].encrypted_only


async def test_a_mode_that_is_not_known_is_said(world: OperatorWorld) -> None:
    switch(world, "on")
    found = condition(await declared(world), "ConfigParsed")
    assert found["status"] == "False"
    assert "data.transport-encryption: invalid value: on: want disabled" in found["message"]


# By Knative's https.


async def test_permissive_has_both_addresses(world: OperatorWorld) -> None:
    switch(world, "permissive")
    await declared(world)
    has_https(world, SHOP, RECEIVER, CACerts=PEM)
    status = await world.reconcile_broker(SHOP)
    https = {"name": "https", "url": PLAIN.replace("http:", "https:"), "CACerts": PEM}
    plain = {"name": "http", "url": PLAIN}
    assert status["addresses"] == [https, plain]
    assert status["address"] == plain
    assert told(status) == ("True", "Info", "")
    assert not world.entries()[PATH].encrypted_only


async def test_permissive_without_https_says_what_to_do_and_is_ready(world: OperatorWorld) -> None:
    switch(world, "permissive")
    world.declare_broker(SHOP)
    await world.reconcile_broker(SHOP)
    key = SERVING, "Service", SHOP, RECEIVER
    service = world.cluster.objects[key]
    address = {"url": f"http://{RECEIVER}.{SHOP}.svc.cluster.local"}
    world.cluster.objects[key] = {**service, "status": {**service["status"], "address": address}}
    status = await world.reconcile_broker(SHOP)
    assert status["address"] == {"name": "http", "url": PLAIN}
    assert condition(status, "Ready")["status"] == "True"
    assert told(status) == ("False", "Info", "HttpsNotServed")
    message = condition(status, "TransportEncrypted")["message"]
    assert "set cluster-local-domain-tls: Enabled in ConfigMap knative-serving" in message


async def test_strict_has_the_https_address_only(world: OperatorWorld) -> None:
    switch(world, "strict")
    status = await declared(world)
    assert status["address"] is None
    assert condition(status, "Ready")["status"] == "Unknown"
    has_https(world, SHOP, RECEIVER)
    status = await world.reconcile_broker(SHOP)
    assert status["address"] == {"name": "https", "url": PLAIN.replace("http:", "https:")}
    assert told(status) == ("True", "", "")
    assert condition(status, "Ready")["status"] == "True"
    assert world.entries()[PATH].encrypted_only


async def test_strict_without_https_is_not_addressable(world: OperatorWorld) -> None:
    await declared(world)
    switch(world, "strict")
    has_https(world, SHOP, RECEIVER, url=PLAIN.removesuffix(PATH))
    status = await world.reconcile_broker(SHOP)
    assert status["address"] is None
    for each in ("Addressable", "TransportEncrypted", "Ready"):
        assert condition(status, each)["status"] == "False"
        assert condition(status, each)["reason"] == "HttpsNotServed"


async def test_the_feature_may_be_turned_off_again(world: OperatorWorld) -> None:
    switch(world, "strict")
    await declared(world)
    has_https(world, SHOP, RECEIVER)
    await world.reconcile_broker(SHOP)
    switch(world, "disabled")
    status = await world.reconcile_broker(SHOP)
    assert status["address"] == {"name": "http", "url": PLAIN}
    assert status["addresses"] is None
    assert not world.entries()[PATH].encrypted_only


async def test_channels_have_https_by_their_path() -> None:
    async with running_channels() as world:
        switch(world, "permissive")
        world.declare_channel(SHOP, "orders")
        await world.reconcile_channel(SHOP, "orders")
        has_https(world, "knafka", "kafka-channel-receiver", CACerts=PEM)
        status = await world.reconcile_channel(SHOP, "orders")
        https, plain = status["addresses"]
        host = "kafka-channel-receiver.knafka.svc.cluster.local"
        assert https == {"name": "https", "url": f"https://{host}/{SHOP}/orders", "CACerts": PEM}
        assert status["address"] == plain
        switch(world, "strict")
        status = await world.reconcile_channel(SHOP, "orders")
        assert status["address"] == https
        assert status["addresses"] == [https]


# By TLS that the receiver ends itself.


@pytest.fixture
async def own(world: OperatorWorld, authority: WebAuthority) -> OperatorWorld:
    """A Broker whose receiver has a certificate that is good."""
    switch(world, "strict")
    world.declare_secret(SHOP, "receiver-tls", **authority.files(HOST))
    await declared(world, OWN)
    return world


async def test_a_receiver_ends_tls_itself(own: OperatorWorld, authority: WebAuthority) -> None:
    status = await own.reconcile_broker(SHOP)
    url, trusted = f"https://{HOST}{PATH}", authority.certificate
    assert status["address"] == {"name": "https", "url": url, "CACerts": trusted}
    assert condition(status, "Ready")["status"] == "True"
    container = receiver(own)["containers"][0]
    assert services.environment_of(container)[TLS] == TLS_PATH
    assert container["volumeMounts"] == [{"name": "tls", "mountPath": TLS_PATH, "readOnly": True}]
    assert receiver(own)["volumes"] == [
        {"name": "tls", "secret": {"secretName": "receiver-tls", "optional": True}}
    ]
    service = own.cluster.objects[CORE, "Service", SHOP, "default-kn-receiver-tls"]
    labels = own.cluster.objects[SERVING, "Service", SHOP, RECEIVER]["spec"]["template"]
    assert service["spec"]["selector"].items() <= labels["metadata"]["labels"].items()
    assert service["spec"]["ports"][0] == {
        "name": "https", "protocol": "TCP", "port": 443, "targetPort": 8443,
    }  # fmt: skip
    assert service["metadata"]["ownerReferences"][0]["kind"] == "Broker"


async def test_a_renewed_certificate_rolls_nothing(
    own: OperatorWorld, authority: WebAuthority
) -> None:
    before = receiver(own)
    other = WebAuthority("two")
    own.declare_secret(SHOP, "receiver-tls", **other.files(f"*.{SHOP}.svc.cluster.local"))
    status = await own.reconcile_broker(SHOP)
    assert status["address"]["CACerts"] == other.certificate
    assert receiver(own) == before


@pytest.mark.parametrize(
    ("change", "reason", "message"),
    [
        (None, "TLSSecretNotFound", f"have cert-manager make it for {HOST}"),
        ({"tls.key": ""}, "TLSSecretInvalid", "it has no tls.key"),
        ({"tls.crt": "no"}, "TLSSecretInvalid", "tls.crt is no certificate in PEM form"),
        ({"tls.key": "no"}, "TLSSecretInvalid", "tls.key is no private key in PEM form"),
        (
            {"tls.key": UNKNOWN_KEY},
            "TLSSecretInvalid",
            "tls.key is of a kind that is not supported",
        ),
        ({"ca.crt": "no"}, "TLSSecretInvalid", "ca.crt holds no certificates"),
        ("another key", "TLSSecretInvalid", "tls.key is not the key of tls.crt"),
        ("expired", "CertificateExpired", "have it renewed"),
        (
            "another host",
            "CertificateForOtherHost",
            f"is for elsewhere.example: want one for {HOST}",
        ),
    ],
    ids=str,
)
async def test_a_secret_that_nobody_can_connect_by_says_what_to_do(
    own: OperatorWorld, authority: WebAuthority, change: Any, reason: str, message: str
) -> None:
    before, files = receiver(own), authority.files(HOST)
    own.cluster.remove(CORE, "Secret", SHOP, "receiver-tls")
    if isinstance(change, Mapping):
        files |= change
    elif change == "another key":
        files["tls.key"] = authority.files(HOST)["tls.key"]
    elif change == "expired":
        files = authority.files(HOST, lasts=datetime.timedelta(hours=-1))
    elif change == "another host":
        files = authority.files("elsewhere.example")
    if change is not None:
        own.declare_secret(SHOP, "receiver-tls", **files)
    status = await own.reconcile_broker(SHOP)
    found = condition(status, "Addressable")
    assert (found["status"], found["reason"]) == ("False", reason)
    assert message in found["message"]
    assert status["address"] is None
    assert receiver(own) == before, "it shows what it has until there is something better"


async def test_a_receiver_that_knative_may_stop_ends_no_tls(
    world: OperatorWorld, authority: WebAuthority
) -> None:
    """Nobody would wake it: its own TLS is past Knative."""
    switch(world, "permissive")
    world.declare_secret(SHOP, "receiver-tls", **authority.files(HOST))
    status = await declared(world, {TLS_SECRET: "receiver-tls"})
    assert told(status) == ("False", "Info", "TLSNeedsMinScale")
    assert f'{MIN_SCALE}: "1"' in condition(status, "TransportEncrypted")["message"]
    assert condition(status, "Ready")["status"] == "True"
    assert status["address"] == {"name": "http", "url": PLAIN}


async def test_a_service_that_may_not_be_made_says_why(
    world: OperatorWorld, authority: WebAuthority
) -> None:
    switch(world, "strict")
    world.declare_secret(SHOP, "receiver-tls", **authority.files(HOST))
    name, error = "default-kn-receiver-tls", NotAllowed("cannot create services")
    world.cluster.refuse("apply", "Service", name, error=error)
    status = await declared(world, OWN)
    found = condition(status, "Addressable")
    assert (found["status"], found["reason"]) == ("False", "TLSServiceRejected")


async def test_somebody_elses_service_is_left_alone(
    world: OperatorWorld, authority: WebAuthority
) -> None:
    switch(world, "strict")
    world.declare_secret(SHOP, "receiver-tls", **authority.files(HOST))
    metadata = {"namespace": SHOP, "name": "default-kn-receiver-tls", "uid": "mine"}
    mine = {"apiVersion": CORE, "kind": "Service", "metadata": metadata, "spec": {"mine": True}}
    world.cluster.put(mine)
    status = await declared(world, OWN)
    assert condition(status, "Addressable")["reason"] == "ServiceNotOurs"
    kept = world.cluster.objects[CORE, "Service", SHOP, "default-kn-receiver-tls"]
    assert kept["spec"] == {"mine": True}
