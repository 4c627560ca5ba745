"""Hostile expressions: each works or is refused, in bounded time and stack."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from knafka.core.cesql import MAX_DEPTH, MAX_LENGTH, Evaluation, compile_expression
from knafka.core.errors import InvalidExpression

pytestmark = pytest.mark.slow

FRAMES = 450
"""What parsing, compiling and evaluating may take of Python's thousand."""

NESTINGS: dict[str, Callable[[int], str]] = {
    "parentheses": lambda n: "(" * n + "TRUE" + ")" * n,
    "NOT": lambda n: "NOT " * n + "TRUE",
    "minus": lambda n: "- " * n + "1",
    "arguments": lambda n: "ABS(" * n + "1" + ")" * n,
    "later arguments": lambda n: "CONCAT(1, " * n + "1" + ")" * n,
    "right sides": lambda n: "1 + (" * n + "1" + ")" * n,
    "right sides of AND": lambda n: "TRUE AND (" * n + "TRUE" + ")" * n,
    "mixed right sides": lambda n: "1 AND 1 = 1 + 1 * (" * n + "1" + ")" * n,
    "left sides": lambda n: "(" * n + "1" + " LIKE '1' * 1 + 1 = 1 AND TRUE)" * n,
    "alternating left sides": lambda n: "(" * n + "1" + " AND TRUE) OR FALSE" * n,
    "sets": lambda n: "1 IN (" * n + "1" + ")" * n,
    "sets of attributes": lambda n: "1 IN (" * n + "one" + ")" * n,
}


@contextmanager
def few_frames() -> Iterator[None]:
    frame, depth = sys._getframe(), 0
    while frame := frame.f_back:  # type: ignore[assignment]
        depth += 1
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(depth + FRAMES)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


def deepest(nesting: Callable[[int], str]) -> int:
    return max(n for n in range(1, MAX_DEPTH + 1) if compiles(nesting(n)))


def compiles(text: str) -> bool:
    try:
        compile_expression(text)
    except InvalidExpression:
        return False
    return True


@pytest.mark.parametrize("nesting", NESTINGS.values(), ids=NESTINGS)
def test_the_deepest_nesting_allowed_fits_into_the_stack(nesting: Callable[[int], str]) -> None:
    text = nesting(deepest(nesting))

    with few_frames():
        expression = compile_expression(text)
        assert expression.evaluate({"one": "1"}).errors == ()
        expression.explain({"one": "1"})


@pytest.mark.parametrize("nesting", NESTINGS.values(), ids=NESTINGS)
def test_deeper_nesting_is_refused(nesting: Callable[[int], str]) -> None:
    assert deepest(nesting) >= MAX_DEPTH // 5

    with pytest.raises(InvalidExpression, match="nested deeper than 64"), few_frames():
        compile_expression(nesting(1000))


@pytest.mark.parametrize(
    ("first", "link", "value"),
    [
        ("TRUE", " AND TRUE", True),
        ("FALSE", " OR FALSE", False),
        ("FALSE", " XOR TRUE AND TRUE OR FALSE", None),
        ("0", " + 1", None),
        ("1", " * 1 + 0", 1),
        ("1", " = 1", True),
        ("1", " LIKE '%'", True),
        ("TRUE", " IN (TRUE)", True),
        ("TRUE", " AND NOT FALSE", True),
        ("1", " + one", None),
    ],
)
def test_a_chain_as_long_as_the_text_allows_works(
    first: str, link: str, value: bool | int | None
) -> None:
    text = first + link * ((MAX_LENGTH - len(first)) // len(link))

    with few_frames():
        evaluation = compile_expression(text).evaluate({"one": "1"})

    assert evaluation.errors == ()
    assert value is None or evaluation == Evaluation(value)


@pytest.mark.timeout(20)
def test_a_pattern_of_many_wildcards_takes_no_exponential_time() -> None:
    text = "a" * 5_000

    for pattern in ("%a" * 2_000 + "%b", "%_a" * 2_000 + "b", "%" * 5_000 + "b", "%aaaa" * 500):
        expression = compile_expression(f"subject LIKE '{pattern}'")
        assert expression.matches({"subject": text}) is (not pattern.endswith("b"))


@pytest.mark.timeout(20)
def test_a_text_of_one_kind_of_token_is_read_in_reasonable_time() -> None:
    for text in ("(", ")", "'", "\\", "a ", "'a' ", "+", "NOT ", "9", "'\\", "\n", "_"):
        assert not compiles((text * MAX_LENGTH)[:MAX_LENGTH])


def test_a_long_number_in_an_attribute_is_a_cast_error_at_once() -> None:
    expression = compile_expression("amount > 5")

    assert expression.evaluate({"amount": "9" * 100_000}).errors[0].kind == "cast"
    assert expression.matches({"amount": "0" * 100_000 + "6"})
    assert not expression.matches({"amount": "0" * 100_000})


def test_one_expression_serves_many_threads() -> None:
    expression = compile_expression("n % 2 = 0 AND nosuch = 1 OR n > 5")
    wrong: list[int] = []

    def evaluate(n: int) -> None:
        expected = () if n % 2 else ("missingAttribute",)
        for _ in range(200):
            errors = expression.evaluate({"n": n}).errors
            wrong.extend(n for _ in errors if errors[0].kind not in expected)
            wrong.extend(n for _ in expected if not errors)

    threads = [threading.Thread(target=evaluate, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert wrong == []
