"""Which Triggers get a replayer, when KafkaClusters answer and when one doesn't."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from knafka.clients.memory_admin import MemoryAdmin
from knafka.clients.memory_log import MemoryLog
from knafka.core import names
from knafka.core.contract import Egress, Kafka, Sink
from knafka.core.drain import DrainProgress, DrainRequest
from knafka.core.errors import LogError
from knafka_operator.model.autoscaling import Autoscaling
from knafka_operator.model.identity import Identity
from knafka_operator.reconcile.replays import with_replays
from knafka_operator.reconcile.state import Watched
from knafka_operator.scale.kafka_clusters import KafkaCluster, KafkaClusters


class _Away(MemoryAdmin):
    async def topics(self) -> Mapping[str, int]:
        raise LogError("Kafka did not answer within 15 s")


class _NoDrains:
    async def hold(
        self, trigger_id: str, egress: Egress, request: DrainRequest, stop: asyncio.Event
    ) -> AsyncIterator[DrainProgress]:
        raise AssertionError("nobody asks for a drain here")
        yield DrainProgress()


def _watched(kafka: KafkaCluster, trigger: str) -> Watched:
    egress = Egress(
        namespace="shop",
        broker="default",
        trigger=trigger,
        topic="orders",
        group=trigger,
        dead_letter_topic="dead",
        kafka=Kafka(bootstrap_servers="a:1"),
        subscriber=Sink(url="http://there"),
    )
    return Watched(kafka, egress, Autoscaling(), 1, None)


@pytest.mark.looptime
async def test_a_kafka_that_is_away_stops_the_replays_of_no_other() -> None:
    def connect(configuration: Mapping[str, Any]) -> MemoryAdmin:
        kind = _Away if configuration["bootstrap.servers"] == "away:1" else MemoryAdmin
        return kind(MemoryLog())

    kafkas = KafkaClusters(connect, _NoDrains())
    away, there = kafkas.at("away:1", None), kafkas.at("there:1", None)
    await there.topics.ensure_topic(names.replay_topic("shop", "default", "replayed"), 1, 1, {})
    watched = {
        Identity("shop", "replayed"): _watched(there, "replayed"),
        Identity("shop", "ended"): _watched(there, "ended"),
        Identity("shop", "unknown"): _watched(away, "unknown"),
        Identity("shop", "followed"): _watched(away, "followed"),
    }
    followed = [Identity("shop", "followed"), Identity("shop", "ended")]
    found = await with_replays(watched, followed)
    assert found.keys() == {Identity("shop", "replayed"), Identity("shop", "followed")}
    await kafkas.close()
