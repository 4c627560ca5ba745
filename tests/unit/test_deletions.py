"""How long a deletion is tried, and of which object."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from support.operator_world import SETTINGS
from support.sources_world import sources_world
from support.waiting import until

from knafka.core.errors import LogError
from knafka_operator.engine.deletions import LEFT_IN_KAFKA, Deletions
from knafka_operator.model.resources import CORE
from knafka_operator.model.sources import KAFKA_SOURCE, SOURCES_VERSION

KEY = "Broker", "shop", "default"


async def _fail() -> None:
    raise LogError("Kafka is away")


async def test_a_recreated_object_has_the_whole_time_for_its_deletion() -> None:
    """The finalizer of the first was removed by hand while its deletion was tried."""
    posted: list[Any] = []
    settings = replace(SETTINGS, deletion_timeout=60)
    deletions = Deletions(lambda *event: posted.append(event), settings)
    first, second = ({"metadata": {"uid": uid}} for uid in ("first", "second"))
    assert not await deletions.try_delete(KEY, first, _fail(), "left")
    uid, since = deletions.failing_since[KEY]
    deletions.failing_since[KEY] = uid, since - 61
    assert not await deletions.try_delete(KEY, second, _fail(), "left")
    assert posted == []


@pytest.mark.looptime
async def test_an_attempt_that_waits_for_drains_takes_nothing_of_the_time_for_kafka() -> None:
    """Its group may keep its last member for a moment, and has no time left to be deleted."""
    settings = replace(SETTINGS, deletion_timeout=60)
    deletions = Deletions(lambda *event: None, settings)
    document = {"metadata": {"uid": "a"}}

    async def fail_after(seconds: float) -> None:
        await asyncio.sleep(seconds)
        await _fail()

    for seconds in (100, 30, 30):
        assert not await deletions.try_delete(KEY, document, fail_after(seconds), "left")
    assert await deletions.try_delete(KEY, document, _fail(), "left")


@pytest.mark.looptime
@pytest.mark.parametrize("word", [None, ""], ids=["gone", "empty"])
async def test_a_source_whose_secret_is_no_use_is_deleted_in_the_end(word: str | None) -> None:
    """Another operator has taken over: without the Secret it can't reach the group's Kafka."""
    group = "knative-kafka-source-7c2b2f0e-5f3a-4c83-9c43-0d6f6f1a2b3c"
    password = {"secretKeyRef": {"name": "user", "key": "word"}}
    key = SOURCES_VERSION, KAFKA_SOURCE, "shop", "orders"
    async with sources_world() as world:
        stored = world.inner.cluster.objects
        world.inner.declare_secret("shop", "user", word="secret")
        sasl = {"enable": True, "user": password, "password": password}
        world.declare(consumerGroup=group, net={"sasl": sasl})
        await world.turn()
        assert world.committed(group)
        if word is None:
            world.inner.cluster.remove(CORE, "Secret", "shop", "user")
        else:
            world.inner.declare_secret("shop", "user", word=word)
        await world.start()
        await world.delete()
        assert key in stored
        await asyncio.sleep(world.inner.operator.settings.deletion_timeout)
        await world.turn()
        assert key not in stored
        await until(lambda: any(one.get("reason") == LEFT_IN_KAFKA for one in stored.values()))
