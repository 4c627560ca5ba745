"""Where a person looks at a trace: an address with `{trace}` in the place of its id. Pure."""

from __future__ import annotations

import re
from typing import Final

WANTED_OF_TRACE_URL: Final = (
    "want http:// or https://, a host, and {trace} in the place of a trace's id"
)
_is_url = re.compile(r"https?://[^\s/?#@{}<>\"']+[^\s{}<>\"']*\{trace\}[^\s{}<>\"']*").fullmatch


def is_trace_url(text: str) -> bool:
    """Whether it can be a link; empty: there are none."""
    return not text or _is_url(text) is not None
