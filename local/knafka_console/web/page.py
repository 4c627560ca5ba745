"""The console's pages: each one HTML text with its style and script inside, and its policy.

One loads nothing from anywhere: its Content-Security-Policy names the style and the script by
digest, and allows requests to its own server only.
"""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final

PAGE_SCRIPTS: Final = (
    "elements.js",
    "api.js",
    "who.js",
    "reports.js",
    "details.js",
    "flow.js",
    "main.js",
)
"""Parts of one module, in this order: what is at the top of one is known to those after it."""


@dataclass(frozen=True, slots=True)
class Page:
    """An HTML page, with its Content-Security-Policy."""

    html: str
    policy: str
    """The value of `Content-Security-Policy`."""


@cache
def page() -> Page:
    """Made once, when somebody opens it first."""
    return _made("page.html", PAGE_SCRIPTS)


@cache
def sign_in_page() -> Page:
    """The page for somebody without a token."""
    return _made("sign_in.html", ("elements.js", "sign_in.js"))


def problem_page(sentence: str) -> Page:
    """A page that tells somebody who opened a link what is wrong."""
    return Page(_problem().html.replace("/*sentence*/", html.escape(sentence)), _problem().policy)


@cache
def _problem() -> Page:
    return _made("problem.html", ())


def _made(name: str, scripts: Sequence[str]) -> Page:
    style = _file("page.css")
    script = "\n".join(map(_file, scripts))
    text = _file(name).replace("/*style*/", style).replace("/*script*/", script)
    policy = (
        "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "connect-src 'self'; img-src data:; "
        f"style-src {_digest(style)}; script-src {_digest(script)}"
    )
    return Page(text, policy)


def _digest(text: str) -> str:
    """A Content-Security-Policy source that allows exactly this inline style or script."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _file(name: str) -> str:
    return (files(__package__) / "page_files" / name).read_text(encoding="utf-8").strip()
