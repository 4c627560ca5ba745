"""A Broker's contract topic as the operator keeps it: written together, read again, put right."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.memory.admin import MemoryAdmin
from support.operator_world import OperatorWorld, condition, running_operator
from support.sharing import (
    CONTRACT,
    DISPATCHER,
    FIRST,
    GROUP,
    ORDERS,
    OWN,
    SHARED,
    SHOP,
    contract,
    declare,
    dispatcher,
    is_ready,
)

from knafka.core.contract import MAX_RECORD_BYTES
from knafka.core.errors import LogError, LogFull
from knafka_operator.kafka.contracts import SharedContractTopic
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import EVENTING
from knafka_operator.model.topics import Topic

pytestmark = pytest.mark.looptime


@pytest.fixture
async def world() -> AsyncIterator[OperatorWorld]:
    async with running_operator() as world:
        world.declare_broker(SHOP)
        await world.reconcile_broker(SHOP)
        yield world


def contract_topic(world: OperatorWorld) -> SharedContractTopic:
    """The Broker's topic, as the operator keeps it."""
    (topic,) = world.operator.states.brokers[Identity(SHOP, "default")].contracts.values()
    assert isinstance(topic, SharedContractTopic)
    return topic


async def test_records_that_come_together_are_written_together(
    world: OperatorWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    await declare(world, SHARED)
    found = contract_topic(world)
    record = found.records[GROUP]
    asked = 0
    original = found.kafka.topics.end_offsets

    async def end_offsets(topic: str) -> Any:
        nonlocal asked
        asked += 1
        return await original(topic)

    monkeypatch.setattr(found.kafka.topics, "end_offsets", end_offsets, raising=False)
    await asyncio.gather(*(found.write(f"g{number}", record) for number in range(50)))
    assert asked == 2, "the first alone, and all that came meanwhile"
    assert found.position == 51
    assert len(contract(world)) == 51


async def test_after_a_write_that_failed_the_contract_is_read_again(world: OperatorWorld) -> None:
    """It may be stored though it was reported as failed."""
    await declare(world, SHARED)
    found = contract_topic(world)
    world.log.fail(LogError("Kafka is away"))
    status = await declare(world, SHARED, filter={"attributes": {"type": "new"}})
    assert condition(status, "SubscriptionReady")["reason"] == "KafkaNotReachable"
    world.log.fail(None)
    world.log.store(CONTRACT, GROUP.encode(), None, [])  # stored after all, by somebody before us
    assert is_ready(await world.reconcile_trigger(SHOP, "orders"))
    assert contract(world)[GROUP].egress.filter.attributes == {"type": "new"}
    assert found.position == len(world.log.topics[CONTRACT][0]) == 3


async def test_an_entry_that_kafka_refuses_as_too_large_fails_alone(world: OperatorWorld) -> None:
    """Entries that are written together may be several owners'."""
    await declare(world, SHARED)
    topic = contract_topic(world)
    record = topic.records[GROUP]
    sink = record.egress.subscriber.model_copy(update={"ca_certs": "x" * 2 * MAX_RECORD_BYTES})
    egress = record.egress.model_copy(update={"subscriber": sink})
    too_large = record.model_copy(update={"egress": egress})
    entries = {"first": record, "too-large": too_large, "second": record}
    async with topic._lock:  # so that they are written together
        writes = [asyncio.create_task(topic.write(*entry)) for entry in entries.items()]
        await asyncio.sleep(0)
    first, error, second = await asyncio.gather(*writes, return_exceptions=True)
    assert (first, second) == (None, None)
    assert isinstance(error, LogError)
    assert error.too_large
    assert contract(world).keys() == topic.records.keys() == {GROUP, "first", "second"}
    assert topic.known, "what is too large was surely not stored"
    assert topic.position == topic.compared == 3


async def test_entries_that_kafka_refused_with_one_that_is_too_large_are_written_alone(
    world: OperatorWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka refuses the whole batch in which the client has sent them."""
    await declare(world, SHARED)
    topic = contract_topic(world)
    record, writer = topic.records[GROUP], topic.kafka.ensure_writer()
    append, refused = writer.append, {"first", "second"}

    def refuse_first(name: str, key: bytes | None, *rest: Any) -> None:
        if (text := (key or b"").decode()) in refused:
            refused.discard(text)
            rest[-1](LogError("too large", too_large=True))
        else:
            append(name, key, *rest)

    monkeypatch.setattr(writer, "append", refuse_first)
    async with topic._lock:  # so that they are written together
        writes = [asyncio.create_task(topic.write(key, record)) for key in ("first", "second")]
        await asyncio.sleep(0)
    await asyncio.gather(*writes)
    assert contract(world).keys() == {GROUP, "first", "second"}


async def test_a_write_that_fails_beside_others_has_the_contract_read_again(
    world: OperatorWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    await declare(world, SHARED)
    topic = contract_topic(world)
    record, writer = topic.records[GROUP], topic.kafka.ensure_writer()
    append = writer.append

    def append_or_fail(name: str, key: bytes | None, *rest: Any) -> None:
        if key == b"fails":
            raise LogFull("the buffer is full")
        append(name, key, *rest)

    monkeypatch.setattr(writer, "append", append_or_fail, raising=False)
    async with topic._lock:
        writes = [asyncio.create_task(topic.write(key, record)) for key in ("fails", "stored")]
        await asyncio.sleep(0)
    error, stored = await asyncio.gather(*writes, return_exceptions=True)
    assert isinstance(error, LogFull)
    assert stored is None
    assert not topic.known
    await topic.load()
    assert topic.records.keys() == {GROUP, "stored"}


async def test_a_record_of_another_operator_is_noticed_though_we_have_written_since(
    world: OperatorWorld,
) -> None:
    """Else a Trigger whose record a late write had removed was Ready and not delivered."""
    await declare(world, SHARED)
    topic = contract_topic(world)
    world.log.store(CONTRACT, GROUP.encode(), None, [])  # a late write
    await topic.write("other", topic.records[GROUP])
    await world.reconcile_broker(SHOP)
    assert is_ready(await world.reconcile_trigger(SHOP, "orders"))
    assert GROUP in contract(world)


async def test_groups_that_a_contract_topic_has_from_an_earlier_broker_are_withdrawn(
    world: OperatorWorld,
) -> None:
    """That Broker went without us: nobody has deleted its topic."""
    await declare(world, SHARED)
    topic = contract_topic(world)
    record = topic.records[GROUP]
    egress = record.egress.model_copy(update={"trigger": "gone"})
    value = record.model_copy(update={"egress": egress}).model_dump_json(
        by_alias=True, exclude_none=True
    )
    async with running_operator() as later:
        later.log.create(CONTRACT)
        later.log.store(CONTRACT, b"gone", value.encode(), [])
        later.declare_broker(SHOP)
        await later.reconcile_broker(SHOP)
        await declare(later, SHARED)
        await later.reconcile_broker(SHOP)
        assert set(contract(later)) == {GROUP}


async def test_a_topic_is_created_for_a_record_while_it_is_being_deleted(
    world: OperatorWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last entry goes, and the next one comes, at the same time."""
    await declare(world, SHARED)
    topic = contract_topic(world)
    record = topic.records[GROUP]
    await topic.write(GROUP, None)
    delete_topic, deleting, go_on = (
        topic.kafka.topics.delete_topic,
        asyncio.Event(),
        asyncio.Event(),
    )

    async def delete_slowly(name: str) -> None:
        deleting.set()
        await go_on.wait()
        await delete_topic(name)

    monkeypatch.setattr(topic.kafka.topics, "delete_topic", delete_slowly, raising=False)
    deletion = asyncio.create_task(topic.delete_if_empty())
    await deleting.wait()
    creation = asyncio.create_task(topic.ensure_created(Topic(CONTRACT, 1, 1)))
    go_on.set()
    await asyncio.gather(deletion, creation)
    await topic.write(GROUP, record)
    assert set(contract(world)) == {GROUP}


async def test_a_group_leaves_though_its_contract_topic_was_made_anew_and_is_shorter(
    world: OperatorWorld,
) -> None:
    """No process gets as far as the removal was in the topic before."""
    await declare(world, SHARED)
    topic = contract_topic(world)
    for number in range(20):
        await topic.write(f"g{number}", topic.records[GROUP])
    topic.leaving["slow"] = FIRST, topic.position
    await MemoryAdmin(world.log).delete_topic(CONTRACT)
    world.log.create(CONTRACT)
    world.log.store(CONTRACT, b"g1", None, [])
    assert await topic.reload_if_changed()
    assert topic.leaving == {"slow": (FIRST, 1)}


async def test_a_contract_that_somebody_changed_is_put_right(world: OperatorWorld) -> None:
    """A write that was given up may come late."""
    await declare(world, SHARED)
    world.log.store(CONTRACT, GROUP.encode(), None, [])
    await world.reconcile_broker(SHOP)
    assert is_ready(await world.reconcile_trigger(SHOP, "orders"))
    assert contract(world).keys() == {GROUP}


async def test_a_trigger_that_went_without_us_is_in_no_shard_any_more(
    world: OperatorWorld,
) -> None:
    await declare(world, SHARED)
    world.cluster.remove(EVENTING, "Trigger", SHOP, "orders")
    await world.restart()
    await world.reconcile_broker(SHOP)
    assert contract(world) == {}


async def test_a_trigger_whose_shard_is_behind_is_not_ready(
    world: OperatorWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    await declare(world, SHARED)
    scaler = world.operator.triggers.watched[ORDERS].kafka.scaler
    asked: list[tuple[str, int]] = []
    applied = False

    async def is_applied(shard: str, position: int, timeout: float) -> bool:
        asked.append((shard, position))
        return applied

    monkeypatch.setattr(scaler, "wait_until_applied", is_applied)
    status = await declare(world, SHARED, filter={"attributes": {"type": "new"}})
    assert condition(status, "SubscriptionReady")["reason"] == "ShardBehind"
    assert asked == [(FIRST, 2)]
    status = await declare(world, OWN)
    assert condition(status, "SubscriptionReady")["reason"] == "ShardBehind"
    assert world.operator.triggers.watched[ORDERS].place is not None, "nobody else delivers yet"
    applied = True
    status = await world.reconcile_trigger(SHOP, "orders")
    assert (is_ready(status), dispatcher(status)) == (True, DISPATCHER)
    assert world.operator.triggers.watched[ORDERS].place is None
