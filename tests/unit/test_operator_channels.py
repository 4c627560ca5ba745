"""KafkaChannels and Subscriptions: an operator reconciles them in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.channel_world import CONTRACT, GATEWAY, VERSION, ChannelWorld, running_channels
from support.operator_world import condition

from knafka.core.contract import Order
from knafka.core.errors import LogError
from knafka_operator.channels import routes
from knafka_operator.kafka.credentials import KAFKA_SECRET
from knafka_operator.model.cluster import Rejected
from knafka_operator.model.resources import SERVING
from knafka_operator.receivers import receivers

pytestmark = pytest.mark.looptime

SHOP = "shop"
TOPIC = "knative-messaging-kafka.shop.orders"


@pytest.fixture
async def world() -> AsyncIterator[ChannelWorld]:
    async with running_channels() as world:
        yield world


def service(world: ChannelWorld, name: str, namespace: str = "knafka") -> dict[str, Any]:
    return world.cluster.objects[SERVING, "Service", namespace, name]


@pytest.mark.conformance("KN-CHN-01", "KN-CHN-10", "CHN-18", "CHN-23", "CHN-24")
async def test_a_channel_is_a_topic_an_entry_at_the_shared_receiver_and_an_address(
    world: ChannelWorld,
) -> None:
    """KN-CHN-01, KN-CHN-10, CHN-23, CHN-24: by its path where there is no gateway."""
    world.declare_channel(
        SHOP, "orders", numPartitions=4, replicationFactor=1, retentionDuration="PT1H"
    )
    status = await world.reconcile_channel(SHOP, "orders")
    assert condition(status, "Ready")["status"] == "True", status["conditions"]
    description = world.log.descriptions[TOPIC]
    assert (description.partitions, description.config["retention.ms"]) == (4, "3600000")
    assert description.config["message.timestamp.type"] == "LogAppendTime"
    assert status["annotations"]["default.topic"] == TOPIC
    assert world.ingresses()["/shop/orders"].topic == TOPIC
    assert status["address"] == {
        "name": "http",
        "url": "http://kafka-channel-receiver.knafka.svc.cluster.local/shop/orders",
    }
    assert world.cluster.services() == {"kafka-channel-receiver"}


@pytest.mark.conformance("KN-CHN-11")
async def test_a_channel_has_a_host_of_its_own_where_knative_has_a_gateway(
    world: ChannelWorld,
) -> None:
    """KN-CHN-11: a Service of type ExternalName, and an Ingress that leads to the receiver."""
    world.add_gateway()
    world.declare_channel(SHOP, "orders")
    status = await world.reconcile_channel(SHOP, "orders")
    host = "orders-kn-channel.shop.svc.cluster.local"
    assert status["address"]["url"] == f"http://{host}"
    assert world.probed == [f"http://{host}"]
    name = world.cluster.objects["v1", "Service", SHOP, "orders-kn-channel"]
    assert name["spec"]["externalName"] == GATEWAY
    (key,) = (
        each
        for each in world.cluster.objects
        if each[1] == "Ingress" and each[3] != "kafka-channel-receiver"
    )
    route = world.cluster.objects[key]
    assert key[2] == "knafka", "an Ingress is beside what it leads to"
    assert route["metadata"]["annotations"][routes.INGRESS_CLASS] == "some.ingress.class"
    (rule,) = route["spec"]["rules"]
    assert rule["hosts"] == [
        "orders-kn-channel.shop", "orders-kn-channel.shop.svc", host,
    ]  # fmt: skip
    (path,) = rule["http"]["paths"]
    assert path["rewriteHost"] == "kafka-channel-receiver.knafka.svc.cluster.local"
    assert path["splits"][0]["appendHeaders"] == {"K-Original-Host": host}
    assert world.ingresses()["/shop/orders"].hosts == tuple(rule["hosts"])
    assert name["metadata"]["ownerReferences"][0]["kind"] == "KafkaChannel"
    await world.delete_channel(SHOP, "orders")
    assert key not in world.cluster.objects
    assert ("v1", "Service", SHOP, "orders-kn-channel") not in world.cluster.objects


async def test_a_route_that_is_refused_is_a_condition(world: ChannelWorld) -> None:
    world.add_gateway()
    world.cluster.refuse("apply", "Ingress", error=Rejected("its webhook denied it"))
    world.declare_channel(SHOP, "orders")
    status = await world.reconcile_channel(SHOP, "orders")
    assert condition(status, "Ready")["reason"] == "RouteRejected"
    assert "denied" in condition(status, "ProbeSucceeded")["message"]


@pytest.mark.conformance("CHN-6", "CHN-11", "CHN-23")
async def test_many_channels_have_one_receiver_whose_revision_stays(world: ChannelWorld) -> None:
    """CHN-11, CHN-23: one more channel is no new Revision, and applies nothing."""
    world.declare_channel(SHOP, "orders")
    await world.reconcile_channel(SHOP, "orders")
    before = service(world, "kafka-channel-receiver")["metadata"]["generation"]
    world.cluster.requests.clear()
    for number in range(20):
        world.declare_channel(SHOP, f"more-{number}")
        await world.reconcile_channel(SHOP, f"more-{number}")
    assert service(world, "kafka-channel-receiver")["metadata"]["generation"] == before
    assert world.cluster.requests["apply"] == 0
    assert len(world.ingresses()) == 21


@pytest.mark.conformance("KN-CHN-01")
async def test_a_channel_is_ready_only_when_every_replica_has_read_of_it(
    world: ChannelWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KN-CHN-01: an address that is Ready is never answered 404."""
    monkeypatch.setattr(receivers, "CONTRACT_READ_TIMEOUT", 0.5)
    monkeypatch.setattr(receivers, "REPLICA_POLL_INTERVAL", 0.01)
    world.behind = {"pod-1": 1, "pod-2": 0}
    world.declare_channel(SHOP, "orders")
    status = await world.reconcile_channel(SHOP, "orders")
    assert condition(status, "Ready")["reason"] == "ReceiverBehind"
    assert "pod-2" in condition(status, "ContractUpdated")["message"]
    assert status.get("address") is None
    world.behind["pod-2"] = 1
    status = await world.reconcile_channel(SHOP, "orders")
    assert condition(status, "Ready")["status"] == "True"


@pytest.mark.conformance("CHN-11", "CHN-20", "CHN-21", "DSP-11")
async def test_each_kafka_secret_has_a_receiver_of_its_own(world: ChannelWorld) -> None:
    """CHN-11, CHN-20, CHN-21: a Secret that is labelled for it, with servers of its own."""
    secret = {"protocol": "SASL_PLAINTEXT", "user": "me", "password": "x"}
    world.declare_secret("knafka", "second", **secret, **{"bootstrap.servers": "other:9092"})
    world.declare_channel(SHOP, "orders", {KAFKA_SECRET: "second"})
    status = await world.reconcile_channel(SHOP, "orders")
    assert condition(status, "ConfigParsed")["reason"] == "SecretNotAllowed"
    stored = world.cluster.objects["v1", "Secret", "knafka", "second"]
    world.cluster.put(
        {
            **stored,
            "metadata": {**stored["metadata"], "labels": {"knafka.dev/kafka-secret": "true"}},
        }
    )
    status = await world.reconcile_channel(SHOP, "orders")
    assert condition(status, "Ready")["status"] == "True", status["conditions"]
    assert status["annotations"]["bootstrap.servers"] == "other:9092"
    assert world.cluster.services() == {"second-kafka-channel-receiver"}
    pod = service(world, "second-kafka-channel-receiver")["spec"]["template"]["spec"]
    assert pod["volumes"][0]["secret"]["secretName"] == "second"
    assert world.connected[-1]["bootstrap.servers"] == "other:9092"


async def test_another_implementation_of_channels_is_said_in_a_condition(
    world: ChannelWorld,
) -> None:
    metadata = {"namespace": "knative-eventing", "name": "kafka-channel-ingress"}
    world.cluster.put({"apiVersion": "v1", "kind": "Service", "metadata": metadata})
    world.declare_channel(SHOP, "orders")
    status = await world.reconcile_channel(SHOP, "orders")
    assert condition(status, "Ready")["reason"] == "OtherImplementation"
    assert TOPIC not in world.log.topics


async def test_a_channel_that_another_implementation_serves_keeps_its_status(
    world: ChannelWorld,
) -> None:
    """But for one condition that counts for nothing: two that wrote Ready would never be quiet."""
    metadata = {"namespace": "knative-eventing", "name": "kafka-channel-ingress"}
    world.cluster.put({"apiVersion": "v1", "kind": "Service", "metadata": metadata})
    world.declare_channel(SHOP, "orders")
    at = "2026-01-01T00:00:00Z"
    theirs = {
        "address": {"url": "http://theirs/"},
        "subscribers": [{"uid": "a", "ready": "True"}],
        "conditions": [
            {"type": "ConfigMapUpdated", "status": "True", "lastTransitionTime": at},
            {"type": "Ready", "status": "True", "lastTransitionTime": at},
        ],
    }
    world.cluster.put({**world.stored("KafkaChannel", SHOP, "orders"), "status": theirs})
    status = await world.reconcile_channel(SHOP, "orders")
    assert {**status, "conditions": status["conditions"][:2]} == theirs
    assert condition(status, "ServedByKnafka")["reason"] == "OtherImplementation"
    version = world.stored("KafkaChannel", SHOP, "orders")["metadata"]["resourceVersion"]
    await world.reconcile_channel(SHOP, "orders")
    again = world.stored("KafkaChannel", SHOP, "orders")["metadata"]["resourceVersion"]
    assert again == version
    assert TOPIC not in world.log.topics


async def test_a_topic_that_is_not_the_channels_is_left_alone(world: ChannelWorld) -> None:
    world.log.create(TOPIC)
    world.declare_channel(SHOP, "orders")
    status = await world.reconcile_channel(SHOP, "orders")
    assert condition(status, "TopicReady")["reason"] == "TopicNotOurs"
    await world.delete_channel(SHOP, "orders")
    assert TOPIC in world.log.topics


@pytest.mark.conformance("KN-CHN-01", "KN-CHN-03", "KN-CHN-11", "KN-SUB-03", "KN-SUB-05")
@pytest.mark.conformance("CHN-13", "CHN-14", "CHN-19", "CHN-22", "CHN-26", "CHN-27")
@pytest.mark.conformance("DSP-2", "DSP-3")
async def test_a_subscription_is_delivered_by_a_shared_dispatcher_of_its_channel(
    world: ChannelWorld,
) -> None:
    """CHN-14, CHN-22, CHN-26, CHN-27, DSP-2, DSP-3, KN-CHN-11: a group for each Subscription, one
    dispatcher for all, in the operator's namespace; in order of partitions."""
    world.declare_channel(SHOP, "orders", numPartitions=2)
    await world.reconcile_channel(SHOP, "orders")
    for name in ("audit", "mail"):
        world.declare_subscription(SHOP, name, "orders", reply={"uri": "http://replies/"})
        status = await world.reconcile_subscription(SHOP, name)
        assert condition(status, "Ready")["status"] == "True", status["conditions"]
        uid = world.stored("Subscription", SHOP, name)["metadata"]["uid"]
        egress = world.egress_of(SHOP, name)
        assert egress.group == f"kafka.shop.orders.{uid}"
        assert egress.order is Order.PARTITION
        assert egress.kind == "Subscription"
        assert egress.reply.url == "http://replies/"
        assert egress.topic == TOPIC
        assert status["annotations"]["group.id"] == egress.group
        assert status["physicalSubscription"] == {
            "subscriberUri": "http://there/",
            "replyUri": "http://replies/",
            "deadLetterSinkUri": None,
            **dict.fromkeys(("subscriberCACerts", "replyCACerts", "deadLetterSinkCACerts")),
        }
        assert egress.group in world.log.groups
    dispatchers = world.cluster.services() - {"kafka-channel-receiver"}
    assert len(dispatchers) == 1
    (shard,) = dispatchers
    assert shard.endswith("-kn-channel-shard-0")
    assert "ownerReferences" not in service(world, shard)["metadata"]
    assert not [each for each in world.cluster.objects if each[1:3] == ("Service", SHOP)]


@pytest.mark.conformance("KN-CHN-05", "CHN-33", "DSP-9", "DSP-10")
async def test_the_channel_says_which_subscribers_it_delivers_to(world: ChannelWorld) -> None:
    """KN-CHN-05, DSP-10: in spec.subscribers, and in status.subscribers once it is operational."""
    world.declare_channel(SHOP, "orders")
    await world.reconcile_channel(SHOP, "orders")
    world.declare_subscription(SHOP, "audit", "orders", delivery={"retry": 3})
    broken = {"ref": {"apiVersion": "v1", "kind": "Service", "name": "absent"}}
    world.declare_subscription(SHOP, "broken", "orders", subscriber=broken)
    for name in ("audit", "broken"):
        await world.reconcile_subscription(SHOP, name)
    status = await world.reconcile_channel(SHOP, "orders")
    uids = {
        name: world.stored("Subscription", SHOP, name)["metadata"]["uid"]
        for name in ("audit", "broken")
    }
    reported = {each["uid"]: each for each in status["subscribers"]}
    assert reported[uids["audit"]]["ready"] == "True"
    assert reported[uids["broken"]]["ready"] != "True"
    assert reported[uids["broken"]]["message"]
    (declared,) = world.stored("KafkaChannel", SHOP, "orders")["spec"]["subscribers"]
    assert declared["uid"] == uids["audit"]
    assert declared["subscriberUri"] == "http://there/"
    assert declared["delivery"] == {"retry": 3}
    await world.delete_subscription(SHOP, "audit")
    status = await world.reconcile_channel(SHOP, "orders")
    assert [each["uid"] for each in status["subscribers"]] == [uids["broken"]]
    assert not world.stored("KafkaChannel", SHOP, "orders")["spec"].get("subscribers")


async def test_subscribers_that_are_no_list_are_replaced_by_a_list(world: ChannelWorld) -> None:
    """As a file of the local mode may have them, which no schema has looked at."""
    world.declare_channel(SHOP, "orders")
    await world.reconcile_channel(SHOP, "orders")
    stored = world.stored("KafkaChannel", SHOP, "orders")
    world.cluster.put({**stored, "spec": {**stored["spec"], "subscribers": 5}})
    world.declare_subscription(SHOP, "audit", "orders")
    await world.reconcile_subscription(SHOP, "audit")
    await world.reconcile_channel(SHOP, "orders")
    (declared,) = world.stored("KafkaChannel", SHOP, "orders")["spec"]["subscribers"]
    assert declared["uid"] == world.stored("Subscription", SHOP, "audit")["metadata"]["uid"]


@pytest.mark.conformance("KN-SUB-01", "KN-SUB-06")
async def test_a_subscription_waits_for_its_channel(world: ChannelWorld) -> None:
    """KN-SUB-01: it may be made first, and isn't Ready until the channel is."""
    world.declare_subscription(SHOP, "audit", "orders")
    status = await world.reconcile_subscription(SHOP, "audit")
    assert condition(status, "ChannelReady")["reason"] == "ChannelDoesNotExist"
    assert condition(status, "Ready")["status"] != "True"
    world.declare_channel(SHOP, "orders")
    await world.reconcile_channel(SHOP, "orders")
    status = await world.reconcile_subscription(SHOP, "audit")
    assert condition(status, "Ready")["status"] == "True"
    assert {each["type"] for each in status["conditions"]} >= {
        "Ready", "ChannelReady", "ReferencesResolved", "AddedToChannel",
    }  # fmt: skip


@pytest.mark.conformance("KN-SUB-03")
async def test_a_subscriber_that_cannot_be_resolved_is_an_empty_uri(world: ChannelWorld) -> None:
    """KN-SUB-03: False, with a reason, and an empty string."""
    world.declare_channel(SHOP, "orders")
    await world.reconcile_channel(SHOP, "orders")
    absent = {"ref": {"apiVersion": "v1", "kind": "Service", "name": "absent"}}
    world.declare_subscription(SHOP, "audit", "orders", subscriber=absent)
    status = await world.reconcile_subscription(SHOP, "audit")
    assert condition(status, "ReferencesResolved")["status"] == "False"
    assert condition(status, "ReferencesResolved")["reason"]
    assert status["physicalSubscription"]["subscriberUri"] == ""


@pytest.mark.conformance("KN-SUB-03")
async def test_a_reply_that_cannot_be_resolved_keeps_it_from_being_ready(
    world: ChannelWorld,
) -> None:
    """KN-SUB-03."""
    world.declare_channel(SHOP, "orders")
    await world.reconcile_channel(SHOP, "orders")
    absent = {"ref": {"apiVersion": "v1", "kind": "Service", "name": "absent"}}
    world.declare_subscription(SHOP, "audit", "orders", reply=absent)
    status = await world.reconcile_subscription(SHOP, "audit")
    assert condition(status, "ReferencesResolved")["status"] == "False"


@pytest.mark.conformance("KN-CHN-06")
async def test_a_subscriptions_delivery_overrides_the_channels_entirely(
    world: ChannelWorld,
) -> None:
    """KN-CHN-06: with any option of its own, none of the channel's holds."""
    sink = {"deadLetterSink": {"uri": "http://dead/"}, "retry": 7}
    world.declare_channel(SHOP, "orders", delivery=sink)
    await world.reconcile_channel(SHOP, "orders")
    world.declare_subscription(SHOP, "channels", "orders")
    world.declare_subscription(SHOP, "own", "orders", delivery={"timeout": "PT1S"})
    for name in ("channels", "own"):
        await world.reconcile_subscription(SHOP, name)
    channels, own = world.egress_of(SHOP, "channels"), world.egress_of(SHOP, "own")
    assert (channels.delivery.retry, channels.dead_letter_sink.url) == (7, "http://dead/")
    assert (own.delivery.retry, own.dead_letter_sink) == (0, None)


async def test_brokers_and_channels_of_one_name_share_nothing(world: ChannelWorld) -> None:
    world.declare_broker("knafka", "orders", {"knafka.dev/isolation": "shared"})
    await world.reconcile_broker("knafka", "orders")
    world.declare_trigger("knafka", "audit", "orders")
    await world.reconcile_trigger("knafka", "audit")
    world.declare_channel("knafka", "orders")
    await world.reconcile_channel("knafka", "orders")
    world.declare_subscription("knafka", "audit", "orders")
    await world.reconcile_subscription("knafka", "audit")
    (trigger,) = world.operator.triggers.watched.values()
    (subscribed,) = world.channels.triggers.watched.values()
    assert trigger.place is not None
    assert subscribed.place is not None
    assert trigger.place.shard.group != subscribed.place.shard.group
    assert trigger.place.shard.contract_topic != subscribed.place.shard.contract_topic
    assert trigger.egress.dead_letter_topic != subscribed.egress.dead_letter_topic
    shards = {each for each in world.cluster.services() if "shard" in each}
    assert len(shards) == 2
    scaler = trigger.kafka.scaler
    assert scaler is subscribed.kafka.scaler
    assert scaler.status("knafka/audit") is not None
    assert scaler.status("Subscription knafka/audit") is not None


@pytest.mark.conformance("CHN-3", "CHN-28", "DSP-4", "DSP-6", "DSP-7")
async def test_a_subscription_may_have_a_dispatcher_of_its_own(world: ChannelWorld) -> None:
    world.declare_channel(SHOP, "orders", numPartitions=3)
    await world.reconcile_channel(SHOP, "orders")
    world.declare_subscription(SHOP, "audit", "orders", {"knafka.dev/isolation": "own"})
    status = await world.reconcile_subscription(SHOP, "audit")
    assert condition(status, "Ready")["status"] == "True", status["conditions"]
    (name,) = world.cluster.services() - {"kafka-channel-receiver"}
    assert name.endswith("-kn-channel-dispatcher")
    annotations = service(world, name)["spec"]["template"]["metadata"]["annotations"]
    assert annotations["autoscaling.knative.dev/max-scale"] == "3"  # CHN-28, DSP-6
    await world.delete_subscription(SHOP, "audit")
    assert world.cluster.services() == {"kafka-channel-receiver"}


async def test_nothing_stays_of_a_channel_that_is_deleted_but_the_receiver_of_all(
    world: ChannelWorld,
) -> None:
    world.declare_channel(SHOP, "orders")
    await world.reconcile_channel(SHOP, "orders")
    world.declare_subscription(SHOP, "audit", "orders")
    await world.reconcile_subscription(SHOP, "audit")
    await world.delete_subscription(SHOP, "audit")
    await world.delete_channel(SHOP, "orders")
    assert [each for each in world.log.topics if "KafkaChannels" not in each] == []
    assert world.log.groups == {}
    assert world.ingresses() == {}
    assert world.cluster.services() == {"kafka-channel-receiver"}
    assert world.channels.states.brokers == {}


async def test_a_channel_accepts_nothing_before_its_topic_is_deleted(world: ChannelWorld) -> None:
    world.declare_channel(SHOP, "orders")
    await world.reconcile_channel(SHOP, "orders")
    world.behind = {"pod-1": 1}
    deleting = asyncio.create_task(world.delete_channel(SHOP, "orders"))
    for _ in range(50):
        await asyncio.sleep(0)
    assert TOPIC in world.log.topics
    world.behind = {"pod-1": 2}
    await deleting
    assert TOPIC not in world.log.topics


async def test_an_operator_that_starts_resumes_subscriptions_before_it_reconciles(
    world: ChannelWorld,
) -> None:
    world.declare_channel(SHOP, "orders")
    await world.reconcile_channel(SHOP, "orders")
    world.declare_subscription(SHOP, "audit", "orders")
    await world.reconcile_subscription(SHOP, "audit")
    await world.reconcile_channel(SHOP, "orders")
    await world.restart()
    assert await world.channels.resume() == 1
    assert world.egress_of(SHOP, "audit").topic == TOPIC
    status = await world.reconcile_channel(SHOP, "orders")
    assert condition(status, "Ready")["status"] == "True"


async def test_kafka_that_is_away_is_a_condition_of_the_channel(world: ChannelWorld) -> None:
    world.kafka_failures["describe_topic"] = LogError("no brokers")
    world.declare_channel(SHOP, "orders")
    status = await world.reconcile_channel(SHOP, "orders")
    assert condition(status, "TopicReady")["reason"] == "KafkaNotReachable"


@pytest.mark.conformance("KN-CHN-10")
def test_the_channels_version_is_upstreams() -> None:
    """KN-CHN-10."""
    assert VERSION == "messaging.knative.dev/v1beta1"


async def test_installations_that_use_one_kafka_have_contracts_of_their_own(
    world: ChannelWorld,
) -> None:
    """Else each would serve the other's channels, and withdraw them as gone."""
    world.declare_channel(SHOP, "orders")
    await world.reconcile_channel(SHOP, "orders")
    (topic,) = (each for each in world.log.topics if each.startswith(CONTRACT))
    assert "c0ffee00" in topic
