"""The picture of imports in docs: as the code is now, and without a circle."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import grimp
import pytest

import import_picture


@pytest.fixture(scope="module")
def arrows() -> dict[str, set[str]]:
    return import_picture.read()


def test_the_picture_is_up_to_date(arrows: dict[str, set[str]]) -> None:
    assert import_picture.PAGE.read_text() == import_picture.page(arrows), "run: make docs"


def test_no_packages_import_each_other(arrows: dict[str, set[str]]) -> None:
    assert import_picture.circles(arrows) == []


def test_packages_that_import_each_other_are_found() -> None:
    assert import_picture.circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == [{"b", "c"}]
    assert import_picture.circles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_arrows_that_follow_from_others_are_left_out() -> None:
    arrows = {"a": {"b", "c"}, "b": {"c"}, "c": set[str]()}
    assert import_picture.without_implied(arrows) == {"a": {"b"}, "b": {"c"}, "c": set()}
    drawn = import_picture.page({"knafka.a": {"knafka.b"}, "knafka.b": set()})
    assert "    knafka.a --> knafka.b\n" in drawn


ROOT = Path(__file__).parents[2]
PURE_OPERATOR = "What is declared and what is decided is pure: it knows no client"


@pytest.fixture(scope="module")
def pyproject() -> dict[str, Any]:
    tools: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    return tools


@pytest.fixture(scope="module")
def pure(pyproject: dict[str, Any]) -> list[str]:
    """The packages and modules of the operator that import-linter holds to be pure."""
    contracts = pyproject["importlinter"]["contracts"]
    modules: list[str] = next(
        each["source_modules"] for each in contracts if each["name"] == PURE_OPERATOR
    )
    return modules


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    """Of the module, as a test alone would leave the threads behind that grimp keeps."""
    return grimp.build_graph("knafka_operator", cache_dir=None)


def test_what_is_pure_in_the_operator_imports_nothing_of_it_that_is_not(
    graph: grimp.ImportGraph, pure: list[str]
) -> None:
    def is_pure(module: str) -> bool:
        return any(module == each or module.startswith(f"{each}.") for each in pure)

    impure = {
        (module, imported)
        for module in filter(is_pure, graph.modules)
        for imported in graph.find_modules_directly_imported_by(module)
        if not is_pure(imported)
    }
    assert impure == set()


def test_what_decides_declares_or_admits_is_pure(graph: grimp.ImportGraph, pure: list[str]) -> None:
    modules = {
        module
        for module in graph.modules
        if module.rpartition(".")[2] in ("decide", "admission", "manifests", "model")
    }
    assert modules - set(pure) == set()


def test_coverage_counts_what_is_pure(pyproject: dict[str, Any], pure: list[str]) -> None:
    assert pyproject["coverage"]["run"]["source"] == ["knafka.core", *pure]
