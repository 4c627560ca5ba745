"""What is asked of KafkaChannels line by line, in memory: conditions, settings, neighbours."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from support.channel_world import ChannelWorld, running_channels
from support.operator_world import condition

from knafka.core.errors import LogError
from knafka_operator.model.resources import SERVING

ABSENT = {"ref": {"apiVersion": "v1", "kind": "Service", "name": "absent"}}


@pytest.fixture
async def world() -> AsyncIterator[ChannelWorld]:
    async with running_channels() as world:
        yield world


async def subscribe(world: ChannelWorld, name: str, channel: str) -> None:
    world.declare_subscription("shop", name, channel)
    status = await world.reconcile_subscription("shop", name)
    assert condition(status, "Ready")["status"] == "True", status["conditions"]


@pytest.mark.conformance("KN-CHN-09")
async def test_the_conditions_of_a_channel_are_upstreams_and_two_more(world: ChannelWorld) -> None:
    """KN-CHN-09: the last one is a warning, which counts for nothing."""
    world.declare_channel("shop", "orders")
    status = await world.reconcile_channel("shop", "orders")
    upstreams = {"Ready", "Addressable", "TopicReady", "ConfigParsed", "ProbeSucceeded"}
    ours = {"ContractUpdated", "DataPlaneAvailable", "DeadLetterSinkResolved"}
    found = {each["type"]: each for each in status["conditions"]}
    assert found.keys() == upstreams | ours | {"TopicAsDeclared"}
    assert {each["status"] for each in found.values()} == {"True"}


@pytest.mark.conformance("KN-SUB-06")
async def test_the_conditions_of_a_subscription_are_upstreams(world: ChannelWorld) -> None:
    world.declare_channel("shop", "orders")
    await world.reconcile_channel("shop", "orders")
    world.declare_subscription("shop", "mail", "orders")
    status = await world.reconcile_subscription("shop", "mail")
    counted = {each["type"] for each in status["conditions"] if "severity" not in each}
    upstreams = {"Ready", "ChannelReady", "ReferencesResolved", "AddedToChannel"}
    assert counted == {*upstreams, "OIDCIdentityCreated"}


@pytest.mark.conformance("KN-CHN-04")
async def test_a_channel_with_a_sink_is_ready_once_its_status_says_where_that_is(
    world: ChannelWorld,
) -> None:
    """KN-CHN-04."""
    world.declare_channel("shop", "orders", delivery={"deadLetterSink": ABSENT})
    status = await world.reconcile_channel("shop", "orders")
    assert condition(status, "DeadLetterSinkResolved")["status"] == "False"
    assert condition(status, "Ready")["status"] == "False"
    assert status.get("deadLetterSinkUri") is None
    world.declare_channel("shop", "mail", delivery={"deadLetterSink": {"uri": "http://dead/"}})
    status = await world.reconcile_channel("shop", "mail")
    assert condition(status, "Ready")["status"] == "True"
    assert status["deadLetterSinkUri"] == "http://dead/"


@pytest.mark.conformance("KN-SUB-05")
async def test_a_subscription_is_ready_only_once_its_group_has_an_offset_on_every_partition(
    world: ChannelWorld,
) -> None:
    """KN-SUB-05: from then on it misses no event, whether a dispatcher runs or not."""
    world.declare_channel("shop", "orders", numPartitions=3)
    await world.reconcile_channel("shop", "orders")
    world.declare_subscription("shop", "mail", "orders")
    world.kafka_failures["ensure_committed"] = LogError("no coordinator")
    status = await world.reconcile_subscription("shop", "mail")
    assert condition(status, "AddedToChannel")["status"] == "False"
    assert condition(status, "Ready")["status"] == "False"
    assert world.log.groups == {}
    world.kafka_failures.clear()
    status = await world.reconcile_subscription("shop", "mail")
    assert condition(status, "Ready")["status"] == "True"
    topic, group = "knative-messaging-kafka.shop.orders", status["annotations"]["group.id"]
    assert set(world.log.groups[group].committed) == {(topic, number) for number in range(3)}


@pytest.mark.conformance("KN-SUB-04", "CHN-19", "DSP-9")
async def test_a_subscriber_that_changes_is_delivered_to_where_it_is_now(
    world: ChannelWorld,
) -> None:
    """KN-SUB-04, DSP-9: in what is delivered, and in what the channel says."""
    world.declare_channel("shop", "orders")
    await world.reconcile_channel("shop", "orders")
    await subscribe(world, "mail", "orders")
    stored = world.stored("Subscription", "shop", "mail")
    uris = {"subscriber": {"uri": "http://elsewhere/"}, "reply": {"uri": "http://replies/"}}
    world.cluster.put({**stored, "spec": {**stored["spec"], **uris}})
    await world.reconcile_subscription("shop", "mail")
    egress = world.egress_of("shop", "mail")
    assert egress.reply is not None
    assert (egress.subscriber.url, egress.reply.url) == ("http://elsewhere/", "http://replies/")
    await world.reconcile_channel("shop", "orders")
    (declared,) = world.stored("KafkaChannel", "shop", "orders")["spec"]["subscribers"]
    assert declared["subscriberUri"] == "http://elsewhere/"
    assert declared["replyUri"] == "http://replies/"


@pytest.mark.conformance("CHN-5")
async def test_topics_and_clients_of_channels_are_configured_in_one_config_map(
    world: ChannelWorld,
) -> None:
    settings = {
        "default.topic.config.segment.bytes": "1048576",
        "producer.compression.type": "zstd",
        "consumer.fetch.min.bytes": "4096",
    }
    servers = {"bootstrap.servers": "kafka:9092"}
    world.configure("knafka", "kafka-channel-config", **servers, **settings)
    world.declare_channel("shop", "orders", retentionDuration="PT1H")
    await world.reconcile_channel("shop", "orders")
    await subscribe(world, "mail", "orders")
    config = world.log.descriptions["knative-messaging-kafka.shop.orders"].config
    assert (config["segment.bytes"], config["retention.ms"]) == ("1048576", "3600000")
    assert world.ingresses()["/shop/orders"].kafka.producer == {"compression.type": "zstd"}
    assert world.egress_of("shop", "mail").kafka.consumer["fetch.min.bytes"] == "4096"


@pytest.mark.conformance("CHN-5")
async def test_a_channel_may_have_settings_of_its_own_over_those_of_all(
    world: ChannelWorld,
) -> None:
    """CHN-5: its neighbours and the receiver of all stay as they are."""
    settings = {"producer.compression.type": "zstd", "consumer.fetch.min.bytes": "4096"}
    servers = {"bootstrap.servers": "kafka:9092"}
    world.configure("knafka", "kafka-channel-config", **servers, **settings)
    world.declare_channel("shop", "mail")
    await world.reconcile_channel("shop", "mail")
    of = SERVING, "Service", "knafka", "kafka-channel-receiver"
    before = world.cluster.objects[of]["metadata"]["generation"]
    own = {
        "knafka.dev/producer.compression.type": "lz4",
        "knafka.dev/producer.batch.size": "65536",
        "knafka.dev/consumer.client.rack": "a",
        "knafka.dev/topic.segment.bytes": "1048576",
    }
    world.declare_channel("shop", "orders", annotations=own)
    status = await world.reconcile_channel("shop", "orders")
    assert condition(status, "Ready")["status"] == "True"
    await subscribe(world, "each", "orders")
    config = world.log.descriptions["knative-messaging-kafka.shop.orders"].config
    assert config["segment.bytes"] == "1048576"
    producers = {name: each.kafka.producer for name, each in world.ingresses().items()}
    assert producers == {
        "/shop/orders": {"compression.type": "lz4", "batch.size": "65536"},
        "/shop/mail": {"compression.type": "zstd"},
    }
    consumer = world.egress_of("shop", "each").kafka.consumer
    assert consumer == {"client.rack": "a", "fetch.min.bytes": "4096"}
    world.declare_channel("shop", "orders", annotations={"knafka.dev/producer.acks": "0"})
    refused = condition(await world.reconcile_channel("shop", "orders"), "ConfigParsed")
    assert refused["status"] == "False"
    assert "knafka.dev/producer.acks" in refused["message"]
    assert world.cluster.objects[of]["metadata"]["generation"] == before


@pytest.mark.conformance("CHN-2", "CHN-14", "CHN-26", "DSP-2", "DSP-7")
async def test_each_channel_has_a_topic_and_dispatchers_of_its_own(world: ChannelWorld) -> None:
    """CHN-2: what one is sent is in the way of no other's dispatchers."""
    shards: dict[str, set[str]] = {}
    for channel in ("orders", "mail"):
        world.declare_channel("shop", channel)
        await world.reconcile_channel("shop", channel)
        for number in range(3):
            await subscribe(world, f"{channel}-{number}", channel)
            status = world.stored("Subscription", "shop", f"{channel}-{number}")["status"]
            shards.setdefault(channel, set()).add(status["annotations"]["knafka.dev/dispatcher"])
    assert [len(each) for each in shards.values()] == [1, 1]
    assert not shards["orders"] & shards["mail"]
    topics = {each.topic for each in world.ingresses().values()}
    assert topics == {f"knative-messaging-kafka.shop.{each}" for each in shards}


@pytest.mark.conformance("CHN-25")
async def test_the_receiver_of_channels_scales_out_and_to_zero(world: ChannelWorld) -> None:
    world.declare_channel("shop", "orders")
    await world.reconcile_channel("shop", "orders")
    receiver = world.cluster.objects[SERVING, "Service", "knafka", "kafka-channel-receiver"]
    annotations = receiver["spec"]["template"]["metadata"]["annotations"]
    assert annotations["autoscaling.knative.dev/min-scale"] == "0"
    assert annotations["autoscaling.knative.dev/max-scale"] == "10"
