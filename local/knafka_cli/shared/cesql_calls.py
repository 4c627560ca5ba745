"""Finds calls of functions that don't exist in CESQL expressions.

Admission accepts them, as CloudEvents demands: an expression is valid whatever functions it calls.
But each evaluation ends with an error, so such a filter never matches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import get_close_matches

from knafka.core.cesql.functions import names, resolve
from knafka.core.cesql.parser import parse
from knafka.core.cesql.syntax import Call, Chain, Node, Unary
from knafka.core.filters.declared_filters import Filter
from knafka.core.filters.predicates import expressions


def missing_functions(filters: Sequence[Filter], path: str) -> Iterator[str]:
    """Yield a sentence for each call, in the CESQL of these filters, of a function that doesn't
    exist or doesn't take this number of arguments.

    `path` is the path of the list `filters` in its document, such as `spec.filters`; each sentence
    begins with the path of the expression that has the call.
    """
    for expression_path, text in expressions(filters, path):
        for call in _function_calls(parse(text)):
            if resolve(call.name, len(call.arguments)) is None:
                yield f"{expression_path}: {_call_problem(call)}"


def _call_problem(call: Call) -> str:
    """Return why a call can't be evaluated: its number of arguments is wrong, or there is no such
    function. In the second case, the text names a similar function, or all functions."""
    if call.name in names():
        return f"the function {call.name} does not take {len(call.arguments)} arguments"
    similar = get_close_matches(call.name, names(), 1)
    hint = f"did you mean {similar[0]}?" if similar else f"there is {', '.join(names())}"
    return f"there is no function {call.name}; {hint}"


def _function_calls(node: Node) -> Iterator[Call]:
    """Yield all function calls in the syntax tree of an expression."""
    match node:
        case Call(arguments=arguments):
            yield node
            for inner in arguments:
                yield from _function_calls(inner)
        case Unary(operand=operand):
            yield from _function_calls(operand)
        case Chain(first=first, steps=steps):
            for inner in (first, *(operand for step in steps for operand in step.operands)):
                yield from _function_calls(inner)
