"""Filters that no event can match: clauses that contradict each other about one attribute.

    all of: exact type=a, exact type=b        no type is both
    all of: exact type=a.b, prefix type=c.    a.b doesn't begin with c.
    exact specversion=2.0                     there is no such version

Sound, not complete: what is found can't match; CESQL and `not` are looked at only by themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from knafka.core.contract import All, Any_, Exact, Filter, Prefix, Suffix
from knafka.core.event import SPEC_VERSIONS

SPEC_VERSION: Final = "specversion"


@dataclass(frozen=True, slots=True)
class _Demand:
    """What one clause demands of one attribute."""

    path: str
    dialect: str
    attribute: str
    value: str

    def __str__(self) -> str:
        return f"{self.path} ({self.dialect} {self.value!r})"


def impossible(filters: Sequence[Filter], path: str) -> list[str]:
    """A sentence for each contradiction among filters that all have to match."""
    return list(_contradictions([], filters, path))


def _contradictions(
    above: Sequence[_Demand], filters: Sequence[Filter], path: str
) -> Iterator[str]:
    demands = [
        *above,
        *(demand for i, spec in enumerate(filters) for demand in _demands(spec, f"{path}[{i}]")),
    ]
    for demand in demands[len(above) :]:
        if demand.attribute == SPEC_VERSION and not _possible_version(demand):
            yield f"{demand} never matches: specversion is {' or '.join(sorted(SPEC_VERSIONS))}"
    for index, one in enumerate(demands):
        for other in demands[max(index + 1, len(above)) :]:
            if one.attribute == other.attribute and not _together(one, other):
                yield f"{other} never matches together with {one}"
    for where, branches in _choices(filters, path):
        # Of a choice one branch is enough: it can't match if none can beside what is demanded.
        refused = [list(_contradictions(demands, [branch], f"{where}.any")) for branch in branches]
        if branches and all(refused):
            yield from refused[0]


def _demands(spec: Filter, path: str) -> Iterator[_Demand]:
    """What must hold of single attributes for the filter to match."""
    match spec:
        case Exact() | Prefix() | Suffix():
            for dialect, operand in spec:  # its only field
                for attribute, value in operand.items():
                    yield _Demand(f"{path}.{dialect}.{attribute}", dialect, attribute, value)
        case All(all=inner):
            for index, inner_filter in enumerate(inner):
                yield from _demands(inner_filter, f"{path}.all[{index}]")


def _choices(filters: Sequence[Filter], path: str) -> Iterator[tuple[str, Sequence[Filter]]]:
    for index, filter_ in enumerate(filters):
        match filter_:
            case Any_(any=branches):
                yield f"{path}[{index}]", branches
            case All(all=inner):
                yield from _choices(inner, f"{path}[{index}].all")


def _together(one: _Demand, other: _Demand) -> bool:
    """Whether one value can meet both."""
    if {one.dialect, other.dialect} == {"prefix", "suffix"}:
        return True  # any beginning goes with any end
    return _meets(one.value, other) or _meets(other.value, one)


def _possible_version(demand: _Demand) -> bool:
    return any(_meets(version, demand) for version in SPEC_VERSIONS)


def _meets(value: str, demand: _Demand) -> bool:
    return _TESTS[demand.dialect](value, demand.value)


_TESTS: Final[Mapping[str, Callable[[str, str], bool]]] = {
    "exact": str.__eq__,
    "prefix": str.startswith,
    "suffix": str.endswith,
}
