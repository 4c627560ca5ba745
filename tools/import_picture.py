"""Writes docs/design/imports.md: which package imports which, read from the code.

    python tools/import_picture.py

A node is a package of one of the source roots, or a module beside such packages; a root without
packages of its own is one node. An arrow that follows from other
arrows is left out. Launchers (`__main__`) are left out too: they put everything together.
tests/unit/test_imports.py checks that the page is up to date and that no arrows form a circle.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Final, TypeAlias

import grimp

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "design" / "imports.md"
ROOTS: Final = (
    *("knafka_cli", "knafka_local", "knafka_console", "knafka_client"),
    *("knafka_operator", "knafka_jobs", "knafka"),
)

Arrows: TypeAlias = Mapping[str, Collection[str]]
"""Importing node -> the nodes that it imports."""

HEAD: Final = """\
# Imports

Which package imports which. Written by `make docs` from the code: don't edit it. An arrow goes from
the package that imports to the one that is imported; arrows that follow from others are left out,
and so are launchers (`__main__`). import-linter holds the directions (`pyproject.toml`).
"""


def read(roots: Iterable[str] = ROOTS) -> dict[str, set[str]]:
    """Return the arrows between the nodes of these roots, from the installed code; every node is a
    key."""
    graph = grimp.build_graph(*roots, cache_dir=None)
    nodes = {module: _node(module, graph.modules) for module in graph.modules}
    arrows: dict[str, set[str]] = defaultdict(set)
    for module, node in nodes.items():
        if node is None:
            continue
        imported = {nodes[other] for other in graph.find_modules_directly_imported_by(module)}
        arrows[node] |= {other for other in imported if other is not None and other != node}
    used = {imported_node for imported in arrows.values() for imported_node in imported}
    return {
        node: imported_nodes
        for node, imported_nodes in arrows.items()
        if imported_nodes or node in used
    }


def _node(module: str, modules: Collection[str]) -> str | None:
    """Return the node that a module belongs to; None: it is a launcher."""
    parts = module.split(".")
    root = parts[0]
    has_packages = any(
        other_module.startswith(f"{root}.") and other_module.count(".") > 1
        for other_module in modules
    )
    if not has_packages:
        return root
    if parts[1:] == ["__main__"]:
        return None
    return ".".join(parts[:2])


def circles(arrows: Arrows) -> list[set[str]]:
    """Return the groups of nodes that all import each other, directly or through others."""
    reach = {node: _reachable_from(node, arrows) for node in arrows}
    groups: list[set[str]] = []
    for node in arrows:
        circle = {node} | {other_node for other_node in reach[node] if node in reach[other_node]}
        if len(circle) > 1 and circle not in groups:
            groups.append(circle)
    return groups


def without_implied(arrows: Arrows) -> dict[str, set[str]]:
    """Return the arrows without those that follow from others."""
    kept = {node: set(imported) for node, imported in arrows.items()}
    for node in sorted(kept):
        for imported_node in sorted(kept[node]):
            kept[node].remove(imported_node)
            if imported_node not in _reachable_from(node, kept):
                kept[node].add(imported_node)
    return kept


def _reachable_from(start: str, arrows: Arrows) -> set[str]:
    """Return all nodes that can be reached from `start`; `start` itself only by a circle."""
    reached: set[str] = set()
    ahead = list(arrows.get(start, ()))
    while ahead:
        node = ahead.pop()
        if node not in reached:
            reached.add(node)
            ahead.extend(arrows.get(node, ()))
    return reached


def page(arrows: Arrows) -> str:
    """Return the whole page, with the picture as Mermaid text."""
    lines = ["", "```mermaid", "flowchart TD"]
    for root in ROOTS:
        of_root = sorted(node for node in arrows if node.split(".")[0] == root)
        if of_root == [root]:
            lines.append(f"    {root}[{root}]")
        elif of_root:
            lines.append(f"    subgraph {root}")
            lines += [f"        {node}[{node.partition('.')[2] or node}]" for node in of_root]
            lines.append("    end")
    for node, imported in sorted(without_implied(arrows).items()):
        lines += [f"    {node} --> {imported_node}" for imported_node in sorted(imported)]
    return HEAD + "\n".join([*lines, "```", ""])


if __name__ == "__main__":
    PAGE.write_text(page(read()))
    print(PAGE)
