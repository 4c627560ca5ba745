"""Functions that CESQL expressions call and that aren't there.

Admission lets them pass, as CloudEvents has it: an expression is valid whatever it calls, and each
evaluation ends with an error, which no filter takes for true.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import get_close_matches

from knafka.core.cesql.functions import names, resolve
from knafka.core.cesql.parser import parse
from knafka.core.cesql.syntax import Call, Chain, Node, Unary
from knafka.core.contract import Filter
from knafka.core.filters import expressions


def missing_functions(filters: Sequence[Filter], path: str) -> Iterator[str]:
    """A sentence for each call of a function that there is not, or not with so many arguments."""
    for where, text in expressions(filters, path):
        for call in _calls(parse(text)):
            if resolve(call.name, len(call.arguments)) is None:
                yield f"{where}: {_problem(call)}"


def _problem(call: Call) -> str:
    if call.name in names():
        return f"the function {call.name} does not take {len(call.arguments)} arguments"
    close = get_close_matches(call.name, names(), 1)
    meant = f"did you mean {close[0]}?" if close else f"there is {', '.join(names())}"
    return f"there is no function {call.name}; {meant}"


def _calls(node: Node) -> Iterator[Call]:
    match node:
        case Call(arguments=arguments):
            yield node
            for inner in arguments:
                yield from _calls(inner)
        case Unary(operand=operand):
            yield from _calls(operand)
        case Chain(first=first, steps=steps):
            for inner in (first, *(operand for step in steps for operand in step.operands)):
                yield from _calls(inner)
