"""`python -m knafka.receiver` of a KafkaSink, the real process on real Kafka: content modes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest
from support.kafka import Kafka
from support.receiver_requests import VALID
from support.receivers import running

from knafka.core.events.http_binding import record_of
from knafka.core.events.kafka_binding import in_structured_mode

pytestmark = [pytest.mark.kafka, pytest.mark.asyncio(loop_scope="module")]


@pytest.mark.parametrize("mode", ["binary", "structured"])
async def test_events_lie_in_kafka_in_the_content_mode_that_the_sink_asks_for(
    kafka: Kafka, tmp_path: Path, mode: Literal["binary", "structured"]
) -> None:
    """CE-K1, CE-K7: whatever mode they came in, with the key of either."""
    of_sink: dict[str, Any] = {"kind": "KafkaSink", "content_mode": mode}
    async with running(kafka.bootstrap_servers, tmp_path / "log", **of_sink) as served:
        async with served.connect() as wire:
            for request in VALID:
                wire.send(request.wire())
                assert (await wire.response()).status == 202, request.id
        records = await served.records()
    for record, request in zip(records, VALID, strict=True):
        expected = record_of(request.headers, request.body)
        if mode == "structured":
            expected = in_structured_mode(expected)
        found = record.key(), record.headers(), record.value()
        assert found == (expected.key, expected.headers, expected.value), request.id
