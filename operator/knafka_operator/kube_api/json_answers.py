"""JSON answers: what the API server says, decoded, however deep one object is.

The API server stores objects whose fields lie ten thousand levels deep, where a schema leaves them
free; Python's decoder gives up after about a thousand, and with it whoever lists all objects. So
what lies deeper than anybody reads is null here: its object is judged without it.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from pydantic_core import from_json

MAX_DEPTH: Final = 100
"""Levels that are kept where there are more than the decoder takes, which is 200: whoever compares,
copies or writes a document takes a few frames for each."""

_PART = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[\[{]|[\]}]', re.DOTALL)


def decode_json(text: bytes) -> Any:
    """Decode JSON of any depth; raises `ValueError` if it is invalid."""
    try:
        return from_json(text)
    except ValueError:
        return json.loads(without_deep_levels(text))


def without_deep_levels(text: bytes) -> bytes:
    """Replace objects and lists deeper than `MAX_DEPTH` by null."""
    kept: list[bytes] = []
    depth = begin = 0
    for part in _PART.finditer(text):
        match part[0]:
            case b"{" | b"[":
                depth += 1
                if depth == MAX_DEPTH + 1:
                    kept += (text[begin : part.start()], b"null")
            case b"}" | b"]":
                depth -= 1
                if depth == MAX_DEPTH:
                    begin = part.end()
    # Of what isn't closed the rest is missing, too, which the decoder refuses.
    return b"".join(kept) + (text[begin:] if depth <= MAX_DEPTH else b"")
