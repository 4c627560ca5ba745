"""The report as one HTML page for people: a pure function, Report -> text.

The page is whole in itself: style, scripts, the chart library (docs/decisions/0008) and the data
are inside, and its Content-Security-Policy lets it load nothing else. What came with events is
untrusted: the data travel compressed in base64, which no markup can break out of; the scripts put
them on the page as text only; and the policy names the scripts by digest, so no other one runs.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from typing import Final

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from knafka.core.delivery import Reason
from knafka_jobs.report.document import OTHERS, Report

STYLES: Final = ("uplot/uPlot.min.css", "page.css")

LIBRARY: Final = "uplot/uPlot.iife.min.js"

LICENCE: Final = "uplot/LICENSE"
"""Goes wherever the library goes, as it asks."""

FILE: Final = "file.js"
SERVED: Final = "served.js"
"""Where the page is: the second is in the place of the first where a console serves it."""

SCRIPTS: Final = (
    "elements.js",
    "timeline.js",
    "heatmap.js",
    "history.js",
    FILE,
    "details.js",
    "table.js",
    "main.js",
)
"""Parts of one module, in this order: what is at the top of one is known to those after it."""


@dataclass(frozen=True, slots=True)
class ServedPage:
    """The page as a console serves it."""

    html: str
    policy: str
    """The value of `Content-Security-Policy`."""


def render(report: Report, traces: str = "") -> str:
    """The page as a file; its size is about 95 kB and what the groups compress to.

    `traces` is the address of a trace, with `{trace}` in the place of its id; empty: no links.
    """
    return _rendered(report, traces, None).html


def render_served(report: Report, traces: str, path: str) -> ServedPage:
    """The same for a console, which it may ask; `path` is that of the report's JSON there."""
    return _rendered(report, traces, path)


def _rendered(report: Report, traces: str, path: str | None) -> ServedPage:
    style = "\n".join(map(_own_file, STYLES))
    library = _own_file(LIBRARY)
    scripts = [SERVED if each == FILE and path is not None else each for each in SCRIPTS]
    script = "\n".join(map(_own_file, scripts))
    policy = (
        "default-src 'none'; base-uri 'none'; form-action 'none'; "
        f"style-src {_digest(style)}; script-src {_digest(library)} {_digest(script)}"
    )
    if path is not None:
        policy += "; connect-src 'self'"
    html = (
        _environment()
        .from_string(_own_file("page.html.j2"))
        .render(
            report=report,
            path=path,
            policy=policy,
            style=Markup(style),
            library=Markup(library),
            licence=_own_file(LICENCE),
            script=Markup(script),
            data=_packed(report, traces, path),
        )
    )
    return ServedPage(html, policy if path is None else f"{policy}; frame-ancestors 'none'")


def _packed(report: Report, traces: str, path: str | None) -> str:
    """What the scripts read: the report, the closed list of reasons, which gives each a colour, and
    where the page is.

    Compressed without a time stamp, so that the same report always makes the same page.
    """
    document = report.model_dump_json(by_alias=True, exclude_none=True)
    about = {
        "reasons": [reason.value for reason in Reason],
        "others": OTHERS,
        "served": path,
        "traces": traces,
    }
    text = f'{{"report":{document},{json.dumps(about)[1:]}'
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def _digest(text: str) -> str:
    """A Content-Security-Policy source that allows exactly this inline style or script."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@cache
def _own_file(name: str) -> str:
    """A file of the page, without the line break at its end: its digest is of exactly this."""
    return (files(__package__) / "page_files" / name).read_text(encoding="utf-8").strip()


@cache
def _environment() -> Environment:
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(number=_number, moment=_moment, age=_age)
    return environment


def _number(value: int) -> str:
    return f"{value:,}"


def _moment(value: datetime) -> str:
    return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M")


def _age(value: datetime, now: datetime) -> str:
    """How long before `now`, in the largest unit that leaves at least 2, else minutes."""
    seconds = max(0, int((now - value).total_seconds()))
    for unit, length in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length} {unit}"
    return f"{seconds} seconds"
