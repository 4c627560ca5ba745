"""Splits an expression into tokens: words, keywords, strings and symbols.

A sign is always a symbol here; the parser decides whether `-1` is a literal or a subtraction. Text
longer than `MAX_LENGTH` is refused, and so are characters that no CESQL token has.
"""

from __future__ import annotations

import re
from typing import Final, Literal, NamedTuple, TypeAlias

from knafka.core.errors import InvalidExpression

MAX_LENGTH: Final = 65_536
"""Most characters in an expression: far more than people write. This limit also bounds the cost of
an evaluation (LIKE takes at most pattern length times value length steps)."""

KEYWORDS: Final = frozenset({"AND", "OR", "XOR", "NOT", "LIKE", "EXISTS", "IN", "TRUE", "FALSE"})

TokenKind: TypeAlias = Literal["word", "keyword", "string", "symbol", "end"]

_match_token = re.compile(
    r"""[ \t\r\n]*+ (?:
        (?P<word>   [A-Za-z0-9_]++)
      | (?P<string> '(?:[^'\\]++|\\.)*+' | "(?:[^"\\]++|\\.)*+")
      | (?P<symbol> <= | >= | <> | != | [-+*/%=<>(),])
      | (?P<end>    \Z)
      | (?P<wrong>  .)
    )""",
    re.VERBOSE | re.DOTALL,
).match
"""Matches a token and the space before it; the group's name is its kind, or `wrong`."""


class Token(NamedTuple):
    """One token. `text` is as it was written, except that a keyword is in upper case; `start` and
    `end` are character positions in the expression."""

    kind: TokenKind
    text: str
    start: int
    end: int


def tokenize(text: str) -> list[Token]:
    """Return all tokens of `text`, the last one of kind `end`. Raises `InvalidExpression` if the
    text is too long, holds a character that begins no token, or has a string that isn't closed."""
    if len(text) > MAX_LENGTH:
        raise InvalidExpression(
            f"an expression may have {MAX_LENGTH} characters, this has {len(text)}", MAX_LENGTH
        )
    tokens: list[Token] = []
    position = 0
    while not tokens or tokens[-1].kind != "end":
        match = _match_token(text, position)
        assert match is not None, "`wrong` matches every character"
        tokens.append(_token_of(match))
        position = match.end()
    return tokens


def _token_of(match: re.Match[str]) -> Token:
    """Return the token that `_match_token` has matched. Raises `InvalidExpression` for a character
    that begins no token, and for the quote of a string that isn't closed."""
    group = match.lastgroup
    assert group is not None, "every alternative is named"
    text, (start, end) = match[group], match.span(group)
    match group:
        case "word" if text.upper() in KEYWORDS:
            return Token("keyword", text.upper(), start, end)
        case "word" | "string" | "symbol" | "end":
            return Token(group, text, start, end)
        case _ if text in "'\"":  # a quote begins a token only if the string is closed
            raise InvalidExpression("the string is not closed", start)
        case _:
            raise InvalidExpression(f"unexpected character {text!r}", start)
