"""The JSON event format: a whole CloudEvent as one JSON document (structured mode, CE-H8, CE-H9).

Both bindings share it. JSON data cross it byte for byte: they are the bytes between the document's
other members, found by scanning and never rewritten (CE-H10), so that whitespace, key order, big
integers and NaN are kept.

There are two readers, as in the HTTP binding: a careful one, which names every problem, and a fast
one in C, which accepts only documents in which the careful one would certainly read the same event
(docs/decisions/0036-structured-events.md). Not here: other event formats; the data are never
parsed.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final, NoReturn, TypeAlias

import msgspec

from knafka.core.errors import InvalidEvent
from knafka.core.events.event import (
    CORE,
    MAX_ATTRIBUTES,
    Attributes,
    Event,
    is_valid_1_0,
    problems_of,
    refusal,
    too_many_attributes,
)

MEDIA_TYPE: Final = "application/cloudevents+json"
BATCH_MEDIA_TYPE: Final = "application/cloudevents-batch+json"

_DATA_MEMBERS = ("data", "data_base64")
"""The members of a document that aren't attributes."""
_match_base64 = re.compile(rb"[A-Za-z\d+/]*={0,2}").fullmatch
"""Matches base64, if the length is a multiple of 4. (To match groups of four takes six times as
long.)"""
_match_punctuation = re.compile(r"[ \t\n\r]*([][{}:,])[ \t\n\r]*").match


class _Integer(str):
    """The text of a JSON integer: `int` would refuse a long one, and lose the sign of `-0`."""


def _reject_constant(name: str) -> NoReturn:
    """Raise ValueError for NaN or an infinity, which Python's json would accept."""
    raise ValueError(f"{name} is not JSON")


Members: TypeAlias = dict[str, msgspec.Raw]
"""The members of a JSON object, each value as the bytes of the document."""

# Decoders, in this order: of an object's members (the last one of a repeated member), of an array
# of objects, of an array's elements, of a string, and of any JSON, which is only checked.
_SPLIT = msgspec.json.Decoder(Members).decode
_SPLIT_ALL = msgspec.json.Decoder(list[Members]).decode
_ELEMENTS = msgspec.json.Decoder(list[msgspec.Raw]).decode
_TEXT = msgspec.json.Decoder(str).decode
_IS_JSON = msgspec.json.Decoder(msgspec.Raw).decode
_ENCODE = msgspec.json.Encoder().encode
QUOTE: Final = ord('"')
MAX_COLONS: Final = 4096
"""Most colons in a document that the fast reader splits: it takes up to a microsecond for each
member, and every sender waits meanwhile. The careful reader stops at the first excess member."""
MAX_BATCH_COLONS: Final = 16 * MAX_COLONS
"""Most colons in a batch that is split in one pass: 15 ms if all of them were members."""
WHITESPACE: Final = b" \t\n\r"

_SCAN = json.JSONDecoder(parse_int=_Integer).raw_decode
"""Parses the JSON value at a position of a text; returns it and the position after it."""
_SKIP = json.JSONDecoder(parse_int=len).raw_decode
"""Like `_SCAN`, for a list or an object whose value isn't needed: it doesn't keep the text of
integers, of which a megabyte may have 500,000."""
# Accepts the same JSON as other readers do, without NaN and infinities.
_CHECK = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=_reject_constant).decode


def is_json(media_type: str) -> bool:
    """Whether the media type's subtype is `json` or ends in `+json` (CE-H9)."""
    subtype = media_type.partition(";")[0].rstrip().lower().rpartition("/")[2]
    return subtype == "json" or subtype.endswith("+json")


def read(document: bytes) -> Event:
    """Read the event in a structured JSON document. Raises `InvalidEvent` that names every problem.

    Integers and booleans become canonical strings, null is unset, and data without a
    datacontenttype are `application/json` (CE-H9). A repeated member is refused, since readers
    differ in which one they take. More than `MAX_ATTRIBUTES` members are refused without reading
    on, since all senders wait while one event is read; the error then names only this problem.
    """
    event = _read_fast(document)
    return _read_carefully(document) if event is None else event


def _read_fast(document: bytes) -> Event | None:
    """Read the event in a document that is certainly valid. None: the document may be invalid, so
    the careful reader has to read it."""
    try:
        members = split(document)
        if members is None:
            return None
        data = members.pop("data", None)
        attributes = {}
        has_escapes = b"\\" in document
        for name, raw in members.items():
            text = str(raw, "utf-8")
            if text[0] == '"':
                attributes[name] = _TEXT(text) if has_escapes and "\\" in text else text[1:-1]
            elif name not in CORE and is_integer_or_boolean(text):
                attributes[name] = text
            else:
                return None
    except (ValueError, RecursionError):
        return None
    source = None
    if data is not None:
        source = bytes(data)
        media_type = attributes.setdefault("datacontenttype", "application/json")
        if source[0] == QUOTE and not is_json(media_type):
            return None
    return Event(attributes, source) if is_valid_1_0(attributes) else None


def is_integer_or_boolean(text: str | bytes) -> bool:
    """Whether a JSON value's text is an integer from 0 on or a boolean, and so canonical."""
    return text.isdigit() or text in ("true", "false", b"true", b"false")


def split(document: bytes) -> Members | None:
    """Return the members of a JSON object that is written without whitespace between them, or with
    the whitespace of Python's json. None: the object is written otherwise, repeats a member, or may
    have too many members. Raises ValueError if it may be no JSON object."""
    members = split_loosely(document)
    if members is None or len(members) > MAX_ATTRIBUTES:
        return None
    document = document.strip(WHITESPACE)
    # Whitespace, escapes in names and repeated members make a document longer. Each member has two
    # quotes, a colon and a comma or brace, and there is one more brace.
    compact = len("".join(members)) + len(b"".join(members.values())) + 4 * len(members) + 1
    return members if len(document) == compact or document == _as_python_json(members) else None


def split_loosely(document: bytes) -> Members | None:
    """Return the members of a JSON object; of a repeated member, the last one. None: there may be
    far more members than an event may have. Raises ValueError if it may be no JSON object."""
    if _may_exceed_members(document, MAX_COLONS):
        return None
    if not document.isascii():
        document.decode()  # msgspec doesn't check that raw values are UTF-8
    return _split_one_frame_deeper(document)


def _may_exceed_members(document: bytes, limit: int) -> bool:
    """Whether there may be more than `limit` members: each has a colon, and takes at least the five
    bytes `"":0,`."""
    return len(document) > 5 * limit and document.count(b":") > limit


def _split_one_frame_deeper(document: bytes) -> Members:
    """Return an object's members. Calls `_SPLIT` one stack frame deeper, so that it reaches the
    recursion limit no later than the careful reader does, and accepts no deeper nesting."""
    return _SPLIT(document)


def split_batch(document: bytes, limit: int) -> list[Members] | None:
    """Return the members of every object in a JSON array, in one pass, if `split` would accept each
    object and there are at most `limit`; None: the elements have to be read one by one."""
    if _may_exceed_members(document, MAX_BATCH_COLONS):
        return None
    try:
        document.decode()  # msgspec doesn't check that raw values are UTF-8
        objects = _split_batch_one_frame_deeper(document)
    except (ValueError, RecursionError):
        return None
    if len(objects) > limit or max(map(len, objects), default=0) > MAX_ATTRIBUTES:
        return None
    document = document.strip(WHITESPACE)
    names = len("".join(chain.from_iterable(objects)))
    values = len(b"".join(chain.from_iterable(map(dict.values, objects))))
    # Each member has two quotes, a colon and a comma or brace; each object one more brace, and all
    # but the first a comma before it; the array has two brackets. A longer document has whitespace,
    # escaped names or repeated members.
    if len(document) == names + values + 4 * sum(map(len, objects)) + 2 * len(objects) + 1:
        return objects
    return objects if document == b"[%b]" % b", ".join(map(_as_python_json, objects)) else None


def _split_batch_one_frame_deeper(document: bytes) -> list[Members]:
    """Like `_split_one_frame_deeper`, for an array: return the members of each of its objects."""
    return _SPLIT_ALL(document)


def _as_python_json(members: Members) -> bytes:
    """Return the object with these members as Python's json writes it. Empty if it has no members,
    or a percent sign in a name, which the formatting here would misread."""
    if not members or "%" in "".join(members):
        return b""
    names_and_gaps = '": %b, "'.join(members)  # each `%b` is replaced by a value
    return f'{{"{names_and_gaps}": %b}}'.encode() % tuple(members.values())


def _read_carefully(document: bytes) -> Event:
    """Parse any structured event, member by member. Raises `InvalidEvent` that names every
    problem."""
    members: dict[str, tuple[object, str]] = {}
    try:
        for name, value, source in _object_members(document.decode()):
            if name in members:
                raise ValueError(f"the member {name!r:.80} is given more than once")
            members[name] = (value, source)
            if len(members) > MAX_ATTRIBUTES + len(_DATA_MEMBERS):
                raise too_many_attributes()
    except RecursionError:
        raise InvalidEvent("the structured event is nested too deep") from None
    except ValueError as error:
        raise InvalidEvent(f"the structured event is no JSON object: {error}") from None

    attributes: dict[str, str] = {}
    problems: list[str] = []
    for name, (value, _) in members.items():
        if name not in _DATA_MEMBERS and value is not None:
            if (text := _canonical_text(name, value)) is None:
                problems.append(f"the attribute {name!r:.80} is of a JSON type it can't have")
            else:
                attributes[name] = text
    if len(attributes) > MAX_ATTRIBUTES:
        raise too_many_attributes()
    try:
        data = _data_of(members, attributes)
    except ValueError as error:
        raise refusal([*problems, str(error), *problems_of(attributes)]) from None
    if problems := problems + problems_of(attributes):
        raise refusal(problems)
    return Event(attributes, data)


def elements_of(document: bytes, limit: int) -> list[bytes]:
    """Return the texts of a JSON array's elements: at most `limit` + 1 of them, so that the caller
    sees whether there are too many. Raises `InvalidEvent` if the document is no JSON array."""
    try:
        document.decode()  # msgspec doesn't check that raw values are UTF-8
        return [bytes(raw) for raw in _ELEMENTS(document)[: limit + 1]]
    except (ValueError, RecursionError):
        pass  # data may contain NaN and lone surrogates, which msgspec refuses
    try:
        elements = []
        for element in _array_elements(document.decode()):
            elements.append(element.encode())
            if len(elements) > limit:
                break
        return elements
    except RecursionError:
        raise InvalidEvent("the batch is nested too deep") from None
    except ValueError as error:
        raise InvalidEvent(f"the batch is no JSON array: {error}") from None


def write_batch(events: Iterable[Event]) -> bytes:
    """Return the JSON array of these events, the body of a batch."""
    return b"[%b]" % b",".join(map(write, events))


def write(event: Event) -> bytes:
    """Return the JSON document of an event; JSON data are inserted as they are, other data as
    base64."""
    attributes, data = event.attributes, event.data
    if data is None:
        return _dump(attributes)
    if is_json(attributes.get("datacontenttype", "")) and _is_json_text(data):
        return _dump(attributes)[:-1] + b',"data":' + data + b"}"
    if attributes.get("specversion") != "0.3":
        return _dump({**attributes, "data_base64": b64encode(data).decode()})
    # 0.3 has no data_base64. The data of a binary event that declares base64 are base64 already, or
    # can't be decoded by any reader.
    is_base64 = _declares_base64(attributes) and len(data) % 4 == 0 and _match_base64(data)
    if not is_base64:
        data = b64encode(data)
    return _dump({**attributes, "datacontentencoding": "base64", "data": data.decode()})


def _object_members(text: str) -> Iterator[tuple[str, object, str]]:
    """Yield the members of a JSON object: name, value, and the value's own text. A value that is a
    list or object has lengths in place of integers (`_SKIP`). Raises ValueError if the text is no
    JSON object."""
    mark, position = _read_mark(text, 0, "{")
    if text.startswith("}", position):
        mark, position = _read_mark(text, position, "}")
    while mark != "}":
        name, position = _SCAN(text, position)
        if type(name) is not str:
            raise ValueError(f"a member without a name before character {position}")
        _, start = _read_mark(text, position, ":")
        parse_value = _SKIP if text.startswith(("[", "{"), start) else _SCAN
        value, position = parse_value(text, start)
        yield name, value, text[start:position]
        mark, position = _read_mark(text, position, ",}")
    if position != len(text):
        raise ValueError(f"something follows it at character {position}")


def _array_elements(text: str) -> Iterator[str]:
    """Yield the elements of a JSON array, as they are written. Raises ValueError if the text is no
    JSON array."""
    mark, position = _read_mark(text, 0, "[")
    if text.startswith("]", position):
        mark, position = _read_mark(text, position, "]")
    while mark != "]":
        start = position
        parse_value = _SKIP if text.startswith(("[", "{"), start) else _SCAN
        _, position = parse_value(text, start)
        yield text[start:position]
        mark, position = _read_mark(text, position, ",]")
    if position != len(text):
        raise ValueError(f"something follows it at character {position}")


def _read_mark(text: str, position: int, expected_marks: str) -> tuple[str, int]:
    """Return the punctuation mark at `position`, and the position after the mark and the whitespace
    around it. Raises ValueError unless the mark is one of the `expected_marks`."""
    match = _match_punctuation(text, position)
    if match is None or match[1] not in expected_marks:
        raise ValueError(f"want {' or '.join(expected_marks)} at character {position}")
    return match[1], match.end()


def _canonical_text(name: str, value: object) -> str | None:
    """Return an attribute's parsed JSON value as a string. None: its type isn't allowed; the
    attributes that CloudEvents defines must be strings, extensions may be integers or Booleans."""
    if type(value) is str:
        return value
    if name in CORE:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, _Integer):
        return "0" if value == "-0" else str(value)
    return None


def _data_of(members: dict[str, tuple[object, str]], attributes: dict[str, str]) -> bytes | None:
    """Return the event's data; None: it has none. `members` hold each value parsed and as text.
    Also changes `attributes`: sets a missing `datacontenttype`, and drops the `datacontentencoding`
    of base64 data. Raises ValueError for data that can't be decoded."""
    value, source = members.get("data", (None, ""))
    encoded, _ = members.get("data_base64", (None, ""))
    if source and encoded is not None:
        raise ValueError("data and data_base64 exclude each other")
    if source and attributes.get("specversion") == "0.3" and _declares_base64(attributes):
        del attributes["datacontentencoding"]
        source, encoded = "", value
    if encoded is not None:
        return _from_base64(encoded)
    if not source:
        return None
    media_type = attributes.setdefault("datacontenttype", "application/json")
    if type(value) is str and not is_json(media_type):
        return value.encode()
    return source.encode()


def _from_base64(encoded: object) -> bytes:
    """Decode base64 data, a parsed JSON value. Raises ValueError if the value is no base64 text."""
    if type(encoded) is not str:
        raise ValueError("base64 data are not a string")
    try:
        return b64decode(encoded, validate=True)
    except ValueError as error:
        raise ValueError(f"the data are not base64: {error}") from None


def _declares_base64(attributes: Attributes) -> bool:
    """Whether the attributes of a 0.3 event say that its data are base64 text."""
    return attributes.get("datacontentencoding", "").lower() == "base64"


def _dump(members: Attributes) -> bytes:
    """Return the bytes of the JSON object with these members, whose values are strings."""
    return _ENCODE(dict(members))


def _is_json_text(data: bytes) -> bool:
    """Whether the bytes are valid JSON in UTF-8, of any type, without NaN and infinities."""
    try:
        data.decode()
        _IS_JSON(data)
        return True
    except (ValueError, RecursionError):
        pass  # a lone surrogate is valid JSON, but msgspec refuses it
    try:
        _CHECK(data.decode())
    except (ValueError, RecursionError):
        return False
    return True
