"""Conformance of the CESQL engine: every case of every file in `cesql_tck/` (KN-TRG-10)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from knafka.core.cesql import Value, compile_expression
from knafka.core.errors import InvalidExpression

FILES = sorted(Path(__file__).with_name("cesql_tck").glob("*.yaml"))
VALID: dict[str, Value] = {"specversion": "1.0", "id": "1", "source": "/tck", "type": "tck.case"}


class Loader(yaml.SafeLoader):
    """Leaves timestamps as the strings that they are in CESQL."""


Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def cases() -> list[Any]:
    return [
        pytest.param(case, id=f"{path.stem}: {case['name']}")
        for path in FILES
        for case in yaml.load(path.read_text("utf-8"), Loader)["tests"]
        if "expression" in case  # one official file misspells the key in a few cases
    ]


@pytest.mark.conformance("KN-TRG-10")
@pytest.mark.parametrize("case", cases())
def test_the_engine_conforms(case: dict[str, Any]) -> None:
    text = str(case["expression"])
    if case.get("error") == "parse":
        with pytest.raises(InvalidExpression):
            compile_expression(text)
        return
    attributes = {**case.get("event", VALID), **case.get("eventOverrides", {})}
    expression = compile_expression(text)

    value, errors = expression.evaluate(attributes)

    assert [error.kind for error in errors] == ([case["error"]] if "error" in case else [])
    if "result" in case:
        assert (type(value), value) == (type(case["result"]), case["result"])
    assert expression.matches(attributes) is (value is True and not errors)
    assert (expression.explain(attributes) == ()) is expression.matches(attributes)
