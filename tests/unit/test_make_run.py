"""`make run`: its ports are those that are said to make, and no others."""

from __future__ import annotations

import os
import re
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


def test_the_help_has_every_target_that_is_described() -> None:
    told = subprocess.run(
        ["make", "--no-print-directory", "help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    described = re.findall(r"^([\w-]+):.* ## ", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert [line.split()[0] for line in told.splitlines()] == described


@pytest.mark.parametrize("uv_exit_code", [0, 1, None])
def test_what_uv_can_not_install_is_installed_by_pip(
    tmp_path: Path, uv_exit_code: int | None
) -> None:
    """None: there is no uv for this machine."""
    commands = tmp_path / "commands"
    for program, exit_code in (("python", 0), ("uv", uv_exit_code)):
        if exit_code is not None:
            script = tmp_path / "bin" / program
            script.parent.mkdir(exist_ok=True)
            script.write_text(f'#!/bin/sh\necho "{program} $*" >>{commands}\nexit {exit_code}\n')
            script.chmod(0o755)
    made = f"{tmp_path}/.local"
    subprocess.run(["make", f"VENV={tmp_path}", made], cwd=ROOT, capture_output=True, check=True)
    from_lock = [line for line in commands.read_text().splitlines() if "local.lock" in line]
    by_uv = f"uv pip install --python {tmp_path}/bin/python --compile-bytecode"
    by_pip = "python -m pip --disable-pip-version-check install"
    ways = {0: [by_uv], 1: [by_uv, by_pip], None: [by_pip]}[uv_exit_code]
    assert from_lock == [f"{way} --require-hashes -r requirements/local.lock" for way in ways]
