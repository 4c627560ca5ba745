"""The algebra of CESQL, on expressions and events that nobody thought of."""

from __future__ import annotations

from functools import cache

from hypothesis import given
from hypothesis import strategies as st

from knafka.core.cesql import Evaluation, Value, compile_expression
from knafka.core.errors import InvalidExpression

NAMES = ["a", "b2", "type"]
integers = st.integers(-(2**31), 2**31 - 1)
values: st.SearchStrategy[Value] = st.one_of(
    integers, st.booleans(), st.text(), st.sampled_from(["true", "FALSE", "7", "-1", ""])
)
events = st.dictionaries(st.sampled_from(NAMES), values)
clauses = st.sampled_from(["TRUE", "FALSE", "a", "b2 = 1", "type LIKE 'x%'"])

TOKENS = (
    "TRUE false AND or XOR NOT LIKE IN EXISTS ( ) , + - * / % = != <> < <= > >= 1 -1 2147483647 "
    "-2147483648 0 'x' \"y\" 'tr%' '7' 'true' a b2 type LENGTH CONCAT( ABS( LEFT( SUBSTRING( INT("
).split()


def operands(expressions: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    infix = st.sampled_from("AND OR XOR = != <> < <= > >= + - * / %".split())
    functions = st.sampled_from("LENGTH ABS INT BOOL STRING IS_INT LOWER TRIM NO_SUCH".split())
    return st.one_of(
        st.builds("({} {} {})".format, expressions, infix, expressions),
        st.builds("{} {} {}".format, expressions, infix, expressions),
        st.builds("NOT ({})".format, expressions),
        st.builds("-({})".format, expressions),
        st.builds("{}({})".format, functions, expressions),
        st.builds("SUBSTRING({}, {}, {})".format, expressions, expressions, expressions),
        st.builds("LEFT({}, {})".format, expressions, expressions),
        st.builds("RIGHT({}, {})".format, expressions, expressions),
        st.builds("({}) LIKE 'a%_'".format, expressions),
        st.builds("({}) IN ({}, {})".format, expressions, expressions, expressions),
        st.builds("({}) NOT IN (1, 'x')".format, expressions),
    )


expressions = st.recursive(
    st.sampled_from(["TRUE", "0", "1", "-5", "2147483647", "'x'", "'7'", *NAMES, "EXISTS a"]),
    operands,
    max_leaves=12,
)


@given(st.one_of(st.text(), st.lists(st.sampled_from(TOKENS)).map(" ".join)), events)
def test_any_text_compiles_and_evaluates_or_is_invalid(text: str, event: dict[str, Value]) -> None:
    try:
        expression = compile_expression(text)
    except InvalidExpression as error:
        position = error.position
    else:
        expression.evaluate(event)
        position = 0

    assert 0 <= position <= len(text)


@given(expressions, events)
def test_any_expression_has_one_outcome_on_any_event(text: str, event: dict[str, Value]) -> None:
    expression = compile_expression(text)

    value, errors = expression.evaluate(event)

    assert type(value) in (str, int, bool)
    if type(value) is int and text not in NAMES:
        assert -(2**31) <= value < 2**31
    assert expression.evaluate(event) == Evaluation(value, errors)
    assert expression.matches(event) is (value is True and not errors)
    assert (expression.explain(event) == ()) is expression.matches(event)


@given(expressions, events)
def test_parentheses_around_the_whole_change_nothing(text: str, event: dict[str, Value]) -> None:
    assert compile_expression(f"({text})").evaluate(event) == compile_expression(text).evaluate(
        event
    )


@given(expressions, expressions, events)
def test_an_error_on_the_left_ends_it(left: str, right: str, event: dict[str, Value]) -> None:
    """CESQL §4.1, fail-fast mode"""
    errors = compile_expression(left).evaluate(event).errors
    whole = compile_expression(f"({left}) AND ({right})").evaluate(event)

    if errors:
        assert whole == Evaluation(False, errors)


def boolean(flag: bool) -> str:
    return "TRUE" if flag else "FALSE"


@given(st.booleans(), st.booleans())
def test_de_morgan_holds_on_booleans(a: bool, b: bool) -> None:
    x, y = boolean(a), boolean(b)

    for left, right in (
        (f"NOT ({x} AND {y})", f"(NOT {x}) OR (NOT {y})"),
        (f"NOT ({x} OR {y})", f"(NOT {x}) AND (NOT {y})"),
        (f"{x} XOR {y}", f"({x} OR {y}) AND NOT ({x} AND {y})"),
    ):
        assert compile_expression(left).evaluate({}) == compile_expression(right).evaluate({})


@given(st.booleans(), st.lists(st.tuples(st.sampled_from(["AND", "OR", "XOR"]), st.booleans())))
def test_logic_binds_equally_and_left_to_right(first: bool, links: list[tuple[str, bool]]) -> None:
    """CESQL §3.6"""
    text, expected = boolean(first), first
    for operator, flag in links:
        text += f" {operator} {boolean(flag)}"
        match operator:
            case "AND":
                expected = expected and flag
            case "OR":
                expected = expected or flag
            case _:
                expected = expected is not flag

    assert compile_expression(text).evaluate({}) == Evaluation(expected)


@given(integers, integers.filter(bool))
def test_quotient_and_remainder_make_the_dividend(x: int, y: int) -> None:
    """CESQL §3.4.2: truncated division"""
    event: dict[str, Value] = {"x": x, "y": y}
    quotient = compile_expression("x / y").evaluate(event)
    remainder = compile_expression("x % y").evaluate(event).value

    assert isinstance(quotient.value, int)
    assert isinstance(remainder, int)
    if not quotient.errors:
        assert quotient.value * y + remainder == x
    assert abs(remainder) < abs(y)
    assert remainder == 0 or (remainder < 0) is (x < 0)


@given(integers)
def test_an_integer_survives_the_cast_to_a_string_and_back(x: int) -> None:
    assert compile_expression("INT(STRING(x)) = x").matches({"x": x})


def like(text: str, pattern: str) -> bool:
    """The definition of §3.4.3, read aloud."""

    @cache
    def matches(at: int, piece: int) -> bool:
        if piece == len(pattern):
            return at == len(text)
        symbol = pattern[piece]
        if symbol == "%":
            return matches(at, piece + 1) or (at < len(text) and matches(at + 1, piece))
        escaped = symbol == "\\" and pattern[piece + 1 : piece + 2] in ("%", "_")
        wanted = pattern[piece + 1] if escaped else symbol
        return (
            at < len(text)
            and ((symbol == "_") or text[at] == wanted)
            and matches(at + 1, piece + (2 if escaped else 1))
        )

    return matches(0, 0)


@given(
    st.text("ab%_\\.\n", max_size=12),
    st.lists(st.sampled_from(["%", "_", "a", "b", "ab", "\\%", "\\_", ".", "\n"]), max_size=8),
)
def test_like_agrees_with_its_definition(text: str, pieces: list[str]) -> None:
    pattern = "".join(pieces)

    assert compile_expression(f"x LIKE '{pattern}'").matches({"x": text}) is like(text, pattern)


@given(st.text("ab%_\\'\"", max_size=10), st.sampled_from("'\""))
def test_a_string_literal_reads_back(text: str, quote: str) -> None:
    """Unless it ends in a backslash, or has one before a quote: those cannot be written (§2.2)."""
    escaped = text.replace("\\", "/").replace(quote, f"\\{quote}")

    assert compile_expression(f"{quote}{escaped}{quote}").evaluate({}).value == text.replace(
        "\\", "/"
    )
