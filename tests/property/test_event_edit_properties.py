"""Edits of replayed events: what is asked for changes, and nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from knafka.core.dead_letter import EDITED
from knafka.core.events import kafka_binding
from knafka.core.events.event import Event
from knafka_jobs.event_edits import CannotEdit, EventEdits, edited_record, set_member

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
NAMES = st.from_regex("[a-z]{3,8}", fullmatch=True).filter(
    lambda name: name not in ("data", "source", "time", "dataschema") and name[:6] != "knafka"
)
VALUES = st.text("abcXYZ 0123=,é", min_size=1)
EVENT = Event({"specversion": "1.0", "id": "1", "source": "/s", "type": "t"}, b'{"n": 1}')


def _paths(value: Any) -> list[tuple[str, ...]]:
    """The pointers of everything in a JSON value."""
    if not isinstance(value, (dict, list)):
        return [()]
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    return [(), *((str(key), *path) for key, each in inner for path in _paths(each))]


def _replaced(value: Any, path: tuple[str, ...], new: Any) -> Any:
    if not path:
        return new
    if isinstance(value, list):
        index = int(path[0])
        return [*value[:index], _replaced(value[index], path[1:], new), *value[index + 1 :]]
    return {**value, path[0]: _replaced(value[path[0]], path[1:], new)}


@given(JSON, JSON, st.data())
def test_any_value_in_json_can_be_replaced_and_nothing_else_changes(
    document: Any, new: Any, data: st.DataObject
) -> None:
    path = data.draw(st.sampled_from(_paths(document)))
    pointer = "".join(f"/{token.replace('~', '~0').replace('/', '~1')}" for token in path)
    edits = (
        EventEdits.parse(set_data=[f"{pointer}={json.dumps(new)}"]) if "=" not in pointer else None
    )
    assume(edits is not None)
    assert edits is not None
    event = Event(EVENT.attributes, json.dumps(document).encode())
    edited = edits.edit(event)
    assert json.loads(edited.data or b"") == _replaced(document, path, new)
    mark = {} if edited.data == event.data else {EDITED: "data"}
    assert dict(edited.attributes) == {**event.attributes, **mark}


@given(st.dictionaries(NAMES, VALUES), st.dictionaries(NAMES, VALUES), st.sets(NAMES))
def test_attributes_are_set_and_removed_as_told_and_data_stay_byte_for_byte(
    own: dict[str, str], new: dict[str, str], removed: set[str]
) -> None:
    assume(not removed & {"type", "id"} and "id" not in own | new and "subject" not in own | new)
    event = Event({**own, **EVENT.attributes}, EVENT.data)
    edits = EventEdits.parse([f"{name}={value}" for name, value in new.items()], removed)
    assume(bool(edits))
    try:
        edited = edits.edit(event)
    except CannotEdit:
        assume(False)
        return
    expected = {name: text for name, text in event.attributes.items() if name not in removed} | new
    changed = {
        name for name in {*new, *removed} if expected.get(name) != event.attributes.get(name)
    }
    assert set(edited.attributes.get(EDITED, "").split(",")) == (changed or {""})
    expected |= {EDITED: edited.attributes[EDITED]} if changed else {}
    assert dict(edited.attributes) == expected
    assert edited.data == EVENT.data


@given(st.binary())
def test_data_that_are_no_json_are_never_changed(data: bytes) -> None:
    try:
        edited = set_member(data, ("n",), b"2")
    except CannotEdit:
        return
    assert json.loads(edited)["n"] == 2
    assert isinstance(json.loads(data), dict)


def test_numbers_beside_the_edited_one_stay_as_they_are_written() -> None:
    data = b'{"a": 1e400, "big": 12345678901234567890123, "list": [1.0, {"x": 1.10}]}'
    edited = set_member(data, ("list", "1", "y"), b"2")
    for kept in (b"1e400", b"12345678901234567890123", b"1.0", b"1.10"):
        assert kept in edited
    assert json.loads(edited)["list"][1] == {"x": 1.1, "y": 2}
    assert json.loads(set_member(data, ("list", "-"), b"3"))["list"][2] == 3


@pytest.mark.parametrize(
    ("data", "edit", "edited"),
    [
        (b'{"a":1,"a":2,"b":3}', "/b=4", b'{"a":1,"a":2,"b":4}'),
        (b'{"a\\u0062":1,"b":3}', "/b=4", b'{"a\\u0062":1,"b":4}'),
        (b'{"a\\u0062":1,"b":3}', "/ab=4", b'{"a\\u0062":4,"b":3}'),
        (
            b'{"k\\/x" : "}],\\"" ,\n "b": [ 3 , "]" ] }',
            "/b/0=4",
            b'{"k\\/x" : "}],\\"" ,\n "b": [ 4 , "]" ] }',
        ),
        (b' {"b": {} } ', "/b/c=4", b' {"b": {"c":4} } '),
        (b'{"b": [ ]}', "/b/-=4", b'{"b": [4 ]}'),
        (b'{"b": [ "," ]}', "/b/-=x", b'{"b": [ ",","x" ]}'),
        (b'{ "b" : 3 }', "/c=4", b'{ "b" : 3,"c":4 }'),
        (b" [1] ", "=2", b" 2 "),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_all_bytes_but_those_of_the_edited_value_stay(
    data: bytes, edit: str, edited: bytes
) -> None:
    assert EventEdits.parse(set_data=[edit]).edit(Event(EVENT.attributes, data)).data == edited


@pytest.mark.parametrize(
    "edit", ["/b=3", '/c={"d":[1,2]}', "/e/0=x", '={"b":3,"c":{"d":[1,2]},"e":["x"]}']
)
def test_data_that_have_the_value_already_are_not_edited(edit: str) -> None:
    data = b'{"b": 3, "c": {"d": [1, 2]}, "e": ["x"]}'
    event = Event(EVENT.attributes, data)
    assert EventEdits.parse(set_data=[edit]).edit(event) == event


def test_a_text_is_the_same_however_its_characters_are_escaped() -> None:
    event = Event(EVENT.attributes, rb'{"b": "caf\u00e9", "u": "http:\/\/x"}')
    assert EventEdits.parse(set_data=["/b=café", "/u=http://x"]).edit(event) == event


@pytest.mark.parametrize(
    ("data", "pointer", "problem"),
    [
        (b"no json", "/n=1", "not JSON"),
        (b"\xff", "/n=1", "not JSON"),
        (None, "/n=1", "no data"),
        (b"{}", "/a/b=1", "no member 'a'"),
        (b"[1]", "/1=1", "no element '1'"),
        (b"[1]", "/-1=1", "no element '-1'"),
        (b"[1]", "/00=1", "no element '00'"),
        (b"[1, 2, 3, 4, 5, 6]", "/0000000005=1", "no element '0000000005'"),
        (b"3", "/n=1", "no member 'n'"),
        (b'{"n": 1, "\\u006e": 2}', "/n=1", "2 members 'n'"),
        (b'{"n": {}, "n": {}}', "/n/x=1", "2 members 'n'"),
        (b"[" * 100_000 + b"]" * 100_000, "/0=1", "nested too deep"),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_what_cannot_be_edited_says_why(data: bytes | None, pointer: str, problem: str) -> None:
    with pytest.raises(CannotEdit, match=problem):
        EventEdits.parse(set_data=[pointer]).edit(Event(EVENT.attributes, data))


def test_an_edit_that_makes_an_invalid_event_is_no_edit() -> None:
    with pytest.raises(CannotEdit, match="RFC 3339"):
        EventEdits.parse(["time=yesterday"]).edit(EVENT)


@pytest.mark.parametrize(
    "options",
    [
        (["id=2"],),
        (["source=/x"],),
        (["specversion=0.3"],),
        (["data=1"],),
        (["Type=x"],),
        (["type="],),
        (["type"],),
        (["knafkareason=x"],),
        (["knativeerrorcode=1"],),
        ((), ["type"]),
        ((), ["id"]),
        ((), (), ["n=1"]),
        ((), (), ["/n"]),
        ((), (), ["/n=\udcff"]),
        ((), (), ["/\udcff=1"]),
    ],
    ids=str,
)
def test_edits_that_nobody_can_mean_are_refused_before_anything_is_read(options: Any) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        EventEdits.parse(*options)


def test_the_event_of_a_dead_letter_is_edited_and_says_so_with_what_travels_beside_it() -> None:
    headers = [
        *(("ce_specversion", b"1.0"), ("ce_id", b"1"), ("ce_source", b"/s"), ("ce_type", b"t")),
        *(("content-type", b"application/json"), ("traceparent", b"00-1"), ("ce_old", b"x")),
        *(("ce_knafkareason", b"status"), ("ce_knafkaextensions", b"retry"), ("ce_retry", b"1")),
        *(
            ("ce_knafkaedited", b"subject"),
            ("knafka-replay", b"r/f"),
            ("knafka-mode", b"structured"),
        ),
    ]
    edits = EventEdits.parse(["type=t.v2"], ["old"], ["/n=2", "/who=Ann"])
    edited, value = edited_record(edits, headers, b'{"n": 1}')
    assert value == b'{"n": 2,"who":"Ann"}'
    assert dict(edited) == {
        **{"ce_specversion": b"1.0", "ce_id": b"1", "ce_source": b"/s", "ce_type": b"t.v2"},
        **{"content-type": b"application/json", "ce_knafkaedited": b"subject,type,old,data"},
        **{"traceparent": b"00-1", "knafka-mode": b"structured"},
    }
    assert kafka_binding.read(edited, value).event.attributes[EDITED] == "subject,type,old,data"
    assert ("ce_type", b"t") in headers, "the dead letter stays as it is"


def test_edits_read_as_the_options_that_they_came_from() -> None:
    edits = EventEdits.parse(["type=a=b"], ["old"], ["/n=2"])
    assert str(edits) == "--set-attribute type=a=b --remove-attribute old --set-data /n=2"
    assert not EventEdits.parse()
