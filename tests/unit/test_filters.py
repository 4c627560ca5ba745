"""Filters: dialects, the older attributes filter, and why an event was refused."""

import pytest

from knafka.core.contract import Egress
from knafka.core.documents import parse
from knafka.core.filters.declared_filters import AttributesFilter
from knafka.core.filters.predicates import compile_attributes, compile_trigger, never_true, why_not

EVENT = {
    "specversion": "1.0",
    "id": "1",
    "source": "/orders/eu",
    "type": "order.created",
    "subject": "42",
    "amount": "7",
    "empty": "",
}

MATCHING = {
    "exact": {"exact": {"type": "order.created", "subject": "42"}},
    "prefix": {"prefix": {"source": "/orders"}},
    "suffix": {"suffix": {"type": ".created"}},
    "prefix of several": {"prefix": {"source": "/orders", "type": "order"}},
    "all": {"all": [{"exact": {"subject": "42"}}, {"prefix": {"type": "order"}}]},
    "any": {"any": [{"exact": {"subject": "no"}}, {"suffix": {"source": "eu"}}]},
    "any of one": {"any": [{"exact": {"subject": "42"}}]},
    "not": {"not": {"exact": {"subject": "43"}}},
    "not, of an absent attribute": {"not": {"exact": {"absent": "x"}}},
    "cesql": {"cesql": "type = 'order.created' AND amount > 5"},
    "nested": {"all": [{"not": {"any": [{"exact": {"type": "x"}}, {"cesql": "FALSE"}]}}]},
}
REFUSING = {
    "exact, case": {"exact": {"type": "Order.created"}},
    "exact, one of two": {"exact": {"type": "order.created", "subject": "43"}},
    "exact, absent": {"exact": {"absent": "x"}},
    "prefix": {"prefix": {"source": "orders"}},
    "suffix, absent": {"suffix": {"absent": "x"}},
    "all": {"all": [{"exact": {"subject": "42"}}, {"exact": {"type": "x"}}]},
    "any": {"any": [{"exact": {"subject": "x"}}, {"exact": {"type": "x"}}]},
    "not": {"not": {"exact": {"subject": "42"}}},
    "cesql, false": {"cesql": "amount > 7"},
    "cesql, an error": {"cesql": "absent = 'x'"},
    "cesql, no boolean": {"cesql": "'a string'"},
}


def egress_with(**fields: object) -> Egress:
    document = {
        "namespace": "default",
        "broker": "b",
        "trigger": "t",
        "topic": "topic",
        "group": "group",
        "deadLetterTopic": "dead",
        "kafka": {"bootstrapServers": "localhost:9092"},
        "subscriber": {"url": "http://localhost/"},
        **fields,
    }
    return parse(Egress, document)


def verdict(event: dict[str, str], **fields: object) -> bool:
    egress = egress_with(**fields)
    matches = compile_trigger(egress.filter, egress.filters)(event)
    reasons = why_not(egress.filter, egress.filters, event)
    assert matches == (not reasons), "the dry run agrees with the predicate"
    return matches


@pytest.mark.conformance("KN-TRG-10")
@pytest.mark.parametrize("spec", MATCHING.values(), ids=MATCHING.keys())
def test_a_matching_event_passes(spec: object) -> None:
    """KN-TRG-10."""
    assert verdict(EVENT, filters=[spec])


@pytest.mark.conformance("KN-TRG-10")
@pytest.mark.parametrize("spec", REFUSING.values(), ids=REFUSING.keys())
def test_any_other_event_is_refused(spec: object) -> None:
    """KN-TRG-10."""
    assert not verdict(EVENT, filters=[spec])


@pytest.mark.conformance("KN-TRG-10")
def test_filters_are_anded() -> None:
    """KN-TRG-10."""
    assert verdict(EVENT, filters=[MATCHING["exact"], MATCHING["cesql"]])
    assert not verdict(EVENT, filters=[MATCHING["exact"], REFUSING["cesql, false"]])


@pytest.mark.conformance("KN-TRG-10")
def test_filters_override_the_attributes_filter_unless_they_are_empty() -> None:
    """KN-TRG-10."""
    other = {"attributes": {"type": "other"}}
    assert verdict(EVENT, filter=other, filters=[MATCHING["exact"]])
    assert not verdict(EVENT, filter=other, filters=[])


@pytest.mark.conformance("KN-TRG-08")
@pytest.mark.parametrize(
    ("wanted", "matches"),
    [
        ({}, True),
        ({"type": "order.created"}, True),
        ({"type": "order.created", "subject": "42"}, True),
        ({"type": "ORDER.CREATED"}, False),
        ({"type": ""}, True),
        ({"absent": ""}, False),
        ({"empty": ""}, False),
        ({"absent": "x"}, False),
        ({"type": "order.created", "subject": "x"}, False),
    ],
)
def test_the_attributes_filter_wants_presence_and_equality(
    wanted: dict[str, str], matches: bool
) -> None:
    """KN-TRG-08: an empty value matches any value of a present, non-empty attribute."""
    assert verdict(EVENT, filter={"attributes": wanted}) == matches
    assert compile_attributes(AttributesFilter(attributes=wanted))(EVENT) == matches


def test_a_dry_run_names_the_clauses_that_said_no() -> None:
    egress = egress_with(
        filters=[
            {"exact": {"type": "order.created", "subject": "43"}},
            {"any": [{"prefix": {"source": "/x"}}, {"suffix": {"absent": "y"}}]},
            {"not": {"exact": {"id": "1"}}},
            {"all": [{"exact": {"id": "1"}}, {"exact": {"id": "2"}}]},
            {"cesql": "amount > 5 AND amount > 9"},
        ]
    )
    assert why_not(egress.filter, egress.filters, EVENT) == (
        "filters[0].exact.subject: the event has '42', want '43'",
        "filters[1].any[0].prefix.source: the event has '/orders/eu', want '/x'",
        "filters[1].any[1].suffix.absent: the event has no such attribute, want 'y'",
        "filters[2].not: what it negates matches",
        "filters[3].all[1].exact.id: the event has '1', want '2'",
        "filters[4].cesql: amount > 9 is not true",
    )


def test_a_dry_run_of_the_attributes_filter_names_the_attribute() -> None:
    egress = egress_with(filter={"attributes": {"type": "x", "absent": "", "id": "1"}})
    assert why_not(egress.filter, egress.filters, EVENT) == (
        "filter.attributes.type: the event has 'order.created', want 'x'",
        "filter.attributes.absent: the event has no such attribute, want 'any value'",
    )


def test_an_expression_that_fails_is_counted_and_one_that_says_no_is_not() -> None:
    failed: list[str] = []
    filters = [{"any": [{"cesql": "absent = 'x'"}, {"not": {"cesql": "INT(type) = 1"}}]}]
    egress = egress_with(filters=filters)
    passes = compile_trigger(egress.filter, egress.filters, failed.append)
    assert passes(EVENT), "an error is false, and so its negation true"
    assert failed == ["missingAttribute", "cast"]
    del failed[:]
    assert not compile_trigger(
        egress.filter, egress_with(filters=[{"cesql": "type = 'no'"}]).filters, failed.append
    )(EVENT)
    assert failed == []


@pytest.mark.parametrize(
    ("spec", "found"),
    [
        ({"cesql": "type = 'a'"}, {}),
        ({"cesql": "EXISTS subject AND TRUE"}, {}),
        ({"cesql": "IS_BOOL(subject)"}, {}),
        ({"cesql": "BOOL(subject)"}, {}),
        ({"cesql": "subject"}, {"filters[0].cesql": "a string"}),
        ({"cesql": "('true')"}, {"filters[0].cesql": "a string"}),
        ({"cesql": "LENGTH(subject)"}, {"filters[0].cesql": "an integer"}),
        ({"cesql": "-1"}, {"filters[0].cesql": "an integer"}),
        ({"cesql": "1 + 1"}, {"filters[0].cesql": "an integer"}),
        (
            {"any": [{"all": [{"cesql": "type"}]}, {"not": {"cesql": "1"}}]},
            {"filters[0].any[0].all[0].cesql": "a string", "filters[0].any[1].not.cesql": "an int"},
        ),
    ],
)
def test_an_expression_that_is_no_boolean_is_never_true(
    spec: object, found: dict[str, str]
) -> None:
    """KN-TRG-10: it is valid, and no event passes it."""
    told = dict(never_true(egress_with(filters=[spec]).filters, "filters"))
    assert told.keys() == found.keys()
    assert all(returned in told[path] for path, returned in found.items())


@pytest.mark.parametrize(
    ("expression", "event", "passes"),
    [
        ("type = 'a' AND source = '/x' OR subject = 's'", {"subject": "s"}, True),
        ("type = 'a' AND source = '/x' OR subject = 's'", {"type": "a", "subject": "s"}, True),
        ("type = 'a' OR source = '/x' AND subject = 's'", {"type": "a"}, False),
        ("NOT type = 'a'", {}, False),
        ("NOT (type = 'a')", {}, True),
        ("type != 'a'", {}, True),
        ("LENGTH(subject)", {}, False),
        ("LENGTH(subject) > 0", {}, True),
        ("urgent", {"urgent": "true"}, False),
        ("BOOL(urgent)", {"urgent": "true"}, True),
        ("urgent = 'yes'", {}, False),
        ("NOT (urgent = 'yes')", {}, False),
        ("NOT EXISTS urgent OR urgent != 'yes'", {}, True),
        ("NOT EXISTS urgent OR urgent != 'yes'", {"urgent": "yes"}, False),
        ("NOT EXISTS urgent OR urgent != 'yes'", {"urgent": "no"}, True),
    ],
)
def test_what_the_docs_tell_of_filters_is_so(
    expression: str, event: dict[str, str], passes: bool
) -> None:
    """docs/how-to/come-from-eventing-kafka-broker.md."""
    usual = {"type": "b", "source": "/y", "subject": "t"}
    assert verdict({**usual, **event}, filters=[{"cesql": expression}]) is passes
