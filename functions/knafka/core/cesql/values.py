"""The three types of CESQL and the casts between them (§3.1, §3.7).

A string can be cast to an Integer or a Boolean only in the forms that the spec names.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from knafka.core.cesql.effort import FREE_LENGTH, spend
from knafka.core.cesql.errors import Failed
from knafka.core.cesql.types import Value

INTEGER_MIN: Final = -(2**31)
INTEGER_MAX: Final = 2**31 - 1
"""The least and the largest Integer, of 32 bits."""

ZERO: Final[dict[type, Value]] = {str: "", int: 0, bool: False}
"""The zero value of each type, which a failed expression returns (§3.1)."""

_MAX_QUOTED: Final = 80
"""Most characters of a value that an error message quotes; attributes may be kilobytes long."""

_match_integer = re.compile(r"([+-]?)0*+([0-9]{1,10})").fullmatch
"""Matches an integer other than zero, of at most 10 digits; the groups are the sign and the digits
without leading zeros."""
_match_zero = re.compile(r"[+-]?0++").fullmatch


def as_string(value: Value) -> str:
    """Cast a value to a string: a Boolean becomes `true` or `false`, an integer its decimal
    digits."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def as_integer(value: Value) -> int:
    """Cast a value to an integer: True becomes 1, False 0. Raises `Failed` (cast) for a string that
    isn't a decimal 32-bit integer. Raises `Exhausted` if reading a long string takes too much
    effort."""
    if not isinstance(value, str):
        return int(value)
    if len(value) > FREE_LENGTH:
        spend(len(value))
    if parts := _match_integer(value):
        # Sign and digits without leading zeros, as int() refuses thousands of them.
        number = int(parts[1] + parts[2])
        if INTEGER_MIN <= number <= INTEGER_MAX:
            return number
    elif _match_zero(value):
        return 0
    raise Failed("cast", f"{value[:_MAX_QUOTED]!r} is not an Integer")


def as_boolean(value: Value) -> bool:
    """Cast a value to a Boolean: 0 becomes False, any other integer True. A string must be `true`
    or `false`, in upper or lower case. Raises `Failed` (cast) for any other string."""
    if not isinstance(value, str):
        return bool(value)
    is_short = len(value) <= len("false")  # no long text is converted to lower case
    match value.lower() if is_short else "":
        case "true":
            return True
        case "false":
            return False
    raise Failed("cast", f"{value[:_MAX_QUOTED]!r} is not a Boolean")


CASTS: Final[dict[type, Callable[[Value], Value]]] = {
    str: as_string,
    int: as_integer,
    bool: as_boolean,
}
"""The cast to each type."""
