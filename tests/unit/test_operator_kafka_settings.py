"""An operator on what is declared of Kafka clients, and of where a Trigger begins."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from support.memory.records import MemoryRecord
from support.operator_world import INSTALLATION, OperatorWorld, condition, running_operator

from knafka_operator.model.identity import Identity

pytestmark = pytest.mark.looptime

SHOP = "shop"
START = "knafka.dev/start-position"


@pytest.fixture
async def world() -> AsyncIterator[OperatorWorld]:
    async with running_operator() as world:
        world.declare_broker(SHOP)
        status = await world.reconcile_broker(SHOP)
        topic = status["annotations"]["default.topic"]
        for number, records in enumerate(world.log.topics[topic]):
            records.extend(
                MemoryRecord(topic, number, offset, None, b"x", None, millis=1000 * offset)
                for offset in range(4)
            )
        yield world


async def begun_at(world: OperatorWorld, name: str) -> set[int]:
    """Where its group begins, of all partitions."""
    watched = world.operator.triggers.watched[Identity(SHOP, name)]
    group, topic = watched.egress.group, watched.egress.topic
    commits = world.log.groups[group].committed
    return {each.offset for place, each in commits.items() if place[0] == topic}


@pytest.mark.parametrize(
    ("declared", "offset"),
    [(None, 4), ("latest", 4), ("earliest", 0), ("1970-01-01T00:00:01.5Z", 2)],
)
async def test_a_new_trigger_begins_where_it_says_and_its_status_keeps_it(
    world: OperatorWorld, declared: str | None, offset: int
) -> None:
    world.declare_trigger(SHOP, "mail", annotations={START: declared} if declared else {})
    status = await world.reconcile_trigger(SHOP, "mail")
    assert condition(status, "Ready")["status"] == "True"
    assert await begun_at(world, "mail") == {offset}
    assert status["annotations"].get(START) == declared


async def test_another_start_moves_nothing_once_it_has_begun(world: OperatorWorld) -> None:
    """Where webhooks are off, nothing refuses it: the status says where it began."""
    world.declare_trigger(SHOP, "mail", annotations={START: "1970-01-01T00:00:01Z"})
    await world.reconcile_trigger(SHOP, "mail")
    document = world.document("Trigger", SHOP, "mail")
    document["metadata"]["annotations"][START] = "earliest"
    world.cluster.put(document)
    await world.restart()
    await world.reconcile_broker(SHOP)
    status = await world.reconcile_trigger(SHOP, "mail")
    assert condition(status, "Ready")["status"] == "True"
    assert await begun_at(world, "mail") == {1}
    assert status["annotations"][START] == "1970-01-01T00:00:01Z"


async def test_a_start_that_says_nothing_is_the_triggers_condition(world: OperatorWorld) -> None:
    world.declare_trigger(SHOP, "mail", annotations={START: "yesterday"})
    found = condition(await world.reconcile_trigger(SHOP, "mail"), "SubscriptionReady")
    assert (found["status"], found["reason"]) == ("False", "Invalid")
    assert START in found["message"]


@pytest.mark.parametrize(
    "key", ["producer.acks", "consumer.auto.offset.reset", "default.topic.config.cleanup.policy"]
)
async def test_what_would_break_delivery_is_the_brokers_condition(
    world: OperatorWorld, key: str
) -> None:
    given = {"bootstrap.servers": "kafka:9092", key: "compact"}
    world.configure(*INSTALLATION, **given)
    status = await world.reconcile_broker(SHOP)
    found = condition(status, "ConfigParsed")
    assert (found["status"], found["reason"]) == ("False", "Invalid")
    assert found["message"].startswith(f"data.{key}: can't be")
    assert status["address"] is not None, "its receiver goes on with what was declared before"


async def test_what_a_config_map_sets_reaches_the_dispatchers(world: OperatorWorld) -> None:
    given = {"bootstrap.servers": "kafka:9092", "consumer.client.rack": "a"}
    world.configure(*INSTALLATION, **given)
    await world.reconcile_broker(SHOP)
    world.declare_trigger(SHOP, "mail", annotations={"knafka.dev/consumer.fetch.min.bytes": "9"})
    await world.reconcile_trigger(SHOP, "mail")
    kafka = world.operator.triggers.watched[Identity(SHOP, "mail")].egress.kafka
    assert kafka.consumer == {"client.rack": "a", "fetch.min.bytes": "9"}
    assert all("client.rack" not in each for each in world.connected), "the operator reads nothing"
