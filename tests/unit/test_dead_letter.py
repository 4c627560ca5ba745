"""Dead letters: the event stays as it is, and its story is added."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from knafka.core.dead_letter import (
    LOGGED_ATTEMPTS,
    REPLAY,
    Attempt,
    Failure,
    Origin,
    attempt_log,
    dead_letter_of,
    event_of_dead_letter,
    extensions_of,
    headers_for_replay,
    parse_attempt_log,
)
from knafka.core.delivery import Outcome, Reason
from knafka.core.events.http_binding import record_of, request_of
from knafka.core.events.kafka_binding import RecordHeaders, read

ORIGIN = Origin("shop", "default", "orders", "knative-broker-shop-default", 3, 42)
HEADERS = [
    ("ce_specversion", b"0.3"),
    ("ce_id", b"1"),
    ("ce_source", b"/s"),
    ("ce_type", b"t"),
    ("ce_partitionkey", b"k"),
    ("content-type", b"text/plain"),
    ("traceparent", b"00-abc-def-01"),
]


def failure(status: int | None = 503, body: bytes = b"no", **fields: object) -> Failure:
    return Failure(
        destination="http://subscriber/",
        reason=Reason.STATUS if status else Reason.TIMEOUT,
        attempts=3,
        first_attempt=0.0,
        last_attempt=1.5,
        status=status,
        body=body,
    )


STORY: Mapping[str, Sequence[bytes]] = {
    "knafkareason": [b"status"],
    "knativeerrorcode": [b"503"],
}
"""What those attributes have that a subscriber could want to replace."""


def accepted(letter: RecordHeaders) -> dict[str, str]:
    """The attributes that a Knafka Broker stores of a dead letter; raises `InvalidEvent`."""
    head, body = request_of(read(letter, b"data"))
    lines = (line.split(b": ", 1) for line in head.split(b"\r\n")[:-1])
    draft = record_of([(name, value) for name, value in lines], body)
    return dict(read(draft.headers, draft.value).attributes)


def letter_of(
    headers: RecordHeaders, why: Failure, origin: Origin, value: bytes | None = b"data"
) -> RecordHeaders:
    """The headers of a dead letter whose value stays as it is."""
    told, kept = dead_letter_of(headers, value, why, origin)
    assert kept == value
    return told


@pytest.mark.conformance("KN-DP-14")
def test_the_event_keeps_its_version_its_partition_key_and_its_other_headers() -> None:
    """KN-DP-14, spec trap 8."""
    assert letter_of(HEADERS, failure(), ORIGIN)[: len(HEADERS)] == HEADERS


@pytest.mark.conformance("KN-DLV-08")
def test_the_story_says_where_how_when_and_whose() -> None:
    """KN-DLV-08, and what issue 5 reads."""
    attributes = read(letter_of(HEADERS, failure(), ORIGIN), b"data").attributes
    story = {
        name: value for name, value in attributes.items() if name.startswith(("knative", "knafka"))
    }
    assert story == {
        "knativeerrordest": "http://subscriber/",
        "knativeerrorcode": "503",
        "knativeerrordata": base64.b64encode(b"no").decode(),
        "knafkareason": "status",
        "knafkaattempts": "3",
        "knafkafirsttime": "1970-01-01T00:00:00.000Z",
        "knafkalasttime": "1970-01-01T00:00:01.500Z",
        "knafkanamespace": "shop",
        "knafkabroker": "default",
        "knafkatrigger": "orders",
        "knafkatopic": "knative-broker-shop-default",
        "knafkapartition": "3",
        "knafkaoffset": "42",
    }
    assert all(len(name) <= 20 for name in story)


def test_without_a_response_there_is_no_code_and_no_data() -> None:
    attributes = read(letter_of(HEADERS, failure(None, b""), ORIGIN), None).attributes
    assert "knativeerrorcode" not in attributes
    assert "knativeerrordata" not in attributes
    assert attributes["knafkareason"] == "timeout"


@pytest.mark.conformance("KN-DLV-08")
def test_error_data_are_the_first_1024_bytes_and_always_decodable() -> None:
    """KN-DLV-08, spec trap 8: as many as upstream's Kafka Broker keeps."""
    attributes = read(
        letter_of(HEADERS, failure(500, bytes(range(256)) * 9), ORIGIN), None
    ).attributes
    text = attributes["knativeerrordata"]
    assert base64.b64decode(text, validate=True) == (bytes(range(256)) * 9)[:1024]


@pytest.mark.parametrize("character", ["é", "€", "🙂"])
@pytest.mark.parametrize("before", range(4))
def test_error_data_ends_with_a_whole_character(character: str, before: int) -> None:
    text = "x" * (1021 + before) + 20 * character
    attributes = read(letter_of(HEADERS, failure(500, text.encode()), ORIGIN), None).attributes
    kept = base64.b64decode(attributes["knativeerrordata"])
    assert text.startswith(kept.decode())
    assert 1021 <= len(kept) <= 1024


def test_burying_a_replayed_event_again_replaces_its_story() -> None:
    once = letter_of(HEADERS, failure(), ORIGIN)
    again = letter_of(once, failure(None, b""), ORIGIN)
    names = [name for name, _ in again]
    assert len(names) == len(set(names))
    assert ("ce_knafkareason", b"timeout") in again
    assert "ce_knativeerrorcode" not in names


def test_a_structured_record_is_dead_lettered_in_binary_mode_with_its_data_untouched() -> None:
    """CE-K7: in structured mode the headers would not be part of the event."""
    document = b'{"specversion":"1.0","id":"1","source":"/s","type":"t","data":{"a":  1.10}}'
    headers, value = dead_letter_of(
        [("content-type", b"application/cloudevents+json"), ("traceparent", b"00-a-b-01")],
        document,
        failure(),
        ORIGIN,
    )
    assert value == b'{"a":  1.10}'
    assert ("traceparent", b"00-a-b-01") in headers
    attributes = read(headers, value).attributes
    assert attributes["id"] == "1"
    assert attributes["datacontenttype"] == "application/json"
    assert attributes["knafkareason"] == "status"


def test_no_extension_replaces_an_attribute_of_an_event_whose_data_are_events() -> None:
    """KN-BRK-10, KN-DLV-08."""
    document = (
        b'{"specversion":"1.0","id":"1","source":"/s","type":"t","team":"own","knafkahops":"2",'
        b'"datacontenttype":"application/cloudevents+json","data":{"id":  "2"}}'
    )
    why = replace(failure(), extensions=[("team", "red"), ("floor", "2")])
    structured = [("content-type", b"application/cloudevents+json")]
    headers, value = dead_letter_of(structured, document, why, ORIGIN)
    stored = read(headers, value).attributes
    assert stored["team"] == "own"
    assert "knafkahops" not in stored, "a replay begins anew"
    event = event_of_dead_letter(headers, value)
    assert (event.attributes["team"], event.attributes["floor"]) == ("own", "2")


def test_an_undecodable_record_keeps_its_raw_bytes_and_headers() -> None:
    """CE-K8."""
    raw = [("ce_id", b"\xff"), ("whatever", b"\x00")]
    why = Failure("http://subscriber/", Reason.UNDECODABLE, 0, 0.0, 0.0, body=b"not UTF-8")
    headers, value = dead_letter_of(raw, b"\x00garbage", why, ORIGIN)
    assert value == b"\x00garbage"
    assert headers[:2] == raw
    assert ("ce_knafkareason", b"undecodable-record") in headers


def test_a_restored_event_has_none_of_its_subscribers_extensions() -> None:
    failure = Failure("http://s/", Reason.STATUS, 1, 0, 0, 400, extensions=[("team", "blue")])
    own = [("ce_specversion", b"1.0"), ("ce_id", b"1"), ("ce_source", b"/s"), ("ce_type", b"t")]
    headers, _ = dead_letter_of(own, b"data", failure, Origin("n", "b", "t", "topic", 0, 0))
    assert ("ce_team", b"blue") in headers
    assert headers_for_replay(headers, "r/f") == [*own, (REPLAY, b"r/f")]


def test_no_extension_of_a_subscriber_stands_for_an_attribute_of_the_event() -> None:
    """KN-BRK-10; also where the event has none of that name, as its content type is a header."""
    given = [("datacontenttype", "text/html"), ("id", "2"), ("team", "blue")]
    failure = Failure("http://s/", Reason.STATUS, 1, 0, 0, 400, extensions=given)
    own = [("ce_specversion", b"1.0"), ("ce_id", b"1"), ("ce_source", b"/s"), ("ce_type", b"t")]
    headers, _ = dead_letter_of(own, b"data", failure, Origin("n", "b", "t", "topic", 0, 0))
    assert [value for name, value in headers if name == "ce_id"] == [b"1"]
    assert "ce_datacontenttype" not in dict(headers)
    assert dict(headers)["ce_team"] == b"blue"


@pytest.mark.conformance("KN-DLV-08")
@pytest.mark.parametrize(
    ("header", "value"),
    [
        pytest.param(f"kne-{name}", value, id=f"{name}: {value or 'nothing'}")
        for name, value in [
            ("time", "now"),
            ("time", "2026-01-01T00:00:00Z"),
            ("time", ""),
            ("subject", ""),
            ("subject", "s"),
            ("dataschema", "not a uri"),
            ("schemaurl", "a b"),
            ("datacontenttype", "\t"),
            ("datacontentencoding", "base64"),
            ("specversion", "9.9"),
            ("source", "a b"),
            ("id", ""),
            ("data", "x"),
            ("Upper", "x"),
            ("a-b", "x"),
            ("a_b", "x"),
            ("", "x"),
            ("note", ""),
            ("note", "a\x00b"),
            ("note", "\x85"),
            ("knafkareason", "none"),
            ("knativeerrorcode", "200"),
            ("knativebrokerttl", "255"),
        ]
    ],
)
def test_a_header_that_is_no_extension_is_left_out_of_the_dead_letter(
    header: str, value: str
) -> None:
    """KN-DLV-08, CE-H12: whatever a subscriber answers, a Knafka Broker takes the dead letter."""
    name = header.removeprefix("kne-")
    extensions = extensions_of([(header.encode(), value.encode("latin-1")), (b"kne-team", b"a b")])
    assert extensions == (("team", "a b"),)
    letter = letter_of(HEADERS, replace(failure(), extensions=extensions), ORIGIN)
    assert dict(letter).get(f"ce_{name}") in (dict(HEADERS).get(f"ce_{name}"), *STORY.get(name, ()))
    assert accepted(letter) == dict(read(letter, b"data").attributes)


def test_the_last_attempts_are_told_one_by_one_and_what_they_take_is_bounded() -> None:
    """Beside their number, which counts all of them."""
    attempts = [Attempt(1.5 * number, Outcome(500 + number)) for number in range(12)]
    attempts.append(Attempt(60, Outcome(failure=Reason.TIMEOUT)))
    why = replace(failure(), attempts=13, log=attempts)
    headers = letter_of(HEADERS, why, ORIGIN)
    attributes = read(headers, b"data").attributes
    told = parse_attempt_log(attributes["knafkaattemptlog"])
    assert len(told) == LOGGED_ATTEMPTS
    assert told[0] == ("1970-01-01T00:00:04.500Z", "503")
    assert told[-1] == ("1970-01-01T00:01:00.000Z", "timeout")
    assert attributes["knafkaattempts"] == "13"
    assert headers_for_replay([(name, raw or b"") for name, raw in headers], "r/1")[:-1] == HEADERS
    longest = [Attempt(0, Outcome(503, each)) for each in Reason for _ in range(LOGGED_ATTEMPTS)]
    texts = [attempt_log(longest[at : at + 10]) for at in range(0, len(longest), 10)]
    assert max(map(len, texts)) < 500


def test_a_dead_letter_from_before_attempts_were_told_has_none() -> None:
    assert "ce_knafkaattemptlog" not in dict(letter_of(HEADERS, failure(), ORIGIN))
    assert parse_attempt_log("") == []
