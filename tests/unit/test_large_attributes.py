"""Attributes that are too large for header lines: an event that came as JSON is sent as JSON."""

from __future__ import annotations

import json

import pytest
from gunicorn.config import Config  # type: ignore[import-untyped]  # it has no stubs
from gunicorn.http.errors import LimitRequestHeaders, ParseException  # type: ignore[import-untyped]  # it has no stubs
from gunicorn.http.parser import RequestParser  # type: ignore[import-untyped]  # it has no stubs

from knafka.core.dead_letter import Failure, Origin, dead_letter_of, headers_for_replay
from knafka.core.delivery import Reason
from knafka.core.events.http_binding import record_of, request_of
from knafka.core.events.json_records import MAX_HEAD_BYTES, MAX_HEAD_LINES
from knafka.core.events.kafka_binding import Draft, Envelope, RecordHeaders, read

EVENT = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t"}
DATA = b'{"a":  1.10}'

LARGE = {
    "seven extensions of 9 KB": {f"ext{number}": "x" * 9_000 for number in range(7)},
    "one of 9 KB": {"ext": "x" * 9_000},
    "many that are large together": {f"ext{number}": "x" * 900 for number in range(9)},
    "large once they are encoded": {"ext": "ü" * 1_500},
    "more lines than a server takes": {f"e{number}": "x" for number in range(101)},
}
ORDINARY = {
    "none": {},
    "some": {"ext": "x" * 5_000, "other": "ü" * 20},
    "many small ones": {f"e{number}": "x" for number in range(MAX_HEAD_LINES - len(EVENT) - 1)},
}


def as_json(extensions: dict[str, str]) -> Draft:
    """The record of an event that came in structured mode."""
    document = json.dumps({**EVENT, **extensions}).encode()[:-1] + b',"data":' + DATA + b"}"
    return record_of([(b"content-type", b"application/cloudevents+json")], document)


def as_headers(extensions: dict[str, str]) -> Draft:
    """The record of the same event that came in binary mode."""
    attributes = {**EVENT, **extensions}.items()
    headers = [(f"ce-{name}".encode(), value.encode()) for name, value in attributes]
    return record_of([*headers, (b"content-type", b"application/json")], DATA)


def envelope_of(draft: Draft) -> Envelope:
    return read(draft.headers, draft.value)


def take(head: bytes, body: bytes) -> bytes:
    """The body as functions-framework's server takes it; raises what that answers 431 or 400 to."""
    start = b"POST / HTTP/1.1\r\nhost: subscriber\r\ncontent-length: %d\r\n" % len(body)
    sent = start + head + b"\r\n" + body
    request = next(RequestParser(Config(), iter([sent]), ("127.0.0.1", 1)))
    return bytes(request.body.read())


def is_structured(head: bytes) -> bool:
    return head.startswith(b"content-type: application/cloudevents+json\r\n")


@pytest.mark.conformance("KN-DLV-05")
@pytest.mark.parametrize("extensions", LARGE.values(), ids=LARGE)
def test_an_event_that_came_as_json_and_is_too_large_for_headers_is_sent_as_json(
    extensions: dict[str, str],
) -> None:
    """Sent as headers, as before, it was answered 431 by functions-framework."""
    draft = as_json(extensions)
    assert draft.value == DATA, "the record is in binary mode as every other"
    head, body = request_of(envelope_of(draft))
    assert is_structured(head)
    assert take(head, body) == body
    assert json.loads(body) == {
        **EVENT,
        **extensions,
        "datacontenttype": "application/json",
        "data": {"a": 1.1},
    }
    assert body.endswith(b',"data":' + DATA + b"}"), "byte for byte (CE-H10)"


@pytest.mark.parametrize("extensions", ORDINARY.values(), ids=ORDINARY)
def test_any_other_event_that_came_as_json_is_sent_with_headers(extensions: dict[str, str]) -> None:
    draft = as_json(extensions)
    head, body = request_of(envelope_of(draft))
    assert not is_structured(head)
    assert take(head, body) == DATA
    assert len(head) < MAX_HEAD_BYTES + 100
    assert sorted(draft.headers) == sorted(as_headers(extensions).headers)


@pytest.mark.conformance("KN-DLV-05")
@pytest.mark.parametrize("extensions", LARGE.values(), ids=LARGE)
def test_an_event_that_came_with_headers_is_sent_with_headers(extensions: dict[str, str]) -> None:
    """What its subscriber may take as they are, and may not read as JSON."""
    head, body = request_of(envelope_of(as_headers(extensions)))
    assert not is_structured(head)
    assert body == DATA


@pytest.mark.conformance("KN-DLV-05")
def test_a_delivery_whose_format_is_binary_has_its_way() -> None:
    """KN-DLV-05: its subscriber reads nothing else, and answers 431 itself."""
    head, body = request_of(envelope_of(as_json(LARGE["seven extensions of 9 KB"])), "binary")
    assert not is_structured(head)
    with pytest.raises((LimitRequestHeaders, ParseException)):
        take(head, body)


def test_its_dead_letter_and_its_replay_are_sent_as_json_too() -> None:
    draft = as_json(LARGE["seven extensions of 9 KB"])
    failure = Failure("http://subscriber/", Reason.STATUS, 1, 0.0, 0.0, 503)
    origin = Origin("shop", "default", "orders", "topic", 0, 7)
    letter, value = dead_letter_of(draft.headers, draft.value, failure, origin)
    head, body = request_of(read(letter, value))
    assert is_structured(head)
    assert json.loads(body)["knafkareason"] == "status"
    headers: RecordHeaders = [(name, raw) for name, raw in letter if raw is not None]
    head, body = request_of(read(headers_for_replay(headers, "replay/1"), value))
    assert is_structured(head)
    assert "knafkareason" not in json.loads(body)


def test_no_sender_says_in_a_header_how_its_event_is_to_be_sent() -> None:
    headers = [(f"ce-{name}".encode(), value.encode()) for name, value in EVENT.items()]
    draft = record_of([*headers, (b"knafka-mode", b"structured")], DATA)
    assert dict(draft.headers).keys() == {f"ce_{name}" for name in EVENT}
