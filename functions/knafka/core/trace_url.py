"""Checks the template of links to traces: a URL with `{trace}` in place of the trace id. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from knafka.core.errors import InvalidDocument

EXPECTED_TRACE_URL: Final = (
    "want http:// or https://, a host, and {trace} in the place of a trace's id"
)
"""What a template must be, for error messages."""
TRACE_URL: Final = "KNAFKA_TRACE_URL"
"""Environment variable with the template; empty: there are no links."""
_match_template = re.compile(
    r"https?://[^\s/?#@{}<>\"']+[^\s{}<>\"']*\{trace\}[^\s{}<>\"']*"
).fullmatch


def is_trace_url(text: str) -> bool:
    """Whether a text is a valid template of links to traces, or empty (there are no links)."""
    return not text or _match_template(text) is not None


def trace_url(environment: Mapping[str, str]) -> str:
    """Return the template of links to traces from the environment variable `TRACE_URL`; empty if
    the variable isn't set. Raises `InvalidDocument` if its text is no valid template."""
    text = environment.get(TRACE_URL, "").strip()
    if not is_trace_url(text):
        raise InvalidDocument(TRACE_URL, f"invalid value: {text:.200}: {EXPECTED_TRACE_URL}")
    return text
