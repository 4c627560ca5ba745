"""What is wrong with an expression, and where (KN-TRG-10: rejected at admission)."""

from __future__ import annotations

import pytest

from knafka.core.cesql import MAX_DEPTH, MAX_LENGTH, compile_expression
from knafka.core.errors import InvalidExpression


@pytest.mark.parametrize(
    ("text", "position", "problem"),
    [
        ("", 0, "expected a value, found the end"),
        ("type =", 6, "expected a value, found the end"),
        ("type = = 'a'", 7, "expected a value, found ="),
        ("(type = 'a'", 11, "expected ')', found the end"),
        ("type = 'a')", 10, "expected an operator or the end, found )"),
        ("type 'a'", 5, "expected an operator or the end, found 'a'"),
        ("TRUE not false", 5, "expected an operator or the end, found NOT"),
        ("type = 'a", 7, "the string is not closed"),
        ("type = @", 7, "unexpected character '@'"),
        ("my_ext = 1", 0, "'my_ext' cannot name an attribute"),
        ("1 = f9('a')", 4, "'f9' cannot name a function"),
        ("id IN 'a'", 6, "expected '(', found 'a'"),
        ("id IN ()", 7, "expected a value, found )"),
        ("id LIKE 5", 8, "expected the pattern of LIKE, a string literal, found 5"),
        ("EXISTS 'id'", 7, "expected the name of an attribute, found 'id'"),
        ("1 + 2147483648", 4, "the integer does not fit into 32 bits"),
        ("1 + +", 4, "expected a value, found +"),
        ("- 2147483648", 2, "the integer does not fit into 32 bits"),
        ("1 = " + "9" * 60_000, 4, "the integer does not fit into 32 bits"),
        ("id " + "x" * 100, 3, f"expected an operator or the end, found {'x' * 40}"),
    ],
)
def test_a_broken_expression_says_what_is_wrong_and_where(
    text: str, position: int, problem: str
) -> None:
    with pytest.raises(InvalidExpression) as raised:
        compile_expression(text)

    assert (raised.value.position, raised.value.problem) == (
        position,
        f"{problem} (at character {position})",
    )


def test_operands_are_within_operands_up_to_the_limit_and_no_deeper() -> None:
    deepest = "(" * (MAX_DEPTH - 1) + "TRUE" + ")" * (MAX_DEPTH - 1)
    assert compile_expression(deepest).matches({})
    side_by_side = " AND ".join(["(TRUE)"] * 2 * MAX_DEPTH)
    assert compile_expression(side_by_side).matches({}), "however many"
    with pytest.raises(InvalidExpression, match=f"nested deeper than {MAX_DEPTH}"):
        compile_expression(f"({deepest})")


def test_an_expression_may_be_as_long_as_the_limit_and_no_longer() -> None:
    assert compile_expression("TRUE".ljust(MAX_LENGTH)).matches({})

    with pytest.raises(InvalidExpression, match="65536 characters, this has 1000000"):
        compile_expression("TRUE".ljust(1_000_000))


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("nosuch = 1", "missingAttribute", "the event has no attribute nosuch"),
        ("'x' + 1", "cast", "'x' is not an Integer"),
        ("NOT 'x'", "cast", "'x' is not a Boolean"),
        ("long + 1", "cast", f"'{'x' * 80}' is not an Integer"),
        ("NO_SUCH(1)", "missingFunction", "no function NO_SUCH takes 1 arguments"),
        ("1 / 0", "math", "division of 1 by zero"),
        ("1 % 0", "math", "remainder of 1 by zero"),
        ("2147483647 + 1", "math", "2147483648 does not fit into 32 bits"),
        ("ABS(-2147483648)", "math", "ABS of -2147483648 does not fit into 32 bits"),
        ("LEFT('a', -1)", "functionEvaluation", "LEFT takes no negative length: -1"),
        ("SUBSTRING('a', 2)", "functionEvaluation", "SUBSTRING has no position 2 to start from"),
    ],
)
def test_an_evaluation_error_says_what_went_wrong(text: str, kind: str, message: str) -> None:
    """CESQL §3.3"""
    (error,) = compile_expression(text).evaluate({"long": "x" * 10_000}).errors

    assert (error.kind, error.message) == (kind, message)


@pytest.mark.conformance("KN-TRG-10")
@pytest.mark.parametrize("text", ["'true'", "1", "type", "nosuch", "1 / 0 = 0", "NO_SUCH()"])
def test_neither_an_error_nor_a_value_that_is_no_boolean_matches(text: str) -> None:
    """KN-TRG-10"""
    assert not compile_expression(text).matches({"type": "true"})


def test_an_attribute_may_be_written_in_any_case() -> None:
    assert compile_expression("Type = 'a' AND EXISTS ID").matches({"type": "a", "id": "1"})


def test_an_expression_shows_its_source() -> None:
    assert repr(compile_expression("1 = 1")) == "Expression('1 = 1')"
