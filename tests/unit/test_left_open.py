"""A failed test fails no other one by what it left open (support/left_open.py)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = """
import gc, socket

def test_that_leaves_a_socket_open():
    left_open = [socket.socket()]
    left_open.append(left_open)
    assert left_open is None

def test_next():
    gc.collect()
"""
INI = """[pytest]
filterwarnings = error
asyncio_default_fixture_loop_scope = function
"""


@pytest.mark.slow
def test_what_a_failed_test_left_open_fails_no_other_one(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["support.left_open"]')
    (tmp_path / "pytest.ini").write_text(INI)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT / "tests")},
        capture_output=True, text=True,
    )  # fmt: skip
    assert "1 failed, 1 passed" in done.stdout, done.stdout
