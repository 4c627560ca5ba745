"""KafkaChannels and Subscriptions in the local mode: reconciled on what files declare."""

from __future__ import annotations

import pytest
from support.local_world import (
    CHANNELS_URL,
    PROGRAM,
    URL,
    LocalWorld,
    broker,
    channel,
    config_map,
    running_locally,
    service,
    subscription,
    trigger,
)
from support.memory.log import MemoryLog
from support.waiting import until

from knafka.core.contract import Egress
from knafka_local.cluster.kept_names import KeptNames
from knafka_operator.model.family import CHANNELS

pytestmark = pytest.mark.looptime

TOPIC = "knative-messaging-kafka.default.orders"
SERVICE = {"apiVersion": "serving.knative.dev/v1", "kind": "Service", "name": "worker"}
OWN = {"broker": "orders"}


def subscribed(world: LocalWorld, name: str = "audit") -> Egress:
    found = [each for each in world.controller.egresses() if each.kind == "Subscription"]
    assert name in {each.trigger for each in found}, world.reason("Subscription", name)
    return next(each for each in found if each.trigger == name)


async def test_a_channel_and_a_subscription_run() -> None:
    """KN-CHN-01, KN-CHN-11, KN-SUB-03: at an address of this machine, in a shared dispatcher."""
    async with running_locally() as world:
        await world.apply(channel(spec={"numPartitions": 3}), subscription())
        assert world.reason("KafkaChannel", "orders") == ""
        assert world.reason("Subscription", "audit") == ""
        status = world.status("KafkaChannel", "orders")
        assert status["address"]["url"] == f"{CHANNELS_URL}/default/orders"
        assert len(world.log.topics[TOPIC]) == 3
        egress = subscribed(world)
        assert egress.topic == TOPIC
        stored = world.cluster.find_reconciled("Subscription", "default", "audit")
        assert stored is not None
        assert egress.group == f"kafka.default.orders.{stored['metadata']['uid']}"


async def test_a_channel_in_the_other_version_is_the_same_one() -> None:
    """KN-CHN-10: v1 and v1beta1, of which one is stored; a reference may name either."""
    async with running_locally() as world:
        for version in ("v1", "v1beta1"):
            api_version = f"messaging.knative.dev/{version}"
            of = {"apiVersion": api_version, "kind": "KafkaChannel", "name": "orders"}
            declared = {**channel(), "apiVersion": api_version}
            await world.apply(declared, subscription(spec={"channel": of}))
            assert world.reason("KafkaChannel", "orders") == ""
            assert world.reason("Subscription", "audit") == ""
        assert len(list(world.cluster.of("KafkaChannel"))) == 1


async def test_one_machine_keeps_one_copy_of_a_channels_events() -> None:
    async with running_locally() as world:
        await world.apply(channel(spec={"replicationFactor": 3}))
        assert world.reason("KafkaChannel", "orders") == ""
        assert world.log.descriptions[TOPIC].replication == 1


async def test_channels_that_come_and_go_leave_their_receiver_alone() -> None:
    """CHN-11, CHN-23: nor is that of Brokers started anew."""
    async with running_locally() as world:
        await world.apply(channel())
        await world.apply(broker(), channel())
        brokers = list(world.receiver.followed)
        await world.apply(broker(), channel(), channel("more"))
        assert [each.broker for each in world.controller.ingresses(CHANNELS)] == ["more", "orders"]
        await world.apply(channel("more"))
        assert [each.broker for each in world.controller.ingresses(CHANNELS)] == ["more"]
        assert len(world.channels_receiver.followed) == 1
        assert world.receiver.followed == brokers
        assert TOPIC not in world.log.topics


async def test_a_channel_and_a_broker_may_have_one_name() -> None:
    """The paths of their addresses are the same, so they have ports of their own."""
    async with running_locally() as world:
        await world.apply(broker("orders"), channel(), subscription(), trigger("audit", spec=OWN))
        for kind in ("Broker", "KafkaChannel"):
            assert world.reason(kind, "orders") == ""
        urls = [
            world.status(each, "orders")["address"]["url"] for each in ("Broker", "KafkaChannel")
        ]
        assert urls == [f"{URL}/default/orders", f"{CHANNELS_URL}/default/orders"]
        shown = world.snapshot()
        assert [each.kind for each in shown.brokers] == ["Broker", "KafkaChannel"]
        assert [each.kind for each in shown.triggers] == ["Trigger", "Subscription"]
        assert {each.broker for each in shown.triggers} == {"orders"}
        again = world.snapshot()
        assert [a is b for a, b in zip(shown.triggers, again.triggers, strict=True)] == [True, True]


async def test_a_subscription_resolves_programs_brokers_and_channels() -> None:
    """KN-SUB-02, KN-SUB-03: its subscriber a Service, its reply a channel, its sink a Broker."""
    sink = {"ref": {"apiVersion": "eventing.knative.dev/v1", "kind": "Broker", "name": "shop"}}
    of = {"apiVersion": "messaging.knative.dev/v1", "kind": "KafkaChannel", "name": "replies"}
    spec = {"reply": {"ref": of}, "delivery": {"deadLetterSink": sink}}
    async with running_locally() as world:
        await world.apply(
            broker(),
            service(),
            channel(),
            channel("replies"),
            subscription(subscriber={"ref": SERVICE}, spec=spec),
        )
        egress = subscribed(world)
        assert egress.subscriber.url == PROGRAM
        assert egress.reply is not None
        assert egress.reply.url == f"{CHANNELS_URL}/default/replies"
        assert egress.dead_letter_sink is not None
        assert egress.dead_letter_sink.url == f"{URL}/default/shop"


async def test_a_start_anew_goes_on_with_the_groups_and_the_topic_that_there_are() -> None:
    """KN-CHN-11: a Subscription's group is named by its UID, which outlives the process."""
    log, names = MemoryLog(), KeptNames()
    async with running_locally(log, names) as world:
        await world.apply(channel(), subscription())
        before, topic = subscribed(world), log.descriptions[TOPIC]
    async with running_locally(log, names) as world:
        await world.apply(channel(), subscription())
        assert world.reason("KafkaChannel", "orders") == ""
        assert subscribed(world).group == before.group
        assert log.descriptions[TOPIC].id == topic.id
        await world.apply(channel())
        assert before.group not in log.groups
        await world.apply(channel(), subscription())
        assert subscribed(world).group != before.group


async def test_what_leaves_the_files_goes_with_all_that_was_its_own() -> None:
    async with running_locally() as world:
        await world.apply(channel(), subscription())
        await world.apply()
        assert [each for each in world.log.topics if "KafkaChannels" not in each] == []
        assert world.log.groups == {}
        assert (
            "KafkaChannel default/orders has left the files, so its topic is deleted" in world.said
        )


async def test_the_channel_keeps_its_subscribers_when_files_are_read_anew() -> None:
    """KN-CHN-05: they are the server's, and those of a file count for nothing."""
    claimed = channel(spec={"subscribers": [{"uid": "1", "subscriberUri": "http://127.0.0.1:1/"}]})
    async with running_locally() as world:
        await world.apply(claimed, subscription())

        def subscribers() -> list[str]:
            found = world.cluster.find_reconciled("KafkaChannel", "default", "orders")
            assert found is not None
            return [each["name"] for each in found["spec"].get("subscribers") or ()]

        await until(lambda: subscribers() == ["audit"])
        stored = world.cluster.find_reconciled("KafkaChannel", "default", "orders")
        await world.apply(claimed, subscription())
        assert subscribers() == ["audit"]
        now = world.cluster.find_reconciled("KafkaChannel", "default", "orders")
        assert now is not None
        assert stored is not None
        assert now["metadata"]["generation"] == stored["metadata"]["generation"]


async def test_a_subscription_may_have_a_dispatcher_of_its_own() -> None:
    """CHN-28: as many processes as its channel has partitions, at most."""
    async with running_locally() as world:
        own = {"knafka.dev/isolation": "own"}
        await world.apply(
            channel(spec={"numPartitions": 3}), subscription(annotations=own), subscription("mail")
        )
        rows = {each.name: each.most_replicas for each in world.snapshot().triggers}
        assert rows == {"default/audit": 3, "default/mail": 1}


async def test_the_channels_configuration_is_the_installations_under_its_own_name() -> None:
    config = config_map("kafka-channel-config")
    config["metadata"]["namespace"] = "knafka"
    config["data"] = {"default.topic.config.compression.type": "lz4"}
    async with running_locally() as world:
        await world.apply(config, channel())
        assert world.reason("KafkaChannel", "orders") == ""
        assert world.log.descriptions[TOPIC].config["compression.type"] == "lz4"


async def test_a_subscription_to_another_implementations_channel_is_shown_as_such() -> None:
    of = {"apiVersion": "messaging.knative.dev/v1", "kind": "InMemoryChannel", "name": "orders"}
    async with running_locally() as world:
        await world.apply(subscription(spec={"channel": of}))
        (row,) = world.snapshot().triggers
        assert row.refused == "its channel is another implementation's"


async def test_a_subscription_says_what_its_channel_waits_for() -> None:
    """KN-SUB-01."""
    async with running_locally() as world:
        await world.apply(subscription())
        assert world.reason("Subscription", "audit").startswith("ChannelDoesNotExist")
        await world.apply(channel(), subscription())
        assert world.reason("Subscription", "audit") == ""


async def test_a_channel_that_left_the_files_while_nothing_ran_is_served_no_more() -> None:
    """Its topic stays. Others' on the same Kafka are served: only what ran here is withdrawn."""
    log, names = MemoryLog(), KeptNames()
    async with running_locally(log, KeptNames()) as elsewhere:
        await elsewhere.apply(channel("theirs"))
    async with running_locally(log, names) as world:
        await world.apply(channel(), channel("more"))
    async with running_locally(log, names) as world:
        await world.apply(channel("more"))
        assert await world.channels_receiver.answers("/default/more")
        assert await world.channels_receiver.answers("/default/theirs")
        assert not await world.channels_receiver.answers("/default/orders")
        assert TOPIC in log.topics
        await world.apply(channel("more"), channel())
        assert world.reason("KafkaChannel", "orders") == ""
        assert await world.channels_receiver.answers("/default/orders")
