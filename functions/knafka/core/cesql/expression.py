"""The package's public interface: compiled expressions and the results of their evaluation.

Evaluation never raises: errors are returned as values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

from knafka.core.cesql.effort import EFFORT_SPENT, forget_spent
from knafka.core.cesql.errors import ErrorKind, EvaluationError, Failed
from knafka.core.cesql.evaluation import Evaluate, compile_node, compile_test, type_of
from knafka.core.cesql.parser import parse
from knafka.core.cesql.syntax import Chain, Node
from knafka.core.cesql.types import Value
from knafka.core.cesql.values import ZERO

Attributes: TypeAlias = Mapping[str, Value]
"""An event's attributes by name."""


class Evaluation(NamedTuple):
    """The result of one evaluation of an expression."""

    value: Value
    """The expression's value; if there is an error, usually the zero value of its type (§3.3)."""
    errors: tuple[EvaluationError, ...] = ()
    """The error that ended the evaluation; empty: there was none."""


class Expression:
    """An expression, ready to be evaluated any number of times; `text` is its source."""

    __slots__ = ("_evaluate", "_syntax", "text")

    def __init__(self, text: str, syntax: Node) -> None:
        """Compile the expression; `syntax` is the tree that `parse` has made of `text`."""
        self.text = text
        self._syntax = syntax
        self._evaluate = compile_node(syntax)

    def __repr__(self) -> str:
        return f"Expression({self.text!r})"

    def evaluate(self, attributes: Mapping[str, Value]) -> Evaluation:
        """Return the expression's value for an event's attributes, and the error that ended the
        evaluation, if there was one. Never raises."""
        if EFFORT_SPENT:
            forget_spent()
        try:
            return Evaluation(self._evaluate(attributes))
        except Failed as failure:
            return Evaluation(self._value_of_failed(failure), (failure.error,))

    @property
    def returns(self) -> type[str] | type[int] | type[bool]:
        """The type of the expression's value, if the evaluation doesn't fail; a bare attribute
        counts as a string."""
        return type_of(self._syntax) or str

    def predicate(self, count_error: Callable[[ErrorKind], None]) -> Callable[[Attributes], bool]:
        """Return a function that tests whether the expression is true of an event's attributes: its
        value is the Boolean true, without an error (KN-TRG-10). The function never raises; it calls
        `count_error` with the kind of an error that ends an evaluation."""
        evaluate = self._evaluate

        def matches(attributes: Attributes) -> bool:
            """Return whether the value is the Boolean true. If the evaluation fails, call
            `count_error` and return False."""
            if EFFORT_SPENT:
                forget_spent()
            try:
                return evaluate(attributes) is True
            except Failed as failure:
                count_error(failure.error.kind)
                return False

        return matches

    def matches(self, attributes: Attributes) -> bool:
        """Whether the expression is true of these attributes: its value is the Boolean true,
        without an error (KN-TRG-10)."""
        return self.predicate(lambda _: None)(attributes)

    def explain(self, attributes: Mapping[str, Value]) -> tuple[str, ...]:
        """Return the text of each operand of the outermost AND that isn't true, followed by its
        error if there is one. Without an AND, the only operand is the whole expression. Empty if
        and only if the expression is true of these attributes.

        All operands are evaluated, also those after the first that isn't true.
        """
        failed_clauses = []
        if EFFORT_SPENT:
            forget_spent()
        for source, evaluate in self._and_clauses():
            try:
                if evaluate(attributes) is not True:
                    failed_clauses.append(source)
            except Failed as failure:
                failed_clauses.append(f"{source}: {failure.error.message}")
        return tuple(failed_clauses)

    def _and_clauses(self) -> list[tuple[str, Evaluate]]:
        """Return the text and the compiled test of each operand of the outermost AND. If the
        outermost operator is no AND, the only clause is the whole expression."""
        match self._syntax:
            case Chain(first, steps, start, end) as chain if chain.joined_by("AND"):
                further_clauses = (
                    (self.text[step.start : step.end], step.operands[0]) for step in steps
                )
                clauses = [(self.text[start:end], first), *further_clauses]
                return [(source, compile_test(clause)) for source, clause in clauses]
            case _:
                return [(self.text.strip(), self._evaluate)]

    def _value_of_failed(self, failure: Failed) -> Value:
        """Return the value of the expression, whose evaluation failed: the value that came with the
        error if the outermost node failed, else the zero value of the expression's type (Boolean's
        if the type is unknown)."""
        if failure.value is not None and failure.origin is self._syntax:
            return failure.value
        return ZERO[type_of(self._syntax) or bool]


def compile_expression(text: str) -> Expression:
    """Parse and compile an expression. Raises `InvalidExpression`, which has the position of the
    error."""
    return Expression(text, parse(text))
