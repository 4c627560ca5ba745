"""Ranges of offsets: what the reader says of Kafka's answers, without a Kafka."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from knafka.core.errors import LogError
from knafka.ports.shared_log import GroupHasMembers
from knafka_client.topics import ranges
from knafka_client.topics.ranges import RangeReader


class Answers:
    """A consumer that gives the answers it is made with, and raises those that are errors."""

    def __init__(self, **answers: Any) -> None:
        self._answers = answers
        self.closed = False

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def answer(*_: Any, **__: Any) -> Any:
            if isinstance(self._answers[name], Exception):
                raise self._answers[name]
            return self._answers[name]

        return answer

    def close(self) -> None:
        self.closed = True


PRESENT, EARLIER = "present-901", "earlier-901"
"""Marks of topics named t."""


def reader(monkeypatch: pytest.MonkeyPatch, consumer: Any) -> RangeReader:
    monkeypatch.setattr(ranges, "open_client", lambda *_: consumer)
    monkeypatch.setattr(ranges, "open_admin", lambda *_: None)
    monkeypatch.setattr(ranges, "read_topic_mark", lambda *_: PRESENT)
    return RangeReader({"bootstrap.servers": "kafka:9092"}, "a-group")


def place(partition: int, offset: int, metadata: str = "") -> TopicPartition:
    return TopicPartition("t", partition, offset, metadata)


def test_a_time_is_the_first_offset_since_it_within_what_is_left_of_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spans = {0: (0, 9), 1: (5, 9), 2: (0, 9)}
    with reader(
        monkeypatch, Answers(offsets_for_times=[place(0, 4), place(1, 3), place(2, -1)])
    ) as ranges_reader:
        starts = ranges_reader.offsets_since("t", spans, 0.0)
    assert starts == {0: 4, 1: 5, 2: 9}, "at the end where nothing came since"


def test_kafka_is_asked_once_which_partitions_can_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ranges, "LEADER_TIMEOUT", 0.0)
    asked: list[str] = []

    class Consumer(Answers):
        def list_topics(self, topic: str, timeout: float) -> Any:
            asked.append(topic)
            partitions = {number: SimpleNamespace(leader=number - 1) for number in range(3)}
            return SimpleNamespace(
                topics={topic: SimpleNamespace(error=None, partitions=partitions)}
            )

    with reader(monkeypatch, Consumer(get_watermark_offsets=(4, 9))) as ranges_reader:
        spans, leaderless = ranges_reader.readable_spans("t")
    assert (spans, leaderless) == ({1: (4, 9), 2: (4, 9)}, {0})
    assert asked == ["t"]


def test_partitions_without_a_committed_offset_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with reader(monkeypatch, Answers(committed=[place(0, 7), place(1, -1001)])) as ranges_reader:
        assert ranges_reader.committed("t", (0, 1)) == {0: (7, "")}


def test_an_offset_of_an_earlier_topic_of_the_name_is_none_of_this_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of_topics = [place(0, 7, f"@{EARLIER}:x"), place(1, 7, f"@{PRESENT}:y"), place(2, 7, "z")]
    with reader(monkeypatch, Answers(committed=of_topics)) as ranges_reader:
        assert ranges_reader.committed("t", (0, 1, 2)) == {1: (7, "y"), 2: (7, "z")}


def test_a_commit_says_of_which_topic_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a position in an earlier topic would be one in this topic from then on."""
    made: list[TopicPartition] = []

    class Consumer(Answers):
        def commit(self, offsets: list[TopicPartition], asynchronous: bool) -> None:
            made.extend(offsets)

    consumer = Consumer(offsets_for_times=[place(0, 9)])
    with reader(monkeypatch, consumer) as ranges_reader:
        ranges_reader.commit([place(0, 7, "x")])
    assert [(each.offset, each.metadata) for each in made] == [(7, f"@{PRESENT}:x")]


@pytest.mark.parametrize("code", [KafkaError.UNKNOWN_MEMBER_ID, KafkaError.NON_EMPTY_GROUP])
def test_a_commit_for_a_group_with_members_says_so(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    refused = KafkaException(KafkaError(code))
    consumer = Answers(commit=refused, offsets_for_times=[place(0, 9)])
    with pytest.raises(GroupHasMembers), reader(monkeypatch, consumer) as ranges_reader:
        ranges_reader.commit([place(0, 7)])
    assert consumer.closed


def test_what_kafka_refuses_is_an_error_of_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = KafkaException(KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED))
    consumer = Answers(commit=refused, committed=refused, offsets_for_times=refused)
    asked: list[Callable[[RangeReader], object]] = [
        lambda reading: reading.commit([place(0, 7)]),
        lambda reading: reading.committed("t", (0,)),
        lambda reading: reading.offsets_since("t", {0: (0, 9)}, 0.0),
    ]
    for ask in asked:
        with pytest.raises(LogError) as raised, reader(monkeypatch, consumer) as ranges_reader:
            ask(ranges_reader)
        assert not isinstance(raised.value, GroupHasMembers)
