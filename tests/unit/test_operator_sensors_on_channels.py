"""Sensors on KafkaChannels, on a cluster in memory: what differs from those on Brokers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import islice
from typing import Any

import pytest
from support.channel_world import ChannelWorld
from support.controlled import controller_of
from support.crashing import Crash, Crashing, moments
from support.intercepted import Seen
from support.operator_world import OperatorWorld, condition
from support.sensors_world import fired, store
from support.waiting import until

from knafka.core import names
from knafka.core.contract import Egress
from knafka.core.documents import parse, parse_json
from knafka.core.errors import InvalidDocument
from knafka.core.filters.predicates import compile_trigger
from knafka.core.sensor.contract import SensorContract as SensorContract
from knafka_operator.engine.work_queue import GONE
from knafka_operator.functions.services import OWNER_LABEL, identity_of
from knafka_operator.installation.handler import Handler
from knafka_operator.kafka.credentials import KAFKA_SECRET
from knafka_operator.kafka.egresses import replay_egress
from knafka_operator.model.channels import KAFKA_CHANNEL_VERSIONS, MESSAGING
from knafka_operator.model.cluster import Rejected
from knafka_operator.model.family import BROKERS, CHANNELS
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import EVENTING, SERVING
from knafka_operator.model.sensors import KNAFKA, SENSOR, TOPICS, Sensor
from knafka_operator.runtime.controller import ClusterController
from knafka_operator.sensors import manifests as sensor_manifests
from knafka_operator.sensors import topics as sensor_topics

CHANNEL = "orders"
BUS = "knative-messaging-kafka.shop.orders"
OWN = tuple(f"shop-KafkaChannel-orders-paid-{what}" for what in ("trigger", "changelog", "action"))
GROUP = "shop-KafkaChannel-paid"
CHILD = "paid-ship"
ID = "Sensor shop/paid"
FUNCTION = names.child("shop.paid", "-kn-channel-sensor")
DISPATCHER = names.child(f"shop.{CHILD}", "-kn-channel-dispatcher")
VERSIONS = {
    SENSOR: KNAFKA,
    "Service": SERVING,
    "KafkaChannel": KAFKA_CHANNEL_VERSIONS[0],
    "Subscription": MESSAGING,
    "Broker": EVENTING,
}


def spec(**more: Any) -> dict[str, Any]:
    return {
        "channel": CHANNEL,
        "dependencies": [
            {"name": each, "filter": {"attributes": {"type": each}}} for each in ("order", "pay")
        ],
        "triggers": [{"name": "ship", "subscriber": {"uri": "http://ship/"}, **more}],
    }


def document(name: str = "paid", **declared: Any) -> dict[str, Any]:
    metadata = {"namespace": "shop", "name": name}
    of = {"apiVersion": KNAFKA, "kind": SENSOR, "metadata": metadata}
    return {**of, "spec": declared or spec()}


class SensorsWorld:
    """An operator that runs Sensors and KafkaChannels, and its controller."""

    def __init__(self, seen: Seen = lambda when, call: None) -> None:
        self.inner = ChannelWorld(seen)
        self.controller: ClusterController

    async def start(
        self, handler: Handler = Handler.AUTO, *, eventing: bool | None = False
    ) -> None:
        """Another operator takes over, on a cluster with or without Knative Eventing."""
        await self.inner.restart(sensors=True, subscriptions=handler)
        self.controller = controller_of(self.inner)
        self.inner.channels.on_eventing(eventing)

    def declare(self, **declared: Any) -> None:
        self.inner.cluster.put(document(**declared))

    def found(self, kind: str = SENSOR, name: str = "paid") -> dict[str, Any]:
        namespace = "knafka" if kind == "Service" else "shop"
        return self.inner.cluster.objects[VERSIONS[kind], kind, namespace, name]

    def there(self, kind: str) -> set[str]:
        return {each["metadata"]["name"] for each in self.inner.cluster.of(kind)}

    async def turn(self, kind: str = SENSOR, name: str = "paid") -> Any:
        """One reconciliation, of what the controller has heard of before."""
        if kind != SENSOR and name in self.there(kind):
            self.inner.channels.on_change(self.found(kind, name), gone=False)
        return await self.controller.reconcile((kind, "shop", name))

    async def settle(self) -> None:
        """Until everything had its turn often enough."""
        for _ in range(3):
            for channel in sorted(self.there("KafkaChannel")):
                await self.turn("KafkaChannel", channel)
            await self.turn()
            for subscription in sorted(self.there("Subscription")):
                await self.turn("Subscription", subscription)

    def says(self, type_: str, kind: str = SENSOR, name: str = "paid") -> tuple[str, str]:
        found = condition(self.found(kind, name)["status"], type_)
        return found["status"], found.get("reason", "")

    def environment(self, service: str) -> Mapping[str, str]:
        (container,) = self.found("Service", service)["spec"]["template"]["spec"]["containers"]
        return {each["name"]: each["value"] for each in container["env"]}

    def contract(self) -> SensorContract:
        return parse_json(SensorContract, self.environment(FUNCTION)["KNAFKA_SENSOR"])

    def egress(self, dispatcher: str = DISPATCHER) -> Egress:
        return parse_json(Egress, self.environment(dispatcher)["KNAFKA_EGRESS"])

    async def woken(self) -> None:
        """Have an event wait for it until a drain is held."""
        store(self.inner.log, BUS, "order", "1")
        await until(lambda: self.inner.drains.held[ID] == 1)

    async def delete(self) -> None:
        """`kubectl delete`, and turns for what is going until it is gone."""
        self.inner.cluster.remove(KNAFKA, SENSOR, "shop", "paid")
        for _ in range(3):
            for subscription in sorted(self.there("Subscription")):
                await self.turn("Subscription", subscription)
            await self.turn()

    def left(self) -> set[str]:
        """What there is of it beside its own object."""
        log = self.inner.log
        groups = {each for each in log.groups if "paid" in each or each.startswith("kafka.shop.")}
        topics = {each for each in log.topics if "paid" in each and "dead-letters" not in each}
        services = {each for each in self.inner.cluster.services() if "paid" in each}
        return groups | topics | services | self.there("Subscription")


async def ready_world(seen: Seen = lambda when, call: None) -> SensorsWorld:
    world = SensorsWorld(seen)
    await world.start()
    world.inner.declare_channel("shop", CHANNEL, numPartitions=4)
    world.declare()
    await world.settle()
    return world


@pytest.fixture
async def world() -> Any:
    world = await ready_world()
    yield world
    await world.inner.operator.close()


async def test_a_sensor_reads_a_channel_with_topics_and_a_group_of_its_own(
    world: SensorsWorld,
) -> None:
    for each in ("ChannelReady", "TopicsReady", "FunctionReady", "SubscriptionsReady", "Ready"):
        assert world.says(each) == ("True", ""), each
    contract = world.contract()
    assert (contract.topic, contract.group) == (BUS, GROUP)
    assert (contract.trigger_topic, contract.changelog_topic, contract.action_topic) == OWN
    assert {world.inner.log.descriptions[each].partitions for each in OWN} == {4}
    assert {place[0] for place in world.inner.log.group(GROUP).committed} == {BUS, OWN[0]}


async def test_its_function_is_where_those_of_channels_are(world: SensorsWorld) -> None:
    """The Secret of their Kafka is there; an owner in another namespace can't be referred to."""
    metadata = world.found("Service", FUNCTION)["metadata"]
    assert metadata["labels"][OWNER_LABEL] == world.found()["metadata"]["uid"]
    assert "ownerReferences" not in metadata
    assert metadata["labels"]["knafka.dev/broker"] == names.child("shop.orders", "")
    url = f"http://{FUNCTION}.knafka.svc.cluster.local"
    assert world.inner.operator.states.urls[ID] == url
    assert world.environment(FUNCTION)["KNAFKA_SERVICE_URL"] == url


async def test_the_secret_of_its_channel_is_attached_to_its_function() -> None:
    world = SensorsWorld()
    await world.start()
    world.inner.declare_secret(
        "knafka", "second", protocol="SASL_PLAINTEXT", user="me", password="x",
        **{"bootstrap.servers": "other:9092"},
    )  # fmt: skip
    secret = world.inner.cluster.objects["v1", "Secret", "knafka", "second"]
    secret["metadata"]["labels"] = {"knafka.dev/kafka-secret": "true"}
    world.inner.declare_channel("shop", CHANNEL, {KAFKA_SECRET: "second"})
    world.declare()
    await world.settle()
    assert world.says("Ready") == ("True", "")
    pod = world.found("Service", FUNCTION)["spec"]["template"]["spec"]
    assert pod["volumes"][0]["secret"]["secretName"] == "second"
    assert world.contract().kafka.bootstrap_servers == "other:9092"
    await world.inner.operator.close()


async def test_an_event_of_the_channel_becomes_an_action_that_its_subscription_delivers(
    world: SensorsWorld,
) -> None:
    log = world.inner.log
    event = fired(world.contract(), log, "order", "pay", "other")
    egress = world.egress()
    assert egress.topic == OWN[2], "not the channel's topic"
    assert [each["type"] for each in json.loads(event.data or b"")] == ["order", "pay"]
    passes = compile_trigger(egress.filter, egress.filters)
    assert passes(event.attributes)
    assert not passes({**event.attributes, "sensortrigger": "another"})
    began = log.group(egress.group).committed
    assert {place[0] for place in began} == {OWN[2]}
    assert {each.offset for each in began.values()} == {0}, "no action is missed"


async def test_each_subscription_delivers_what_its_own_trigger_has_fired(
    world: SensorsWorld,
) -> None:
    """A Subscription has no filters to say so; the name may be one that no object can have."""
    declared = spec()
    declared["triggers"].append({"name": "Send_It", "subscriber": {"uri": "http://send/"}})
    world.declare(**declared)
    await world.settle()
    assert world.says("Ready") == ("True", "")
    child = names.sensor_trigger("paid", "Send_It")
    other = names.child(f"shop.{child}", "-kn-channel-dispatcher")
    for dispatcher, trigger in ((DISPATCHER, "ship"), (other, "Send_It")):
        egress = world.egress(dispatcher)
        passes = compile_trigger(egress.filter, egress.filters)
        fired = {each: passes({"sensortrigger": each}) for each in ("ship", "Send_It")}
        assert fired == {"ship": trigger == "ship", "Send_It": trigger == "Send_It"}
    world.declare()
    await world.settle()
    assert world.there("Subscription") == {CHILD}


async def test_replies_go_where_the_trigger_says_and_else_nowhere(world: SensorsWorld) -> None:
    egress = world.egress()
    assert (egress.kind, egress.reply, egress.reply_topic) == ("Subscription", None, None)
    world.declare(**spec(reply={"uri": "http://answers/"}))
    await world.settle()
    assert world.says("Ready") == ("True", "")
    egress = world.egress()
    assert egress.reply is not None
    assert egress.reply.url == "http://answers/"
    replayed = replay_egress(egress).reply
    assert replayed is not None, "what a replay is answered goes there, too"
    assert world.found("Subscription", CHILD)["spec"]["reply"] == {"uri": "http://answers/"}


async def test_actions_are_delivered_on_a_channel_as_on_a_broker(world: SensorsWorld) -> None:
    """One that fails holds up its own key's only; batch, rate and semantics are its trigger's."""
    world.declare(
        **spec(
            payload="batch",
            atLeastOnce=False,
            delivery={"retry": 3},
            rateLimit={"unit": "Minute", "requestsPerUnit": 30},
        )
    )
    await world.settle()
    egress = world.egress()
    assert egress.order.value == "key"
    assert (egress.batch, egress.at_most_once, egress.delivery.retry) == (True, True, 3)
    assert egress.rate_limit is not None


def test_nothing_of_a_sensor_has_the_name_that_it_would_have_on_a_broker_of_the_same_name() -> None:
    one = parse(Sensor, document())
    other = parse(Sensor, document(**{**spec(), "channel": None, "broker": CHANNEL}))
    for what in TOPICS:
        both = [set(sensor_topics.candidate_names(each, what)) for each in (one, other)]
        assert both[0].isdisjoint(both[1])
    functions = {
        sensor_manifests.function_name(each, identity_of(one)) for each in (BROKERS, CHANNELS)
    }
    assert len(functions) == 2
    assert not names.is_sensor_group(GROUP, "shop", "paid")


@pytest.mark.parametrize(
    ("declared", "problem"),
    [
        ({**spec(), "broker": "shop"}, "expected exactly one, got both: spec.broker, spec.channel"),
        (
            {**spec(reply={"uri": "http://a/"}), "channel": None},
            "spec.triggers[0].reply: must not set the field(s): on a Broker replies go",
        ),
    ],
    ids=["two buses", "a reply on a Broker"],
)
def test_what_says_two_things_at_once_is_refused(declared: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidDocument) as refused:
        parse(Sensor, document(**declared))
    assert problem in str(refused.value)


async def test_a_deleted_sensor_leaves_nothing(world: SensorsWorld) -> None:
    await world.woken()
    await world.delete()
    assert world.there(SENSOR) == set()
    assert world.left() == set()
    assert world.inner.drains.held[ID] == 0
    states = world.inner.operator.states
    assert (states.sensors, states.sensor_uid_by_name, states.sensors_by_bus) == ({}, {}, {})
    assert ID not in states.urls
    assert await world.turn() is GONE
    assert world.says("Ready", "KafkaChannel", CHANNEL) == ("True", "")


async def test_a_channel_that_is_deleted_ends_its_sensors_drains_and_groups(
    world: SensorsWorld,
) -> None:
    """Before its topic goes: a position that came later would be one in a topic made anew."""
    await world.woken()
    await world.inner.delete_channel("shop", CHANNEL)
    assert world.inner.drains.held[ID] == 0
    assert FUNCTION not in world.inner.cluster.services()
    assert GROUP not in world.inner.log.groups
    assert BUS not in world.inner.log.topics
    await world.turn()
    assert world.says("ChannelReady") == ("False", "ChannelDoesNotExist")
    await world.start()  # an operator that knows of nothing
    await world.delete()
    assert world.left() == set()


async def test_a_channel_of_a_brokers_name_is_another_bus(world: SensorsWorld) -> None:
    """Its deletion concerns no Sensor of the other."""
    world.inner.declare_broker("shop", CHANNEL)
    await world.inner.reconcile_broker("shop", CHANNEL)
    await world.inner.delete_broker("shop", CHANNEL)
    assert FUNCTION in world.inner.cluster.services()
    assert GROUP in world.inner.log.groups


async def test_a_sensor_is_woken_by_its_channel() -> None:
    world = SensorsWorld()
    await world.start()
    world.declare()
    await world.turn()
    assert world.says("Ready") == ("False", "ChannelDoesNotExist")
    assert world.says("FunctionReady") == ("Unknown", "Waiting")
    queued = world.inner.operator.queue._items
    queued.pop((SENSOR, "shop", "paid"), None)
    world.inner.declare_channel("shop", CHANNEL)
    await world.turn("KafkaChannel", CHANNEL)
    assert (SENSOR, "shop", "paid") in queued
    await world.inner.operator.close()


async def test_without_channels_a_sensor_says_what_to_enable() -> None:
    """The operator may not even ask for them: nothing of theirs is read or made."""
    world = OperatorWorld()
    await world.restart(sensors=True)
    world.cluster.refuse("get", "KafkaChannel")
    world.cluster.refuse("list", "Subscription")
    world.cluster.put(document())
    controller = controller_of(world)
    await controller.reconcile((SENSOR, "shop", "paid"))
    status = world.cluster.objects[KNAFKA, SENSOR, "shop", "paid"]["status"]
    found = condition(status, "Ready")
    assert (found["status"], found["reason"]) == ("False", "ChannelsDisabled")
    assert "KNAFKA_CHANNELS" in found["message"]
    world.cluster.remove(KNAFKA, SENSOR, "shop", "paid")
    await controller.reconcile((SENSOR, "shop", "paid"))
    assert not list(world.cluster.of(SENSOR))
    await world.operator.close()


async def test_where_knative_eventing_handles_subscriptions_a_sensor_wants_them_to_be_ours() -> (
    None
):
    """Its entries don't say that they are for actions: nothing is made that could deliver them."""
    world = SensorsWorld()
    await world.start(eventing=None)
    world.inner.declare_channel("shop", CHANNEL)
    world.declare()
    await world.settle()
    assert world.says("SubscriptionsReady") == ("Unknown", "Waiting")
    world.inner.channels.on_eventing(True)
    await world.settle()
    assert world.says("SubscriptionsReady") == ("False", "SubscriptionsNotOurs")
    assert world.says("Ready")[0] == "False"
    message = condition(world.found()["status"], "SubscriptionsReady")["message"]
    assert "KNAFKA_SUBSCRIPTIONS=own" in message
    assert world.there("Subscription") == set()
    queued = world.inner.operator.queue._items
    queued.pop((SENSOR, "shop", "paid"), None)
    world.inner.channels.on_eventing(False)
    assert (SENSOR, "shop", "paid") in queued, "it hears who handles them"
    await world.start(Handler.OWN, eventing=True)
    await world.settle()
    assert world.says("Ready") == ("True", "")
    await world.inner.operator.close()


async def test_a_subscription_that_is_not_ready_or_is_refused_is_told(world: SensorsWorld) -> None:
    missing = {"ref": {"apiVersion": "v1", "kind": "Service", "name": "no"}}
    world.declare(**spec(subscriber=missing))
    await world.settle()
    assert world.says("SubscriptionsReady") == ("False", "SubscriptionNotReady")
    world.inner.cluster.refuse("apply", "Subscription", error=Rejected("validation failed: retry"))
    world.declare(**spec(delivery={"retry": 1}))
    await world.settle()
    assert world.says("SubscriptionsReady") == ("False", "SubscriptionRejected")


async def test_a_subscription_that_a_user_made_stays_as_it_is() -> None:
    world = SensorsWorld()
    await world.start()
    world.inner.declare_channel("shop", CHANNEL)
    world.inner.declare_subscription("shop", CHILD, CHANNEL)
    before = world.found("Subscription", CHILD)["spec"]
    world.declare()
    await world.settle()
    assert world.says("SubscriptionsReady") == ("False", "SubscriptionNotOurs")
    assert world.found("Subscription", CHILD)["spec"] == before
    await world.delete()
    assert world.there("Subscription") == {CHILD}
    await world.inner.operator.close()


@pytest.mark.parametrize(
    ("name", "owned", "channel"),
    [(CHILD, False, CHANNEL), ("stray", True, CHANNEL), (CHILD, True, "another")],
    ids=["no owner", "no trigger of that name", "on another channel"],
)
async def test_an_annotation_alone_delivers_no_actions(
    name: str, owned: bool, channel: str
) -> None:
    """Nobody reads a topic by saying so."""
    world = SensorsWorld()
    await world.start()
    for each in (CHANNEL, "another"):
        world.inner.declare_channel("shop", each)
    world.declare(**spec())
    await world.settle()
    world.inner.cluster.remove(MESSAGING, "Subscription", "shop", CHILD)
    await world.turn("Subscription", CHILD)
    annotations = {"knafka.dev/sensor": "paid"}
    world.inner.declare_subscription("shop", name, channel, annotations)
    if owned:
        uid = world.found()["metadata"]["uid"]
        of = {"apiVersion": KNAFKA, "kind": SENSOR, "name": "paid", "uid": uid, "controller": True}
        world.found("Subscription", name)["metadata"]["ownerReferences"] = [of]
    await world.turn("KafkaChannel", "another")
    await world.turn("Subscription", name)
    assert world.says("AddedToChannel", "Subscription", name) == ("False", "SensorNotOurs")
    assert not {each for each in world.inner.cluster.services() if each.endswith("-dispatcher")}
    await world.inner.operator.close()


async def test_what_is_kept_of_it_is_known_by_an_operator_that_is_new(world: SensorsWorld) -> None:
    await world.start()
    states = world.inner.operator.states
    assert world.inner.operator.sensors is not None
    record = world.inner.operator.sensors.remember(world.found())
    assert record.names == {*OWN, GROUP}
    assert record.bus.identity == Identity("shop", CHANNEL)
    assert states.sensors_on(record.bus) == [Identity("shop", "paid")]


@pytest.mark.parametrize("moment", [*islice(moments(), 26)], ids=str)
async def test_whatever_effect_kills_the_operator_the_next_one_goes_on(
    moment: tuple[str, int],
) -> None:
    crashing = Crashing(lambda: None)
    world = SensorsWorld(crashing)
    await world.start()
    world.inner.declare_channel("shop", CHANNEL)
    await world.turn("KafkaChannel", CHANNEL)
    world.declare()
    crashing.at = moment
    for step in (world.settle, world.delete):
        try:
            await step()
        except Crash:
            await world.start()
            await world.settle()
        if step == world.settle:
            assert world.says("Ready") == ("True", "")
            assert set(OWN) <= world.inner.log.topics.keys()
            assert not {each for each in world.inner.log.topics if each.startswith("knafka-shop")}
    await world.delete()
    assert world.there(SENSOR) == set()
    assert world.left() == set()
    await world.inner.operator.close()
