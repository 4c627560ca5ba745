"""Orders the tests by files, so that a run with several workers ends early and none waits idly.

With pytest-xdist's `--dist loadfile` the files are handed out in the order of their first tests.
Registered by `pytest_plugins` in tests/conftest.py.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import zip_longest
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
    of_spark: list[pytest.Item] = []
    on_cluster: list[pytest.Item] = []
    others: dict[Path, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("cluster"):
            on_cluster.append(item)
        elif item.get_closest_marker("spark"):
            of_spark.append(item)
        else:
            others.setdefault(item.path, []).append(item)
    waiting = [file for file in others.values() if _waits(file)]
    computing = [file for file in others.values() if not _waits(file)]
    computing.sort(key=_is_short)
    on_cluster.sort(key=lambda item: item.path.name not in LONG_ON_CLUSTER)
    # Cluster tests come last: what they need may still be compiling.
    items[:] = [*of_spark, *alternated(waiting, computing), *on_cluster]


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


def _waits(file: Sequence[pytest.Item]) -> bool:
    """Whether a file's tests wait for other processes."""
    return folder_of(file[0].path) == "e2e" or any(
        item.get_closest_marker("kafka") for item in file
    )


def _is_short(file: Sequence[pytest.Item]) -> bool:
    return folder_of(file[0].path) != PROPERTIES and not any(map(is_long, file))
