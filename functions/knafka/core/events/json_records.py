"""Makes records of structured events and batches directly from a document's bytes (CE-H8, CE-H11).

    document --msgspec--> members --names--> layout --values--> record headers

It accepts only events whose values need no decoding. `http_binding` tries it first, and leaves all
other events to `json_format`, which names every problem. A layout is computed once for each
sequence of member names, as a sender's events mostly have the same names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any, Final, NamedTuple

from msgspec import Raw

from knafka.core.events import json_format
from knafka.core.events.event import (
    CORE,
    REQUIRED,
    is_attribute_name,
    is_timestamp,
    is_uri_reference,
)
from knafka.core.events.json_format import QUOTE
from knafka.core.events.kafka_binding import CONTENT_TYPE, BoundedCache, Draft, RecordHeaders

MAX_HEAD_BYTES: Final = 7 * 1024
"""Most bytes of an event's attributes as header lines, if the event came as JSON; an event with
more is delivered as JSON. Tomcat and Jetty accept 8 KiB of header lines in all, Node.js 16 KiB;
Apache, nginx and gunicorn (the server of functions-framework) 8 KiB in each line. What remains of
8 KiB is for headers that aren't the event's, such as Host and traceparent."""
MAX_HEAD_LINES: Final = 80
"""Most attributes of an event that came as JSON and is sent as header lines: Apache and gunicorn
accept 100 header lines."""

_PLAIN_JSON: Final = bytes(byte for byte in range(0x20, 0x7F) if byte not in b'"\\')
"""Bytes that a JSON string holds as they are, and that are legal in every attribute."""
ORDINARY_CONTENT_TYPE = BoundedCache[bytes, object](
    re.compile(rb"(?!application/cloudevents)[!-~](?:[ -~]*[!-~])?", re.IGNORECASE).fullmatch
)
"""A true value if a content type is a media type and none of CloudEvents' own; cached."""
IS_URI_REFERENCE = BoundedCache[bytes, bool](lambda value: is_uri_reference(value.decode()))
"""Whether a source is a URI-reference; cached, as a sender has few sources."""
_MINUTE_LENGTH: Final = 17
"""Length of a timestamp's beginning up to the colon before the seconds: `2026-01-31T12:00:`."""
_IS_MINUTE = BoundedCache[bytes, bool](lambda value: is_timestamp(value.decode() + "00Z"))
"""Whether the beginning of a timestamp (`_MINUTE_LENGTH`) is valid; cached."""
_IS_SECOND = re.compile(
    rb"(?:[0-5]\d|60)(?:\.\d+)?(?:[Zz]|[+-](?:[01]\d|2[0-3]):[0-5]\d)"
).fullmatch
"""Matches the rest of a timestamp: the seconds and the time zone."""
_JSON: Final = (CONTENT_TYPE, b"application/json")
"""The content type header of an event with data and without a datacontenttype (CE-H9)."""
_CHECKED_ATTRIBUTES: Final = (
    "specversion", "id", "type", "source", "time", "subject", "partitionkey", "datacontenttype"
)  # fmt: skip
"""Attributes whose values are checked one by one."""


class _Layout(NamedTuple):
    """The properties that all documents share whose members have the same names in the same
    order."""

    header_names: tuple[str, ...]
    """The record header of each attribute (each member but `data`), in the same order."""
    names_size: int
    """Number of characters of all header names."""
    pick: Callable[[Sequence[Any]], Any]
    """Selects the values of `_CHECKED_ATTRIBUTES` from the values of all attributes, followed by
    the value that stands for a missing attribute."""
    quotes: bytes
    """The quotes around the values if all are strings: two for each."""
    data_index: int
    """Index of the member `data`; -1: there is none."""
    compact_size: int
    """Length of the document without whitespace between its members and without their values."""
    spaced_template: bytes
    """The document as Python's json writes it, with spaces, and with `%b` for each value."""


def is_time(value: bytes) -> bool:
    """Whether ASCII text is an RFC 3339 timestamp, like `event.is_timestamp`; the result for the
    part up to the minute is cached, as many events share it."""
    return _IS_MINUTE[value[:_MINUTE_LENGTH]] and _IS_SECOND(value, _MINUTE_LENGTH) is not None


def record_of(document: bytes, added_headers: RecordHeaders) -> Draft | None:
    """Return the record of a structured event, with the `added_headers`. None: `json_format` must
    read the event, which may be valid or not."""
    try:
        members = json_format.split_loosely(document)
    except (ValueError, RecursionError):
        return None
    if members is None or (layout := _LAYOUTS[tuple(members)]) is None:
        return None
    values = list(members.values())
    data = None if layout.data_index < 0 else values.pop(layout.data_index)
    joined_values = b"".join(values)
    # If the lengths agree, the document holds only these members: whitespace between them, a second
    # member of one name or an escaped name would make it longer.
    size = layout.compact_size + len(joined_values) + (0 if data is None else len(data))
    if len(document) != size:
        document = document.strip(json_format.WHITESPACE)
        if len(document) != size and document != layout.spaced_template % tuple(members.values()):
            return None
    return _record_of(members, layout, joined_values, data, added_headers)


def records_of(document: bytes, added_headers: RecordHeaders, limit: int) -> list[Draft] | None:
    """Return the records of all events of a batch, each with the `added_headers`. None: the batch
    has more than `limit` events, or `json_format` must read it, because a value of an event needs
    decoding or a check that isn't made here."""
    objects = json_format.split_batch(document, limit)
    if objects is None:
        return None
    # Unlike in `record_of`, no lengths are compared here: `split_batch` has done so.
    data = [members.pop("data", None) for members in objects]
    uniform = _uniform_records(objects, data, added_headers)
    if uniform is not None:
        return uniform
    records: list[Draft] = []
    for members, raw in zip(objects, data, strict=True):
        if (layout := _LAYOUTS[tuple(members)]) is None:
            return None
        joined_values = b"".join(members.values())
        record = _record_of(members, layout, joined_values, raw, added_headers)
        if record is None:
            return None
        records.append(record)
    return records


def _uniform_records(
    objects: Sequence[json_format.Members],
    data: Sequence[Raw | None],
    added_headers: RecordHeaders,
) -> list[Draft] | None:
    """Return the records of events whose attributes have the same names in the same order and are
    all strings, as in most batches. None: some events differ, or an event needs a check that isn't
    made here. `data` has the member `data` of each event, None if the event has none."""
    name_tuples = {*map(tuple, objects)}
    if len(name_tuples) != 1 or (layout := _LAYOUTS[name_tuples.pop()]) is None:
        return None
    header_names, names_size, pick = layout[:3]
    width = len(header_names)
    # All values of all events as one text of JSON strings. Two quotes separate strings, unless a
    # string contains some: then it isn't plain, and there are more values than attributes.
    joined_values = b"".join(chain.from_iterable(map(dict.values, objects)))
    values = joined_values[1:-1].split(b'""')
    if not (
        len(values) == width * len(objects)
        and joined_values[0] == joined_values[-1] == QUOTE
        and not b"".join(values).translate(None, _PLAIN_JSON)
    ):
        return None
    # A column holds all events' values of one attribute: each check below covers the whole batch.
    columns = [values[index::width] for index in range(width)]
    # No event has more bytes of values than this. In a header line, a character may take 12 bytes.
    largest_size = sum([max(map(len, column)) for column in columns])
    # An attribute that the events don't have gets the empty column.
    versions, ids, types, sources, times, subjects, keys, media_types = pick((*columns, ()))
    if not (
        {*versions} == {b"1.0"}
        and b"" not in ids
        and b"" not in types
        and 12 * (largest_size + names_size) <= MAX_HEAD_BYTES
        and all(map(ORDINARY_CONTENT_TYPE.__getitem__, {*media_types}))
        and all(map(IS_URI_REFERENCE.__getitem__, {*sources}))
        and all(map(is_time, times))
        and b"" not in subjects
    ):
        return None
    are_json = all([json_format.is_json(media_type.decode()) for media_type in {*media_types}])
    no_keys = [b""] * len(objects)
    remaining_values = iter(values)
    records = []
    for raw, key, subject in zip(data, keys or no_keys, subjects or no_keys, strict=True):
        headers = list(zip(header_names, remaining_values))  # noqa: B905 - takes one event's values
        value = None
        if raw is not None:
            value = bytes(raw)
            if not media_types:
                headers.append(_JSON)
            elif not are_json and value[0] == QUOTE:
                return None
        if added_headers:
            headers += added_headers
        records.append(Draft(key or subject or None, headers, value))
    return records


def _record_of(
    members: json_format.Members,
    layout: _Layout,
    joined_values: bytes,
    data: Raw | None,
    added_headers: RecordHeaders,
) -> Draft | None:
    """Return the record of the event with these `members`, whose layout is `layout`. None:
    `json_format` must read the event, which may be valid or not.

    `joined_values`: the values of all members but `data`, as in the document. `data`: the value of
    the member `data`; None: there is none.
    """
    header_names, names_size, pick, quotes = layout[:4]
    # Two quotes separate strings, unless a string contains some: then it isn't plain.
    values = joined_values[1:-1].split(b'""')
    size = len(joined_values) - len(quotes)
    is_plain = joined_values.translate(None, _PLAIN_JSON) == quotes
    if not (
        is_plain
        and len(values) == len(header_names)
        and joined_values[0] == joined_values[-1] == QUOTE
    ):
        mixed_values = _values_of(members)  # not all are strings
        if mixed_values is None:
            return None
        values = mixed_values
        all_values = b"".join(values)
        size, is_plain = len(all_values), not all_values.translate(None, _PLAIN_JSON)
    version, id_, type_, source, time, subject, partition_key, media_type = pick((*values, None))
    if (
        not is_plain
        or version != b"1.0"
        or not (id_ and type_ and source)
        or 12 * (size + names_size) > MAX_HEAD_BYTES
        or not (media_type is None or ORDINARY_CONTENT_TYPE[media_type])
        or not IS_URI_REFERENCE[source]
        or not (time is None or is_time(time))
        or subject == b""
    ):
        return None
    # A check that there are equally many (`strict`) would take a third longer.
    headers = list(zip(header_names, values))  # noqa: B905
    value = None
    if data is not None:
        value = bytes(data)
        if media_type is None:
            headers.append(_JSON)
        elif value[0] == QUOTE and not json_format.is_json(media_type.decode()):
            return None
    return Draft(
        partition_key or subject, headers + added_headers if added_headers else headers, value
    )


def _values_of(members: json_format.Members) -> list[bytes] | None:
    """Return the values of all members but `data` in the form that they have in headers. None: a
    value has a type that isn't allowed, or its form in a header differs from that in JSON."""
    values = []
    for name, raw in members.items():
        if name == "data":
            continue
        value = bytes(raw)
        if value[0] == QUOTE:
            values.append(value[1:-1])
        elif name not in CORE and json_format.is_integer_or_boolean(value):
            values.append(value)
        else:
            return None
    return values


def _layout_of(member_names: tuple[str, ...]) -> _Layout | None:
    """Return the layout of a document whose members have these names, in this order. None:
    `json_format` must read the document, because a name is invalid, a required one is missing,
    there are too many, or one is `dataschema`, whose value isn't checked here."""
    data_index = member_names.index("data") if "data" in member_names else -1
    names = tuple([name for name in member_names if name != "data"])
    if len(names) >= MAX_HEAD_LINES or not {*REQUIRED} <= {*names} or "dataschema" in names:
        return None
    if not all(map(is_attribute_name, names)):
        return None
    header_names = tuple(
        [CONTENT_TYPE if name == "datacontenttype" else f"ce_{name}" for name in names]
    )
    # -1: the last value, which stands for a missing attribute (`_Layout.pick`).
    indexes = [names.index(name) if name in names else -1 for name in _CHECKED_ATTRIBUTES]
    spaced_members = ", ".join([f'"{name}": %b' for name in member_names])
    return _Layout(
        header_names,
        len("".join(header_names)),
        itemgetter(*indexes),
        quotes=b'""' * len(names),
        data_index=data_index,
        # A member has two quotes, a colon, and a comma or brace; and there is one more brace.
        compact_size=len("".join(member_names)) + 4 * len(member_names) + 1,
        spaced_template=f"{{{spaced_members}}}".encode(),
    )


def _weight_of(names: tuple[str, ...]) -> int:
    """Return the weight of a document's member names in the cache of layouts: one for every 16
    characters."""
    return len("".join(names)) // 16


_LAYOUTS = BoundedCache[tuple[str, ...], "_Layout | None"](_layout_of, _weight_of)
"""The result of `_layout_of` by the names of a document's members; cached."""
