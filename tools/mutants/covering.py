"""Finds out which tests run which lines, by one run of the pure tests with coverage's contexts.

The run has this module as a plugin, which records the duration of each test that passed. Coverage
makes it about twice as long as the tests alone; the map is kept until a source or a test changes.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import coverage
import pytest

PURE: Final = ("tests/unit", "tests/property", "tests/behaviour", "tests/conformance")
SPARK: Final = ("tests/unit/test_jobs_compaction.py",)
"""Slow tests that are run too: `compact/compact_plan.py` and `record_rows.py` have no others."""
NOT_REAL: Final = "not kafka and not cluster"
ROOT: Final = Path(__file__).resolve().parents[2]
_DECLARED: Final = ("knafka_operator.model", "knafka_operator.installation")
OPERATOR: Final = tuple(
    name
    for name in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["coverage"]["run"][
        "source"
    ]
    if name.startswith("knafka_operator.") and name not in _DECLARED
)
"""The operator's pure packages and modules, without those that only declare values."""
PACKAGES: Final = (
    "knafka.clients",
    "knafka.core",
    "knafka.dispatcher",
    "knafka_jobs.compact",
    *OPERATOR,
)
PASSED: Final = "KNAFKA_PASSED_TESTS"
"""The variable that names the file to which the plugin writes tests with their seconds."""


@dataclass(slots=True)
class Coverage:
    """What tests run; a test is named by its node id."""

    tests_of: Mapping[str, Mapping[int, Collection[str]]]
    """By file (its path from the root) and line: the passed tests that run it."""
    seconds: Mapping[str, float]
    """By test: how long it took when lines were counted, fixtures included."""
    _size: dict[str, int] = field(default_factory=dict, repr=False)
    """By test: how many lines it runs."""

    def __post_init__(self) -> None:
        for file in self.tests_of.values():
            for tests in file.values():
                for test in tests:
                    self._size[test] = self._size.get(test, 0) + 1

    def tests_for(self, path: str, lines: Iterable[int]) -> list[str]:
        """Return the tests that run any of these lines, first those that run few lines.

        Lines that run at import belong to no test: for these, all tests that run any line of the
        file.
        """
        file = self.tests_of.get(path, {})
        tests = {test for line in lines for test in file.get(line, ())}
        tests = tests or {test for line_tests in file.values() for test in line_tests}
        return sorted(tests, key=lambda test: (self._size[test], test))

    def quick(self, tests: Sequence[str], seconds: float) -> list[str]:
        """Return those of the tests, in their order, that fit into so many seconds; at least the
        quickest one."""
        chosen: list[str] = []
        for test in tests:
            took = self.seconds.get(test, 0.0)
            if took <= seconds:
                chosen.append(test)
                seconds -= took
        return chosen or sorted(tests, key=lambda test: self.seconds.get(test, 0.0))[:1]


def collect(tree: Path, folder: Path, environment: Mapping[str, str]) -> None:
    """Run the tests of the tree, and write into the folder what `read` reads.

    Tests may fail: failed ones are left out of the map. Raises `RuntimeError` if none passed.
    """
    settings, passed = folder / "settings.ini", folder / "passed"
    sources = "".join(f"    {package}\n" for package in PACKAGES)
    settings.write_text(
        f"[run]\nsource_pkgs =\n{sources}data_file = {folder / 'lines'}\n", encoding="utf-8"
    )
    passed.unlink(missing_ok=True)
    (folder / "lines").unlink(missing_ok=True)
    # Python's own way of counting lines (sys.monitoring) has no contexts.
    environment = {**environment, PASSED: str(passed), "COVERAGE_CORE": "ctrace"}
    for tests, marks in ((PURE, f"not slow and {NOT_REAL}"), (SPARK, f"slow and {NOT_REAL}")):
        command = [
            *(sys.executable, "-m", "pytest", *tests, "-m", marks, "-q", "-p", "mutants.covering"),
            *("--cov", f"--cov-config={settings}", "--cov-context=test", "--cov-append"),
            *("--cov-report=", "--hypothesis-seed=0", "--timeout=120"),
        ]
        with (folder / "collecting.log").open("ab") as log:
            subprocess.run(command, cwd=tree, env=environment, stdout=log, stderr=log, check=False)
    if not passed.exists():
        raise RuntimeError(f"no test passed: see {folder / 'collecting.log'}")


def read(folder: Path, tree: Path) -> Coverage:
    """Return the map that `collect` has written into `folder`; `tree` is the repository whose files
    were run."""
    seconds: dict[str, float] = {}
    for line in (folder / "passed").read_text(encoding="utf-8").splitlines():
        test, took = json.loads(line)
        seconds[test] = took
    data = coverage.CoverageData(str(folder / "lines"))
    data.read()
    tests_of: dict[str, dict[int, list[str]]] = {}
    for measured in data.measured_files():
        path = Path(measured).relative_to(tree).as_posix()
        lines = tests_of[path] = {}
        for number, contexts in data.contexts_by_lineno(measured).items():
            tests = {context.rpartition("|")[0] for context in contexts}
            lines[number] = sorted(tests & seconds.keys())
    return Coverage(tests_of, seconds)


def stamp(root: Path, files: Iterable[str]) -> str:
    """Return a digest of the files; if it changes, the map is out of date."""
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(name.encode() + b"\0" + (root / name).read_bytes() + b"\0")
    return digest.hexdigest()


# The plugin of the run that collects

_took: defaultdict[str, float] = defaultdict(float)
_failed: set[str] = set()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add the duration of a test's phase, and note whether it failed or was skipped."""
    _took[report.nodeid] += report.duration
    if not report.passed:
        _failed.add(report.nodeid)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Count the lines of all tests: also of those with the marker `no_cover`, which excludes them
    from coverage."""
    for item in items:
        item.own_markers[:] = [mark for mark in item.own_markers if mark.name != "no_cover"]


def pytest_sessionfinish() -> None:
    """Write the passed tests with their seconds, a line of JSON each."""
    with Path(os.environ[PASSED]).open("a", encoding="utf-8") as file:
        for test, seconds in _took.items():
            if test not in _failed:
                file.write(json.dumps([test, round(seconds, 4)]) + "\n")
