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
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from typing import Final

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from knafka.core.delivery import Reason
from knafka_jobs.report.document import Report

STYLES: Final = ("uplot/uPlot.min.css", "page.css")

LIBRARY: Final = "uplot/uPlot.iife.min.js"

LICENCE: Final = "uplot/LICENSE"
"""Goes wherever the library goes, as it asks."""

SCRIPTS: Final = ("elements.js", "timeline.js", "heatmap.js", "details.js", "table.js", "main.js")
"""Parts of one module, in this order: what is at the top of one is known to those after it."""


def render(report: Report) -> str:
    """The page; its size is about 90 kB and what the groups compress to."""
    style = "\n".join(map(_own_file, STYLES))
    library = _own_file(LIBRARY)
    script = "\n".join(map(_own_file, SCRIPTS))
    policy = (
        "default-src 'none'; base-uri 'none'; form-action 'none'; "
        f"style-src {_digest(style)}; script-src {_digest(library)} {_digest(script)}"
    )
    return (
        _environment()
        .from_string(_own_file("page.html.j2"))
        .render(
            report=report,
            policy=policy,
            style=Markup(style),
            library=Markup(library),
            licence=_own_file(LICENCE),
            script=Markup(script),
            data=_packed(report),
        )
    )


def _packed(report: Report) -> str:
    """What the scripts read: the report, and the closed list of reasons, which gives each a colour.

    Compressed without a time stamp, so that the same report always makes the same page.
    """
    document = report.model_dump_json(by_alias=True, exclude_none=True)
    reasons = json.dumps([reason.value for reason in Reason])
    text = f'{{"reasons":{reasons},"report":{document}}}'
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
