"""Events as records and records as events (CE-K1 to CE-K8)."""

import pytest

from knafka.core.errors import InvalidEvent, UnsupportedContentMode
from knafka.core.events.event import Event
from knafka.core.events.kafka_binding import (
    BoundedCache,
    Draft,
    Envelope,
    Mode,
    mode_of,
    read,
    to_record,
)

ATTRIBUTES = {"specversion": "1.0", "id": "1", "source": "/a", "type": "t"}
HEADERS = [
    ("ce_specversion", b"1.0"),
    ("ce_id", b"1"),
    ("ce_source", b"/a"),
    ("ce_type", b"t"),
]
DOCUMENT = b'{"specversion":"1.0","id":"1","source":"/a","type":"t","data":{"a": 1}}'
NESTED = "application/cloudevents+json"


def problem(headers: list[tuple[str, bytes | None]], value: bytes | None = b"") -> str:
    with pytest.raises(InvalidEvent) as caught:
        read(headers, value)
    return str(caught.value)


def test_an_event_is_written_in_binary_mode_without_percent_encoding() -> None:
    """CE-K1"""
    event = Event(
        {**ATTRIBUTES, "subject": "Grüße 100%", "datacontenttype": "text/plain"}, b"\x00\xff"
    )
    assert to_record(event, [("traceparent", b"00-1")]) == Draft(
        "Grüße 100%".encode(),
        [
            *HEADERS,
            ("ce_subject", "Grüße 100%".encode()),
            ("content-type", b"text/plain"),
            ("traceparent", b"00-1"),
        ],
        b"\x00\xff",
    )


def test_absent_data_are_a_null_value_and_empty_data_an_empty_one() -> None:
    """CE-K3"""
    for data in (None, b""):
        draft = to_record(Event(ATTRIBUTES, data))
        assert draft == Draft(None, HEADERS, data)
        assert read(draft.headers, draft.value) == Envelope(ATTRIBUTES, data, [])


def test_a_partitionkey_stays_an_attribute_of_its_event() -> None:
    """CE-K4"""
    draft = to_record(Event({**ATTRIBUTES, "partitionkey": "p"}, None))
    assert draft.key == b"p"
    assert read(draft.headers, None).attributes["partitionkey"] == "p"


@pytest.mark.parametrize("content_type", [NESTED, "application/cloudevents-batch+json"])
def test_data_that_would_be_mistaken_for_a_mode_are_written_structured(content_type: str) -> None:
    """CE-K2: in binary mode readers would take the data for the event."""
    event = Event({**ATTRIBUTES, "datacontenttype": content_type}, DOCUMENT)
    draft = to_record(event)
    assert draft.headers == [("content-type", b"application/cloudevents+json; charset=UTF-8")]
    envelope = read(draft.headers, draft.value)
    assert envelope.event == event
    assert envelope.document == draft.value


def test_a_record_is_read_with_its_content_type_as_datacontenttype() -> None:
    envelope = read([*HEADERS, ("Content-Type", b"text/plain; charset=utf-8")], b"x")
    assert envelope.attributes == {**ATTRIBUTES, "datacontenttype": "text/plain; charset=utf-8"}
    assert envelope.document is None


def test_an_empty_content_type_is_none() -> None:
    assert read([*HEADERS, ("content-type", b"")], b"x").attributes == ATTRIBUTES


def test_of_duplicate_headers_the_last_wins() -> None:
    """CE-K6"""
    headers = [("ce_id", b"0"), ("traceparent", b"0"), *HEADERS, ("traceparent", b"1")]
    assert read(headers, None) == Envelope(ATTRIBUTES, None, [("traceparent", b"1")])


@pytest.mark.conformance("KN-DP-10", "KN-DP-11")
def test_only_headers_that_may_pass_are_kept_and_only_if_they_fit_http() -> None:
    """KN-DP-10, KN-DP-11"""
    passing = [
        ("traceparent", b"00-1"),
        ("tracestate", b"a=1, b=2"),
        ("x-request-id", b"r"),
        ("x-b3-traceid", b"1"),
        ("knative-x", b"y"),
    ]
    dropped = [
        ("host", b"evil"),
        ("content-length", b"0"),
        ("x-b3-a\r\nb", b"1"),
        ("knative-", b"1"),
        ("x-b3-sampled", b"1\r\nevil: 1"),
        ("x-b3-spanid", "é".encode()),
        ("x-b3-flags", None),
        ("other", None),
    ]
    assert read([*HEADERS, *passing, *dropped], None).passed == passing


@pytest.mark.parametrize(
    "content_type",
    [b"application/cloudevents+json", b"Application/CloudEvents+JSON; charset=UTF-8"],
)
def test_a_structured_record_of_another_producer_is_read(content_type: bytes) -> None:
    """CE-K2, CE-K7"""
    headers = [("content-type", content_type), ("ce_id", b"other"), ("traceparent", b"00-1")]
    assert read(headers, DOCUMENT) == Envelope(
        {**ATTRIBUTES, "datacontenttype": "application/json"},
        b'{"a": 1}',
        [("traceparent", b"00-1")],
        DOCUMENT,
    )


def test_a_structured_record_without_a_value_is_no_event() -> None:
    assert "no JSON object" in problem([("content-type", NESTED.encode())], None)


def test_an_unknown_format_beside_attributes_is_binary() -> None:
    """CE-H2"""
    headers = [("content-type", b"application/cloudevents+avro"), *HEADERS]
    assert read(headers, b"x").attributes["datacontenttype"] == "application/cloudevents+avro"


@pytest.mark.parametrize(
    "headers",
    [
        [("content-type", b"application/cloudevents+avro")],
        [("content-type", b"application/cloudevents-batch+json"), *HEADERS],
    ],
)
def test_other_formats_and_batches_are_not_read(headers: list[tuple[str, bytes]]) -> None:
    with pytest.raises(UnsupportedContentMode):
        read(headers, b"[]")


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("ce_id", b""), "id is required"),
        (("ce_source", b""), "source is required"),
        (("ce_type", b""), "type is required"),
        (("ce_specversion", b"2.0"), "specversion '2.0'"),
        (("ce_id", None), "has no value"),
        (("ce_id", b"\xff"), "ce_id is not UTF-8"),
        (("ce_id", b"\xed\xa0\x80"), "ce_id is not UTF-8"),
        (("ce_id", b"a\r\nb: c"), "control"),
        (("ce_id", b"a\0"), "control"),
        (("content-type", b"text/plain\r\nb: c"), "control"),
        (("content-type", "text/ü".encode()), "media type"),
        (("ce_", b"x"), "names no attribute"),
        (("ce_Ext", b"x"), "names no attribute"),
        (("ce_a\r\nb", b"x"), "names no attribute"),
        (("ce_data", b"x"), "names no attribute"),
        (("ce_datacontenttype", b"x"), "names no attribute"),
    ],
)
def test_a_record_that_is_no_event_is_refused(more: tuple[str, bytes | None], says: str) -> None:
    """CE-K8; nothing that could break out of an HTTP header gets through."""
    assert says in problem([*HEADERS, more])


@pytest.mark.parametrize("headers", [None, [], [("key", b"value")]])
def test_a_record_without_attributes_is_no_event(headers: list[tuple[str, bytes]] | None) -> None:
    with pytest.raises(InvalidEvent, match="specversion is required"):
        read(headers, b"x")


def test_attributes_outside_ascii_are_read() -> None:
    headers = [*HEADERS, ("ce_subject", "Grüße".encode())]
    assert read(headers, None).attributes["subject"] == "Grüße"


@pytest.mark.parametrize(
    ("content_type", "mode"),
    [
        ("", Mode.BINARY),
        ("application/json", Mode.BINARY),
        ("application/cloudevents+json", Mode.STRUCTURED),
        (" APPLICATION/CLOUDEVENTS+JSON ; charset=utf-8", Mode.STRUCTURED),
        ("application/cloudevents-batch+json", Mode.BATCH),
        ("Application/CloudEvents-Batch", Mode.BATCH),
        ("application/cloudevents+avro", Mode.UNREADABLE),
        ("application/cloudevents", Mode.UNREADABLE),
    ],
)
def test_the_content_type_tells_the_mode(content_type: str, mode: Mode) -> None:
    """CE-H1, CE-K2"""
    assert mode_of(content_type) is mode


def test_the_table_of_header_names_stays_bounded() -> None:
    asked: list[str] = []

    def upper(name: str) -> str:
        asked.append(name)
        return name.upper()

    cache = BoundedCache(upper)
    assert [cache["a"], cache["a"], asked] == ["A", "A", ["a"]]
    for number in range(5000):
        assert cache[str(number)] == str(number)
        assert cache[f"{number}" * 100]
    assert len(cache) <= 1024
    assert max(map(len, cache)) <= 64
