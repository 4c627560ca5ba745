"""The house stays whole: what the layout of this repository must never lose."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_top_level_directories_are_source_roots_not_packages() -> None:
    assert list(ROOT.glob("*/__init__.py")) == []


def test_the_standard_library_operator_is_not_shadowed_in_the_root() -> None:
    command = [sys.executable, "-S", "-c", "import collections, operator; operator.add"]
    subprocess.run(command, cwd=ROOT, check=True)


@pytest.mark.slow
def test_no_client_is_opened_by_importing_the_functions() -> None:
    """functions-framework imports in the server's master and serves in a fork."""
    probe = (
        "import sys; sys.path.insert(0, 'functions'); import main, threading; "
        "assert threading.active_count() == 1, threading.enumerate()"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", probe], cwd=ROOT, check=True)


def test_documents_are_validated_only_where_errors_become_sentences() -> None:
    """Pydantic's own errors end with a link to its manual. A program's outermost call turns those
    that a fault lets through into a sentence: see `documents.explained_faults`."""
    validates = re.compile(r"\.(model_validate|validate_(json|python|strings))\b|model_validate_")
    found = {
        path.name
        for source in ("functions", "local", "operator", "spark_jobs")
        for path in (ROOT / source).rglob("*.py")
        if validates.search(path.read_text())
    }
    assert found == {"documents.py", "field_errors.py"}
    for main in ("local/knafka_cli/command_line.py", "spark_jobs/knafka_jobs/__main__.py"):
        assert "with explained_faults()" in (ROOT / main).read_text()
