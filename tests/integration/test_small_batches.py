"""A topic that takes smaller batches than librdkafka makes (issue 13, fault 4), on real Kafka."""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Sequence

import pytest
from support.kafka import Kafka, MakeTopic

from knafka.clients.kafka.admin.kafka_admin import KafkaAdmin
from knafka.clients.kafka.producers.kafka_writer import KafkaWriter
from knafka.core.errors import LogError
from knafka.core.events.kafka_binding import Draft

pytestmark = pytest.mark.kafka

LIMIT = 100_000
COUNT = 2000
SOON = 30.0


async def append_all(
    writer: KafkaWriter, topic: str, values: list[tuple[bytes, bytes]]
) -> list[LogError | None]:
    """Append these keys and values, all at once; what became of each."""
    answers = []
    for number, (key, value) in enumerate(values):
        answer: asyncio.Future[LogError | None] = asyncio.Future()
        writer.append(topic, key, value, [("n", b"%d" % number)], answer.set_result)
        answers.append(answer)
    return await asyncio.wait_for(asyncio.gather(*answers), SOON)


async def append_together(
    writer: KafkaWriter, topic: str, records: Sequence[Draft]
) -> LogError | None:
    """Append these records as one request has them; what became of them."""
    answer: asyncio.Future[LogError | None] = asyncio.Future()
    writer.append_all(topic, records, answer.set_result)
    return await asyncio.wait_for(answer, SOON)


async def test_events_far_below_the_limit_are_stored_however_many_come_at_once(
    kafka: Kafka, topic: MakeTopic
) -> None:
    """1,908 of 2,000 were reported as too large: the batch was, and none of them. They are sent
    again alone, whole."""
    name = topic(max_message_bytes=LIMIT)
    writer = KafkaWriter({"bootstrap.servers": kafka.bootstrap_servers})
    await writer.reach(SOON)
    values = [(b"%d" % (number % 7), b"x" * 1024) for number in range(COUNT)]
    answers = await append_all(writer, name, values)
    assert answers.count(None) == COUNT, next(each for each in answers if each)
    admin = KafkaAdmin({"bootstrap.servers": kafka.bootstrap_servers})
    numbers: dict[bytes | None, list[int]] = defaultdict(list)
    for record in await admin.read_last(name, 10 * COUNT):
        ((_, number),) = record.headers() or []
        assert record.value() == b"x" * 1024
        numbers[record.key()].append(int(number or b""))
    assert sorted(itertools.chain(*numbers.values())) == list(range(COUNT))
    assert len(numbers) == 7
    assert writer.in_flight == 0
    await admin.close()
    await writer.close(SOON)


async def test_of_a_batch_that_is_too_large_a_record_that_is_is_reported_and_the_others_are_stored(
    kafka: Kafka, topic: MakeTopic
) -> None:
    name = topic(max_message_bytes=LIMIT)
    writer = KafkaWriter({"bootstrap.servers": kafka.bootstrap_servers})
    await writer.reach(SOON)
    values = [(b"k", b"x" * (LIMIT + 1 if number == 100 else 1024)) for number in range(200)]
    answers = await append_all(writer, name, values)
    assert [each is None for each in answers] == [number != 100 for number in range(200)]
    assert answers[100] is not None
    assert answers[100].too_large
    await writer.close(SOON)


async def test_records_appended_together_are_sent_alone_with_their_own_headers(
    kafka: Kafka, topic: MakeTopic
) -> None:
    """They differ in their headers only, and one of them is too large (CE-H11)."""
    name = topic(max_message_bytes=LIMIT)
    writer = KafkaWriter({"bootstrap.servers": kafka.bootstrap_servers})
    await writer.reach(SOON)
    sent = [Draft(b"k", [("n", b"%d" % number)], b"x" * 1024) for number in range(200)]
    while error := await append_together(writer, name, sent):
        assert error.retriable, "librdkafka cut them into batches of which one was small enough"
        assert not error.too_large
    error = await append_together(writer, name, [Draft(b"k", [], b"x" * (LIMIT + 1)), *sent])
    assert error is not None
    assert error.too_large
    admin = KafkaAdmin({"bootstrap.servers": kafka.bootstrap_servers})
    stored = [record.headers() for record in await admin.read_last(name, 2000)]
    assert stored[-400:] == 2 * [record.headers for record in sent]
    assert writer.in_flight == 0
    await admin.close()
    await writer.close(SOON)


async def test_records_appended_together_are_acknowledged_only_in_their_order(
    kafka: Kafka, topic: MakeTopic
) -> None:
    """The first batch of a megabyte is refused, the rest is stored before it is sent again: they
    are to be sent once more, and then alone from the start (CE-H11)."""
    name = topic(max_message_bytes=LIMIT)
    writer = KafkaWriter({"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 100})
    await writer.reach(SOON)
    sent = [Draft(b"k", [("n", b"%d" % number)], b"x" * 1024) for number in range(1000)]
    error = await append_together(writer, name, sent)
    assert error is not None
    assert error.retriable
    assert not error.too_large
    assert await append_together(writer, name, sent) is None
    admin = KafkaAdmin({"bootstrap.servers": kafka.bootstrap_servers})
    stored = [record.headers() for record in await admin.read_last(name, 5000)]
    assert len(stored) == 2000, "each once for each time that it was sent"
    assert stored[:1000] != [record.headers for record in sent]
    assert stored[1000:] == [record.headers for record in sent]
    await admin.close()
    await writer.close(SOON)


async def test_with_the_topics_limit_known_no_batch_is_too_large(
    kafka: Kafka, topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic(max_message_bytes=LIMIT)
    writer = KafkaWriter({"bootstrap.servers": kafka.bootstrap_servers, "batch.size": LIMIT})
    monkeypatch.setattr(writer, "_send_alone", lambda *_: pytest.fail("a batch was too large"))
    await writer.reach(SOON)
    answers = await append_all(writer, name, [(b"k", b"x" * 1024)] * COUNT)
    assert answers == [None] * COUNT
    await writer.close(SOON)
