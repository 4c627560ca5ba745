"""The build step that compiles the hot modules, without a compiler; tests/compiled has the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.compiled import ROOT, compiled_modules

from compiled.hatch_build import SWITCH, CompiledModules, misplaced_awaits


def hook(folder: Path) -> CompiledModules:
    unused: Any = None
    return CompiledModules(str(ROOT), {"modules": []}, unused, unused, str(folder), "wheel")


@pytest.mark.parametrize("name", compiled_modules())
def test_each_listed_module_is_one_of_the_data_plane_that_mypyc_may_compile(name: str) -> None:
    """mypyc compiles `await` in a handler wrongly (docs/decisions/0050)."""
    file = ROOT / "functions" / Path(*name.split(".")).with_suffix(".py")
    assert misplaced_awaits(file) == []


@pytest.mark.parametrize(
    ("statement", "is_wrong"),
    [
        ("await step()", False),
        ("try:\n        await step()\n    finally:\n        stop()", False),
        ("try:\n        step()\n    finally:\n        await stop()", True),
        (
            "try:\n        step()\n    except OSError:\n        if True:\n            await stop()",
            True,
        ),
        ("try:\n        step()\n    finally:\n        async with lock:\n            pass", True),
    ],
)
def test_an_await_in_a_handler_is_found(tmp_path: Path, statement: str, is_wrong: bool) -> None:
    file = tmp_path / "module.py"
    file.write_text(f"async def run() -> None:\n    {statement}\n")
    assert bool(misplaced_awaits(file)) == is_wrong


@pytest.mark.parametrize(
    ("version", "switch"), [("standard", None), ("standard", "0"), ("editable", "1")]
)
def test_nothing_is_compiled_unless_a_wheel_is_built_with_the_switch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, switch: str | None
) -> None:
    monkeypatch.delenv(SWITCH, raising=False)
    if switch is not None:
        monkeypatch.setenv(SWITCH, switch)
    build_data: dict[str, Any] = {"force_include": {}}
    hook(tmp_path).initialize(version, build_data)
    assert build_data == {"force_include": {}}
