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
"""Levels that are kept of a document with more than the decoder's limit of 200. Comparing, copying
or writing a document takes a few stack frames for each level."""

_STRING_OR_BRACKET = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[\[{]|[\]}]', re.DOTALL)


def decode_json(text: bytes) -> Any:
    """Decode JSON of any depth; raises `ValueError` if it is invalid."""
    try:
        return from_json(text)
    except ValueError:
        return json.loads(without_deep_levels(text))


def without_deep_levels(text: bytes) -> bytes:
    """Replace objects and lists deeper than `MAX_JSON_DEPTH` by null."""
    kept: list[bytes] = []
    depth = begin = 0
    for part in _STRING_OR_BRACKET.finditer(text):
        match part[0]:
            case b"{" | b"[":
                depth += 1
                if depth == MAX_JSON_DEPTH + 1:
                    kept += (text[begin : part.start()], b"null")
            case b"}" | b"]":
                depth -= 1
                if depth == MAX_JSON_DEPTH:
                    begin = part.end()
    # An unclosed document stays unclosed, so that the decoder refuses it.
    return b"".join(kept) + (text[begin:] if depth <= MAX_JSON_DEPTH else b"")
