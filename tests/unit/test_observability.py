"""Counters as Prometheus text, and where log records go."""

from __future__ import annotations

import json
import logging
import re
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from knafka.core.errors import InvalidDocument
from knafka.observability import (
    REPEAT_INTERVAL,
    Metric,
    RateLimitedFilter,
    log_to_stderr,
    prometheus_text,
)
from knafka.settings import LOG_FORMAT, log_format

_SAMPLE = re.compile(r'm\{l="((?:[^"\\\n]|\\[\\"n])*)"\} (\S+)').fullmatch


def text_of(*metrics: Metric) -> list[str]:
    text = prometheus_text(metrics).decode()
    assert text.endswith("\n")
    return text.split("\n")[:-1]


def test_a_family_has_its_help_its_type_and_its_samples() -> None:
    samples = [({"code": "202", "broker": "b"}, 3), ({}, 0.5)]
    assert text_of(Metric("m", "What it counts", samples, kind="gauge")) == [
        "# HELP m What it counts",
        "# TYPE m gauge",
        'm{code="202",broker="b"} 3',
        "m{} 0.5",
    ]


def test_a_help_text_stays_on_its_line() -> None:
    assert text_of(Metric("m", "a\\b\nc", []))[0] == r"# HELP m a\\b\nc"


@pytest.mark.parametrize("count", [0, 1, 999_999, 1_000_001, 123_456_789_012, 2**63 + 1])
def test_counts_are_exact(count: int) -> None:
    """A counter that is rounded to six digits stands still, and then jumps."""
    assert text_of(Metric("m", "h", [({"l": ""}, count)]))[-1] == f'm{{l=""}} {count}'


@given(st.text(st.characters(codec="utf-8")), st.floats(allow_nan=False) | st.integers())
def test_any_label_and_any_value_can_be_read_back(label: str, value: float) -> None:
    (sample,) = text_of(Metric("m", "h", [({"l": label}, value)]))[2:]
    match = _SAMPLE(sample)
    assert match is not None
    meaning = {r"\\": "\\", r"\"": '"', r"\n": "\n"}
    assert re.sub(r"\\.", lambda found: meaning[found[0]], match[1]) == label
    assert float(match[2]) == float(value)


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
