"""The filters that Triggers, Subscriptions, Sensors and policies declare, as models.

A filter has one dialect (KN-TRG-10): `exact`, `prefix` and `suffix` compare attributes with texts,
`cesql` has an expression, and `all`, `any` and `not` hold other filters. `attributes` is the older
form (KN-TRG-08). Declared objects and functions' contracts hold both as the same JSON.

Not here: which events a filter matches (`predicates`), and how much one object's filters may hold
(`filter_limits`).
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Annotated, Final, Literal, TypeAlias, TypeGuard, get_args

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag

from knafka.core import cesql
from knafka.core.documents import Model, problem
from knafka.core.errors import InvalidExpression

_match_attribute_name = re.compile(r"[a-z][a-z0-9]*").fullmatch


def _check_attribute_name(name: str) -> str:
    """Return the name of a CloudEvents attribute unchanged; raise an error if it is invalid."""
    if _match_attribute_name(name) is None:
        raise problem(
            f"invalid attribute name: {name!r}: want a-z, then a-z or 0-9 (^[a-z][a-z0-9]*$)"
        )
    return name


AttributeName: TypeAlias = Annotated[str, AfterValidator(_check_attribute_name)]
"""The name of a context attribute in a filter (KN-TRG-09)."""
AttributeValues: TypeAlias = Annotated[
    dict[AttributeName, Annotated[str, Field(min_length=1)]], Field(min_length=1)
]
"""Non-empty texts by attribute name; at least one."""


def _check_cesql(text: str) -> str:
    """Return a CESQL expression unchanged; raise an error if it doesn't parse."""
    if (cesql_problem := _cesql_problem(text)) is not None:
        raise problem(f"invalid CESQL expression: {cesql_problem}")
    return text


# The operator reads the same objects again at each reconciliation.
@lru_cache(maxsize=512)
def _cesql_problem(expression: str) -> str | None:
    """Return what is wrong with a CESQL expression; None: it is valid."""
    try:
        cesql.compile_expression(expression)
    except InvalidExpression as error:
        return error.problem
    return None


CesqlText: TypeAlias = Annotated[str, AfterValidator(_check_cesql)]
"""A CESQL expression that parses."""


class Exact(Model):
    exact: AttributeValues
    """Values that the event's attributes of these names must have."""


class Prefix(Model):
    prefix: AttributeValues
    """Texts with which the event's attributes of these names must begin."""


class Suffix(Model):
    suffix: AttributeValues
    """Texts with which the event's attributes of these names must end."""


def _check_not_empty(filters: tuple[Filter, ...]) -> tuple[Filter, ...]:
    """Return the filters unchanged; raise an error if there are none."""
    # In place of `min_length`, which would also refuse a list whose filters are all invalid.
    if not filters:
        raise problem("want at least one filter")
    return filters


class All(Model):
    all: Annotated[tuple[Filter, ...], AfterValidator(_check_not_empty)]
    """Filters that the event must all match."""


class Any_(Model):
    any: Annotated[tuple[Filter, ...], AfterValidator(_check_not_empty)]
    """Filters of which the event must match at least one."""


class Not(Model):
    not_: Filter = Field(alias="not")
    """The filter that the event must not match."""


class CESQL(Model):
    cesql: CesqlText
    """The expression that must be true of the event's attributes."""


Dialect: TypeAlias = Literal["exact", "prefix", "suffix", "all", "any", "not", "cesql"]
DIALECTS: Final[tuple[Dialect, ...]] = get_args(Dialect)


def is_dialect(name: object) -> TypeGuard[Dialect]:
    """Whether this key of a filter names one of the `DIALECTS`."""
    return name in DIALECTS


def _check_single_dialect(document: object) -> object:
    """Return a filter's JSON object without the dialects that are null; raise an error unless
    exactly one known dialect remains. Anything but a JSON object is returned unchanged, as pydantic
    judges it."""
    if not isinstance(document, dict):
        return document
    dialects = {name: value for name, value in document.items() if value is not None}
    unknown_names = [name for name in dialects if not is_dialect(name)]
    if unknown_names:
        raise problem(
            f"unknown filter dialect {', '.join(map(repr, unknown_names))}: want one of "
            + ", ".join(DIALECTS)
        )
    if len(dialects) > 1:
        raise problem("multiple dialects found, filters can have only one dialect set")
    if not dialects:
        raise problem("no dialect found: want one of " + ", ".join(DIALECTS))
    return dialects


def _filter_tag(filter_: object) -> str:
    """Return the tag by which pydantic picks the class of `filter_`: a parsed filter, or a JSON
    object with one dialect, as `_check_single_dialect` returns it. The tag of anything else
    names no class, so that pydantic refuses it."""
    if isinstance(filter_, dict):
        return _union_tag(next(iter(filter_)))
    by_type: dict[type, str] = {
        Exact: "exact",
        Prefix: "prefix",
        Suffix: "suffix",
        All: "all",
        Any_: "any",
        Not: "not",
        CESQL: "cesql",
    }
    return _union_tag(by_type.get(type(filter_), ""))


def _union_tag(dialect: str) -> str:
    """Return the tag of a dialect in the union `Filter`; by the tag's brackets, `documents.path_of`
    recognises it in the paths of pydantic's errors, and leaves it out."""
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
        _filter_tag,
        custom_error_type="knafka",
        custom_error_message="a filter is an object with one dialect",
    ),
    # Outside the union, because an error that a discriminator raises has no path.
    BeforeValidator(_check_single_dialect),
]
"""One declared filter: exactly one dialect (KN-TRG-10)."""


class AttributesFilter(Model):
    """The older form of a filter: every attribute must be present and equal; an empty value matches
    any (KN-TRG-08)."""

    attributes: dict[AttributeName, str] = Field(default_factory=dict)
