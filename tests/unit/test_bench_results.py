"""What the benchmark makes of its figures: pairs, verdicts, tables, the plot, the page."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

TOOLS = Path(__file__).parents[2] / "tools"
MACHINE = {
    "cpu": "a CPU", "cores": 2, "memory_gib": 24, "kernel": "6.1", "python": "3.11.7",
    "load_average": 0.5, "at": "2026-11-21 16:00 UTC",
}  # fmt: skip


def module(name: str) -> Any:
    """One of the benchmark's modules: its source root is on no path of ours."""
    sys.path.insert(0, str(TOOLS))
    try:
        return importlib.import_module(f"bench.{name}")
    finally:
        sys.path.remove(str(TOOLS))


results_, document, targets, starting = map(module, ("results", "document", "targets", "starting"))


@pytest.fixture
def results() -> Any:
    """Three runs of ours and the floor; in the second one the machine was busy."""
    made = results_.Results("receiver", MACHINE)
    for ours, floor in ((24.0, 20.0), (60.0, 40.0), (22.0, 20.0)):
        made.add("64 connections", "ours", cpu_us=ours, per_s=1000.0, p99_ms=None)
        made.add("64 connections", "floor", cpu_us=floor, per_s=2000.0)
    return made


def test_a_ratio_is_the_median_of_the_ratios_of_neighbours(results: Any) -> None:
    """A busy minute hits both of a pair: 1.2, 1.5, 1.1, and not the ratio of the medians."""
    assert results.to_floor("64 connections", "cpu_us") == pytest.approx(1.2)
    assert results.to_floor("64 connections", "per_s") == 0.5


def test_a_ratio_has_an_error_that_shrinks_with_the_number_of_pairs(results: Any) -> None:
    """Ratios of 1.2, 1.5 and 1.1: their median deviation from 1.2 is 0.1."""
    few = results.error_to("floor", "64 connections", "cpu_us")
    assert few == pytest.approx(1.2533 * 0.14826 / 3**0.5, rel=1e-3)
    for _ in range(3):
        for ours, floor in ((24.0, 20.0), (60.0, 40.0), (22.0, 20.0)):
            results.add("64 connections", "ours", cpu_us=ours)
            results.add("64 connections", "floor", cpu_us=floor)
    assert results.error_to("floor", "64 connections", "cpu_us") == pytest.approx(few / 2)
    assert results.error_to("before", "64 connections", "cpu_us") is None


def test_what_was_not_measured_has_no_ratio_and_no_verdict(results: Any) -> None:
    assert results.to_floor("64 connections", "p99_ms") is None
    assert results.to_floor("nothing", "cpu_us") is None
    results.at_most("p99", results.middle("64 connections", "p99_ms"), 5)
    assert results.verdicts[0].met is None


def test_what_one_row_costs_more_than_another_is_compared_run_by_run(results: Any) -> None:
    for cpu in (26.0, 61.0, 25.0):
        results.add("with a filter", "ours", cpu_us=cpu)
    assert results.added("with a filter", "64 connections", "cpu_us") == 2.0
    assert results.to_other("with a filter", "64 connections", "cpu_us") == pytest.approx(26 / 24)


@pytest.mark.parametrize(
    ("value", "at_least", "met"),
    [(1.2, False, True), (1.3, False, False), (0.7, True, False), (None, True, None)],
)
def test_a_verdict_compares_with_its_limit(
    value: float | None, at_least: bool, met: bool | None
) -> None:
    assert results_.Verdict("x", value, 1.2, at_least).met is met


def test_results_survive_their_file(results: Any) -> None:
    results.at_most("CPU", 1.1, 1.2)
    again = results_.Results.from_document(json.loads(json.dumps(results.document())))
    assert again == results


def test_the_slope_of_a_line_has_no_error_and_noise_has_one() -> None:
    assert results_.slope([(x, 3 + 2 * x) for x in range(10)]) == (pytest.approx(2), 0)
    value, error = results_.slope([(x, 50 + (-1) ** x) for x in range(100)])
    assert abs(value) < 2 * error
    with pytest.raises(ValueError, match="three"):
        results_.slope([(0, 1), (1, 1)])


def test_a_table_has_the_verdicts_the_spread_and_the_ratio(results: Any) -> None:
    results.at_most("CPU, × floor", results.to_floor("64 connections", "cpu_us"), 1.1)
    text = document.markdown(results)
    assert "| CPU, × floor | ≤ 1.10 | 1.20 | **missed** |" in text
    assert "| 64 connections | ours | 24 (22-60) | 1,000 (1,000-1,000) | 1.20 |" in text
    assert "medians of 3 interleaved runs" in text
    assert "load average 0.5" in text


def test_the_page_keeps_what_is_written_by_hand() -> None:
    page = "before\n<!-- bench:start -->\nold\n<!-- /bench:start -->\nafter\n"
    assert document.put(page, {"start": "new"}) == page.replace("old", "new")
    with pytest.raises(KeyError, match="soak"):
        document.put(page, {"soak": "new"})


def test_the_plot_has_a_panel_for_everything_that_grows() -> None:
    made = results_.Results("growth", MACHINE, plot_by="cpu_us")
    for size, cpu in ((100, 20.0), (1000, 21.0)):
        made.add(f"receiver, bytes of data: {size}", "ours", cpu_us=cpu)
        made.add(f"receiver, bytes of data: {size}", "floor", cpu_us=cpu - 5)
    made.add("dispatcher, Triggers: 1", "ours", cpu_us=30.0)
    made.add("without a size", "ours", cpu_us=30.0)
    svg = document.plot(made)
    assert svg.count('font-weight="bold"') == 2
    assert svg.count("<path d=") == 2 + 3, "two axes, three lines"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("name=peer", "want a url"),
        ("url=http://x/", "a name of its own"),
        ("name=ours,url=http://x/", "a name of its own"),
        ("name=peer,url=http://x/,topic=t,sink=h:1", "want a url"),
        ("name=peer,port=1", "want name="),
    ],
)
def test_a_target_that_can_not_be_measured_is_refused(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        targets.External.parse(text)


def test_a_target_is_a_receiver_by_its_url_or_a_dispatcher_by_its_topic() -> None:
    receiver = targets.External.parse("name=peer,url=http://h/ns/b,pid=12")
    assert (receiver.url, receiver.pid) == ("http://h/ns/b", 12)
    dispatcher = targets.External.parse("name=peer,topic=t,sink=127.0.0.1:18090")
    assert (dispatcher.topic, dispatcher.pid) == ("t", None)


def test_import_costs_are_summed_by_package_without_what_is_inside_them() -> None:
    output = (
        "import time: self [us] | cumulative | imported package\n"
        "import time:      1000 |       1000 |     pydantic.main\n"
        "import time:       500 |       1500 |   pydantic\n"
        "import time:      2000 |       3500 | knafka\n"
        "error: something else\n"
    )
    assert starting.import_costs(output) == {"pydantic": 1.5, "knafka": 2.0}
