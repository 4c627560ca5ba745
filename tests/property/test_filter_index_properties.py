"""The index finds exactly those Triggers whose own filter matches, with the same errors counted."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from knafka.core.documents import Model, parse
from knafka.core.filters.declared_filters import AttributesFilter, Filter
from knafka.core.filters.filter_index import FilterIndex, select
from knafka.core.filters.predicates import compile_trigger

NAMES = st.sampled_from(["type", "source", "subject", "ext"])
VALUES = st.text("ab", min_size=1, max_size=3)
EVENTS = st.dictionaries(NAMES, st.text("ab", max_size=4), max_size=4)
PAIRS = st.dictionaries(NAMES, VALUES, min_size=1, max_size=2)
EXPRESSIONS = st.one_of(
    st.builds(lambda name, value: f"{name} = '{value}'", NAMES, VALUES),  # an error where it isn't
    st.builds(lambda name: f"EXISTS {name}", NAMES),
    st.builds(lambda name: f"1 / LENGTH({name}) = 1", NAMES),
    st.just("INT(type) = 1"),
)
LEAVES = st.one_of(
    st.builds(lambda pairs: {"exact": pairs}, PAIRS),
    st.builds(lambda pairs: {"prefix": pairs}, PAIRS),
    st.builds(lambda pairs: {"suffix": pairs}, PAIRS),
    st.builds(lambda text: {"cesql": text}, EXPRESSIONS),
)


def _combined(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    several = st.lists(inner, min_size=1, max_size=3)
    return st.one_of(
        st.builds(lambda each: {"not": each}, inner),
        st.builds(lambda each: {"all": each}, several),
        st.builds(lambda each: {"any": each}, several),
    )


class Declared(Model):
    filter: AttributesFilter
    filters: tuple[Filter, ...]


DECLARED = st.builds(
    lambda attributes, filters: parse(
        Declared, {"filter": {"attributes": attributes}, "filters": filters}
    ),
    st.dictionaries(NAMES, st.text("ab", max_size=2), max_size=2),
    st.lists(st.recursive(LEAVES, _combined, max_leaves=6), max_size=3),
)


@given(st.lists(DECLARED, max_size=8), st.lists(EVENTS, max_size=4), st.sets(st.integers(0, 7)))
def test_the_index_and_each_filter_by_itself_agree(
    triggers: list[Declared], events: list[dict[str, str]], removed: set[int]
) -> None:
    index: FilterIndex[int] = FilterIndex()
    indexed_errors, plain_errors = Counter[tuple[int, str]](), Counter[tuple[int, str]]()
    plain = {}
    for number, each in enumerate(triggers):

        def failed(kind: str, number: int = number) -> None:
            indexed_errors[number, kind] += 1

        def failed_plain(kind: str, number: int = number) -> None:
            plain_errors[number, kind] += 1

        selection = select(each.filter, each.filters, failed)
        if selection is None:
            assert not each.filters
            assert not each.filter.attributes
            continue
        index.add(number, selection)
        plain[number] = compile_trigger(each.filter, each.filters, failed_plain)
    for number in removed & plain.keys():
        index.remove(number)
        del plain[number]
    for event in events:
        assert sorted(index.matches(event)) == [n for n, passes in plain.items() if passes(event)]
    assert indexed_errors == plain_errors
    for number in plain:
        index.remove(number)
    assert index.matches({"type": "a"}) == []
    assert not index._exact
    assert not index._prefix
    assert not index._others
