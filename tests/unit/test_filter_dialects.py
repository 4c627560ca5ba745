"""Every place that knows the dialects of filters knows all of them: one more is an error there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from knafka.core.contract import Policy
from knafka.core.documents import Model, dump, parse
from knafka.core.filters import declared_filters
from knafka.core.filters.declared_filters import DIALECTS, AttributesFilter, Dialect, Filter
from knafka.core.filters.filter_index import select
from knafka.core.filters.filter_limits import MAX_FILTERS, beyond_limits
from knafka.core.filters.predicates import compile_filter, expressions, why_not

DECLARED: dict[Dialect, dict[str, Any]] = {
    "exact": {"exact": {"type": "a"}},
    "prefix": {"prefix": {"type": "a"}},
    "suffix": {"suffix": {"type": "a"}},
    "all": {"all": [{"cesql": "TRUE"}]},
    "any": {"any": [{"cesql": "TRUE"}]},
    "not": {"not": {"cesql": "TRUE"}},
    "cesql": {"cesql": "TRUE"},
}
NESTING = ("all", "any", "not")


class Unknown(Model):
    """A filter of a dialect that nobody knows yet."""


UNKNOWN = cast(Filter, Unknown())


def test_each_dialect_has_a_class() -> None:
    assert set(DECLARED) == set(DIALECTS)
    for declared in DECLARED.values():
        (read,) = parse(Policy, {"filters": [declared]}).filters
        assert dump(read) == declared


@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_stands_within_a_filter_is_found_and_counted(dialect: Dialect) -> None:
    filters = parse(Policy, {"filters": [DECLARED[dialect]]}).filters
    has_expression = dialect in (*NESTING, "cesql")
    assert [text for _, text in expressions(filters, "filters")] == ["TRUE"] * has_expression
    inner: object = {"exact": {"type": "a"}}
    nested = {dialect: inner if dialect == "not" else [inner]}
    too_many = beyond_limits([nested] * (MAX_FILTERS // 2 + 1))
    assert (too_many is not None) == (dialect in NESTING)


@pytest.mark.parametrize(
    "read",
    [
        compile_filter,
        lambda spec: list(expressions([spec], "filters")),
        lambda spec: why_not(AttributesFilter(), (spec,), {}),
        lambda spec: select(AttributesFilter(), (spec,), lambda kind: None),
    ],
    ids=["meaning", "expressions", "dry run", "index"],
)
def test_a_filter_of_an_unknown_dialect_is_never_passed_over(
    read: Callable[[Filter], object],
) -> None:
    with pytest.raises(AssertionError):
        read(UNKNOWN)


def test_the_limits_pass_over_no_dialect_that_filters_can_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    declared = [{"none": [{"exact": {"type": "a"}}]}]
    assert beyond_limits(declared) is None
    monkeypatch.setattr(declared_filters, "DIALECTS", (*DIALECTS, "none"))
    with pytest.raises(AssertionError):
        beyond_limits(declared)
