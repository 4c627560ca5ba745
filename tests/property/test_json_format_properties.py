"""Structured events: the fast ways only ever say yes, and to what the careful one takes."""

from __future__ import annotations

import json

from hypothesis import example, given
from hypothesis import strategies as st

from knafka.core import json_format
from knafka.core.errors import InvalidEvent
from knafka.core.event import Event, is_valid_1_0, problems_of
from knafka.core.http_binding import _structured_carefully, _structured_fast

NAMES = st.sampled_from(
    ["specversion", "id", "source", "type", "subject", "time", "datacontenttype", "dataschema",
     "schemaurl", "data", "data_base64", "partitionkey", "ext", "1", "Ext", "ex_t", "", "\\u0069d",
     "datacontentencoding"]
)  # fmt: skip
VALUES = st.sampled_from(
    ['"1.0"', '"0.3"', '"a"', '"/a"', '""', '"a b"', '"ü"', '"\\u00fc"', '"\\ud83d\\ude00"',
     '"a%20b"',
     '"\\ud800"', '"\\"\\\\"', '"\x7f"', '"\x01"', '"\\u0000"', '"\ufffe"', "null", "true", "false",
     "0", "-0", "5", "-5", "01", "1.5", "1e3", "1E999999", "9" * 5000, "NaN", "Infinity",
     "-Infinity", "{}", "[]", '{"a":1,"a":2}', "[1,]", '[ 1 , {"x" :\t"y"} ]', '["\\ud800"]',
     "[NaN]",
     '"2026-01-01T00:00:00Z"', '"text/plain"', '"application/json"', '"YWI="',
     '"application/cloudevents+json"', '"https://h/s"', "tru", '"a', "[" * 3000 + "]" * 3000]
)  # fmt: skip
GAPS = st.sampled_from(["", "", "", " ", "\n  ", "\t", "\xa0", "\x0b"])
VALID = [("specversion", '"1.0"'), ("id", '"1"'), ("source", '"/a"'), ("type", '"t"')]


@st.composite
def documents(draw: st.DrawFn) -> bytes:
    """Objects, about: some valid, some almost, some not."""
    members = draw(st.lists(st.tuples(NAMES, VALUES), max_size=4))
    if draw(st.booleans()):
        members = draw(st.permutations(VALID + members))
    comma, colon = draw(st.sampled_from([(",", ":"), (", ", ": "), (",\n", ":"), (", ", ":")]))
    inside = comma.join(f'"{name}"{colon}{value}' for name, value in members)
    text = f"{draw(GAPS)}{{{draw(GAPS)}{inside}{draw(GAPS)}}}{draw(GAPS)}"
    document = draw(st.sampled_from(["", "", "", "\ufeff"])).encode() + text.encode("utf-8")
    if draw(st.integers(0, 3)) == 0 and document:
        at = draw(st.integers(0, len(document) - 1))
        document = document[:at] + draw(st.binary(max_size=2)) + document[at + 1 :]
    return document


def careful(document: bytes) -> Event | str:
    try:
        return json_format._read_carefully(document)
    except InvalidEvent as error:
        return str(error)


@given(documents())
@example(b'{"specversion":"1.0","id":"1","source":"/a","type":"t","e":"12","e":"1"}')
@example(b'{"specversion": "1.0","id":"1","source":"/a","type":"t","data":"\xff"}')
@example(b'{"specversion":"1.0","id":"1","source":"/a","type":"t","a":1,"a":234567}')
def test_the_fast_ways_take_what_the_careful_one_takes_and_nothing_else(document: bytes) -> None:
    event = json_format._read_fast(document)
    if event is not None:
        assert event == careful(document)
        assert list(event.attributes) == list(json_format._read_carefully(document).attributes)
    beside = [("traceparent", b"x")]
    draft = _structured_fast(document, beside)
    if draft is not None:
        assert draft == _structured_carefully(document, beside)


@given(st.dictionaries(NAMES, st.text(max_size=3) | st.sampled_from(["1.0", "/a"]), max_size=6))
def test_what_is_valid_for_certain_has_no_problems(attributes: dict[str, str]) -> None:
    if is_valid_1_0(attributes):
        assert problems_of(attributes) == []


@given(st.dictionaries(st.text(max_size=3), st.text(st.characters(exclude_categories=["Cs"]))))
def test_attributes_are_written_as_by_pythons_json(members: dict[str, str]) -> None:
    written = json.dumps(members, ensure_ascii=False, separators=(",", ":")).encode()
    assert json_format._dump(members) == written


@given(st.binary(max_size=6) | VALUES.map(str.encode))
def test_data_are_json_for_the_fast_check_only_if_they_are_for_the_careful_one(data: bytes) -> None:
    try:
        json_format._CHECK(data.decode())
        is_json = True
    except (ValueError, RecursionError):
        is_json = False
    assert json_format._is_json_text(data) == is_json


def test_common_documents_take_the_fast_way() -> None:
    event = {
        "specversion": "1.0",
        "id": "1",
        "source": "/a",
        "type": "t",
        "n": 5,
        "data": {"x": "ü"},
    }
    for document in (
        json.dumps(event).encode(),
        json.dumps(event, separators=(",", ":")).encode() + b"\n",
        json.dumps(event, ensure_ascii=False).encode(),
    ):
        assert json_format._read_fast(document) is not None
        assert _structured_fast(document, []) is not None
