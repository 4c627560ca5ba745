"""When a writer's producers are replaced, as records of a topic time out."""

from __future__ import annotations

import pytest

from knafka.clients.kafka.kafka_client import PartitionKey
from knafka.clients.kafka.producers import kafka_timed_out_topics
from knafka.clients.kafka.producers.kafka_timed_out_topics import (
    MAX_REPLACEMENTS,
    TimedOutTopics,
)
from knafka.core.errors import LogError


class World:
    """Topics with ids, and how often the producers were replaced."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ids = {"a": "1", "b": "1"}
        self.is_away = False
        self.replacements = 0
        monkeypatch.setattr(kafka_timed_out_topics, "ids_of_topics_with_leader", self._ids)
        self.topics = TimedOutTopics({}, self._replace)

    def _ids(self, connection: object, partitions: set[PartitionKey]) -> dict[str, str]:
        if self.is_away:
            raise LogError("Kafka is away")
        return {topic: self.ids[topic] for topic, _ in partitions if topic in self.ids}

    async def _replace(self) -> None:
        self.replacements += 1

    async def time_out(self, *topics: str) -> int:
        """Have records of these topics time out; returns how often the producers were replaced
        for them."""
        count = self.replacements
        for topic in topics:
            self.topics.note_timeout(topic, 0)
        assert self.topics._task is not None
        await self.topics._task
        return self.replacements - count


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(kafka_timed_out_topics, "DESCRIBE_DELAY", 0.0)
    monkeypatch.setattr(kafka_timed_out_topics, "REPLACEMENT_INTERVAL", 0.0)
    return World(monkeypatch)


async def test_a_topic_whose_records_go_on_timing_out_replaces_the_producers_a_few_times_only(
    world: World,
) -> None:
    for _ in range(MAX_REPLACEMENTS):
        assert await world.time_out("a") == 1
    assert await world.time_out("a") == 0


async def test_a_topic_that_was_created_anew_replaces_them_again(world: World) -> None:
    for _ in range(MAX_REPLACEMENTS + 1):
        await world.time_out("a")
    world.ids["a"] = "2"
    assert await world.time_out("a") == 1


async def test_topics_whose_records_time_out_together_replace_them_once(world: World) -> None:
    assert await world.time_out("a", "b") == 1


async def test_a_topic_without_a_leader_or_a_kafka_that_is_away_replaces_none(
    world: World,
) -> None:
    assert await world.time_out("missing") == 0
    world.is_away = True
    assert await world.time_out("a") == 0
    world.is_away = False
    assert await world.time_out("a") == 1
