"""An operator with KafkaChannels and Subscriptions, between a cluster and a Kafka in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Final

from support.intercepted import Intercepted, Seen
from support.operator_world import SETTINGS, OperatorWorld, condition

from knafka.core.contract import Ingress
from knafka_operator.channels import routes
from knafka_operator.model.channels import KAFKA_CHANNEL_VERSIONS, MESSAGING
from knafka_operator.model.identity import Identity
from knafka_operator.operator import Operator
from knafka_operator.receivers.receivers import read_ingresses

VERSION: Final = KAFKA_CHANNEL_VERSIONS[0]
GATEWAY: Final = "gateway.ingress.svc.cluster.local"
CONTRACT: Final = "knafka-contract-knafka-KafkaChannels-"
UID: Final = "0d4d51a9-7d9c-4b5e-8f3f-6a4a1a6f0f11"


class ChannelWorld(OperatorWorld):
    def __init__(self, seen: Seen = lambda when, call: None) -> None:
        super().__init__(seen)
        self.channels = self._channels()
        self.configure("knafka", "kafka-channel-config", **{"bootstrap.servers": "kafka:9092"})

    def _channels(self, **settings: Any) -> Operator:
        cluster: Any = Intercepted(self.cluster, self._seen)
        return Operator(
            replace(SETTINGS, installation="c0ffee00-0000-4000-8000-000000000000", **settings),
            cluster,
            self._clients(),
            beside=self.operator,
        )

    async def restart(self, **settings: Any) -> None:
        await super().restart(**settings)
        self.channels = self._channels(**settings)

    def add_gateway(self, receiver: str = "kafka-channel-receiver") -> None:
        """Knative has routed to the receiver."""
        metadata = {
            "namespace": "knafka",
            "name": receiver,
            "annotations": {routes.INGRESS_CLASS: "some.ingress.class"},
        }
        status = {"privateLoadBalancer": {"ingress": [{"domainInternal": GATEWAY}]}}
        self.cluster.put(
            {
                "apiVersion": routes.NETWORKING,
                "kind": "Ingress",
                "metadata": metadata,
                "status": status,
            }
        )

    def declare_channel(
        self, namespace: str, name: str, annotations: Mapping[str, str] | None = None, **spec: Any
    ) -> None:
        metadata = {
            "namespace": namespace,
            "name": name,
            "annotations": dict(annotations or {}),
        }
        self.cluster.put(
            {"apiVersion": VERSION, "kind": "KafkaChannel", "metadata": metadata, "spec": spec}
        )

    def declare_subscription(
        self,
        namespace: str,
        name: str,
        channel: str,
        annotations: Mapping[str, str] | None = None,
        **spec: Any,
    ) -> None:
        to = {"apiVersion": VERSION, "kind": "KafkaChannel", "name": channel}
        spec = {"channel": to, "subscriber": {"uri": "http://there/"}, **spec}
        metadata = {"namespace": namespace, "name": name, "annotations": dict(annotations or {})}
        self.cluster.put(
            {"apiVersion": MESSAGING, "kind": "Subscription", "metadata": metadata, "spec": spec}
        )

    def stored(self, kind: str, namespace: str, name: str) -> dict[str, Any]:
        version = VERSION if kind == "KafkaChannel" else MESSAGING
        return self.cluster.objects[version, kind, namespace, name]

    async def reconcile_channel(self, namespace: str, name: str) -> Mapping[str, Any]:
        document = self.stored("KafkaChannel", namespace, name)
        self.channels.on_change(document, gone=False)
        await self.channels.brokers.reconcile(document)
        status: Mapping[str, Any] = self.stored("KafkaChannel", namespace, name)["status"]
        return status

    async def reconcile_subscription(self, namespace: str, name: str) -> Mapping[str, Any]:
        document = self.stored("Subscription", namespace, name)
        self.channels.on_change(document, gone=False)
        status = await self.channels.triggers.reconcile(document)
        assert status is not None
        return status

    def declare_entry(
        self, namespace: str, channel: str, uid: str, uri: str | None = None, **more: Any
    ) -> None:
        """Somebody else writes an entry into `spec.subscribers`, or edits it."""
        entry = {"uid": uid, "generation": 1, "subscriberUri": uri or f"http://{uid}/", **more}
        others = [each for each in self.entries_of(namespace, channel) if each["uid"] != uid]
        self.list_entries(namespace, channel, [*others, entry])

    def remove_entry(self, namespace: str, channel: str, uid: str) -> None:
        entries = self.entries_of(namespace, channel)
        self.list_entries(namespace, channel, [each for each in entries if each["uid"] != uid])

    def entries_of(self, namespace: str, channel: str) -> list[dict[str, Any]]:
        spec = self.stored("KafkaChannel", namespace, channel)["spec"]
        return list(spec.get("subscribers") or ())

    def list_entries(self, namespace: str, channel: str, entries: list[dict[str, Any]]) -> None:
        """A merge patch of the whole list, as Knative Eventing's controller makes it."""
        stored = self.stored("KafkaChannel", namespace, channel)
        metadata = {**stored["metadata"], "resourceVersion": None}
        spec = {**stored["spec"], "subscribers": entries}
        self.cluster.put({**stored, "metadata": metadata, "spec": spec})

    def hear(self) -> None:
        """Everything there is, as watches have it."""
        for kind in ("Subscription", "KafkaChannel"):
            for each in list(self.cluster.of(kind)):
                self.channels.on_change(each, gone=False)

    async def look(self) -> None:
        """Reconcile everything, as the controller does: twice, since one waits for the other."""
        operator, entries = self.channels, self.channels.entries
        assert entries is not None
        for _ in range(2):
            self.hear()
            for each in list(self.cluster.of("KafkaChannel")):
                await operator.brokers.reconcile(each)
            self.hear()
            for kind, *who in list(operator.queue._items):
                if kind == "Subscription":
                    await self._look(Identity(*who))
            for each in list(self.cluster.of("KafkaChannel")):
                await operator.brokers.reconcile(each)

    async def _look(self, who: Identity) -> None:
        operator = self.channels
        document = await operator.cluster.get(MESSAGING, "Subscription", *who)
        if document is None:
            await operator.suspend_absent(who)
        elif "deletionTimestamp" in document["metadata"]:
            await operator.triggers.delete(document)
            assert operator.entries is not None
            await operator.entries.forget(document)
        elif operator.may_be_ours(document):
            await operator.triggers.reconcile(document)

    async def delete_channel(self, namespace: str, name: str) -> None:
        document = self.stored("KafkaChannel", namespace, name)
        await self.channels.delete_broker(document)
        self.cluster.set_finalizers(VERSION, "KafkaChannel", namespace, name)
        self.cluster.remove(VERSION, "KafkaChannel", namespace, name)
        self.channels.on_change(document, gone=True)

    async def delete_subscription(self, namespace: str, name: str) -> None:
        document = self.stored("Subscription", namespace, name)
        await self.channels.triggers.delete(document)
        self.cluster.set_finalizers(MESSAGING, "Subscription", namespace, name)
        self.cluster.remove(MESSAGING, "Subscription", namespace, name)
        self.channels.on_change(document, gone=True)

    def egress_of(self, namespace: str, name: str) -> Any:
        record = self.channels.states.triggers[Identity(namespace, name)]
        assert record.watched is not None
        return record.watched.egress

    def ingresses(self) -> Mapping[str, Ingress]:
        """What the receiver's contract says, as a receiver reads it."""
        (topic,) = (each for each in self.log.topics if each.startswith(CONTRACT))
        return read_ingresses(self.log.topics[topic][0])


async def ready(world: ChannelWorld, *subscriptions: str, channel: str = "orders") -> None:
    """A channel with these Subscriptions, all of them Ready, in the namespace `shop`."""
    world.declare_channel("shop", channel)
    status = await world.reconcile_channel("shop", channel)
    for each in subscriptions:
        world.declare_subscription("shop", each, channel)
        status = await world.reconcile_subscription("shop", each)
        assert condition(status, "Ready")["status"] == "True", status["conditions"]
    status = await world.reconcile_channel("shop", channel)
    assert condition(status, "Ready")["status"] == "True", status["conditions"]


@asynccontextmanager
async def running_channels(_: object = None) -> AsyncIterator[ChannelWorld]:
    """A world whose addresses answer every probe; what runs in it is ended."""
    world = ChannelWorld()
    try:
        yield world
    finally:
        await world.operator.close()
