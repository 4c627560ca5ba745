"""Results: what each run measured, and the medians, spreads, ratios and verdicts that follow from
it.

A `Row` has one measurement of one target, once per run. Runs of different targets are interleaved,
so the ratio to the floor is the median of the ratios of runs with the same number. Not here:
measuring.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any, Final

OURS: Final = "ours"
FLOOR: Final = "floor"
BEFORE: Final = "before"
"""The target with our code from another checkout (`--before`)."""


@dataclass
class Row:
    """One measurement of one target: for each metric, its value in each run."""

    what: str
    target: str
    runs: dict[str, list[float]] = field(default_factory=dict)

    def middle(self, metric: str) -> float | None:
        """Return the median of a metric's runs; None if it was never measured."""
        values = self.runs.get(metric)
        return median(values) if values else None

    def spread(self, metric: str) -> tuple[float, float]:
        """Return the lowest and the highest value of a metric."""
        return min(self.runs[metric]), max(self.runs[metric])


@dataclass(frozen=True, slots=True)
class Verdict:
    """A goal of the project: `value` must be at most (or at least) `limit`."""

    what: str
    value: float | None
    limit: float
    at_least: bool = False

    @property
    def met(self) -> bool | None:
        """Whether the goal is met; None: it wasn't measured."""
        if self.value is None:
            return None
        return self.value >= self.limit if self.at_least else self.value <= self.limit


@dataclass
class Results:
    """What one case measured, and on what machine."""

    case: str
    machine: Mapping[str, Any]
    quick: bool = False
    rows: list[Row] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    plot_by: str = ""
    """The metric to plot, if the rows' names end in a growing size; empty: no plot."""

    def add(self, what: str, target: str, **metrics: float | None) -> None:
        """Add the metrics of one run to the row of `what` and `target`; those that are None are
        left out."""
        row = self.row(what, target)
        if row is None:
            row = Row(what, target)
            self.rows.append(row)
        for metric, value in metrics.items():
            if value is not None:
                row.runs.setdefault(metric, []).append(value)

    def row(self, what: str, target: str = OURS) -> Row | None:
        """Return the row of a measurement on a target; None if there is none."""
        return next((row for row in self.rows if (row.what, row.target) == (what, target)), None)

    def middle(self, what: str, metric: str, target: str = OURS) -> float | None:
        """Return the median of a metric in the row of `what`; None if it was never measured."""
        row = self.row(what, target)
        return row.middle(metric) if row is not None else None

    def to_floor(self, what: str, metric: str, target: str = OURS) -> float | None:
        """Return a metric's ratio to the floor's, as the median of the runs' ratios; None if either
        is missing."""
        return self._ratio(self.row(what, target), self.row(what, FLOOR), metric)

    def to(self, target: str, what: str, metric: str) -> float | None:
        """Return the ratio of our metric to another target's, computed as in `to_floor`."""
        return self._ratio(self.row(what), self.row(what, target), metric)

    def error_to(self, target: str, what: str, metric: str) -> float | None:
        """Return the standard error of `to`, assuming that the runs' ratios are normally
        distributed; None with less than two of them."""
        ratios = self._compare_runs(self.row(what), self.row(what, target), metric, _ratio)
        if len(ratios) < 2:
            return None
        middle = median(ratios)
        deviation = 1.4826 * median(abs(ratio - middle) for ratio in ratios)
        return 1.2533 * deviation / len(ratios) ** 0.5

    def to_other(self, what: str, base_what: str, metric: str) -> float | None:
        """Return the ratio of our metric in one row to that in another, as the median of the runs'
        ratios."""
        return self._ratio(self.row(what), self.row(base_what), metric)

    def added(self, what: str, base_what: str, metric: str) -> float | None:
        """Return by how much our metric in one row exceeds that in another, as the median over the
        runs."""
        return self._median_of_runs(
            self.row(what), self.row(base_what), metric, lambda value, base: value - base
        )

    def _ratio(self, row: Row | None, base: Row | None, metric: str) -> float | None:
        """Return the median of the ratios of two rows' runs; None without any."""
        return self._median_of_runs(row, base, metric, _ratio)

    def _median_of_runs(
        self,
        row: Row | None,
        base: Row | None,
        metric: str,
        compare: Callable[[float, float], float | None],
    ) -> float | None:
        """Return the median of `compare` over the runs of two rows; None without any."""
        compared = self._compare_runs(row, base, metric, compare)
        return median(compared) if compared else None

    @staticmethod
    def _compare_runs(
        row: Row | None,
        base: Row | None,
        metric: str,
        compare: Callable[[float, float], float | None],
    ) -> list[float]:
        """Return `compare` of each run of two rows, without the results that are None."""
        if row is None or base is None:
            return []
        pairs = zip(row.runs.get(metric, ()), base.runs.get(metric, ()), strict=False)
        return [compared for pair in pairs if (compared := compare(*pair)) is not None]

    def at_most(self, what: str, value: float | None, limit: float) -> None:
        """Add a verdict: `value` must be at most `limit`."""
        self.verdicts.append(Verdict(what, value, limit))

    def at_least(self, what: str, value: float | None, limit: float) -> None:
        """Add a verdict: `value` must be at least `limit`."""
        self.verdicts.append(Verdict(what, value, limit, at_least=True))

    def metrics(self) -> Sequence[str]:
        """Return the metrics of all rows, in the order of their first appearance."""
        return list(dict.fromkeys(metric for row in self.rows for metric in row.runs))

    def document(self) -> dict[str, Any]:
        """Return these results as JSON values, which `from_document` reads back."""
        return asdict(self)

    @staticmethod
    def from_document(document: Mapping[str, Any]) -> Results:
        """Return the results that `document` wrote."""
        fields = dict(document)
        fields["rows"] = [Row(**row) for row in fields["rows"]]
        fields["verdicts"] = [Verdict(**verdict) for verdict in fields["verdicts"]]
        return Results(**fields)


def _ratio(value: float, base: float) -> float | None:
    """Return the ratio of a value to a base; None if the base is 0."""
    return value / base if base else None


def slope(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the slope of y over x by least squares, and its standard error. Raises ValueError if
    the points give none."""
    count = len(points)
    if count < 3:
        raise ValueError(f"{count} points have no slope with an error: want three")
    x_mean = sum(x for x, _ in points) / count
    y_mean = sum(y for _, y in points) / count
    x_square = sum((x - x_mean) ** 2 for x, _ in points)
    if not x_square:
        raise ValueError("all points lie at one x")
    value = sum((x - x_mean) * (y - y_mean) for x, y in points) / x_square
    rest = sum((y - y_mean - value * (x - x_mean)) ** 2 for x, y in points)
    return value, (rest / (count - 2) / x_square) ** 0.5
