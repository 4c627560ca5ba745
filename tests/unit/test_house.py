"""The house stays whole: what the layout of this repository must never lose."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

HARMLESS = ("from __future__ import annotations", "import os", "import signal")
"""Imports that take no time."""


def test_top_level_directories_are_source_roots_not_packages() -> None:
    assert list(ROOT.glob("*/__init__.py")) == []


def test_the_standard_library_operator_is_not_shadowed_in_the_root() -> None:
    command = [sys.executable, "-S", "-c", "import collections, operator; operator.add"]
    subprocess.run(command, cwd=ROOT, check=True)


def test_no_client_is_opened_by_importing_the_functions() -> None:
    """functions-framework imports in the server's master and serves in a fork."""
    probe = (
        "import sys; sys.path.insert(0, 'functions'); import main, threading; "
        "assert threading.active_count() == 1, threading.enumerate()"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", probe], cwd=ROOT, check=True)


@pytest.mark.parametrize(
    "launcher", ["functions/knafka/__main__.py", "operator/knafka_operator/__main__.py"]
)
def test_a_container_that_still_imports_ends_when_it_is_told_to(launcher: str) -> None:
    """As its first process it has no default action for SIGTERM, and importing takes a while."""
    module = ast.parse((ROOT / launcher).read_text())
    slow = [
        number
        for number, statement in enumerate(module.body)
        if isinstance(statement, ast.Import | ast.ImportFrom)
        and ast.unparse(statement) not in HARMLESS
    ]
    handled = [
        number
        for number, statement in enumerate(module.body)
        if ast.unparse(statement).startswith("signal.signal(signal.SIGTERM, ")
    ]
    assert handled
    assert handled[0] < slow[0]
