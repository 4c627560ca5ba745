"""Checks declared documents against frozen pydantic models, and describes what is wrong with one.

A document comes in as decoded JSON or YAML (`parse`) or as JSON text (`parse_json`). A document
that breaks a rule raises `InvalidDocument`, which names every broken field by its path in
Kubernetes' notation. Field names are camelCase in JSON and snake_case here.

Not here: models of particular documents; see `contract` for those that both planes know.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import re
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Annotated, Any, Final, TypeAlias, TypeVar
from urllib.parse import SplitResult, urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    PlainSerializer,
    TypeAdapter,
    ValidationError,
)
from pydantic.alias_generators import to_camel
from pydantic_core import ErrorDetails, PydanticCustomError

from knafka.core.errors import InvalidDocument
from knafka.core.events.event import is_uri_reference

M = TypeVar("M", bound=BaseModel)

_COUNT = r"\d+(?:[.,]\d+)?"
"""Pattern of a number in an ISO-8601 duration."""
_match_duration = re.compile(
    rf"P(?=.)(?:(?P<years>{_COUNT})Y)?(?:(?P<months>{_COUNT})M)?(?:(?P<weeks>{_COUNT})W)?"
    rf"(?:(?P<days>{_COUNT})D)?(?:T(?=.)(?:(?P<hours>{_COUNT})H)?(?:(?P<minutes>{_COUNT})M)?"
    rf"(?:(?P<seconds>{_COUNT})S)?)?",
    re.ASCII,
).fullmatch
_UNITS = {
    # Gregorian means, as in Knative (rickb777/date): 365.2425 days, and a twelfth of them.
    "years": 31_556_952.0,
    "months": 2_629_746.0,
    "weeks": 604_800.0,
    "days": 86_400.0,
    "hours": 3_600.0,
    "minutes": 60.0,
    "seconds": 1.0,
}
"""Seconds in each unit of an ISO-8601 duration."""


class Model(BaseModel):
    """Base class of declared documents and their parts: immutable, with camelCase names in JSON;
    unknown fields are refused."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True
    )


def problem(message: str, *fields: str) -> PydanticCustomError:
    """Return the error that a validator raises to refuse a document with this `message`. `fields`:
    paths of the broken fields, relative to the validated object; the error's text names them by
    their full paths. Without `fields`, the object itself is refused."""
    return PydanticCustomError("knafka", "{message}", {"message": message, "fields": fields})


# Field types


def _parse_seconds(duration: object) -> float:
    """Convert an ISO-8601 duration such as `PT0.2S`, or a number of seconds, to seconds. Raises an
    error for any other value, and for a duration that isn't finite."""
    if isinstance(duration, bool) or not isinstance(duration, int | float | str):
        raise problem("a duration is text in ISO-8601 form, such as PT0.2S or PT5M")
    try:
        seconds = (
            float(duration) if isinstance(duration, int | float) else _parse_duration(duration)
        )
    except OverflowError:
        seconds = math.inf
    if not math.isfinite(seconds):
        raise problem("invalid value: want a finite duration")
    return seconds


def _parse_duration(text: str) -> float:
    """Parse an ISO-8601 duration into seconds. Raises an error for any other text."""
    if (match := _match_duration(text)) is None:
        raise problem(
            f"invalid value: {text:.80}: want an ISO-8601 duration, such as PT0.2S or PT5M"
        )
    return sum(
        float(count.replace(",", ".")) * _UNITS[unit]
        for unit, count in match.groupdict().items()
        if count
    )


def _format_duration(seconds: float) -> str:
    """Format seconds as an ISO-8601 duration that parses to the same float; the number is written
    without an exponent, which durations don't have."""
    whole, _, fraction = f"{Decimal(repr(seconds)):f}".partition(".")
    return f"PT{whole}.{fraction}S" if fraction.strip("0") else f"PT{whole}S"


Duration: TypeAlias = Annotated[
    float, BeforeValidator(_parse_seconds), PlainSerializer(_format_duration, str)
]
"""Seconds; written and read as an ISO-8601 duration."""


def shown_url(url: str) -> str:
    """Return a URL for a message: cut to 200 characters, and without the part before an `@`, which
    may be a password. A URL with characters that aren't allowed is shown in quotes, with
    escapes."""
    _, at_sign, rest = url.rpartition("@")
    text = f"...@{rest:.200}" if at_sign else f"{url:.200}"
    is_clean = text.isascii() and (not text or is_uri_reference(text))
    return text if is_clean else repr(text)


def holds_credentials(parts: SplitResult) -> bool:
    """Whether a URL holds a user or password, even if the password has an unencoded `/`, `?` or
    `#`."""
    # After a `#` in a password, the `@` is in the fragment. After a `/` or `?` it is in the path or
    # query, and the beginning of the password is taken for a port that is no number.
    if "@" in parts.netloc or "@" in parts.fragment:
        return True
    try:
        _ = parts.port
    except ValueError:
        return "@" in parts.path + parts.query
    return False


def check_url_text(url: str, *fields: str) -> None:
    """Raise an error if a URL or a part of one holds credentials or characters that aren't allowed.
    The error names `fields`, the fields with the URL, relative to the validated object."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError as error:
        raise problem(f"invalid value: {shown_url(url)}: {error}", *fields) from None
    if holds_credentials(parts):
        raise problem("the URL holds credentials, which belong in a Secret", *fields)
    if not url.isascii() or not is_uri_reference(url):
        # Checked in `url`, as urlsplit drops line breaks, which an HTTP request would keep.
        text = f"invalid value: {shown_url(url)}: want ASCII without spaces, controls or quotes"
        raise problem(text + _ascii_host_hint(host), *fields)


def _ascii_host_hint(host: str) -> str:
    """Return a clause for an error message that says how a host name is written in ASCII (IDNA);
    empty if it is ASCII already, or can't be written so."""
    if host.isascii():
        return ""
    with contextlib.suppress(UnicodeError):
        return f"; its host is written {host.encode('idna').decode()}"
    return ""


def _check_absolute_url(url: str) -> str:
    """Return a URL unchanged; raise an error if it isn't absolute, holds credentials, or has
    characters that aren't allowed."""
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = None  # `check_url_text` says what is wrong
    if parts is not None and not (parts.scheme and parts.hostname):
        text = "want an absolute URL, such as http://host/path"
        raise problem(f"invalid value: {shown_url(url)}: {text}")
    check_url_text(url)
    return url


AbsoluteUrl: TypeAlias = Annotated[str, AfterValidator(_check_absolute_url)]
"""An absolute URL of any scheme, as upstream; if nothing can be posted there, attempts fail."""


# Parsing and writing


def parse(model: type[M], document: object, path: str = "") -> M:
    """Check a declared document (decoded JSON) against `model`.

    Raises `InvalidDocument`, whose message names each broken field (the first `MAX_PROBLEMS` of
    them) by its path, which begins with `path`.
    """
    try:
        return model.model_validate(document, by_alias=True, by_name=False)
    except ValidationError as error:
        raise _to_invalid_document(error, path) from None


def parse_json(model: type[M], text: str) -> M:
    """Parse JSON text, such as an environment variable's, and check it against `model` as `parse`
    does. Raises `InvalidDocument`."""
    try:
        return model.model_validate_json(text, by_alias=True, by_name=False)
    except ValidationError as error:
        raise _to_invalid_document(error, "") from None


def parse_json_array(model: type[M], text: str) -> Sequence[M]:
    """Parse the text of a JSON array, and check each of its documents against `model` as `parse`
    does. Raises `InvalidDocument`."""
    documents: TypeAdapter[tuple[M, ...]] = TypeAdapter(tuple[model, ...])  # type: ignore[valid-type]
    try:
        return documents.validate_json(text, by_alias=True, by_name=False)
    except ValidationError as error:
        raise _to_invalid_document(error, "") from None


def dump(model: Model) -> dict[str, Any]:
    """Return the document as JSON values, without fields that have their defaults."""
    return model.model_dump(mode="json", by_alias=True, exclude_defaults=True)


def digest(model: Model) -> str:
    """Return 16 hexadecimal digits that identify this version of a document."""
    text = json.dumps(dump(model), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@contextlib.contextmanager
def explain_faults() -> Iterator[None]:
    """Wrap a program's outermost call, to explain pydantic's errors about documents that the
    program itself made wrongly.

    Raises `InvalidDocument`, which asks the reader to report the fault, instead of pydantic's
    error, which ends with a link to pydantic's manual.
    """
    try:
        yield
    except ValidationError as error:
        invalid = _to_invalid_document(error, error.title)
        text = f"{invalid.problem}; this is a fault of Knafka: please report it with this line"
        raise InvalidDocument(invalid.path, text) from error


# Error messages


MAX_PROBLEMS: Final = 20
"""Most broken fields of a document that an error names: a list may have thousands of wrong
entries."""


def more_problems(count: int) -> str:
    """Return the clause that ends an error's text if a document has `count` problems, of which only
    the first `MAX_PROBLEMS` are described."""
    return f"and {count - MAX_PROBLEMS} more"


def _to_invalid_document(error: ValidationError, root: str) -> InvalidDocument:
    """Turn pydantic's errors into one `InvalidDocument` that names the first `MAX_PROBLEMS` broken
    fields; `root` is the document's own path."""
    missing: list[str] = []
    problems: list[tuple[str, str]] = []
    for details in error.errors(include_url=False)[:MAX_PROBLEMS]:
        path = path_of(root, details["loc"])
        if details["type"] == "missing":
            missing.append(path)
        else:
            problems.append(describe_error(path, details))
    if missing:
        problems.insert(0, (missing[0], f"missing field(s): {', '.join(missing)}"))
    path, first_problem = problems[0]
    further_problems = "".join(f"; {further_path}: {text}" for further_path, text in problems[1:])
    if error.error_count() > MAX_PROBLEMS:
        further_problems += f"; {more_problems(error.error_count())}"
    return InvalidDocument(path, first_problem + further_problems)


_EXPECTATIONS: Final = {
    "model_type": "an object",
    "dict_type": "an object",
    "tuple_type": "a list",
    "string_type": "a string",
    "int_type": "a whole number",
    "string_too_short": "a string that is not empty",
    "too_short": "at least one entry",
}
"""What a field must be, in the words of a YAML file, by pydantic's type of the error."""
_EXPECTATION_PREFIX: Final = "Input should be "
"""Begins pydantic's messages that end with what a field must be."""


def describe_error(path: str, error: ErrorDetails) -> tuple[str, str]:
    """Return path and problem of one broken field, in the words of Knative's own messages. `path`
    is the field's path, `error` pydantic's description. If a validator named fields by `problem`,
    the returned path is that of the first of these fields."""
    if fields := error.get("ctx", {}).get("fields"):
        paths = [path_of(path, (field,)) for field in fields]
        # `InvalidDocument` itself puts a single path before the text.
        all_paths = f": {', '.join(paths)}" if len(paths) > 1 else ""
        return paths[0], error["msg"] + all_paths
    if error["type"] == "extra_forbidden":
        return path, "unknown field"
    expectation = _EXPECTATIONS.get(error["type"])
    if expectation is None:
        if not error["msg"].startswith(_EXPECTATION_PREFIX):
            return path, error["msg"]  # ours, or one of pydantic's that is a whole sentence
        expectation = error["msg"].removeprefix(_EXPECTATION_PREFIX)
    value = error["input"]
    if not isinstance(value, str | int | float):
        return path, f"invalid value: want {expectation}"
    # If a value has the wrong type, it is shown as JSON, in which "1" and 1 differ.
    shown = json.dumps(value) if error["type"].endswith("_type") else str(value)
    return path, f"invalid value: {shown:.80}: want {expectation}"


def path_of(root: str, location: Sequence[str | int]) -> str:
    """Return a field's path below `root` in Kubernetes' notation, from pydantic's location of it.

    Parts that pydantic adds are left out: `[key]`, and tags of unions, which are in `<>`.
    """
    path = root
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif not part.startswith("<") and part != "[key]":
            path += f".{part}" if path else part
    return path
