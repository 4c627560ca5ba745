"""Runs tests against a mutant, in a fork of a process that has the libraries imported already.

A mutant is written into a copy of the repository, so only its tests and what they start see it.
Starting pytest takes seconds, most of them for imports of libraries, which are never mutated.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import select
import signal
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import hypothesis
import pytest

from mutants.covering import PURE, SPARK
from mutants.mutating import Mutant
from mutants.report import Verdict

ROOTS: Final = ("functions", "operator", "local", "spark_jobs", "tools")
"""The repository's source roots."""
LIBRARIES: Final = (
    *("aiohttp", "confluent_kafka.admin", "cronsim", "cryptography.x509", "httptools", "httpx"),
    *(
        "hypothesis.strategies",
        "jinja2",
        "kopf",
        "kubernetes.client",
        "looptime",
        "prometheus_client",
    ),
    *("psutil", "pydantic", "pytest_asyncio", "pytest_cov", "pytest_timeout", "rich.console"),
    *("opentelemetry.sdk.trace", "selenium.webdriver", "typer", "uvicorn", "uvloop", "watchfiles"),
    "yaml",
)
"""Libraries that are imported once for all mutants, if they are installed."""
MEMORY: Final = 4 * 1024**3
"""Most bytes of address space of a test run: a mutant may allocate for ever. Runs with Spark have
no limit, as Java reserves more."""


class Tree:
    """A copy of the repository, in which one file at a time is replaced by a mutant."""

    def __init__(self, root: Path, folder: Path, files: Collection[str]) -> None:
        """Copy these files (paths from `root`) to `folder` as far as they have changed, and delete
        sources there that aren't among them."""
        self.folder = folder
        for name in files:
            source, target = root / name, folder / name
            content = source.read_bytes()
            if not target.exists() or target.read_bytes() != content:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
                target.chmod(source.stat().st_mode)
        for path in list(folder.rglob("*")):
            if path.suffix in (".py", ".yaml", ".md") and path.is_file():
                if path.relative_to(folder).as_posix() not in files:
                    path.unlink()

    def warm_up(self) -> None:
        """Write the bytecode of all files, that of the tests by collecting them; test runs don't
        write any."""
        environment = {**self.environment, "PYTHONDONTWRITEBYTECODE": ""}
        roots = [name for name in ROOTS if (self.folder / name).is_dir()]
        for command in (
            [sys.executable, "-m", "compileall", "-q", *roots],
            [sys.executable, "-m", "pytest", "--collect-only", "-q", "--no-cov", *PURE],
        ):
            subprocess.run(
                command, cwd=self.folder, env=environment, stdout=subprocess.DEVNULL, check=True
            )

    @property
    def environment(self) -> dict[str, str]:
        """The environment of processes that import from the tree."""
        path = os.pathsep.join(str(self.folder / name) for name in ROOTS)
        # A mutant may have the size and the time (in seconds) of the original, whose bytecode would
        # then be used for it.
        return {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}

    @contextmanager
    def holding(self, mutant: Mutant) -> Iterator[None]:
        """Replace a file by its mutant until the end of the block."""
        path = self.folder / mutant.path
        source, times = path.read_text(encoding="utf-8"), path.stat()
        path.write_text(mutant.applied_to(source), encoding="utf-8")
        try:
            yield
        finally:
            path.write_text(source, encoding="utf-8")
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


class Runner:
    """Runs pytest on a tree, each time in a fork of this process."""

    def __init__(self, tree: Tree, log: Path) -> None:
        """Prepare this process for the forks: imports come from the tree, and the libraries are
        imported. `log` gets pytest's output."""
        self._tree = tree
        self._log = log
        os.environ.update(tree.environment)
        sys.dont_write_bytecode = True
        roots = [str(tree.folder / name) for name in ROOTS]
        root_names = {Path(root).name for root in roots}
        sys.path[:] = roots + [entry for entry in sys.path if Path(entry).name not in root_names]
        for name in LIBRARIES:
            with suppress(ImportError):
                importlib.import_module(name)

    def run(self, tests: Sequence[str], files: Sequence[str], seconds: float) -> Verdict:
        """Run tests, and all tests of the files, until one fails or after so many seconds; return
        the verdict."""
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            self._be_child(tests, files, writing)
        os.close(writing)
        failed, is_over = "", False
        try:
            # Readable once a test has failed, or the child has ended and closed the pipe.
            if select.select([reading], [], [], seconds)[0]:
                failed, is_over = os.read(reading, 65_536).decode(), True
        finally:
            if not is_over or failed:
                with suppress(ProcessLookupError):
                    os.killpg(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
            with suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)  # also the processes that the child has started
            os.close(reading)
        if not is_over:
            return Verdict("timeout")
        if failed:
            return Verdict("killed", json.loads(failed.partition("\n")[0]))
        match os.waitstatus_to_exitcode(status):
            case pytest.ExitCode.OK:
                return Verdict("survived")
            case pytest.ExitCode.NO_TESTS_COLLECTED | pytest.ExitCode.USAGE_ERROR:
                return Verdict("no tests")
        return Verdict("killed", self._startup_error())

    def _startup_error(self) -> str:
        """Return the error that kept pytest from running any test, mostly one of an import."""
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        errors = [line for line in lines if line.startswith("E  ")] or lines
        return errors[-1].removeprefix("E").strip() if errors else ""

    def _be_child(self, tests: Sequence[str], files: Sequence[str], report: int) -> None:
        """Run pytest in the forked process and end it; failed tests are written to the descriptor
        `report`."""
        code: int = pytest.ExitCode.INTERNAL_ERROR
        try:
            os.setsid()
            log = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.chdir(self._tree.folder)
            if not any(test.startswith(SPARK) for test in tests):
                resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
            chosen = _ChosenTests(tests, files, report)
            code = pytest.main(
                [
                    *dict.fromkeys([*files, *(test.partition("::")[0] for test in tests)]),
                    *("-x", "-q", "--no-cov", "--hypothesis-seed=0", "-p", "no:cacheprovider"),
                    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),
                ],
                plugins=[chosen],
            )
        finally:
            sys.stdout.flush()
            os._exit(code)


class _ChosenTests:
    """The pytest plugin of a mutant's run: selects and orders the tests, and makes Hypothesis
    quick."""

    def __init__(self, tests: Sequence[str], files: Sequence[str], report: int) -> None:
        """`tests` in the order to run them, `files` whose tests all run, too; `report`: the
        descriptor to which failed tests are written."""
        self._rank: Mapping[str, int] = {test: rank for rank, test in enumerate(tests)}
        self._files = frozenset(files)
        self._report = report

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self) -> None:
        """Load settings of Hypothesis that find a failing example quickly, and the same each
        time."""
        # Finding a failing example is enough: to shrink it takes most of a failing test's time.
        phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
        hypothesis.settings.register_profile(
            "mutants", deadline=None, derandomize=True, database=None, phases=phases
        )
        hypothesis.settings.load_profile("mutants")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep only the chosen tests, in their order; those of the files come first."""
        items[:] = [
            item
            for item in items
            if item.nodeid in self._rank
            or (item.nodeid.partition("::")[0] in self._files and not is_real(item))
        ]
        items.sort(key=lambda item: self._rank.get(item.nodeid, -1))
        for item in items:
            # Else the check for a blocked event loop would kill mutants on a busy machine.
            item.add_marker(pytest.mark.blocks_the_loop)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Write a failed test's id to the descriptor, as a line of JSON."""
        if report.failed:
            os.write(self._report, f"{json.dumps(report.nodeid)}\n".encode())


def is_real(item: pytest.Item) -> bool:
    """Whether a test needs a real service, or is slow."""
    return any(item.get_closest_marker(name) for name in ("kafka", "cluster", "slow"))
