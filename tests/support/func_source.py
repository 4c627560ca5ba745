"""The functions built from source as func's host builder does (FN-5, FN-13), without an image.

func can't be had through the package registries. What it does with a Python function is little: it
writes a project `service` beside a link to the function's folder, installs the project with all it
needs into `lib`, and starts `service/main.py` with that in PYTHONPATH. Where the packages can't be
had, tests are skipped with the reason, and fail in CI. Registered in tests/conftest.py.
"""

from __future__ import annotations

import venv
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.gate import IN_CI

from images.build import ROOT, ImageError, install_func_scaffolding, write_func_scaffolding


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
    """Built from functions/ as it is now: seconds, and with uv's cache one or two."""
    folder = tmp_path_factory.mktemp("func") / "build"
    write_func_scaffolding(folder, ROOT / "functions")
    venv.create(folder / ".venv")
    try:
        install_func_scaffolding(folder)
    except ImageError as error:
        if IN_CI:
            raise
        pytest.skip(f"the function can't be built from source: {error}")
    return Scaffolding(folder)
