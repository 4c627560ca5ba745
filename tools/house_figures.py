"""Prints the figures of issue 33 for one checkout: names, lines, large folders and files.

    python tools/house_figures.py [ROOT]

docs/design/house.md shows them before and after; tests/unit/test_house.py holds the rules.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

SOURCES: Final = ("functions", "operator", "local", "spark_jobs")
"""Source roots of the product."""
VAGUE_NAMES: Final = ("each", "found", "wanted", "before", "who", "at", "of")
"""Names of variables and parameters that don't say what they hold."""
MAX_FILE_LINES: Final = 400
"""Lines of a file that needs no reason."""
MAX_FOLDER_FILES: Final = 20
"""Python files in one folder."""


def product_files(root: Path) -> Iterator[Path]:
    """Yield all Python files of the product, sorted within each source root."""
    for source in SOURCES:
        yield from sorted((root / source).rglob("*.py"))


def vague_variables(root: Path) -> Counter[str]:
    """Return how often variables and parameters with each of `VAGUE_NAMES` are bound."""
    counts: Counter[str] = Counter()
    for path in product_files(root):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                counts[node.id] += 1
            elif isinstance(node, ast.arg):
                counts[node.arg] += 1
    return Counter({name: counts[name] for name in VAGUE_NAMES})


def classes_in_several_files(root: Path) -> dict[str, int]:
    """Return the names of classes that several files define, with the number of files."""
    files: Counter[str] = Counter()
    for path in product_files(root):
        body = ast.parse(path.read_text()).body
        files.update({node.name for node in body if isinstance(node, ast.ClassDef)})
    return {name: count for name, count in sorted(files.items()) if count > 1}


def lines_by_package(root: Path) -> Counter[str]:
    """Return the number of lines of the product's files, by import package."""
    lines: Counter[str] = Counter()
    for path in product_files(root):
        lines[path.relative_to(root).parts[1]] += len(path.read_text().splitlines())
    return lines


def large_folders(root: Path) -> dict[str, int]:
    """Return the folders with more than `MAX_FOLDER_FILES` Python files, with their number."""
    files = Counter(str(path.parent.relative_to(root)) for path in product_files(root))
    return {folder: count for folder, count in sorted(files.items()) if count > MAX_FOLDER_FILES}


def large_files(root: Path) -> dict[str, int]:
    """Return the files with more than `MAX_FILE_LINES` lines, with their number."""
    lines = {
        str(path.relative_to(root)): len(path.read_text().splitlines())
        for path in product_files(root)
    }
    return {path: count for path, count in sorted(lines.items()) if count > MAX_FILE_LINES}


def main() -> None:
    """Print all figures of the checkout that the command line names, or of this one."""
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[1]
    print("vague variables:", dict(vague_variables(root)))
    classes = classes_in_several_files(root)
    print(f"class names in several files: {len(classes)}: {', '.join(classes)}")
    lines = lines_by_package(root)
    print(f"lines: {lines.total()}: {dict(lines)}")
    print("folders:", large_folders(root))
    print("files:", large_files(root))


if __name__ == "__main__":
    main()
