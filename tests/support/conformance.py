"""Conformance: which line of which specification which test holds, and the table of it.

    @pytest.mark.conformance("KN-BRK-01", "KN-DP-01")

    pytest -m conformance                                all of them
    python tools/conformance_page.py build/tests/*.xml   write the table by what a gate left behind

The table shows the run it was written by: a line is passed if every test of it was, and in that
run. Registered by `pytest_plugins` in tests/conftest.py.

Not here: what a line asks (`conformance_lines`), and telling a line passed without a test.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest
from support.conformance_line import Line
from support.conformance_lines import FAMILIES, LINES

MARKER: Final = "conformance"
KNOWN: Final = frozenset(line.id for line in LINES)

_HEAD: Final = """\
# Conformance

What is asked of Brokers and Triggers, KafkaChannels and Subscriptions, and Sensors, and whether
Knafka does it. Lines whose ids begin with KN are Knative's, CHN and DSP those of eventing-kafka,
BUS those of Argo Events' EventBus on Kafka ([sources](reference/spec-index.md)). Written by
`python tools/conformance_page.py build/tests/*.xml`, by a whole run of `.ci/run`: don't edit it.

Level: **M** must, **S** should, **y** may, **-** no specification's, but what upstream does. A line
has passed if all of its tests have. One without a behaviour is a goal, a layout of folders or a
remark.
"""


@dataclass(slots=True)
class Outcomes:
    """What became of the tests of each line."""

    tests: dict[str, dict[str, str]] = field(default_factory=dict)
    """Line's id -> test, without its parameters -> what it came to, by `_OF_ONE`."""

    def add(self, ids: Iterable[str], test: str, outcome: str) -> None:
        for each in ids:
            of_line = self.tests.setdefault(each, {})
            if _OF_ONE.index(outcome) <= _OF_ONE.index(of_line.get(test, _OF_ONE[-1])):
                of_line[test] = outcome


_WORST: Final = ("failed", "skipped", "passed")
_OF_ONE: Final = ("failed", "passed", "skipped")
"""Of one test's parameters what counts first: some are for `make chaos` alone."""

_COLUMNS: Final = (
    ("passed",),
    ("failed",),
    ("not run", "skipped"),
    ("not offered",),
    ("no behaviour",),
)
"""What the first table counts: beginnings of results."""


def result(line: Line, tests: Mapping[str, str]) -> str:
    """What the table says of a line: its tests' outcomes are by test."""
    outcomes = set(tests.values())
    if line.on_absent:
        return f"not offered: {line.on_absent}"
    if line.no_behaviour:
        return f"no behaviour: {line.no_behaviour}"
    for each in _WORST:
        if each in outcomes:
            return each
    return "not run"


def table(outcomes: Outcomes, lines: Iterable[Line] = LINES) -> str:
    """docs/conformance.md."""
    lines = tuple(lines)
    results = {line.id: result(line, outcomes.tests.get(line.id, {})) for line in lines}
    parts = [_HEAD, f"| | {' | '.join(each[0] for each in _COLUMNS)} |", f"|{' - |' * 6}"]
    for family, title in FAMILIES.items():
        own = [results[line.id] for line in lines if line.family == family]
        counts = [sum(each.startswith(words) for each in own) for words in _COLUMNS]
        parts.append(f"| {title} ({family}) | {' | '.join(map(str, counts))} |")
    for family, title in FAMILIES.items():
        parts += [
            f"\n## {title}\n",
            "| id | level | what | result | tests |",
            "| - | - | - | - | - |",
            *(
                _row(line, results[line.id], outcomes.tests.get(line.id, {}))
                for line in lines
                if line.family == family
            ),
        ]
    return "\n".join(parts) + "\n"


def _row(line: Line, told: str, tests: Mapping[str, str]) -> str:
    what = f"{line.what} ({line.note})" if line.note else line.what
    failed = {test for test, outcome in tests.items() if outcome != "passed"}
    named = "<br>".join(
        f"**{test}**" if test in failed else test for test in map(str, sorted(tests))
    )
    return f"| {line.id} | {line.level} | {what} | {told} | {named} |"


def marked(folder: Path) -> Iterator[tuple[str, str]]:
    """Every id that a marker in a test's source names, with `FILE::TEST`; nothing is imported."""
    for path in sorted(folder.rglob("test_*.py")):
        source = path.read_text()
        if f"mark.{MARKER}(" not in source:
            continue  # to parse all tests takes a second
        for node in _functions(ast.parse(source).body):
            for each in node.decorator_list:
                if isinstance(each, ast.Call) and ast.unparse(each.func) == f"pytest.mark.{MARKER}":
                    test = f"{path.name}::{node.name}"
                    yield from ((ast.literal_eval(id_), test) for id_ in each.args)


def _functions(body: Sequence[ast.stmt]) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """The functions of a module and of its classes, without those in functions."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node.body)


def pytest_itemcollected(item: pytest.Item) -> None:
    if unknown := set(_ids(item)) - KNOWN:
        raise pytest.UsageError(f"{item.nodeid}: no such line: {', '.join(sorted(unknown))}")


def _ids(item: pytest.Item) -> list[str]:
    return [str(id_) for marker in item.iter_markers(MARKER) for id_ in marker.args]
