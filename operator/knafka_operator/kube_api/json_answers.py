"""JSON answers: decodes the API server's responses, even if an object is nested very deeply.

The API server stores objects with ten thousand levels, where a schema leaves fields free; Python's
decoder fails after about a thousand, and with it a list of all objects. So values deeper than any
code reads are replaced by null.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from pydantic_core import from_json

MAX_JSON_DEPTH: Final = 100
"""Levels that are kept of a document that is too deep for the decoder (more than 200 levels).
Comparing, copying or writing a document takes a few stack frames for each level."""

_STRING_OR_BRACKET = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[\[{]|[\]}]', re.DOTALL)
"""Matches a whole string, or one opening or closing bracket."""


def decode_json(text: bytes) -> Any:
    """Decode JSON of any depth; raises `ValueError` if it is invalid."""
    try:
        return from_json(text)
    except ValueError:  # invalid, or too deep; invalid JSON fails again here
        return json.loads(replace_deep_levels(text))


def replace_deep_levels(text: bytes) -> bytes:
    """Return JSON in which null replaces the objects and lists deeper than `MAX_JSON_DEPTH`."""
    kept: list[bytes] = []
    depth = 0
    kept_from = 0  # start of the text that is kept next
    for token in _STRING_OR_BRACKET.finditer(text):
        match token[0]:  # strings are matched only so that brackets in them don't count
            case b"{" | b"[":
                depth += 1
                if depth == MAX_JSON_DEPTH + 1:
                    kept += (text[kept_from : token.start()], b"null")
            case b"}" | b"]":
                depth -= 1
                if depth == MAX_JSON_DEPTH:
                    kept_from = token.end()
    # An unclosed document stays unclosed, so that the decoder refuses it.
    return b"".join(kept) + (text[kept_from:] if depth <= MAX_JSON_DEPTH else b"")
