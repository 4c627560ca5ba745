"""The bindings' algebra: round trips, totality, and agreement with the CloudEvents SDK."""

import json
import string
from collections.abc import Callable
from datetime import datetime
from typing import Literal

import pytest
from cloudevents import kafka as sdk_kafka
from cloudevents.conversion import to_binary, to_structured
from cloudevents.http import CloudEvent, from_http
from hypothesis import given
from hypothesis import strategies as st

from knafka.core.errors import InvalidEvent
from knafka.core.events import json_format
from knafka.core.events.event import Event, is_uri_reference, key_of, validate
from knafka.core.events.http_binding import (
    HttpHeaders,
    _read_carefully,  # what the fast path must agree with
    decode,
    decode_header_value,
    decode_uri,
    encode,
    head_of,
    record_of,
    reply_of,
    request_of,
)
from knafka.core.events.kafka_binding import Draft, fits_binary, in_structured_mode, read, to_record

legal_text = st.text(st.characters(exclude_categories=("Cc", "Cs", "Cn")), max_size=20)
plain_text = st.text(
    "".join(sorted(set(string.printable) - set(string.whitespace) - set('"%'))), min_size=1
)
sources = st.sampled_from(["/a/b", "urn:x:1", "https://e.org/ü?q=%20", "#"])
times = st.datetimes(min_value=datetime(1000, 1, 1)).map(lambda time: f"{time.isoformat()}Z")
media_types = st.sampled_from(
    [
        "application/json",
        "text/plain; charset=utf-8",
        "a/b+json",
        'a/b; c="d e"',
        "application/cloudevents+avro",
    ]
)
extension_names = st.text(string.ascii_lowercase + string.digits, min_size=1, max_size=20).map(
    lambda name: f"ext{name}"
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def json_bytes() -> st.SearchStrategy[bytes]:
    """Valid JSON and what Python calls JSON, loosely and tightly written."""
    return st.builds(
        lambda value, indent, ascii_only: json.dumps(
            value, indent=indent, ensure_ascii=ascii_only
        ).encode("utf-8", "replace"),
        json_values,
        st.sampled_from([None, 0, 3]),
        st.booleans(),
    )


@st.composite
def events(draw: st.DrawFn, texts: st.SearchStrategy[str] = legal_text) -> Event:
    attributes = draw(st.dictionaries(extension_names, texts, max_size=3))
    attributes |= draw(
        st.fixed_dictionaries(
            {
                "specversion": st.sampled_from(["1.0", "0.3"]),
                "id": texts.filter(bool),
                "source": sources,
                "type": texts.filter(bool),
            },
            optional={
                "subject": texts.filter(bool),
                "partitionkey": texts,
                "time": times,
                "datacontenttype": media_types,
            },
        )
    )
    # Whitespace around JSON data belongs to a structured document; empty is none in HTTP.
    raw = st.binary(min_size=1).map(lambda data: data.strip(b" \t\r\n") or b"x")
    data = draw(st.none() | raw | json_bytes())
    validate(attributes)
    return Event(attributes, data)


def headers_of(event: Event) -> list[tuple[bytes, bytes]]:
    lines = head_of(event.attributes).split(b"\r\n")[:-1]
    return [(name, value) for name, _, value in (line.partition(b": ") for line in lines)]


def read_draft(draft: Draft) -> Event:
    return read(draft.headers, draft.value).event


@given(events())
def test_http_to_record_to_http_changes_nothing(event: Event) -> None:
    headers, body = headers_of(event), event.data or b""
    draft = record_of(headers, body)
    assert read_draft(draft) == event
    assert draft.key == (key.encode() if (key := key_of(event.attributes)) is not None else None)
    head, body_out = request_of(read(draft.headers, draft.value))
    lines = [line.split(b": ", 1) for line in head.split(b"\r\n")[:-1]]
    assert [(name, value) for name, value in lines] == headers
    assert body_out == body


@given(events())
def test_records_lose_nothing(event: Event) -> None:
    assert read_draft(to_record(event)) == event


@given(events(), st.booleans())
def test_a_structured_record_holds_the_event_of_the_binary_one(event: Event, traced: bool) -> None:
    """CE-K7: attributes and data, the key, and what travels beside the event."""
    beside = [("traceparent", b"00-1-2-01")] if traced else []
    draft = to_record(event, beside)
    structured = in_structured_mode(Draft(draft.key, [*draft.headers], draft.value))
    assert structured.headers == [("content-type", b"application/cloudevents+json"), *beside]
    envelope = read(structured.headers, structured.value)
    assert envelope.document is not None
    assert envelope.event == event
    assert structured.key == draft.key
    assert in_structured_mode(structured) == structured


@given(events())
def test_structured_to_record_to_binary_keeps_attributes_and_data(event: Event) -> None:
    document = json_format.write(event)
    draft = record_of([(b"content-type", b"application/cloudevents+json")], document)
    assert read_draft(draft) == event


@given(events(), json_bytes())
def test_spliced_json_data_are_found_again(event: Event, data: bytes) -> None:
    """CE-H10: also NaN, which other producers write."""
    attributes = {**event.attributes, "datacontenttype": "application/json"}
    document = json_format.write(Event(attributes, None))[:-1] + b', "data" :\n' + data + b"\t}"
    assert json_format.read(document) == Event(attributes, data)


@pytest.mark.conformance("KN-DLV-05")
@given(events(), st.sampled_from([None, "json", "binary"]))
def test_whatever_the_format_a_subscriber_gets_the_same_event(
    event: Event, mode: Literal["json", "binary"] | None
) -> None:
    """KN-DLV-05"""
    draft = to_record(event)
    head, body = request_of(read(draft.headers, draft.value), mode)
    headers = [
        (name, value)
        for name, _, value in (line.partition(b": ") for line in head.split(b"\r\n")[:-1])
    ]
    assert read_draft(record_of(headers, body)) == event


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_encoding_and_decoding_are_inverse(text: str) -> None:
    header = encode(text)
    assert decode(header.encode("ascii")) == text
    assert all("!" <= character <= "~" and character != '"' for character in header)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_what_is_no_utf8_is_read_as_iso_8859_1(text: str) -> None:
    raw = text.encode()
    assert decode_header_value(raw) == text, "UTF-8 first"
    beyond = b"\xff" + raw  # which no UTF-8 begins with
    assert decode_header_value(beyond) == beyond.decode("latin-1")


@given(st.binary())
def test_every_header_value_without_percent_signs_can_be_decoded(raw: bytes) -> None:
    value = raw.replace(b"%", b"")
    assert isinstance(decode(value), str)


parts = st.lists(st.sampled_from(["a", "/", ":", "%20", "%C3%A9", "é", "<", " "]), min_size=1)


@given(parts.map("".join))
def test_a_source_is_read_as_it_was_meant_or_as_it_was_sent(text: str) -> None:
    """What we write is read back; what others send unencoded is taken as it is if it is a URI."""
    if is_uri_reference(text):
        assert decode_uri(encode(text).encode()) == text
    read = decode_uri(text.encode())
    assert read in (decode(text.encode()), text)
    assert is_uri_reference(read) or not is_uri_reference(text)


hostile_names = st.sampled_from(
    [
        b"ce-id",
        b"Ce-Source",
        b"ce-type",
        b"ce-specversion",
        b"ce-time",
        b"ce-subject",
        b"ce-dataschema",
        b"ce-schemaurl",
        b"ce-partitionkey",
        b"content-type",
        b"tracestate",
        b"host",
    ]
) | st.binary(max_size=8).map(lambda name: b"ce-" + name)
hostile_values = st.sampled_from(
    [
        b"1.0",
        b"/a",
        b"1",
        b"2026-01-01T00:00:00Z",
        b"application/cloudevents+json",
        b"application/cloudevents-batch+json",
        b"application/cloudevents+avro",
        b"text/plain; a=b",
        b"a%20b",
        b"%C0%A0",
        b'"a\\"',
    ]
) | st.binary(max_size=20)
hostile_headers = st.lists(st.tuples(hostile_names, hostile_values), max_size=8).flatmap(
    lambda more: st.sampled_from(
        [
            more,
            [
                (b"ce-specversion", b"1.0"),
                (b"ce-id", b"1"),
                (b"ce-source", b"/a"),
                (b"ce-type", b"t"),
                *more,
            ],
        ]
    )
)
documents = (
    st.binary()
    | st.text().map(str.encode)
    | json_bytes()
    | st.builds(
        lambda members: json.dumps(members).encode(),
        st.dictionaries(
            st.sampled_from(
                "specversion id source type time data data_base64 datacontenttype ext Ext".split()
            ),
            json_values | st.just("1.0") | st.just("/a"),
        ),
    )
)


@given(hostile_headers, documents)
def test_no_request_or_response_raises_anything_but_invalid_event(
    headers: list[tuple[bytes, bytes]], body: bytes
) -> None:
    """What is taken can be read back, and can't break out of a header."""
    for take in (record_of, reply_of):
        try:
            draft = take(headers, body)
        except InvalidEvent:
            continue
        envelope = read(draft.headers, draft.value)
        validate(envelope.attributes)
        head, _ = request_of(envelope)
        assert all(b": " in line for line in head.split(b"\r\n")[:-1])


@given(hostile_headers, st.binary(max_size=5))
def test_the_fast_path_and_the_careful_one_agree(
    headers: list[tuple[bytes, bytes]], body: bytes
) -> None:
    def outcome(take: Callable[[HttpHeaders, bytes], Draft]) -> object:
        try:
            key, record_headers, value = take(headers, body)
        except InvalidEvent as error:
            return type(error), str(error)
        return key, sorted(record_headers), value

    assert outcome(record_of) == outcome(_read_carefully)


@given(documents)
def test_no_document_raises_anything_but_invalid_event(document: bytes) -> None:
    try:
        event = json_format.read(document)
    except InvalidEvent:
        return
    assert json_format.read(json_format.write(event)).attributes == event.attributes


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["ce_id", "ce_type", "ce_specversion", "ce_source", "content-type"])
            | st.text(max_size=5).map(lambda name: f"ce_{name}")
            | st.just("knative-x"),
            st.none() | hostile_values,
        )
    ),
    st.none() | documents,
)
def test_no_record_raises_anything_but_invalid_event(
    headers: list[tuple[str, bytes | None]], value: bytes | None
) -> None:
    try:
        envelope = read(headers, value)
    except InvalidEvent:
        return
    head, _ = request_of(envelope)
    lines = head.split(b"\r\n")[:-1]
    assert all(line.isascii() and line.decode().isprintable() for line in lines)
    assert len({line.partition(b":")[0] for line in lines}) == len(lines)


@st.composite
def sdk_events(draw: st.DrawFn) -> Event:
    """What the SDK 1.12 gets right: values that need no percent-encoding, as it does none, and
    an event with data, a datacontenttype and a time, as it makes those up or can't do without."""
    event = draw(events(plain_text))
    attributes = {
        "datacontenttype": "application/octet-stream",
        "time": "2026-01-01T00:00:00Z",
        **event.attributes,
    }
    return Event(attributes, event.data or b"x")


def same(data: object) -> object:
    return data


@given(sdk_events().filter(lambda event: event.attributes["source"].isascii()))
def test_the_sdk_and_we_read_each_others_http(event: Event) -> None:
    assert event.data is not None
    theirs = CloudEvent(dict(event.attributes), event.data)
    headers, body = to_binary(theirs, data_marshaller=same)
    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    assert sorted(headers_of(event)) == sorted(
        (name, value.replace(b"%", b"%25")) for name, value in pairs
    )
    if "%" not in event.attributes["source"]:
        assert read_draft(record_of(pairs, body)) == event

    read_by_them = from_http(headers, body, data_unmarshaller=same)
    assert dict(read_by_them.get_attributes()) == event.attributes
    assert read_by_them.get_data() == event.data

    headers, body = to_structured(theirs)
    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    assert read_draft(record_of(pairs, body)).attributes == event.attributes


@given(sdk_events())
def test_the_sdk_and_we_write_the_same_record(event: Event) -> None:
    """Less `partitionkey`, which the SDK leaves out of the headers against the spec (CE-K4)."""
    assert event.data is not None
    theirs = sdk_kafka.to_binary(
        CloudEvent(dict(event.attributes), event.data), data_marshaller=same
    )
    ours = to_record(event)
    assert fits_binary(event.attributes)
    assert {name: value for name, value in ours.headers if name != "ce_partitionkey"} == (
        theirs.headers
    )
    assert ours.value == theirs.value
    if key := event.attributes.get("partitionkey"):
        assert (theirs.key, ours.key) == (key, key.encode())
