"""Orders the tests by files, so that a run with several workers ends early and none waits idly.

With pytest-xdist's `--dist loadfile` the files are handed out in the order of their first tests.
Registered by `pytest_plugins` in tests/conftest.py.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import chain, groupby, zip_longest
from pathlib import Path
from typing import Final, TypeVar

import pytest
from support.markers import PROPERTIES, folder_of, is_long

LONG_ON_CLUSTER: Final = (
    "test_shared_dispatchers.py",
    "test_operator.py",
    "test_channels.py",
    "test_operator_absent.py",
)
"""Files that take two minutes: whoever begins one of them last ends last."""
T = TypeVar("T")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--shuffle", type=int, metavar="SEED", help="run files and tests in a random order"
    )


@pytest.hookimpl(trylast=True)  # after `-m` has left tests out
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    seed: int | None = config.getoption("--shuffle")
    if seed is not None:
        shuffle(items, random.Random(seed))
        return
    items.sort(key=_turn)
    items[:] = chain.from_iterable(
        _ordered(turn, list(some)) for turn, some in groupby(items, _turn)
    )


def shuffle(items: list[pytest.Item], order: random.Random) -> None:
    """Put the files into this order, and in each of them its tests, whose fixtures they share."""
    order.shuffle(items)
    turns: dict[Path, int] = {}
    for item in items:
        turns.setdefault(item.path, len(turns))
    items.sort(key=lambda item: turns[item.path])


def alternated(waiting: Sequence[Sequence[T]], computing: Sequence[Sequence[T]]) -> Iterator[T]:
    """A file that waits for other processes, one that computes, and so on: workers that all wait at
    once leave the processor idle."""
    for pair in zip_longest(waiting, computing, fillvalue=()):
        for file in pair:
            yield from file


def _turn(item: pytest.Item) -> int:
    """0 for what begins first. Cluster tests come last: what they need may still be compiling."""
    if item.get_closest_marker("cluster"):
        return 2 if item.path.name in LONG_ON_CLUSTER else 3
    return 0 if item.get_closest_marker("spark") else 1


def _ordered(turn: int, items: Sequence[pytest.Item]) -> Iterator[pytest.Item]:
    if turn != 1:
        return iter(items)
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    waiting = [file for file in files.values() if _waits(file)]
    computing = [file for file in files.values() if not _waits(file)]
    computing.sort(key=_is_short)
    return alternated(waiting, computing)


def _waits(file: Sequence[pytest.Item]) -> bool:
    """Whether a file's tests wait for other processes."""
    return folder_of(file[0].path) == "e2e" or any(
        item.get_closest_marker("kafka") for item in file
    )


def _is_short(file: Sequence[pytest.Item]) -> bool:
    return folder_of(file[0].path) != PROPERTIES and not any(map(is_long, file))
