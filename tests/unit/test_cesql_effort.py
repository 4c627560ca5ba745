"""An evaluation reads and makes a bounded amount of text (issue 29, D): an error like any other."""

from __future__ import annotations

import re
import threading
import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.waiting import PATIENCE

from knafka.core.authorization import FILTER_EFFORT, Authorization
from knafka.core.cesql import MAX_EFFORT, MAX_LENGTH, compile_expression
from knafka.core.cesql.patterns import compile_pattern
from knafka.core.contract import Policy
from knafka.core.filters.declared_filters import CESQL, Any_, AttributesFilter, Exact, Filter, Not
from knafka.core.filters.predicates import compile_trigger

LARGE = "x" * 900_000


def repeated(head: str, piece: str, tail: str) -> str:
    return head + piece * ((MAX_LENGTH - len(head) - len(tail)) // len(piece)) + tail


EXPRESSIONS = {
    "CONCAT of 300": "LENGTH(CONCAT(" + "x, " * 299 + "x)) > 0",
    "CONCAT of 64 KiB": repeated("LENGTH(CONCAT(", "x,", "x)) > 0"),
    "CONCAT_WS": repeated("LENGTH(CONCAT_WS(x,", "'',", "'')) > 0"),
    "CONCAT of CONCATs": repeated("LENGTH(CONCAT(", "CONCAT(x,x),", "x)) > 0"),
    "LOWER": repeated("", "LOWER(x) = '' OR ", "TRUE"),
    "UPPER": repeated("", "UPPER(x) = '' OR ", "TRUE"),
    "TRIM": repeated("", "TRIM(x) = '' OR ", "TRUE"),
    "LEFT": repeated("", "LEFT(x,899999)='' OR ", "TRUE"),
    "RIGHT": repeated("", "RIGHT(x,899999)='' OR ", "TRUE"),
    "SUBSTRING": repeated("", "SUBSTRING(x,2)='' OR ", "TRUE"),
    "equality": repeated("", "x!=y OR ", "TRUE"),
    "IN": repeated("x NOT IN (", "'',", "y)").replace("'',", "z, "),
    "casts of numbers": repeated("", "n+0=6 AND ", "TRUE"),
    "IS_INT": repeated("", "IS_INT(n) AND ", "TRUE"),
    "LIKE": repeated("", "x LIKE '%xxxxxy' OR x LIKE '%xxy%' OR ", "TRUE"),
    "LIKE with _": repeated("x LIKE '%", "_x", "y%'"),
}
"""Each takes hundreds of megabytes, or seconds, with attributes of 900 kB."""
ATTRIBUTES = {"x": LARGE, "y": "x" * 899_999 + "x", "z": "x" * 899_999 + "z",
              "n": "0" * 900_000 + "6"}  # fmt: skip


@pytest.mark.parametrize("text", EXPRESSIONS.values(), ids=EXPRESSIONS)
def test_what_makes_or_reads_too_much_is_an_error_in_bounded_time_and_memory(text: str) -> None:
    expression = compile_expression(text)
    tracemalloc.start()
    try:
        began = time.thread_time()
        value, errors = expression.evaluate(ATTRIBUTES)
        took = time.thread_time() - began
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert value is False
    (error,) = errors
    assert (error.kind, str(MAX_EFFORT) in error.message) == ("generic", True)
    assert took < PATIENCE, "and not for tens of seconds"
    assert peak < 64 * 1024 * 1024
    assert not expression.matches(ATTRIBUTES)
    assert any(str(MAX_EFFORT) in clause for clause in expression.explain(ATTRIBUTES))


def test_an_event_for_which_it_is_too_much_does_not_match_and_is_counted() -> None:
    kinds: list[str] = []
    matches = compile_trigger(
        AttributesFilter(), (CESQL(cesql=EXPRESSIONS["CONCAT of 300"]),), kinds.append
    )
    assert not matches({"x": LARGE})
    assert matches({"x": "small"})
    assert kinds == ["generic"]


def test_each_evaluation_has_all_of_it() -> None:
    expression = compile_expression("LENGTH(CONCAT(x, x, x, x)) = 3600000")
    assert all(expression.matches({"x": LARGE}) for _ in range(10))


def test_large_attributes_are_compared_searched_and_cut_as_ever() -> None:
    large = LARGE + "needle" + LARGE[:1000]
    for text in (
        "x LIKE '%needle%'", "x LIKE 'x%needle%x'", "x LIKE '%n__dle%'", "LOWER(x) LIKE '%dle%'",
        "x = y AND y IN (x)", "LEFT(x, 2) = 'xx'", "INT(n) = 6",
    ):  # fmt: skip
        assert compile_expression(text).matches({**ATTRIBUTES, "x": large, "y": large}), text


def test_what_one_thread_spends_is_none_of_anothers() -> None:
    expression = compile_expression("LENGTH(CONCAT(x, x, x, x, x, x)) > 0")
    failed: list[object] = []

    def evaluate() -> None:
        failed.extend(None for _ in range(50) if not expression.matches({"x": LARGE}))

    threads = [threading.Thread(target=evaluate) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


# The policies of one Broker or channel, whose receiver serves other namespaces, too.

HALF = CESQL(cesql="LENGTH(CONCAT(x, x, x, x, x)) > 0")
"""True of an event with a large `x`; takes more than half of the effort that is allowed."""


def negated(filter_: Filter) -> Not:
    return Not.model_validate({"not": filter_})


def admits(*filters: Filter, events: list[dict[str, str]]) -> bool | None:
    """Whether a sender may send a request with these events by one policy for each filter; None if
    that takes too much effort."""
    policies = [Policy(subjects=("*",), filters=(each,)) for each in filters]
    verdict = Authorization(policies, "deny-all", "shop").verdict("sender")
    assert callable(verdict)
    return verdict(events)


def test_all_that_policies_ask_of_a_request_shares_one_effort() -> None:
    large, small = {"x": LARGE}, {"x": "small"}
    refuses = negated(HALF)
    assert admits(HALF, events=[large])
    assert admits(HALF, events=[small] * 1000)
    assert not admits(HALF, events=[large, large])
    assert not admits(refuses, refuses, events=[large])
    assert not admits(Any_(any=(refuses, HALF)), events=[large])
    assert admits(HALF, events=[large]), "the next request has all of it again"


def test_a_negated_policy_admits_nothing_that_is_too_much_for_it() -> None:
    too_much = CESQL(cesql=EXPRESSIONS["CONCAT of 300"])
    assert not compile_expression(too_much.cesql).matches({"x": LARGE})
    assert not admits(negated(too_much), events=[{"x": LARGE}])


def test_a_request_of_many_events_for_large_policies_is_refused_soon() -> None:
    """Small attributes, and filters that hold as much text as one Broker's may."""
    filters = [Exact(exact={"a": "b" * 28}) for _ in range(900)]
    events = [{"a": "c"}] * 1000
    assert MAX_EFFORT / FILTER_EFFORT < 900 * 28 * 1000
    began = time.thread_time()
    assert admits(*filters, negated(Exact(exact={"a": "b"})), events=events) is None
    assert time.thread_time() - began < PATIENCE / 4
    assert admits(*filters, negated(Exact(exact={"a": "b"})), events=events[:10])


def reference(pattern: str) -> re.Pattern[str]:
    pieces = re.finditer(r"\\([%_])|(.)", pattern, re.DOTALL)
    kinds = {"%": ".*", "_": "."}
    return re.compile(
        "".join(kinds.get(each[0]) or re.escape(each[1] or each[2]) for each in pieces), re.DOTALL
    )


@given(st.text("ab%_\\", max_size=12), st.text("ab%_\\\n", max_size=16))
def test_a_pattern_means_what_the_same_regular_expression_means(pattern: str, text: str) -> None:
    matches, steps = compile_pattern(pattern)
    assert matches(text) is (reference(pattern).fullmatch(text) is not None)
    assert steps >= 1
