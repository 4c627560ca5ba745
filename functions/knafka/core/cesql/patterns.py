"""The patterns of LIKE: `%` any characters, `_` one, a backslash before either takes it literally.

Matching never backtracks over an earlier `%` (the leftmost match of what stands between two of
them is as good as any other), so its time is at most pattern length times text length. It refuses
nothing: any other backslash stands for itself (§3.4.3).
"""

from __future__ import annotations

import re
from collections.abc import Callable

_piece = re.compile(r"\\([%_])|(.)", re.DOTALL).finditer


def compile_pattern(pattern: str) -> Callable[[str], bool]:
    """A test of a whole text against `pattern`; case-sensitive."""
    segments = [""]
    for piece in _piece(pattern):
        match piece[0]:
            case "%":
                segments.append("")
            case "_":
                segments[-1] += "."
            case _:
                segments[-1] += re.escape(piece[1] or piece[2])
    first, *rest = segments
    if not rest:
        return _test(first)
    *middle, last = rest
    # An atomic group gives nothing back once it has matched.
    return _test(f"{first}{''.join(f'(?>.*?{segment})' for segment in middle)}.*{last}")


def _test(expression: str) -> Callable[[str], bool]:
    fullmatch = re.compile(expression, re.DOTALL).fullmatch
    return lambda text: fullmatch(text) is not None
