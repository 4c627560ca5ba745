"""The functions built from source as func's host builder does (FN-5, FN-13), without an image.

func can't be had through the package registries. What it does with a Python function is little: it
writes a project `service` beside a link to the function's folder, installs the project with all it
needs into `lib`, and starts `service/main.py` with that in PYTHONPATH. Where the packages can't be
had, tests are skipped with the reason, and fail in CI. Registered in tests/conftest.py.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.gate import IN_CI

from images.build import ROOT, write_func_scaffolding


@dataclass(frozen=True, slots=True)
class Scaffolding:
    """The folder that the image would have as /func/.func/builds/by-hash/HASH."""

    folder: Path

    @property
    def command(self) -> tuple[str, ...]:
        """Starts the service with a Python that has nothing but what was installed for it."""
        environment = ("env", f"PYTHONPATH={self.folder / 'lib'}")
        python = self.folder / ".venv" / "bin" / "python"
        return (*environment, str(python), str(self.folder / "service" / "main.py"))


@pytest.fixture(scope="session")
def func_scaffolding(tmp_path_factory: pytest.TempPathFactory) -> Scaffolding:
    """Built from functions/ as it is now: seconds, with uv's cache a second."""
    folder = tmp_path_factory.mktemp("func")
    write_func_scaffolding(folder, ROOT / "functions")
    python = folder / ".venv"
    for command in (
        ("venv", "--python", sys.executable, str(python)),
        # uv takes a folder for unchanged while its pyproject.toml is.
        (
            "pip", "install", "--python", str(python), "--target", "lib", "--link-mode=hardlink",
            "--refresh-package=function", "--refresh-package=service", ".",
        ),
    ):  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-m", "uv", "--quiet", *command],
            cwd=folder, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            if IN_CI:
                pytest.fail(f"uv {command[0]}: {done.stderr}")
            pytest.skip(f"the function can't be built from source: {done.stderr[-500:]}")
    return Scaffolding(folder)
