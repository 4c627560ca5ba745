"""Has the tests run against the compiled modules, for `make test-compiled`.

`KNAFKA_TEST_COMPILED=1` and a `PYTHONPATH` that begins with an unpacked wheel: the run is refused
unless each module that pyproject.toml lists is a compiled one. Registered by `pytest_plugins` in
tests/conftest.py.

What no compiled module can do is here, in one place, so that no test needs a mark of its own:

- A method, a function or a constant of a compiled module can't be replaced: calls are calls of C
  functions, and constants are part of the code. A test that tries is skipped (`no_replacements`).
"""

from __future__ import annotations

import importlib
import os
import tomllib
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pytest

COMPILED: Final = os.environ.get("KNAFKA_TEST_COMPILED") == "1"
"""Whether the tests run against compiled modules."""
ROOT: Final = Path(__file__).parents[2]


@cache
def compiled_modules() -> Sequence[str]:
    """The names of the modules that are compiled, from pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    hook = project["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]
    modules: Sequence[str] = hook["modules"]
    return modules


def is_compiled(module: str) -> bool:
    """Whether the module that an import finds by this name is a compiled one."""
    file = importlib.import_module(module).__file__
    return file is not None and file.endswith(tuple(EXTENSION_SUFFIXES))


def pytest_configure() -> None:
    if COMPILED and (pure := [name for name in compiled_modules() if not is_compiled(name)]):
        raise pytest.UsageError(f"these modules aren't compiled: {', '.join(pure)}")


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave the tests of compiled modules themselves to `make test-compiled`."""
    return True if collection_path == ROOT / "tests" / "compiled" and not COMPILED else None


def pytest_report_header() -> str | None:
    return f"{len(compiled_modules())} modules are compiled" if COMPILED else None


@pytest.fixture(autouse=COMPILED, scope="session")
def no_replacements() -> Iterator[None]:
    """Skip each test that replaces what compiled code doesn't look up."""
    replace = pytest.MonkeyPatch.setattr

    def setattr_(patch: pytest.MonkeyPatch, target: Any, *arguments: Any, **options: Any) -> None:
        if isinstance(target, (ModuleType, type)) and is_fixed(target, str(arguments[0])):
            pytest.skip(f"replaces {arguments[0]} of {target.__name__}, which is compiled")
        try:
            replace(patch, target, *arguments, **options)
        except AttributeError as error:
            if type(target).__module__ not in compiled_modules():
                raise
            pytest.skip(f"replaces a method of an object, whose class is compiled: {error}")

    pytest.MonkeyPatch.setattr = setattr_  # type: ignore[method-assign,assignment]
    yield
    pytest.MonkeyPatch.setattr = replace  # type: ignore[method-assign]


def is_fixed(owner: ModuleType | type, name: str) -> bool:
    """Whether this attribute is part of compiled code: a method, a constant, or what the module
    itself defines. What it imports from a pure module is looked up at each use."""
    modules = compiled_modules()
    if isinstance(owner, type):
        return owner.__module__ in modules
    value = getattr(owner, name)
    origin = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", "")
    return owner.__name__ in modules and (not origin or origin in modules)
