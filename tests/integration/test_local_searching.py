"""`knafka trace` on a real Kafka: an event found in a topic, and what its group has committed."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from support.kafka import Kafka, MakeTopic
from support.waiting import until

from knafka.clients.kafka.kafka_client import open_admin
from knafka.core.errors import LogError
from knafka.core.events.event import Event
from knafka.core.events.kafka_binding import to_record
from knafka.ports.log import OffsetAndMetadata, Record
from knafka_cli.events import searching
from knafka_cli.events.searching import TopicSearch, holds_event_with
from knafka_cli.events.tracing import commits_reader
from knafka_client.topics import ranges

pytestmark = pytest.mark.kafka

NOW = int(time.time() * 1000)


def append(kafka: Kafka, topic: str, id_: str, *, ago: float, partition: int = 0) -> None:
    """`ago`: seconds."""
    draft = to_record(Event({"specversion": "1.0", "id": id_, "source": "/s", "type": "t"}, b"1"))
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    producer.produce(
        topic, draft.value, headers=list(draft.headers), partition=partition,
        timestamp=NOW - int(ago * 1000),
    )  # fmt: skip
    assert producer.flush(30) == 0


def look(kafka: Kafka, topic: str, id_: str, ago: float) -> tuple[TopicSearch, list[int]]:
    """The search, and how many records it had read each time it said."""
    search = TopicSearch(topic)
    said: list[int] = []
    searching.run_search(
        {"bootstrap.servers": kafka.bootstrap_servers}, search, holds_event_with(id_, None),
        NOW / 1000 - ago, lambda now: said.append(now.offsets_read),
    )  # fmt: skip
    return search, said


def test_every_record_of_an_event_is_found_newest_chunk_first(
    kafka: Kafka, topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "SEARCH_CHUNK_OFFSETS", 2)
    name = topic(partitions=2)
    for number, id_ in enumerate(["a", "wanted", "b", "c", "wanted", "d"]):
        append(kafka, name, id_, ago=100 - number * 10)
    append(kafka, name, "wanted", ago=75, partition=1)
    search, said = look(kafka, name, "wanted", 3600)
    assert [(each.partition(), each.offset()) for each in search.matching_records] == [
        (0, 1),
        (1, 0),
        (0, 4),
    ]
    assert said == [3, 5, 7]
    assert search.covers_topic
    assert search.ended


def test_each_record_is_looked_at_once(
    kafka: Kafka, topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a partition has many more than another, which ends in the middle of a round."""
    monkeypatch.setattr(searching, "SEARCH_CHUNK_OFFSETS", 70)
    name = topic(partitions=4)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for number in range(1000):
        producer.produce(name, str(number).encode(), partition=number % 10 % 4)
    assert producer.flush(30) == 0
    search = TopicSearch(name)
    seen: list[bytes | None] = []

    def note(record: Record) -> bool:
        seen.append(record.value())
        return False

    connection = {"bootstrap.servers": kafka.bootstrap_servers}
    searching.run_search(connection, search, note, 0.0, lambda now: None)
    assert sorted(int(each or b"") for each in seen) == list(range(1000))
    assert search.ended


def test_what_is_older_is_not_read(kafka: Kafka, topic: MakeTopic) -> None:
    name = topic(partitions=3)
    append(kafka, name, "wanted", ago=200)
    append(kafka, name, "wanted", ago=100, partition=1)
    append(kafka, name, "other", ago=50)
    search, _ = look(kafka, name, "wanted", 150)
    assert [(each.partition(), each.offset()) for each in search.matching_records] == [(1, 0)]
    assert (search.offsets_read, search.offsets_total, search.covers_topic) == (2, 2, False)
    nothing, _ = look(kafka, name, "wanted", 10)
    assert (nothing.matching_records, nothing.offsets_total) == ([], 0)


async def test_a_topic_that_ends_with_a_transaction_is_read_to_its_end(
    kafka: Kafka, topic: MakeTopic
) -> None:
    """Its marker has an offset and is no record."""
    name = topic()
    producer = Producer(
        {"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": f"search-{name}"}
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(name, b"1", headers=[("ce_id", b"wanted")])
    producer.commit_transaction(30)
    # It is acknowledged before its marker is written.
    reader = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": f"look-{name}"})
    await until(lambda: reader.get_watermark_offsets(TopicPartition(name, 0), timeout=10)[1] == 2)
    reader.close()
    search, _ = look(kafka, name, "wanted", 3600)
    assert [each.offset() for each in search.matching_records] == [0]
    assert (search.offsets_read, search.offsets_total) == (2, 2)


def test_a_topic_that_is_not_there_is_an_error(kafka: Kafka) -> None:
    with pytest.raises(LogError):
        look(kafka, "search-of-nobody", "1", 10)


def test_what_a_group_has_committed_is_asked_without_joining_it(
    kafka: Kafka, topic: MakeTopic
) -> None:
    name = topic(partitions=2)
    group = f"group-{name}"
    member = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": group})
    place = TopicPartition(name, 1, 7, metadata="k1:")
    member.commit(offsets=[place], asynchronous=False)
    member.close()
    committed = commits_reader({"bootstrap.servers": kafka.bootstrap_servers})
    assert committed(group, name, [0, 1]) == {1: OffsetAndMetadata(7, "k1:")}


def test_the_commits_of_many_groups_need_one_further_client(
    kafka: Kafka, topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[object] = []

    def open_one(*arguments: Any) -> Any:
        opened.append(open_admin(*arguments))
        return opened[-1]

    monkeypatch.setattr(ranges, "open_admin", open_one)
    name = topic()
    committed = commits_reader({"bootstrap.servers": kafka.bootstrap_servers})
    with ThreadPoolExecutor(5) as threads:
        list(threads.map(lambda number: committed(f"group-{number}", name, [0]), range(10)))
    assert len(opened) == 1
