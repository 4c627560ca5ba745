"""A class name stands once in the product, so that a traceback and a search lead to one class."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path
from typing import Final

ROOT = Path(__file__).parents[2]
SOURCES: Final = ("functions", "local", "operator", "spark_jobs")


def test_a_class_name_stands_in_one_file_of_the_product() -> None:
    files = (path for source in SOURCES for path in (ROOT / source).rglob("*.py"))
    files_by_class = Counter(
        name
        for path in files
        for name in {
            node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)
        }
    )
    several = {name for name, count in files_by_class.items() if count > 1}
    assert several == set(), "another class has this name: say what yours is for"
