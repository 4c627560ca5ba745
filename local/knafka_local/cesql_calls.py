"""Functions that CESQL expressions call and that aren't there.

Admission lets them pass, as CloudEvents has it: an expression is valid whatever it calls, and each
evaluation ends with an error, which no filter takes for true.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Final

from knafka.core.cesql.functions import resolve
from knafka.core.cesql.parser import parse
from knafka.core.cesql.syntax import Call, Chain, Node, Unary
from knafka.core.contract import CESQL, All, Any_, Filter, Not

FUNCTIONS: Final = (
    *("ABS", "BOOL", "CONCAT", "CONCAT_WS", "INT", "IS_BOOL", "IS_INT", "LEFT", "LENGTH"),
    *("LOWER", "RIGHT", "STRING", "SUBSTRING", "TRIM", "UPPER"),
)
"""Those of CESQL 1.0, §3.4."""
MOST_ARGUMENTS: Final = 4
"""More than any of them needs."""


def missing_functions(filters: Sequence[Filter], path: str) -> Iterator[str]:
    """A sentence for each call of a function that there is not, or not with so many arguments."""
    for index, each in enumerate(filters):
        yield from _of(each, f"{path}[{index}]")


def _of(spec: Filter, path: str) -> Iterator[str]:
    match spec:
        case All(all=inner):
            yield from missing_functions(inner, f"{path}.all")
        case Any_(any=inner):
            yield from missing_functions(inner, f"{path}.any")
        case Not(not_=inner_filter):
            yield from _of(inner_filter, f"{path}.not")
        case CESQL(cesql=text):
            for call in _calls(parse(text)):
                if resolve(call.name, len(call.arguments)) is None:
                    yield f"{path}.cesql: {_problem(call)}"


def _problem(call: Call) -> str:
    if any(resolve(call.name, count) for count in range(MOST_ARGUMENTS + 1)):
        return f"the function {call.name} does not take {len(call.arguments)} arguments"
    close = get_close_matches(call.name, FUNCTIONS, 1)
    meant = f"did you mean {close[0]}?" if close else f"there is {', '.join(FUNCTIONS)}"
    return f"there is no function {call.name}; {meant}"


def _calls(node: Node) -> Iterator[Call]:
    match node:
        case Call(arguments=arguments):
            yield node
            for each in arguments:
                yield from _calls(each)
        case Unary(operand=operand):
            yield from _calls(operand)
        case Chain(first=first, steps=steps):
            for each in (first, *(operand for step in steps for operand in step.operands)):
                yield from _calls(each)
