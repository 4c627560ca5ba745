"""A test that hangs after it failed ends its worker and is named (tests/support/watchdog.py)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.failures import markers_by
from support.gate import only_chaos

ROOT = Path(__file__).parents[2]
# The timeout isn't for the failing test, which ends at once: on a busy machine a short one passes
# within pytest itself, whose worker then ends with an internal error and reports no test.
TESTS = """
import pytest, threading

@pytest.fixture
def never_ending():
    yield
    threading.Event().wait()

@pytest.mark.timeout(8)
def test_hangs(never_ending):
    assert False

def test_comes_after():
    pass
"""


@only_chaos
@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.parametrize("handed_out", ["load", "loadfile"])
def test_a_test_that_fails_and_then_hangs_ends_its_worker_alone(
    tmp_path: Path, handed_out: str
) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "conftest.py").write_text(
        "from support import watchdog\n"
        "watchdog.OVERTIME = 0.5\n"
        'pytest_plugins = ["support.once_a_run", "support.watchdog", "support.failures"]\n'
    )
    done = subprocess.run(
        [
            sys.executable, "-m", "pytest", "-n1", f"--dist={handed_out}",
            "-p", "no:cacheprovider", "--failures-file=failed",
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests")},
        capture_output=True,
        text=True,
        timeout=90,
    )  # fmt: skip
    print(done.stdout, done.stderr)  # whole: an assertion's text is cut
    assert "crashed while running 'test_it.py::test_hangs'" in done.stdout
    assert "2 failed, 1 passed" in done.stdout
    # Whole files are handed out anew, from the test that has no end.
    assert done.stderr.count("in never_ending") == 1
    assert list(json.loads((tmp_path / "failed").read_text())) == ["test_it.py::test_hangs"]


@pytest.mark.parametrize(
    ("test", "markers"),
    [("tests/unit/test_a.py::test", []), ("tests/e2e/test_b.py::test", ["kafka"])],
)
def test_a_test_whose_worker_died_is_pure_by_its_folder(test: str, markers: list[str]) -> None:
    assert markers_by(test) == markers
