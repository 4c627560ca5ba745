"""The second try of a test run: which failures get one, what is printed (tools/run_tests.py)."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from support.gate import only_chaos

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tools" / "run_tests.py"
TESTS = """
import pathlib, pytest

@pytest.mark.kafka
def test_fails_once():
    marker = pathlib.Path("seen")
    seen = marker.exists()
    marker.touch()
    assert seen

@pytest.mark.kafka
def test_fails_always():
    assert False

def test_is_pure():
    assert pathlib.Path("pure").exists()

def test_passes():
    pass
"""


@pytest.fixture(scope="module")
def program() -> Any:
    spec = importlib.util.spec_from_file_location("run_tests", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("failures", "reason"),
    [
        ({"a": ["kafka"]}, ""),
        ({"a": ["browser"], "b": ["spark", "slow"]}, ""),
        ({"a": ["slow"]}, "a pure test never fails by luck: a"),
        ({"a": ["kafka"], "b": []}, "a pure test never fails by luck: b"),
        ({name: ["kafka"] for name in "abc"}, "3 tests failed, more than 2"),
        ({}, "no test failed, something else did"),
    ],
    ids=["one", "two", "pure", "pure beside real", "three", "none"],
)
def test_few_tests_of_real_services_get_a_second_try(
    program: Any, failures: dict[str, list[str]], reason: str
) -> None:
    assert program.why_no_second_try(failures) == reason


@only_chaos
@pytest.mark.parametrize("workers", [(), ("-n1", "--dist=loadfile")], ids=["alone", "xdist"])
@pytest.mark.slow
@pytest.mark.integration
def test_what_passes_alone_passes_the_run_and_is_named(
    tmp_path: Path, workers: tuple[str, ...]
) -> None:
    done = run(tmp_path, "-k", "once or passes", *workers)
    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines()[-1].startswith("flaky: test_it.py::test_fails_once ")
    report = ElementTree.parse(tmp_path / "build" / "tests" / "here.xml")
    (flaky,) = report.iter("flakyFailure")
    assert not list(report.iter("failure"))
    outcomes = (tmp_path / "build" / "tests" / "outcomes.txt").read_text()
    assert outcomes == "here: passed\n    failed once: test_it.py::test_fails_once\n"
    assert "\nFAILED test_it.py::test_fails_once (call)\n" in done.stdout
    assert flaky.get("message")


@only_chaos
@pytest.mark.slow
@pytest.mark.integration
def test_what_fails_twice_fails_the_run(tmp_path: Path) -> None:
    done = run(tmp_path, "-k", "always or passes")
    assert done.returncode == 1
    assert "flaky" not in done.stdout


@only_chaos
@pytest.mark.slow
@pytest.mark.integration
def test_a_pure_test_gets_no_second_try(tmp_path: Path) -> None:
    done = run(tmp_path, "-k", "pure or passes")
    assert done.returncode == 1
    assert "no second try: a pure test never fails by luck" in done.stdout


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run `TESTS` in this folder, with the plugin that writes down the failures."""
    (folder / "test_it.py").write_text(TESTS)
    (folder / "conftest.py").write_text('pytest_plugins = ["support.failures", "support.markers"]')
    (folder / "pytest.ini").write_text(
        "[pytest]\nmarkers =\n  kafka\n  slow\n  spark\n  no_cover\n"
    )
    return subprocess.run(
        [sys.executable, str(PROGRAM), "here", "-q", "-p", "no:cacheprovider", *options],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests")},
        capture_output=True,
        text=True,
    )
