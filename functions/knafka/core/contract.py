"""The contract: the one thing that both planes know, as JSON in a function's environment.

`Ingress` tells a receiver where one Broker's events go; `Egress` tells a dispatcher everything
about one Trigger. The operator (or the local mode) writes them, the functions only read them, so
a change of a Trigger is a new Revision. Field names are camelCase in JSON and snake_case here.

Refused here: secrets (they are mounted as files, `Kafka.secret_path` names the folder), anything
that changes while a Revision runs, and unresolved references: every URL is a URL already.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    PlainSerializer,
    Tag,
    TypeAdapter,
    ValidationError,
)
from pydantic.alias_generators import to_camel
from pydantic_core import ErrorDetails, PydanticCustomError

from knafka.core import cesql
from knafka.core.errors import InvalidDocument, InvalidExpression
from knafka.core.event import is_uri_reference

MAX_EVENT_BYTES: Final = 1_000_000
"""Largest event a receiver takes by default, headers included: Kafka's own limit is 1 MiB."""
MAX_RECORD_BYTES: Final = 1_048_588
"""Kafka's max.message.bytes unless a topic has its own: key, value and headers together."""

KEPT_FOR_EVER: Final[Mapping[str, str]] = {
    # An event without data is a tombstone to compaction, so a dead letter is never compacted away
    # (CE-K3). Nor does it expire: only the job that has tabled it deletes it.
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
}
"""The configuration of every dead-letter topic."""

_COUNT = r"\d+(?:[.,]\d+)?"
_DURATION = re.compile(
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
_ATTRIBUTE_NAME = re.compile(r"[a-z][a-z0-9]*").fullmatch


class Model(BaseModel):
    """A frozen document part that knows its JSON spelling and refuses unknown fields."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True
    )


def _seconds(value: object) -> float:
    """Seconds of an ISO-8601 duration such as `PT0.2S`."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise problem("a duration is text in ISO-8601 form, such as PT0.2S or PT5M")
    try:
        seconds = float(value) if isinstance(value, int | float) else _parse_duration(value)
    except OverflowError:
        seconds = math.inf
    if not math.isfinite(seconds):
        raise problem("invalid value: want a finite duration")
    return seconds


def _parse_duration(text: str) -> float:
    if (match := _DURATION(text)) is None:
        raise problem(
            f"invalid value: {text:.80}: want an ISO-8601 duration, such as PT0.2S or PT5M"
        )
    return sum(
        float(count.replace(",", ".")) * _UNITS[unit]
        for unit, count in match.groupdict().items()
        if count
    )


def _format_duration(seconds: float) -> str:
    """All digits, and no exponent, which ISO-8601 doesn't know: it reads back as the same float."""
    whole, _, fraction = f"{Decimal(repr(seconds)):f}".partition(".")
    return f"PT{whole}.{fraction}S" if fraction.strip("0") else f"PT{whole}S"


def problem(message: str, *fields: str) -> PydanticCustomError:
    """What a validator raises; `fields`, relative to what it validates, are told by full path."""
    return PydanticCustomError("knafka", "{message}", {"message": message, "fields": fields})


Duration: TypeAlias = Annotated[
    float, BeforeValidator(_seconds), PlainSerializer(_format_duration, str)
]
"""Seconds; written and read as an ISO-8601 duration."""


def _absolute_url(url: str) -> str:
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise problem(f"invalid value: {url}: {error}") from None
    if not parts.scheme or not parts.hostname:
        raise problem(f"invalid value: {url}: want an absolute URL, such as http://host/path")
    if not url.isascii() or not is_uri_reference(url):
        # urlsplit overlooks line breaks, an HTTP request would keep them.
        raise problem(f"invalid value: {url!r}: want ASCII without spaces, controls or quotes")
    if "@" in parts.netloc:
        raise problem("the URL holds credentials, which belong in a Secret")
    return url


AbsoluteUrl: TypeAlias = Annotated[str, AfterValidator(_absolute_url)]
"""Any scheme, as upstream: that nothing can be posted there is for the attempts to tell."""


def _attribute_name(name: str) -> str:
    if _ATTRIBUTE_NAME(name) is None:
        raise problem(
            f"invalid attribute name: {name!r}: want a-z, then a-z or 0-9 (^[a-z][a-z0-9]*$)"
        )
    return name


AttributeName: TypeAlias = Annotated[str, AfterValidator(_attribute_name)]
"""The name of a context attribute in a filter (KN-TRG-09)."""
Wanted: TypeAlias = Annotated[
    dict[AttributeName, Annotated[str, Field(min_length=1)]], Field(min_length=1)
]


def _cesql(text: str) -> str:
    try:
        cesql.compile_expression(text)
    except InvalidExpression as error:
        raise problem(f"invalid CESQL expression: {error.problem}") from None
    return text


class Exact(Model):
    exact: Wanted


class Prefix(Model):
    prefix: Wanted


class Suffix(Model):
    suffix: Wanted


def _not_empty(filters: tuple[Filter, ...]) -> tuple[Filter, ...]:
    """Not a `min_length`: that also complains when there were filters, all of them broken."""
    if not filters:
        raise problem("want at least one filter")
    return filters


class All(Model):
    all: Annotated[tuple[Filter, ...], AfterValidator(_not_empty)]


class Any_(Model):
    any: Annotated[tuple[Filter, ...], AfterValidator(_not_empty)]


class Not(Model):
    not_: Filter = Field(alias="not")


class CESQL(Model):
    cesql: Annotated[str, AfterValidator(_cesql)]


DIALECTS: Final = ("exact", "prefix", "suffix", "all", "any", "not", "cesql")


def _one_dialect(document: object) -> object:
    """The document with its one dialect; those set to null are not there."""
    if not isinstance(document, dict):
        return document
    present = {name: value for name, value in document.items() if value is not None}
    unknown = [name for name in present if name not in DIALECTS]
    if unknown:
        raise problem(
            f"unknown filter dialect {', '.join(map(repr, unknown))}: want one of "
            + ", ".join(DIALECTS)
        )
    if len(present) > 1:
        raise problem("multiple dialects found, filters can have only one dialect set")
    if not present:
        raise problem("no dialect found: want one of " + ", ".join(DIALECTS))
    return present


def _dialect(filter_: object) -> str:
    """Its tag; `_one_dialect` has refused objects with none or several."""
    if isinstance(filter_, dict):
        return _tag(next(iter(filter_)))
    by_type: dict[type, str] = {
        Exact: "exact",
        Prefix: "prefix",
        Suffix: "suffix",
        All: "all",
        Any_: "any",
        Not: "not",
        CESQL: "cesql",
    }
    return _tag(by_type.get(type(filter_), ""))


def _tag(dialect: str) -> str:
    """Tags show up in pydantic's error paths; the brackets let `path_of` drop them again."""
    return f"<{dialect}>"


Filter: TypeAlias = Annotated[
    Annotated[Exact, Tag("<exact>")]
    | Annotated[Prefix, Tag("<prefix>")]
    | Annotated[Suffix, Tag("<suffix>")]
    | Annotated[All, Tag("<all>")]
    | Annotated[Any_, Tag("<any>")]
    | Annotated[Not, Tag("<not>")]
    | Annotated[CESQL, Tag("<cesql>")],
    Discriminator(
        _dialect,
        custom_error_type="knafka",
        custom_error_message="a filter is an object with one dialect",
    ),
    # Around the union: what a discriminator raises would come out as it is, without a path.
    BeforeValidator(_one_dialect),
]
"""One declared filter: exactly one dialect (KN-TRG-10)."""


class AttributesFilter(Model):
    """The older form: every key must be present; an empty value matches any (KN-TRG-08)."""

    attributes: dict[AttributeName, str] = Field(default_factory=dict)


class BackoffPolicy(StrEnum):
    LINEAR = "linear"
    EXPONENTIAL = "exponential"


class Delivery(Model):
    """How hard to try (KN-DLV-01..06); the defaults are those of an empty delivery spec."""

    retry: Annotated[int, Field(ge=0, le=2**31 - 1, strict=True)] = 0
    """Attempts after the first one."""
    backoff_policy: BackoffPolicy = BackoffPolicy.EXPONENTIAL
    backoff_delay: Annotated[Duration, Field(ge=0)] = 1.0
    """Seconds; upstream's default (BROKER_DEFAULT_BACKOFF_DELAY_MS)."""
    timeout: Annotated[Duration, Field(gt=0)] = 600.0
    """Seconds for one attempt, connection included; upstream's default."""
    retry_after_max: Annotated[Duration, Field(ge=0)] | None = None
    """Seconds; None or 0: a subscriber's Retry-After is ignored (KN-DLV-04)."""
    format: Literal["json", "binary"] | None = None
    """Force structured or binary mode on what is sent; None: as the record is (KN-DLV-05)."""


class Order(StrEnum):
    """What a slow or failing event holds back."""

    KEY = "key"
    """Only later events of its own key."""
    PARTITION = "partition"
    """All later events of its partition (upstream's `ordered`)."""
    NONE = "none"
    """Nothing (upstream's `unordered`)."""


class Kafka(Model):
    """How to reach the log."""

    bootstrap_servers: Annotated[str, Field(min_length=1)]
    """host:port, comma-separated."""
    secret_path: str | None = None
    """Folder of the mounted Secret; None: plaintext, no authentication."""


class Sink(Model):
    """A resolved destination."""

    url: AbsoluteUrl
    ca_certs: str | None = None
    """PEM to trust for this destination beside the system's."""


def event_limit(max_batch_bytes: int) -> int:
    """The largest event for a topic with this limit: the same share of it as by default, as a
    record has its own bytes beside the event's, and its key twice."""
    return max(1, max_batch_bytes * MAX_EVENT_BYTES // MAX_RECORD_BYTES)


class TopicSettings(Model):
    """How a topic is to be made, should it not exist."""

    partitions: Annotated[int, Field(gt=0)] = 1
    replication: Annotated[int, Field(ge=-1)] = -1
    """-1: the cluster's default."""
    config: dict[str, str] = Field(default_factory=dict)


class Ingress(Model):
    """One Broker, as its receiver sees it."""

    namespace: str
    broker: str
    topic: str
    kafka: Kafka
    max_event_bytes: Annotated[int, Field(gt=0)] = MAX_EVENT_BYTES
    """Body and attributes together; more is answered with 413 (KN-DP-12)."""
    max_batch_bytes: Annotated[int, Field(gt=0)] | None = None
    """What Kafka takes for this topic in one batch of records (max.message.bytes); None: Kafka's
    default, which is more than a writer puts into one."""

    @property
    def path(self) -> str:
        """Where the Broker is addressed: `/{namespace}/{broker}` (KN-BRK-20)."""
        return f"/{self.namespace}/{self.broker}"


class Egress(Model):
    """One Trigger, as its dispatcher sees it."""

    namespace: str
    broker: str
    trigger: str
    topic: str
    group: str
    dead_letter_topic: str
    dead_letter_settings: TopicSettings = TopicSettings(config=dict(KEPT_FOR_EVER))
    """How the dispatcher makes the dead-letter topic when it first needs it."""
    kafka: Kafka
    subscriber: Sink
    reply_topic: str | None = None
    """Where replies go, if not to `topic`: a replay's are the Broker's all the same."""
    dead_letter_sink: Sink | None = None
    filter: AttributesFilter = AttributesFilter()
    filters: tuple[Filter, ...] = ()
    """ANDed; when there are any, `filter` is ignored (KN-TRG-10)."""
    delivery: Delivery = Delivery()
    order: Order = Order.KEY
    max_in_flight: Annotated[int, Field(gt=0, le=10_000)] = 100
    """Attempts under way at once in one dispatcher; the peer's fixed pool is 100."""


M = TypeVar("M", bound=BaseModel)


def parse(model: type[M], document: object, path: str = "") -> M:
    """Check a declared document (decoded JSON) against `model`.

    Raises `InvalidDocument` whose message names every broken field by its path below `path`.
    """
    try:
        return model.model_validate(document, by_alias=True, by_name=False)
    except ValidationError as error:
        raise _invalid(error, path) from None


def parse_json(model: type[M], text: str) -> M:
    """`parse`, for JSON text such as an environment variable."""
    try:
        return model.model_validate_json(text, by_alias=True, by_name=False)
    except ValidationError as error:
        raise _invalid(error, "") from None


def parse_ingresses(text: str) -> Sequence[Ingress]:
    """A receiver's contract: a JSON array of `Ingress`, one per Broker it serves."""
    try:
        return TypeAdapter(tuple[Ingress, ...]).validate_json(text, by_alias=True, by_name=False)
    except ValidationError as error:
        raise _invalid(error, "") from None


@contextlib.contextmanager
def explained_faults() -> Iterator[None]:
    """For a program's outermost call: what it made of its own values and does not fit a model.

    Raises `InvalidDocument` instead of pydantic's error, which ends with a link to its manual.
    """
    try:
        yield
    except ValidationError as error:
        found = _invalid(error, error.title)
        problem = f"{found.problem}; this is a fault of Knafka: please report it with this line"
        raise InvalidDocument(found.path, problem) from error


def dump(model: Model) -> dict[str, Any]:
    """The document as JSON values, without what is default."""
    return model.model_dump(mode="json", by_alias=True, exclude_defaults=True)


def digest(model: Model) -> str:
    """What tells one version of a document from another: 16 hexadecimal digits."""
    text = json.dumps(dump(model), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _invalid(error: ValidationError, root: str) -> InvalidDocument:
    missing: list[str] = []
    problems: list[tuple[str, str]] = []
    for each in error.errors(include_url=False):
        path = path_of(root, each["loc"])
        if each["type"] == "missing":
            missing.append(path)
        else:
            problems.append(told_of(path, each))
    if missing:
        problems.insert(0, (missing[0], f"missing field(s): {', '.join(missing)}"))
    path, first = problems[0]
    others = "".join(f"; {other}: {text}" for other, text in problems[1:])
    return InvalidDocument(path, first + others)


_WANTED: Final = {
    "model_type": "an object",
    "dict_type": "an object",
    "tuple_type": "a list",
    "string_type": "a string",
    "int_type": "a whole number",
    "string_too_short": "a string that is not empty",
    "too_short": "at least one entry",
}
"""What pydantic asks for in Python's words, in the words of a YAML file."""


def told_of(path: str, error: ErrorDetails) -> tuple[str, str]:
    """The path and the sentence about one broken field, the way upstream words it."""
    if fields := error.get("ctx", {}).get("fields"):
        paths = [path_of(path, (field,)) for field in fields]
        named = f": {', '.join(paths)}" if len(paths) > 1 else ""
        return paths[0], error["msg"] + named
    if error["type"] == "extra_forbidden":
        return path, "unknown field"
    allowed = _WANTED.get(error["type"]) or error["msg"].removeprefix("Input should be ")
    if allowed == error["msg"]:
        return path, allowed
    value = error["input"]
    if not isinstance(value, str | int | float):
        return path, f"invalid value: want {allowed}"
    # Of the wrong type, "1" and 1 must look different.
    shown = json.dumps(value) if error["type"].endswith("_type") else str(value)
    return path, f"invalid value: {shown:.80}: want {allowed}"


def path_of(root: str, location: Sequence[str | int]) -> str:
    path = root
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif not part.startswith("<") and part != "[key]":
            path += f".{part}" if path else part
    return path
