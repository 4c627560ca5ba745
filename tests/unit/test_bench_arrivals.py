"""How the load tests' subscriber tells loss, duplicates and reordering from numbers."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

LOADTESTS = Path(__file__).parents[2] / "loadtests"


@pytest.fixture
def arrivals() -> Any:
    sys.path.insert(0, str(LOADTESTS))
    try:
        return importlib.import_module("arrivals").Arrivals()
    finally:
        sys.path.remove(str(LOADTESTS))


@pytest.mark.parametrize(
    ("numbers", "accepted", "lost", "duplicates", "reordered"),
    [
        ([0, 1, 2], 3, 0, 0, 0),
        ([0, 2], 3, 1, 0, 0),
        ([0, 1], 3, 1, 0, 0),
        ([], 2, 2, 0, 0),
        ([0, 2, 1], 3, 0, 0, 1),
        ([0, 1, 1, 0, 2], 3, 0, 2, 0),
        ([0, 2, 1, 1], 3, 0, 1, 1),
        ([0, 1, 2, 3], 3, 0, 0, 0),
        ([0, 5], 3, 2, 0, 0),
    ],
    ids=[
        "all well", "a gap", "the last is missing", "nothing came", "late", "repeated",
        "late and repeated", "stored though the sender was not told", "a gap beyond what counts",
    ],
)  # fmt: skip
def test_the_numbers_tell(
    arrivals: Any, numbers: list[int], accepted: int, lost: int, duplicates: int, reordered: int
) -> None:
    for number in numbers:
        arrivals.add("key", number)
    arrivals.accept({"key": accepted})
    summary = arrivals.summary()
    assert (summary.lost, summary.duplicates, summary.reordered) == (lost, duplicates, reordered)
    assert (summary.accepted, summary.received) == (accepted, len(numbers))


def test_keys_do_not_know_of_each_other(arrivals: Any) -> None:
    for key in ("a", "b", "a", "b"):
        arrivals.add(key, 0)
    arrivals.accept({"a": 1, "b": 1, "c": 1})
    assert (arrivals.summary().lost, arrivals.summary().duplicates) == (1, 2)


def test_what_is_not_numbered_is_told_apart(arrivals: Any) -> None:
    arrivals.add_unnumbered()
    assert arrivals.summary().unnumbered == 1
    assert "1 that are not ours" in str(arrivals.summary())
