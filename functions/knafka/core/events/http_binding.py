"""Converts HTTP requests and responses to records, and records to requests (CE-H1 to CE-H13).

The hot paths go from header bytes to header bytes. There are two readers: a fast one that accepts
only binary events whose header values need no decoding, and a careful one that decodes, names every
problem and judges all other requests; they agree on what the fast one accepts. Not here: sockets,
status codes, and headers of the connection (host, content-length, prefer).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, Literal, TypeAlias
from urllib.parse import quote, unquote_to_bytes

from knafka.core.errors import BatchedContent, InvalidBatch, InvalidEvent, UnsupportedContentMode
from knafka.core.events import json_format, json_records
from knafka.core.events.event import (
    MAX_ATTRIBUTES,
    URIS,
    Attributes,
    Event,
    is_attribute_name,
    is_uri,
    is_uri_reference,
    problems_of,
    refusal,
    too_many_attributes,
)
from knafka.core.events.json_records import (
    IS_URI_REFERENCE,
    MAX_HEAD_BYTES,
    MAX_HEAD_LINES,
    ORDINARY_CONTENT_TYPE,
    is_time,
)
from knafka.core.events.kafka_binding import (
    CONTENT_TYPE,
    MODE,
    BoundedCache,
    Draft,
    Envelope,
    Mode,
    RecordHeaders,
    fits_binary,
    is_passed_on,
    mode_of,
    to_record,
)

HttpHeaders: TypeAlias = Sequence[tuple[bytes, bytes]]
"""Headers as an HTTP parser returns them: names in any letter case, order and duplicates kept."""

MAX_BATCH: Final = 1_000
"""Most events in one batch. With full batches a sender needs a thousandth of the requests, and
other senders wait 20 ms at most while a batch is read."""
MAX_DESCRIBED_EVENTS: Final = 10
"""Most events of a batch whose problems an error describes; of further ones it names only the
positions."""

_PLAIN: Final = bytes(byte for byte in range(0x21, 0x7F) if byte not in b'"%')
"""Bytes that are not percent-encoded in a header value (CE-H5)."""
_PLAIN_TEXT = _PLAIN.decode()
"""The characters of `_PLAIN`."""

_NEUTRAL_ENCODINGS: Final = {
    b"content-encoding": (b"", b"identity"),
    b"transfer-encoding": (b"", b"identity", b"chunked"),
}
"""Encodings that leave a body unchanged, by header."""

PARTITION_EXTENSION: Final = "knativekafkapartition"
OFFSET_EXTENSION: Final = "knativekafkaoffset"
"""Attributes of a delivered event: partition and offset of its record."""
_PARTITION_HEADER = b"ce-" + PARTITION_EXTENSION.encode()
_OFFSET_HEADER = b"ce-" + OFFSET_EXTENSION.encode()

_NOT_AN_ATTRIBUTE = "ce-"
"""Stands for the record header of a request header `ce-…` that names no attribute. No header has
this name."""
_MODES = BoundedCache[bytes, Mode](lambda value: mode_of(value.decode("latin-1")))
"""`mode_of` by content type; cached."""
_match_quoted = re.compile(rb'"((?:[^"\\]|\\.)*)"', re.DOTALL).fullmatch
"""Matches a quoted string (RFC 9110, 5.6.4); the group is the text between its quotes."""
_QUOTED_PAIR = re.compile(rb"\\(.)", re.DOTALL)


def record_of(headers: HttpHeaders, body: bytes) -> Draft:
    """Return the record of the event in a request. The record is in binary mode, whatever mode the
    request is in. An empty body in binary mode means no data, as HTTP can't tell the two apart.
    Raises `InvalidEvent` that names every problem, `BatchedContent` for a batch (CE-H11)."""
    # The fast reader: a binary event that passes all these checks becomes a record as it is.
    pairs = [
        (record_header, value) for name, value in headers if (record_header := _HEADER_NAMES[name])
    ]
    header_values = dict(pairs)
    is_single = len(header_values) == len(pairs)  # no header comes twice
    content_type = header_values.pop(CONTENT_TYPE, None)
    source, time = header_values.get("ce_source"), header_values.get("ce_time")
    if (
        is_single
        and len(header_values) < MAX_ATTRIBUTES
        and _NOT_AN_ATTRIBUTE not in header_values
        and header_values.get("ce_specversion") in (b"1.0", b"0.3")
        and header_values.get("ce_id")
        and header_values.get("ce_type")
        and source
        # Plain bytes need no decoding.
        and not b"".join(header_values.values()).translate(None, _PLAIN)
        and (content_type is None or ORDINARY_CONTENT_TYPE[content_type])
        and IS_URI_REFERENCE[source]
        and (time is None or is_time(time))
        and (subject := header_values.get("ce_subject")) != b""
        and ((schema := header_values.get("ce_dataschema")) is None or is_uri(schema.decode()))
        and "ce_schemaurl" not in header_values
    ):
        key = header_values.get("ce_partitionkey") or subject
        return Draft(key, pairs, body or None)
    if is_single and content_type and _MODES[content_type] is Mode.STRUCTURED:
        # The body is the whole event, whatever the headers repeat of it (CE-H8).
        other_headers = [
            (name, raw.strip(b" \t")) for name, raw in header_values.items() if name[:2] != "ce"
        ]
        return _parse_structured(body, other_headers)
    return _read_carefully(headers, body)


def records_of_batch(headers: HttpHeaders, body: bytes) -> list[Draft]:
    """Return the records of the events in a batch, in their order (CE-H11), after `record_of` has
    raised `BatchedContent`. Headers of the request that are passed on are added to each record.
    Raises `InvalidBatch` for too many events, or with the position (from 0 on) of every event that
    isn't valid; `InvalidEvent` if the body is no array."""
    other_headers: dict[str, bytes] = {}
    for name, raw in headers:
        record_header = _HEADER_NAMES[name]
        if record_header and record_header != CONTENT_TYPE and record_header[:2] != "ce":
            value = raw.strip(b" \t")
            first = other_headers.get(record_header)
            other_headers[record_header] = value if first is None else first + b", " + value
    passed = list(other_headers.items())
    if (records := json_records.records_of(body, passed, MAX_BATCH)) is not None:
        return records
    documents = json_format.elements_of(body, MAX_BATCH)
    if len(documents) > MAX_BATCH:
        raise InvalidBatch(
            f"a batch may have {MAX_BATCH} events: send it in several", too_many=True
        )
    records, problems = [], {}
    for position, document in enumerate(documents):
        try:
            records.append(_parse_structured(document, passed))
        except InvalidEvent as error:
            problems[position] = str(error)
    if problems:
        raise InvalidBatch(_batch_error_text(problems, len(documents)))
    return records


def _batch_error_text(problems: Mapping[int, str], count: int) -> str:
    """Return the error text for a batch of `count` events: the problems of the first invalid
    events, and the positions of the others. `problems`: each by its event's position."""
    shown = list(problems.items())[:MAX_DESCRIBED_EVENTS]
    text = "; ".join(f"[{position}]: {problem:.300}" for position, problem in shown)
    if further_positions := [str(position) for position in problems][MAX_DESCRIBED_EVENTS:]:
        text += f"; and at {', '.join(further_positions)}"
    return f"{len(problems)} of the batch's {count} events are not valid, none is stored: {text}"


def reply_of(headers: HttpHeaders, body: bytes) -> Draft:
    """Return the record of the event that a response claims to hold (`claims_event`).

    Raises `InvalidEvent` for a malformed event or a batch (CE-H13, KN-DP-08), and for an encoded
    body, as no attribute of an event says that its data are compressed.
    """
    for name, value in headers:
        coding = value.strip().lower()
        neutral = _NEUTRAL_ENCODINGS.get(name.lower())
        if neutral is not None and coding not in neutral:
            header, shown_coding = name.decode("latin-1"), coding.decode("latin-1")
            raise InvalidEvent(f"its {header} is {shown_coding!r:.80}: send the event without one")
    return record_of(headers, body)


def claims_event(headers: HttpHeaders) -> bool:
    """Whether a response claims to hold an event, by any `ce-` header or a CloudEvents content
    type."""
    for name, value in headers:
        record_header = _HEADER_NAMES[name]
        if record_header.startswith(("ce_", _NOT_AN_ATTRIBUTE)) or (
            record_header == CONTENT_TYPE and mode_of(value.decode("latin-1")) is not Mode.BINARY
        ):
            return True
    return False


def request_of(
    envelope: Envelope, mode: Literal["json", "binary", "batch"] | None = None
) -> tuple[bytes, bytes]:
    """Return header lines (each ends in CRLF) and body of the request that delivers an event.

    `mode` None: in the record's own content mode, or in structured mode if the event came in this
    mode and its attributes are too large for header lines (KN-DLV-05). `json`: in structured mode.
    `binary`: in binary mode, except an event whose datacontenttype rules it out (`fits_binary`).
    `batch`: the body is the event's data; the event is a Sensor's action, whose data are a JSON
    array of events.
    """
    attributes, data, passed, document, sent_as_json = envelope
    if mode == "batch":
        head = b"content-type: application/cloudevents-batch+json\r\n"
        body = data or b"[]"
    elif (
        mode == "json"
        or (mode is None and (sent_as_json or document is not None))
        or (document is not None and not fits_binary(attributes))
    ):
        head = b"content-type: application/cloudevents+json\r\n"
        body = json_format.write(envelope.event) if document is None else document
    else:
        head = head_of(attributes)
        body = data or b""
    for name, value in passed:
        head += b"%s: %s\r\n" % (name.encode(), value)
    return head, body


def located_request_of(
    envelope: Envelope,
    partition: int,
    offset: int,
    mode: Literal["json", "binary", "batch"] | None = None,
) -> tuple[bytes, bytes]:
    """Return header lines and body of an event's request (`mode`: see `request_of`), with its
    record's partition and offset as attributes, as upstream's Kafka Broker and channel add them.

    The two replace the event's own attributes of these names. In a JSON document they are inserted
    before the other members, which stay as they are. A batch doesn't get them, as its events have
    no records of their own.
    """
    attributes, data, passed, document, sent_as_json = envelope
    if mode == "batch":
        return request_of(envelope, mode)
    has_own = PARTITION_EXTENSION in attributes or OFFSET_EXTENSION in attributes
    becomes_json = mode == "json" or (mode is None and sent_as_json)
    if document is None and not becomes_json and not has_own:
        head, body = request_of(envelope, mode)
        values = (_PARTITION_HEADER, partition, _OFFSET_HEADER, offset, head)
        return b"%s: %d\r\n%s: %d\r\n%s" % values, body
    if document is not None:
        if mode is None or not fits_binary(attributes):
            mode = "json"
        if has_own:
            document = None  # it is written anew, as JSON members must not be repeated
        else:
            start = document.index(b"{") + 1
            members = (
                f'"{PARTITION_EXTENSION}":"{partition}","{OFFSET_EXTENSION}":"{offset}",'.encode()
            )
            document = document[:start] + members + document[start:]
    located = {**attributes, PARTITION_EXTENSION: str(partition), OFFSET_EXTENSION: str(offset)}
    return request_of(Envelope(located, data, passed, document, sent_as_json), mode)


def head_of(attributes: Attributes) -> bytes:
    """Return the HTTP header lines of valid attributes in binary mode, percent-encoded only where
    necessary (CE-H5)."""
    lines = [
        f"ce-{name}: {value}\r\n" for name, value in attributes.items() if name != "datacontenttype"
    ]
    head = "".join(lines).encode()
    # Each line has three bytes that aren't plain (space, CR, LF); any more have to be encoded.
    if len(head.translate(None, _PLAIN)) != 3 * len(lines):
        head = "".join(
            f"ce-{name}: {encode(value)}\r\n"
            for name, value in attributes.items()
            if name != "datacontenttype"
        ).encode()
    if content_type := attributes.get("datacontenttype"):
        head += f"content-type: {content_type}\r\n".encode()
    return head


def encode(text: str) -> str:
    """Percent-encode an attribute's value for an HTTP header (CE-H5)."""
    return quote(text, safe=_PLAIN_TEXT)


def decode(value: bytes) -> str:
    """Decode an attribute's value from a header value (CE-H6). Raises `UnicodeDecodeError`.

    A `%` without two hex digits stands for itself: senders that never encode exist (CE-H7).
    """
    return unquote_to_bytes(_unquote_header(value).encode()).decode()


def decode_uri(value: bytes) -> str:
    """Return a URI or URI-reference from a header value: the decoded value, unless only the value
    as it was sent is a URI-reference. Raises `UnicodeDecodeError`.

    Most SDKs send a URI without encoding its percent signs (CE-H7): `/a%20b` means `/a%20b`, as no
    URI holds a space.
    """
    decoded = decode(value)
    if not is_uri_reference(decoded) and is_uri_reference(raw := _unquote_header(value)):
        return raw
    return decoded


def decode_header_value(value: bytes) -> str:
    """Decode a header value as UTF-8, or as ISO-8859-1 if it isn't UTF-8, since Node.js and WSGI
    servers write ISO-8859-1."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def _unquote_header(value: bytes) -> str:
    """Return a header value as text; a quoted string, without its quotes and escapes."""
    if quoted := _match_quoted(value):
        value = _QUOTED_PAIR.sub(rb"\1", quoted[1])
    return decode_header_value(value)


def _read_carefully(headers: HttpHeaders, body: bytes) -> Draft:
    """Return the record of the event in a request of any mode, by the careful reader. Raises
    `InvalidEvent` that names every problem; for batches and formats that aren't read here, its
    subclass `UnsupportedContentMode`."""
    attributes: dict[str, str] = {}
    passed: dict[str, bytes] = {}
    content_types: list[str] = []
    problems: list[str] = []
    for name, raw in headers:
        record_header, value = _HEADER_NAMES[name], raw.strip(b" \t")
        if record_header == _NOT_AN_ATTRIBUTE:
            problems.append(f"the header {name!r:.80} names no attribute")
        elif record_header == CONTENT_TYPE:
            content_types.append(value.decode("latin-1"))
        elif record_header.startswith("ce_"):
            if (attribute := record_header[3:]) in attributes:
                problems.append(f"the header ce-{attribute} is given more than once")
            try:
                attributes[attribute] = (decode_uri if attribute in URIS else decode)(value)
            except UnicodeDecodeError:
                problems.append(f"the header ce-{attribute} is not UTF-8")
        elif record_header:
            first = passed.get(record_header)
            passed[record_header] = value if first is None else first + b", " + value
    # The schema attribute of the other version of CloudEvents is an extension, and no URI.
    extension = "dataschema" if attributes.get("specversion") == "0.3" else "schemaurl"
    if extension in attributes and not problems:
        (value,) = (raw for name, raw in headers if _HEADER_NAMES[name] == f"ce_{extension}")
        attributes[extension] = decode(value.strip(b" \t"))
    if len(content_types) > 1:
        raise InvalidEvent("the header content-type is given more than once")
    content_type = content_types[0] if content_types else ""
    other_headers = list(passed.items())

    mode = mode_of(content_type)
    if mode is Mode.BATCH:
        if content_type.partition(";")[0].strip().lower() == json_format.BATCH_MEDIA_TYPE:
            raise BatchedContent("batches of events are not taken here, send one at a time")
        raise UnsupportedContentMode(f"{content_type!r:.80} is not read here, only JSON is")
    if mode is Mode.STRUCTURED:
        # The body is the whole event, whatever the headers repeat of it (CE-H8).
        return _parse_structured(body, other_headers)
    if mode is Mode.UNREADABLE and not attributes and not problems:
        raise UnsupportedContentMode(f"{content_type!r:.80} is not read here, only JSON is")
    if content_type:
        attributes["datacontenttype"] = content_type
    if len(attributes) > MAX_ATTRIBUTES:
        raise too_many_attributes()
    if problems := problems + problems_of(attributes):
        raise refusal(problems)
    return to_record(Event(attributes, body or None), other_headers)


def _parse_structured(body: bytes, added_headers: RecordHeaders) -> Draft:
    """Parse a structured event and return its record, with the headers of its request added. Raises
    `InvalidEvent`."""
    return json_records.record_of(body, added_headers) or _parse_structured_carefully(
        body, added_headers
    )


def _parse_structured_carefully(body: bytes, added_headers: RecordHeaders) -> Draft:
    """Return the record of a structured event, read by the slower `json_format`. If its attributes
    are too large for header lines, the header `MODE` is added, so that the event is delivered in
    structured mode. Raises `InvalidEvent` that names every problem."""
    event = json_format.read(body)
    draft = to_record(event, added_headers)
    if is_large(event.attributes):
        draft.headers.append((MODE, b"structured"))
    return draft


def is_large(attributes: Attributes) -> bool:
    """Whether an event's attributes are too many or too long for the header lines that all common
    servers accept."""
    if len(attributes) > MAX_HEAD_LINES:
        return True
    characters = sum(len(name) + len(value) for name, value in attributes.items())
    # A character takes 12 bytes at most. The lines are made only if they may be too long.
    return 12 * characters > MAX_HEAD_BYTES and len(head_of(attributes)) > MAX_HEAD_BYTES


def _record_header_of(name: bytes) -> str:
    """Return the record header that a request header becomes. Empty: the header is dropped.
    `_NOT_AN_ATTRIBUTE`: the name begins with `ce-`, and the rest isn't an attribute's name."""
    lower = name.decode("latin-1").lower()
    if lower.startswith("ce-"):
        attribute = lower[3:]
        if attribute == "datacontenttype" or not is_attribute_name(attribute):
            return _NOT_AN_ATTRIBUTE
        return f"ce_{attribute}"
    return lower if lower == CONTENT_TYPE or is_passed_on(lower) else ""


_HEADER_NAMES = BoundedCache[bytes, str](_record_header_of)
"""`_record_header_of` by the request header's name; cached."""
