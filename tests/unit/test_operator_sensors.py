"""Sensors on a cluster in memory: made in order, taken down whole, and nobody else's touched."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from support.controlled import controller_of
from support.crashing import EFFECTS, Crash, Crashing
from support.intercepted import Seen
from support.operator_world import SETTINGS, OperatorWorld, condition
from support.waiting import until

from knafka.clients.memory_transactions import MemoryTransactions
from knafka.core import names
from knafka.core.contract import Egress
from knafka.core.documents import parse, parse_json
from knafka.core.drain import Holding, Waiting
from knafka.core.errors import InvalidDocument, LogError
from knafka.core.event import Event
from knafka.core.filters import compile_trigger
from knafka.core.kafka_binding import read, to_record
from knafka.core.sensor.contract import Sensor as SensorContract
from knafka.sensor.processor import Processor
from knafka_operator.decide.desired import replay_egress
from knafka_operator.model.cluster import Rejected
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import AUTOSCALING, EVENTING, PAUSED, SERVING
from knafka_operator.model.sensors import KNAFKA, SENSOR, Sensor
from knafka_operator.reconcile.sensor_publishing import SensorPublishing
from knafka_operator.reconcile.work_queue import GONE
from knafka_operator.runtime.controller import Controller
from knafka_operator.runtime.selections import SENSORS

BUS = "knative-broker-shop-default"
OWN = ("shop-default-paid-trigger", "shop-default-paid-changelog", "shop-default-paid-action")
GROUP = "shop-paid"
CHILD = "paid-ship"
ID = "Sensor shop/paid"


def spec(**more: Any) -> dict[str, Any]:
    return {
        "dependencies": [
            {"name": each, "filter": {"attributes": {"type": each}}} for each in ("order", "pay")
        ],
        "triggers": [{"name": "ship", "subscriber": {"uri": "http://ship/"}, **more}],
    }


class SensorsWorld:
    """An operator that runs Sensors, and its controller; the Broker is there."""

    def __init__(self, seen: Seen = lambda when, call: None) -> None:
        self.inner = OperatorWorld(seen)
        self.controller: Controller

    async def start(self, *, enabled: bool = True) -> None:
        """Another operator takes over."""
        await self.inner.restart(sensors=enabled)
        self.controller = controller_of(self.inner)

    def declare(
        self, name: str = "paid", annotations: Mapping[str, str] | None = None, **declared: Any
    ) -> None:
        metadata = {"namespace": "shop", "name": name, "annotations": dict(annotations or {})}
        document = {"apiVersion": KNAFKA, "kind": SENSOR, "metadata": metadata}
        self.inner.cluster.put({**document, "spec": declared or spec()})

    def found(self, kind: str = SENSOR, name: str = "paid") -> dict[str, Any]:
        version = {SENSOR: KNAFKA, "Service": SERVING}.get(kind, EVENTING)
        return self.inner.cluster.objects[version, kind, "shop", name]

    def there(self, kind: str) -> set[str]:
        return {each["metadata"]["name"] for each in self.inner.cluster.of(kind)}

    async def turn(self, kind: str = SENSOR, name: str = "paid") -> Any:
        """One reconciliation, of what the controller has heard of before."""
        stored = next(
            (each for each in self.inner.cluster.of(kind) if each["metadata"]["name"] == name), None
        )
        if stored is not None and kind != SENSOR:
            self.inner.operator.on_change(stored, gone=False)
        return await self.controller.reconcile((kind, "shop", name))

    async def settle(self, name: str = "paid") -> None:
        """Until everything had its turn often enough."""
        for _ in range(3):
            for broker in sorted(self.there("Broker")):
                await self.turn("Broker", broker)
            await self.turn(SENSOR, name)
            for trigger in sorted(self.there("Trigger")):
                await self.turn("Trigger", trigger)

    def status(self, kind: str = SENSOR, name: str = "paid") -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.found(kind, name)["status"]
        return found

    def says(self, type_: str, kind: str = SENSOR, name: str = "paid") -> tuple[str, str]:
        found = condition(self.status(kind, name), type_)
        return found["status"], found.get("reason", "")

    def contract(self, name: str = "paid") -> SensorContract:
        (container,) = self.found("Service", f"{name}-kn-sensor")["spec"]["template"]["spec"][
            "containers"
        ]
        given = {each["name"]: each["value"] for each in container["env"]}
        return parse_json(SensorContract, given["KNAFKA_SENSOR"])

    def egress(self, name: str = CHILD) -> Egress:
        (container,) = self.found("Service", f"{name}-kn-dispatcher")["spec"]["template"]["spec"][
            "containers"
        ]
        given = {each["name"]: each["value"] for each in container["env"]}
        return parse_json(Egress, given["KNAFKA_EGRESS"])

    async def delete(self, name: str = "paid") -> None:
        """`kubectl delete`, and turns for what is going until it is gone."""
        self.inner.cluster.remove(KNAFKA, SENSOR, "shop", name)
        for _ in range(3):
            for trigger in sorted(self.there("Trigger")):
                await self.turn("Trigger", trigger)
            await self.turn(SENSOR, name)


async def ready_world(seen: Seen = lambda when, call: None) -> SensorsWorld:
    world = SensorsWorld(seen)
    await world.start()
    world.inner.declare_broker("shop")
    world.declare()
    await world.settle()
    return world


@pytest.fixture
async def world() -> Any:
    world = await ready_world()
    yield world
    await world.inner.operator.close()


@pytest.mark.conformance(
    "BUS-1", "BUS-7", "BUS-8", "BUS-9", "BUS-10", "BUS-11", "BUS-33", "BUS-S14"
)
async def test_a_sensor_is_ready_once_topics_function_and_triggers_are(
    world: SensorsWorld,
) -> None:
    for each in ("BrokerReady", "TopicsReady", "FunctionReady", "TriggersReady", "Ready"):
        assert world.says(each) == ("True", ""), each
    assert set(OWN) <= world.inner.log.topics.keys(), "BUS-10, BUS-11"
    described = world.inner.log.descriptions
    limit = 2 * 1_048_588 + 65_536
    for name, policy, most in zip(
        OWN, ("delete", "compact", "delete"), (limit, limit, 16 * 1_048_588), strict=True
    ):
        found = described[name]
        assert (found.partitions, found.replication) == (
            described[BUS].partitions,
            described[BUS].replication,
        )
        assert found.config["cleanup.policy"] == policy
        assert found.config["max.message.bytes"] == str(most)
    contract = world.contract()
    assert (contract.topic, contract.group) == (BUS, GROUP), "BUS-8, BUS-S14"
    assert (contract.trigger_topic, contract.changelog_topic, contract.action_topic) == OWN
    template = world.found("Service", "paid-kn-sensor")["spec"]["template"]
    scaling = template["metadata"]["annotations"]
    assert scaling["autoscaling.knative.dev/min-scale"] == "0", "it sleeps"
    most = scaling["autoscaling.knative.dev/max-scale"]
    assert most == str(described[OWN[0]].partitions), "BUS-6: one process for each partition"
    (container,) = template["spec"]["containers"]
    given = {each["name"]: each["value"] for each in container["env"]}
    assert given["FUNCTION_TARGET"] == "sense"
    assert "KNAFKA_DRAIN_AT_START" not in given


@pytest.mark.conformance("BUS-26", "BUS-27", "BUS-34", "BUS-37")
async def test_kafkas_secret_is_attached_to_its_function_once() -> None:
    """BUS-26, BUS-27: the Broker's, and no other one; its clients' settings with it (BUS-34)."""
    world = SensorsWorld()
    await world.start()
    world.inner.declare_secret("shop", "kafka", protocol="PLAINTEXT")
    world.inner.configure(
        "shop",
        "mine",
        **{
            "bootstrap.servers": "kafka:9092",
            "auth.secret.ref.name": "kafka",
            "consumer.fetch.min.bytes": "7",
        },
    )
    config = {"apiVersion": "v1", "kind": "ConfigMap", "name": "mine"}
    world.inner.declare_broker("shop", config=config)
    world.declare()
    await world.settle()
    pod = world.found("Service", "paid-kn-sensor")["spec"]["template"]["spec"]
    (volume,) = pod["volumes"]
    assert volume["secret"]["secretName"] == "kafka"
    (mount,) = pod["containers"][0]["volumeMounts"]
    assert world.contract().kafka.secret_path == mount["mountPath"]
    assert world.contract().kafka.consumer == {"fetch.min.bytes": "7"}
    await world.inner.operator.close()


async def test_nothing_is_ready_before_its_function_is() -> None:
    world = SensorsWorld()
    await world.start()
    world.inner.cluster.unready.add("paid-kn-sensor")
    world.inner.declare_broker("shop")
    world.declare()
    await world.settle()
    assert world.says("FunctionReady") == ("Unknown", "FunctionNotReady")
    assert world.says("TriggersReady") == ("True", "")
    assert world.says("Ready") == ("Unknown", "FunctionNotReady")
    world.inner.cluster.become_ready("shop", "paid-kn-sensor")
    await world.settle()
    assert world.says("Ready") == ("True", "")
    await world.inner.operator.close()


@pytest.mark.conformance("BUS-32")
async def test_names_are_written_before_topics_and_offsets_before_the_function() -> None:
    """What an operator has begun the next one knows for its own; no event is missed (KN-TRG-06)."""
    calls: list[str] = []
    world = SensorsWorld(lambda when, call: calls.append(call) if when == "after" else None)
    await world.start()
    world.inner.declare_broker("shop")
    await world.turn("Broker", "default")
    world.declare()
    calls.clear()
    await world.turn()
    made = [each for each in calls if each in EFFECTS]
    assert made == [
        "write_status",
        *["ensure_topic"] * 3,
        *["ensure_committed"] * 2,
        "write_status",
        "apply",  # the function
        "apply",  # a Trigger
        "write_status",
    ]
    committed = world.inner.log.group(GROUP).committed
    assert {place[0] for place in committed} == {BUS, OWN[0]}
    await world.inner.operator.close()


@pytest.mark.conformance("BUS-S14")
async def test_the_group_begins_at_the_end_of_the_bus_once_and_never_again(
    world: SensorsWorld,
) -> None:
    committed = world.inner.log.group(GROUP).committed
    before = dict(committed)
    committed.clear()  # as Kafka forgets a group that rests for a week
    await world.settle()
    assert before
    assert committed == {}, "it was promised every event, and begins at the beginning"


@pytest.mark.conformance("BUS-21")
async def test_an_event_of_the_bus_becomes_an_action_that_its_trigger_delivers(
    world: SensorsWorld,
) -> None:
    contract, log = world.contract(), world.inner.log
    logs: list[MemoryTransactions] = []

    def open_log(claims: Processor) -> MemoryTransactions:
        read_ = [contract.topic, contract.trigger_topic]
        logs.append(MemoryTransactions(log, contract.group, read_, claims, "0"))
        return logs[0]

    processor = Processor(contract, open_log)
    for number, type_ in enumerate(("order", "pay", "other")):
        attributes = {"specversion": "1.0", "id": str(number), "source": "/s", "type": type_}
        draft = to_record(Event(attributes, None))
        log.store(BUS, draft.key, draft.value, draft.headers, timestamp=1_000_000 + number)
    for each in range(10):
        processor.step(1_000_100 + each)
    egress = world.egress()
    assert (egress.topic, egress.reply_topic) == (OWN[2], BUS)
    assert replay_egress(egress).reply_topic == BUS, "what a replay is answered goes to the Broker"
    (action,) = [
        each for some in log.topics[egress.topic] for each in some if each.value() is not None
    ]
    event = read(action.headers(), action.value()).event
    assert [each["type"] for each in json.loads(event.data or b"")] == ["order", "pay"]
    passes = compile_trigger(egress.filter, egress.filters)
    assert passes(event.attributes)
    assert not passes({**event.attributes, "sensortrigger": "another"})
    began = log.group(egress.group).committed
    assert {place[0] for place in began} == {OWN[2]}
    assert {each.offset for each in began.values()} == {0}, "no action is missed"


async def woken(world: SensorsWorld) -> None:
    """Have an event wait for it until a drain is held."""
    draft = to_record(
        Event({"specversion": "1.0", "id": "1", "source": "/s", "type": "order"}, None)
    )
    world.inner.log.store(BUS, draft.key, draft.value, draft.headers)
    await until(lambda: world.inner.drains.held[ID] == 1)


async def test_an_event_of_its_bus_wakes_a_sensor(world: SensorsWorld) -> None:
    url = world.inner.operator.states.urls[ID]
    assert url == "http://paid-kn-sensor.shop.svc.cluster.local"
    await woken(world)
    world.declare(**spec(delivery={"retry": 1}))
    await world.settle()
    await until(lambda: world.inner.drains.held[ID] == 1)
    await world.delete()
    assert world.inner.drains.held[ID] == 0
    assert ID not in world.inner.operator.states.urls


async def test_a_broker_that_is_deleted_ends_the_drains_of_its_sensors(
    world: SensorsWorld,
) -> None:
    await woken(world)
    await world.inner.delete_broker("shop")
    assert world.inner.drains.held[ID] == 0
    assert world.inner.operator.sensors is not None
    assert world.inner.operator.sensors.scaled() == {}


async def test_a_paused_sensor_has_no_function_and_its_events_wait(world: SensorsWorld) -> None:
    await woken(world)
    world.declare(annotations={PAUSED: "true"}, **spec())
    await world.settle()
    assert world.inner.drains.held[ID] == 0
    assert "paid-kn-sensor" not in world.there("Service")
    assert world.says("Delivering") == ("False", "Paused")
    assert world.says("Ready") == ("True", "")
    world.declare(**spec())
    await world.settle()
    await until(lambda: world.inner.drains.held[ID] == 1)
    assert world.says("Delivering") == ("True", "")


async def test_scaling_that_cannot_be_read_is_told(world: SensorsWorld) -> None:
    world.declare(annotations={AUTOSCALING + "lag-threshold": "many"}, **spec())
    await world.settle()
    assert world.says("FunctionReady") == ("False", "Invalid")


async def test_its_status_says_what_its_triggers_wait_for(world: SensorsWorld) -> None:
    held = Waiting(trigger="ship", partition=1, keys=1, since=60_000, has=("order",))
    world.inner.drains.holding = Holding(partitions=(1,), triggers=(held,))
    await woken(world)
    operator = world.inner.operator
    publishing = SensorPublishing(operator.cluster, operator.states, operator.queue)
    record = operator.states.sensors[Identity("shop", "paid")]
    assert record.scaled is not None
    kafka, _ = record.scaled
    await until(lambda: kafka.sensors.holding(ID) is not None)
    await publishing.look()
    (shown,) = world.status()["waiting"]
    at = "1970-01-01T00:01:00Z"
    oldest = [{"has": ["order"], "waitsFor": ["pay"], "since": at}]
    assert shown == {"trigger": "ship", "keys": 1, "since": at, "oldest": oldest}
    assert world.status()["annotations"]["knafka.dev/replicas"] == "1"
    writes = world.inner.cluster.requests["write_status"]
    world.inner.drains.holding = None
    await publishing.look()
    assert world.inner.cluster.requests["write_status"] == writes, "once a minute at most"


async def test_subscriber_and_delivery_are_the_triggers(world: SensorsWorld) -> None:
    world.declare(**spec(delivery={"retry": 3}))
    await world.settle()
    declared = world.found("Trigger", CHILD)["spec"]
    assert declared == {
        "broker": "default",
        "filters": [{"exact": {"sensortrigger": "ship"}}],
        "subscriber": {"uri": "http://ship/"},
        "delivery": {"retry": 3},
    }
    assert world.egress().delivery.retry == 3
    assert world.contract().generation == 2


async def test_an_action_may_be_sent_as_a_batch_of_its_events(world: SensorsWorld) -> None:
    assert not world.egress().batch
    world.declare(**spec(payload="batch"))
    await world.settle()
    egress = world.egress()
    assert egress.batch
    assert replay_egress(egress).batch
    world.inner.declare_trigger("shop", "mail", annotations={"knafka.dev/payload": "batch"})
    await world.turn("Trigger", "mail")
    assert not world.egress("mail").batch, "only an action's data are events"


@pytest.mark.conformance("BUS-S13")
async def test_retries_rate_and_dead_letters_in_argos_words_are_its_triggers(
    world: SensorsWorld,
) -> None:
    world.declare(
        **spec(
            retryStrategy={"steps": 4, "duration": "1m30s", "factor": 2},
            rateLimit={"unit": "Minute", "requestsPerUnit": 30},
            dlqTrigger={"subscriber": {"uri": "http://dead/"}},
            delivery={"timeout": "PT5S"},
        )
    )
    await world.settle()
    assert world.says("Ready") == ("True", "")
    assert world.found("Trigger", CHILD)["spec"]["delivery"] == {
        "timeout": "PT5S",
        "retry": 3,
        "backoffDelay": "PT90S",
        "backoffPolicy": "exponential",
        "deadLetterSink": {"uri": "http://dead/"},
    }
    egress = world.egress()
    assert egress.rate_limit is not None
    assert egress.rate_limit.interval == 2.0
    assert egress.dead_letter_sink is not None
    assert egress.dead_letter_sink.url == "http://dead/"


@pytest.mark.parametrize(
    ("declared", "problem"),
    [
        ({"retryStrategy": {}, "delivery": {"retry": 1}}, "triggers[0].retryStrategy: say it once"),
        (
            {
                "dlqTrigger": {"subscriber": {"uri": "http://d/"}},
                "delivery": {"deadLetterSink": {"uri": "http://d/"}},
            },
            "triggers[0].dlqTrigger: say it once",
        ),
        (
            {"dlqTrigger": {"subscriber": {"uri": "http://d/"}}, "atLeastOnce": False},
            "triggers[0].dlqTrigger: wants atLeastOnce: true of its trigger",
        ),
        (
            {"dlqTrigger": {"subscriber": {"uri": "http://d/"}, "atLeastOnce": False}},
            "triggers[0].dlqTrigger.atLeastOnce",
        ),
        (
            {"dlqTrigger": {"subscriber": {"uri": "http://d/"}, "dlqTrigger": {}}},
            "triggers[0].dlqTrigger.dlqTrigger: unknown field",
        ),
        ({"retryStrategy": {"duration": "soon"}}, "invalid value: soon: want one as 10s or 1m30s"),
        ({"retryStrategy": {"factor": 3}}, "triggers[0].retryStrategy.factor"),
        ({"retryStrategy": {"jitter": 1}}, "triggers[0].retryStrategy.jitter"),
        ({"rateLimit": {"unit": "Day", "requestsPerUnit": 1}}, "triggers[0].rateLimit.unit"),
        ({"rateLimit": {}}, "triggers[0].rateLimit.requestsPerUnit"),
    ],
)
@pytest.mark.conformance("BUS-S13")
def test_what_delivery_can_not_do_is_refused_by_its_field(
    declared: Mapping[str, Any], problem: str
) -> None:
    document = {
        "apiVersion": KNAFKA,
        "kind": SENSOR,
        "metadata": {"name": "paid"},
        "spec": spec(**declared),
    }
    with pytest.raises(InvalidDocument) as refused:
        parse(Sensor, document)
    assert problem in str(refused.value)


async def test_a_trigger_that_is_declared_no_more_goes(world: SensorsWorld) -> None:
    other = spec()
    other["triggers"][0]["name"] = "Send_It"
    world.declare(**other)
    await world.settle()
    (left,) = world.there("Trigger")
    assert left == names.sensor_trigger("paid", "Send_It")
    assert world.says("Ready") == ("True", "")


async def test_a_topic_that_is_there_already_is_not_taken_over() -> None:
    world = SensorsWorld()
    await world.start()
    world.inner.log.create(OWN[2], 7)
    theirs = world.inner.log.descriptions[OWN[2]]
    world.inner.declare_broker("shop")
    world.declare()
    await world.settle()
    distinct = names.distinct_sensor_topic("shop", "default", "paid", "action")
    assert world.contract().action_topic == distinct
    assert world.says("Ready") == ("True", "")
    await world.delete()
    assert world.inner.log.descriptions[OWN[2]] == theirs
    assert distinct not in world.inner.log.topics
    await world.inner.operator.close()


async def test_two_sensors_whose_names_join_to_the_same_share_nothing() -> None:
    """`default-x` on `default`, and `x` on `default-default`: with dashes both are one name."""
    world = SensorsWorld()
    await world.start()
    for broker in ("default", "default-default"):
        world.inner.declare_broker("shop", broker)
    world.declare("default-x")
    world.declare("x", **spec(), broker="default-default")
    for _ in range(2):
        await world.settle("default-x")
        await world.settle("x")
    one, other = world.contract("default-x"), world.contract("x")
    assert one.trigger_topic == "shop-default-default-x-trigger"
    assert other.trigger_topic == names.distinct_sensor_topic(
        "shop", "default-default", "x", "trigger"
    )
    await world.inner.operator.close()


async def test_names_that_another_sensor_has_are_left_to_it() -> None:
    """Also those that it has written down and not made yet."""
    world = SensorsWorld()
    await world.start()
    taken = world.inner.operator.states.of_sensors
    taken |= dict.fromkeys([OWN[0], GROUP], "uid-of-another")
    world.inner.declare_broker("shop")
    world.declare()
    await world.settle()
    contract = world.contract()
    of = "shop", "default", "paid"
    assert contract.trigger_topic == names.distinct_sensor_topic(*of, "trigger")
    assert contract.action_topic == OWN[2]
    assert contract.group == names.distinct_sensor_group("shop", "paid")
    assert world.says("Ready") == ("True", "")
    await world.inner.operator.close()


async def test_a_topic_that_somebody_made_anew_is_refused(world: SensorsWorld) -> None:
    world.inner.log.topics.pop(OWN[1])
    world.inner.log.create(OWN[1], 10)
    await world.settle()
    assert world.says("TopicsReady") == ("False", "TopicReplaced")


async def test_partitions_that_somebody_added_to_one_topic_are_told(world: SensorsWorld) -> None:
    """What a partition of the trigger topic holds is in the changelog's of its number."""
    described = world.inner.log.descriptions
    described[OWN[0]] = replace(described[OWN[0]], partitions=99)
    await world.settle()
    assert world.says("TopicsReady") == ("False", "PartitionsDiffer")


@pytest.mark.conformance("BUS-31")
async def test_topics_have_room_for_what_an_external_bus_takes() -> None:
    """Of its limit nothing is declared: it is asked for, so no record is too large for them."""
    world = SensorsWorld()
    await world.start()
    world.inner.log.create("mine", 4)
    described = world.inner.log.descriptions
    described["mine"] = replace(described["mine"], config={"max.message.bytes": "5000000"})
    world.inner.allow("mine")
    external = {"kafka.eventing.knative.dev/external.topic": "mine"}
    world.inner.declare_broker("shop", annotations=external)
    world.declare()
    await world.settle()
    assert world.says("Ready") == ("True", "")
    assert world.contract().topic == "mine"
    limits = [described[each].config["max.message.bytes"] for each in OWN]
    assert limits == ["10065536", "10065536", "67108864"]
    assert world.says("TopicAsDeclared") == ("True", "")
    await world.inner.operator.close()


async def test_topics_that_are_too_small_by_now_are_told(world: SensorsWorld) -> None:
    """A record that is too large stops a Sensor: its status says before that which to raise."""
    described = world.inner.log.descriptions
    described[BUS] = replace(described[BUS], config={"max.message.bytes": "5000000"})
    await world.settle()
    assert world.says("Ready") == ("True", "")
    assert world.says("TopicAsDeclared") == ("False", "TopicDrifted")
    message = condition(world.status(), "TopicAsDeclared")["message"]
    wanted = f"topic {OWN[0]} is left as it is: max.message.bytes: 2162712, declared 10065536"
    assert wanted in message


async def test_a_trigger_that_is_not_ready_is_told(world: SensorsWorld) -> None:
    world.inner.cluster.unready.add(f"{CHILD}-kn-dispatcher")
    world.declare(**spec(delivery={"retry": 1}))
    await world.settle()
    assert world.says("TriggersReady") == ("Unknown", "TriggerNotReady")
    world.declare(**spec(subscriber={"ref": {"apiVersion": "v1", "kind": "Service", "name": "no"}}))
    await world.settle()
    assert world.says("TriggersReady") == ("False", "TriggerNotReady")


async def test_a_trigger_that_the_api_server_refuses_is_told(world: SensorsWorld) -> None:
    world.inner.cluster.refuse("apply", "Trigger", error=Rejected("validation failed: retry"))
    world.declare(**spec(delivery={"retry": 1}))
    await world.settle()
    assert world.says("TriggersReady") == ("False", "TriggerRejected")


async def test_its_trigger_waits_until_the_sensor_has_topics(world: SensorsWorld) -> None:
    world.found()["status"]["annotations"] = {}
    await world.turn("Trigger", CHILD)
    assert world.says("SubscriptionReady", "Trigger", CHILD) == ("Unknown", "SensorNotReady")


@pytest.mark.conformance("BUS-31")
async def test_a_sensor_moves_with_its_broker_to_another_topic(world: SensorsWorld) -> None:
    """Its function goes before offsets are committed there, and nothing is read twice."""
    other = "mine"
    world.inner.log.create(other, 10)
    world.inner.allow(other)
    broker = world.found("Broker", "default")
    broker["metadata"]["annotations"]["kafka.eventing.knative.dev/external.topic"] = other
    await world.settle()
    assert world.contract().topic == other
    assert {place[0] for place in world.inner.log.group(GROUP).committed} >= {other, OWN[0]}
    assert world.status()["annotations"]["knafka.dev/bus"] == other


async def test_a_deleted_sensor_leaves_nothing(world: SensorsWorld) -> None:
    await world.delete()
    assert world.there(SENSOR) == set()
    assert world.there("Trigger") == set()
    assert not {each for each in world.inner.cluster.services() if each.startswith("paid")}
    assert not {each for each in world.inner.log.topics if each in OWN}
    assert GROUP not in world.inner.log.groups
    assert await world.turn() is GONE
    states = world.inner.operator.states
    assert (states.sensors, states.of_sensors, states.sensors_by_bus) == ({}, {}, {})


async def test_a_kafka_that_refuses_keeps_no_sensor_for_ever(world: SensorsWorld) -> None:
    await world.inner.restart(sensors=True, deletion_timeout=0)
    world.controller = controller_of(world.inner)
    await world.turn("Broker", "default")
    world.inner.kafka_failures["delete_topic"] = LogError("Kafka did not answer")
    await world.delete()
    assert world.there(SENSOR) == set()


async def test_a_sensor_is_looked_at_when_more_than_its_status_has_changed(
    world: SensorsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = SENSOR, "shop", "paid"
    asked: list[Any] = []
    monkeypatch.setattr(world.inner.operator.queue, "enqueue", asked.append)
    before = copy.deepcopy(world.found())
    world.controller.heard(SENSORS, [before], [])
    world.controller.heard(SENSORS, [{**before, "status": {}}], [])
    assert asked == [key]
    world.controller.heard(SENSORS, [{**before, "spec": spec(within="PT1M")}], [])
    world.controller.heard(SENSORS, [], [before])
    assert asked == [key] * 3


async def test_a_sensor_goes_after_its_broker_too(world: SensorsWorld) -> None:
    await world.inner.delete_broker("shop")
    assert GROUP not in world.inner.log.groups, "its position is none in a topic made anew"
    await world.turn()
    assert world.says("BrokerReady") == ("False", "BrokerDoesNotExist")
    assert "paid-kn-sensor" not in world.inner.cluster.services()
    await world.start()  # an operator that knows of nothing
    await world.delete()
    assert not {each for each in world.inner.log.topics if each in OWN}


async def test_a_sensor_waits_for_its_broker_and_is_woken_by_it() -> None:
    world = SensorsWorld()
    await world.start()
    world.declare()
    await world.turn()
    assert world.says("Ready") == ("False", "BrokerDoesNotExist")
    assert world.says("FunctionReady") == ("Unknown", "Waiting")
    world.inner.declare_broker("shop")
    await world.turn("Broker", "default")
    assert (SENSOR, "shop", "paid") in world.inner.operator.queue._items
    await world.inner.operator.close()


async def test_a_broker_of_another_class_is_no_bus() -> None:
    world = SensorsWorld()
    await world.start()
    world.inner.declare_broker("shop")
    broker = world.found("Broker", "default")
    broker["metadata"]["annotations"] = {"eventing.knative.dev/broker.class": "Other"}
    world.declare()
    await world.turn()
    assert world.says("BrokerReady") == ("False", "BrokerNotOurs")
    await world.inner.operator.close()


@pytest.mark.conformance("BUS-5", "BUS-S7")
async def test_what_may_not_be_repeated_is_delivered_at_most_once(world: SensorsWorld) -> None:
    """BUS-5, BUS-S7: an action is written once, and its attempts begin behind its commit."""
    assert not world.egress().at_most_once
    world.declare(**spec(atLeastOnce=False))
    await world.settle()
    assert world.egress().at_most_once
    assert world.says("Ready") == ("True", "")


async def test_a_condition_that_says_nothing_is_told_by_its_field() -> None:
    world = SensorsWorld()
    await world.start()
    world.inner.declare_broker("shop")
    world.declare(**spec(conditions="order && nothing"))
    await world.settle()
    assert world.says("Ready") == ("False", "Invalid")
    assert "nothing" in condition(world.status(), "Ready")["message"]
    await world.inner.operator.close()


async def test_a_trigger_of_that_name_which_a_user_made_stays_as_it_is() -> None:
    world = SensorsWorld()
    await world.start()
    world.inner.declare_broker("shop")
    world.inner.declare_trigger("shop", CHILD)
    before = world.found("Trigger", CHILD)["spec"]
    world.declare()
    await world.settle()
    assert world.says("TriggersReady") == ("False", "TriggerNotOurs")
    assert world.found("Trigger", CHILD)["spec"] == before
    await world.delete()
    assert world.there("Trigger") == {CHILD}
    await world.inner.operator.close()


def _owned_by(uid: str, **more: Any) -> list[dict[str, Any]]:
    of = {"apiVersion": KNAFKA, "kind": SENSOR, "name": "paid", "uid": uid, "controller": True}
    return [{**of, **more}]


@pytest.mark.parametrize(
    ("annotated", "owners"),
    [
        ("paid", lambda uid: []),
        ("nobody", lambda uid: []),
        ("paid", lambda uid: _owned_by("another")),
        ("paid", lambda uid: _owned_by(uid, controller=False)),
        ("paid", lambda uid: _owned_by(uid, apiVersion="v1")),
        (None, _owned_by),
    ],
    ids=["no owner", "no Sensor", "another UID", "no controller", "another kind", "no annotation"],
)
async def test_an_annotation_alone_delivers_nothing(
    world: SensorsWorld, annotated: str | None, owners: Callable[[str], Sequence[Any]]
) -> None:
    """Nobody reads a topic by saying so."""
    annotations = {"knafka.dev/sensor": annotated} if annotated else {}
    world.inner.declare_trigger("shop", "stray", annotations=annotations)
    uid = world.found()["metadata"]["uid"]
    world.found("Trigger", "stray")["metadata"]["ownerReferences"] = owners(uid)
    await world.turn("Trigger", "stray")
    assert world.says("SubscriptionReady", "Trigger", "stray") == ("False", "SensorNotOurs")
    assert "stray-kn-dispatcher" not in world.inner.cluster.services()


async def test_a_trigger_that_delivers_stops_when_it_is_annotated(world: SensorsWorld) -> None:
    world.inner.declare_trigger("shop", "mail")
    await world.turn("Trigger", "mail")
    assert "mail-kn-dispatcher" in world.inner.cluster.services()
    world.found("Trigger", "mail")["metadata"]["annotations"] = {"knafka.dev/sensor": "paid"}
    await world.turn("Trigger", "mail")
    assert "mail-kn-dispatcher" not in world.inner.cluster.services()


async def test_without_sensors_nothing_of_theirs_is_done(world: SensorsWorld) -> None:
    calls = world.inner.cluster.requests
    await world.start(enabled=False)
    await world.turn("Broker", "default")
    before = calls.copy()
    assert await world.turn() is GONE
    assert calls == before
    await world.turn("Trigger", CHILD)
    assert world.says("SubscriptionReady", "Trigger", CHILD) == ("False", "SensorsDisabled")
    assert f"{CHILD}-kn-dispatcher" not in world.inner.cluster.services()
    assert SETTINGS.sensors is False


@pytest.mark.conformance("BUS-32")
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("number", range(1, 26))
async def test_whatever_effect_kills_the_operator_the_next_one_goes_on(
    when: str, number: int
) -> None:
    crashing = Crashing(lambda: None)
    world = SensorsWorld(crashing)
    await world.start()
    world.inner.declare_broker("shop")
    await world.turn("Broker", "default")
    world.declare()
    crashing.at = when, number
    for step in (world.settle, world.delete):
        try:
            await step()
        except Crash:
            await world.start()
            await world.settle()
        if step == world.settle:
            assert world.says("Ready") == ("True", "")
            assert {each for each in world.inner.log.topics if "-paid-" in each} >= set(OWN)
            assert not {each for each in world.inner.log.topics if each.startswith("knafka-shop")}
    await world.delete()
    assert world.there(SENSOR) == set()
    assert not {each for each in world.inner.log.topics if each in OWN}
    assert GROUP not in world.inner.log.groups
    await world.inner.operator.close()
