"""requirements/*.lock, as `make lock` writes them: what pip makes of them tomorrow as well."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
LOCKS = sorted((ROOT / "requirements").glob("*.lock"))
_PIN = re.compile(r"^([A-Za-z][\w.-]*)(?:\[([\w,-]+)\])?==", re.MULTILINE)


def pinned(lock: Path) -> dict[str, set[str]]:
    """Name -> the extras that its pin names."""
    return {
        canonicalize_name(name): set(extras.split(",")) if extras else set()
        for name, extras in _PIN.findall(lock.read_text())
    }


# uv.lock has nothing of Knafka: it has what installs the others.
@pytest.mark.parametrize(
    "lock", [lock for lock in LOCKS if lock.stem != "uv"], ids=lambda lock: lock.stem
)
def test_a_lock_pins_what_the_core_needs(lock: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = {canonicalize_name(Requirement(line).name) for line in project["dependencies"]}
    assert needed <= pinned(lock).keys()


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_a_pin_names_the_extras_that_other_pins_want(lock: Path) -> None:
    """pip takes the newest release of `coverage[toml]` where `coverage` alone is pinned, and then
    refuses it, as nothing pins it: a lock would hold until the next release of such a package."""
    pins = pinned(lock)
    missing = []
    for name in pins:
        try:
            wanted = requires(name) or []
        except PackageNotFoundError:  # an image's own: not installed for tests
            continue
        for requirement in map(Requirement, wanted):
            marker = requirement.marker
            asked = marker is None or any(
                marker.evaluate({"extra": extra}) for extra in ("", *pins[name])
            )
            other = canonicalize_name(requirement.name)
            if asked and not requirement.extras <= pins.get(other, set()):
                missing.append(f"{name} wants {other}[{','.join(sorted(requirement.extras))}]")
    assert missing == []
