"""Coverage is measured where it has to be and nowhere else (support/measuring.py)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.gate import only_chaos

ROOT = Path(__file__).parents[2]
TESTS = """
import sys, time
import pytest

@pytest.mark.no_cover
def test_that_is_not_measured():
    assert sys.gettrace() is None

def test_that_takes_long():
    assert sys.gettrace() is not None
    until = time.process_time() + 5
    while sys.gettrace() is not None and time.process_time() < until:
        pass
    assert sys.gettrace() is None

def test_after_it():
    assert sys.gettrace() is not None
"""
INI = """[pytest]
asyncio_default_fixture_loop_scope = function
"""


@only_chaos
@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.parametrize("workers", ["0", "1"])
def test_only_the_beginning_of_what_is_to_be_covered_is_measured(
    tmp_path: Path, workers: str
) -> None:
    """In a worker of pytest-xdist, pytest-cov measures twice; `no_cover` stopped one of them."""
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["support.measuring"]')
    (tmp_path / "pytest.ini").write_text(INI)
    # As if this test weren't measured itself.
    environment = {name: value for name, value in os.environ.items() if "COV" not in name}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", workers, "--cov=.", "--cov-report="],
        cwd=tmp_path, env={**environment, "PYTHONPATH": str(ROOT / "tests")},
        capture_output=True, text=True,
    )  # fmt: skip
    assert "3 passed" in done.stdout, done.stdout
