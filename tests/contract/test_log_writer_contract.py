"""What every log's writer does: in memory and on real Kafka."""

from __future__ import annotations

import asyncio
import itertools
import time

import pytest
from support.logs import SOON, Log, values

from knafka.core.contract import MAX_EVENT_BYTES
from knafka.core.errors import LogError
from knafka.core.events.kafka_binding import Draft


async def test_an_append_is_reported_once_when_it_is_durable(log: Log) -> None:
    topic = await log.topic()
    reports: list[LogError | None] = []
    reported = asyncio.Event()

    def report(error: LogError | None) -> None:
        reports.append(error)
        reported.set()

    log.writer.append(topic, None, b"x", [], report)
    assert reports == [], "never from within append"
    assert log.writer.in_flight == 1
    async with asyncio.timeout(SOON):
        await reported.wait()
    assert values(await log.admin.read_last(topic, 10)) == [b"x"]
    assert (reports, log.writer.in_flight) == ([None], 0)


async def test_equal_keys_share_a_partition_and_stay_in_order(log: Log) -> None:
    """CE-K9."""
    topic = await log.topic(partitions=4)
    reports: asyncio.Queue[LogError | None] = asyncio.Queue()
    for number in range(400):
        key = b"key-%d" % (number % 20)
        log.writer.append(topic, key, b"%d" % number, [], reports.put_nowait)
    async with asyncio.timeout(SOON):
        assert [await reports.get() for _ in range(400)] == [None] * 400
    records = await log.admin.read_last(topic, 1000)
    homes = {record.key(): record.partition() for record in records}
    assert all(homes[record.key()] == record.partition() for record in records)
    assert len(set(homes.values())) > 1
    for each in homes:
        mine = [record for record in records if record.key() == each]
        mine.sort(key=lambda record: record.offset())
        numbers = [int(record.value() or b"") for record in mine]
        assert numbers == sorted(numbers)
        assert len(numbers) == 20


@pytest.mark.parametrize("size", [3, 200])
async def test_what_is_appended_together_is_reported_once_and_stays_in_order(
    log: Log, size: int
) -> None:
    """CE-H11, CE-K9. Few go one way, many another, and one of a key that is in flight goes its."""
    topic = await log.topic(partitions=4)
    reports: asyncio.Queue[LogError | None] = asyncio.Queue()
    sent = [
        Draft(None if number % 7 == 6 else b"key-%d" % (number % 5), [("n", b"%d" % number)], b"x")
        for number in range(5 * size)
    ]
    for start in range(0, len(sent), size):
        log.writer.append_all(topic, sent[start : start + size], reports.put_nowait)
    assert reports.empty(), "never from within append_all"
    assert log.writer.in_flight == len(sent)
    async with asyncio.timeout(SOON):
        assert [await reports.get() for _ in range(5)] == [None] * 5
    records = await log.admin.read_last(topic, 10_000)
    assert (log.writer.in_flight, reports.empty()) == (0, True)
    assert sum(log.writer.stored[topic, number] for number in range(4)) == len(sent)
    numbers: dict[bytes | None, list[int]] = {}
    for record in sorted(records, key=lambda record: (record.partition(), record.offset())):
        ((_, number),) = record.headers() or []
        numbers.setdefault(record.key(), []).append(int(number or b""))
    assert sorted(itertools.chain(*numbers.values())) == list(range(len(sent)))
    assert all(each == sorted(each) for key, each in numbers.items() if key is not None)


async def test_a_record_survives_byte_for_byte(log: Log) -> None:
    """CE-K1, CE-K3: no value is not an empty one."""
    topic = await log.topic()
    before = int(time.time() * 1000)
    every = list(
        itertools.product(
            (None, b"", b"k\x00\xff", "schlüssel".encode()),
            (None, b"", b"\x00\xff{", b"x" * (MAX_EVENT_BYTES - 100)),
            (
                [],
                [("ce_id", "ü ".encode()), ("content-type", b""), ("x", b"\x00"), ("x", b"again")],
            ),
        )
    )
    for key, value, headers in every:
        await log.append(topic, value, key, headers)
    records = await log.admin.read_last(topic, 100)
    assert [each.offset() for each in records] == list(range(len(every)))
    assert {(each.topic(), each.partition()) for each in records} == {(topic, 0)}
    assert [(each.key(), each.value(), each.headers() or []) for each in records] == every
    assert all(before <= each.timestamp()[1] <= time.time() * 1000 for each in records)


@pytest.mark.parametrize("part", ["key", "value", "headers"])
async def test_a_record_beyond_kafkas_limit_is_too_large(log: Log, part: str) -> None:
    """The topic's own limit (1 MiB by default) judges; key, value and headers count."""
    topic = await log.topic()
    large = b"x" * 1_048_589
    with pytest.raises(LogError) as raised:
        await log.append(
            topic,
            large if part == "value" else b"",
            large if part == "key" else b"k",
            [("ce_x", large)] if part == "headers" else [],
        )
    assert raised.value.too_large
    assert not raised.value.retriable
    await log.append(topic, b"the next one")
    assert values(await log.admin.read_last(topic, 10)) == [b"the next one"]
    assert log.writer.in_flight == 0


async def test_an_append_to_an_unknown_topic_is_reported_as_failed(log: Log) -> None:
    with pytest.raises(LogError) as raised:
        await log.append("contract-nowhere", b"x")
    assert not raised.value.too_large
    assert raised.value.retriable
    assert log.writer.in_flight == 0


async def test_a_report_that_breaks_silences_no_other(
    log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    topic = await log.topic()
    broken: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: broken.append(context))

    def report(_: LogError | None) -> None:
        raise ZeroDivisionError

    log.writer.append(topic, None, b"1", [], report)
    await log.append(topic, b"2")
    assert len(broken) == 1
    assert len(await log.admin.read_last(topic, 10)) == 2


async def test_close_waits_for_what_is_in_flight_and_takes_no_more(log: Log) -> None:
    topic = await log.topic()
    reports: list[LogError | None] = []
    for _ in range(100):
        log.writer.append(topic, None, b"x", [], reports.append)
    await log.writer.close(SOON)
    assert reports == [None] * 100
    assert len(await log.admin.read_last(topic, 1000)) == 100
    with pytest.raises(LogError):
        log.writer.append(topic, None, b"x", [], reports.append)


async def test_a_log_that_answers_is_reached(log: Log) -> None:
    await log.writer.reach(SOON)


@pytest.mark.conformance("DSP-22")
async def test_what_is_stored_is_counted_by_topic_and_partition(log: Log) -> None:
    """DSP-22: what `eventing_kafka_produced_msg_count` shows; what isn't stored isn't counted."""
    topic, other = await log.topic(partitions=3), await log.topic()
    reports: asyncio.Queue[LogError | None] = asyncio.Queue()
    for number in range(30):
        log.writer.append(topic, b"%d" % number, b"", [], reports.put_nowait)
    log.writer.append(other, None, b"", [], reports.put_nowait)
    log.writer.append("nowhere", None, b"", [], reports.put_nowait)
    async with asyncio.timeout(SOON):
        for _ in range(32):
            await reports.get()
    ends = await log.admin.end_offsets(topic)
    assert dict(log.writer.stored) == {
        **{(topic, number): end for number, end in ends.items() if end},
        (other, 0): 1,
    }
