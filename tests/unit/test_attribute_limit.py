"""An event has at most 128 attributes, whichever way it comes (issue 29, D)."""

from __future__ import annotations

import json
import time

import pytest

from knafka.core.errors import InvalidEvent
from knafka.core.events import kafka_binding
from knafka.core.events.event import MAX_ATTRIBUTES, REQUIRED
from knafka.core.events.http_binding import record_of, reply_of
from knafka.core.events.kafka_binding import CONTENT_TYPE

STRUCTURED = "application/cloudevents+json"
EVENT = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t"}
ROOM = MAX_ATTRIBUTES - len(REQUIRED)


def document(extensions: int, **more: object) -> bytes:
    return json.dumps({**EVENT, **{f"x{n}": n for n in range(extensions)}, **more}).encode()


def structured(body: bytes) -> kafka_binding.Draft:
    return record_of([(b"content-type", STRUCTURED.encode())], body)


def binary(extensions: int) -> list[tuple[bytes, bytes]]:
    attributes = {**EVENT, **{f"x{n}": str(n) for n in range(extensions)}}
    return [(b"ce-%b" % name.encode(), value.encode()) for name, value in attributes.items()]


def test_128_attributes_are_taken_in_both_modes() -> None:
    more = {"data": 1}
    mode = 1  # the header that has so many attributes sent in one document again
    assert len(structured(document(ROOM - 1, **more)).headers) == MAX_ATTRIBUTES + mode
    assert len(record_of(binary(ROOM), b"").headers) == MAX_ATTRIBUTES
    with_type = [*binary(ROOM - 1), (b"content-type", b"text/plain")]
    assert len(record_of(with_type, b"").headers) == MAX_ATTRIBUTES


def test_what_travels_beside_an_event_is_none_of_its_attributes() -> None:
    beside = [(b"knative-x%d" % number, b"1") for number in range(100)]
    assert len(record_of([*binary(ROOM), *beside], b"").headers) == MAX_ATTRIBUTES + 100


@pytest.mark.parametrize(
    "body",
    [
        document(ROOM + 1),
        document(ROOM, data=None, data_base64="", y=1),
        document(ROOM, datacontenttype="text/plain"),
        document(95_000),
        document(95_000).replace(b'"x', b'"X'),
    ],
    ids=["one more", "and data", "a content type", "a megabyte", "a megabyte of no names"],
)
def test_more_of_a_structured_event_are_refused_with_the_number(body: bytes) -> None:
    with pytest.raises(InvalidEvent, match="128 attributes"):
        structured(body)
    with pytest.raises(InvalidEvent, match="128 attributes"):
        reply_of([(b"content-type", STRUCTURED.encode())], body)
    with pytest.raises(InvalidEvent, match="128 attributes"):
        kafka_binding.read([(CONTENT_TYPE, STRUCTURED.encode())], body)


@pytest.mark.parametrize("content_type", [[], [(b"content-type", b"text/plain")]])
def test_more_of_a_binary_event_are_refused_with_the_number(
    content_type: list[tuple[bytes, bytes]],
) -> None:
    with pytest.raises(InvalidEvent, match="128 attributes"):
        record_of([*binary(ROOM + 1), *content_type], b"")


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(document(95_000), id="members"),
        pytest.param(document(0, data=[1] * 330_000), id="integers in the data"),
        pytest.param(document(0, x=[1] * 330_000), id="integers in an attribute"),
    ],
)
def test_a_structured_event_of_a_megabyte_keeps_others_waiting_no_longer_than_its_bytes_do(
    body: bytes,
) -> None:
    """It is read on the loop of all senders. A megabyte of plain text is the measure: seconds of
    CPU, the least of a few times."""
    text = document(0, data=[" " * 30] * 30_000)
    assert least_seconds(body) < 20 * least_seconds(text) + 0.03


def least_seconds(body: bytes) -> float:
    taken = []
    for _ in range(5):
        began = time.thread_time()
        try:
            structured(body)
        except InvalidEvent:
            pass
        taken.append(time.thread_time() - began)
    return min(taken)


def test_integers_in_data_stay_as_they_are() -> None:
    """CE-H10."""
    numbers = b'[0, -0, 123456789012345678901234567890, 1e5, {"a": [7]}]'
    assert structured(document(0)[:-1] + b', "data": ' + numbers + b"}").value == numbers
