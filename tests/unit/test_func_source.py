"""functions/ as a project that func's host builder installs (FN-1, FN-2, FN-13)."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from knafka.core.errors import InvalidDocument
from knafka.dispatcher.function import Dispatcher
from knafka.hosted import TARGET, new
from knafka.receiver.function import ReceiverFunction
from knafka.sensor.function import SensorFunction

ROOT = Path(__file__).parents[2]
FUNCTIONS = ROOT / "functions"


def project(folder: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text())
    return loaded


def requirements(folder: Path) -> set[Requirement]:
    return {Requirement(line) for line in project(folder)["project"]["dependencies"]}


def test_both_projects_have_the_same_dependencies() -> None:
    """One list would need a build of the data plane from outside its folder, which func can't do:
    the link in its scaffolding leads to the folder of func.yaml."""
    assert requirements(FUNCTIONS) == requirements(ROOT)
    for key in ("version", "requires-python", "license"):
        assert project(FUNCTIONS)["project"][key] == project(ROOT)["project"][key], key


def test_the_wheel_is_the_data_plane_under_the_name_that_func_asks_for(tmp_path: Path) -> None:
    """FN-13: pip refuses another name, and the scaffolding imports a package of that name."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=FUNCTIONS, check=True, capture_output=True)
    (wheel,) = tmp_path.iterdir()
    assert wheel.name.startswith("function-")
    sources = {
        str(path.relative_to(FUNCTIONS))
        for package in ("function", "knafka")
        for path in (FUNCTIONS / package).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert packed == sources


def test_what_the_image_and_the_command_line_install_has_no_package_of_that_name() -> None:
    packages = project(ROOT)["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert "functions/knafka" in packages
    assert "functions/function" not in packages


@pytest.mark.slow
@pytest.mark.parametrize("target", ["", "dispatch", "sense"])
def test_func_needs_no_functions_framework_and_imports_one_function(target: str) -> None:
    """FF-4: its cloudevents doesn't fit func's runtime. What isn't started isn't imported."""
    probe = (
        "import sys; sys.modules['functions_framework'] = None; from function import new; new(); "
        "import threading; assert threading.active_count() == 1; "
        "print(*(each for each in ('receiver', 'dispatcher', 'sensor')"
        " if f'knafka.{each}.function' in sys.modules))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", probe], cwd=FUNCTIONS, env={TARGET: target},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert ran.stdout.split() == [
        {"": "receiver", "dispatch": "dispatcher", "sense": "sensor"}[target]
    ]


@pytest.mark.parametrize(
    ("target", "function"),
    [
        ("", ReceiverFunction),
        ("receive", ReceiverFunction),
        ("dispatch", Dispatcher),
        ("sense", SensorFunction),
    ],
)
def test_the_target_names_the_function(
    target: str, function: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TARGET, target)
    assert isinstance(new()._function, function)


def test_another_target_is_refused_with_what_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `python -m knafka` does: a receiver would be Ready in a dispatcher's place."""
    monkeypatch.setenv(TARGET, "recieve")
    with pytest.raises(InvalidDocument, match="FUNCTION_TARGET: invalid value: 'recieve': want"):
        new()
