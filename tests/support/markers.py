"""Gives every test its markers, timeout and turn, and measures coverage in the pure ones only.

With pytest-xdist's `--dist loadfile` the files are handed out in the order of their first tests, so
the longest begin first. Registered by `pytest_plugins` in tests/conftest.py.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Final

import pytest
from support.fake_clock import NOOP_CYCLES
from support.gate import IN_CI

PURE_TIMEOUT: Final = 180.0 if IN_CI else 60.0
"""Seconds for a test that has only its own process; pyproject.toml has the timeout of properties,
which try many examples, and of all others. The gate runs it beside the tests of the cluster, at a
load of 20 to 30."""
LONG: Final = ("kafka", "cluster", "spark", "slow")
"""Markers of the tests that may take longer."""
_TESTS: Final = Path(__file__).parents[1]
LONG_ON_CLUSTER: Final = (
    "test_shared_dispatchers.py",
    "test_operator.py",
    "test_channels.py",
    "test_operator_absent.py",
)
"""Files that take two minutes: whoever begins one of them last ends last."""
_KAFKAS: Final = frozenset({"kafka", "kafka_distribution"})
"""Fixtures of a real Kafka."""
CLUSTER_TESTS: Final = _TESTS / "cluster"
PROPERTIES: Final = _TESTS / "property"
PURE_FOLDERS: Final = ("unit", "property", "behaviour")
"""Folders whose tests, long ones apart, have only their own process, and have to cover the pure
packages."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--shuffle", type=int, metavar="SEED", help="run files and tests in a random order"
    )


@pytest.hookimpl(tryfirst=True)  # before `-m` reads the markers
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        mark_what_it_needs(item)
        is_timed = item.get_closest_marker("timeout") or is_long(item)
        if not is_timed and PROPERTIES not in item.path.parents:
            item.add_marker(pytest.mark.timeout(PURE_TIMEOUT))
        if is_long(item) or not is_measured(item.path):
            item.add_marker("no_cover")
        if item.get_closest_marker("looptime"):
            item.add_marker(pytest.mark.looptime(noop_cycles=NOOP_CYCLES))
    seed: int | None = config.getoption("--shuffle")
    if seed is None:
        items.sort(key=_turn)
    else:
        shuffle(items, random.Random(seed))


def shuffle(items: list[pytest.Item], order: random.Random) -> None:
    """Put the files into this order, and in each of them its tests, whose fixtures they share."""
    order.shuffle(items)
    turns: dict[Path, int] = {}
    for item in items:
        turns.setdefault(item.path, len(turns))
    items.sort(key=lambda item: turns[item.path])


def mark_what_it_needs(item: pytest.Item) -> None:
    """Mark a test of Kafka, Spark or an S3, as its fixtures tell, and by its folder and world."""
    fixtures = getattr(item, "fixturenames", ())
    if not _KAFKAS.isdisjoint(fixtures):
        item.add_marker(pytest.mark.kafka)
    if "spark_environment" in fixtures:
        item.add_marker(pytest.mark.spark)
        item.add_marker(pytest.mark.slow)
    if "bucket" in fixtures:
        item.add_marker(pytest.mark.go)
    if item.path.is_relative_to(_TESTS / "chaos"):
        item.add_marker(pytest.mark.chaos)
    world = str(getattr(getattr(item, "callspec", None), "params", {}).get("world", ""))
    if item.path.is_relative_to(_TESTS / "integration") or world.startswith("local"):
        item.add_marker(pytest.mark.integration)
    if item.path.is_relative_to(CLUSTER_TESTS) or world == "cluster":
        item.add_marker(pytest.mark.cluster)


def is_measured(path: Path) -> bool:
    """Whether coverage is measured in a file's tests, where it is at all."""
    if not path.is_relative_to(_TESTS):
        return False
    name = path.relative_to(_TESTS).as_posix()
    return name.startswith(PURE_FOLDERS)


def is_long(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(name) for name in LONG)


def _turn(item: pytest.Item) -> int:
    """0 for what begins first. Cluster tests come last: what they need may still be compiling."""
    if item.get_closest_marker("cluster"):
        return 4 if item.path.name in LONG_ON_CLUSTER else 5
    if item.get_closest_marker("spark"):
        return 0
    if is_long(item):
        return 1
    return 2 if item.path.is_relative_to(PROPERTIES) else 3  # of the pure files the longest
