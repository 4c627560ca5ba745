"""Filters obey the laws of logic."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from knafka.core.contract import Egress
from knafka.core.documents import Model, parse
from knafka.core.filters.declared_filters import Filter
from knafka.core.filters.predicates import compile_filter, compile_trigger, why_not

names = st.sampled_from(["type", "source", "subject", "id"])
values = st.text("ab", min_size=1, max_size=3)
events = st.dictionaries(names, values, max_size=4)
wanted = st.dictionaries(names, values, min_size=1, max_size=2)
leaves = st.one_of(
    st.builds(lambda w: {"exact": w}, wanted),
    st.builds(lambda w: {"prefix": w}, wanted),
    st.builds(lambda w: {"suffix": w}, wanted),
    st.builds(lambda name, value: {"cesql": f"{name} = '{value}'"}, names, values),
)


def _combined(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    several = st.lists(inner, min_size=1, max_size=3)
    return st.one_of(
        st.builds(lambda each: {"not": each}, inner),
        st.builds(lambda each: {"all": each}, several),
        st.builds(lambda each: {"any": each}, several),
    )


documents = st.recursive(leaves, _combined, max_leaves=6)


class One(Model):
    filter: Filter


def passes(document: Any, event: dict[str, str]) -> bool:
    return compile_filter(parse(One, {"filter": document}).filter)(event)


@given(st.lists(documents, min_size=1, max_size=3), events)
def test_not_all_is_any_not(inner: list[Any], event: dict[str, str]) -> None:
    negated = [{"not": each} for each in inner]
    assert passes({"not": {"all": inner}}, event) == passes({"any": negated}, event)


@given(st.lists(documents, min_size=1, max_size=3), events)
def test_not_any_is_all_not(inner: list[Any], event: dict[str, str]) -> None:
    negated = [{"not": each} for each in inner]
    assert passes({"not": {"any": inner}}, event) == passes({"all": negated}, event)


@given(documents, events)
def test_not_not_changes_nothing(document: Any, event: dict[str, str]) -> None:
    assert passes({"not": {"not": document}}, event) == passes(document, event)


@given(st.lists(documents, max_size=3), events)
def test_the_dry_run_refuses_exactly_what_the_predicate_refuses(
    filters: list[Any], event: dict[str, str]
) -> None:
    egress = parse(
        Egress,
        {
            "namespace": "n",
            "broker": "b",
            "trigger": "t",
            "topic": "t",
            "group": "g",
            "deadLetterTopic": "d",
            "kafka": {"bootstrapServers": "x"},
            "subscriber": {"url": "http://x/"},
            "filters": filters,
        },
    )
    matches = compile_trigger(egress.filter, egress.filters)(event)
    assert matches == (not why_not(egress.filter, egress.filters, event))
