"""As whom Triggers and Subscriptions send, and who may ask for their tokens (issue 38)."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.channel_entries import eventing, subscription
from support.channel_world import ChannelWorld, running_channels
from support.operator_world import OperatorWorld, condition, running_operator

from knafka.core.contract import Egress
from knafka.core.documents import parse_json
from knafka.settings import API_FOLDER, EGRESS, OIDC_URL
from knafka_operator.decisions.status import OIDC_IDENTITY_CREATED
from knafka_operator.functions import service_accounts, services
from knafka_operator.kafka import shards
from knafka_operator.model.cluster import NotAllowed
from knafka_operator.model.resources import CORE, EVENTING, RBAC, SERVING, Resource

SHOP = "shop"
ROOT = Path(__file__).resolve().parents[2]
MAIL = "mailoidc-eventing.knative.dev-trigger"
WANTS = {"uri": "http://there/", "audience": "there"}
SHARED = {"knafka.dev/isolation": "shared"}


def switch(world: OperatorWorld, state: str) -> None:
    world.configure("knative-eventing", "config-features", **{"authentication-oidc": state})


@pytest.fixture
async def world() -> AsyncIterator[OperatorWorld]:
    async with running_operator() as world:
        world.declare_broker(SHOP)
        switch(world, "enabled")
        await world.reconcile_broker(SHOP)
        yield world


@pytest.fixture
async def channels() -> AsyncIterator[ChannelWorld]:
    async with running_channels() as world:
        switch(world, "enabled")
        world.declare_channel(SHOP, "orders")
        await world.reconcile_channel(SHOP, "orders")
        yield world


def stored(world: OperatorWorld, kind: str, name: str = MAIL, namespace: str = SHOP) -> Any:
    version = CORE if kind == "ServiceAccount" else RBAC
    return world.cluster.objects.get((version, kind, namespace, name))


def pod(world: OperatorWorld, name: str, namespace: str = SHOP) -> Mapping[str, Any]:
    service = world.cluster.objects[SERVING, "Service", namespace, name]
    spec: Mapping[str, Any] = service["spec"]["template"]["spec"]
    return spec


def egress(world: OperatorWorld, name: str = "mail-kn-dispatcher") -> Egress:
    text = services.environment_of(pod(world, name)["containers"][0])[EGRESS]
    return parse_json(Egress, text)


def shows_tokens(spec: Mapping[str, Any]) -> bool:
    """Whether a pod has what asking for tokens takes; fails for a half of it."""
    asks = OIDC_URL in services.environment_of(spec["containers"][0])
    mounts = [each["mountPath"] for each in spec["containers"][0].get("volumeMounts", ())]
    assert asks == (API_FOLDER in mounts) == ("serviceAccountName" in spec)
    assert spec["automountServiceAccountToken"] is False
    return asks


def subjects(world: OperatorWorld, name: str = MAIL) -> list[tuple[str, str]]:
    binding = stored(world, "RoleBinding", name)
    assert binding["roleRef"] == {
        "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name,
    }  # fmt: skip
    return [(each["namespace"], each["name"]) for each in binding["subjects"]]


def rules(world: OperatorWorld, name: str = MAIL) -> Any:
    return stored(world, "Role", name)["rules"]


def only(name: str) -> list[dict[str, list[str]]]:
    return [
        {
            "apiGroups": [""],
            "resources": ["serviceaccounts/token"],
            "resourceNames": [name],
            "verbs": ["create"],
        }
    ]


@pytest.mark.parametrize(
    ("name", "account"),
    [
        ("mail", MAIL),
        ("a.b-c", "a.b-coidc-eventing.knative.dev-trigger"),
        ("x" * 30, "x" * 30 + "oidc-eventing.knative.dev-trigger"),
        ("x" * 31, "x{31}[0-9a-f]{32}"),
        ("x" * 253, "x{31}[0-9a-f]{32}"),
    ],
)
def test_an_account_has_upstreams_name(name: str, account: str) -> None:
    metadata = {"namespace": SHOP, "name": name}
    document = {"apiVersion": EVENTING, "kind": "Trigger", "metadata": metadata}
    found = service_accounts.account_name(Resource.model_validate(document))
    assert re.fullmatch(account, found)
    assert len(found) <= 63


async def test_without_the_feature_there_is_no_account_and_no_token(world: OperatorWorld) -> None:
    """An audience that somebody declared is shown to nobody, and costs nothing."""
    switch(world, "disabled")
    await world.reconcile_broker(SHOP)
    world.declare_trigger(SHOP, "mail", subscriber=WANTS)
    status = await world.reconcile_trigger(SHOP, "mail")
    found = condition(status, OIDC_IDENTITY_CREATED)
    assert (found["status"], found["reason"]) == ("True", "OIDCFeatureDisabled")
    assert status.get("auth") is None
    assert status.get("subscriberAudience") is None
    assert stored(world, "ServiceAccount") is None
    assert not shows_tokens(pod(world, "mail-kn-dispatcher"))
    assert egress(world).subscriber.audience is None
    assert not egress(world).needs_tokens


@pytest.mark.conformance("KN-TRG-11")
async def test_a_trigger_has_an_account_of_its_own(world: OperatorWorld) -> None:
    world.declare_trigger(SHOP, "mail")
    status = await world.reconcile_trigger(SHOP, "mail")
    assert condition(status, OIDC_IDENTITY_CREATED)["status"] == "True"
    assert "reason" not in condition(status, OIDC_IDENTITY_CREATED)
    assert condition(status, "Ready")["status"] == "True"
    assert status["auth"] == {"serviceAccountName": MAIL}
    account = stored(world, "ServiceAccount")
    (owner,) = account["metadata"]["ownerReferences"]
    uid = world.document("Trigger", SHOP, "mail")["metadata"]["uid"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("Trigger", "mail", uid)
    assert account["automountServiceAccountToken"] is False


async def test_where_nobody_wants_a_token_nobody_may_ask_for_one(world: OperatorWorld) -> None:
    world.declare_trigger(SHOP, "mail")
    await world.reconcile_trigger(SHOP, "mail")
    assert stored(world, "Role") is None
    assert stored(world, "RoleBinding") is None
    assert not shows_tokens(pod(world, "mail-kn-dispatcher"))
    assert egress(world).service_account is None


async def test_a_dispatcher_that_shows_tokens_may_ask_for_those_of_its_trigger_only(
    world: OperatorWorld,
) -> None:
    sink = {"uri": "http://dead/", "audience": "dead"}
    world.declare_trigger(SHOP, "mail", subscriber=WANTS, delivery={"deadLetterSink": sink})
    status = await world.reconcile_trigger(SHOP, "mail")
    assert (status["subscriberAudience"], status["deadLetterSinkAudience"]) == ("there", "dead")
    assert rules(world) == only(MAIL)
    assert subjects(world) == [(SHOP, "mail-kn-dispatcher"), (SHOP, "default-kn-shards")]
    spec = pod(world, "mail-kn-dispatcher")
    assert shows_tokens(spec)
    assert spec["serviceAccountName"] == "mail-kn-dispatcher", "not the one that is shown"
    assert stored(world, "ServiceAccount", "mail-kn-dispatcher") is not None
    found = egress(world)
    assert found.service_account == MAIL
    assert found.dead_letter_sink is not None
    assert (found.subscriber.audience, found.dead_letter_sink.audience) == ("there", "dead")


async def test_an_addressable_says_its_audience(world: OperatorWorld) -> None:
    """KN-DST: the audience of `status.address`, unless the Trigger names another one."""
    address = {"url": "http://there/", "audience": "of-its-status"}
    world.declare_service(SHOP, "there", {"address": address})
    ref = {"apiVersion": SERVING, "kind": "Service", "name": "there"}
    world.declare_trigger(SHOP, "mail", subscriber={"ref": ref})
    status = await world.reconcile_trigger(SHOP, "mail")
    assert status["subscriberAudience"] == "of-its-status"
    world.declare_trigger(SHOP, "mail", subscriber={"ref": ref, "audience": "declared"})
    assert (await world.reconcile_trigger(SHOP, "mail"))["subscriberAudience"] == "declared"


async def test_a_trigger_that_sends_to_a_broker_shows_a_token_for_it(world: OperatorWorld) -> None:
    world.declare_broker(SHOP, "second")
    await world.reconcile_broker(SHOP, "second")
    ref = {"apiVersion": EVENTING, "kind": "Broker", "name": "second"}
    world.declare_trigger(SHOP, "mail", subscriber={"ref": ref})
    await world.reconcile_trigger(SHOP, "mail")
    assert egress(world).subscriber.audience == "eventing.knative.dev/broker/shop/second"


async def test_the_dispatchers_of_many_run_as_an_account_of_their_brokers(
    world: OperatorWorld,
) -> None:
    world.declare_trigger(SHOP, "mail", annotations=SHARED, subscriber=WANTS)
    world.declare_trigger(SHOP, "plain", annotations=SHARED)
    for name in ("mail", "plain"):
        status = await world.reconcile_trigger(SHOP, name)
        assert condition(status, "Ready")["status"] == "True"
    spec = pod(world, "default-kn-shard-0")
    assert shows_tokens(spec)
    assert spec["serviceAccountName"] == "default-kn-shards"
    (owner,) = stored(world, "ServiceAccount", "default-kn-shards")["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"]) == ("Broker", "default")
    assert subjects(world) == [(SHOP, "mail-kn-dispatcher"), (SHOP, "default-kn-shards")]
    assert stored(world, "Role", "plainoidc-eventing.knative.dev-trigger") is None


async def test_an_account_that_somebody_else_made_is_not_taken(world: OperatorWorld) -> None:
    metadata = {"namespace": SHOP, "name": MAIL, "uid": "theirs"}
    world.cluster.put({"apiVersion": CORE, "kind": "ServiceAccount", "metadata": metadata})
    world.declare_trigger(SHOP, "mail", subscriber=WANTS)
    status = await world.reconcile_trigger(SHOP, "mail")
    found = condition(status, OIDC_IDENTITY_CREATED)
    assert (found["status"], found["reason"]) == ("False", "ServiceAccountNotOwned")
    assert f"ServiceAccount {MAIL} exists and was not made for this Trigger" in found["message"]
    assert condition(status, "Ready")["status"] == "False"
    assert stored(world, "Role") is None
    assert (SERVING, "Service", SHOP, "mail-kn-dispatcher") not in world.cluster.objects


@pytest.mark.parametrize("kind", ["ServiceAccount", "Role", "RoleBinding"])
async def test_a_right_that_the_operator_lacks_is_said_and_stops_nothing(
    world: OperatorWorld, kind: str
) -> None:
    world.declare_trigger(SHOP, "mail")
    await world.reconcile_trigger(SHOP, "mail")
    before = egress(world)
    world.declare_trigger(SHOP, "mail", subscriber=WANTS)
    world.cluster.refuse("apply", kind, error=NotAllowed(f"can't apply {kind} {MAIL}"))
    status = await world.reconcile_trigger(SHOP, "mail")
    world.cluster.permit()
    found = condition(status, OIDC_IDENTITY_CREATED)
    assert (found["status"], found["reason"]) == ("False", "ServiceAccountNotCreated")
    assert f"can't apply {kind}" in found["message"]
    assert egress(world) == before, "what delivered goes on"


async def test_turned_off_it_is_all_taken_away(world: OperatorWorld) -> None:
    world.declare_trigger(SHOP, "mail", subscriber=WANTS)
    await world.reconcile_trigger(SHOP, "mail")
    switch(world, "disabled")
    await world.reconcile_broker(SHOP)
    await world.reconcile_trigger(SHOP, "mail")
    assert [stored(world, each) for each in ("ServiceAccount", "Role", "RoleBinding")] == [None] * 3
    assert stored(world, "ServiceAccount", "mail-kn-dispatcher") is None
    assert not shows_tokens(pod(world, "mail-kn-dispatcher"))
    status = world.document("Trigger", SHOP, "mail")["status"]
    assert "auth" not in status
    assert "subscriberAudience" not in status


async def test_a_status_that_names_anothers_account_deletes_nothing(world: OperatorWorld) -> None:
    """Somebody who may write a Trigger's status could name any."""
    metadata = {"namespace": SHOP, "name": "victim", "uid": "theirs"}
    world.cluster.put({"apiVersion": CORE, "kind": "ServiceAccount", "metadata": metadata})
    switch(world, "disabled")
    await world.reconcile_broker(SHOP)
    world.declare_trigger(SHOP, "mail")
    trigger = world.cluster.objects[EVENTING, "Trigger", SHOP, "mail"]
    trigger["status"] = {"auth": {"serviceAccountName": "victim"}}
    await world.reconcile_trigger(SHOP, "mail")
    assert stored(world, "ServiceAccount", "victim") is not None


SUBSCRIBED = "mailoidc-messaging.knative.dev-subscription"
DISPATCHERS = ("knafka", "knafka-channel-dispatchers")


@pytest.mark.conformance("KN-SUB-06")
async def test_a_subscription_has_an_account_of_its_own_too(channels: ChannelWorld) -> None:
    reply = {"uri": "http://replies/", "audience": "replies"}
    channels.declare_subscription(SHOP, "mail", "orders", subscriber=WANTS, reply=reply)
    status = await channels.reconcile_subscription(SHOP, "mail")
    assert condition(status, OIDC_IDENTITY_CREATED)["status"] == "True"
    assert condition(status, "Ready")["status"] == "True"
    assert status["auth"] == {"serviceAccountName": SUBSCRIBED}
    physical = status["physicalSubscription"]
    assert (physical["subscriberAudience"], physical["replyAudience"]) == ("there", "replies")
    assert rules(channels, SUBSCRIBED) == only(SUBSCRIBED)
    assert subjects(channels, SUBSCRIBED) == [DISPATCHERS]
    await channels.reconcile_channel(SHOP, "orders")
    (entry,) = channels.stored("KafkaChannel", SHOP, "orders")["spec"]["subscribers"]
    assert (entry["subscriberAudience"], entry["replyAudience"]) == ("there", "replies")
    assert entry["auth"] == {"serviceAccountName": SUBSCRIBED}


async def test_dispatchers_of_channels_run_as_the_account_that_the_installation_has(
    channels: ChannelWorld,
) -> None:
    channels.declare_subscription(SHOP, "mail", "orders", subscriber=WANTS)
    channels.declare_subscription(
        SHOP, "own", "orders", {"knafka.dev/isolation": "own"}, subscriber=WANTS
    )
    for name in ("mail", "own"):
        await channels.reconcile_subscription(SHOP, name)
    found = {
        name: pod(channels, name, "knafka")
        for (_, kind, namespace, name) in channels.cluster.objects
        if (kind, namespace) == ("Service", "knafka") and ("shard" in name or "dispatcher" in name)
    }
    assert len(found) == 2
    for spec in found.values():
        assert shows_tokens(spec)
        assert spec["serviceAccountName"] == DISPATCHERS[1]
    made = yaml.safe_load_all((ROOT / "operator/deploy/channels/rbac.yaml").read_text())
    accounts = [each["metadata"] for each in made if each["kind"] == "ServiceAccount"]
    assert [(each["namespace"], each["name"]) for each in accounts] == [DISPATCHERS]


def entry_of(world: ChannelWorld) -> Egress | None:
    records = [
        shards.read_shared_egresses(partitions[0])
        for topic, partitions in world.log.topics.items()
        if topic.startswith("knafka-contract-shop")
    ]
    found = [each.egress for record in records for each in record.values()]
    return found[0] if found else None


@pytest.mark.parametrize(
    ("named", "is_delivered"),
    [(SUBSCRIBED, True), ("admin", False), (None, False)],
)
async def test_an_entry_has_tokens_of_its_subscriptions_account_and_of_no_other(
    channels: ChannelWorld, named: str | None, is_delivered: bool
) -> None:
    """Who may write a KafkaChannel may not have tokens of any account sent where he likes."""
    eventing(channels)
    uid = subscription(channels, "mail")
    auth = {} if named is None else {"auth": {"serviceAccountName": named}}
    more = {"subscriberAudience": "there", "name": "mail", **auth}
    channels.declare_entry(SHOP, "orders", uid, "http://mail/", **more)
    await channels.look()
    assert stored(channels, "Role", "admin") is None
    assert (stored(channels, "Role", SUBSCRIBED) is not None) == is_delivered
    assert stored(channels, "ServiceAccount", SUBSCRIBED) is None, "Knative Eventing makes it"
    found = entry_of(channels)
    assert (found is not None) == is_delivered
    if found is not None:
        assert (found.service_account, found.subscriber.audience) == (SUBSCRIBED, "there")
