"""CloudEvents SQL 1.0 (CESQL): expressions over the attributes of an event.

    text -> lexer -> parser -> syntax (AST) -> evaluation (closures) -> Expression

An expression is parsed once and evaluated per event, in the spec's fail-fast mode (§4.1), as it
asks of filters: the first error ends the evaluation. To read or make too much is an error, too
(`effort`): a neighbour's events wait meanwhile. It refuses user-defined functions, and to
read an event's data. Beyond the letter of the spec, attribute names may be written in any case
(no CloudEvents attribute has an upper-case letter), as every other SDK allows.

Two rules of the spec surprise those who know SQL: `NOT a = b` is `(NOT a) = b`, and AND, OR and
XOR bind equally tight, left to right (§3.6).
"""

from __future__ import annotations

from knafka.core.cesql.effort import MAX_EFFORT
from knafka.core.cesql.errors import ErrorKind, EvaluationError
from knafka.core.cesql.expression import Evaluation, Expression, compile_expression
from knafka.core.cesql.lexer import MAX_LENGTH
from knafka.core.cesql.parser import MAX_DEPTH
from knafka.core.cesql.types import Value

__all__ = [
    "MAX_DEPTH",
    "MAX_EFFORT",
    "MAX_LENGTH",
    "ErrorKind",
    "Evaluation",
    "EvaluationError",
    "Expression",
    "Value",
    "compile_expression",
]
