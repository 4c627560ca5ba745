"""Counters as Prometheus text, and where log records go."""

from __future__ import annotations

import itertools
import json
import logging
import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from knafka.core.errors import InvalidDocument
from knafka.observability import (
    BUCKETS,
    REPEAT_INTERVAL,
    Histogram,
    Metric,
    RateLimitedFilter,
    log_to_stderr,
    prometheus_text,
)
from knafka.settings import LOG_FORMAT, log_format


def text_of(*metrics: Metric) -> list[str]:
    text = prometheus_text(metrics).decode()
    assert text.endswith("\n")
    return text.split("\n")[:-1]


def samples_of(*metrics: Metric) -> list[Sample]:
    """What Prometheus' own client reads of it."""
    families = text_string_to_metric_families(prometheus_text(metrics).decode())
    return [sample for family in families for sample in family.samples]


def test_a_family_has_its_help_its_type_and_its_samples() -> None:
    samples = [({"code": "202", "broker": "b"}, 3), ({}, 0.5)]
    assert text_of(Metric("m", "What it counts", samples, kind="gauge")) == [
        "# HELP m What it counts",
        "# TYPE m gauge",
        'm{broker="b",code="202"} 3.0',
        "m 0.5",
    ]


def test_a_counter_keeps_its_name() -> None:
    assert text_of(Metric("m_total", "h", [({}, 1)])) == [
        "# HELP m_total h",
        "# TYPE m_total counter",
        "m_total 1.0",
    ]


def test_a_help_text_stays_on_its_line() -> None:
    assert text_of(Metric("m_total", "a\\b\nc", []))[0] == r"# HELP m_total a\\b\nc"


@pytest.mark.parametrize("count", [0, 1, 999_999, 1_000_001, 123_456_789_012, 2**53])
def test_counts_are_exact(count: int) -> None:
    """A counter that is rounded to six digits stands still, and then jumps."""
    (sample,) = samples_of(Metric("m_total", "h", [({"l": ""}, count)]))
    assert sample.value == count


@given(st.text(st.characters(codec="utf-8")), st.floats(allow_nan=False) | st.integers(0, 2**53))
def test_any_label_and_any_value_can_be_read_back(label: str, value: float) -> None:
    (sample,) = samples_of(Metric("m", "h", [({"l": label}, value)], "gauge"))
    assert (sample.labels, sample.value) == ({"l": label}, float(value))


def test_a_histogram_counts_cumulatively_up_to_each_bound() -> None:
    histogram = Histogram()
    for seconds in (0.0005, 0.001, 0.3, 1000.0):
        histogram.observe(seconds)
    found = samples_of(Metric("m_seconds", "h", [({"l": "x"}, histogram)], "histogram"))
    buckets = {each.labels["le"]: each.value for each in found if each.name == "m_seconds_bucket"}
    assert len(buckets) == len(BUCKETS) + 1
    assert [float(each) for each in buckets] == [*BUCKETS, float("inf")]
    assert (buckets["0.001"], buckets["0.25"], buckets["0.5"], buckets["+Inf"]) == (2, 2, 3, 4)
    totals = {each.name: each.value for each in found if "le" not in each.labels}
    assert totals == {"m_seconds_count": 4, "m_seconds_sum": pytest.approx(1000.3015)}


DURATIONS = st.one_of(st.floats(-1.0, 700.0), st.sampled_from(BUCKETS))


@given(st.lists(DURATIONS))
def test_where_a_duration_is_counted_does_not_depend_on_the_one_before(found: list[float]) -> None:
    """Up to its bound, above the one before; clocks that differ give negative ones."""
    histogram = Histogram()
    for seconds in found:
        histogram.observe(seconds)
    below = [0, *(sum(each <= bound for each in found) for bound in BUCKETS), len(found)]
    assert histogram.counts == [upto - under for under, upto in itertools.pairwise(below)]


def test_histograms_add_up_to_one_of_both() -> None:
    one, other, none = Histogram(), Histogram(), Histogram()
    one.observe(0.2)
    other.observe(2.0)
    assert ((one + other).count, (one + other).sum) == (2, 2.2)
    assert (one + none).counts == (none + one).counts == one.counts
    assert (one.count, other.count, none.count) == (1, 1, 0)


@pytest.mark.slow
def test_the_client_is_not_imported_before_somebody_asks() -> None:
    """It takes 40 ms, which a cold start would wait for (docs/decisions/0021)."""
    program = (
        "import sys, knafka.receiver.function, knafka.dispatcher.function\n"
        "assert 'prometheus_client' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_log_records_go_to_stderr_one_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "level", root.level)
    log_to_stderr("info")
    try:
        logging.getLogger("knafka.test").info("it %s", "works")
        logging.getLogger("knafka.test").debug("unheard")
    finally:
        for handler in root.handlers:
            handler.flush()
    captured = capsys.readouterr()
    assert re.fullmatch(r"\S+ \S+ INFO    knafka\.test: it works\n", captured.err)
    assert captured.out == ""
    assert sys.stderr is not None


def test_as_json_a_log_record_is_an_object_a_line_with_the_ids_of_its_trace(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "level", root.level)
    log_to_stderr("info", "json")
    log = logging.getLogger("knafka.test")
    log.warning("two\nlines and %s", "é", extra={"trace_id": "0af7", "span_id": "b7ad"})
    try:
        raise ValueError("broken")
    except ValueError:
        log.exception("it failed")
    first, second = map(json.loads, capsys.readouterr().err.splitlines())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first.pop("time"))
    assert first == {
        "level": "warning",
        "logger": "knafka.test",
        "message": "two\nlines and é",
        "trace_id": "0af7",
        "span_id": "b7ad",
    }
    assert second["level"] == "error"
    assert "ValueError: broken" in second["exception"]
    assert "trace_id" not in second


@pytest.mark.parametrize(
    ("given", "form"),
    [({}, "text"), ({LOG_FORMAT: " JSON "}, "json"), ({LOG_FORMAT: "text"}, "text")],
)
def test_the_environment_says_how_log_lines_look(given: dict[str, str], form: str) -> None:
    assert log_format(given) == form


def test_another_form_of_log_lines_is_refused_by_name() -> None:
    with pytest.raises(InvalidDocument, match=r"^KNAFKA_LOG_FORMAT: .*json or text"):
        log_format({LOG_FORMAT: "xml"})


@pytest.mark.parametrize(
    ("by_wording", "let_through"),
    [(False, ["a: 1", "b: 2", "a: 4"]), (True, ["a: 1", "a: 4"])],
    ids=["numbers", "wording"],
)
def test_one_line_of_a_kind_is_let_through_at_a_time(
    by_wording: bool, let_through: list[str]
) -> None:
    limited = RateLimitedFilter(by_wording=by_wording)
    found = []
    for text, number, at in [
        ("a", 1, 100),
        ("b", 2, 101),
        ("a", 3, 102),
        ("a", 4, 100 + REPEAT_INTERVAL),
    ]:
        arguments = (text, number)
        record = logging.LogRecord("x", logging.INFO, "", 0, "%s: %d", arguments, None)
        record.created = at
        if limited.filter(record):
            found.append(record.getMessage())
    assert found == let_through
