"""Filters that no event can match are found, and none that an event could match."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from knafka.core.filters.declared_filters import Filter
from knafka.core.filters.predicates import compile_filter
from knafka_cli.checks.impossible import contradictions

FILTERS: TypeAdapter[tuple[Any, ...]] = TypeAdapter(tuple[Filter, ...])


def problems(*filters: object) -> list[str]:
    return contradictions(FILTERS.validate_python(filters), "spec.filters")


@pytest.mark.parametrize(
    "filters",
    [
        [{"exact": {"type": "a"}}, {"exact": {"type": "b"}}],
        [{"exact": {"type": "a.b"}}, {"prefix": {"type": "c."}}],
        [{"suffix": {"type": ".x"}}, {"exact": {"type": "a.b"}}],
        [{"prefix": {"type": "a"}}, {"prefix": {"type": "b"}}],
        [{"suffix": {"type": "a"}}, {"suffix": {"type": "b"}}],
        [{"all": [{"exact": {"type": "a"}}]}, {"exact": {"type": "b"}}],
        [{"exact": {"type": "a"}}, {"any": [{"exact": {"type": "b"}}, {"prefix": {"type": "c"}}]}],
        [{"all": [{"any": [{"exact": {"specversion": "2.0"}}]}]}],
        [{"exact": {"specversion": "1.1"}}],
    ],
)
def test_what_contradicts_itself_is_told(filters: list[object]) -> None:
    (first, *_) = problems(*filters)
    assert first.startswith("spec.filters[")
    assert "never matches" in first


@pytest.mark.parametrize(
    "filters",
    [
        [],
        [{"exact": {"type": "a", "source": "b"}}],
        [{"prefix": {"type": "a"}}, {"prefix": {"type": "a.b"}}, {"suffix": {"type": "c"}}],
        [{"exact": {"type": "a.b"}}, {"prefix": {"type": "a."}}, {"suffix": {"type": "b"}}],
        [{"any": [{"exact": {"type": "a"}}, {"exact": {"type": "b"}}]}],
        [{"exact": {"type": "a"}}, {"any": [{"exact": {"type": "b"}}, {"exact": {"type": "a"}}]}],
        [{"exact": {"type": "a"}}, {"not": {"exact": {"type": "b"}}}],
        [{"exact": {"specversion": "1.0"}}],
    ],
)
def test_what_can_match_is_let_be(filters: list[object]) -> None:
    assert problems(*filters) == []


VALUES = st.text("ab", min_size=1, max_size=3)
CLAUSES = st.builds(
    lambda dialect, name, value: {dialect: {name: value}},
    st.sampled_from(["exact", "prefix", "suffix"]),
    st.sampled_from(["type", "source"]),
    VALUES,
)
TREES = st.recursive(
    CLAUSES,
    lambda inner: st.builds(
        lambda dialect, filters: {dialect: filters},
        st.sampled_from(["all", "any"]),
        st.lists(inner, min_size=1, max_size=3),
    ),
    max_leaves=5,
)


@given(st.lists(TREES, min_size=1, max_size=3), VALUES, VALUES)
def test_no_event_matches_what_is_called_impossible(
    filters: list[object], type_: str, source: str
) -> None:
    parsed = FILTERS.validate_python(filters)
    event = {"specversion": "1.0", "id": "1", "type": type_, "source": source}
    if contradictions(parsed, "spec.filters"):
        assert not all(compile_filter(each)(event) for each in parsed)
