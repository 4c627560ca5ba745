"""Mutation testing (`make mutants`): which mutants a source has, and which tests they are shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from mutants.covering import Coverage
from mutants.mutating import Mutant, mutants_of
from mutants.report import Result, Verdict, page
from mutants.running import Tree


def changed(source: str) -> set[str]:
    """The source with each of its mutants, those that compile."""
    return {
        each.applied_to(source).strip()
        for each in mutants_of("some.py", source)
        if each.compiles(source)
    }


@pytest.mark.parametrize(
    ("source", "mutants"),
    [
        ("a < b", {"(a <= b)"}),
        ("a is b", {"(a is not b)"}),
        ("a + b", {"(a - b)"}),
        ("a and b", {"(a or b)"}),
        ("x = not a", {"x = (a)"}),
        ("x = True", {"x = False"}),
        ("x = 1", {"x = 2"}),
        ("x = 'name'", {"x = 'nameXX'"}),
        ("free += 1", {"pass", "free -= 1", "free += 2"}),
        ("x = min(a, b)", {"x = (a)", "x = (b)"}),
        ("x = max(a, b, c)", {"x = min(a, b, c)"}),
        ("x = f(a, b=c)", {"x = f(a)"}),
        ("f()", {"pass"}),
        ("a.b = c", {"pass"}),
        ("x = [a for a in b if c]", {"x = [a for a in b if (not (c))]"}),
        ("x = -a", {"x = (a)"}),
    ],
)
def test_a_mutant_has_one_small_change(source: str, mutants: set[str]) -> None:
    assert changed(source) == mutants


@pytest.mark.parametrize(
    "source",
    [
        "x = 'words for people'",
        "'''docstring'''",
        "log.info('name', a < b)",
        "x: Literal['name']",
        "x = f'{a < b}'",
        "from a import b",
        "@dataclass(frozen=True)\nclass A: ...",
        "class A(Protocol):\n    def f(self) -> int:\n        return 1",
        "Alias = a | None",
        "Alias = One | Other | Third",
        "__all__ = ['name']",
    ],
)
def test_what_no_test_should_hold_is_left_alone(source: str) -> None:
    assert mutants_of("some.py", source) == []


def test_columns_are_counted_as_python_does_in_bytes() -> None:
    assert changed("x = {'ä': a < b}") == {"x = {'äXX': a < b}", "x = {'ä': (a <= b)}"}


def test_a_mutant_of_code_that_is_gone_is_refused() -> None:
    (mutant,) = mutants_of("some.py", "x = a < b")
    with pytest.raises(ValueError, match=r"some\.py has changed"):
        mutant.applied_to("x = a > b")


def test_a_mutant_is_shown_the_tests_of_its_line_those_first_that_run_little_else() -> None:
    coverage = Coverage(
        {"some.py": {1: [], 2: ["broad", "narrow"], 3: ["broad"]}},
        {"broad": 2.0, "narrow": 1.0},
    )
    assert coverage.tests_for("some.py", [2]) == ["narrow", "broad"]
    assert coverage.tests_for("some.py", [3]) == ["broad"]
    assert coverage.tests_for("some.py", [1]) == ["narrow", "broad"], "runs at import"
    assert coverage.tests_for("other.py", [1]) == []


def test_tests_are_chosen_that_fit_into_the_time() -> None:
    coverage = Coverage({}, {"a": 1.0, "slow": 9.0, "b": 1.0, "c": 1.0})
    assert coverage.quick(["a", "slow", "b", "c"], 2.0) == ["a", "b"]
    assert coverage.quick(["a", "slow", "b", "c"], 12.0) == ["a", "slow", "b", "c"]
    assert coverage.quick(["slow", "a"], 0.5) == ["a"], "one at least"
    assert coverage.quick([], 0.5) == []


def test_only_a_copy_of_the_source_is_ever_changed(tmp_path: Path) -> None:
    root, copy = tmp_path / "root", tmp_path / "copy"
    root.mkdir()
    (root / "some.py").write_text("x = a < b")
    (mutant,) = mutants_of("some.py", "x = a < b")
    tree = Tree(root, copy, {"some.py"})
    modified = (copy / "some.py").stat().st_mtime_ns
    with tree.holding(mutant):
        assert (copy / "some.py").read_text() == "x = (a <= b)"
    assert (copy / "some.py").read_text() == (root / "some.py").read_text() == "x = a < b"
    assert (copy / "some.py").stat().st_mtime_ns == modified, "its bytecode still fits"


def test_files_that_are_gone_leave_the_copy(tmp_path: Path) -> None:
    root, copy = tmp_path / "root", tmp_path / "copy"
    root.mkdir()
    (root / "some.py").write_text("")
    (root / "test_gone.py").write_text("")
    Tree(root, copy, {"some.py", "test_gone.py"})
    Tree(root, copy, {"some.py"})
    assert [path.name for path in copy.iterdir()] == ["some.py"]


def test_the_report_counts_by_folder_and_names_the_survivors() -> None:
    mutant = Mutant("core/some.py", 7, 7, "comparison", 0, 5, "a | b", "(a & b)")
    results = [
        Result(mutant, Verdict("killed", "test_it", 1, 1)),
        Result(mutant, Verdict("timeout", "", 1, 1)),
        Result(mutant, Verdict("survived", "", 2, 3)),
        Result(mutant, Verdict("no tests")),
    ]
    text = page(results, 5, 1, 60)
    assert "4 of 5 mutants (seed 1) in 1 minutes" in text
    assert "| all | 4 | 2 (50%) | 1 | 1 | 1 |" in text
    assert "- core/some.py:7 comparison" in text
    assert r"| core/some.py:7 | comparison | `a \| b` → `(a & b)` | 2 of 3 |" in text
