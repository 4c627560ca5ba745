"""Writes docs/conformance.md from the outcomes of a gate's tests.

    python tools/conformance_page.py build/tests/*.xml

The files are those that `make test`, `make test-integration` and `make test-cluster` leave behind
(`run_tests`). A line's tests are those whose marker `conformance` names the line; the page leaves
out tests that none of these commands ran.
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from collections.abc import Iterable, Mapping, Set
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from support.conformance import Outcomes, marked, table  # noqa: E402  # after the path to it

PAGE: Final = ROOT / "docs" / "conformance.md"


def outcomes(reports: Iterable[Path], ids_by_test: Mapping[str, Set[str]]) -> Outcomes:
    """Return the outcomes of each line's tests, from JUnit files; `ids_by_test` has the lines of a
    test."""
    counted = Outcomes()
    for report in reports:
        for case in ElementTree.parse(report).iter("testcase"):
            file = case.get("classname", "").rpartition(".")[2]
            test = f"{file}.py::{case.get('name', '').partition('[')[0]}"
            if ids := ids_by_test.get(test):
                counted.add(ids, test, outcome(case))
    return counted


def outcome(case: ElementTree.Element) -> str:
    """Return the outcome of one test case: `failed`, `passed` or `skipped`; a flaky test has
    passed."""
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    return "passed" if case.find("skipped") is None else "skipped"


def main(reports: Iterable[str]) -> None:
    """Write the page from these JUnit files."""
    ids_by_test: dict[str, set[str]] = defaultdict(set)
    for id_, test in marked(ROOT / "tests"):
        ids_by_test[test].add(id_)
    PAGE.write_text(table(outcomes(map(Path, reports), ids_by_test)))
    print(PAGE)


if __name__ == "__main__":
    if not sys.argv[1:]:
        sys.exit(__doc__)
    main(sys.argv[1:])
