"""The leader of channels beside Knative Eventing, on a small API server: what it hears of, writes
and lets go."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import kubernetes
import pytest
from support.api_server import ApiServer, api_server
from support.leader import Leader
from support.memory.log import MemoryLog
from support.waiting import until

from knafka.core import names
from knafka_operator.channels import entry_cluster as entries
from knafka_operator.installation.handler import EVENTING_DEFINITION, EVENTING_FINALIZER, Handler
from knafka_operator.model.channels import KAFKA_CHANNEL_VERSIONS, MESSAGING, PROMISE
from knafka_operator.model.resources import CORE, FINALIZER

pytestmark = pytest.mark.slow

VERSION = KAFKA_CHANNEL_VERSIONS[0]
DEFINITIONS = "apiextensions.k8s.io/v1", "CustomResourceDefinition", ""
UID = "0d4d51a9-7d9c-4b5e-8f3f-6a4a1a6f0f11"


class World:
    """One leader, and a channel."""

    def __init__(
        self, server: ApiServer, client: kubernetes.client.ApiClient, *, eventing: bool
    ) -> None:
        """`eventing`: Knative Eventing is there."""
        self.server = server
        server.kinds[VERSION] = {"KafkaChannel": "kafkachannels"}
        server.kinds[MESSAGING] = {"Subscription": "subscriptions"}
        data = {"bootstrap.servers": "kafka:9092"}
        server.put(CORE, "ConfigMap", "knafka", "kafka-channel-config", data=data)
        self.server.put(VERSION, "KafkaChannel", "shop", "orders", spec={})
        if eventing:
            server.put(*DEFINITIONS, EVENTING_DEFINITION)
        self.log = MemoryLog()
        self.leader = Leader(client, self.log)
        self.channels = self.leader.channels

    def list_entries(self, *listed: Mapping[str, Any]) -> None:
        spec = {"subscribers": [dict(each) for each in listed]}
        self.server.put(VERSION, "KafkaChannel", "shop", "orders", spec=spec)

    def subscription(self, name: str, **metadata: Any) -> str:
        to = {"apiVersion": VERSION, "kind": "KafkaChannel", "name": "orders"}
        spec = {"channel": to, "subscriber": {"uri": "http://there/"}}
        self.server.put(MESSAGING, "Subscription", "shop", name, spec=spec, metadata=metadata)
        return str(self.stored("Subscription", name)["metadata"]["uid"])

    def stored(self, kind: str, name: str) -> dict[str, Any]:
        version = VERSION if kind == "KafkaChannel" else MESSAGING
        return self.server.found(version, kind, "shop", name) or {}

    def reported(self) -> dict[str, str]:
        status = self.stored("KafkaChannel", "orders").get("status") or {}
        return {each["uid"]: each["ready"] for each in status.get("subscribers") or ()}

    def events(self) -> set[str]:
        """Kind and reason of each Event."""
        found = [each for path, each in list(self.server.objects.items()) if "/events/" in path]
        return {f"{each['involvedObject']['kind']} {each['reason']}" for each in found}


def entry(uid: str, uri: str = "http://there/", **more: Any) -> dict[str, Any]:
    return {"uid": uid, "generation": 1, "subscriberUri": uri, **more}


@asynccontextmanager
async def _leading(eventing: bool) -> AsyncIterator[World]:
    with api_server() as (server, client):
        world = World(server, client, eventing=eventing)
        try:
            yield world
        finally:
            await world.leader.close()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with _leading(eventing=True) as world:
        yield world


@pytest.fixture
async def alone() -> AsyncIterator[World]:
    async with _leading(eventing=False) as world:
        yield world


@pytest.mark.parametrize("kept_for", [0.5, 0.0], ids=["seen missing first", "seen too late"])
async def test_an_entry_is_ready_soon_and_goes_with_its_group(
    world: World, monkeypatch: pytest.MonkeyPatch, kept_for: float
) -> None:
    """KN-CHN-05, DSP-10."""
    monkeypatch.setattr(entries, "MISSING_ENTRY_SECONDS", kept_for)
    world.list_entries(entry(UID))
    await until(lambda: world.reported() == {UID: "True"})
    group = names.subscription_group("shop", "orders", UID)
    assert group in world.log.groups
    world.list_entries()
    await until(lambda: world.reported() == {})
    await until(lambda: group not in world.log.groups)

    def is_forgotten() -> bool:
        status = world.stored("KafkaChannel", "orders")["status"]
        return PROMISE + UID not in status["annotations"] and not world.channels.states.triggers

    await until(is_forgotten)
    assert world.events() <= {"KafkaChannel Ready"}


async def test_knative_eventings_subscription_is_never_written(world: World) -> None:
    """Our finalizer, from before it came, is taken away: else it could not be deleted."""
    assert world.channels.entries is not None
    uid = world.subscription("mail", finalizers=["theirs", FINALIZER])
    await until(
        lambda: world.stored("Subscription", "mail")["metadata"]["finalizers"] == ["theirs"]
    )
    assert world.channels.entries.handling.handler is Handler.EVENTING
    world.list_entries(entry(uid, name="mail"))
    await until(lambda: world.reported() == {uid: "True"})
    assert "status" not in world.stored("Subscription", "mail")
    listed = world.stored("KafkaChannel", "orders")["spec"]["subscribers"]
    assert listed == [entry(uid, name="mail")]


async def test_it_is_noticed_when_knative_eventing_comes_and_goes(alone: World) -> None:
    """Its Subscriptions go on being delivered, at the same group."""
    world = alone
    uid = world.subscription("mail")
    await until(lambda: world.reported() == {uid: "True"})
    (ours,) = world.stored("KafkaChannel", "orders")["spec"]["subscribers"]
    assert FINALIZER in world.stored("Subscription", "mail")["metadata"]["finalizers"]
    world.server.put(*DEFINITIONS, EVENTING_DEFINITION)
    await until(lambda: not world.stored("Subscription", "mail")["metadata"].get("finalizers"))
    world.list_entries({**ours, "subscriberUri": "http://eventing/", "generation": 2})

    def delivers_to(url: str) -> bool:
        watched = list(world.channels.triggers.watched.values())
        return [each.egress.subscriber.url for each in watched] == [url]

    await until(lambda: delivers_to("http://eventing/"))
    world.server.remove(*DEFINITIONS, EVENTING_DEFINITION)
    await until(lambda: delivers_to("http://there/"))
    await until(lambda: bool(world.stored("Subscription", "mail")["metadata"].get("finalizers")))
    assert set(world.log.groups) >= {names.subscription_group("shop", "orders", uid)}


async def test_a_subscription_goes_though_knative_eventing_left_its_finalizer(alone: World) -> None:
    """Issue 30: Knative Eventing was removed, and deletion and namespace hung with READY True."""
    uid = alone.subscription("mail", finalizers=[EVENTING_FINALIZER])
    await until(lambda: alone.reported() == {uid: "True"})
    finalizers = alone.stored("Subscription", "mail")["metadata"]["finalizers"]
    assert finalizers == [EVENTING_FINALIZER, FINALIZER], "while it isn't deleted, it stays"
    alone.server.remove(MESSAGING, "Subscription", "shop", "mail")
    await until(lambda: alone.stored("Subscription", "mail") == {})
    assert alone.events() >= {"Subscription Ready"}


async def test_others_finalizers_are_never_taken_off(alone: World) -> None:
    uid = alone.subscription("mail", finalizers=["theirs", EVENTING_FINALIZER])
    await until(lambda: alone.reported() == {uid: "True"})
    alone.server.remove(MESSAGING, "Subscription", "shop", "mail")
    await until(
        lambda: alone.stored("Subscription", "mail")["metadata"]["finalizers"] == ["theirs"]
    )


async def test_where_its_controller_may_be_there_an_event_says_what_to_do(alone: World) -> None:
    """KNAFKA_SUBSCRIPTIONS=own, and Knative Eventing's CustomResourceDefinitions are there."""
    assert alone.channels.entries is not None
    handling = alone.channels.entries.handling
    handling.declared = Handler.OWN
    alone.server.put(*DEFINITIONS, EVENTING_DEFINITION)
    await until(lambda: handling.is_eventing_installed)
    uid = alone.subscription("mail", finalizers=[EVENTING_FINALIZER])
    await until(lambda: alone.reported() == {uid: "True"})
    alone.server.remove(MESSAGING, "Subscription", "shop", "mail")
    await until(lambda: "Subscription FinalizerLeft" in alone.events())
    await until(
        lambda: (
            alone.stored("Subscription", "mail")["metadata"]["finalizers"] == [EVENTING_FINALIZER]
        )
    )


async def test_a_subscription_to_a_channel_says_why_not_until_knative_eventing_comes(
    alone: World,
) -> None:
    to = {"apiVersion": MESSAGING, "kind": "Channel", "name": "orders"}
    spec = {"channel": to, "subscriber": {"uri": "http://there/"}}
    alone.server.put(MESSAGING, "Subscription", "shop", "mail", spec=spec)

    def reason() -> str | None:
        status = alone.stored("Subscription", "mail").get("status") or {}
        reasons = {each["type"]: each.get("reason") for each in status.get("conditions") or ()}
        return reasons.get("ChannelReady")

    await until(lambda: reason() == "ChannelNotServed")


async def test_an_entry_of_a_channel_that_is_deleted_leaves_nothing(world: World) -> None:
    world.list_entries(entry(UID))
    await until(lambda: world.reported() == {UID: "True"})
    world.server.remove(VERSION, "KafkaChannel", "shop", "orders")
    await until(lambda: world.stored("KafkaChannel", "orders") == {})
    assert not any(each.startswith("kafka.shop") for each in world.log.groups)
    await until(lambda: not world.channels.states.triggers)
