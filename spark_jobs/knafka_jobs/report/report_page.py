"""Renders a report as one HTML page. Pure.

The page is self-contained: it includes its style, scripts, chart library (docs/decisions/0008) and
data, and its Content-Security-Policy lets it load nothing else. Text of events is untrusted: the
data are compressed in base64, which no markup can break out of; the scripts put them on the page as
text only; and the policy names the scripts by digest, so that no other script runs.
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
from knafka_jobs.failure_groups import OTHER_SUMMARIES
from knafka_jobs.replay_state import ReplayState
from knafka_jobs.report.report_document import Report

STYLE_FILES: Final = ("uplot/uPlot.min.css", "page.css")
"""Style sheets, in this order."""

LIBRARY_FILE: Final = "uplot/uPlot.iife.min.js"
"""The chart library."""

LICENCE_FILE: Final = "uplot/LICENSE"
"""The library's licence, which must be distributed with it."""

_STATE_BADGES: Final = {
    ReplayState.FINISHED: "resolved",
    ReplayState.CANCELLED: "steady",
    ReplayState.INTERRUPTED: "failed-again",
}
"""CSS class of the badge of a replay, by its state; other states have `growing`."""

FILE_SCRIPT: Final = "file.js"
"""The script of a page that is opened as a file."""
SERVED_SCRIPT: Final = "served.js"
"""The script of a page that a console serves, in place of `FILE_SCRIPT`."""

SCRIPT_FILES: Final = (
    "elements.js",
    "timeline.js",
    "heatmap.js",
    "history.js",
    FILE_SCRIPT,
    "details.js",
    "table.js",
    "main.js",
)
"""Parts of one JavaScript module, in this order: each part uses names of earlier parts."""


@dataclass(frozen=True, slots=True)
class ServedPage:
    """A page and the policy with which a console must serve it."""

    html: str
    policy: str
    """The value of `Content-Security-Policy`."""


def render_file(report: Report, traces: str = "") -> str:
    """Render the page of a report that is opened as a file, and return its HTML: about 95 kB and
    the compressed groups.

    `traces` is the URL of a trace, with `{trace}` in place of its id; empty: no links.
    """
    return _render(report, traces, None).html


def render_served(report: Report, traces: str, path: str) -> ServedPage:
    """Render the page of a report for a console that serves it; the page may send requests to the
    console.

    `traces` is the URL of a trace, with `{trace}` in place of its id; empty: no links. `path` is
    the path of the report's JSON in the console.
    """
    return _render(report, traces, path)


def _render(report: Report, traces: str, path: str | None) -> ServedPage:
    """Render the page and its Content-Security-Policy. `traces` is the template for the URL of a
    trace (empty: no links). `path` is the path of the report's JSON in the console that serves the
    page; None: the page is a file, which may send no requests."""
    style = "\n".join(map(_page_file, STYLE_FILES))
    library = _page_file(LIBRARY_FILE)
    scripts = [
        SERVED_SCRIPT if script_file == FILE_SCRIPT and path is not None else script_file
        for script_file in SCRIPT_FILES
    ]
    script = "\n".join(map(_page_file, scripts))
    policy = (
        "default-src 'none'; base-uri 'none'; form-action 'none'; "
        f"style-src {_policy_source(style)}; "
        f"script-src {_policy_source(library)} {_policy_source(script)}"
    )
    if path is not None:
        policy += "; connect-src 'self'"
    html = (
        _jinja_environment()
        .from_string(_page_file("page.html.j2"))
        .render(
            report=report,
            path=path,
            policy=policy,
            style=Markup(style),
            library=Markup(library),
            licence=_page_file(LICENCE_FILE),
            script=Markup(script),
            data=_packed_data(report, traces, path),
        )
    )
    # The page has the policy, too, but there browsers ignore `frame-ancestors`.
    return ServedPage(html, policy if path is None else f"{policy}; frame-ancestors 'none'")


def _packed_data(report: Report, traces: str, path: str | None) -> str:
    """Return the data for the page's scripts as one JSON object, compressed, in base64.

    It has the report, all reasons for failures, the summary of groups that have all other failures,
    the template `traces` for URLs of traces, and the `path` of the report's JSON in the console
    (None: the page is a file). The same report always makes the same page, so the compressed data
    have no time stamp.
    """
    document = report.model_dump_json(by_alias=True, exclude_none=True)
    page_settings = {
        "reasons": [reason.value for reason in Reason],
        "others": OTHER_SUMMARIES,
        "served": path,
        "traces": traces,
    }
    # Join the two JSON texts by hand (`[1:]` drops the brace of the second): to parse a large
    # report only to write it again would be slow.
    text = f'{{"report":{document},{json.dumps(page_settings)[1:]}'
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def _policy_source(text: str) -> str:
    """Return a Content-Security-Policy source that allows exactly this inline style or script."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@cache
def _page_file(name: str) -> str:
    """Return the text of a file that is part of the page (a style, a script or the template). The
    line break at its end is left out, as the digests in the policy are of exactly this text."""
    return (files(__package__) / "page_files" / name).read_text(encoding="utf-8").strip()


@cache
def _jinja_environment() -> Environment:
    """Return the Jinja environment of the page's template, with the filters that it uses."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(
        badge=_badge_class, number=_number_text, moment=_time_text, age=_age_text
    )
    return environment


def _number_text(value: int) -> str:
    """Return a number with commas between thousands."""
    return f"{value:,}"


def _badge_class(state: ReplayState | None) -> str:
    """Return the CSS class of the badge of a replay's state; `steady` if the state isn't known."""
    return "steady" if state is None else _STATE_BADGES.get(state, "growing")


def _time_text(value: datetime) -> str:
    """Return a time in UTC as text, to the minute."""
    return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M")


def _age_text(value: datetime, now: datetime) -> str:
    """Return the time from `value` to `now` as text, such as `3 hours`, in the largest unit of
    which there are at least 2."""
    seconds = max(0, int((now - value).total_seconds()))
    for unit, length in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length} {unit}"
    return f"{seconds} seconds"
