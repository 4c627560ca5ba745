"""Compiles patterns of LIKE: `%` matches any characters, `_` exactly one; a backslash before either
makes it literal.

Matching never goes back to an earlier `%`: where the text between two of them matches first is as
good as any later place. Every pattern is valid: any other backslash stands for itself (§3.4.3).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

_iterate_pieces = re.compile(r"\\([%_])|(.)", re.DOTALL).finditer
"""Finds the pieces of a pattern: an escaped `%` or `_` (first group), or any character (second)."""

SEARCH_STEPS: Final = 8
"""Most steps per character of a search for plain text by `str.find`."""


def compile_pattern(pattern: str) -> tuple[Callable[[str], bool], int]:
    """Return a function that tests whether a whole text matches `pattern` (case-sensitive), and the
    most steps that the test takes per character of the text."""
    # The parts between `%`: as regular expressions, and as plain text, which is used only if the
    # pattern has no `_`.
    segments = [""]
    plain_segments = [""]
    has_underscore = False
    for piece in _iterate_pieces(pattern):
        match piece[0]:
            case "%":
                segments.append("")
                plain_segments.append("")
            case "_":
                segments[-1] += "."
                has_underscore = True
            case _:
                character = piece[1] or piece[2]  # the groups of `_iterate_pieces`
                segments[-1] += re.escape(character)
                plain_segments[-1] += character
    if not has_underscore:
        return _plain_test(plain_segments), SEARCH_STEPS if len(plain_segments) > 2 else 1
    first, *rest = segments
    if not rest:
        return _regex_test(first), 1
    *middle, last = rest
    # Atomic groups, as the first match of each segment is kept.
    middle_groups = "".join(f"(?>.*?{segment})" for segment in middle)
    test = _regex_test(f"{first}{middle_groups}.*{last}")
    # At each character of the text, at most a whole segment is compared.
    return test, max(map(len, segments)) + 1


def _regex_test(expression: str) -> Callable[[str], bool]:
    """Return a function that tests whether a whole text matches this regular expression."""
    fullmatch = re.compile(expression, re.DOTALL).fullmatch
    return lambda text: fullmatch(text) is not None


def _plain_test(segments: list[str]) -> Callable[[str], bool]:
    """Return a function that tests whether a whole text matches a pattern without `_`. `segments`:
    the plain texts before, between and after the pattern's `%`, in their order."""
    first, *rest = segments
    if not rest:
        return lambda text: text == first
    *middle, last = rest
    minimum_length = sum(map(len, segments))

    def matches(text: str) -> bool:
        """Return whether the text begins with `first`, ends with `last`, and holds the segments of
        `middle` in order between them."""
        if len(text) < minimum_length or not text.startswith(first) or not text.endswith(last):
            return False
        position, end = len(first), len(text) - len(last)
        for segment in middle:
            if (position := text.find(segment, position, end)) < 0:
                return False
            position += len(segment)
        return True

    return matches
