"""Results for people: Markdown tables and one plot for docs/performance.md.

The page has one block per case between `<!-- bench:NAME -->` and `<!-- /bench:NAME -->`; what is
around them is written by hand. Not here: reading and writing files.
"""

from __future__ import annotations

import html
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import log10
from typing import Final

from bench.results import FLOOR, OURS, Results, Row, Verdict

HEADINGS: Final = {
    "cpu_us": "CPU µs an event",
    "per_s": "events/s",
    "p50_ms": "p50 ms",
    "p90_ms": "p90 ms",
    "p99_ms": "p99 ms",
    "p999_ms": "p99.9 ms",
    "max_ms": "max ms",
    "rss_mb": "resident MB",
    "kafka_cpu_us": "Kafka's µs",
    "load_cpu_us": "harness's µs",
    "a_transaction": "events a transaction",
    "idle_cores": "idle cores",
    "other_cores": "others' cores",
    "not_202": "not 202",
    "out_of_order": "out of order",
    "mb_an_hour": "MB an hour",
    "standard_error": "± (standard error)",
    "first_mb": "MB at first",
    "last_mb": "MB at last",
}
SPREAD: Final = frozenset({"cpu_us", "per_s", "p99_ms", "seconds"})
"""Metrics shown with their lowest and highest run."""

FAULTS: Final = frozenset({"not_202", "duplicates", "out_of_order"})
"""Metrics shown only where one of them is not 0."""

WIDTH, HEIGHT, MARGIN = 720, 210, 46
COLOURS: Final = {OURS: "#0b62c4", FLOOR: "#b3541e"}


def markdown(results: Results) -> str:
    """Return Markdown: the verdicts, all rows, and on what machine and when they were measured."""
    parts = []
    if results.verdicts:
        parts.append(_table(["wanted", "limit", "measured", ""], map(_verdict, results.verdicts)))
    metrics = [
        metric
        for metric in results.metrics()
        if metric not in FAULTS or any(any(row.runs.get(metric, ())) for row in results.rows)
    ]
    has_floor = any(row.target == FLOOR for row in results.rows)
    head = ["", "target", *(HEADINGS.get(metric, metric) for metric in metrics)]
    parts.append(
        _table(
            head + ["CPU × floor"] * has_floor,
            (
                [*_cells(row, metrics), *[_to_floor(results, row)] * has_floor]
                for row in results.rows
            ),
        )
    )
    machine = results.machine
    runs = max((len(values) for row in results.rows for values in row.runs.values()), default=0)
    parts.append(
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, Linux "
        f"{machine['kernel']}, Python {machine['python']}; {machine.get('at', '')}; medians of "
        f"{runs} interleaved runs (lowest to highest); load average {machine['load_average']} when "
        "they began" + ("; a quick look, no measurement." if results.quick else ".")
    )
    return "\n\n".join(parts)


def put(page: str, blocks: Mapping[str, str]) -> str:
    """Return `page` with each named block's text replaced; raises KeyError if it has no such
    block."""
    for name, text in blocks.items():
        start, end = f"<!-- bench:{name} -->", f"<!-- /bench:{name} -->"
        if start not in page or end not in page:
            raise KeyError(name)
        text_before, _, rest = page.partition(start)
        page = f"{text_before}{start}\n{text}\n{end}{rest.partition(end)[2]}"
    return page


def plot(results: Results) -> str:
    """Return an SVG of the metric `plot_by`: a panel for each quantity that grew, with lines of
    ours and of the floor."""
    panels: dict[str, dict[str, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for row in results.rows:
        title, _, size = row.what.rpartition(": ")
        value = row.middle(results.plot_by)
        if title and value is not None:
            panels[title][row.target].append((float(size), value))
    drawn = [_panel(title, lines, i * HEIGHT) for i, (title, lines) in enumerate(panels.items())]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {len(drawn) * HEIGHT}" '
        'font-family="sans-serif" font-size="12">'
        f'<rect width="100%" height="100%" fill="white"/>{"".join(drawn)}</svg>\n'
    )


def _panel(title: str, lines: Mapping[str, Sequence[tuple[float, float]]], top: int) -> str:
    """Return the SVG of a panel: a line for each target through its points (x, y); `top` is its
    upper edge."""
    points = [point for line in lines.values() for point in line]
    low, high = min(x for x, _ in points), max(x for x, _ in points)
    most = max(y for _, y in points) * 1.15 or 1.0
    across = log10(high / low) or 1.0

    def at(x: float, y: float) -> tuple[float, float]:
        """Return the position of a point in the SVG; x is logarithmic."""
        return (
            MARGIN + log10(x / low) / across * (WIDTH - 2 * MARGIN),
            top + HEIGHT - 54 - y / most * (HEIGHT - 94),
        )

    parts = [f'<text x="{MARGIN}" y="{top + 22}" font-weight="bold">{html.escape(title)}</text>']
    left, bottom = at(low, 0)
    legend = ", ".join(
        f'<tspan fill="{COLOURS.get(target, "#555")}">{html.escape(target)}</tspan>'
        for target in lines
    )
    parts.append(
        f'<path d="M{left} {bottom}H{WIDTH - MARGIN}" stroke="#999" fill="none"/>'
        f'<text x="{WIDTH - MARGIN}" y="{top + 22}" text-anchor="end" fill="#666">'
        f"CPU µs an event; from 0; x is logarithmic; {legend}</text>"
    )
    parts += [
        f'<text x="{at(x, 0)[0]:.0f}" y="{bottom + 32:.0f}" text-anchor="middle">{number(x)}</text>'
        for x in sorted({x for x, _ in points})
    ]
    for target, line in lines.items():
        colour = COLOURS.get(target, "#555")
        dots = [at(x, y) for x, y in sorted(line)]
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in dots)
        parts.append(f'<path d="M{path}" stroke="{colour}" stroke-width="2" fill="none"/>')
        above = -8 if target == OURS else 16
        for (x, y), (_, value) in zip(dots, sorted(line), strict=True):
            parts.append(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>'
                f'<text x="{x:.1f}" y="{y + above:.1f}" fill="{colour}" text-anchor="middle">'
                f"{number(value)}</text>"
            )
    return "".join(parts)


def number(value: float) -> str:
    """Return a number as text: whole numbers below 1,000 as they are, others without decimals from
    100 on, with one from 10 on, else with two."""
    if value == int(value) and abs(value) < 1000:
        return str(int(value))
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _verdict(verdict: Verdict) -> list[str]:
    """Return the cells of a verdict: the goal, its limit, the value, and whether it is met."""
    value = "not measured" if verdict.value is None else number(verdict.value)
    met = {True: "met", False: "**missed**", None: ""}[verdict.met]
    return [verdict.what, f"{'≥' if verdict.at_least else '≤'} {number(verdict.limit)}", value, met]


def _cells(row: Row, metrics: Sequence[str]) -> list[str]:
    """Return the cells of a row: its name, its target, and the median of each metric's runs, with
    their spread for those in `SPREAD`."""
    cells = [re.sub(r"\d{4,}", lambda digits: f"{int(digits[0]):,}", row.what), row.target]
    for metric in metrics:
        middle = row.middle(metric)
        if middle is None:
            cells.append("")
            continue
        text = number(middle)
        if metric in SPREAD and len(row.runs[metric]) > 1:
            text += " ({}-{})".format(*map(number, row.spread(metric)))
        cells.append(text)
    return cells


def _to_floor(results: Results, row: Row) -> str:
    """Return the ratio of a row's CPU to the floor's, as text; empty for the floor and without a
    ratio."""
    ratio = None if row.target == FLOOR else results.to_floor(row.what, "cpu_us", row.target)
    return "" if ratio is None else f"{ratio:.2f}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
