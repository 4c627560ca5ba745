"""Every import contract of pyproject.toml holds, and breaks on each import that it forbids.

A contract that can't break guards nothing: a package that was renamed, a layer that is optional by
mistake, or an import that is ignored too widely. So each import that a contract forbids is added to
the graph of our imports, one at a time, and the contract must find it. No file is changed.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from copy import deepcopy
from itertools import combinations, permutations
from pathlib import Path
from typing import Any

import grimp
import pytest
from importlinter import configuration
from importlinter.contracts.acyclic_siblings import AcyclicSiblingsContract
from importlinter.contracts.forbidden import ForbiddenContract
from importlinter.contracts.independence import IndependenceContract
from importlinter.contracts.layers import LayersContract
from importlinter.contracts.protected import ProtectedContract
from importlinter.domain.contract import Contract

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
OPTIONS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
CONTRACTS: list[dict[str, Any]] = OPTIONS["contracts"]
TYPES: dict[str, type[Contract]] = {
    "acyclic_siblings": AcyclicSiblingsContract,
    "forbidden": ForbiddenContract,
    "independence": IndependenceContract,
    "layers": LayersContract,
    "protected": ProtectedContract,
}
UNPLACED = "a_package_without_a_place"

Import = tuple[str, str]
"""Importer and imported."""


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    configuration.configure()
    return grimp.build_graph(
        *OPTIONS["root_packages"], include_external_packages=True, cache_dir=None
    )


def is_kept(contract: dict[str, Any], graph: grimp.ImportGraph) -> bool:
    # import-linter's own reader gives it booleans as text.
    given = {key: str(each) if isinstance(each, bool) else each for key, each in contract.items()}
    made = TYPES[contract["type"]](contract["name"], OPTIONS, given)
    return made.check(graph, verbose=False).kept


def is_kept_with(contract: dict[str, Any], graph: grimp.ImportGraph, *added: Import) -> bool:
    changed = deepcopy(graph)
    for importer, imported in added:
        for name in (importer, imported):
            if name not in changed.modules:
                changed.add_module(name)
        changed.add_import(importer=importer, imported=imported)
    return is_kept(contract, changed)


def parts(contract: dict[str, Any]) -> list[dict[str, Any]]:
    """A `forbidden` contract for each pair of names that it is written with; others as they are.

    A check takes time for each pair, so that to check the whole contract for the import of each
    pair would take the square of that.
    """
    if contract["type"] != "forbidden":
        return [contract]
    return [
        {**contract, "source_modules": [source], "forbidden_modules": [target]}
        for source in contract["source_modules"]
        for target in contract["forbidden_modules"]
    ]


def forbidden_imports(contract: dict[str, Any], graph: grimp.ImportGraph) -> Iterator[list[Import]]:
    """Each set of imports, most of them one import, that must break this contract by itself."""
    match contract["type"]:
        case "forbidden":
            for source in modules(contract["source_modules"], graph):
                for target in modules(contract["forbidden_modules"], graph):
                    if not overlap(source, target):
                        yield [(deepest(source, graph), target)]
        case "layers":
            for container in modules(contract.get("containers", [""]), graph):
                yield from against_layers(container, contract, graph)
        case "independence":
            for one, other in permutations(modules(contract["modules"], graph), 2):
                yield [(deepest(one, graph), other)]
        case "protected":
            for target in modules(contract["protected_modules"], graph):
                allowed = [*contract["allowed_importers"], *contract["protected_modules"]]
                strangers = (
                    each
                    for root in OPTIONS["root_packages"]
                    for each in (root, *sorted(graph.find_children(root)))
                    if not any(overlap(each, other) for other in allowed)
                )
                yield [(next(strangers), target)]
        case "acyclic_siblings":
            for ancestor in modules(contract["ancestors"], graph):
                one, other = sorted(graph.find_children(ancestor))[:2]
                yield [(one, other), (other, one)]
        case unknown:
            raise AssertionError(f"say here what breaks a contract of the type {unknown}")


def against_layers(
    container: str, contract: dict[str, Any], graph: grimp.ImportGraph
) -> Iterator[list[Import]]:
    prefix = f"{container}." if container else ""
    layers = [
        [
            name
            for each in layer.replace(":", "|").split("|")
            if (name := prefix + each.strip().strip("()")) in graph.modules
        ]
        for layer in contract["layers"]
    ]
    for above, below in combinations(layers, 2):
        for upper in above:
            for lower in below:
                yield [(deepest(lower, graph), upper)]
    for text, layer in zip(contract["layers"], layers, strict=True):
        if "|" in text:
            for one, other in permutations(layer, 2):
                yield [(deepest(one, graph), other)]
    if contract.get("exhaustive"):
        yield [(f"{container}.{UNPLACED}", deepest(layers[-1][0], graph))]


def modules(names: list[str], graph: grimp.ImportGraph) -> list[str]:
    """What the names stand for, which may have `*` and `**` in the place of a part."""
    return [
        each
        for name in names
        for each in (sorted(graph.find_matching_modules(name)) if "*" in name else [name])
    ]


def deepest(name: str, graph: grimp.ImportGraph) -> str:
    """Some module of this package that is as deep as any: a contract is on all that is in it."""
    if name not in graph.modules or graph.is_module_squashed(name):
        return name
    return max([name, *sorted(graph.find_descendants(name))], key=lambda each: each.count("."))


def overlap(one: str, other: str) -> bool:
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: str(contract["name"]))
def test_a_contract_holds_and_breaks_on_each_import_that_it_forbids(
    contract: dict[str, Any], graph: grimp.ImportGraph
) -> None:
    assert is_kept(contract, deepcopy(graph)), "see lint-imports"
    injected = [(part, each) for part in parts(contract) for each in forbidden_imports(part, graph)]
    assert injected, "it forbids nothing"
    missed = [each for part, each in injected if is_kept_with(part, graph, *each)]
    assert not missed, "these imports would not be noticed"


def test_every_package_of_ours_is_under_the_contracts() -> None:
    sources = ("functions", "local", "operator", "spark_jobs")
    packages = {
        each.parent.name for source in sources for each in ROOT.glob(f"{source}/*/__init__.py")
    }
    assert packages <= set(OPTIONS["root_packages"])
