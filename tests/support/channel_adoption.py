"""A KafkaChannel as eventing-kafka-broker leaves it, with two Subscriptions, in memory."""

from __future__ import annotations

from typing import Any, Final

from support.channel_entries import CHANNEL, SHOP, TOPIC, eventing, group
from support.channel_world import ChannelWorld
from support.memory.log import MemoryWriter

from knafka.ports.log import OffsetAndMetadata
from knafka_operator.kafka.topics import TOPIC_ID
from knafka_operator.kinds import kinds_of
from knafka_operator.model.channels import PEERS_CHANNEL_FINALIZER, PROMISE
from knafka_operator.model.resources import FINALIZER, TOPIC_STATUS

NAMES: Final = ("audit", "mail")
THEIRS: Final = {"type": "Ready", "status": "True"}, {"type": "ConfigMapUpdated", "status": "True"}
HOST: Final = "orders-kn-channel"
RIVAL_HOST: Final = "kafka-channel-ingress.knative-eventing.svc.cluster.local"


class PeersChannel:
    """A channel of the peer's with two Subscriptions, added by Knative Eventing or not."""

    def __init__(self, inner: ChannelWorld, *, by_eventing: bool) -> None:
        self.inner, self.by_eventing = inner, by_eventing
        inner.cluster.put(service("knative-eventing", "kafka-channel-ingress"))
        inner.log.create(TOPIC, 2)
        for _ in range(10):
            MemoryWriter(inner.log).append(TOPIC, None, b"{}", [], lambda *_: None)
        inner.declare_channel(SHOP, CHANNEL, numPartitions=2)
        self.uids = {}
        for number, name in enumerate(NAMES):
            inner.declare_subscription(SHOP, name, CHANNEL)
            uid = str(inner.stored("Subscription", SHOP, name)["metadata"]["uid"])
            inner.declare_entry(SHOP, CHANNEL, uid, f"http://{name}/", name=name)
            self.uids[name] = uid
            for partition in (0, 1):
                at = OffsetAndMetadata(number + 1, "")
                inner.log.group(group(uid)).committed[TOPIC, partition] = at
        self.claim(PEERS_CHANNEL_FINALIZER)
        self.stored["status"] = {
            "annotations": {TOPIC_STATUS: TOPIC},
            "conditions": list(THEIRS),
            "address": {"url": "http://theirs/"},
        }
        of = {"uid": self.stored["metadata"]["uid"], "kind": "KafkaChannel", "name": CHANNEL}
        host = service(SHOP, HOST, externalName=RIVAL_HOST)
        host["metadata"]["ownerReferences"] = [of]
        inner.cluster.put(host)
        eventing(inner, by_eventing)

    @property
    def stored(self) -> dict[str, Any]:
        return self.inner.stored("KafkaChannel", SHOP, CHANNEL)

    def claim(self, *finalizers: str) -> None:
        """Say whose the channel is."""
        self.stored["metadata"]["finalizers"] = list(finalizers)

    def promise(self) -> None:
        """As `knafka adopt` does, before it takes the peer's finalizer off."""
        annotations = self.stored["status"]["annotations"]
        annotations[TOPIC_ID] = self.inner.log.descriptions[TOPIC].id
        annotations |= {PROMISE + uid: "{}" for uid in self.uids.values()}

    async def adopt(self) -> None:
        """As `knafka adopt` does, and the controller after it."""
        self.promise()
        self.claim()
        await self.take_over()

    async def take_over(self) -> None:
        """As the controller does with a channel that nobody has claimed, or that is ours."""
        self.inner.hear()
        await self.inner.reconcile_channel(SHOP, CHANNEL)
        self.claim(FINALIZER)
        await self.go_on()

    async def go_on(self) -> None:
        """Reconcile every Subscription, then the channel."""
        for name in NAMES:
            await self.subscription(name)
        await self.inner.reconcile_channel(SHOP, CHANNEL)

    async def subscription(self, name: str) -> None:
        triggers = self.inner.channels.triggers
        document = await triggers.get(("Subscription", SHOP, name))
        assert document is not None
        await triggers.reconcile(document)

    async def leave(self) -> None:
        """As the controller does for what isn't ours, in the order of its queue."""
        self.inner.hear()
        channel, kinds = self.stored, kinds_of(self.inner.channels)
        assert not kinds["KafkaChannel"].is_ours(channel)
        await kinds["KafkaChannel"].hand_over(channel)
        self.inner.hear()
        for name in NAMES:
            document = await kinds["Subscription"].get(("Subscription", SHOP, name))
            assert document is not None
            assert not kinds["Subscription"].is_ours(document)
            await kinds["Subscription"].hand_over(document)
            await kinds["Subscription"].drop_entry(document)

    def committed(self) -> dict[str, dict[tuple[str, int], int]]:
        log = self.inner.log
        return {
            name: {place: each.offset for place, each in log.group(group(uid)).committed.items()}
            for name, uid in self.uids.items()
        }

    def watched(self) -> dict[str, str]:
        watched = self.inner.channels.triggers.watched
        return {who.name: each.egress.group for who, each in watched.items()}

    def host(self) -> str:
        stored = self.inner.cluster.objects["v1", "Service", SHOP, HOST]
        return str(stored["spec"]["externalName"])


def service(namespace: str, name: str, **spec: Any) -> dict[str, Any]:
    metadata: dict[str, Any] = {"namespace": namespace, "name": name}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}
