"""Results: what each run measured, and what it says: medians, spreads, ratios, verdicts.

A `Row` is one thing measured on one target, once per run. Runs of different targets are
interleaved, so the ratio to the floor is the median of the ratios of neighbours. Not here:
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
"""Ours as it was, from another checkout."""


@dataclass
class Row:
    """One thing measured on one target: metric to its value in each run."""

    what: str
    target: str
    runs: dict[str, list[float]] = field(default_factory=dict)

    def middle(self, metric: str) -> float | None:
        """The median, None if it was never measured."""
        values = self.runs.get(metric)
        return median(values) if values else None

    def spread(self, metric: str) -> tuple[float, float]:
        """Lowest and highest."""
        return min(self.runs[metric]), max(self.runs[metric])


@dataclass(frozen=True, slots=True)
class Verdict:
    """One target of the project: `value` must be at most (or at least) `limit`."""

    what: str
    value: float | None
    limit: float
    at_least: bool = False

    @property
    def met(self) -> bool | None:
        """None: not measured."""
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
    """The metric to plot over the rows, if their names say how they grow."""

    def add(self, what: str, target: str, **metrics: float | None) -> None:
        """One run's figures; those that are None were not to be had."""
        row = self.row(what, target)
        if row is None:
            row = Row(what, target)
            self.rows.append(row)
        for metric, value in metrics.items():
            if value is not None:
                row.runs.setdefault(metric, []).append(value)

    def row(self, what: str, target: str = OURS) -> Row | None:
        return next((row for row in self.rows if (row.what, row.target) == (what, target)), None)

    def middle(self, what: str, metric: str, target: str = OURS) -> float | None:
        row = self.row(what, target)
        return row.middle(metric) if row is not None else None

    def to_floor(self, what: str, metric: str, target: str = OURS) -> float | None:
        """How many times the floor's: the median of the ratios of neighbouring runs."""
        return self._ratio(self.row(what, target), self.row(what, FLOOR), metric)

    def to(self, target: str, what: str, metric: str) -> float | None:
        """How many times another target's, as `to_floor` has it."""
        return self._ratio(self.row(what), self.row(what, target), metric)

    def error_to(self, target: str, what: str, metric: str) -> float | None:
        """The standard error of `to`, were the ratios of neighbours spread normally."""
        ratios = self._compared(self.row(what), self.row(what, target), metric, _ratio)
        if len(ratios) < 2:
            return None
        middle = median(ratios)
        deviation = 1.4826 * median(abs(each - middle) for each in ratios)
        return 1.2533 * deviation / len(ratios) ** 0.5

    def to_other(self, what: str, other: str, metric: str) -> float | None:
        """Ours in one row to ours in another one, run by run."""
        return self._ratio(self.row(what), self.row(other), metric)

    def added(self, what: str, other: str, metric: str) -> float | None:
        """What ours costs more in one row than in another one, run by run."""
        return self._of_pairs(self.row(what), self.row(other), metric, lambda mine, its: mine - its)

    def _ratio(self, row: Row | None, base: Row | None, metric: str) -> float | None:
        return self._of_pairs(row, base, metric, _ratio)

    def _of_pairs(
        self,
        row: Row | None,
        base: Row | None,
        metric: str,
        compare: Callable[[float, float], float | None],
    ) -> float | None:
        compared = self._compared(row, base, metric, compare)
        return median(compared) if compared else None

    @staticmethod
    def _compared(
        row: Row | None,
        base: Row | None,
        metric: str,
        compare: Callable[[float, float], float | None],
    ) -> list[float]:
        if row is None or base is None:
            return []
        pairs = zip(row.runs.get(metric, ()), base.runs.get(metric, ()), strict=False)
        return [each for pair in pairs if (each := compare(*pair)) is not None]

    def at_most(self, what: str, value: float | None, limit: float) -> None:
        self.verdicts.append(Verdict(what, value, limit))

    def at_least(self, what: str, value: float | None, limit: float) -> None:
        self.verdicts.append(Verdict(what, value, limit, at_least=True))

    def metrics(self) -> Sequence[str]:
        """All that any row has, in the order of their first appearance."""
        return list(dict.fromkeys(metric for row in self.rows for metric in row.runs))

    def document(self) -> dict[str, Any]:
        """As JSON values; `from_document` reads them back."""
        return asdict(self)

    @staticmethod
    def from_document(document: Mapping[str, Any]) -> Results:
        fields = dict(document)
        fields["rows"] = [Row(**row) for row in fields["rows"]]
        fields["verdicts"] = [Verdict(**verdict) for verdict in fields["verdicts"]]
        return Results(**fields)


def _ratio(mine: float, its: float) -> float | None:
    return mine / its if its else None


def slope(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Least squares: the slope of y over x, and its standard error; for flatness over time."""
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
