"""Knative Eventing's own controller beside ours, on a real API server.

Its Subscription, Channel and Sequence controllers are the real ones; Kafka and functions are in
memory. Its controller takes minutes to compile, so `make chaos` has these tests; the gate has the
same entries on the API server of tests/unit/test_controller_entries.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

import pytest
from support.gate import only_chaos
from support.installation import ROOT
from support.knative_eventing import Kubernetes, kubernetes_with_eventing
from support.leader import Leader
from support.memory.log import MemoryLog, MemoryWriter
from support.waiting import until

from knafka.core import names
from knafka_operator.kafka import shards
from knafka_operator.model.cluster import ClusterError
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import CORE, FINALIZER, SERVING

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::urllib3.exceptions.InsecureRequestWarning"),
    only_chaos,
]

WITHIN: Final = 60.0
TEMPLATE: Final = {"apiVersion": "messaging.knative.dev/v1beta1", "kind": "KafkaChannel"}
MESSAGING: Final = "messaging.knative.dev/v1"


class World:
    """Our leader beside Knative Eventing's controller."""

    def __init__(self, kubernetes: Kubernetes) -> None:
        self.kubernetes = kubernetes
        self.log = MemoryLog()
        self._start()

    def _start(self) -> None:
        self.leader = Leader(self.kubernetes.client(), self.log)
        self._serving = asyncio.create_task(self._serve())

    async def restart(self) -> None:
        await self.close()
        self._start()
        await self.leader.channels.resume()

    async def close(self) -> None:
        self._serving.cancel()
        await asyncio.wait({self._serving})
        await self.leader.close()

    async def _serve(self) -> None:
        """Knative Serving: every Service is Ready."""
        api = self.leader.api
        while True:
            with suppress(ClusterError):
                for each in await api.list(SERVING, "Service"):
                    metadata = each["metadata"]
                    generation, name = metadata["generation"], metadata["name"]
                    if (each.get("status") or {}).get("observedGeneration") == generation:
                        continue
                    revision = f"{name}-{generation:05}"
                    status = {
                        "observedGeneration": generation,
                        "conditions": [{"type": "Ready", "status": "True"}],
                        "latestCreatedRevisionName": revision,
                        "latestReadyRevisionName": revision,
                    }
                    kind = {"apiVersion": SERVING, "kind": "Service"}
                    await api.write_status({**each, **kind}, status)
            await asyncio.sleep(0.1)

    def delivered(self, channel: str) -> dict[str, str]:
        """Where the channel's shared dispatcher delivers to, by group."""
        topic = names.contract_topic("shop", f"KafkaChannel-{channel}")
        records = shards.read_shared_egresses(self.log.topics.get(topic, [[]])[0])
        return {group: each.egress.subscriber.url for group, each in records.items()}

    def egress(self, name: str) -> Any:
        record = self.leader.channels.states.triggers[Identity("shop", name)]
        assert record.watched is not None
        return record.watched.egress

    def send(self, channel: str) -> None:
        topic = names.channel_topic("shop", channel)
        MemoryWriter(self.log).append(topic, None, b"{}", [], lambda _: None)

    def committed(self, channel: str, uid: str) -> list[int]:
        group = self.log.groups[names.subscription_group("shop", channel, uid)]
        return [each.offset for each in group.committed.values()]

    async def get(self, kind: str, name: str) -> dict[str, Any]:
        return await asyncio.to_thread(self.kubernetes.get, kind, "shop", name)

    async def apply(self, *documents: Mapping[str, Any]) -> None:
        await asyncio.to_thread(self.kubernetes.apply, *documents)

    async def delete(self, kind: str, name: str) -> None:
        arguments = ("delete", kind, "-n", "shop", name, "--timeout=60s")
        await asyncio.to_thread(self.kubernetes.kubectl, *arguments)

    async def until_ready(self, kind: str, name: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        try:
            async with asyncio.timeout(WITHIN):
                while not _is_ready(found):
                    await asyncio.sleep(0.1)
                    found = await self.get(kind, name)
        except TimeoutError:
            pytest.fail(f"{found}\n{self.kubernetes.log('eventing')[-3000:]}")
        return found

    async def until_all_ready(self, prefix: str, count: int) -> set[str]:
        """UIDs of the Subscriptions whose names begin so, once all are Ready."""
        found: list[dict[str, Any]] = []
        async with asyncio.timeout(2 * WITHIN):
            while len(found) < count or not all(map(_is_ready, found)):
                await asyncio.sleep(0.5)
                every = await asyncio.to_thread(self.kubernetes.get, "subscriptions", "shop", "")
                named = every.get("items") or ()
                found = [each for each in named if each["metadata"]["name"].startswith(prefix)]
        return {each["metadata"]["uid"] for each in found}


def _is_ready(document: Mapping[str, Any]) -> bool:
    status = document.get("status") or {}
    generation = (document.get("metadata") or {}).get("generation")
    return status.get("observedGeneration") == generation and any(
        (each["type"], each["status"]) == ("Ready", "True")
        for each in status.get("conditions") or ()
    )


def of(kind: str, name: str, version: str = MESSAGING, **spec: Any) -> dict[str, Any]:
    metadata = {"namespace": "shop", "name": name}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}


def subscription(name: str, channel: str, kind: str = "KafkaChannel", **spec: Any) -> Any:
    version = MESSAGING if kind == "Channel" else TEMPLATE["apiVersion"]
    to = {"apiVersion": version, "kind": kind, "name": channel}
    return of("Subscription", name, channel=to, subscriber={"uri": f"http://{name}/"}, **spec)


@pytest.fixture(scope="module")
def kubernetes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubernetes]:
    with kubernetes_with_eventing(tmp_path_factory.mktemp("kubernetes"), ROOT) as found:
        data = {"bootstrap.servers": "kafka:9092"}
        metadata = {"namespace": "knafka", "name": "kafka-channel-config"}
        found.apply({"apiVersion": CORE, "kind": "ConfigMap", "metadata": metadata, "data": data})
        found.start_eventing()
        yield found


@pytest.fixture
async def world(kubernetes: Kubernetes) -> AsyncIterator[World]:
    world = World(kubernetes)
    try:
        yield world
    finally:
        await world.close()


async def test_knative_eventings_subscription_becomes_ready_by_ours(world: World) -> None:
    """KN-SUB-05, KN-SUB-06, DSP-10: it fills spec.subscribers and reads status.subscribers; ours
    writes neither the Subscription nor the entry."""
    await world.apply(of("KafkaChannel", "orders", TEMPLATE["apiVersion"]))
    await world.apply(subscription("mail", "orders", delivery={"retry": 3}))
    found = await world.until_ready("subscription", "mail")
    assert FINALIZER not in found["metadata"]["finalizers"]
    managers = {each["manager"] for each in found["metadata"]["managedFields"]}
    assert "knafka-operator" not in managers
    uid = found["metadata"]["uid"]
    group = names.subscription_group("shop", "orders", uid)
    assert world.delivered("orders") == {group: "http://mail/"}
    channel = await world.get("kafkachannel", "orders")
    (entry,) = channel["spec"]["subscribers"]
    assert (entry["uid"], entry["name"]) == (uid, "mail")

    await world.apply(subscription("mail", "orders", reply={"uri": "http://reply/"}))
    found = await world.until_ready("subscription", "mail")
    await until(lambda: world.egress("mail").reply is not None, WITHIN)

    await world.delete("subscription", "mail")
    await until(lambda: world.delivered("orders") == {}, WITHIN)
    await world.delete("kafkachannel", "orders")
    assert group not in world.log.groups


async def test_a_channel_with_a_template_gets_the_address_and_its_subscription_delivers(
    world: World,
) -> None:
    """The Channel's controller makes the KafkaChannel and copies its status."""
    delivery = {"deadLetterSink": {"uri": "http://dead/"}}
    channel = of("Channel", "template", channelTemplate=TEMPLATE, delivery=delivery)
    await world.apply(channel, subscription("audit", "template", "Channel"))
    ready = await world.until_ready("channels.messaging.knative.dev", "template")
    backing = await world.get("kafkachannel", "template")
    assert ready["status"]["address"]["url"] == backing["status"]["address"]["url"]
    assert ready["status"]["deadLetterSinkUri"] == "http://dead/"
    found = await world.until_ready("subscription", "audit")
    uid = found["metadata"]["uid"]
    assert world.delivered("template") == {
        names.subscription_group("shop", "template", uid): "http://audit/"
    }
    assert world.egress("audit").dead_letter_sink.url == "http://dead/"
    ready = await world.get("channels.messaging.knative.dev", "template")
    assert [each["uid"] for each in ready["status"]["subscribers"]] == [uid]
    # In the wrong order.
    await world.delete("channels.messaging.knative.dev", "template")
    await world.delete("subscription", "audit")


async def test_a_sequence_is_made_of_channels_of_ours(world: World) -> None:
    steps = [{"uri": "http://first/"}, {"uri": "http://second/"}]
    reply = {"uri": "http://last/"}
    sequence = of(
        "Sequence", "steps", "flows.knative.dev/v1",
        channelTemplate=TEMPLATE, steps=steps, reply=reply,
    )  # fmt: skip
    await world.apply(sequence)
    await world.until_ready("sequence", "steps")
    first, second = (world.delivered(f"steps-kn-sequence-{number}") for number in (0, 1))
    assert list(first.values()) == ["http://first/"]
    assert list(second.values()) == ["http://second/"]
    await world.delete("sequence", "steps")


async def test_many_subscriptions_at_once_lose_none(world: World) -> None:
    """Knative Eventing's controller patches the whole list as it last read it."""
    count = 20
    await world.apply(of("KafkaChannel", "busy", TEMPLATE["apiVersion"]))

    def subscriptions(step: int = 1, **spec: Any) -> dict[str, Any]:
        numbers = range(0, count, step)
        items = [subscription(f"busy-{number}", "busy", **spec) for number in numbers]
        return {"apiVersion": "v1", "kind": "List", "items": items}

    await world.apply(subscriptions())
    uids = await world.until_all_ready("busy-", count)
    await until(lambda: len(world.delivered("busy")) == count, WITHIN)
    world.send("busy")
    await world.restart()
    await world.apply(subscriptions(step=2, reply={"uri": "http://r/"}))
    assert await world.until_all_ready("busy-", count) == uids
    await until(lambda: len(world.delivered("busy")) == count, WITHIN)
    assert {tuple(world.committed("busy", uid)) for uid in uids} == {(0,)}
    await world.delete("kafkachannel", "busy")
