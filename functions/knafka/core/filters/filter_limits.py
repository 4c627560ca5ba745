"""Limits how much work one declared object's filters may cause.

    decoded JSON -> None, or a sentence about the first limit that it exceeds

Filters that are too large are refused before they are parsed, and read only as far as the limit.
The longest expression takes a second to parse on a busy machine, and the process that parses it,
such as the operator, also handles other users' objects.

Not here: the limit on the evaluation of an expression (`cesql`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Final, TypeAlias, assert_never

from pydantic import BeforeValidator

from knafka.core.documents import problem
from knafka.core.filters.declared_filters import AttributesFilter, Dialect, Filter, is_dialect

MAX_FILTERS: Final = 1_000
"""Most filters of one object, nested ones included."""
MAX_FILTER_DEPTH: Final = 16
"""Deepest nesting of filters, the outermost included; CESQL expressions have a limit of their
own."""
MAX_FILTER_CHARACTERS: Final = 32_768
"""Most characters of all names, values and expressions in the filters of one object. Its contract
has to fit into a container's environment, of which one variable may have 128 KiB."""


def beyond_limits(filters: object) -> str | None:
    """Return a sentence that says which limit a list of declared filters exceeds; None: it exceeds
    none."""
    count = characters = 0
    for depth, part, is_filter in _filter_parts(filters):
        count += 1 if is_filter else 0
        characters += len(part) if isinstance(part, str) else 0
        if depth > MAX_FILTER_DEPTH:
            return f"filters nested too deep: want at most {MAX_FILTER_DEPTH} within each other"
        if count > MAX_FILTERS:
            return f"too many filters: want at most {MAX_FILTERS}, those within others included"
        if characters > MAX_FILTER_CHARACTERS:
            return too_long("the filters")
    return None


def too_long(subject: str) -> str:
    """Return the sentence that says that something has more than `MAX_FILTER_CHARACTERS`.
    `subject` names it, in the plural, such as "the filters"."""
    return f"{subject} are too large: want at most {MAX_FILTER_CHARACTERS} characters in all"


def characters_of(document: object, enough: int) -> int:
    """Return the number of characters of all keys and texts in decoded JSON. Counting ends once
    `enough` characters were counted, and the rest is left out of the result."""
    characters, remaining = 0, [document]
    while remaining and characters < enough:
        match remaining.pop():
            case str(text):
                characters += len(text)
            case Mapping() as fields:
                characters += sum(map(len, fields))
                remaining += fields.values()
            case list() | tuple() as entries:
                remaining += entries
    return characters


def _filter_parts(filters: object) -> Iterator[tuple[int, object, bool]]:
    """Yield each part of declared filters: its depth (1 for the outermost), its value (None for a
    filter), and whether it is a filter. The other parts are dialects, names and values, whose
    characters are to be counted."""
    remaining: list[tuple[int, object]] = [(1, condition) for condition in _as_list(filters)]
    while remaining:
        depth, declared = remaining.pop()
        yield depth, None, True
        if not isinstance(declared, Mapping):
            continue
        for dialect, value in declared.items():
            yield depth, dialect, False
            inner = _filters_within(dialect, value) if is_dialect(dialect) else None
            if inner is not None:
                remaining += [(depth + 1, condition) for condition in inner]
            elif isinstance(value, Mapping):
                for name, attribute_value in value.items():
                    yield depth, name, False
                    yield depth, attribute_value, False
            else:
                yield depth, value, False


def _filters_within(dialect: Dialect, value: object) -> Sequence[object] | None:
    """Return the filters that are nested in a filter of this dialect with this value; None: filters
    of this dialect contain no other filters."""
    match dialect:
        case "all" | "any":
            return _as_list(value)
        case "not":
            return (value,)
        case "exact" | "prefix" | "suffix" | "cesql":
            return None
        case _:
            assert_never(dialect)


def _as_list(value: object) -> Sequence[object]:
    """Return the value if it is a list, else an empty sequence."""
    return value if isinstance(value, list | tuple) else ()


def _refuse_large_filters(filters: object) -> object:
    """Return the declared filters unchanged; raise an error if they exceed a limit."""
    if (exceeded_limit := beyond_limits(filters)) is not None:
        raise problem(exceeded_limit)
    return filters


def _refuse_large_attributes(declared: object) -> object:
    """Return a declared filter unchanged; raise an error if its attributes have more than
    `MAX_FILTER_CHARACTERS` characters."""
    if characters_of(declared, MAX_FILTER_CHARACTERS + 1) > MAX_FILTER_CHARACTERS:
        raise problem(too_long("the attributes"))
    return declared


DeclaredFilters: TypeAlias = Annotated[tuple[Filter, ...], BeforeValidator(_refuse_large_filters)]
"""Filters as an object declares them (KN-TRG-10)."""
DeclaredAttributes: TypeAlias = Annotated[
    AttributesFilter, BeforeValidator(_refuse_large_attributes)
]
"""A filter of the older form, as an object declares it (KN-TRG-08)."""
