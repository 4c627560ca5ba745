"""Reading up to a point: what is cached of Kafka's answers, without a Kafka."""

from __future__ import annotations

import pytest
from confluent_kafka import TopicPartition

from knafka.clients.kafka.consumers import kafka_bounded_reader
from knafka.clients.kafka.consumers.kafka_bounded_reader import BoundedReader, _Partitions
from knafka.core.commit_metadata import mark
from knafka.ports.log import OffsetAndMetadata

TOPIC = "bus"
FIRST, SECOND = "first-78901", "second-8901"
"""Marks of the topics that have this name one after the other."""


def test_commits_of_an_earlier_topic_of_the_name_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A process that hasn't noticed the new topic yet has routed nothing of it."""
    marks = {0: FIRST, 1: FIRST, 2: ""}
    present, asked = [FIRST], list[str]()

    def committed_of(*_: object) -> list[TopicPartition]:
        return [TopicPartition(TOPIC, each, 20, mark("x", marks[each])) for each in marks]

    def read_topic_mark(admin: object, topic: str, timeout: float) -> str:
        asked.append(topic)
        return present[0]

    partitions = [TopicPartition(TOPIC, number) for number in marks]
    described = _Partitions(partitions, partitions)
    monkeypatch.setattr(BoundedReader, "_describe_topic", lambda *_: described)
    monkeypatch.setattr(kafka_bounded_reader, "open_client", lambda *_: None)
    monkeypatch.setattr(kafka_bounded_reader, "open_admin", lambda *_: None)
    monkeypatch.setattr(kafka_bounded_reader, "committed_of", committed_of)
    monkeypatch.setattr(kafka_bounded_reader, "read_topic_mark", read_topic_mark)
    monkeypatch.setattr(kafka_bounded_reader, "OTHER_MARK_VALID_SECONDS", 0.0)
    reader = BoundedReader({}, "sensor")
    commit = OffsetAndMetadata(20, "x")
    for _ in range(2):
        assert reader.committed_now(TOPIC) == {0: commit, 1: commit, 2: commit}
    assert asked == [TOPIC]

    present[0], marks[0] = SECOND, SECOND
    assert reader.committed_now(TOPIC) == {0: commit, 2: commit}
