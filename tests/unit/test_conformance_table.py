"""The table of conformance: no line without a test or a reason, nothing told that was not shown."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.conformance import Outcomes, marked, result, table
from support.conformance_line import Level, Line
from support.conformance_lines import FAMILIES, LINES

import conformance_page

ROOT = Path(__file__).parents[2]
TESTED = {id_ for id_, _ in marked(ROOT / "tests")}
LINE = Line("KN-BRK-01", Level.MUST, "has an address")


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.id)
def test_every_line_has_a_test_or_a_reason_why_it_is_not_offered(line: Line) -> None:
    reasons = [each for each in (line.on_absent, line.no_behaviour) if each]
    assert len(reasons) + (line.id in TESTED) == 1


def test_ids_are_unique_and_of_a_family() -> None:
    ids = [line.id for line in LINES]
    assert len(set(ids)) == len(ids)
    assert {line.family for line in LINES} == set(FAMILIES)


def test_what_must_be_is_never_merely_not_offered() -> None:
    must = [line for line in LINES if line.level is Level.MUST]
    assert [line.id for line in must if line.on_absent or line.no_behaviour] == []


@pytest.mark.parametrize(
    ("came_to", "told"),
    [
        ([], "not run"),
        (["passed", "passed"], "passed"),
        (["passed", "failed", "passed"], "failed"),
        (["skipped", "passed"], "skipped"),
    ],
)
def test_a_line_has_passed_if_all_of_its_tests_have(came_to: list[str], told: str) -> None:
    outcomes = Outcomes()
    for number, outcome in enumerate(came_to):
        outcomes.add([LINE.id], f"test_{number}", outcome)
    assert result(LINE, outcomes.tests.get(LINE.id, {})) == told


@pytest.mark.parametrize(
    ("came_to", "told"),
    [
        (("passed", "failed", "skipped"), "failed"),
        (("skipped", "passed", "skipped"), "passed"),
        (("skipped", "skipped"), "skipped"),
    ],
)
def test_a_test_is_as_good_as_the_worst_of_its_cases_that_ran(
    came_to: tuple[str, ...], told: str
) -> None:
    """Some cases are for `make chaos` alone."""
    outcomes = Outcomes()
    for outcome in came_to:
        outcomes.add([LINE.id], "test_it", outcome)
    assert outcomes.tests == {LINE.id: {"test_it": told}}


def test_the_table_tells_each_line_its_result_and_its_tests() -> None:
    outcomes = Outcomes()
    outcomes.add([LINE.id], "test_a.py::test_it", "passed")
    outcomes.add([LINE.id], "test_b.py::test_that", "failed")
    absent = Line("KN-BRK-13", Level.MAY, "finds loops", on_absent="nobody needs it")
    goal = Line("CHN-1", Level.UPSTREAM, "is good", no_behaviour="a goal")
    told = table(outcomes, [LINE, absent, goal])
    assert (
        "| KN-BRK-01 | M | has an address | failed "
        "| test_a.py::test_it<br>**test_b.py::test_that** |" in told
    )
    assert "| KN-BRK-13 | y | finds loops | not offered: nobody needs it |  |" in told
    assert "| CHN-1 | - | is good | no behaviour: a goal |  |" in told
    assert "| Broker (KN-BRK) | 0 | 1 | 0 | 1 | 0 |" in told
    assert "KafkaChannel (CHN) | 0 | 0 | 0 | 0 | 1 |" in told


def test_the_table_in_docs_has_every_line_and_no_failure() -> None:
    """As it was written last: by a run on a real cluster."""
    told = (ROOT / "docs" / "conformance.md").read_text()
    rows = [line.split(" | ") for line in told.splitlines() if re.match(r"\| [A-Z-]+-S?\d+ ", line)]
    assert [row[0].removeprefix("| ") for row in rows] == [line.id for line in LINES]
    assert [row[0] for row in rows if row[3].startswith(("failed", "not run", "skipped"))] == []


def test_what_became_of_tests_is_read_from_the_files_that_a_gate_leaves(tmp_path: Path) -> None:
    report = tmp_path / "here.xml"
    report.write_text(
        """<testsuites><testsuite>
        <testcase classname="tests.unit.test_a" name="test_it[one]"/>
        <testcase classname="tests.unit.test_a" name="test_it[two]"><failure>no</failure></testcase>
        <testcase classname="tests.unit.test_a" name="test_more"><skipped/></testcase>
        <testcase classname="tests.unit.test_b" name="test_it"/>
        <testcase classname="tests.unit.test_b" name="test_flaky"><flakyFailure/></testcase>
        </testsuite></testsuites>"""
    )
    ids = {
        "test_a.py::test_it": {"KN-BRK-01", "KN-BRK-02"},
        "test_a.py::test_more": {"KN-BRK-01"},
        "test_b.py::test_flaky": {"KN-BRK-03"},
    }
    found = conformance_page.outcomes([report], ids).tests
    assert found == {
        "KN-BRK-01": {"test_a.py::test_it": "failed", "test_a.py::test_more": "skipped"},
        "KN-BRK-02": {"test_a.py::test_it": "failed"},
        "KN-BRK-03": {"test_b.py::test_flaky": "passed"},
    }
