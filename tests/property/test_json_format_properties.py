"""Structured events: the fast ways only ever say yes, and to what the careful one takes."""

from __future__ import annotations

import json

from hypothesis import example, given
from hypothesis import strategies as st

from knafka.core.errors import InvalidEvent
from knafka.core.events import json_format, json_records
from knafka.core.events.event import Event, is_timestamp, is_valid_1_0, problems_of
from knafka.core.events.http_binding import MAX_BATCH, _parse_structured_carefully

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
    draft = json_records.record_of(document, beside)
    if draft is not None:
        assert draft == _parse_structured_carefully(document, beside)


@st.composite
def batches(draw: st.DrawFn) -> tuple[bytes, list[bytes]]:
    """Arrays of documents, about, many of them with the same members; and the documents."""
    drawn = draw(st.lists(documents(), max_size=2))
    if draw(st.booleans()):
        names = draw(st.lists(NAMES, max_size=3, unique=True))
        drawn += [
            _compact([*VALID, *((name, draw(VALUES)) for name in names)])
            for _ in range(draw(st.integers(1, 3)))
        ]
    comma = draw(st.sampled_from([b",", b",", b", ", b",\n"]))
    return b"[" + comma.join(drawn) + draw(st.sampled_from([b"]", b"]", b"]\n", b" ]"])), drawn


def _compact(members: list[tuple[str, str]]) -> bytes:
    return b"{%b}" % b",".join(f'"{name}":{value}'.encode() for name, value in members)


ALIKE = [_compact([*VALID, ("data", f'{{"n":{number}}}')]) for number in range(3)]


@given(batches())
@example((b"[" + b",".join(ALIKE) + b"]", ALIKE))
@example((b'[{"specversion":"1.0"},{"id":"1"}]', [b'{"specversion":"1.0"}', b'{"id":"1"}']))
def test_one_pass_over_a_batch_takes_what_its_events_are_alone(
    batch: tuple[bytes, list[bytes]],
) -> None:
    """CE-H11"""
    whole, alone = batch
    beside = [("traceparent", b"x")]
    records = json_records.records_of(whole, beside, MAX_BATCH)
    if records is not None:
        assert json_format.elements_of(whole, MAX_BATCH) == [each.strip() for each in alone]
        assert records == [_parse_structured_carefully(each, beside) for each in alone]


def test_common_batches_take_one_pass_also_if_their_events_differ() -> None:
    event = {"specversion": "1.0", "id": "1", "source": "/a", "type": "t", "subject": "k"}
    events = [
        {**event, "n": 5, "data": {"x": "ü"}},
        {**event, "datacontenttype": "text/xml", "data": 5},
        {"data": "x", **event},
    ]
    for batch in (events, events[:1] * 3, events[1:2] * 3, events[2:] * 3, []):
        for separators in ((",", ":"), (", ", ": ")):
            written = json.dumps(batch, separators=separators).encode()
            records = json_records.records_of(written, [], MAX_BATCH)
            assert records is not None
            assert [each.key for each in records] == [b"k"] * len(batch)


def test_a_batch_that_may_have_far_more_members_than_events_have_is_not_split_at_once() -> None:
    """Every sender waits meanwhile."""
    many = b",".join(b'"%d":0' % number for number in range(json_format.MAX_BATCH_COLONS + 1))
    assert json_format.split_batch(b"[{%b}]" % many, MAX_BATCH) is None
    assert json_format.split_batch(b"[{},{}]", 1) is None


@given(st.binary(max_size=30) | st.from_regex(r"\d{4}-\d\d-\d\dT\d\d:\d\d:.{0,8}", fullmatch=True))
@example("2026-02-29T00:00:00Z")
@example("2024-02-29T23:59:60.5+01:00")
def test_a_time_is_one_as_a_header_too(time: str | bytes) -> None:
    value = time if isinstance(time, bytes) else time.encode()
    if value.isascii():
        assert json_records.is_time(value) == is_timestamp(value.decode())


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
        assert json_records.record_of(document, []) is not None
