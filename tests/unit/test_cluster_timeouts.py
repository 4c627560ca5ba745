"""The time in which a cluster starts is the first test's that runs (tests/support/cluster.py)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.gate import only_chaos

ROOT = Path(__file__).parents[2]
TESTS = """
import pytest

pytestmark = pytest.mark.cluster

@pytest.mark.skipif(True, reason="left to make chaos")
def test_that_is_left_out():
    pass

@pytest.mark.skipif(False, reason="left to nobody")
def test_that_comes_first(request):
    assert request.node.get_closest_marker("timeout").args == (1800.0,)

def test_that_comes_after(request):
    assert request.node.get_closest_marker("timeout") is None
"""


@only_chaos
@pytest.mark.slow
@pytest.mark.integration
def test_the_first_test_of_a_file_that_is_not_skipped_waits_for_the_cluster(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "conftest.py").write_text(
        "from support.cluster import pytest_collection_modifyitems\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'tests'}:{ROOT / 'tools'}"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "2 passed, 1 skipped" in done.stdout, done.stdout
