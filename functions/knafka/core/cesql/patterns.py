"""Compiles patterns of LIKE: `%` matches any characters, `_` one; a backslash before either makes
it literal.

Matching never backtracks over an earlier `%`: the leftmost match of the text between two of them is
as good as any other. Every pattern is valid: any other backslash stands for itself (§3.4.3).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

_piece = re.compile(r"\\([%_])|(.)", re.DOTALL).finditer

SEARCH_STEPS: Final = 8
"""Most steps per character of a search for plain text by `str.find`."""


def compile_pattern(pattern: str) -> tuple[Callable[[str], bool], int]:
    """Return a case-sensitive test of a whole text against `pattern`, and the most steps that it
    takes per character of the text."""
    segments = [""]
    plain = [""]
    has_any = False
    for piece in _piece(pattern):
        match piece[0]:
            case "%":
                segments.append("")
                plain.append("")
            case "_":
                segments[-1] += "."
                has_any = True
            case _:
                segments[-1] += re.escape(piece[1] or piece[2])
                plain[-1] += piece[1] or piece[2]
    if not has_any:
        return _plain_test(plain), SEARCH_STEPS if len(plain) > 2 else 1
    first, *rest = segments
    if not rest:
        return _test(first), 1
    *middle, last = rest
    # An atomic group gives nothing back once it has matched.
    test = _test(f"{first}{''.join(f'(?>.*?{segment})' for segment in middle)}.*{last}")
    return test, max(map(len, segments)) + 1


def _test(expression: str) -> Callable[[str], bool]:
    """Return the test whether a whole text matches this regular expression."""
    fullmatch = re.compile(expression, re.DOTALL).fullmatch
    return lambda text: fullmatch(text) is not None


def _plain_test(segments: list[str]) -> Callable[[str], bool]:
    """Return the test of a pattern without `_`: the parts between `%` are searched as plain
    text."""
    first, *rest = segments
    if not rest:
        return lambda text: text == first
    *middle, last = rest
    least = sum(map(len, segments))

    def matches(text: str) -> bool:
        if len(text) < least or not text.startswith(first) or not text.endswith(last):
            return False
        at, end = len(first), len(text) - len(last)
        for segment in middle:
            if (at := text.find(segment, at, end)) < 0:
                return False
            at += len(segment)
        return True

    return matches
