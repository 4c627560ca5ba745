"""The console's pages: HTML with inline style and script, and a Content-Security-Policy.

A page loads nothing from elsewhere: its policy allows this style and script by digest, and requests
to its own server only.
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
"""Parts of one script, in this order: each can use what the parts before it define."""


@dataclass(frozen=True, slots=True)
class Page:
    """An HTML page, with its Content-Security-Policy."""

    html: str
    policy: str
    """The value of `Content-Security-Policy`."""


@cache
def console_page() -> Page:
    """Return the console's page; built once."""
    return _build_page("page.html", PAGE_SCRIPTS)


@cache
def sign_in_page() -> Page:
    """Return the page for a viewer without a token; built once."""
    return _build_page("sign_in.html", ("elements.js", "sign_in.js"))


def problem_page(sentence: str) -> Page:
    """Return a page that shows a sentence (plain text): why a link can't be opened."""
    template = _problem_template()
    return Page(template.html.replace("/*sentence*/", html.escape(sentence)), template.policy)


@cache
def _problem_template() -> Page:
    """Return the template of a problem page; built once."""
    return _build_page("problem.html", ())


def _build_page(name: str, scripts: Sequence[str]) -> Page:
    """Build a page from the template `name`, `page.css` and these scripts, all files in
    `page_files`."""
    style = _file_text("page.css")
    script = "\n".join(map(_file_text, scripts))
    text = _file_text(name).replace("/*style*/", style).replace("/*script*/", script)
    policy = (
        "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "connect-src 'self'; img-src data:; "
        f"style-src {_digest_source(style)}; script-src {_digest_source(script)}"
    )
    return Page(text, policy)


def _digest_source(text: str) -> str:
    """Return a Content-Security-Policy source that allows exactly this inline style or script."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _file_text(name: str) -> str:
    """Return the text of a file in `page_files`."""
    return (files(__package__) / "page_files" / name).read_text(encoding="utf-8").strip()
