"""Tells which tests failed: at once in the output, at the end in a file for `tools/run_tests.py`.

`--failures-file FILE` has a run write FILE: a JSON object that maps the node id of each failed test
to the names of its markers. Registered by `pytest_plugins` in tests/conftest.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import pytest
from support.markers import PURE_FOLDERS

SHOWN_LINES: Final = 60
"""Of a failure's report, those shown at once: the last ones name the error."""
PURE: Final = tuple(f"tests/{folder}/" for folder in PURE_FOLDERS)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--failures-file",
        type=Path,
        metavar="FILE",
        help="write the ids and markers of the tests that failed, as JSON",
    )


def pytest_configure(config: pytest.Config) -> None:
    file: Path | None = config.getoption("--failures-file")
    # With pytest-xdist every worker reports to the controller, which alone writes.
    if file is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(FailuresFile(file))


class FailuresFile:
    """Collects the failed reports of one run."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._failures: dict[str, list[str]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.failed:
            return
        markers = sorted(map(str, report.keywords)) or markers_by(report.nodeid)
        # A test may fail and then end its worker (support.watchdog).
        self._failures.setdefault(report.nodeid, markers)
        # pytest shows failures at its end, which a run that is killed doesn't reach.
        lines = report.longreprtext.splitlines()[-SHOWN_LINES:]
        print(f"\nFAILED {report.nodeid} ({report.when})", *lines, sep="\n", flush=True)

    def pytest_sessionfinish(self) -> None:
        self._file.write_text(json.dumps(self._failures, indent=2))


def markers_by(test: str) -> list[str]:
    """What a test whose worker died, and which so reports no markers, counts as: by its folder."""
    return [] if test.startswith(PURE) else ["kafka"]
