"""The JSON event format: what is read, what is refused, and that data keep their bytes."""

import json
from base64 import b64decode, b64encode
from itertools import product

import pytest

from knafka.core.errors import InvalidEvent
from knafka.core.events import json_format
from knafka.core.events.event import Event

VALID = '"specversion":"1.0","id":"1","source":"/a","type":"t"'
ATTRIBUTES = {"specversion": "1.0", "id": "1", "source": "/a", "type": "t"}


def read(members: str, start: str = VALID) -> Event:
    return json_format.read(f"{{{start},{members}}}".encode())


def problem(document: str | bytes) -> str:
    with pytest.raises(InvalidEvent) as caught:
        json_format.read(document if isinstance(document, bytes) else document.encode())
    return str(caught.value)


def test_attributes_are_read_and_null_is_unset() -> None:
    """CE-H9"""
    event = json_format.read(
        b' \n{ "specversion" : "1.0" , "id":"1","source":"/a","type":"t",'
        b'"subject":null,"ext":"\\u00e9" }\t'
    )
    assert event == Event({**ATTRIBUTES, "ext": "é"}, None)


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("true", "true"),
        ("false", "false"),
        ("5", "5"),
        ("-5", "-5"),
        ("-0", "0"),
        ("9" * 5000, "9" * 5000),
        ('"5"', "5"),
    ],
)
def test_integer_and_boolean_extensions_become_canonical_strings(
    written: str, canonical: str
) -> None:
    assert read(f'"ext":{written}').attributes["ext"] == canonical


@pytest.mark.parametrize("value", ["1.5", "1e3", "NaN", "{}", "[]"])
def test_an_attribute_is_no_float_object_or_array(value: str) -> None:
    assert "JSON type it can't have" in problem(f'{{{VALID},"ext":{value}}}')


@pytest.mark.parametrize("name", ["subject", "datacontenttype", "time"])
def test_a_core_attribute_is_a_string(name: str) -> None:
    assert f"{name!r} is of a JSON type" in problem(f'{{{VALID},"{name}":5}}')


@pytest.mark.parametrize(
    "data",
    [
        '{"b" : 1,\t"a":[ 2 ]}',
        "123456789012345678901234567890",
        "9" * 5000,
        "1.10",
        "NaN",
        "null",
        "true",
        '"text"',
        '{"a":1,"a":2}',
        '"\\ud800"',
        '"é😀"',
    ],
)
@pytest.mark.parametrize("before", ["", '"datacontenttype":"application/json",'])
def test_json_data_keep_their_bytes(data: str, before: str) -> None:
    """CE-H10; data without a datacontenttype are JSON (CE-H9)."""
    event = read(f'{before}"data" : {data} ,"ext":"x"')
    assert event.data == data.encode()
    assert event.attributes["datacontenttype"] == "application/json"


def test_string_data_of_another_type_are_its_text() -> None:
    event = read('"datacontenttype":"text/plain","data":"Gr\\u00fc\\u00dfe\\n"')
    assert event.data == "Grüße\n".encode()


def test_string_data_of_a_json_type_stay_a_quoted_string() -> None:
    """CE-H9"""
    assert read('"datacontenttype":"a/b+JSON; x=y","data":"1"').data == b'"1"'


@pytest.mark.parametrize("data", ["5", "null", '{"a": 1}'])
def test_data_of_another_type_that_are_no_string_stay_json(data: str) -> None:
    assert read(f'"datacontenttype":"text/plain","data":{data}').data == data.encode()


def test_null_data_are_not_absent_data() -> None:
    """CE-H9"""
    assert read('"data":null').data == b"null"
    assert read('"ext":"x"').data is None


def test_base64_data_are_decoded_and_assume_no_type() -> None:
    """CE-H9"""
    event = read('"data_base64":"AP8="')
    assert event == Event(ATTRIBUTES, b"\x00\xff")
    assert read('"data_base64":""').data == b""
    assert read('"data_base64":null').data is None


def test_the_older_datacontentencoding_is_undone() -> None:
    """CloudEvents 0.3 has no data_base64."""
    old = VALID.replace("1.0", "0.3") + ',"datacontentencoding":"BASE64"'
    event = read('"data":"AP8="', old)
    assert event == Event({**ATTRIBUTES, "specversion": "0.3"}, b"\x00\xff")
    assert read('"data":null', old).data is None
    assert "not a string" in problem(f'{{{old},"data":{{}}}}')


def test_in_1_0_datacontentencoding_is_only_an_extension() -> None:
    event = read('"datacontentencoding":"base64","data":"AP8="')
    assert (event.data, event.attributes["datacontentencoding"]) == (b'"AP8="', "base64")


@pytest.mark.parametrize(
    ("members", "says"),
    [
        ('"data":1,"data_base64":"AP8="', "exclude each other"),
        ('"data_base64":"AP8"', "not base64"),
        ('"data_base64":"A_8="', "not base64"),
        ('"data_base64":"é"', "not base64"),
        ('"data_base64":5', "not a string"),
        ('"id":"2"', "more than once"),
        ('"Ext":"x"', "no attribute name"),
        ('"":"x"', "no attribute name"),
        ('"ext":"\\ud800"', "control or non-character"),
        ('"datacontenttype":"text/plain","data":"\\ud800"', "surrogates"),
        ('"time":"now"', "RFC 3339"),
    ],
)
def test_what_is_refused(members: str, says: str) -> None:
    assert says in problem(f"{{{VALID},{members}}}")


def test_the_error_names_every_problem_at_once() -> None:
    text = problem('{"specversion":"1.0","id":1,"source":"a b","data_base64":"?"}')
    for part in ("'id' is of a JSON type", "'a b' is not a URI", "type is required", "not base64"):
        assert part in text


@pytest.mark.parametrize(
    "document",
    [
        "",
        " ",
        "x",
        "[]",
        "null",
        "{",
        "{}",
        "{} {}",
        "{,}",
        f"{{{VALID}",
        f"{{{VALID},}}",
        f"{{{VALID}}}x",
        f"{{{VALID} 5}}",
        f"{{{VALID},5:5}}",
        f'{{{VALID},"a"}}',
        f'{{{VALID},"a":}}',
        f'{{{VALID},"a\n":""}}',
        f"\ufeff{{{VALID}}}",
        b'{"id":"\xff"}',
        f'{{{VALID},"data":{"[" * 10_000}',
        f'{{{VALID},"data":{"[" * 10_000}{"]" * 10_000}}}',
        f'{{{VALID},"data":{"9" * 10_000}e}}',
    ],
    ids=lambda document: repr(document[:60]),
)
def test_whatever_is_no_json_object_is_an_invalid_event(document: str | bytes) -> None:
    assert problem(document)


@pytest.mark.conformance("KN-DLV-05")
@pytest.mark.parametrize("data", ['{"b" : 1.10,\t"a":[2]}', "9" * 5000, "null", ' "é" \n'])
def test_json_data_are_written_verbatim(data: str) -> None:
    """KN-DLV-05, CE-H10"""
    event = Event({**ATTRIBUTES, "datacontenttype": "application/json"}, data.encode())
    document = json_format.write(event)
    assert b'"data":' + data.encode() + b"}" in document
    assert json_format.read(document) == Event(event.attributes, data.strip().encode())


@pytest.mark.parametrize(
    ("content_type", "data"),
    [
        ("application/json", b""),
        ("application/json", b"NaN"),
        ("application/json", b"{} {}"),
        ("application/json", b'1,"id":"2"'),
        ("application/json", b'"\xff"'),
        ("application/json", b"\xef\xbb\xbf1"),
        ("application/json", b"[" * 10_000 + b"]" * 10_000),
        ("text/plain", b"text"),
        (None, b"{}"),
    ],
)
@pytest.mark.parametrize("version", ["1.0", "0.3"])
def test_all_other_data_are_written_as_base64(
    content_type: str | None, data: bytes, version: str
) -> None:
    attributes = {**ATTRIBUTES, "specversion": version}
    if content_type:
        attributes["datacontenttype"] = content_type
    event = Event(attributes, data)
    document = json_format.write(event)
    assert ("data_base64" in json.loads(document)) == (version == "1.0")
    assert json_format.read(document) == event


def test_data_that_are_declared_base64_already_are_not_encoded_twice() -> None:
    old = {**ATTRIBUTES, "specversion": "0.3", "datacontentencoding": "base64"}
    assert json.loads(json_format.write(Event(old, b"AP8=")))["data"] == "AP8="
    assert json.loads(json_format.write(Event(old, b"\x00\xff")))["data"] == "AP8="


def test_no_data_are_written_as_none() -> None:
    document = json_format.write(Event({**ATTRIBUTES, "ext": 'é"\n'}, None))
    assert json.loads(document) == {**ATTRIBUTES, "ext": 'é"\n'}


@pytest.mark.parametrize(
    ("media_type", "expected"),
    [
        ("application/json", True),
        ("text/JSON ; charset=utf-8", True),
        ("application/vnd.a+json", True),
        ("application/jsonp", False),
        ("text/plain; a=/json", False),
        ("", False),
    ],
)
def test_what_counts_as_json(media_type: str, expected: bool) -> None:
    assert json_format.is_json(media_type) is expected


def test_data_count_as_base64_if_they_decode() -> None:
    """All texts of up to 8 letters, by Python's own decoder."""
    old = {**ATTRIBUTES, "specversion": "0.3", "datacontentencoding": "base64"}
    for size in range(9):
        for letters in product("A=!", repeat=size):
            data = "".join(letters).encode()
            try:
                is_base64 = b64encode(b64decode(data, validate=True)) == data
            except ValueError:
                is_base64 = False
            written = json.loads(json_format.write(Event(old, data)))["data"].encode()
            assert written == (data if is_base64 else b64encode(data))
