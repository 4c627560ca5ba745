"""A real Chromium without a head, and what tests ask of it.

Without Chromium and its driver (Debian: chromium, chromium-driver) tests that need one are skipped
with the reason, and fail in CI (`CI=true`). Registered by `pytest_plugins` in tests/conftest.py, so
Selenium is imported by those tests only.
"""

from __future__ import annotations

import base64
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.gate import IN_CI
from support.waiting import PATIENCE

if TYPE_CHECKING:
    from selenium.webdriver import Chrome
    from selenium.webdriver.remote.webelement import WebElement

IMAGES = Path(__file__).parents[2] / "docs/images"
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic",
    "--no-first-run", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--hide-scrollbars",
)  # fmt: skip
CSS = "css selector"


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    with chromium_of(tmp_path_factory.mktemp("profile")) as found:
        yield found


@contextmanager
def chromium_of(profile: Path, *flags: str) -> Iterator[Chrome]:
    """With its profile in this folder, and more flags."""
    from selenium.webdriver import Chrome, ChromeOptions
    from selenium.webdriver.chrome.service import Service

    browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if browser is None or driver is None:
        reason = "Chromium is missing: apt-get install chromium chromium-driver"
        if IN_CI:
            pytest.fail(reason)
        pytest.skip(reason)
    options = ChromeOptions()
    options.binary_location = browser
    for flag in (*FLAGS, f"--user-data-dir={profile}", *flags):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    chrome = Chrome(options, Service(driver))
    try:
        chrome.get("about:blank")  # a new tab has requests of its own
        yield chrome
    finally:
        chrome.quit()


def look_as(chromium: Chrome, width: int, height: int, *, dark: bool) -> None:
    """Have a window of this size, and a person who likes it dark or light."""
    screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    chromium.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})


def script(chromium: Chrome, expression: str, *arguments: object) -> object:
    return chromium.execute_script(f"return {expression}", *arguments)


def wait(chromium: Chrome, condition: Callable[[], object], within: float = 20) -> None:
    """Wait until `condition` holds; TimeoutException after `PATIENCE` times `within` seconds."""
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(chromium, PATIENCE * within, poll_frequency=0.05).until(lambda _: condition())


def one(chromium: Chrome, selector: str) -> WebElement:
    return chromium.find_element(CSS, selector)


def every(chromium: Chrome, selector: str) -> list[WebElement]:
    return chromium.find_elements(CSS, selector)


def texts(chromium: Chrome, selector: str) -> list[str]:
    """What these elements show, in one request: `every` and `.text` take one for each element."""
    shown = "Array.from(document.querySelectorAll(arguments[0]), each => each.innerText.trim())"
    found = script(chromium, shown, selector)
    assert isinstance(found, list)
    return found


def picture(chromium: Chrome, name: str) -> bytes:
    """What is in the window, kept for the docs with `KNAFKA_DOCS_IMAGES=1`."""
    shot = chromium.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})
    png = base64.b64decode(shot["data"])
    if os.environ.get("KNAFKA_DOCS_IMAGES"):
        IMAGES.mkdir(exist_ok=True)
        (IMAGES / name).write_bytes(png)
    return png
