"""Turns the options `--filter CESQL` and `--attribute NAME=VALUE` into predicates."""

from __future__ import annotations

from collections.abc import Sequence

from knafka.core.documents import parse
from knafka.core.errors import InvalidDocument
from knafka.core.events.event import Attributes
from knafka.core.filters.declared_filters import CESQL, AttributesFilter
from knafka.core.filters.predicates import Predicate, compile_attributes, compile_filter, never_true
from knafka_cli.shared.cesql_calls import missing_functions


def expression_predicate(text: str) -> Predicate:
    """Return the predicate of a CESQL expression: a function that takes an event's attributes and
    returns whether the expression is true.

    Raises `InvalidDocument` with the position of a syntax error, and for an expression that can
    never be true or calls an unknown function.
    """
    try:
        spec = parse(CESQL, {"cesql": text})
    except InvalidDocument as error:
        raise InvalidDocument("", f"--filter {text}: {error.problem}") from None
    # One sentence is enough: the first problem ends the command.
    for _, problem in never_true([spec], ""):
        raise InvalidDocument("", f"--filter {problem}")
    for problem in missing_functions([spec], "--filter"):
        problem_text = problem.partition(": ")[2]  # without the path
        raise InvalidDocument("", f"--filter {text}: {problem_text}")
    return compile_filter(spec)


def attributes_predicate(pairs: Sequence[str]) -> Predicate:
    """Return a predicate that requires all of these attributes: `name=value`, or `name` with any
    value.

    Raises `InvalidDocument` if a name is given twice or isn't one of an attribute.
    """
    by_name: dict[str, str] = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        if name in by_name:
            raise InvalidDocument("", f"--attribute {name} is given twice: an event has it once")
        by_name[name] = value
    try:
        return compile_attributes(parse(AttributesFilter, {"attributes": by_name}))
    except InvalidDocument as error:
        raise InvalidDocument("", f"--attribute NAME=VALUE: {error.problem}") from None


def all_of(predicates: Sequence[Predicate]) -> Predicate | None:
    """Return one predicate that is true for an event if all of these are; None if the sequence is
    empty."""

    def passes_all(event: Attributes) -> bool:
        """Whether an event passes all predicates."""
        return all(predicate(event) for predicate in predicates)

    return passes_all if predicates else None
