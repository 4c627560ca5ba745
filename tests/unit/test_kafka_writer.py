"""A producer that failed for good is replaced once it has told what became of all it took."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from knafka.clients.kafka_log import KafkaWriter
from knafka.core.errors import LogError


class Fatal:
    """A producer that takes one record and then fails for good; its report comes with a poll."""

    def __init__(self) -> None:
        self.report: Any = None

    def produce(self, *_: object, on_delivery: Any, **__: object) -> None:
        if self.report is not None:
            raise KafkaException(KafkaError(KafkaError._FATAL, "lost its thread", True))
        self.report = on_delivery

    def poll(self, _: float) -> None:
        self.report(KafkaError(KafkaError._FATAL, "lost its thread", True), None)


async def test_a_producer_is_replaced_only_when_all_it_took_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    writer = KafkaWriter({"bootstrap.servers": "127.0.0.1:1", "log_level": 0})
    broken: Any = Fatal()
    monkeypatch.setattr(writer, "_producer", broken)
    reports: list[LogError | None] = []
    writer.append("t", None, b"1", [], reports.append)
    with pytest.raises(LogError):
        writer.append("t", None, b"2", [], reports.append)
    assert writer._producer is broken, "it still owes a report"
    broken.poll(0)
    assert len(reports) == 1
    assert isinstance(reports[0], LogError)
    with pytest.raises(LogError):
        writer.append("t", None, b"3", [], reports.append)
    assert writer._producer is not broken
    await writer.close(0)
