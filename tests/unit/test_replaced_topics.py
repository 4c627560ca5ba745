"""Topics that were deleted and created again are noticed by their ids, which a script reads."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.waiting import until

from knafka.clients.kafka.consumers import kafka_replaced_topics
from knafka.clients.kafka.consumers.kafka_replaced_topics import (
    UNKNOWN_TOPIC_ID,
    ReplacedTopics,
    TopicIds,
)
from knafka.clients.kafka.kafka_statistics import ClientStatistics
from knafka.core.errors import LogError

TOPIC = "events"


class ScriptedKafka:
    """The admin client's answers: ids and errors, of which the last one is repeated."""

    def __init__(self) -> None:
        self.answers: list[str | Exception] = []
        self.opening_errors: list[Exception] = []
        self.asked = 0
        self.connections: list[Any] = []
        self.closed = 0

    def open(self, connection: Any, timeout: float) -> ScriptedKafka:
        if self.opening_errors:
            raise self.opening_errors.pop()
        self.connections.append(connection)
        return self

    def close(self) -> None:
        self.closed += 1

    async def read_topic_id(self, calls: ScriptedKafka, topic: str) -> str:
        answer = self.answers[min(self.asked, len(self.answers) - 1)]
        self.asked += 1
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> ScriptedKafka:
    scripted = ScriptedKafka()
    monkeypatch.setattr(kafka_replaced_topics, "AdminCalls", scripted.open)
    monkeypatch.setattr(kafka_replaced_topics, "read_topic_id", scripted.read_topic_id)
    monkeypatch.setattr(kafka_replaced_topics, "FIRST_TOPIC_ID_DELAY", 0.0)
    monkeypatch.setattr(kafka_replaced_topics, "TOPIC_ID_INTERVAL", 0.01)
    return scripted


@pytest.fixture
async def topics(kafka: ScriptedKafka) -> AsyncIterator[ReplacedTopics]:
    compared = ReplacedTopics(TopicIds({"bootstrap.servers": "kafka:9092"}), [TOPIC])
    yield compared
    await compared.close()


@pytest.mark.parametrize(
    ("answers", "replacements"),
    [
        (["old", "old"], 0),
        (["old", "new"], 1),
        (["old", "new", "old", "new", "old"], 1),
        (["old", "new", "newer"], 2),
        (["old", UNKNOWN_TOPIC_ID, "old"], 0),
        ([UNKNOWN_TOPIC_ID, "old"], 0),
        (["old", LogError("deleted"), "new"], 1),
        (["old", RuntimeError("unexpected"), "new"], 1),
    ],
    ids=str,
)
async def test_only_an_id_that_was_never_read_before_counts_as_a_replacement(
    kafka: ScriptedKafka, topics: ReplacedTopics, answers: list[str | Exception], replacements: int
) -> None:
    """A node of Kafka that lags behind returns the old id again."""
    kafka.answers = answers
    topics.start()
    await until(lambda: kafka.asked > len(answers) + 1)
    assert list(topics.pop()) == [TOPIC] * replacements
    assert not topics.pop()


async def test_an_earlier_id_that_a_node_sends_again_is_not_the_present_one(
    kafka: ScriptedKafka,
) -> None:
    kafka.answers = ["old", "new", "old", UNKNOWN_TOPIC_ID, "new"]
    ids = TopicIds({})
    assert [await ids.read(TOPIC) for _ in kafka.answers] == ["old", "new", "new", "", "new"]


async def test_only_an_answer_to_a_later_request_confirms_an_id(kafka: ScriptedKafka) -> None:
    kafka.answers = ["old", "new", "old", "new"]
    ids = TopicIds({})
    assert ids.known_id(TOPIC) == ""
    for _ in range(2):
        await ids.read(TOPIC)
    since = time.monotonic()
    known: list[str] = []
    for _ in range(3):
        known.append(ids.known_id(TOPIC, since))
        await ids.read(TOPIC)
    assert known == ["", "", "new"]
    assert ids.known_id(TOPIC) == "new"


async def test_the_marks_of_all_ids_that_were_read_are_known(
    kafka: ScriptedKafka, topics: ReplacedTopics
) -> None:
    kafka.answers = ["old", "new"]
    topics.start()
    await until(lambda: topics.topic_id(TOPIC) == "new")
    assert [topics.was_read(TOPIC, mark) for mark in ("old", "new", "newer")] == [True, True, False]
    assert not topics.was_read("other", "new")


@pytest.mark.parametrize("error", [LogError("refused"), OSError("no such certificate")], ids=str)
async def test_a_client_that_cannot_be_opened_is_opened_later(
    kafka: ScriptedKafka, topics: ReplacedTopics, error: Exception
) -> None:
    kafka.opening_errors, kafka.answers = [error], ["old", "new"]
    topics.start()
    await until(lambda: kafka.asked > 2)
    assert list(topics.pop()) == [TOPIC]
    await topics.close()
    assert (len(kafka.connections), kafka.closed) == (1, 1), "one client"


async def test_the_ids_are_compared_at_once_when_a_thread_asks_for_it(
    kafka: ScriptedKafka, topics: ReplacedTopics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_replaced_topics, "TOPIC_ID_INTERVAL", 3600.0)
    kafka.answers = ["old", "new"]
    topics.hasten()  # nothing is compared yet
    topics.start()
    await until(lambda: kafka.asked == 1)
    await asyncio.to_thread(topics.hasten)
    await until(lambda: kafka.asked == 2)
    assert list(topics.pop()) == [TOPIC]


async def test_the_client_reports_no_statistics(kafka: ScriptedKafka) -> None:
    """They would count as those of a producer."""
    servers = {"bootstrap.servers": "kafka:9092"}
    compared = ReplacedTopics(TopicIds({**servers, **ClientStatistics(15).connection}), [TOPIC])
    kafka.answers = ["id"]
    compared.start()
    await until(lambda: kafka.asked)
    await compared.close()
    assert kafka.connections == [servers]


async def test_several_consumers_of_a_topic_share_its_comparisons(kafka: ScriptedKafka) -> None:
    ids = TopicIds({"bootstrap.servers": "kafka:9092"})
    first, second = (ReplacedTopics(ids, [TOPIC]) for _ in range(2))
    other = ReplacedTopics(ids, ["other"])
    kafka.answers = ["old", "new"]
    first.start()
    await until(lambda: kafka.asked)
    second.start()
    await until(lambda: kafka.asked > 2)
    assert [list(each.pop()) for each in (first, second, other)] == [[TOPIC], [TOPIC], []]
    assert first.topic_id(TOPIC) == second.topic_id(TOPIC) == "new"
    await first.close()
    asked = kafka.asked
    await until(lambda: kafka.asked > asked)
    for follower in (other, second):
        await follower.close()
    assert (len(kafka.connections), kafka.closed) == (1, 1)


async def test_a_client_that_is_shared_with_others_stays_open(kafka: ScriptedKafka) -> None:
    calls: Any = kafka
    topics = ReplacedTopics(TopicIds({}, calls), [TOPIC])
    kafka.answers = ["id"]
    topics.start()
    await until(lambda: kafka.asked)
    await topics.close()
    assert (kafka.connections, kafka.closed) == ([], 0)
