"""What makes a CloudEvent valid (CE-H12), and its key (CE-K4, CE-K5)."""

import pytest

from knafka.core.errors import InvalidEvent
from knafka.core.events.event import (
    Attributes,
    is_timestamp,
    is_uri_reference,
    key_of,
    refusal,
    validate,
)

VALID = {"specversion": "1.0", "id": "1", "source": "/a", "type": "t"}


def problem(attributes: Attributes) -> str:
    with pytest.raises(InvalidEvent) as caught:
        validate(attributes)
    return str(caught.value)


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"specversion": "0.3", "schemaurl": "/s"},
        {"time": "2024-02-29T23:59:60.123456789+05:30"},
        {"subject": "Grüße 😀", "ext1": "", "0": "digits may lead"},
        {"source": "urn:a:b%20c?q=[1]#é"},
        {"datacontenttype": 'text/plain; charset="utf-8"'},
        {"dataschema": "urn:shop:order:1"},
        {"specversion": "0.3", "dataschema": "any text: 0.3 has no such attribute"},
    ],
)
def test_a_valid_event_is_let_through(more: dict[str, str]) -> None:
    validate(VALID | more)


def test_the_error_names_every_problem_at_once() -> None:
    text = problem({"specversion": "2.0", "id": "", "source": "a b", "time": "now", "Ext": "x\n"})
    for part in (
        "id is required",
        "type is required",
        "specversion '2.0' is not one of",
        "source 'a b' is not a URI-reference",
        "time 'now' is not",
        "'Ext' is no attribute name",
        "'Ext' holds a control",
    ):
        assert part in text


@pytest.mark.parametrize("name", ["specversion", "id", "source", "type"])
@pytest.mark.parametrize("value", ["", None])
def test_a_required_attribute_is_present_and_not_empty(name: str, value: str | None) -> None:
    attributes = {key: text for key, text in VALID.items() if key != name}
    if value is not None:
        attributes[name] = value
    assert problem(attributes) == f"the attribute {name} is required"


@pytest.mark.parametrize("name", ["", "data", "Upper", "snake_case", "dash-ed", "é", "a\n", "²"])
def test_attribute_names_are_lower_case_letters_and_digits_but_never_data(name: str) -> None:
    assert "is no attribute name" in problem({**VALID, name: "x"})


@pytest.mark.parametrize(
    "value", ["\0", "a\nb", "\x7f", "\x85", "\ud800", "\ufdd0", "\ufffe", "\U0010ffff"]
)
def test_a_value_holds_no_control_surrogate_or_non_character(value: str) -> None:
    assert "control or non-character" in problem({**VALID, "ext": value})


@pytest.mark.parametrize("value", ["", " ", "text/plain ", "text/ü", "text/plain\tx"])
def test_a_datacontenttype_fits_a_header(value: str) -> None:
    assert "is not a media type" in problem({**VALID, "datacontenttype": value})


def test_a_subject_is_not_empty() -> None:
    """CE-H12: one that says nothing is left out."""
    assert problem({**VALID, "subject": ""}).startswith("subject is empty: leave it out")


@pytest.mark.parametrize("schema", ["", "not a uri", "/s", "s.json", "1a:b", ":", "https://a b"])
def test_a_dataschema_is_a_uri(schema: str) -> None:
    """CE-H12."""
    assert "is not a URI, such as https://host/schema" in problem({**VALID, "dataschema": schema})


@pytest.mark.parametrize("schema", ["", "not a uri", "%zz"])
def test_a_schemaurl_of_version_0_3_is_a_uri_reference(schema: str) -> None:
    attributes = {**VALID, "specversion": "0.3", "schemaurl": schema}
    assert "schemaurl" in problem(attributes)


@pytest.mark.parametrize("text", ["", "a b", "%", "%2", "%zz", "a%2", 'a"', "<a>", "a\\b", "{a}"])
def test_what_is_no_uri_reference(text: str) -> None:
    assert not is_uri_reference(text)


@pytest.mark.parametrize("text", ["/", "%20", "a%20%C3%A9b", "é", "//h:1/p?q#f", "mailto:a@b"])
def test_what_is_a_uri_reference(text: str) -> None:
    assert is_uri_reference(text)


def test_a_long_hostile_source_is_judged_in_linear_time() -> None:
    assert not is_uri_reference("a%20" * 50_000 + " ")


@pytest.mark.parametrize(
    "text",
    [
        "1985-04-12T23:20:50.52Z",
        "1996-12-19t16:39:57-08:00",
        "2000-02-29T00:00:00z",
        "2400-02-29T00:00:00Z",
        "2023-12-31T23:59:60Z",
    ],
)
def test_what_is_a_timestamp(text: str) -> None:
    assert is_timestamp(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2024-01-01",
        "2024-01-01 00:00:00Z",
        "2024-01-01T00:00:00",
        "2024-01-01T24:00:00Z",
        "2024-01-01T00:00:00.Z",
        "2024-13-01T00:00:00Z",
        "2024-04-31T00:00:00Z",
        "2023-02-29T00:00:00Z",
        "1900-02-29T00:00:00Z",
        "2024-01-01T00:00:00Z\n",
        "٢٠٢٤-01-01T00:00:00Z",
    ],
)
def test_what_is_no_timestamp(text: str) -> None:
    assert not is_timestamp(text)


def test_an_error_stays_short_however_much_is_wrong() -> None:
    text = str(refusal([f"problem {number}" for number in range(1000)]))
    assert text.endswith("problem 15; and 984 more")
    assert len(problem({**VALID, "source": " " * 100_000})) < 200


@pytest.mark.conformance("CHN-30")
@pytest.mark.parametrize(
    ("attributes", "key"),
    [
        ({"partitionkey": "p", "subject": "s"}, "p"),
        ({"partitionkey": "", "subject": "s"}, "s"),
        ({"subject": ""}, None),
        ({}, None),
    ],
)
def test_the_key_is_the_partitionkey_else_the_subject(
    attributes: dict[str, str], key: str | None
) -> None:
    """CE-K4; an empty one counts as absent (CE-K5)."""
    assert key_of(attributes) == key
