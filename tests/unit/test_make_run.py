"""`make run`: its ports are those that are said to make, and no others."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def run(*words: str, **environment: str) -> str:
    """The command that `make run` would run."""
    asked = ["make", "--no-print-directory", "-n", "run", *words]
    said = subprocess.run(
        asked,
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return said.stdout.splitlines()[-1]


def test_ports_and_data_can_be_said_so_that_two_run_beside_each_other() -> None:
    command = run("PORT=8081", "KAFKA_PORT=9093", "DATA=/tmp/other")
    assert command.endswith("--port 8081 --kafka-port 9093 --data-dir /tmp/other")


def test_a_port_in_the_environment_means_something_else() -> None:
    assert "--port" not in run(PORT="3000", DATA="/data")
