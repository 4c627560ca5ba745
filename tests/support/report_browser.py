"""Opens pages of reports in Chromium, and reads their lists."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import pytest
from support.browser import look_as, script, texts, wait

from knafka_jobs.report.report_document import Report
from knafka_jobs.report.report_page import render_file

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

READY = "document.documentElement.dataset.ready"

Open: TypeAlias = "Callable[..., Chrome]"
"""`open_page(report, fragment, width=1280, height=900, dark=False)`: the browser, at its page."""


@pytest.fixture
def open_page(chromium: Chrome, tmp_path: Path) -> Iterator[Open]:
    """Opens a report's page; at the end nothing was complained about and nothing was fetched."""
    pages: list[str] = []

    def open_page(
        report: Report,
        fragment: str = "",
        width: int = 1280,
        height: int = 900,
        dark: bool = False,
        within: float = 20,
    ) -> Chrome:
        path = tmp_path / f"report-{len(pages)}.html"
        path.write_text(render_file(report), encoding="utf-8")
        pages.append(path.as_uri())
        look_as(chromium, width, height, dark=dark)
        chromium.get(path.as_uri() + fragment)
        if report.groups:
            wait(chromium, lambda: script(chromium, READY), within)
        return chromium

    chromium.get_log("performance")  # type: ignore[no-untyped-call]
    yield open_page
    assert chromium.get_log("browser") == []  # type: ignore[no-untyped-call]
    entries = chromium.get_log("performance")  # type: ignore[no-untyped-call]
    events = [json.loads(entry["message"])["message"] for entry in entries]
    asked = {
        event["params"]["request"]["url"]
        for event in events
        if event["method"] == "Network.requestWillBeSent"
    }
    assert asked <= set(pages)


def names(chromium: Chrome) -> list[str]:
    return texts(chromium, ".group .name")


def column(chromium: Chrome, number: int) -> list[str]:
    return texts(chromium, f".group > :nth-child({number})")
