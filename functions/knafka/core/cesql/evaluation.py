"""Compiles a syntax tree into closures that evaluate it (§3).

A closure takes the attributes of an event and returns a value, or raises `Failed`; without an
error nothing is allocated. The closures of a chain don't call each other, so its length doesn't use
Python's stack: only right sides and arguments nest, and the parser limits their depth.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias, cast

from knafka.core.cesql.effort import FREE_LENGTH, spend
from knafka.core.cesql.errors import Failed
from knafka.core.cesql.functions import ARITHMETIC, COMPARISONS, negate, resolve
from knafka.core.cesql.patterns import compile_pattern
from knafka.core.cesql.syntax import Attribute, Call, Chain, Exists, InfixStep, Literal, Node, Unary
from knafka.core.cesql.types import Value
from knafka.core.cesql.values import CASTS, as_boolean, as_integer, as_string

Attributes: TypeAlias = Mapping[str, Value]
"""An event's attributes by name."""
Evaluate: TypeAlias = Callable[[Attributes], Value]
"""A compiled node: returns its value for an event's attributes, or raises `Failed`."""
Test: TypeAlias = Callable[[Attributes], bool]
"""A compiled node whose value is a Boolean."""

Apply: TypeAlias = Callable[[Value, Attributes], Value]
"""A compiled infix operator with its right side: takes the value of the left side and an event's
attributes, and returns the operator's value, or raises `Failed`."""


def type_of(node: Node) -> type | None:
    """Return the type of the value that a node has if its evaluation doesn't fail; None for a bare
    attribute, whose type depends on the event."""
    match node:
        case Literal(value):
            return type(value)
        case Attribute():
            return None
        case Unary("-"):
            return int
        case Call(name, arguments):
            function = resolve(name, len(arguments))
            # A call of an unknown function always fails, with the value False.
            return bool if function is None else function.returns
        case Chain(_, steps) if steps[-1].operator in ARITHMETIC:
            return int
        case _:
            return bool


def compile_node(node: Node) -> Evaluate:
    """Compile a syntax node into a function that returns its value for an event's attributes, or
    raises `Failed`."""
    match node:
        case Literal(value):
            return lambda _: value
        case Attribute(name):
            return _compile_attribute(name)
        case Exists(name):
            return lambda attributes: name in attributes
        case Unary("NOT", operand):
            test = compile_test(operand)
            return lambda attributes: not test(attributes)
        case Unary(_, operand):  # a minus sign
            evaluate = compile_node(operand)
            return lambda attributes: negate(as_integer(evaluate(attributes)))
        case Call():
            return _compile_call(node)
        case _:
            return _compile_chain(node)


def compile_test(node: Node) -> Test:
    """Compile a syntax node into a function that returns its value for an event's attributes, cast
    to a Boolean, or raises `Failed`."""
    evaluate = compile_node(node)
    if type_of(node) is bool:
        return cast(Test, evaluate)
    return lambda attributes: as_boolean(evaluate(attributes))


def _compile_attribute(name: str) -> Evaluate:
    """Compile a bare attribute, whose evaluation fails for an event without it."""

    def evaluate(attributes: Attributes) -> Value:
        """Return the attribute's value. Raises `Failed` (missingAttribute) if the event doesn't
        have it."""
        try:
            return attributes[name]
        except KeyError:
            raise Failed("missingAttribute", f"the event has no attribute {name}") from None

    return evaluate


def _compile_call(call: Call) -> Evaluate:
    """Compile a function call: its arguments are evaluated, cast to the types that the function
    declares, and passed to it."""
    function = resolve(call.name, len(call.arguments))
    if function is None:
        return _compile_missing_function(
            f"no function {call.name} takes {len(call.arguments)} arguments"
        )
    body = function.body
    # `rest` casts all arguments after the declared ones. A function without it has no such
    # arguments, so the list is empty then: `as_string` is for the type checker only.
    rest_casts = [function.rest or as_string] * (len(call.arguments) - len(function.parameters))
    casts = (*function.parameters, *rest_casts)
    arguments = [
        (cast_argument, compile_node(argument))
        for cast_argument, argument in zip(casts, call.arguments, strict=True)
    ]

    def evaluate(attributes: Attributes) -> Value:
        """Return the function's value for the evaluated arguments. Raises `Failed`; if the function
        itself fails, the error's `origin` is the call, as its value counts only if the call is the
        whole expression."""
        values = [
            cast_argument(evaluate_argument(attributes))
            for cast_argument, evaluate_argument in arguments
        ]
        try:
            return body(*values)
        except Failed as failure:
            failure.origin = call
            raise

    return evaluate


def _compile_missing_function(problem: str) -> Evaluate:
    """Compile a call of an unknown function: each evaluation fails with the message `problem`."""

    def evaluate(attributes: Attributes) -> Value:
        """Raise `Failed` (missingFunction)."""
        raise Failed("missingFunction", problem)

    return evaluate


def _compile_chain(chain: Chain) -> Evaluate:
    """Compile a chain of operators, which are applied from left to right. In a chain of only ANDs,
    or only ORs, the evaluation ends at the first operand that decides the result."""
    if chain.joined_by("AND"):
        return _compile_and(_compile_operands(chain))
    if chain.joined_by("OR"):
        return _compile_or(_compile_operands(chain))
    # A chain that begins with a chain is flattened into one, so that its depth doesn't use Python's
    # stack. The outermost chain comes first here, and its steps are applied last.
    first: Node = chain
    steps_by_chain = []
    while isinstance(first, Chain):
        steps_by_chain.append([_compile_step(step) for step in first.steps])
        first = first.first
    steps = [step for chain_steps in reversed(steps_by_chain) for step in chain_steps]
    evaluate_first = compile_node(first)
    if len(steps) == 1:
        (step,) = steps
        return lambda attributes: step(evaluate_first(attributes), attributes)

    def evaluate(attributes: Attributes) -> Value:
        """Evaluate the first operand, apply all operators to it in order, and return the result."""
        value = evaluate_first(attributes)
        for step in steps:
            value = step(value, attributes)
        return value

    return evaluate


def _compile_operands(chain: Chain) -> list[Test]:
    """Compile each operand of a chain of ANDs or ORs into a test, in their order."""
    return [compile_test(chain.first), *(compile_test(step.operands[0]) for step in chain.steps)]


def _compile_and(tests: Sequence[Test]) -> Test:
    """Compile AND: evaluation ends at the first test that is false."""

    def evaluate(attributes: Attributes) -> bool:
        """Return whether all tests are true, evaluated up to the first that is false."""
        for test in tests:
            if not test(attributes):
                return False
        return True

    return evaluate


def _compile_or(tests: Sequence[Test]) -> Test:
    """Compile OR: evaluation ends at the first test that is true."""

    def evaluate(attributes: Attributes) -> bool:
        """Return whether any test is true, evaluated up to the first that is true."""
        for test in tests:
            if test(attributes):
                return True
        return False

    return evaluate


def _compile_step(step: InfixStep) -> Apply:
    """Compile one infix operator with its right operands into a function that applies it to the
    value of its left side."""
    right = step.operands[0]
    match step.operator:
        case "AND":
            and_test = compile_test(right)
            return lambda value, attributes: as_boolean(value) and and_test(attributes)
        case "OR":
            or_test = compile_test(right)
            return lambda value, attributes: as_boolean(value) or or_test(attributes)
        case "XOR":
            xor_test = compile_test(right)
            return lambda value, attributes: xor_test(attributes) is not as_boolean(value)
        case "=":
            return _compile_equality(right, equal=True)
        case "!=" | "<>":
            return _compile_equality(right, equal=False)
        case "LIKE":
            return _compile_like(right, expected=True)
        case "NOT LIKE":
            return _compile_like(right, expected=False)
        case "IN":
            return _compile_membership(step.operands, expected=True)
        case "NOT IN":
            return _compile_membership(step.operands, expected=False)
        case operator:
            return _compile_numeric(ARITHMETIC.get(operator) or COMPARISONS[operator], right)


def _compile_equality(right: Node, *, equal: bool) -> Apply:
    """Compile = (`equal` True) or != (False). Both cast the value of the left side to the type of
    the right side's value (§3.7)."""
    evaluate = compile_node(right)

    def apply(value: Value, attributes: Attributes) -> bool:
        """Return whether `value`, cast to the right operand's type, is equal to it; for != the
        opposite."""
        right_value = evaluate(attributes)
        if type(right_value) is str and len(right_value) > FREE_LENGTH:
            spend(len(right_value))  # the comparison reads the text
        return (CASTS[type(right_value)](value) == right_value) is equal

    return apply


def _compile_numeric(operate: Callable[[int, int], Value], right: Node) -> Apply:
    """Compile an arithmetic or ordering operator: `operate` computes its value from the left and
    the right side, both cast to integers."""
    evaluate = compile_node(right)

    def apply(value: Value, attributes: Attributes) -> Value:
        """Apply the operator to `value` and to the right operand, both cast to integers."""
        right_value = evaluate(attributes)
        return operate(as_integer(value), as_integer(right_value))

    return apply


def _compile_like(pattern: Node, *, expected: bool) -> Apply:
    """Compile LIKE (`expected` True) or NOT LIKE (False) with a literal pattern."""
    assert isinstance(pattern, Literal), "the parser accepts only a literal pattern"
    matches, steps_per_character = compile_pattern(as_string(pattern.value))

    def apply(value: Value, attributes: Attributes) -> bool:
        """Return whether `value`, cast to a string, matches the pattern; for NOT LIKE the
        opposite."""
        text = as_string(value)
        most_steps = len(text) * steps_per_character
        if most_steps > FREE_LENGTH:
            spend(most_steps)
        return matches(text) is expected

    return apply


def _compile_membership(elements: tuple[Node, ...], *, expected: bool) -> Apply:
    """Compile IN (`expected` True) or NOT IN (False). The elements are cast to the left side's type
    one after the other; the first that is equal to it ends the evaluation."""
    literals = [node.value for node in elements if isinstance(node, Literal)]
    if len(literals) == len(elements):
        return _compile_literal_membership(literals, expected=expected)
    evaluates = [compile_node(node) for node in elements]

    def apply(value: Value, attributes: Attributes) -> bool:
        """Return whether an element, cast to the type of `value`, is equal to it; for NOT IN the
        opposite."""
        convert = CASTS[type(value)]
        length = len(value) if isinstance(value, str) else 0
        for evaluate in evaluates:
            if length > FREE_LENGTH:
                spend(length)  # each comparison reads the text
            if convert(evaluate(attributes)) == value:
                return expected
        return not expected

    return apply


def _compile_literal_membership(literals: Sequence[Value], *, expected: bool) -> Apply:
    """Compile IN (`expected` True) or NOT IN (False) with a list of literals, as one set for each
    type that the left side may have."""
    sets = {value_type: _cast_until_failure(literals, value_type) for value_type in CASTS}

    def apply(value: Value, _: Attributes) -> bool:
        """Return whether `value` is in the list; for NOT IN the opposite. Raises `Failed` (cast) if
        it isn't found before an element that can't be cast to its type."""
        members, problem = sets[type(value)]
        if value in members:
            return expected
        if problem is not None:
            raise Failed("cast", problem)
        return not expected

    return apply


def _cast_until_failure(
    literals: Sequence[Value], value_type: type
) -> tuple[frozenset[Value], str | None]:
    """Return the literals, cast to `value_type`, that come before the first one that can't be cast;
    and the error message of that cast (None: all literals can be cast)."""
    members: set[Value] = set()
    for literal in literals:
        try:
            members.add(CASTS[value_type](literal))
        except Failed as failure:
            return frozenset(members), failure.error.message
    return frozenset(members), None
