"""Profiles (DSP-14) are taken in a process of its own: one in which thousands of tests have left
their threads has other things to show, and looks at them cost more than they may."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.gate import only_chaos

ALONE = Path(__file__).with_name("profiling_alone.py")


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.conformance("DSP-14")
def test_profiles_show_what_a_process_does() -> None:
    run_alone("not go", timeout=300)


@only_chaos  # Go compiles its pprof when it is first called: 38 s of CPU
@pytest.mark.go
@pytest.mark.timeout(600)
def test_gos_pprof_reads_profiles() -> None:
    run_alone("go", timeout=590)


def run_alone(selected: str, timeout: float) -> None:
    """Run the tests that this expression of markers selects; `timeout` in seconds."""
    command = [
        *(sys.executable, "-m", "pytest", "-q", "--no-cov", "-p", "no:cacheprovider"),
        *("-m", selected, str(ALONE)),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stdout[-5000:]
