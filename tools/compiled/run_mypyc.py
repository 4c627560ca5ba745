"""Runs mypyc and gcc over the modules that `hatch_build` lists, in the folder of their source.

python run_mypyc.py BUILD MYPY_CONFIG FILE...
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from mypyc.build import mypycify
from setuptools import setup

OPTIMIZATION: Final = "2"
"""gcc's: with 3 it takes longer, and an event costs the same."""


def main(build: Path, config: str, files: Sequence[str]) -> None:
    """Compile `files`, named from the current folder, into `build`/libraries."""
    options = [f"--config-file={config}", f"--cache-dir={build / 'mypy'}"]
    extensions = mypycify(
        [*options, *files], opt_level=OPTIMIZATION, debug_level="0", multi_file=True,
        target_dir=str(build / "c"), group_name="knafka",
    )  # fmt: skip
    places = [f"--build-lib={build / 'libraries'}", f"--build-temp={build / 'objects'}"]
    setup(name="knafka", packages=[], ext_modules=extensions, script_args=["build_ext", *places])


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
