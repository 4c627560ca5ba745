"""Nodes of an expression's syntax tree, as it was written.

The shape of the tree replaces parentheses. `parser` makes the tree, `evaluation` compiles it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from knafka.core.cesql.types import Value


@dataclass(frozen=True, slots=True)
class Literal:
    """A value that is written in the expression."""

    value: Value


@dataclass(frozen=True, slots=True)
class Attribute:
    """The value of the attribute `name`, which is in lower case."""

    name: str


@dataclass(frozen=True, slots=True)
class Exists:
    """Whether the event has the attribute `name` (`EXISTS name`); `name` is in lower case."""

    name: str


@dataclass(frozen=True, slots=True)
class Unary:
    """A prefix operator, NOT or -, with its operand."""

    operator: str
    operand: Node


@dataclass(frozen=True, slots=True)
class Call:
    """A function call. `name` is in upper case; a function of this name need not exist."""

    name: str
    arguments: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class InfixStep:
    """An infix operator and its right side: one operand, or the elements of the set of an IN.

    `start` and `end` are the positions of the right side in the expression, parentheses included.
    """

    operator: str
    operands: tuple[Node, ...]
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Chain:
    """Infix operators of one precedence, applied left to right: `first op a op b ...`.

    A chain of any length is one node, so that long chains don't nest. `start` and `end` are the
    positions of `first` in the expression.
    """

    first: Node
    steps: tuple[InfixStep, ...]
    start: int
    end: int

    def joined_by(self, operator: str) -> bool:
        """Whether all operators of the chain are `operator`."""
        return all(step.operator == operator for step in self.steps)


Node: TypeAlias = Literal | Attribute | Exists | Unary | Call | Chain
