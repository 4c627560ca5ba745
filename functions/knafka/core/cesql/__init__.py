"""CloudEvents SQL 1.0 (CESQL): expressions over the attributes of an event.

    text -> lexer -> parser -> syntax (AST) -> evaluation (closures) -> Expression

An expression is parsed once and evaluated per event, in the spec's fail-fast mode, which it
requires of filters (§4.1): the first error ends the evaluation. An evaluation that reads or makes
too much text fails, too (`effort`), as other Triggers' events wait meanwhile. There are no
user-defined functions, and expressions can't read an event's data. Beyond the letter of the spec,
attribute names may be written in any case (no CloudEvents attribute has an upper-case letter), as
every other SDK allows.

Two rules of the spec surprise those who know SQL: `NOT a = b` is `(NOT a) = b`, and AND, OR and
XOR bind equally tight, left to right (§3.6).
"""

from __future__ import annotations

from knafka.core.cesql.effort import MAX_EFFORT, shared_effort, spend
from knafka.core.cesql.errors import ErrorKind, EvaluationError, Exhausted
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
    "Exhausted",
    "Expression",
    "Value",
    "compile_expression",
    "shared_effort",
    "spend",
]
