"""The contract: what is refused, where, and in which words; and that it survives JSON."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from knafka.core.contract import (
    BackoffPolicy,
    Delivery,
    Egress,
    Ingress,
    Kafka,
    Order,
    Sink,
    parse_ingresses,
)
from knafka.core.documents import Model, dump, explain_faults, parse, parse_json
from knafka.core.errors import InvalidDocument
from knafka.core.filters.declared_filters import (
    CESQL,
    All,
    Any_,
    AttributesFilter,
    Exact,
    Not,
    Prefix,
    Suffix,
)

KAFKA = {"bootstrapServers": "kafka:9092"}
EGRESS: dict[str, Any] = {
    "namespace": "shop",
    "broker": "orders",
    "trigger": "mail",
    "topic": "knative-broker-shop-orders",
    "group": "knative-trigger-shop-mail",
    "deadLetterTopic": "dead",
    "kafka": KAFKA,
    "subscriber": {"url": "http://mail.shop.svc/"},
}
DURATION = "want an ISO-8601 duration, such as PT0.2S or PT5M"
DIALECTS = "want one of exact, prefix, suffix, all, any, not, cesql"
NAME = "want a-z, then a-z or 0-9 (^[a-z][a-z0-9]*$)"


def refusal(model: type[Model], document: object, path: str = "") -> InvalidDocument:
    with pytest.raises(InvalidDocument) as raised:
        parse(model, document, path)
    return raised.value


@pytest.mark.conformance("KN-DLV-06")
@pytest.mark.parametrize(
    ("option", "value", "problem"),
    [
        ("retry", -1, "invalid value: -1: want greater than or equal to 0"),
        ("retry", 2**31, "invalid value: 2147483648: want less than or equal to 2147483647"),
        ("retry", "1", 'invalid value: "1": want a whole number'),
        ("retry", True, "invalid value: true: want a whole number"),
        ("retry", 1.5, "invalid value: 1.5: want a whole number"),
        ("backoffPolicy", "x", "invalid value: x: want 'linear' or 'exponential'"),
        ("backoffDelay", "1s", f"invalid value: 1s: {DURATION}"),
        ("backoffDelay", "", f"invalid value: : {DURATION}"),
        ("backoffDelay", "P", f"invalid value: P: {DURATION}"),
        ("backoffDelay", "PT", f"invalid value: PT: {DURATION}"),
        ("backoffDelay", "P1M1Y", f"invalid value: P1M1Y: {DURATION}"),
        ("backoffDelay", "PT1,S", f"invalid value: PT1,S: {DURATION}"),
        ("backoffDelay", "PT1,000.5S", f"invalid value: PT1,000.5S: {DURATION}"),
        ("backoffDelay", "-PT1S", f"invalid value: -PT1S: {DURATION}"),
        ("backoffDelay", "PT１S", f"invalid value: PT１S: {DURATION}"),
        ("backoffDelay", "PT" + "9" * 400 + "S", "invalid value: want a finite duration"),
        ("backoffDelay", math.inf, "invalid value: want a finite duration"),
        ("backoffDelay", math.nan, "invalid value: want a finite duration"),
        ("backoffDelay", 10**400, "invalid value: want a finite duration"),
        ("backoffDelay", -1, "invalid value: -1: want greater than or equal to 0"),
        ("timeout", "PT0S", "invalid value: PT0S: want greater than 0"),
        ("timeout", True, "a duration is text in ISO-8601 form, such as PT0.2S or PT5M"),
        ("timeout", [], "a duration is text in ISO-8601 form, such as PT0.2S or PT5M"),
        ("retryAfterMax", "soon", f"invalid value: soon: {DURATION}"),
        ("format", "avro", "invalid value: avro: want 'json' or 'binary'"),
        ("retries", 3, "unknown field"),
        ("backoff_delay", "PT1S", "unknown field"),
    ],
)
def test_a_bad_delivery_option_is_refused_by_path(option: str, value: object, problem: str) -> None:
    """KN-DLV-06; a field in Python's spelling is unknown, as it is to the API server."""
    error = refusal(Delivery, {option: value}, "spec.delivery")
    assert (error.path, error.problem) == (f"spec.delivery.{option}", problem)
    assert str(error) == f"spec.delivery.{option}: {problem}"


@pytest.mark.conformance("KN-DLV-02")
@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("PT0S", 0.0),
        ("PT0.2S", 0.2),
        ("PT5M", 300.0),
        ("PT1H30M", 5400.0),
        ("P1D", 86_400.0),
        ("P2W", 1_209_600.0),
        ("P1DT1S", 86_401.0),
        ("PT0,5S", 0.5),
        ("P1,5DT0,5M", 129_630.0),
        # As Knative has it: a year is 365.2425 days, a month a twelfth of one.
        ("P1M", 30.436875 * 86_400),
        ("P1Y2M", 14 * 30.436875 * 86_400),
        ("P1MT1M", 30.436875 * 86_400 + 60),
    ],
)
def test_a_duration_is_read_as_seconds(text: str, seconds: float) -> None:
    """KN-DLV-02."""
    assert parse(Delivery, {"backoffDelay": text}).backoff_delay == seconds


counts = st.integers(0, 10_000) | st.decimals(0, 10_000, places=3)


@given(st.dictionaries(st.sampled_from("YMWDhms"), counts, min_size=1), st.booleans())
def test_a_duration_is_the_sum_of_its_parts(parts: dict[str, Decimal | int], comma: bool) -> None:
    """Months before the T, minutes behind it; a comma or a point before the fraction."""
    lengths = {"Y": 31_556_952, "M": 2_629_746, "W": 604_800, "D": 86_400, "h": 3600, "m": 60}
    named = {each: f"{parts[each]}{each.upper()}" for each in "YMWDhms" if each in parts}
    days = "".join(text for each, text in named.items() if each in "YMWD")
    time = "".join(text for each, text in named.items() if each in "hms")
    text = f"P{days}T{time}" if time else f"P{days}"
    read = parse(Delivery, {"backoffDelay": text.replace(".", ",") if comma else text})
    seconds = sum(float(count) * lengths.get(each, 1) for each, count in parts.items())
    assert read.backoff_delay == pytest.approx(seconds)


@given(st.floats(min_value=0, allow_infinity=False, exclude_min=True))
def test_a_duration_survives_being_written(seconds: float) -> None:
    written = dump(Delivery(timeout=seconds))
    assert parse(Delivery, written).timeout == seconds
    assert "e" not in str(written.get("timeout", "")).lower()


@pytest.mark.conformance("KN-TRG-10")
@pytest.mark.parametrize(
    ("filters", "path", "problem"),
    [
        ([{}], "[0]", f"no dialect found: {DIALECTS}"),
        ([{"not": None}], "[0]", f"no dialect found: {DIALECTS}"),
        ([{"equals": {}}], "[0]", f"unknown filter dialect 'equals': {DIALECTS}"),
        ([{"not_": {"cesql": "TRUE"}}], "[0]", f"unknown filter dialect 'not_': {DIALECTS}"),
        ([{1: 2}], "[0]", f"unknown filter dialect 1: {DIALECTS}"),
        (
            [{"cesql": "TRUE"}, {"exact": {"type": "a"}, "prefix": {"type": "a"}}],
            "[1]",
            "multiple dialects found, filters can have only one dialect set",
        ),
        (["type = 'a'"], "[0]", "a filter is an object with one dialect"),
        ([None], "[0]", "a filter is an object with one dialect"),
        ([{"not": []}], "[0].not", "a filter is an object with one dialect"),
        ({"exact": {"type": "a"}}, "", "invalid value: want a list"),
        ([{"exact": {}}], "[0].exact", "invalid value: want at least one entry"),
        ([{"exact": "a"}], "[0].exact", 'invalid value: "a": want an object'),
        (
            [{"prefix": {"type": ""}}],
            "[0].prefix.type",
            "invalid value: : want a string that is not empty",
        ),
        ([{"suffix": {"n": 1}}], "[0].suffix.n", "invalid value: 1: want a string"),
        ([{"all": []}], "[0].all", "want at least one filter"),
        ([{"any": []}], "[0].any", "want at least one filter"),
        ([{"all": {}}], "[0].all", "invalid value: want a list"),
        (
            [{"all": [{"any": [{"not": {"exact": {"S": "x"}}}]}]}],
            "[0].all[0].any[0].not.exact.S",
            f"invalid attribute name: 'S': {NAME}",
        ),
        ([{"any": [{"cesql": "TRUE"}, {}]}], "[0].any[1]", f"no dialect found: {DIALECTS}"),
        ([{"cesql": 1}], "[0].cesql", "invalid value: 1: want a string"),
    ],
)
def test_a_bad_filter_is_refused_by_path(filters: object, path: str, problem: str) -> None:
    """KN-TRG-10."""
    error = refusal(Egress, {**EGRESS, "filters": filters})
    assert (error.path, error.problem) == (f"filters{path}", problem)


@pytest.mark.conformance("KN-TRG-10")
def test_invalid_cesql_is_refused_with_where_it_breaks() -> None:
    """KN-TRG-10: rejected at admission, not per event."""
    error = refusal(Egress, {**EGRESS, "filters": [{"not": {"cesql": "type ="}}]})
    assert error.path == "filters[0].not.cesql"
    assert error.problem.startswith("invalid CESQL expression: ")
    assert "at character" in error.problem


def test_a_filter_nested_without_end_is_refused_not_followed() -> None:
    endless: dict[str, Any] = {"cesql": "TRUE"}
    for _ in range(5000):
        endless = {"not": endless}
    assert "maximum" in refusal(Egress, {**EGRESS, "filters": [endless]}).problem


def test_a_dialect_set_to_null_is_not_there() -> None:
    """The API server drops nulls; so a second, null dialect is no second dialect."""
    filters = [{"exact": {"type": "a"}, "prefix": None}]
    assert parse(Egress, {**EGRESS, "filters": filters}).filters == (Exact(exact={"type": "a"}),)


@pytest.mark.conformance("KN-TRG-09")
@pytest.mark.parametrize(
    "name",
    [
        "SOURCE",
        "Source",
        "souRce",
        "s pace s",
        "s_pace_s",
        "s-pace-s",
        "123",
        "😀",
        "a.b",
        "",
        "a\n",
    ],
)
def test_a_filter_on_what_is_no_attribute_name_is_refused(name: str) -> None:
    """KN-TRG-09: rekt's negative cases."""
    error = refusal(AttributesFilter, {"attributes": {name: "x"}}, "spec.filter")
    assert error.path == f"spec.filter.attributes.{name}"
    assert error.problem == f"invalid attribute name: {name!r}: {NAME}"


@pytest.mark.conformance("KN-TRG-09", "KN-TRG-08")
@pytest.mark.parametrize("name", ["source", "a", "c1d2e3", "abcdefghijklmnopqrst", "partitionkey"])
def test_a_filter_on_an_attribute_name_is_taken(name: str) -> None:
    """KN-TRG-09: rekt's positive cases; KN-TRG-08: an empty value is fine here."""
    assert parse(AttributesFilter, {"attributes": {name: ""}}).attributes == {name: ""}


ABSOLUTE = "want an absolute URL, such as http://host/path"
CLEAN = "want ASCII without spaces, controls or quotes"


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("", f"invalid value: : {ABSOLUTE}"),
        ("/path", f"invalid value: /path: {ABSOLUTE}"),
        ("//host/path", f"invalid value: //host/path: {ABSOLUTE}"),
        ("mailto:you", f"invalid value: mailto:you: {ABSOLUTE}"),
        ("http://", f"invalid value: http://: {ABSOLUTE}"),
        ("http:///path", f"invalid value: http:///path: {ABSOLUTE}"),
        ("http://[::1/", "invalid value: http://[::1/: Invalid IPv6 URL"),
        ("http://host/a b", f"invalid value: 'http://host/a b': {CLEAN}"),
        ("bad://host/\r\nX: y", f"invalid value: 'bad://host/\\r\\nX: y': {CLEAN}"),
        ("http://host/\r\nX: y", f"invalid value: 'http://host/\\r\\nX: y': {CLEAN}"),
        ("http://host\\evil/", f"invalid value: 'http://host\\\\evil/': {CLEAN}"),
        ("http://host/é", f"invalid value: 'http://host/é': {CLEAN}"),
        ("http://user:word@host/", "the URL holds credentials, which belong in a Secret"),
    ],
)
def test_a_bad_url_is_refused(url: str, problem: str) -> None:
    """A line break in a URL would become one in the request."""
    error = refusal(Sink, {"url": url})
    assert (error.path, error.problem) == ("url", problem)


@pytest.mark.parametrize(
    "url",
    [
        "http://h",
        "https://h:8443/a?b=c",
        "http://[::1]:80/",
        "HTTP://H/",
        "http://h/%20",
        "bad://uri",
        "http://h:0/",
        "http://h:70000/",
    ],
)
def test_a_good_url_is_kept_as_it_is(url: str) -> None:
    """Any absolute one, as upstream: what can't be reached is for the attempts to tell."""
    assert parse(Sink, {"url": url}).url == url


def test_missing_fields_are_named_together() -> None:
    """The words are upstream's: `missing field(s): spec.subscriber`."""
    error = refusal(Ingress, {"namespace": "shop", "kafka": {}}, "spec")
    assert error.path == "spec.broker"
    assert error.problem == "missing field(s): spec.broker, spec.topic, spec.kafka.bootstrapServers"


def test_every_broken_field_is_told_not_only_the_first() -> None:
    error = refusal(Delivery, {"retry": -1, "format": "x", "b": 1})
    assert str(error) == (
        "retry: invalid value: -1: want greater than or equal to 0; "
        "format: invalid value: x: want 'json' or 'binary'; b: unknown field"
    )


@pytest.mark.parametrize("document", [None, [], 1, "text"])
def test_a_document_that_is_no_object_is_refused(document: object) -> None:
    assert refusal(Egress, document).problem.endswith("want an object")


def test_a_hostile_value_is_not_repeated_in_full() -> None:
    assert len(str(refusal(Delivery, {"backoffPolicy": "x" * 1_000_000}))) < 300
    assert len(str(refusal(Delivery, {"timeout": "x" * 1_000_000}))) < 300


@pytest.mark.parametrize("limit", [0, 10_001])
def test_in_flight_attempts_are_bounded(limit: int) -> None:
    assert refusal(Egress, {**EGRESS, "maxInFlight": limit}).path == "maxInFlight"


def test_json_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidDocument, match="Invalid JSON"):
        parse_json(Egress, "{")
    with pytest.raises(InvalidDocument, match="Invalid JSON"):
        parse_ingresses("")


@pytest.mark.conformance("KN-BRK-20")
def test_a_receiver_reads_an_array_of_ingresses() -> None:
    """KN-BRK-20: each knows its path."""
    document = {"namespace": "shop", "broker": "orders", "topic": "t", "kafka": KAFKA}
    (ingress,) = parse_ingresses(json.dumps([document]))
    assert ingress.path == "/shop/orders"
    assert parse_ingresses("[]") == ()


def test_a_broken_ingress_is_refused_by_its_place_in_the_array() -> None:
    document = {"namespace": "shop", "broker": "orders", "topic": "t", "kafka": KAFKA}
    with pytest.raises(InvalidDocument) as raised:
        parse_ingresses(json.dumps([document, {**document, "maxEventBytes": 0}]))
    assert raised.value.path == "[1].maxEventBytes"


def test_an_egress_survives_being_written_and_read() -> None:
    leaf = Exact(exact={"type": "a"})
    egress = Egress(
        namespace="shop",
        broker="orders",
        trigger="mail",
        topic="t",
        group="g",
        dead_letter_topic="d",
        kafka=Kafka(bootstrap_servers="kafka:9092", secret_path="/secrets"),
        subscriber=Sink(url="https://mail/", ca_certs="PEM"),
        dead_letter_sink=Sink(url="http://dead/"),
        filter=AttributesFilter(attributes={"type": ""}),
        filters=(
            All(all=(leaf, Prefix(prefix={"source": "/"}))),
            Any_(any=(Suffix(suffix={"subject": ".png"}), CESQL(cesql="EXISTS id"))),
            Not(**{"not": leaf}),
        ),
        delivery=Delivery(retry=3, backoff_policy=BackoffPolicy.LINEAR, retry_after_max=1.5),
        order=Order.PARTITION,
    )
    written = json.dumps(dump(egress))
    assert parse_json(Egress, written) == egress
    assert '"not"' in written
    assert '"retryAfterMax": "PT1.5S"' in written


def test_what_is_default_is_not_written() -> None:
    """A contract lives in an environment variable: it stays as short as the Trigger is plain."""
    assert dump(parse(Egress, EGRESS)) == EGRESS


def test_a_fault_of_ours_is_a_sentence_and_no_link_to_a_manual() -> None:
    with pytest.raises(InvalidDocument) as raised, explain_faults():
        Egress(**{**EGRESS, "max_in_flight": 0})
    said = str(raised.value)
    assert said.startswith("Egress")
    assert "report it" in said
    assert "pydantic" not in said
    assert "\n" not in said
