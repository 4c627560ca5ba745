"""Finds filters that no event can match, since their clauses contradict each other.

    all of: exact type=a, exact type=b        no type is both
    all of: exact type=a.b, prefix type=c.    a.b doesn't begin with c.
    exact specversion=2.0                     there is no such version

Every reported filter is impossible, but not every impossible filter is reported: clauses with CESQL
or `not` are never compared with others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from knafka.core.events.event import SPEC_VERSIONS
from knafka.core.filters.declared_filters import All, Any_, Exact, Filter, Prefix, Suffix

SPEC_VERSION: Final = "specversion"
"""The attribute with the version of CloudEvents."""


@dataclass(frozen=True, slots=True)
class _Demand:
    """What one clause demands of one attribute's value."""

    path: str
    """The clause's path in the document."""
    dialect: str
    """`exact`, `prefix` or `suffix`."""
    attribute: str
    value: str

    def __str__(self) -> str:
        """Return the demand as text for users: `spec.filters[0].exact.type (exact 'order')`."""
        return f"{self.path} ({self.dialect} {self.value!r})"


def contradictions(filters: Sequence[Filter], path: str) -> list[str]:
    """Return a sentence for each contradiction among filters that must all match; `path` is where
    the list of filters is in its document (`spec.filters`)."""
    return list(_find_contradictions([], filters, path))


def _find_contradictions(
    outer_demands: Sequence[_Demand], filters: Sequence[Filter], path: str
) -> Iterator[str]:
    """Yield a sentence for each contradiction among filters that must all match, or between one of
    them and a demand of the filters that enclose them (`outer_demands`). `path` is where the list
    of filters is in its document."""
    new_demands = [
        demand
        for index, spec in enumerate(filters)
        for demand in _attribute_demands(spec, f"{path}[{index}]")
    ]
    for demand in new_demands:
        if demand.attribute == SPEC_VERSION and not _allows_version(demand):
            yield f"{demand} never matches: specversion is {' or '.join(sorted(SPEC_VERSIONS))}"
    demands = [*outer_demands, *new_demands]
    for index, earlier in enumerate(demands):
        # Pairs of two outer demands were compared by the caller.
        for later in demands[max(index + 1, len(outer_demands)) :]:
            if earlier.attribute == later.attribute and not _are_compatible(earlier, later):
                yield f"{later} never matches together with {earlier}"
    for choice_path, branches in _any_branches(filters, path):
        # A choice needs one branch only: it is impossible if every branch contradicts the demands.
        contradictions_by_branch = [
            list(_find_contradictions(demands, [branch], f"{choice_path}.any"))
            for branch in branches
        ]
        if branches and all(contradictions_by_branch):
            yield from contradictions_by_branch[0]  # one branch is reported for all of them


def _attribute_demands(spec: Filter, path: str) -> Iterator[_Demand]:
    """Yield the demands on single attributes that an event must meet for the filter `spec` to
    match; none for a CESQL, `not` or `any` filter. `path` is the filter's path in its document."""
    match spec:
        case Exact() | Prefix() | Suffix():
            # Iterating a model yields its fields: here only one, named by the dialect.
            for dialect, operand in spec:
                for attribute, value in operand.items():
                    yield _Demand(f"{path}.{dialect}.{attribute}", dialect, attribute, value)
        case All(all=inner):
            for index, inner_filter in enumerate(inner):
                yield from _attribute_demands(inner_filter, f"{path}.all[{index}]")


def _any_branches(filters: Sequence[Filter], path: str) -> Iterator[tuple[str, Sequence[Filter]]]:
    """Yield the path in the document and the branches of each `any` filter among filters that must
    all match. `path` is the path of the list `filters`."""
    for index, spec in enumerate(filters):
        match spec:
            case Any_(any=branches):
                yield f"{path}[{index}]", branches
            case All(all=inner):
                yield from _any_branches(inner, f"{path}[{index}].all")


def _are_compatible(first: _Demand, second: _Demand) -> bool:
    """Whether some value can meet both demands, which are on the same attribute."""
    if {first.dialect, second.dialect} == {"prefix", "suffix"}:
        return True  # a value can have any prefix and any suffix
    # An exact value has to meet the other demand; of two prefixes, the longer one the shorter.
    return _meets(first.value, second) or _meets(second.value, first)


def _allows_version(demand: _Demand) -> bool:
    """Whether a version of CloudEvents meets this demand."""
    return any(_meets(version, demand) for version in SPEC_VERSIONS)


def _meets(value: str, demand: _Demand) -> bool:
    """Whether an attribute's value meets a demand, by the test of the demand's dialect."""
    return _TESTS[demand.dialect](value, demand.value)


_TESTS: Final[Mapping[str, Callable[[str, str], bool]]] = {
    "exact": str.__eq__,
    "prefix": str.startswith,
    "suffix": str.endswith,
}
"""The test of each dialect: takes the attribute's value, then the filter's."""
