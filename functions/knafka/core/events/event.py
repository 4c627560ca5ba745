"""An event: a CloudEvent as the rest of the core sees it.

Attributes are plain strings in their canonical form, whatever binding or JSON type they came
from; data are bytes that are never parsed (CE-H10). The hot path needs no Event object: the
bindings go from HTTP headers to record headers and back, and filters read a mapping of attributes.
Not here: HTTP, Kafka and JSON; see `http_binding`, `kafka_binding` and `json_format`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from knafka.core.errors import InvalidEvent

Attributes: TypeAlias = Mapping[str, str]
"""CloudEvents attributes by name: `id`, `type`, `datacontenttype`, extensions; never `data`."""

SPEC_VERSIONS: Final = frozenset({"0.3", "1.0"})
"""Accepted values of `specversion`; a version is never upgraded on the way (KN-DP-14)."""

MAX_ATTRIBUTES: Final = 128
"""Most attributes of an event from a sender or from a structured document: they are sent
as HTTP headers, and with a request's other headers most servers accept hardly more."""

MAX_NAMED_PROBLEMS: Final = 16
"""Most problems of an event that an error names."""

REQUIRED: Final = ("specversion", "id", "source", "type")
"""Attributes that every event must have, with a value that isn't empty."""

CORE: Final = frozenset(
    (*REQUIRED, "subject", "time", "datacontenttype", "dataschema", "schemaurl")
)
"""The attributes that CloudEvents defines, in 0.3 or 1.0; all others are extensions."""
URIS: Final = frozenset({"source", "dataschema", "schemaurl"})
"""Standard attributes that are a URI or a URI-reference; `dataschema` in 1.0, `schemaurl` in 0.3.
In the other version each is an extension."""

# Each of these matches a whole text, only `_match_scheme` the beginning of one.
_match_name = re.compile(r"[a-z0-9]+").fullmatch
# A character class: characters outside ASCII are allowed, as in an IRI (RFC 3987).
_URI_CHARACTERS = r"[A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=\u0080-\U0010ffff]"
_match_uri_reference = re.compile(
    rf"(?:{_URI_CHARACTERS}|%[0-9A-Fa-f]{{2}}){_URI_CHARACTERS}*(?:%[0-9A-Fa-f]{{2}}{_URI_CHARACTERS}*)*"
).fullmatch
_match_scheme = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:").match
_match_timestamp = re.compile(
    r"\d{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01])"
    r"[Tt](?:[01]\d|2[0-3]):[0-5]\d:(?:[0-5]\d|60)(?:\.\d+)?"
    r"(?:[Zz]|[+-](?:[01]\d|2[0-3]):[0-5]\d)",
    re.ASCII,
).fullmatch
_match_media_type = re.compile(r"[!-~](?:[ -~]*[!-~])?").fullmatch
_NON_CHARACTERS = "".join(
    chr(plane + last) for plane in range(0, 0x110000, 0x10000) for last in (0xFFFE, 0xFFFF)
)
"""The last two code points of each of Unicode's planes."""
_FORBIDDEN_CHARACTER = re.compile(
    rf"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef{_NON_CHARACTERS}]"
)
_find_forbidden, _substitute_forbidden = _FORBIDDEN_CHARACTER.search, _FORBIDDEN_CHARACTER.sub


@dataclass(frozen=True, slots=True)
class Event:
    """A CloudEvent; `data` is None if it has none, which differs from empty data (CE-K3)."""

    attributes: Attributes
    data: bytes | None


def key_of(attributes: Attributes) -> str | None:
    """Return the key of an event's record: the attribute `partitionkey`, else `subject`. Events
    with the same key stay in order. None: the event has neither attribute, or only empty ones
    (CE-K4, CE-K5, CHN-30)."""
    return attributes.get("partitionkey") or attributes.get("subject") or None


def validate(attributes: Attributes) -> None:
    """Check the attributes of an event by the rules of CE-H12. Raises `InvalidEvent` (`refusal`),
    which names the rules that they break."""
    if problems := problems_of(attributes):
        raise refusal(problems)


def problems_of(attributes: Attributes) -> list[str]:
    """Return a short clause for each rule of CE-H12 that an event's attributes break; empty if they
    are valid."""
    problems = [
        f"the attribute {name} is required" for name in REQUIRED if not attributes.get(name)
    ]
    version = attributes.get("specversion")
    if version and version not in SPEC_VERSIONS:
        problems.append(f"specversion {version!r:.80} is not one of 0.3, 1.0")
    for name, value in attributes.items():
        if not is_attribute_name(name):
            problems.append(f"{name!r:.80} is no attribute name (a-z and 0-9, not data)")
        if not is_legal(value):
            problems.append(f"the attribute {name!r:.80} holds a control or non-character")
    if (source := attributes.get("source")) and not is_uri_reference(source):
        problems.append(f"source {source!r:.80} is not a URI-reference")
    if attributes.get("subject") == "":
        problems.append("subject is empty: leave it out, or give it a value")
    if version == "0.3":
        schema = attributes.get("schemaurl")
        if schema is not None and not is_uri_reference(schema):
            problems.append(f"schemaurl {schema!r:.80} is not a URI-reference")
    elif (schema := attributes.get("dataschema")) is not None and not is_uri(schema):
        problems.append(f"dataschema {schema!r:.80} is not a URI, such as https://host/schema")
    if (time := attributes.get("time")) is not None and not is_timestamp(time):
        problems.append(f"time {time!r:.80} is not an RFC 3339 timestamp")
    content_type = attributes.get("datacontenttype")
    if content_type is not None and not _match_media_type(content_type):
        problems.append(f"datacontenttype {content_type!r:.80} is not a media type")
    return problems


def too_many_attributes() -> InvalidEvent:
    """Return the error to raise for an event with more than `MAX_ATTRIBUTES` attributes."""
    return InvalidEvent(
        f"an event may have at most {MAX_ATTRIBUTES} attributes: move the rest into the data"
    )


def is_valid_1_0(attributes: Attributes) -> bool:
    """Whether the attributes certainly make a valid event of version 1.0. This check is fast and
    not exact: if it returns False, the attributes may be valid nevertheless, and `problems_of`
    must decide."""
    get = attributes.get
    # All names, and below all values, are joined and checked by one call instead of one for each.
    names = "".join(attributes)
    source, time, schema = get("source"), get("time"), get("dataschema")
    media_type = get("datacontenttype")
    return bool(
        get("specversion") == "1.0"
        and get("id")
        and get("type")
        and source
        and get("subject") != ""
        and names.isascii()
        and names.isalnum()
        and names.islower()
        and "" not in attributes  # the joined names don't show an empty one
        and "data" not in attributes
        and "data_base64" not in attributes
        and is_legal("".join(attributes.values()))
        and is_uri_reference(source)
        and (time is None or is_timestamp(time))
        and (schema is None or is_uri(schema))
        and (media_type is None or _match_media_type(media_type))
    )


def refusal(problems: Sequence[str]) -> InvalidEvent:
    """Return the error to raise for these problems; its text has the first `MAX_NAMED_PROBLEMS` of
    them, and the number of the others."""
    omitted = len(problems) - MAX_NAMED_PROBLEMS
    omitted_text = f"; and {omitted} more" if omitted > 0 else ""
    return InvalidEvent("; ".join(problems[:MAX_NAMED_PROBLEMS]) + omitted_text)


def is_attribute_name(name: str) -> bool:
    """Whether a text is a valid attribute name: a-z and 0-9, but not `data`."""
    return name != "data" and _match_name(name) is not None


def is_legal(text: str) -> bool:
    """Whether a text holds no character that CloudEvents forbids: a control character, a surrogate
    or one of Unicode's noncharacters."""
    return (text.isascii() and text.isprintable()) or _find_forbidden(text) is None


def replace_forbidden(text: str) -> str:
    """Replace each character that CloudEvents forbids by U+FFFD."""
    return text if is_legal(text) else _substitute_forbidden("\N{REPLACEMENT CHARACTER}", text)


def is_media_type(text: str) -> bool:
    """Whether a text may be a `datacontenttype`: printable ASCII without a space at either end. Its
    syntax isn't checked further."""
    return _match_media_type(text) is not None


def is_uri_reference(text: str) -> bool:
    """Whether a text is non-empty and has only characters of URIs; characters outside ASCII are
    allowed (RFC 3987)."""
    return _match_uri_reference(text) is not None


def is_uri(text: str) -> bool:
    """Whether a text is a URI-reference that begins with a scheme (RFC 3986, 3)."""
    return _match_scheme(text) is not None and is_uri_reference(text)


def is_timestamp(text: str) -> bool:
    """Whether a text is an RFC 3339 timestamp of a real calendar day; second 60, a leap second, is
    accepted in every minute."""
    if _match_timestamp(text) is None:
        return False
    if (day := int(text[8:10])) <= 28:  # every month has that many
        return True
    year, month = int(text[:4]), int(text[5:7])
    is_leap_year = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    days = (31, 29 if is_leap_year else 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
    return day <= days[month - 1]
