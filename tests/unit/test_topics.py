"""Who owns a Broker's topic (naming.md: dash-joined names collide; issue 4: owned by UID)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from knafka.clients.memory_admin import MemoryAdmin
from knafka.clients.memory_log import MemoryLog
from knafka_operator.decide.desired import Topic
from knafka_operator.decide.topics import TopicRefused, drift, may_delete, own_topic

WANTED = Topic("orders", 4, 1, {"retention.ms": "1000"})


@pytest.fixture
def admin() -> MemoryAdmin:
    return MemoryAdmin(MemoryLog())


class Intention:
    """Whether, and when, the name was written down."""

    def __init__(self, admin: MemoryAdmin) -> None:
        self._admin = admin
        self.written = 0
        self.topic_was_there = False

    async def __call__(self) -> None:
        self.written += 1
        self.topic_was_there = await self._admin.describe_topic(WANTED.name) is not None


async def _own(admin: MemoryAdmin, known: str | None, wanted: Topic = WANTED) -> Any:
    return await own_topic(admin, wanted, known, Intention(admin))


async def test_a_topic_is_made_once_and_after_its_name_was_written_down(
    admin: MemoryAdmin,
) -> None:
    intention = Intention(admin)
    found = await own_topic(admin, WANTED, None, intention)
    assert (found.partitions, found.replication) == (4, 1)
    assert (intention.written, intention.topic_was_there) == (1, False)
    assert (await own_topic(admin, WANTED, found.id, intention)).id == found.id
    assert intention.written == 1


async def test_an_operator_that_died_while_it_made_the_topic_knows_it_again(
    admin: MemoryAdmin,
) -> None:
    await admin.ensure_topic("orders", 4, 1, {})
    assert (await _own(admin, "")).partitions == 4


async def test_somebody_elses_topic_is_not_adopted(admin: MemoryAdmin) -> None:
    await admin.ensure_topic("orders", 4, 1, {})
    with pytest.raises(TopicRefused, match="exists and is not this Broker's") as refused:
        await _own(admin, None)
    assert refused.value.reason == "TopicNotOurs"


async def test_somebody_elses_topic_is_used_as_it_is_when_it_is_declared_external(
    admin: MemoryAdmin,
) -> None:
    await admin.ensure_topic("orders", 7, 1, {})
    external = replace(WANTED, external=True)
    found = await _own(admin, None, external)
    assert found.partitions == 7
    assert drift(external, found) == ()


async def test_an_external_topic_must_exist(admin: MemoryAdmin) -> None:
    with pytest.raises(TopicRefused, match="does not exist"):
        await _own(admin, None, replace(WANTED, external=True))


async def test_a_topic_that_somebody_made_anew_is_not_ours(admin: MemoryAdmin) -> None:
    before = await _own(admin, None)
    await admin.delete_topic("orders")
    await admin.ensure_topic("orders", 1, 1, {})
    with pytest.raises(TopicRefused) as refused:
        await _own(admin, before.id)
    assert refused.value.reason == "TopicReplaced"
    assert not may_delete(await admin.describe_topic("orders"), before.id)


async def test_a_topic_that_somebody_deleted_is_made_again(admin: MemoryAdmin) -> None:
    before = await _own(admin, None)
    await admin.delete_topic("orders")
    assert (await _own(admin, before.id)).id != before.id


async def test_only_the_topic_that_was_made_for_a_broker_may_be_deleted_with_it(
    admin: MemoryAdmin,
) -> None:
    found = await _own(admin, None)
    assert may_delete(found, found.id)
    assert may_delete(found, "")
    assert not may_delete(found, None)
    assert not may_delete(None, found.id)


async def test_what_has_drifted_is_told_and_left_alone(admin: MemoryAdmin) -> None:
    found = await _own(admin, None)
    assert drift(WANTED, found) == []
    declared = Topic("orders", 8, 1, {"retention.ms": "2000", "segment.ms": "5"})
    assert drift(declared, found) == [
        "partitions: 4, declared 8",
        "retention.ms: 1000, declared 2000",
        "segment.ms: not set, declared 5",
    ]
    assert (await _own(admin, found.id, declared)).partitions == 4
