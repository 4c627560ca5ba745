"""Imports: the picture in docs is as the code is now, and each contract refuses what it should."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import grimp
import pytest
from importlinter.application.use_cases import read_user_options
from importlinter.configuration import configure
from importlinter.contracts.forbidden import ForbiddenContract
from importlinter.contracts.layers import LayersContract

import import_picture

configure()
OPTIONS = read_user_options(str(Path(__file__).parents[2] / "pyproject.toml"))

APART = {
    *("knafka_operator.decide", "knafka_operator.operator", "knafka_operator.reconcile"),
    *("knafka_operator.runtime", "knafka_operator.scale"),
}
"""Packages that still import each other. Take out what no longer does, and put nothing in."""


@pytest.fixture(scope="module")
def arrows() -> dict[str, set[str]]:
    return import_picture.read()


def test_the_picture_is_up_to_date(arrows: dict[str, set[str]]) -> None:
    assert import_picture.PAGE.read_text() == import_picture.page(arrows), "run: make docs"


def test_no_packages_import_each_other(arrows: dict[str, set[str]]) -> None:
    assert [circle for circle in import_picture.circles(arrows) if not circle <= APART] == []


def test_packages_that_import_each_other_are_found() -> None:
    assert import_picture.circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == [{"b", "c"}]
    assert import_picture.circles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_arrows_that_follow_from_others_are_left_out() -> None:
    arrows = {"a": {"b", "c"}, "b": {"c"}, "c": set[str]()}
    assert import_picture.without_implied(arrows) == {"a": {"b"}, "b": {"c"}, "c": set()}
    drawn = import_picture.page({"knafka.a": {"knafka.b"}, "knafka.b": set()})
    assert "    knafka.a --> knafka.b\n" in drawn


def forbidden_imports(contract: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Importer and imported: one for each pair that the contract is about."""
    if contract["type"] == "forbidden":
        yield from product(contract["source_modules"], contract["forbidden_modules"])
        return
    layers = [[each.strip() for each in layer.split("|")] for layer in contract["layers"]]
    for container in contract.get("containers", [""]):
        prefix = f"{container}." if container else ""
        for upper, lower in pairwise(layers):
            yield prefix + lower[0].strip("()"), prefix + upper[0].strip("()")


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    roots = OPTIONS.session_options["root_packages"]
    return grimp.build_graph(*roots, include_external_packages=True, cache_dir=None)


@pytest.mark.parametrize(
    "contract", OPTIONS.contracts_options, ids=lambda contract: str(contract["name"])
)
def test_each_contract_fails_on_each_import_that_it_forbids(
    contract: dict[str, Any], graph: grimp.ImportGraph
) -> None:
    """A contract about a package that was renamed would hold whatever is imported."""
    kind = {"forbidden": ForbiddenContract, "layers": LayersContract}[contract["type"]]
    checked = kind(contract["name"], OPTIONS.session_options, contract)
    for importer, imported in forbidden_imports(contract):
        injected = deepcopy(graph)
        assert importer in injected.modules
        if imported not in injected.modules:
            injected.add_module(imported, is_squashed=True)
        injected.add_import(importer=importer, imported=imported)
        assert not checked.check(injected, verbose=False).kept, f"{importer} -> {imported}"
