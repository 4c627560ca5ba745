"""The API server's JSON, with what lies too deep left out."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from knafka_operator.kube_api import json_answers
from knafka_operator.kube_api.json_answers import MAX_JSON_DEPTH, decode_json, replace_deep_levels

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=20,
)


@given(VALUES)
def test_what_is_not_deep_stays_as_it_is(value: Any) -> None:
    text = json.dumps(value).encode()
    assert decode_json(text) == value
    assert replace_deep_levels(text) == text


@given(VALUES)
def test_what_is_too_deep_is_null_and_what_is_beside_it_stays(value: Any) -> None:
    deep = "[" * 2000 + '"]"' + "]" * 2000
    before, after = '{"a":' * (MAX_JSON_DEPTH - 1), "}" * (MAX_JSON_DEPTH - 1)
    beside = json.dumps(value)
    found = decode_json(f'{before}[{beside},{deep},"\\"[{{"]{after}'.encode())
    for _ in range(MAX_JSON_DEPTH - 1):
        found = found["a"]
    assert found == [_shallow(value), None, '"[{']


def _shallow(value: Any) -> Any:
    """As it is where it stands below the last level."""
    return None if isinstance(value, list | dict) else value


@pytest.mark.parametrize("text", [b"", b"{", b"[" * 3000, b'{"a":1}}', b"]" * 300, b"nonsense"])
def test_what_is_no_json_is_a_value_error(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode_json(text)


def test_text_that_only_python_decodes_is_decoded() -> None:
    assert json_answers.decode_json(b'"\\ud800"') == "\ud800"
