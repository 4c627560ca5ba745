"""Compiles a Trigger's filters into a predicate over attributes, and explains why one refuses an
event.

A predicate is compiled once and called per event; it never raises. It depends on neither Kafka nor
HTTP (BRK-24), and sees attributes only, never data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias, assert_never

from knafka.core import cesql
from knafka.core.events.event import Attributes
from knafka.core.filters.declared_filters import (
    CESQL,
    All,
    Any_,
    AttributesFilter,
    Exact,
    Filter,
    Not,
    Prefix,
    Suffix,
)

Predicate: TypeAlias = Callable[[Attributes], bool]
"""A compiled filter: whether an event with these attributes passes."""

CountError: TypeAlias = Callable[[cesql.ErrorKind], None]
"""Called for each evaluation of an expression that ends with an error."""


def _ignore(kind: cesql.ErrorKind) -> None:
    """Count nothing: the default `CountError`."""


def compile_trigger(
    attributes: AttributesFilter, filters: tuple[Filter, ...], count_error: CountError = _ignore
) -> Predicate:
    """Compile the whole filter of a Trigger: `filters` if there are any, else the older form,
    `attributes` (KN-TRG-10). `count_error` is called for each evaluation of a CESQL expression that
    ends with an error."""
    if filters:
        return _compile_all(tuple(compile_filter(spec, count_error) for spec in filters))
    return compile_attributes(attributes)


def compile_attributes(declared_filter: AttributesFilter) -> Predicate:
    """Compile a filter of the older form: an event passes if it has every declared attribute with
    the declared value. A declared value that is empty stands for any value but an empty one
    (KN-TRG-08)."""
    if not declared_filter.attributes:
        return lambda event: True
    return _compile_comparison(
        declared_filter.attributes,
        lambda value, declared: bool(value) and declared in ("", value),
    )


def compile_filter(spec: Filter, count_error: CountError = _ignore) -> Predicate:
    """Compile one declared filter into a predicate (KN-TRG-10). `count_error` is called for each
    evaluation of a CESQL expression that ends with an error."""
    match spec:
        case Exact(exact=declared_values):
            return _compile_comparison(declared_values, str.__eq__)
        case Prefix(prefix=declared_values):
            return _compile_comparison(declared_values, str.startswith)
        case Suffix(suffix=declared_values):
            return _compile_comparison(declared_values, str.endswith)
        case All(all=inner):
            return _compile_all(tuple(compile_filter(part, count_error) for part in inner))
        case Any_(any=inner):
            return _compile_any(tuple(compile_filter(part, count_error) for part in inner))
        case Not(not_=inner_filter):
            passes = compile_filter(inner_filter, count_error)
            return lambda event: not passes(event)
        case CESQL(cesql=expression):
            return cesql.compile_expression(expression).predicate(count_error)
        case _:
            assert_never(spec)


def never_true(filters: Sequence[Filter], path: str) -> Iterator[tuple[str, str]]:
    """Yield path and problem of each CESQL expression in `filters` that is true of no event,
    because it returns a string or an integer. `path` is the path of the list `filters` in its
    object, such as `spec.filters`."""
    for expression_path, text in expressions(filters, path):
        returns = cesql.compile_expression(text).returns
        if returns is not bool:
            returned = "a string" if returns is str else "an integer"
            yield expression_path, f"{text} returns {returned}, which no filter takes for true"


def expressions(filters: Sequence[Filter], path: str) -> Iterator[tuple[str, str]]:
    """Yield path and text of each CESQL expression in `filters`, also in nested filters. `path` is
    the path of the list `filters` in its object, such as `spec.filters`."""
    for index, spec in enumerate(filters):
        yield from _expressions_in_filter(spec, f"{path}[{index}]")


def _expressions_in_filter(spec: Filter, path: str) -> Iterator[tuple[str, str]]:
    """Yield path and text of the CESQL expressions within the filter at `path`."""
    match spec:
        case All(all=inner):
            yield from expressions(inner, f"{path}.all")
        case Any_(any=inner):
            yield from expressions(inner, f"{path}.any")
        case Not(not_=inner_filter):
            yield from _expressions_in_filter(inner_filter, f"{path}.not")
        case CESQL(cesql=text):
            yield f"{path}.cesql", text
        case Exact() | Prefix() | Suffix():
            pass
        case _:
            assert_never(spec)


def why_not(
    attributes_filter: AttributesFilter, filters: tuple[Filter, ...], event: Attributes
) -> tuple[str, ...]:
    """Return the reasons why a Trigger's filter refuses an event with these attributes, `event`,
    each as a sentence; empty if the event passes. `attributes_filter`, the older form, counts only
    without `filters`."""
    if filters:
        return tuple(
            f"filters[{index}]{reason}"
            for index, spec in enumerate(filters)
            for reason in _mismatch_reasons(spec, event)
        )
    return tuple(
        f"filter.attributes.{name}: {_described_value(name, event)},"
        f" want {declared or 'any value'!r}"
        for name, declared in attributes_filter.attributes.items()
        if not compile_attributes(AttributesFilter(attributes={name: declared}))(event)
    )


def _mismatch_reasons(spec: Filter, event: Attributes) -> Iterator[str]:
    """Yield the reasons why a filter doesn't match an event; nothing if it matches. Each reason
    begins with its path within the filter, such as `.exact.type`."""
    if compile_filter(spec)(event):
        return
    match spec:
        case Exact(exact=declared_values):
            yield from _attribute_refusals("exact", declared_values, str.__eq__, event)
        case Prefix(prefix=declared_values):
            yield from _attribute_refusals("prefix", declared_values, str.startswith, event)
        case Suffix(suffix=declared_values):
            yield from _attribute_refusals("suffix", declared_values, str.endswith, event)
        case All(all=inner):
            for index, part in enumerate(inner):
                yield from (f".all[{index}]{reason}" for reason in _mismatch_reasons(part, event))
        case Any_(any=inner):
            for index, part in enumerate(inner):
                yield from (f".any[{index}]{reason}" for reason in _mismatch_reasons(part, event))
        case Not():
            yield ".not: what it negates matches"
        case CESQL(cesql=text):
            clauses = cesql.compile_expression(text).explain(event)
            yield f".cesql: {' and '.join(clauses) or text} is not true"
        case _:
            assert_never(spec)


def _attribute_refusals(
    dialect: str,
    declared_values: Mapping[str, str],
    test: Callable[[str, str], bool],
    event: Attributes,
) -> Iterator[str]:
    """Yield a reason for each declared attribute that the event lacks, or for whose value `test`
    returns False. `test` gets the event's value and the declared one. `dialect`: the filter's, such
    as `exact`."""
    for name, declared in declared_values.items():
        if name not in event or not test(event[name], declared):
            yield f".{dialect}.{name}: {_described_value(name, event)}, want {declared!r}"


def _described_value(name: str, event: Attributes) -> str:
    """Return the clause that says which value the event's attribute has, or that it is missing."""
    return f"the event has {event[name]!r}" if name in event else "the event has no such attribute"


def _compile_comparison(
    declared_values: Mapping[str, str], test: Callable[[str, str], bool]
) -> Predicate:
    """Compile a predicate: an event passes if it has every attribute of `declared_values`, and
    `test` returns True for each attribute's value and declared value (in this order)."""
    pairs = tuple(declared_values.items())
    if len(pairs) == 1:  # a single attribute needs no loop
        ((name, declared),) = pairs
        return lambda event: (value := event.get(name)) is not None and test(value, declared)

    def passes(event: Attributes) -> bool:
        """Return whether the event has every attribute in `pairs`, with a value that passes
        `test`."""
        for name, declared in pairs:
            value = event.get(name)
            if value is None or not test(value, declared):
                return False
        return True

    return passes


def _compile_all(predicates: tuple[Predicate, ...]) -> Predicate:
    """Compile the conjunction of predicates: an event passes if it passes all of them."""
    if len(predicates) == 1:
        return predicates[0]
    return lambda event: all(passes(event) for passes in predicates)


def _compile_any(predicates: tuple[Predicate, ...]) -> Predicate:
    """Compile the disjunction of predicates: an event passes if it passes any of them."""
    if len(predicates) == 1:
        return predicates[0]
    return lambda event: any(passes(event) for passes in predicates)
