"""Gives every test its markers and timeout, and measures coverage in the pure ones only.

Registered by `pytest_plugins` in tests/conftest.py.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

import pytest
from support.fake_clock import NOOP_CYCLES
from support.gate import IN_CI, IN_GATE, only_chaos

PURE_TIMEOUT: Final = 180.0 if IN_CI else 60.0
"""Seconds for a test that has only its own process; pyproject.toml has the timeout of properties,
which try many examples, and of all others. The gate runs it beside the tests of the cluster, at a
load of 20 to 30."""
MANY_WAITS_TIMEOUT: Final = 600.0
"""Seconds for a test of the cluster, or from end to end, that names no other: some of its waits may
take 360 in the gate."""
LONG: Final = ("kafka", "cluster", "spark", "slow")
"""Markers of the tests that may take longer."""
_TESTS: Final = Path(__file__).parents[1]
_KAFKAS: Final = frozenset({"kafka", "kafka_distribution"})
"""Fixtures of a real Kafka."""
PROPERTIES: Final = "property"
PURE_FOLDERS: Final = ("unit", PROPERTIES, "behaviour")
"""Folders whose tests, long ones apart, have only their own process, and have to cover the pure
packages."""


@pytest.hookimpl(tryfirst=True)  # before `-m` reads the markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        mark_what_it_needs(item)
        if IN_GATE and item.get_closest_marker(only_chaos.name):
            item.add_marker(pytest.mark.skip(reason="`make chaos` runs it"))
        takes_long, folder = is_long(item), folder_of(item.path)
        if not takes_long and folder != PROPERTIES and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(PURE_TIMEOUT))
        has_many_waits = item.get_closest_marker("cluster") or folder == "e2e"
        if has_many_waits and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(MANY_WAITS_TIMEOUT))
        if takes_long or folder not in PURE_FOLDERS:
            item.add_marker("no_cover")
        if item.get_closest_marker("looptime"):
            item.add_marker(pytest.mark.looptime(noop_cycles=NOOP_CYCLES))


def mark_what_it_needs(item: pytest.Item) -> None:
    """Mark a test of Kafka, Spark, an S3 or a browser, as its fixtures tell, and by its folder and
    world."""
    fixtures = getattr(item, "fixturenames", ())
    if "chromium" in fixtures:
        item.add_marker(pytest.mark.browser)
    if not _KAFKAS.isdisjoint(fixtures):
        item.add_marker(pytest.mark.kafka)
    if "spark_environment" in fixtures:
        item.add_marker(pytest.mark.spark)
        item.add_marker(pytest.mark.slow)
    if "bucket" in fixtures:
        item.add_marker(pytest.mark.go)
    folder = folder_of(item.path)
    if folder == "chaos":
        item.add_marker(pytest.mark.chaos)
    world = str(getattr(getattr(item, "callspec", None), "params", {}).get("world", ""))
    if folder == "integration" or world.startswith("local"):
        item.add_marker(pytest.mark.integration)
    if folder == "cluster" or world == "cluster":
        item.add_marker(pytest.mark.cluster)


@cache
def folder_of(path: Path) -> str:
    """The folder of tests/ that a file is in; empty if it is in none."""
    return path.relative_to(_TESTS).parts[0] if path.is_relative_to(_TESTS) else ""


def is_long(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(name) for name in LONG)
