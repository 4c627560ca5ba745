"""A build hook of hatchling's: compiles the modules of the hot paths by mypyc into the wheel.

    KNAFKA_COMPILED=1 python -m hatchling build -t wheel        (`make compiled`)

Without `KNAFKA_COMPILED=1`, and in every editable installation, nothing is compiled: the wheel is
pure. With it, the wheel holds a compiled module beside each listed .py file: Python imports the
compiled one, and tracebacks still find the line in the other. Why, and what is left pure:
docs/decisions/0050-compiled.md. Needs gcc, Python's headers, mypy and setuptools.
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SWITCH: Final = "KNAFKA_COMPILED"
"""Environment variable; `1`: compile."""
PACKAGE: Final = Path("functions/knafka")
BUILD: Final = Path("build/compiled")
"""Folder of what mypyc and gcc leave behind, which a later build reuses."""
WAITS: Final = (ast.Await, ast.AsyncFor, ast.AsyncWith)


class CompiledModules(BuildHookInterface[Any]):
    """Adds the compiled modules to a wheel; `modules` in its table of pyproject.toml lists them."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and have the wheel hold the result and the tag of this Python and platform."""
        if version == "editable" or os.environ.get(SWITCH) != "1":
            return
        root = Path(self.root)
        libraries = compile_modules(root, self.config["modules"])
        built = root / BUILD / "libraries"
        build_data["force_include"].update(
            {str(path): path.relative_to(built).as_posix() for path in libraries}
        )
        build_data["pure_python"] = False
        build_data["infer_tag"] = True


def compile_modules(root: Path, modules: list[str]) -> list[Path]:
    """Compile modules of the package, by their names, and return the libraries that were made:
    one for each module, and one that holds the code of all. `root` is the repository's.

    They are compiled as a group, in a copy, so that a call from one to another costs no lookup and
    the checkout stays pure. A traceback has a file's path from the package's parent folder.
    """
    build = root / BUILD
    source, libraries = build / "source", build / "libraries"
    for folder in (source, libraries):
        shutil.rmtree(folder, ignore_errors=True)
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(root / PACKAGE, source / PACKAGE.name, ignore=ignored)
    files = [f"{name.replace('.', '/')}.py" for name in modules]
    if misplaced := [where for file in files for where in misplaced_awaits(source / file)]:
        raise SystemExit(f"mypyc compiles these wrongly: await in a handler, {misplaced}")
    command = [
        sys.executable, str(Path(__file__).with_name("run_mypyc.py")), str(build),
        str(root / "pyproject.toml"), *files,
    ]  # fmt: skip
    done = subprocess.run(
        command, cwd=source, env={**os.environ, "MYPYPATH": str(source)},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    (build / "log").write_text(done.stdout)
    if done.returncode:
        raise SystemExit(f"the modules can't be compiled:\n{done.stdout[-3000:]}")
    return sorted(libraries.rglob("*.so"))


def misplaced_awaits(file: Path) -> list[str]:
    """Return each `await` in an `except` or `finally` of this file, as file and line.

    While such a coroutine of mypyc's (2.4.1) waits, and after it has raised, the exception stays
    the thread's current one; a later coroutine with a `finally` may then raise it, though nothing
    failed there.
    """
    found = []
    for statement in ast.walk(ast.parse(file.read_text())):
        if isinstance(statement, ast.Try):
            handlers = [each for handler in statement.handlers for each in handler.body]
            for each in (*handlers, *statement.finalbody):
                waits = (node for node in ast.walk(each) if isinstance(node, WAITS))
                found += [f"{file.name}:{node.lineno}" for node in waits]
    return found
