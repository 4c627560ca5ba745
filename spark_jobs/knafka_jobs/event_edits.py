"""Edits of events that are sent again: the same edits change attributes and members of JSON data in
every event of a replay.

    {"type": "order", ...}, {"total": "12"}
        --set-attribute type=order.v2, --set-data /total=12-->
    {"type": "order.v2", "knafkaedited": "type,data", ...}, {"total": 12}

The dead letter stays as it is. `id` and `source` can't be edited, as they name the event. In JSON
data everything but the edited value stays byte for byte. Pure.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

import msgspec

from knafka.core.dead_letter import EDITED, FAILURE_HEADERS, headers_for_replay
from knafka.core.errors import InvalidEvent, KnafkaError
from knafka.core.events import kafka_binding
from knafka.core.events.event import REQUIRED, Event, is_attribute_name, is_legal, validate
from knafka.core.events.kafka_binding import MODE, Draft, RecordHeaders

FIXED: Final = ("specversion", "id", "source")
"""Attributes that can't be edited: events are told apart by them."""

Pointer: TypeAlias = tuple[str, ...]
"""The tokens of a JSON Pointer (RFC 6901)."""
_INDEX: Final = re.compile(r"0|[1-9][0-9]{0,8}", re.ASCII)
"""A token that may name an element of an array: no leading zeros (RFC 6901), and no more digits
than an array of an event could need."""

_find_surrogate = re.compile("[\ud800-\udfff]").search
"""Finds a character that no text has: Python's stand-in for a byte that isn't UTF-8."""

_WHITESPACE: Final = b" \t\r\n"
"""The whitespace of JSON."""
_STRING: Final = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
"""Matches a string in valid JSON."""
_find_structure = re.compile(_STRING + rb"|[{}\[\],]").finditer
"""Finds the brackets and commas of valid JSON, and its strings, which may contain such characters,
too."""
_match_name = re.compile(rb"[ \t\r\n]*(" + _STRING + rb")[ \t\r\n]*:").match
"""Matches the name of a member, up to the colon."""

_decode_text = msgspec.json.Decoder(str).decode
_decode_value = msgspec.json.Decoder(msgspec.Raw).decode
"""Checks JSON, and returns its bytes (`Raw`)."""
_encode = msgspec.json.Encoder().encode


class CannotEdit(KnafkaError):
    """The edits can't be applied to an event; the text says why."""


@dataclass(frozen=True, slots=True)
class EventEdits:
    """The edits that a replay makes to each of its events."""

    set_attributes: tuple[tuple[str, str], ...] = ()
    """Names and values of the attributes to set."""
    remove_attributes: tuple[str, ...] = ()
    """Names of the attributes to remove."""
    set_data: tuple[tuple[str, str], ...] = ()
    """JSON Pointers into the event's data, and the values to set there; a value that is no JSON is
    set as a string."""

    @classmethod
    def parse(
        cls,
        set_attributes: Iterable[str] = (),
        remove_attributes: Iterable[str] = (),
        set_data: Iterable[str] = (),
    ) -> EventEdits:
        """Return the edits that options declare: `NAME=VALUE`, `NAME`, and `JSON-POINTER=VALUE`.
        Raises `ValueError`, whose text says what is wrong."""
        edits = cls(
            tuple(_split(text, "NAME=VALUE") for text in set_attributes),
            tuple(remove_attributes),
            tuple(_split(text, "JSON-POINTER=VALUE") for text in set_data),
        )
        for name, value in edits.set_attributes:
            _check_name(name)
            if not value or not is_legal(value):
                raise ValueError(f"{value!r:.80} is no value of an attribute: give some text")
        for name in edits.remove_attributes:
            _check_name(name)
            if name in REQUIRED:
                raise ValueError(f"the attribute {name} is required: it can't be removed")
        for pointer, _ in edits.set_data:
            _parse_pointer(pointer)
        return edits

    def __bool__(self) -> bool:
        """Whether there is any edit."""
        return bool(self.set_attributes or self.remove_attributes or self.set_data)

    def __str__(self) -> str:
        """Return the edits as options of a shell's command line, so that no two edits have the same
        text."""
        options = [("--set-attribute", f"{name}={value}") for name, value in self.set_attributes]
        options += [("--remove-attribute", name) for name in self.remove_attributes]
        options += [("--set-data", f"{pointer}={value}") for pointer, value in self.set_data]
        return " ".join(f"{option} {shlex.quote(value)}" for option, value in options)

    @property
    def _names(self) -> list[str]:
        """Names of the attributes that are set or removed, each once."""
        set_names = [name for name, _ in self.set_attributes]
        return list(dict.fromkeys([*set_names, *self.remove_attributes]))

    def edit(self, event: Event) -> Event:
        """Return the event with the edits applied; an event that has all new values already stays
        as it is. The names of changed attributes, and `data` if the data changed, are added to the
        attribute `EDITED`.

        Raises `CannotEdit` if the data can't be edited, or the edited event would be invalid.
        """
        attributes, data = dict(event.attributes), event.data
        for name in self.remove_attributes:
            attributes.pop(name, None)
        attributes.update(self.set_attributes)
        if self.set_data and data is None:
            raise CannotEdit("the event has no data")
        for pointer, value in self.set_data:
            data = set_member(data or b"", _parse_pointer(pointer), _as_json(value))
        changed = [
            name for name in self._names if attributes.get(name) != event.attributes.get(name)
        ]
        if data != event.data:
            changed.append("data")
        if changed:
            # An earlier replay may have edited the event, too.
            changed_earlier = filter(None, attributes.get(EDITED, "").split(","))
            attributes[EDITED] = ",".join(dict.fromkeys([*changed_earlier, *changed]))
        try:
            validate(attributes)
        except InvalidEvent as error:
            raise CannotEdit(str(error)) from None
        return Event(attributes, data)

    def edit_record(
        self, headers: RecordHeaders, value: bytes | None
    ) -> tuple[RecordHeaders, bytes | None]:
        """Return the headers and the value of an event's record, with the edits applied to the
        event. A value of None stands for an event without data. Raises `CannotEdit`.

        The record's key stays, so the event keeps its order among the events of its key.
        """
        try:
            envelope = kafka_binding.read(headers, value)
        except InvalidEvent as error:
            raise CannotEdit(str(error)) from None
        draft: Draft = kafka_binding.to_record(self.edit(envelope.event), envelope.passed)
        # Keep the header of an event that came as JSON, so that it is delivered as JSON again.
        mode = [(MODE, b"structured")] if envelope.sent_as_json else []
        return [*draft.headers, *mode], draft.value


NO_EDITS: Final = EventEdits()
"""Edits of a replay that sends events as they are."""


def edited_record(
    edits: EventEdits, headers: RecordHeaders, value: bytes | None
) -> tuple[RecordHeaders, bytes | None]:
    """Return the headers and the value with which a dead letter's event is sent again: with the
    edits applied, and without the headers that Knafka added to the dead letter. Raises
    `CannotEdit`."""
    # The last header names the replay; it is left out, as the sender adds it.
    *own_headers, _ = headers_for_replay(headers, "")
    return edits.edit_record(own_headers, value)


def set_member(document: bytes, pointer: Pointer, value: bytes) -> bytes:
    """Return the JSON `document` with the value at `pointer` replaced by `value` (JSON), or with
    `value` added there.

    All but the last token must exist; `-` stands for a new last element of an array. Raises
    `CannotEdit`.
    """
    try:
        return _set_value(document, pointer, value)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise CannotEdit("the data are not JSON") from None
    except RecursionError:
        raise CannotEdit("the data are nested too deep") from None


def _set_value(document: bytes, pointer: Pointer, value: bytes) -> bytes:
    """Return the JSON `document` with `value` (JSON) at the place that `pointer` names; all other
    bytes stay as they are. Raises `CannotEdit` if the document has no such place, and the decoder's
    errors if it is no JSON."""
    _decode_value(document)  # raises if the document is not JSON
    start, end = _trimmed(document, 0, len(document))
    for depth, token in enumerate(pointer):
        bracket = document[start : start + 1]
        if bracket not in (b"{", b"["):
            raise CannotEdit(f"the data have no member {token!r:.80}")
        members = _members(document, start, end)
        is_last = depth + 1 == len(pointer)
        if bracket == b"{":
            place = _find_member(members, token)
            if place is None and not is_last:
                raise CannotEdit(f"the data have no member {token!r:.80}")
            name = _encode(token) + b":"
        else:
            place = None if token == "-" and is_last else _find_element(members, token)
            name = b""
        if place is None:
            end_of_last = members[-1].end if members else start + 1
            comma = b"," if members else b""
            return document[:end_of_last] + comma + name + value + document[end_of_last:]
        start, end = place.start, place.end
    if _is_same_value(document[start:end], value):
        return document
    return document[:start] + value + document[end:]


def _is_same_value(written: bytes, value: bytes) -> bool:
    """Whether two JSON values are the same: two texts, however their characters are escaped, or two
    others that are written alike but for spaces."""
    if written[:1] == b'"' == value[:1]:
        return _decode_text(written) == _decode_text(value)
    return _without_spaces(written) == _without_spaces(value)


class _Member(NamedTuple):
    """The place of a member of a JSON object, or of an element of an array, in a document."""

    name: bytes
    """The member's name as JSON; empty for an element."""
    start: int
    end: int
    """The bytes of the value, without whitespace around it."""


def _members(document: bytes, start: int, end: int) -> list[_Member]:
    """Return the members of the object, or the elements of the array, whose JSON is
    `document[start:end]`, in their order."""
    members = []
    level = 0
    member_start = start + 1
    for match in _find_structure(document, start, end):
        mark = match[0]
        if mark in (b"{", b"["):
            level += 1
        elif mark in (b"}", b"]"):
            level -= 1
        if level == 0 or (level == 1 and mark == b","):
            name = _match_name(document, member_start, match.start())
            value_start = name.end() if name else member_start
            place = _trimmed(document, value_start, match.start())
            if place[0] < place[1]:  # else the brackets are empty
                members.append(_Member(name[1] if name else b"", *place))
            member_start = match.end()
    return members


def _find_member(members: Sequence[_Member], token: str) -> _Member | None:
    """Return the member of an object that has this name; None if there is none. Raises
    `CannotEdit` if several have it, as readers differ in which one counts."""
    named = [member for member in members if _decode_text(member.name) == token]
    if len(named) > 1:
        raise CannotEdit(f"the data have {len(named)} members {token!r:.80}")
    return named[0] if named else None


def _find_element(members: Sequence[_Member], token: str) -> _Member:
    """Return the element of an array at the index `token`. Raises `CannotEdit`."""
    if not (_INDEX.fullmatch(token) and int(token) < len(members)):
        raise CannotEdit(f"the data have no element {token!r:.80}")
    return members[int(token)]


def _trimmed(document: bytes, start: int, end: int) -> tuple[int, int]:
    """Return the bounds of `document[start:end]` without whitespace around it."""
    text = document[start:end].lstrip(_WHITESPACE)
    return end - len(text), end - len(text) + len(text.rstrip(_WHITESPACE))


def _without_spaces(value: bytes) -> bytes:
    """Return a JSON value without whitespace between its tokens."""
    return msgspec.json.format(value, indent=-1)


def _split(text: str, expected_form: str) -> tuple[str, str]:
    """Split a text at its first equals sign, and return the parts before and after it. Raises
    `ValueError`, whose text names `expected_form`, if there is no equals sign, or if the text isn't
    UTF-8, as an argument of a command line may be."""
    if _find_surrogate(text):
        raise ValueError(f"{text!r:.80} is not UTF-8")
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"{text!r:.80} is not {expected_form}")
    return name, value


def _check_name(name: str) -> None:
    """Raise `ValueError` unless edits may set or remove the attribute of this name."""
    if not is_attribute_name(name):
        raise ValueError(f"{name!r:.80} is no attribute name (a-z and 0-9, not data)")
    if name in FIXED:
        raise ValueError(f"the attribute {name} can't be edited: it tells events apart")
    if name.startswith("knafka") or f"ce_{name}" in FAILURE_HEADERS:
        raise ValueError(f"the attribute {name} is set by Knafka")


def _parse_pointer(text: str) -> Pointer:
    """Return the tokens of a JSON Pointer (RFC 6901). Raises `ValueError`."""
    if text and not text.startswith("/"):
        raise ValueError(f"{text!r:.80} is no JSON Pointer: give for example /items/0/price")
    return tuple(token.replace("~1", "/").replace("~0", "~") for token in text.split("/")[1:])


def _as_json(text: str) -> bytes:
    """Return a value to set in JSON data: the text itself if it is JSON, else the text as a JSON
    string."""
    try:
        return bytes(_decode_value(text.encode()))
    except (msgspec.DecodeError, RecursionError):
        return _encode(text)
