"""What a run makes once, however many workers (pytest-xdist) it has: a cluster and what is in it.

    address = once_a_run.get("kafka", start, stop)

The first worker that asks makes it; the others wait, and get what `start` returned, as JSON keeps
it. Who made something ends it, when every worker is done. Registered by `pytest_plugins` in
tests/conftest.py.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

_FOLDER: Final = "knafka_run"
"""Key of the run's folder in what pytest-xdist's controller tells its workers."""


def _nothing() -> None:
    pass


class OnceARun:
    """One process's view of what its run has made; `folder` is the run's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._workers: int | None = None
        """The open file of the lock that every worker holds, shared, until it is done."""
        self._made: list[tuple[Path, Callable[[], None]]] = []

    def get(self, name: str, start: Callable[[], Any], stop: Callable[[], None] = _nothing) -> Any:
        """What `start` returned to the first who asked; RuntimeError if it failed there."""
        with _locked(self.folder / f"{name}.lock"):
            kept = self.folder / f"{name}.json"
            if kept.exists():
                outcome = json.loads(kept.read_text())
                if "error" in outcome:
                    raise RuntimeError(f"{name}: another worker has failed: {outcome['error']}")
                return outcome["made"]
            try:
                made = start()
            except Exception as error:
                # Or each worker would try in turn, and take minutes.
                kept.write_text(json.dumps({"error": repr(error)}))
                raise
            kept.write_text(json.dumps({"made": made}))
            self._made.append((kept, stop))
            return made

    @contextmanager
    def holding(self, name: str) -> Iterator[None]:
        """Hold what this run's workers have one of, and wait until no other does."""
        with _locked(self.folder / f"{name}.lock"):
            yield

    def begin(self) -> None:
        """Count as a worker of this run, for whom what is made stays."""
        self._workers = os.open(self._workers_lock, os.O_RDWR | os.O_CREAT)
        fcntl.flock(self._workers, fcntl.LOCK_SH)

    def finish(self) -> None:
        """Wait for all other workers, if this one has made anything, and end that."""
        if self._workers is not None:
            os.close(self._workers)
            self._workers = None
        if not self._made:
            return
        with _locked(self._workers_lock):
            while self._made:
                kept, stop = self._made.pop()
                kept.unlink()  # a worker that begins after this makes it anew
                stop()

    @property
    def _workers_lock(self) -> Path:
        return self.folder / "workers.lock"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


_RUN: Final = pytest.StashKey[OnceARun]()


def pytest_configure(config: pytest.Config) -> None:
    of_worker: dict[str, Any] = getattr(config, "workerinput", {})
    if _FOLDER in of_worker:
        config.stash[_RUN] = OnceARun(Path(of_worker[_FOLDER]))
        return
    folder = tempfile.mkdtemp(prefix="knafka-run-")
    config.stash[_RUN] = OnceARun(Path(folder))
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


def folder_of_run(config: pytest.Config) -> Path:
    """The folder that all processes of a run share, and that goes with it."""
    return config.stash[_RUN].folder


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """pytest-xdist's, in its controller: a worker is about to start."""
    node.workerinput[_FOLDER] = str(node.config.stash[_RUN].folder)


def pytest_sessionstart(session: pytest.Session) -> None:
    # Workers get tests once all of them have collected, so none comes when another has finished.
    if hasattr(session.config, "workerinput"):
        session.config.stash[_RUN].begin()


@pytest.hookimpl(trylast=True)  # fixtures end first; a worker's end is told after all of this
def pytest_sessionfinish(session: pytest.Session) -> None:
    session.config.stash[_RUN].finish()


@pytest.fixture(scope="session")
def once_a_run(pytestconfig: pytest.Config) -> OnceARun:
    """What this run makes once for all of its workers."""
    return pytestconfig.stash[_RUN]
