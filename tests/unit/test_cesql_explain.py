"""Which clause said no: the dry run of a Trigger's CESQL filter."""

from __future__ import annotations

import pytest

from knafka.core.cesql import compile_expression

EVENT = {"type": "order.created", "subject": "17", "amount": "ten"}


@pytest.mark.parametrize(
    ("text", "objections"),
    [
        ("type = 'order.created' AND subject = 17", ()),
        ("type = 'x' AND subject = 17", ("type = 'x'",)),
        ("type = 'x' AND  NOT (subject = '17')  and TRUE", ("type = 'x'", "NOT (subject = '17')")),
        ("(type = 'x' OR subject = 1) AND TRUE", ("(type = 'x' OR subject = 1)",)),
        ("amount > 5 AND TRUE", ("amount > 5: 'ten' is not an Integer",)),
        ("FALSE AND region = 'eu'", ("FALSE", "region = 'eu': the event has no attribute region")),
        (" type = 'x' OR subject = 1 ", ("type = 'x' OR subject = 1",)),
        ("type", ("type",)),
        ("amount = 1", ("amount = 1: 'ten' is not an Integer",)),
        ("(TRUE AND FALSE)", ("FALSE",)),
        ("TRUE AND 'false' AND 'maybe'", ("'false'", "'maybe': 'maybe' is not a Boolean")),
        ("TRUE AND FALSE OR FALSE", ("TRUE AND FALSE OR FALSE",)),
    ],
)
def test_every_top_level_clause_that_said_no_is_named(
    text: str, objections: tuple[str, ...]
) -> None:
    expression = compile_expression(text)

    assert expression.explain(EVENT) == objections
    assert expression.matches(EVENT) is (objections == ())
