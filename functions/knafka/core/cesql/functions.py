"""The arithmetic operators and the built-in functions (§3.4, §3.5).

The functions get arguments of the right types; for an argument that is out of range they raise
`Failed`. A result that doesn't fit into 32 bits is a math error, and is never wrapped. There are no
user-defined functions.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from knafka.core.cesql.effort import FREE_LENGTH, spend
from knafka.core.cesql.errors import Exhausted, Failed
from knafka.core.cesql.types import Value
from knafka.core.cesql.values import (
    INTEGER_MAX,
    INTEGER_MIN,
    as_boolean,
    as_integer,
    as_string,
)

_WHITESPACE: Final = (
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)
"""Unicode's White_Space; Python's own `strip` also takes the separators U+001C to U+001F."""

Cast = Callable[[Value], Value]
"""Converts an argument to the type that a function takes; raises `Failed` if it can't be
converted."""


@dataclass(frozen=True, slots=True)
class Function:
    """A built-in function."""

    body: Callable[..., Value]
    """Computes the value from the cast arguments; may raise `Failed`."""
    parameters: tuple[Cast, ...]
    """Casts of the arguments that a call must have."""
    returns: type[str] | type[int] | type[bool]
    """Type of the function's value."""
    rest: Cast | None = None
    """Cast of any further arguments; None: there may be none."""


def names() -> Sequence[str]:
    """Return the names of all functions (§3.4)."""
    return sorted(_BUILT_IN)


def resolve(name: str, arity: int) -> Function | None:
    """Return the function of this name (in upper case) that takes `arity` arguments; None: there is
    no such function."""
    for function in _BUILT_IN.get(name, ()):
        required = len(function.parameters)
        if arity == required or (arity > required and function.rest is not None):
            return function
    return None


def negate(number: int) -> int:
    """Return the number with the opposite sign. Raises `Failed` (math) if it doesn't fit into 32
    bits."""
    return _check_range(-number)


def divide(dividend: int, divisor: int) -> int:
    """Return the quotient, rounded towards zero. Raises `Failed` (math) if the divisor is 0, or if
    the quotient doesn't fit into 32 bits."""
    if divisor == 0:
        raise Failed("math", f"division of {dividend} by zero")
    quotient = abs(dividend) // abs(divisor)  # Python's `//` alone would round downwards
    have_same_sign = (dividend < 0) == (divisor < 0)
    return _check_range(quotient if have_same_sign else -quotient)


def remainder(dividend: int, divisor: int) -> int:
    """Return the remainder of a division, with the dividend's sign. Raises `Failed` (math) if the
    divisor is 0."""
    if divisor == 0:
        raise Failed("math", f"remainder of {dividend} by zero")
    magnitude = abs(dividend) % abs(divisor)
    return -magnitude if dividend < 0 else magnitude


ARITHMETIC: Final[dict[str, Callable[[int, int], int]]] = {
    "+": lambda left, right: _check_range(left + right),
    "-": lambda left, right: _check_range(left - right),
    "*": lambda left, right: _check_range(left * right),
    "/": divide,
    "%": remainder,
}
"""The arithmetic operators; each raises `Failed` (math) if its result doesn't fit into 32 bits."""

COMPARISONS: Final[dict[str, Callable[[int, int], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
"""The ordering operators."""


def _check_range(number: int) -> int:
    """Return the number unchanged. Raises `Failed` (math) if it doesn't fit into 32 bits."""
    if not INTEGER_MIN <= number <= INTEGER_MAX:
        raise Failed("math", f"{number} does not fit into 32 bits")
    return number


def _absolute(number: int) -> int:
    """ABS (§3.4): return the absolute value. Raises `Failed` (math) for the least integer, whose
    absolute value doesn't fit into 32 bits."""
    if number == INTEGER_MIN:
        # The spec wants the largest integer as the value that comes with this error.
        raise Failed("math", f"ABS of {number} does not fit into 32 bits", INTEGER_MAX)
    return abs(number)


def _count_effort(text: str) -> str:
    """Count the text's length as effort, and return the text unchanged. Raises `Exhausted` if that
    is too much effort."""
    if len(text) > FREE_LENGTH:
        spend(len(text))
    return text


def _join(separator: str, texts: Sequence[str]) -> str:
    """CONCAT and CONCAT_WS (§3.4): return the texts, joined by `separator`, after counting the
    result's approximate length as effort. Raises `Exhausted` if that is too much effort."""
    length = sum(map(len, texts)) + len(separator) * len(texts)
    if length > FREE_LENGTH:
        spend(length)
    return separator.join(texts)


def _left(text: str, length: int) -> str:
    """LEFT (§3.4): return the first `length` characters. Raises `Failed` for a negative length; the
    value that comes with the error is the whole text."""
    if length < 0:
        raise Failed("functionEvaluation", f"LEFT takes no negative length: {length}", text)
    return _count_effort(text)[:length]


def _right(text: str, length: int) -> str:
    """RIGHT (§3.4): return the last `length` characters. Raises `Failed` for a negative length; the
    value that comes with the error is the whole text."""
    if length < 0:
        raise Failed("functionEvaluation", f"RIGHT takes no negative length: {length}", text)
    return _count_effort(text)[max(len(text) - length, 0) :]


def _substring(text: str, position: int, length: int = INTEGER_MAX) -> str:
    """SUBSTRING (§3.4): return up to `length` characters from `position` on. Positions count from
    1, negative ones from the end; position 0 gives an empty text. Raises `Failed` for a negative
    length, or a position beyond the text."""
    if length < 0:
        raise Failed("functionEvaluation", f"SUBSTRING takes no negative length: {length}")
    if not -len(text) <= position <= len(text):
        raise Failed("functionEvaluation", f"SUBSTRING has no position {position} to start from")
    if position == 0:
        return ""
    start = position - 1 if position > 0 else len(text) + position
    return _count_effort(text)[start : start + length]


def _castable_test(cast: Cast) -> Callable[[Value], bool]:
    """Return the function that tests whether `cast` accepts a value (IS_INT and IS_BOOL, §3.4)."""

    def is_castable(value: Value) -> bool:
        """Return whether `cast` accepts the value. Raises `Exhausted` if reading the value takes
        too much effort."""
        try:
            cast(value)
        except Exhausted:  # a kind of `Failed` that says nothing about the value
            raise
        except Failed:
            return False
        return True

    return is_castable


def _identity(value: Value) -> Value:
    """Return the value unchanged: the body of INT, BOOL and STRING (§3.4), whose argument is cast
    already, and the cast of an argument of any type."""
    return value


# The functions of one name differ in the number of their arguments.
_BUILT_IN: Final[dict[str, tuple[Function, ...]]] = {
    "LENGTH": (Function(len, (as_string,), int),),
    "CONCAT": (Function(lambda *texts: _join("", texts), (), str, rest=as_string),),
    "CONCAT_WS": (
        Function(lambda glue, *texts: _join(glue, texts), (as_string,), str, rest=as_string),
    ),
    "LOWER": (Function(lambda text: _count_effort(text).lower(), (as_string,), str),),
    "UPPER": (Function(lambda text: _count_effort(text).upper(), (as_string,), str),),
    "TRIM": (Function(lambda text: _count_effort(text).strip(_WHITESPACE), (as_string,), str),),
    "LEFT": (Function(_left, (as_string, as_integer), str),),
    "RIGHT": (Function(_right, (as_string, as_integer), str),),
    "SUBSTRING": (
        Function(_substring, (as_string, as_integer), str),
        Function(_substring, (as_string, as_integer, as_integer), str),
    ),
    "ABS": (Function(_absolute, (as_integer,), int),),
    "INT": (Function(_identity, (as_integer,), int),),
    "BOOL": (Function(_identity, (as_boolean,), bool),),
    "STRING": (Function(_identity, (as_string,), str),),
    "IS_INT": (Function(_castable_test(as_integer), (_identity,), bool),),
    "IS_BOOL": (Function(_castable_test(as_boolean), (_identity,), bool),),
}
