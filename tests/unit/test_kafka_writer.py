"""When a writer has a record sent at once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from knafka.clients import kafka_log
from knafka.clients.kafka_log import KafkaWriter
from knafka.core.errors import LogError

SOON = 10.0


class Prompt:
    """A producer that sends nothing unless it is flushed; reports come with the flush."""

    def __init__(self) -> None:
        self.taken: list[Any] = []
        self.flushed: list[int] = []
        """How many records went with each flush."""
        self.may_flush = threading.Event()
        self.may_flush.set()

    def produce(self, *_: object, on_delivery: Any, **__: object) -> None:
        self.taken.append(on_delivery)

    def poll(self, _: float) -> None: ...

    def flush(self, _: float) -> None:
        assert self.may_flush.wait(SOON)
        self.flushed.append(len(self.taken))
        self.purge()

    def purge(self) -> None:
        taken, self.taken = self.taken, []
        for report in taken:
            report(None, None)


@pytest.fixture
async def writer() -> AsyncIterator[KafkaWriter]:
    made = KafkaWriter({"bootstrap.servers": "127.0.0.1:1", "log_level": 0})
    yield made
    await made.close(0)


@pytest.fixture
def producer(writer: KafkaWriter, monkeypatch: pytest.MonkeyPatch) -> Prompt:
    """The writer's; nothing counts as quiet yet."""
    prompt: Any = Prompt()
    monkeypatch.setattr(writer, "_producer", prompt)
    monkeypatch.setattr(kafka_log, "QUIET", 3600)
    return cast(Prompt, prompt)


def append(writer: KafkaWriter) -> asyncio.Future[threading.Thread]:
    """Append a record; the thread on which it was reported to be written."""
    answer: asyncio.Future[threading.Thread] = asyncio.Future()

    def reported(error: LogError | None) -> None:
        assert error is None
        answer.set_result(threading.current_thread())

    writer.append("t", None, b"x", [], reported)
    return answer


async def test_a_record_after_a_quiet_time_is_sent_at_once_and_its_report_told_on_the_loop(
    writer: KafkaWriter, producer: Prompt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_log, "QUIET", 0)
    assert await asyncio.wait_for(append(writer), SOON) is threading.current_thread()
    assert producer.flushed == [1]
    assert writer.in_flight == 0


async def test_records_that_come_while_one_is_in_flight_ask_for_nothing_more(
    writer: KafkaWriter, producer: Prompt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_log, "QUIET", 0)
    producer.may_flush.clear()
    answers = [append(writer) for _ in range(5)]
    producer.may_flush.set()
    await asyncio.wait_for(asyncio.gather(*answers), SOON)
    assert producer.flushed == [5]


async def test_a_record_soon_after_others_waits_for_company(
    writer: KafkaWriter, producer: Prompt
) -> None:
    append(writer)
    await writer._thread.call(lambda: None)  # whatever was asked for before it is done
    assert producer.flushed == []
