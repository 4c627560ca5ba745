"""Errors of an evaluation, and the exceptions that end it (§3.3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from knafka.core.cesql.types import Value

ErrorKind: TypeAlias = Literal[
    "math", "cast", "missingAttribute", "missingFunction", "functionEvaluation", "generic"
]
"""The error types of §3.3, named as its conformance suite names them."""


@dataclass(frozen=True, slots=True)
class EvaluationError:
    """Why an evaluation failed; `message` is one sentence for a person."""

    kind: ErrorKind
    message: str


class Failed(Exception):
    """Ends an evaluation with an error; this exception never leaves the package.

    `value`: what the evaluation returns beside the error; None: the zero value of the expression's
    type. It counts only if `origin`, the syntax node that failed, is the whole expression: every
    operator around a failed node returns its own type's zero value.
    """

    def __init__(self, kind: ErrorKind, message: str, value: Value | None = None) -> None:
        """Create the failure; `message` explains it to the expression's author."""
        super().__init__(message)
        self.error = EvaluationError(kind, message)
        self.value = value
        self.origin: object = None
        """The syntax node that failed; None: unknown."""


class Exhausted(Failed):
    """Ends an evaluation that has read and made more text than `effort.MAX_EFFORT` allows. A CESQL
    function that catches `Failed`, such as IS_INT, must not catch this error."""

    def __init__(self, message: str) -> None:
        super().__init__("generic", message)  # the spec has no kind of its own for such a limit
