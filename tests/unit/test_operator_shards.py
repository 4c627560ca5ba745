"""Triggers that share a dispatcher: what the operator makes of them, and how one moves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.memory.log import MemoryWriter
from support.operator_world import OperatorWorld, condition, running_operator
from support.sharing import (
    CONTRACT,
    DISPATCHER,
    FIRST,
    GROUP,
    MIN_SCALE,
    ORDERS,
    OWN,
    RECEIVER,
    SERVICE,
    SHARED,
    SHOP,
    contract,
    declare,
    dispatcher,
    is_ready,
)

from knafka.core import names
from knafka.core.contract import Shard
from knafka.core.documents import parse_json
from knafka.core.errors import LogError
from knafka_operator.functions.dispatcher_services import SHARD_VARIABLE
from knafka_operator.kafka import shards
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import (
    CORE,
    EXTERNAL_TOPIC,
    ISOLATION,
    PAUSED_ANNOTATION,
    SERVING,
)

pytestmark = pytest.mark.looptime

MEMBERS = names.shard_members_group(
    names.shard_group(SHOP, "default", 0), names.broker_topic(SHOP, "default")
)
"""The group of the shard's processes."""


@pytest.fixture
async def world() -> AsyncIterator[OperatorWorld]:
    async with running_operator() as world:
        world.declare_broker(SHOP)
        await world.reconcile_broker(SHOP)
        yield world


async def test_a_shared_trigger_is_a_record_in_its_brokers_contract(world: OperatorWorld) -> None:
    status = await declare(world, SHARED, filter={"attributes": {"type": "t"}})
    assert is_ready(status)
    record = contract(world)[GROUP]
    assert record.shard == FIRST
    assert record.egress.filter.attributes == {"type": "t"}
    assert record.egress == world.operator.triggers.watched[ORDERS].egress
    assert dispatcher(status) == SERVICE


async def test_its_shards_service_is_the_brokers_and_it_has_none(world: OperatorWorld) -> None:
    await declare(world, SHARED)
    assert world.cluster.services() == {RECEIVER, SERVICE}
    service = world.cluster.objects[SERVING, "Service", SHOP, SERVICE]
    broker = world.document("Broker", SHOP)
    assert [each["uid"] for each in service["metadata"]["ownerReferences"]] == [
        broker["metadata"]["uid"]
    ]
    template = service["spec"]["template"]
    assert template["spec"]["containerConcurrency"] == 1
    environment = {each["name"]: each["value"] for each in template["spec"]["containers"][0]["env"]}
    shard = parse_json(Shard, environment[SHARD_VARIABLE])
    assert (shard.group, shard.contract_topic) == (FIRST, CONTRACT)
    assert shard.kafka is not None
    assert shard.kafka.bootstrap_servers == "kafka:9092"
    assert environment["KNAFKA_SERVICE_URL"] == f"http://{SERVICE}.{SHOP}.svc.cluster.local"
    assert world.operator.states.urls[FIRST] == environment["KNAFKA_SERVICE_URL"]


async def test_the_contracts_topic_is_compacted_and_of_one_partition(world: OperatorWorld) -> None:
    await declare(world, SHARED)
    found = world.log.descriptions[CONTRACT]
    assert (found.partitions, found.config["cleanup.policy"]) == (1, "compact")
    assert (
        found.replication == world.log.descriptions[names.broker_topic(SHOP, "default")].replication
    )


async def test_a_broker_without_shared_triggers_has_no_contract(world: OperatorWorld) -> None:
    status = await declare(world, {})
    assert is_ready(status)
    assert CONTRACT not in world.log.topics
    assert dispatcher(status) == DISPATCHER
    assert shards.CONTRACT_TOPIC_KEY not in world.document("Broker", SHOP)["status"]["annotations"]


async def test_another_filter_is_another_record_and_no_other_service(world: OperatorWorld) -> None:
    await declare(world, SHARED)
    await declare(world, SHARED, name="mail")
    before = world.cluster.objects[SERVING, "Service", SHOP, SERVICE]
    mail = contract(world)[names.trigger_group(SHOP, "mail")]
    assert is_ready(await declare(world, SHARED, filter={"attributes": {"type": "new"}}))
    assert contract(world)[GROUP].egress.filter.attributes == {"type": "new"}
    assert contract(world)[names.trigger_group(SHOP, "mail")] == mail
    assert world.cluster.objects[SERVING, "Service", SHOP, SERVICE] == before
    assert len(world.log.topics[CONTRACT][0]) == 3


async def test_a_trigger_that_stays_as_it_is_writes_nothing(world: OperatorWorld) -> None:
    await declare(world, SHARED)
    for _ in range(2):
        assert is_ready(await world.reconcile_trigger(SHOP, "orders"))
    assert len(world.log.topics[CONTRACT][0]) == 1


async def test_a_trigger_moves_to_a_shard_and_back(world: OperatorWorld) -> None:
    assert is_ready(await declare(world, OWN))
    assert world.cluster.services() == {RECEIVER, DISPATCHER}
    status = await declare(world, SHARED)
    assert (is_ready(status), dispatcher(status)) == (True, SERVICE)
    assert contract(world).keys() == {GROUP}
    assert world.cluster.services() == {RECEIVER, SERVICE}
    status = await declare(world, OWN)
    assert (is_ready(status), dispatcher(status)) == (True, DISPATCHER)
    assert contract(world) == {}
    assert DISPATCHER in world.cluster.services()
    assert world.operator.triggers.watched[ORDERS].place is None


async def test_a_brokers_isolation_is_that_of_triggers_that_declare_none(
    world: OperatorWorld,
) -> None:
    assert dispatcher(await declare(world, {})) == DISPATCHER
    assert dispatcher(await declare(world, OWN, name="mail")) == "mail-kn-dispatcher"
    world.declare_broker(SHOP, annotations=SHARED)
    await world.reconcile_broker(SHOP)
    assert dispatcher(await world.reconcile_trigger(SHOP, "orders")) == SERVICE
    assert dispatcher(await world.reconcile_trigger(SHOP, "mail")) == "mail-kn-dispatcher"


@pytest.mark.parametrize("kind", ["Trigger", "Broker"])
async def test_an_isolation_that_there_isnt_is_a_condition(world: OperatorWorld, kind: str) -> None:
    await declare(world, OWN)
    wrong = {ISOLATION: "alone"}
    if kind == "Broker":
        world.declare_broker(SHOP, annotations=wrong)
        await world.reconcile_broker(SHOP)
    status = await declare(world, wrong if kind == "Trigger" else {})
    found = condition(status, "SubscriptionReady")
    assert found["reason"] == "Invalid"
    assert "want own, shared" in found["message"]
    assert ORDERS in world.operator.triggers.watched, "it is delivered as before"


async def test_a_full_shard_has_no_room_for_another_trigger() -> None:
    async with running_operator() as world:
        await world.restart(shard_size=2)
        world.declare_broker(SHOP)
        await world.reconcile_broker(SHOP)
        for name in ("a", "b", "c"):
            assert is_ready(await declare(world, SHARED, name=name))
        found = [each.shard for each in contract(world).values()]
        assert found == [FIRST, FIRST, names.shard_group(SHOP, "default", 1)]
        await world.delete_trigger(SHOP, "a")
        assert dispatcher(await declare(world, SHARED, name="d")) == SERVICE
        assert dispatcher(await declare(world, SHARED, name="c")) == "default-kn-shard-1"


async def test_a_paused_trigger_is_in_no_shard(world: OperatorWorld) -> None:
    await declare(world, SHARED)
    status = await declare(world, {**SHARED, PAUSED_ANNOTATION: "true"})
    assert (is_ready(status), dispatcher(status)) == (True, None)
    assert contract(world) == {}
    assert dispatcher(await declare(world, SHARED)) == SERVICE
    assert contract(world).keys() == {GROUP}


async def test_a_trigger_without_a_subscriber_is_in_no_shard(world: OperatorWorld) -> None:
    await declare(world, SHARED)
    missing = {"ref": {"apiVersion": SERVING, "kind": "Service", "name": "missing"}}
    assert not is_ready(await declare(world, SHARED, subscriber=missing))
    assert contract(world) == {}


async def test_a_deleted_trigger_has_no_record(world: OperatorWorld) -> None:
    await declare(world, SHARED)
    await world.delete_trigger(SHOP, "orders")
    assert contract(world) == {}
    assert GROUP not in world.log.groups


async def test_a_deleted_broker_leaves_no_contract(world: OperatorWorld) -> None:
    await declare(world, SHARED)
    world.log.group(MEMBERS)
    await world.delete_broker(SHOP)
    assert CONTRACT not in world.log.topics
    assert MEMBERS not in world.log.groups, "the group of its shard's processes"
    assert world.cluster.services() == set()


async def test_a_shards_service_goes_when_nobody_has_used_it_for_a_while(
    world: OperatorWorld,
) -> None:

    await declare(world, SHARED)
    await declare(world, OWN)
    await world.reconcile_broker(SHOP)
    assert SERVICE in world.cluster.services(), "one may come back"
    world.log.group(MEMBERS)
    await asyncio.sleep(120)
    await world.reconcile_broker(SHOP)
    assert SERVICE not in world.cluster.services()
    assert MEMBERS not in world.log.groups


async def test_a_trigger_that_comes_back_has_its_shard_applied_again_if_only_the_group_stayed(
    world: OperatorWorld,
) -> None:
    """It was Ready without any Service."""
    await declare(world, SHARED)
    await declare(world, OWN)
    await world.reconcile_broker(SHOP)
    await asyncio.sleep(120)
    world.kafka_failures["delete_group"] = LogError("the group has members")
    await world.reconcile_broker(SHOP)
    assert SERVICE not in world.cluster.services()
    assert is_ready(await declare(world, SHARED))
    assert SERVICE in world.cluster.services()


async def test_a_trigger_that_comes_back_while_its_shard_is_deleted_has_it_applied_again(
    world: OperatorWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    await declare(world, SHARED)
    await declare(world, OWN)
    await world.reconcile_broker(SHOP)
    await asyncio.sleep(120)
    is_deleted, delete = asyncio.Event(), world.cluster.delete

    async def deleting(*name: str) -> None:
        await delete(*name)
        is_deleted.set()
        await asyncio.sleep(2)

    monkeypatch.setattr(world.cluster, "delete", deleting)
    broker = asyncio.create_task(world.reconcile_broker(SHOP))
    await is_deleted.wait()
    assert is_ready(await declare(world, SHARED))
    await broker
    assert SERVICE in world.cluster.services()
    assert world.operator._shards.services_of(Identity(SHOP, "default")) == [(SHOP, SERVICE)]


async def test_the_shard_of_a_trigger_that_left_its_own_dispatcher_is_not_deleted_as_empty(
    world: OperatorWorld,
) -> None:
    """The hand-over forgot the Trigger's number, so that its shard counted as empty."""
    await declare(world, OWN)
    assert is_ready(await declare(world, SHARED))
    for _ in range(2):
        await world.reconcile_broker(SHOP)
        await asyncio.sleep(120)
    await world.reconcile_broker(SHOP)
    assert SERVICE in world.cluster.services()


async def test_a_shard_that_was_long_empty_is_not_deleted_while_a_trigger_moves_to_it(
    world: OperatorWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    await declare(world, SHARED)
    await declare(world, OWN)
    await world.reconcile_broker(SHOP)
    await asyncio.sleep(120)
    stop = world.operator.triggers.stop_delivery

    async def stopping(identity: Identity) -> None:
        await stop(identity)
        await world.reconcile_broker(SHOP)

    monkeypatch.setattr(world.operator.triggers, "stop_delivery", stopping)
    assert is_ready(await declare(world, SHARED))
    assert SERVICE in world.cluster.services()


async def test_the_shards_of_a_broker_that_was_deleted_meanwhile_need_nothing(
    world: OperatorWorld,
) -> None:
    await declare(world, SHARED)
    identity = Identity(SHOP, "default")
    broker = world.operator.states.brokers[identity].state
    assert broker is not None
    world.operator.states.drop_broker(identity)
    await world.operator._shards.maintain(broker.broker)


@pytest.mark.parametrize("topic", [None, "legacy"], ids=["own topics", "one external topic"])
@pytest.mark.parametrize("restart", [False, True])
async def test_a_trigger_that_moves_to_another_broker_is_delivered_by_that_one_only(
    topic: str | None, restart: bool
) -> None:
    """Nothing refuses the change where no webhook runs."""
    async with running_operator() as world:
        world.log.create("legacy", 1)
        world.allow("legacy")
        for broker in ("first", "second"):
            world.declare_broker(SHOP, broker, {EXTERNAL_TOPIC: topic} if topic else {})
            await world.reconcile_broker(SHOP, broker)
        for name in ("orders", "other"):
            assert is_ready(await declare(world, SHARED, name, broker="first"))
        world.declare_trigger(SHOP, "orders", broker="second", annotations=SHARED)
        if restart:
            await world.restart()
            await world.operator.resume()
            for broker in ("first", "second"):
                await world.reconcile_broker(SHOP, broker)
        assert is_ready(await world.reconcile_trigger(SHOP, "orders"))
        if restart:
            await world.reconcile_broker(SHOP, "first")
        groups = {
            broker: set(shards.read_shared_egresses(world.log.topics[contract_topic][0]))
            for broker in ("first", "second")
            if (contract_topic := names.contract_topic(SHOP, broker))
        }
        assert groups == {"first": {names.trigger_group(SHOP, "other")}, "second": {GROUP}}


async def test_a_shards_service_that_was_deleted_is_made_again(world: OperatorWorld) -> None:
    await declare(world, SHARED)
    await world.cluster.delete(SERVING, "Service", SHOP, SERVICE)
    await world.reconcile_broker(SHOP)
    assert SERVICE in world.cluster.services()


async def test_a_shard_that_isnt_ready_takes_nothing_over(world: OperatorWorld) -> None:
    await declare(world, OWN)
    world.cluster.unready.add(SERVICE)
    status = await declare(world, SHARED)
    assert condition(status, "SubscriptionReady")["reason"] == "FunctionNotReady"
    assert dispatcher(status) == DISPATCHER
    assert world.operator.triggers.watched[ORDERS].place is None
    assert DISPATCHER in world.cluster.services()
    world.cluster.become_ready(SHOP, SERVICE)
    await world.reconcile_broker(SHOP)
    status = await world.reconcile_trigger(SHOP, "orders")
    assert (is_ready(status), dispatcher(status)) == (True, SERVICE)


async def test_two_hundred_shared_triggers_are_one_service(world: OperatorWorld) -> None:
    """What each costs the API server is its own status: its group first, conditions at the end."""
    for number in range(200):
        world.declare_trigger(SHOP, f"t{number}", annotations=SHARED)
    before, connected = world.cluster.requests.copy(), len(world.connected)
    ready = await asyncio.gather(
        *(world.reconcile_trigger(SHOP, f"t{number}") for number in range(200))
    )
    assert all(map(is_ready, ready))
    asked = world.cluster.requests - before
    # The Broker's status, which says that there is a contract, is the one more.
    assert asked == {"write_status": 401, "get": 1, "apply": 1}
    assert len(world.connected) == connected
    assert len(contract(world)) == 200
    owned = {f"t{number}" for number in range(200)}
    for each in world.cluster.objects.values():
        owners = each["metadata"].get("ownerReferences") or ()
        assert not owned & {owner.get("name") for owner in owners}


async def test_with_min_scale_its_own_pods_start_after_the_shard_let_go(
    world: OperatorWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They drain from their start, unasked."""
    await declare(world, SHARED)
    seen: list[bool] = []
    apply = world.cluster.apply

    async def applying(manifest: Any) -> Any:
        if manifest["metadata"]["name"] == DISPATCHER:
            seen.append(GROUP in contract(world))
        return await apply(manifest)

    monkeypatch.setattr(world.cluster, "apply", applying)
    status = await declare(world, {**OWN, MIN_SCALE: "1"})
    assert (is_ready(status), seen) == (True, [False])


async def test_a_changed_secret_changes_the_shard_and_moves_nobody(world: OperatorWorld) -> None:
    """Its Kafka is asked by other clients then, and is the same."""
    mine = {"apiVersion": "v1", "kind": "ConfigMap", "name": "mine"}
    world.declare_secret(SHOP, "kafka", protocol="PLAINTEXT")
    world.configure(
        SHOP, "mine", **{"bootstrap.servers": "kafka:9092", "auth.secret.ref.name": "kafka"}
    )
    world.declare_broker(SHOP, config=mine)
    await world.reconcile_broker(SHOP)
    assert is_ready(await declare(world, SHARED))
    world.declare_secret(SHOP, "kafka", protocol="PLAINTEXT", user="another")
    await world.reconcile_broker(SHOP)
    records = len(world.log.topics[CONTRACT][0])
    assert is_ready(await world.reconcile_trigger(SHOP, "orders"))
    assert len(world.log.topics[CONTRACT][0]) == records
    template = world.cluster.objects[SERVING, "Service", SHOP, SERVICE]["spec"]["template"]
    stored = world.cluster.objects[CORE, "Secret", SHOP, "kafka"]["metadata"]["resourceVersion"]
    assert template["metadata"]["annotations"]["knafka.dev/secret-version"] == stored


async def test_room_that_a_trigger_was_given_and_left_is_anothers(world: OperatorWorld) -> None:
    """It never had a record: its shard wasn't Ready, and then it wanted one of its own."""
    await world.restart(shard_size=1)
    await world.reconcile_broker(SHOP)
    world.cluster.unready.add(SERVICE)
    await declare(world, SHARED)
    await declare(world, OWN)
    world.cluster.become_ready(SHOP, SERVICE)
    await world.reconcile_broker(SHOP)
    assert dispatcher(await declare(world, SHARED, name="mail")) == SERVICE


async def test_a_broker_that_goes_meanwhile_is_a_condition_and_no_record(
    world: OperatorWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply = world.cluster.apply

    async def applying(manifest: Any) -> Any:
        stored = await apply(manifest)
        if manifest["metadata"]["name"] == SERVICE:
            await world.delete_broker(SHOP)
        return stored

    monkeypatch.setattr(world.cluster, "apply", applying)
    status = await declare(world, SHARED)
    assert condition(status, "SubscriptionReady")["reason"] == "BrokerDoesNotExist"
    assert CONTRACT not in world.log.topics


async def test_one_event_has_one_shard_asked_and_nobody_else() -> None:
    async with running_operator() as world:  # its clock is the test's, not the fixture's
        world.declare_broker(SHOP)
        await world.reconcile_broker(SHOP)
        for number in range(20):
            await declare(world, SHARED, name=f"t{number}")
        assert not +world.drains.held
        topic = names.broker_topic(SHOP, "default")
        MemoryWriter(world.log).append(topic, None, b"{}", [], lambda _: None)
        async with asyncio.timeout(60):
            while not world.drains.held.total():  # noqa: ASYNC110  # nobody signals it
                await asyncio.sleep(0.1)
        await asyncio.sleep(20)
        assert +world.drains.held == {FIRST: 1}
