"""The house stays whole: what the layout of this repository must never lose."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


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
