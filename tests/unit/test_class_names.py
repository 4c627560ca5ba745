"""A class name stands once in the product, so that a traceback and a search lead to one class.

Names that still stand in two files are listed here with the number of files. The list may only
shrink: rename a class, then take its line out.
"""

from __future__ import annotations

import ast
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Final

ROOT = Path(__file__).parents[2]
SOURCES: Final = ("functions", "local", "operator", "spark_jobs")

STILL_SEVERAL: Final = {
    "Batch": 2,
    "Bus": 2,
    "Condition": 2,
    "Counts": 2,
    "Decision": 2,
    "Delivery": 2,
    "Dependency": 2,
    "Drains": 2,
    "Function": 2,
    "Kind": 2,
    "Lease": 2,
    "Observed": 2,
    "Origin": 2,
    "Partition": 2,
    "Receiver": 2,
    "Sensor": 2,
    "Status": 2,
    "Step": 3,
    "Subscriber": 2,
    "TriggerRecord": 2,
    "TrustBundles": 2,
    "_Parser": 2,
    "_Refused": 2,
    "_Server": 2,
}


@cache
def files_by_class() -> Counter[str]:
    """In how many files of the product a class of this name is defined at the top."""
    files = (path for source in SOURCES for path in (ROOT / source).rglob("*.py"))
    return Counter(
        name
        for path in files
        for name in {
            node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)
        }
    )


def test_a_class_name_stands_in_one_file_of_the_product() -> None:
    several = {name: count for name, count in files_by_class().items() if count > 1}
    new = {name for name, count in several.items() if count > STILL_SEVERAL.get(name, 1)}
    assert new == set(), "another class has this name: say what yours is for"


def test_the_list_of_names_that_stand_twice_only_shrinks() -> None:
    several = files_by_class()
    stale = {name for name, count in STILL_SEVERAL.items() if several[name] < count}
    assert stale == set(), "fewer classes have this name by now: correct its line, or take it out"
