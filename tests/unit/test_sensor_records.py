"""Records of a Sensor's trigger topic: what is none says so (BUS-21)."""

from __future__ import annotations

import pytest

from knafka.core.errors import InvalidEvent
from knafka.core.sensor.held import HeldEvent
from knafka.core.sensor.records import headers_of, read_trigger_record

EVENT = HeldEvent("a", "/s 1", 1_000, 7, b"{}", b"", (3, 12))


def test_a_record_of_the_trigger_topic_is_read_as_it_was_written() -> None:
    read = read_trigger_record(
        b"two/x", EVENT.document, headers_of(EVENT, 4, until=2_000), EVENT.offset
    )
    assert (read.key, read.event, read.generation, read.until) == ("two/x", EVENT, 4, 2_000)


@pytest.mark.parametrize("origin", [b"", b"3", b"3.", b"x.12", b"3.12.y"])
def test_an_origin_that_is_none_makes_no_record(origin: bytes) -> None:
    headers = [*headers_of(EVENT, 4, until=2_000), ("origin", origin)]
    with pytest.raises(InvalidEvent, match="none of a Sensor's triggers"):
        read_trigger_record(b"two/x", EVENT.document, headers, EVENT.offset)
