"""Records of a KafkaSource's topics as events: upstream's form, and nothing is lost."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pytest

from knafka.core.contract import Conversion
from knafka.core.events import kafka_binding
from knafka.core.events.foreign_records import RecordPosition, as_event, key_text
from knafka.core.events.http_binding import located_request_of
from knafka.core.events.kafka_binding import Envelope

SOURCE = "/apis/v1/namespaces/shop/kafkasources/orders"
MADE = {
    "specversion": "1.0",
    "id": "partition:3/offset:41",
    "source": f"{SOURCE}#raw",
    "type": "dev.knative.kafka.event",
    "subject": "partition:3#41",
    "time": "2026-01-31T12:00:00.250Z",
}
EVENT = {"specversion": "1.0", "id": "7", "source": "/a", "type": "t"}
BINARY: Sequence[tuple[str, bytes | None]] = [
    (f"ce_{name}", value.encode()) for name, value in EVENT.items()
]
STRUCTURED = b'{"specversion":"1.0","id":"7","source":"/a","type":"t","data":{"a": 1}}'
JSON_EVENT = ("content-type", b"application/cloudevents+json; charset=UTF-8")

Headers = Sequence[tuple[str, bytes | None]]


def converted(
    key: bytes | None = None,
    headers: Headers | None = None,
    value: bytes | None = b"v",
    key_type: str = "string",
    extensions: Mapping[str, str] | None = None,
    timestamp: int = 1_769_860_800_250,
) -> Envelope:
    conversion = Conversion.model_validate(
        {"source": SOURCE, "keyType": key_type, "extensions": dict(extensions or {})}
    )
    place = RecordPosition("raw", 3, 41, timestamp)
    # What is stored as a dead letter or replayed is this record: it must be readable.
    return kafka_binding.read(*as_event(conversion, place, key, headers, value))


class Row(NamedTuple):
    key: bytes | None
    headers: Headers | None
    more: Mapping[str, str]


KEYS = [
    ("string", b"k\xc3\xb6", "k\N{LATIN SMALL LETTER O WITH DIAERESIS}"),
    ("string", b"\xff\x01", "\N{REPLACEMENT CHARACTER}" * 2),
    ("int", struct.pack(">i", -7), "-7"),
    ("int", struct.pack(">q", 1 << 40), str(1 << 40)),
    ("int", b"seven", "seven"),
    ("float", struct.pack(">f", 1.1), "1.1"),
    ("float", struct.pack(">d", 0.1), "0.1"),
    ("float", struct.pack(">d", 1e10), "1.0E10"),
    ("float", struct.pack(">d", -12345678.9), "-1.23456789E7"),
    ("float", struct.pack(">d", 100.0), "100.0"),
    ("float", struct.pack(">d", 0.00025), "2.5E-4"),
    ("float", struct.pack(">d", -0.0), "-0.0"),
    ("float", struct.pack(">d", float("inf")), "Infinity"),
    ("float", struct.pack(">f", float("nan")), "NaN"),
    ("float", struct.pack(">f", 3.4028234663852886e38), "3.4028235E38"),
    ("float", b"1234567", "1234567"),
    ("byte-array", b"\x00\xff", "AP8="),
]


@pytest.mark.parametrize(("key_type", "key", "text"), KEYS)
def test_a_key_is_told_by_its_type_and_as_a_string_where_its_length_is_another(
    key_type: str, key: bytes, text: str
) -> None:
    assert key_text(key, key_type) == text
    found = converted(key, key_type=key_type).attributes
    assert (found["key"], found["partitionkey"]) == (text, text)


ROWS = {
    "no key, no headers": Row(None, None, {}),
    "an empty key is none": Row(b"", [], {}),
    "a key": Row(b"k", [], {"key": "k", "partitionkey": "k"}),
    "a header": Row(None, [("trace-Id", b"1")], {"kafkaheadertraceid": "1"}),
    "an odd name": Row(None, [("X_\N{SNOWMAN}é-9", b"1")], {"kafkaheaderx9": "1"}),
    "a name of which nothing is left": Row(None, [("--", b"1")], {"kafkaheader": "1"}),
    "of one name the last": Row(None, [("a", b"1"), ("A", b"2")], {"kafkaheadera": "2"}),
    "a binary value": Row(None, [("a", b"\xff\x00b")], {"kafkaheadera": "\ufffd\ufffdb"}),
    "an empty value": Row(None, [("a", b"")], {"kafkaheadera": ""}),
    "a header without a value": Row(None, [("a", None)], {}),
    "a content type": Row(
        None, [("Content-Type", b"Application/JSON")], {"datacontenttype": "application/json"}
    ),
    "what is no content type": Row(
        None, [("content-type", b"\xc3\xa9")], {"kafkaheadercontenttype": "é"}
    ),
    "an empty content type": Row(None, [("content-type", b"")], {}),
    "half an event": Row(None, [("ce_id", b"7")], {"kafkaheaderceid": "7"}),
    "an event of a version to come": Row(
        None,
        [*BINARY[1:], ("ce_specversion", b"2.0")],
        {
            "kafkaheaderceid": "7",
            "kafkaheadercesource": "/a",
            "kafkaheadercetype": "t",
            "kafkaheadercespecversion": "2.0",
        },
    ),
    "a header that isn't UTF-8 beside an event's": Row(
        None,
        [*BINARY, ("ce_a", b"\xff")],
        {
            "kafkaheaderceid": "7",
            "kafkaheadercesource": "/a",
            "kafkaheadercetype": "t",
            "kafkaheadercespecversion": "1.0",
            "kafkaheadercea": "\ufffd",
        },
    ),
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
@pytest.mark.parametrize("value", [b'{"a": 1}', b"\x00\xff", b"", None])
def test_a_record_that_is_no_event_becomes_one_in_upstreams_form(
    row: Row, value: bytes | None
) -> None:
    found = converted(row.key, row.headers, value)
    assert (found.attributes, found.data) == ({**MADE, **row.more}, value)


@pytest.mark.parametrize(
    "broken",
    [b"", b"{", b'{"specversion":"1.0"}', b"[]", None, b"\xff"],
    ids=["empty", "cut", "incomplete", "a list", "nothing", "no text"],
)
@pytest.mark.parametrize(
    "content_type", ["application/cloudevents+json", "application/cloudevents-batch+json"]
)
def test_of_a_broken_structured_event_nothing_is_lost(
    content_type: str, broken: bytes | None
) -> None:
    """CE-K8 would have it dead-lettered: a source's topic is anybody's."""
    found = converted(None, [("content-type", content_type.encode())], broken)
    assert found.attributes == {**MADE, "datacontenttype": content_type}
    assert found.data == broken


def test_an_event_in_another_format_is_data() -> None:
    found = converted(None, [("content-type", b"application/cloudevents+avro"), *BINARY[:1]], b"\0")
    assert found.attributes["datacontenttype"] == "application/cloudevents+avro"
    assert found.attributes["type"] == MADE["type"]
    assert found.data == b"\0"


@pytest.mark.parametrize("value", [b"v", b"", None])
def test_an_event_in_binary_mode_is_that_event(value: bytes | None) -> None:
    found = converted(b"k", [*BINARY, ("other", b"1"), ("none", None)], value)
    assert (found.attributes, found.data) == (EVENT, value)


def test_an_event_in_structured_mode_is_that_event_as_it_came() -> None:
    found = converted(b"k", [JSON_EVENT], STRUCTURED)
    assert found.document == STRUCTURED
    assert found.attributes == {**EVENT, "datacontenttype": "application/json"}


@pytest.mark.parametrize(
    ("headers", "value", "event"),
    [
        ([], b"v", MADE),
        ([*BINARY, ("ce_team", b"a")], b"v", EVENT),
        ([JSON_EVENT], STRUCTURED, EVENT),
    ],
    ids=["made", "binary", "structured"],
)
def test_overrides_are_said_of_every_event(
    headers: Headers, value: bytes, event: Mapping[str, str]
) -> None:
    found = converted(None, headers, value, extensions={"team": "b"})
    assert found.attributes["team"] == "b"
    assert {name: found.attributes[name] for name in event} == event
    assert found.data in (b"v", b'{"a": 1}')


def test_a_traces_headers_travel_beside_the_event() -> None:
    """KN-DP-11; upstream's form has them as extensions, too."""
    found = converted(None, [("traceparent", b"00-1")], b"v")
    assert found.passed == [("traceparent", b"00-1")]
    assert found.attributes["kafkaheadertraceparent"] == "00-1"


def test_a_record_without_a_timestamp_has_an_event_without_a_time() -> None:
    assert "time" not in converted(timestamp=-1).attributes


STACK_TRACE = (
    b"java.lang.IllegalStateException: no such order\n\tat shop.Orders.find(Orders.java:7)\n"
)


@pytest.mark.parametrize(
    ("key", "headers"),
    [
        (None, [("kafka_dlt-exception-stacktrace", STACK_TRACE * 100)]),
        (b"k" * 5_000, []),
        (None, [(f"h{number}", b"x") for number in range(100)]),
    ],
    ids=["a stack trace", "a long key", "many headers"],
)
def test_a_record_whose_event_is_too_large_for_header_lines_is_delivered_as_json(
    key: bytes | None, headers: Headers
) -> None:
    """Node.js and functions-framework answer such lines with 431 or 400, however often."""
    found = converted(key, headers, b'{"a":  1}')
    head, body = located_request_of(found, 3, 41)
    assert head == b"content-type: application/cloudevents+json\r\n"
    assert base64.b64decode(json.loads(body)["data_base64"]) == b'{"a":  1}'
    assert found.data == b'{"a":  1}', "the record is in binary mode as every other"


def test_a_large_event_in_binary_mode_is_delivered_as_it_came() -> None:
    found = converted(None, [*BINARY, ("ce_long", b"x" * 9_000)])
    head, _ = located_request_of(found, 3, 41)
    assert b"ce-long: xxx" in head


def test_a_record_with_a_few_headers_is_delivered_with_header_lines() -> None:
    found = converted(b"k" * 1_000, [("a", b"x" * 1_000)])
    head, body = located_request_of(found, 3, 41)
    assert b"ce-kafkaheadera: xxx" in head
    assert body == b"v"
