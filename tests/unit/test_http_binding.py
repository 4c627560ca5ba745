"""Requests and responses as records, and records as requests (CE-H1 to CE-H13)."""

from typing import Literal

import pytest

from knafka.core.errors import BatchedContent, InvalidEvent, UnsupportedContentMode
from knafka.core.events import json_format
from knafka.core.events.event import Event
from knafka.core.events.http_binding import (
    HttpHeaders,
    claims_event,
    decode,
    encode,
    head_of,
    located_request_of,
    record_of,
    reply_of,
    request_of,
)
from knafka.core.events.kafka_binding import Draft, Envelope, read, to_record

ATTRIBUTES = {"specversion": "1.0", "id": "1", "source": "/a", "type": "t"}
REQUIRED = [
    (b"ce-specversion", b"1.0"),
    (b"ce-id", b"1"),
    (b"ce-source", b"/a"),
    (b"ce-type", b"t"),
]
RECORD = [("ce_specversion", b"1.0"), ("ce_id", b"1"), ("ce_source", b"/a"), ("ce_type", b"t")]
DOCUMENT = b'{"specversion":"1.0","id":"1","source":"/a","type":"t","data":{"a": 1}}'
PLAIN = Envelope(ATTRIBUTES, b"x", [])
STRUCTURED = (b"Content-Type", b"application/cloudevents+json; charset=utf-8")


def problem(headers: HttpHeaders, body: bytes = b"") -> str:
    with pytest.raises(InvalidEvent) as caught:
        record_of(headers, body)
    return str(caught.value)


def test_a_binary_request_becomes_a_binary_record() -> None:
    """CE-H3, CE-H4, CE-K1"""
    headers = [
        (b"Host", b"broker"),
        (b"CE-SpecVersion", b"1.0"),
        (b"Ce-Id", b"1"),
        (b"ce-source", b"/a"),
        (b"ce-type", b"t"),
        (b"Ce-Time", b"2026-01-31T00:00:00Z"),
        (b"Ce-Subject", b"s"),
        (b"Ce-MyExt", b""),
        (b"Content-Type", b"text/xml; charset=utf-8"),
        (b"ce_other", b"no attribute"),
    ]
    assert record_of(headers, b"<a/>") == Draft(
        b"s",
        [
            *RECORD,
            ("ce_time", b"2026-01-31T00:00:00Z"),
            ("ce_subject", b"s"),
            ("ce_myext", b""),
            ("content-type", b"text/xml; charset=utf-8"),
        ],
        b"<a/>",
    )


def test_an_empty_body_is_no_data_and_no_content_type_is_made_up() -> None:
    """CE-H3"""
    assert record_of(REQUIRED, b"") == Draft(None, RECORD, None)
    assert record_of([*REQUIRED, (b"content-type", b"")], b"") == Draft(None, RECORD, None)


@pytest.mark.parametrize("subject", [b"s", b"%73", None])
def test_the_key_is_the_partitionkey_else_the_subject(subject: bytes | None) -> None:
    """CE-K4, CE-K5, whether values are encoded or not"""
    headers = [*REQUIRED, *([(b"ce-subject", subject)] if subject else [])]
    assert record_of(headers, b"").key == (b"s" if subject else None)
    assert record_of([*headers, (b"ce-partitionkey", b"p")], b"").key == b"p"
    assert record_of([*headers, (b"ce-partitionkey", b"")], b"").key == (b"s" if subject else None)


@pytest.mark.conformance("KN-DP-10", "KN-DP-11", "KN-CHN-08")
@pytest.mark.parametrize("extra", [[], [(b"ce-ext", b"%20")]], ids=["plain", "encoded"])
def test_trace_and_knative_headers_pass_under_their_own_names(
    extra: list[tuple[bytes, bytes]],
) -> None:
    """KN-DP-10, KN-DP-11"""
    passing = [
        (b"TraceParent", b"00-1"),
        (b"X-Request-Id", b"r"),
        (b"X-B3-TraceId", b"1"),
        (b"Knative-X", b"y"),
    ]
    draft = record_of([*REQUIRED, *passing, *extra, (b"x-other", b"z"), (b"b3", b"z")], b"")
    assert [pair for pair in draft.headers if not pair[0].startswith("ce_")] == [
        (name.decode().lower(), value) for name, value in passing
    ]


def test_a_passing_header_given_twice_is_joined_as_one_list() -> None:
    """Trace state may come in several headers."""
    headers = [*REQUIRED, (b"tracestate", b"a=1"), (b"Tracestate", b"b=2")]
    assert ("tracestate", b"a=1, b=2") in record_of(headers, b"").headers


@pytest.mark.parametrize(
    ("sent", "meant"),
    [
        (b"Euro%20%E2%82%AC%20%F0%9F%98%80", "Euro € 😀"),
        (b"%e2%82%ac", "€"),
        (b"%41", "A"),
        (b"%2520", "%20"),
        ("Grüße".encode(), "Grüße"),
        (b"a b", "a b"),
        (b" \tab\t ", "ab"),
        (b'"a \\"b\\" \\\\ %20"', 'a "b" \\  '),
        (b'"', '"'),
        (b'"a', '"a'),
        (b'"a" "b"', '"a" "b"'),
        (b"a\\b", "a\\b"),
        (b"100%", "100%"),
        (b"%zz%2", "%zz%2"),
    ],
)
def test_header_values_are_decoded_once(sent: bytes, meant: str) -> None:
    """CE-H6; a stray percent sign stands for itself, as many SDKs never encode (CE-H7)."""
    draft = record_of([*REQUIRED, (b"ce-ext", sent)], b"")
    assert dict(draft.headers)["ce_ext"] == meant.encode()


@pytest.mark.parametrize(
    ("version", "name", "meant"),
    [
        (b"1.0", "dataschema", "x:a%20b"),
        (b"0.3", "schemaurl", "x:a%20b"),
        (b"1.0", "schemaurl", "x:a b"),
        (b"0.3", "dataschema", "x:a b"),
    ],
)
@pytest.mark.parametrize("is_version_last", [False, True])
def test_only_the_schema_attribute_of_an_events_own_version_is_a_uri(
    version: bytes, name: str, meant: str, is_version_last: bool
) -> None:
    """CE-H6: the other version's is an extension, which is decoded as all are; also when it was
    delivered, and comes again."""
    headers = [
        (b"ce-specversion", version), (b"ce-id", b"1"), (b"ce-source", b"/s"), (b"ce-type", b"t"),
        (b"ce-" + name.encode(), b" x:a%20b\t"),
    ]  # fmt: skip
    draft = record_of(headers[::-1] if is_version_last else headers, b"")
    assert dict(draft.headers)[f"ce_{name}"] == meant.encode()
    lines = head_of(read(draft.headers, draft.value).attributes).split(b"\r\n")[:-1]
    again = record_of(
        [(header, value) for header, _, value in (x.partition(b": ") for x in lines)], b""
    )
    assert sorted(again.headers) == sorted(draft.headers)


@pytest.mark.parametrize("name", [b"ce-schemaurl", b"ce-dataschema"])
def test_a_schema_that_comes_twice_and_once_is_not_utf8_is_refused(name: bytes) -> None:
    said = problem([*REQUIRED, (name, b"x:y"), (name, b"%FF")])
    assert "given more than once" in said
    assert "is not UTF-8" in said


@pytest.mark.parametrize(
    "value", [b"%C0%A0", b"%ED%A0%80", b"%FF", b"\xff%FF", b"%E2%82", b'"%FF"']
)
def test_values_that_are_not_utf8_are_refused(value: bytes) -> None:
    """CE-H6: overlong forms and surrogates too"""
    assert problem([*REQUIRED, (b"ce-ext", value)]) == "the header ce-ext is not UTF-8"


@pytest.mark.parametrize(
    ("sent", "meant"),
    [(b"caf\xe9", "café"), (b"\xe9%20%C3%A9", "é é"), (b'"\xe9"', "é"), (b"caf\xc3\xa9", "café")],
)
def test_raw_bytes_that_are_not_utf8_are_read_as_iso_8859_1(sent: bytes, meant: str) -> None:
    """Node.js and WSGI servers write them so (CE-H7)."""
    headers = [*REQUIRED, (b"ce-ext", sent)]
    assert dict(record_of(headers, b"").headers)["ce_ext"] == meant.encode()
    draft = reply_of(headers, b"")
    assert dict(draft.headers)["ce_ext"] == meant.encode()


@pytest.mark.parametrize("value", [b"%00", b"\x85", b"a%0D%0Ab", b"a\tb", b"%EF%BF%BE"])
def test_decoded_controls_and_non_characters_are_refused(value: bytes) -> None:
    assert "control or non-character" in problem([*REQUIRED, (b"ce-ext", value)])


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ([(b"ce-datacontenttype", b"a/b")], "b'ce-datacontenttype' names no attribute"),
        ([(b"Ce-Data", b"x")], "names no attribute"),
        ([(b"ce-", b"x")], "names no attribute"),
        ([(b"ce-a_b", b"x")], "names no attribute"),
        ([(b"ce-\xe9", b"x")], "names no attribute"),
        ([(b"CE-ID", b"2")], "ce-id is given more than once"),
        ([(b"ce-x", b"%20"), (b"ce-x", b"%20")], "ce-x is given more than once"),
        ([(b"content-type", b"a/b"), (b"Content-Type", b"a/b")], "content-type is given more"),
        ([(b"content-type", "a/ü".encode())], "not a media type"),
        ([(b"ce-time", b"2026-02-30T00:00:00Z")], "RFC 3339"),
        ([(b"ce-time", b"")], "RFC 3339"),
    ],
)
def test_what_is_refused_in_binary_mode(more: list[tuple[bytes, bytes]], says: str) -> None:
    """CE-H3, CE-H4, CE-H12"""
    assert says in problem([*REQUIRED, *more])


@pytest.mark.parametrize("name", [b"ce-specversion", b"ce-id", b"ce-source", b"ce-type"])
def test_a_required_attribute_may_not_be_missing_or_empty(name: bytes) -> None:
    """CE-H12"""
    without = [pair for pair in REQUIRED if pair[0] != name]
    assert problem(without) == f"the attribute {name.decode()[3:]} is required"
    assert problem([*without, (name, b"")]) == f"the attribute {name.decode()[3:]} is required"


@pytest.mark.parametrize("source", [b"<a>", b"a\\b", b"a%zz", b"a b%20", b"%20<"])
def test_a_source_is_a_uri_reference(source: bytes) -> None:
    """CE-H12"""
    headers = [*(pair for pair in REQUIRED if pair[0] != b"ce-source"), (b"ce-source", source)]
    assert "is not a URI-reference" in problem(headers)


@pytest.mark.parametrize(
    ("sent", "meant"),
    [
        (b"/a%20b", "/a%20b"),
        (b"https://e.org/?q=%22x%22", "https://e.org/?q=%22x%22"),
        (b'"/a%20b"', "/a%20b"),
        (b"/a%2Fb", "/a/b"),
        (b"/a%2520b", "/a%20b"),
        (b"/caf%C3%A9", "/café"),
    ],
)
def test_a_source_that_only_is_a_uri_as_it_was_sent_is_kept(sent: bytes, meant: str) -> None:
    """CE-H7: four of five SDKs send a URI as it is; decoded, it would be none."""
    headers = [*(pair for pair in REQUIRED if pair[0] != b"ce-source"), (b"ce-source", sent)]
    draft = record_of(headers, b"")
    assert dict(draft.headers)["ce_source"] == meant.encode()
    head, _ = request_of(read(draft.headers, draft.value))
    again = [tuple(line.split(b": ", 1)) for line in head.split(b"\r\n")[:-1]]
    assert record_of(again, b"") == draft  # type: ignore[arg-type]


@pytest.mark.conformance("KN-DP-14", "KN-CHN-08")
@pytest.mark.parametrize(("version", "taken"), [(b"0.3", True), (b"1.0", True), (b"0.2", False)])
def test_versions_are_kept_as_they_are(version: bytes, taken: bool) -> None:
    """KN-DP-14"""
    headers = [(b"ce-specversion", version), *REQUIRED[1:]]
    if taken:
        assert record_of(headers, b"").headers[0] == ("ce_specversion", version)
    else:
        assert "specversion '0.2'" in problem(headers)


def test_the_error_names_every_problem_at_once() -> None:
    text = problem([(b"ce-id", b"%FF"), (b"ce-a-b", b""), (b"ce-source", b"a b")])
    for part in ("ce-id is not UTF-8", "b'ce-a-b'", "'a b' is not a URI", "type is required"):
        assert part in text


def test_a_structured_request_becomes_a_binary_record_with_its_data_untouched() -> None:
    """CE-H8: the body wins over headers, good or bad; CE-H10"""
    headers = [STRUCTURED, (b"ce-id", b"other"), (b"ce-a-b", b""), (b"traceparent", b"00-1")]
    assert record_of(headers, DOCUMENT) == Draft(
        None,
        [*RECORD, ("content-type", b"application/json"), ("traceparent", b"00-1")],
        b'{"a": 1}',
    )


def test_a_malformed_structured_request_is_refused() -> None:
    assert "no JSON object" in problem([STRUCTURED], b"")
    assert "too deep" in problem([STRUCTURED], b'{"data":' + b"[" * 10_000)


@pytest.mark.parametrize(
    ("content_type", "is_json"),
    [
        (b"application/cloudevents-batch+json", True),
        (b"APPLICATION/cloudevents-batch+JSON; charset=utf-8", True),
        (b"APPLICATION/CLOUDEVENTS-BATCH", False),
        (b"application/cloudevents-batch+avro", False),
    ],
)
def test_a_batch_is_told_apart_from_one_event(content_type: bytes, is_json: bool) -> None:
    """CE-H1, CE-H11: a batch in another format than JSON is answered with 415"""
    with pytest.raises(UnsupportedContentMode) as caught:
        record_of([*REQUIRED, (b"content-type", content_type)], b"[]")
    assert isinstance(caught.value, BatchedContent) == is_json


def test_an_unknown_format_is_binary_beside_attributes_and_unsupported_without() -> None:
    """CE-H2"""
    avro = (b"content-type", b"application/cloudevents+avro")
    assert record_of([*REQUIRED, avro], b"x") == Draft(
        None, [*RECORD, ("content-type", avro[1])], b"x"
    )
    with pytest.raises(UnsupportedContentMode):
        record_of([avro], b"x")


@pytest.mark.parametrize(
    ("text", "header"),
    [
        ("Euro € 😀", "Euro%20%E2%82%AC%20%F0%9F%98%80"),
        ('"100%"', "%22100%25%22"),
        ("/a/b?c=d&e=[f]#g", "/a/b?c=d&e=[f]#g"),
        ("2026-01-31T00:00:00.5+01:00", "2026-01-31T00:00:00.5+01:00"),
        ("!#$&'()*+,-./:;<=>?@[\\]^_`{|}~", "!#$&'()*+,-./:;<=>?@[\\]^_`{|}~"),
        ("", ""),
    ],
)
def test_values_are_encoded_minimally(text: str, header: str) -> None:
    """CE-H5, CE-H7"""
    assert encode(text) == header
    assert decode(header.encode()) == text
    assert head_of({"ext": text}) == f"ce-ext: {header}\r\n".encode()


def test_a_request_carries_the_attributes_the_content_type_and_what_passes() -> None:
    attributes = {
        **ATTRIBUTES,
        "subject": "a b",
        "datacontenttype": "text/plain; charset=utf-8",
        "time": "2026-01-31T00:00:00Z",
    }
    head, body = request_of(Envelope(attributes, b"x", [("traceparent", b"00 1")]))
    assert head == (
        b"ce-specversion: 1.0\r\nce-id: 1\r\nce-source: /a\r\nce-type: t\r\n"
        b"ce-subject: a%20b\r\nce-time: 2026-01-31T00:00:00Z\r\n"
        b"content-type: text/plain; charset=utf-8\r\ntraceparent: 00 1\r\n"
    )
    assert body == b"x"


def test_a_request_without_data_has_no_body_and_no_content_type() -> None:
    """CE-H3"""
    head, body = request_of(Envelope(ATTRIBUTES, None, []))
    assert b"content-type" not in head
    assert body == b""


def test_duplicate_record_headers_become_one_http_header() -> None:
    """CE-K6"""
    head, _ = request_of(read([*RECORD, ("ce_id", b"2"), ("content-type", b"a/b")] * 2, None))
    assert head.count(b"ce-id: 2\r\n") == 1
    assert head.count(b"\r\n") == 5


@pytest.mark.conformance("KN-DLV-05")
def test_a_structured_record_leaves_as_it_is() -> None:
    """KN-DLV-05: unless the delivery's format says otherwise"""
    envelope = read([("content-type", b"application/cloudevents+json")], DOCUMENT)
    for head, body in (request_of(envelope), request_of(envelope, "json")):
        assert (head, body) == (b"content-type: application/cloudevents+json\r\n", DOCUMENT)
    head, body = request_of(envelope, "binary")
    assert b"ce-id: 1\r\n" in head
    assert head.endswith(b"content-type: application/json\r\n")
    assert body == b'{"a": 1}'


@pytest.mark.conformance("KN-DLV-05")
def test_the_format_json_makes_a_binary_record_structured() -> None:
    """KN-DLV-05"""
    attributes = {**ATTRIBUTES, "datacontenttype": "application/json"}
    envelope = Envelope(attributes, b'{"a" : 1}', [("traceparent", b"00-1")])
    head, body = request_of(envelope, "json")
    assert head == b"content-type: application/cloudevents+json\r\ntraceparent: 00-1\r\n"
    assert body.endswith(b',"data":{"a" : 1}}')


def test_an_event_that_can_not_be_binary_stays_structured() -> None:
    """CE-H1: its datacontenttype would be taken for the mode."""
    inner = {**ATTRIBUTES, "datacontenttype": "application/cloudevents+json"}
    draft = to_record(Event(inner, DOCUMENT))
    head, body = request_of(read(draft.headers, draft.value), "binary")
    assert (head, body) == (b"content-type: application/cloudevents+json\r\n", draft.value)


@pytest.mark.conformance("KN-DP-08")
@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"content-type", b"text/plain"), (b"x-ce-id", b"1"), (b"ce_id", b"1")],
        [(b"content-type", b"application/json")],
    ],
)
def test_a_response_that_claims_no_event_is_no_reply(headers: HttpHeaders) -> None:
    """KN-DP-08"""
    assert not claims_event(headers)


def test_a_reply_is_read_in_either_mode() -> None:
    """CE-H13"""
    assert reply_of([(b"server", b"x"), *REQUIRED], b"x") == Draft(None, RECORD, b"x")
    draft = reply_of([STRUCTURED], DOCUMENT)
    assert draft.value == b'{"a": 1}'


@pytest.mark.conformance("KN-DP-08")
@pytest.mark.parametrize(
    "headers",
    [
        [(b"Ce-Id", b"1")],
        [(b"ce-a-b", b"1")],
        [(b"ce-datacontenttype", b"1")],
        [(b"content-type", b"Application/CloudEvents+JSON")],
        [(b"content-type", b"application/cloudevents+avro")],
        [(b"content-type", b"application/cloudevents-batch+json")],
    ],
)
def test_a_response_that_claims_an_event_and_is_malformed_is_an_error(headers: HttpHeaders) -> None:
    """KN-DP-08"""
    assert claims_event(headers)
    with pytest.raises(InvalidEvent):
        reply_of(headers, b"[]")


def test_a_located_request_says_where_its_record_lies() -> None:
    """As upstream's Kafka Broker and channel: two attributes more, everything else as it is."""
    plain_head, plain_body = request_of(PLAIN)
    head, body = located_request_of(PLAIN, 3, 42)
    where = [b"ce-knativekafkapartition: 3", b"ce-knativekafkaoffset: 42"]
    assert sorted(head.splitlines()) == sorted(plain_head.splitlines() + where)
    assert body == plain_body


@pytest.mark.parametrize("mode", [None, "json", "binary"])
@pytest.mark.parametrize("is_document", [False, True])
@pytest.mark.parametrize(
    "own", [{}, {"knativekafkaoffset": "7"}, {"knativekafkapartition": "a", "x": "y"}]
)
def test_what_a_located_request_says_stands_in_it_once_whatever_the_event_has(
    mode: Literal["json", "binary"] | None, is_document: bool, own: dict[str, str]
) -> None:
    """An event that comes from another Broker's deliveries has such attributes already."""
    attributes = {
        **{"specversion": "1.0", "id": "1", "source": "/s", "type": "t"},
        "datacontenttype": "application/json",
        **own,
    }
    data = b'{ "a":1.0 }'
    document = b" " + json_format.write(Event(attributes, data)) if is_document else None
    head, body = located_request_of(Envelope(attributes, data, [], document), 3, 42, mode)
    lines = [line.partition(b": ") for line in head.splitlines()]
    headers = [(name, value) for name, _, value in lines]
    draft = record_of(headers, body)
    assert len(headers) == len(dict(headers))
    located = {**attributes, "knativekafkapartition": "3", "knativekafkaoffset": "42"}
    assert read(draft.headers, draft.value).attributes == located
    assert draft.value == data, "byte for byte"
    assert headers[-1][1].startswith(b"application/cloudevents+json") == (
        mode == "json" or (is_document and mode is None)
    )


def test_a_documents_own_bytes_stay_behind_where_it_lies() -> None:
    document = b'{"specversion":"1.0","id":"1","source":"/s","type":"t","big":1,"data":{"x":1e400}}'
    attributes = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t", "big": "1"}
    body = located_request_of(Envelope(attributes, b'{"x":1e400}', [], document), 0, 5)[1]
    assert body.endswith(document[1:])


def test_a_batch_lies_nowhere() -> None:
    assert located_request_of(PLAIN, 3, 42, "batch") == request_of(PLAIN, "batch")
