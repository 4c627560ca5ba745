"""Run pytest, and once more, alone, the few tests of real services that failed.

    python tools/run_tests.py NAME [PYTEST OPTIONS]

A test of a real Kafka, Spark, Kubernetes or browser can fail because the machine was busy. Such a
test is run a second time, by itself, after all others. If it passes then, the run passes, and its
last lines name the test: `flaky: tests/…`. What fails twice fails the run; so does a pure test that
fails once, and more than `MOST_SECOND_TRIES` failures.

JUnit files are kept as build/tests/NAME.xml, where a flaky test has a `flakyFailure` as Maven's
Surefire writes it, and build/tests/NAME-second-try.xml. Each run adds to build/tests/outcomes.txt
what it came to, a line for itself and one for each failed test: the gate prints them last.
Exits with pytest's exit code.
"""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

OF_REAL_SERVICES: Final = frozenset({"browser", "kafka", "cluster", "spark"})
"""Markers of the tests that get a second try."""
MOST_SECOND_TRIES: Final = 2
REPORTS: Final = Path("build/tests")
OUTCOMES: Final = REPORTS / "outcomes.txt"
TESTS_FAILED: Final = 1  # pytest.ExitCode.TESTS_FAILED


def main(name: str, options: Sequence[str]) -> int:
    """Run the tests that `options` select; returns pytest's exit code, 0 if only flaky."""
    REPORTS.mkdir(parents=True, exist_ok=True)
    report, failures_file = REPORTS / f"{name}.xml", REPORTS / f"{name}-failures.json"
    failures_file.unlink(missing_ok=True)
    code = pytest(*options, f"--junitxml={report}", f"--failures-file={failures_file}")
    if code != TESTS_FAILED:
        note_outcome(name, code)
        return code
    failures: dict[str, list[str]] = json.loads(failures_file.read_text())
    if refusal := why_no_second_try(failures):
        print(f"\nno second try: {refusal}", flush=True)
        note_outcome(name, code, failures)
        return code
    print("\nsecond try, alone: " + ", ".join(failures), flush=True)
    second = REPORTS / f"{name}-second-try.xml"
    code = pytest(*failures, "-p", "no:xdist", f"--junitxml={second}")
    note_outcome(name, code, failures)
    if code:
        return code
    mark_flaky(report)
    print("".join(f"flaky: {test} (failed, then passed alone)\n" for test in failures), end="")
    return 0


def pytest(*options: str) -> int:
    """Run pytest with these options, and return its exit code."""
    return subprocess.run([sys.executable, "-m", "pytest", *options]).returncode


def note_outcome(name: str, code: int, failures: Iterable[str] = ()) -> None:
    """Add to `OUTCOMES` what a run came to: pytest's exit `code`, and which tests failed once."""
    with OUTCOMES.open("a") as file:
        file.write(f"{name}: {'passed' if code == 0 else f'exit code {code}'}\n")
        file.writelines(f"    failed once: {test}\n" for test in failures)


def why_no_second_try(failures: Mapping[str, Sequence[str]]) -> str:
    """The reason why these failures are final; empty if each gets a second try.

    `failures` maps a test's id to its markers.
    """
    pure = [test for test, markers in failures.items() if OF_REAL_SERVICES.isdisjoint(markers)]
    if pure:
        return f"a pure test never fails by luck: {pure[0]}"
    if len(failures) > MOST_SECOND_TRIES:
        return f"{len(failures)} tests failed, more than {MOST_SECOND_TRIES}"
    if not failures:
        return "no test failed, something else did"
    return ""


def mark_flaky(report: Path) -> None:
    """Rename the failures in a JUnit file to `flakyFailure`, as they passed on the second try."""
    tree = ElementTree.parse(report)
    for suite in tree.iter("testsuite"):
        suite.set("failures", "0")
        suite.set("errors", "0")
    for outcome in [*tree.iter("failure"), *tree.iter("error")]:
        outcome.tag = "flakyFailure"
    tree.write(report, encoding="utf-8", xml_declaration=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
