"""What tests of a channel's entries share: one channel, and what became of its entries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from support.channel_world import UID, ChannelWorld
from support.memory.log import MemoryWriter

from knafka.core import names
from knafka_operator.channels import entry_cluster as entries
from knafka_operator.kafka import shards

SHOP: Final = "shop"
CHANNEL: Final = "orders"
TOPIC: Final = names.channel_topic(SHOP, CHANNEL)


def group(uid: str = UID) -> str:
    return names.subscription_group(SHOP, CHANNEL, uid)


def reported(world: ChannelWorld) -> dict[str, Mapping[str, Any]]:
    """`status.subscribers` by UID."""
    status = world.stored("KafkaChannel", SHOP, CHANNEL)["status"]
    return {each["uid"]: each for each in status["subscribers"]}


def kept(world: ChannelWorld) -> Mapping[str, str]:
    found: Mapping[str, str] = world.stored("KafkaChannel", SHOP, CHANNEL)["status"]["annotations"]
    return found


def delivered(world: ChannelWorld) -> dict[str, str]:
    """Where the shared dispatcher delivers to, by group."""
    topic = names.contract_topic(SHOP, f"KafkaChannel-{CHANNEL}")
    records = shards.read_shared_egresses(world.log.topics.get(topic, [[]])[0])
    return {group: each.egress.subscriber.url for group, each in records.items()}


def committed(world: ChannelWorld, uid: str = UID) -> list[int]:
    return [each.offset for each in world.log.groups[group(uid)].committed.values()]


def send(world: ChannelWorld) -> None:
    MemoryWriter(world.log).append(TOPIC, None, b"{}", [], lambda _: None)


def later(world: ChannelWorld, seconds: float = entries.MISSING_ENTRY_SECONDS) -> None:
    """As if so much time had passed since entries went missing."""
    found = world.channels.entries
    assert found is not None
    for key in found._missing:
        found._missing[key] -= seconds


def eventing(world: ChannelWorld, seen: bool | None = True) -> None:
    world.channels.on_eventing(seen)


def subscription(world: ChannelWorld, name: str, **more: Any) -> str:
    """A Subscription that Knative Eventing's controller has added to its channel; gives its UID."""
    world.declare_subscription(SHOP, name, CHANNEL, **more)
    uid = str(world.stored("Subscription", SHOP, name)["metadata"]["uid"])
    world.declare_entry(SHOP, CHANNEL, uid, f"http://{name}/", name=name)
    return uid
