"""Profiles (DSP-14) are taken in a process of its own: one in which thousands of tests have left
their threads has other things to show, and looks at them cost more than they may."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ALONE = Path(__file__).with_name("profiling_alone.py")


@pytest.mark.slow  # a pytest of its own, for more than a minute
@pytest.mark.conformance("DSP-14")
def test_profiles_show_what_a_process_does() -> None:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--no-cov",
        "-p",
        "no:cacheprovider",
        str(ALONE),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-5000:]
