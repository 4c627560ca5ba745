"""Real servers for the tests that Go compiles, once, into the user's cache directory for Knafka.

By `make collector` and `make s3-gateway`, and by the tests in CI (`CI=true`). Each takes most of a
minute, so elsewhere the tests that need one are skipped until it is there.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import platformdirs
import pytest
from support.gate import IN_CI

OPTIONS: Final = ("-trimpath", "-tags=grpcnotrace", "-gcflags=all=-dwarf=false", "-ldflags=-s -w")
FASTER: Final = {"CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false", "GOGC": "off"}
"""As the test cluster's programs are compiled: a third of the time less."""


class NoProgramError(Exception):
    """It can't be had on this machine; the text says why."""


def obtain(source: Path, target: str, package: str = ".", *, build: bool = True) -> Path:
    """The program that `package` of the module in `source` is, which `make TARGET` compiles, too.

    Raises `NoProgramError`.
    """
    sources = sorted(each for each in source.iterdir() if each.suffix in (".mod", ".sum", ".go"))
    digest = hashlib.sha256(b"\0".join(each.read_bytes() for each in sources)).hexdigest()[:16]
    folder = platformdirs.user_cache_path("knafka") / source.name.replace("_", "-")
    program = folder / f"{target}-{sys.platform}-{digest}"
    if program.exists():
        return program
    if not build:
        raise NoProgramError(f"`make {target}` compiles it (a minute; needs Go)")
    if shutil.which("go") is None:
        raise NoProgramError("there is no `go` here")
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "build.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # who comes second finds what the first has compiled
        if not program.exists():
            _compile(source, package, program)
    return program


def obtain_or_skip(source: Path, target: str, package: str = ".") -> Path:
    """`obtain` for a test: skips it where the program can't be had."""
    try:
        return obtain(source, target, package, build=IN_CI)
    except NoProgramError as error:
        if IN_CI:
            raise
        pytest.skip(f"no {source.name}: {error}")


def _compile(source: Path, package: str, program: Path) -> None:
    new = program.with_name(f".{program.name}")
    command: list[str | Path] = ["go", "-C", source, "build", *OPTIONS, "-o", new, package]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **FASTER})
    if done.returncode:
        raise NoProgramError(done.stderr[-2000:])
    new.replace(program)
