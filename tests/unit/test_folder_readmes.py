"""Each folder of code has a README whose tables name its modules: all of them, and no other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("functions/knafka", "operator/knafka_operator", "spark_jobs/knafka_jobs")
"""Each of their folders has a README."""
ROOMS = ("knafka_cli", "knafka_client", "knafka_console", "knafka_local")
"""Packages of `local`, which have one README each."""


def folders() -> Iterator[Path]:
    for package in PACKAGES:
        yield from {path.parent for path in (ROOT / package).rglob("*.py")}
    yield from (ROOT / "local" / room for room in ROOMS)


def rows(readme: Path) -> Iterator[str]:
    """What stands in backticks in the first column of its tables, in order."""
    for line in readme.read_text().splitlines():
        if line.startswith("|"):
            yield from re.findall(r"`([^`]+)`", line.split("|")[1])


@pytest.mark.parametrize(
    "folder", sorted(folders()), ids=lambda folder: str(folder.relative_to(ROOT))
)
def test_a_readme_names_the_modules_of_its_folder(folder: Path) -> None:
    named = list(rows(folder / "README.md"))
    modules = {path.name for path in folder.glob("*.py")} - {"__init__.py"}
    packages = {f"{path.parent.name}/" for path in folder.glob("*/__init__.py")}
    # Folders without Python in them need not be named, but may be.
    others = {name for name in named if name.endswith("/") and (folder / name).is_dir()}
    assert sorted(named) == sorted(modules | packages | others)
