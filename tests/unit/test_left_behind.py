"""A pure test leaves nothing behind that could fail another one (support/left_behind.py)."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka.admin import AdminClient
from py4j.java_gateway import CallbackServer  # type: ignore[import-untyped]
from support import left_behind
from support.left_behind import changed, left_by, running, settings

from knafka.clients.kafka import kafka_client

TESTS: Final = Path(__file__).parents[1]
SHARED: Final = "time|os|socket|asyncio|threading|subprocess|signal|shutil|random|select|ssl"
REPLACED: Final = re.compile(
    rf"""setattr\(\s*(?:({SHARED}),\s*"\w+"|"[\w.]*\b({SHARED})\.\w+")""", re.VERBOSE
)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(left_behind, "PATIENCE", 0.1)


def test_a_thread_that_goes_on_is_told_by_its_name() -> None:
    before, end = running(), threading.Event()
    thread = threading.Thread(target=end.wait, name="goes-on")
    thread.start()
    try:
        assert left_by(before) == ["goes-on still runs"]
    finally:
        end.set()
        thread.join()
    assert left_by(before) == []


def test_a_process_that_goes_on_is_told() -> None:
    before = running()
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert left_by(before) == ["python still runs"]
    finally:
        process.communicate()
    assert left_by(before) == []


def test_a_kafka_client_that_nobody_has_any_more_ends_here_and_not_in_a_later_test() -> None:
    before = running()
    client = AdminClient({"bootstrap.servers": "127.0.0.1:1", "log_level": 0})
    kept: list[object] = [client]
    kept.append(kept)  # only the garbage collector ends it
    del client, kept
    assert running() - before
    assert left_by(before) == []


def test_a_thread_that_spark_has_java_call_back_in_is_not_the_tests() -> None:
    """A Java that lives on starts one when it collects garbage, many tests after its last use."""
    before = running()
    server = CallbackServer({}, None, port=0)
    server.start()
    try:
        assert running() - before
        assert left_by(before) == []
    finally:
        server.shutdown()  # waits for its thread


def test_a_setting_that_is_another_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    before = settings()
    assert changed(before, settings()) == []
    with monkeypatch.context() as patch:
        patch.setenv("KNAFKA_LEFT", "1")
        patch.syspath_prepend("/nowhere")
        patch.setattr(logging.getLogger("knafka.left"), "level", logging.DEBUG)
        told = changed(before, settings())
    assert [each.split(",")[0] for each in told] == [
        "another environment",
        "another sys.path",
        "another levels of loggers",
    ]
    assert changed(before, settings()) == []


def test_no_test_replaces_a_function_of_the_standard_library_for_every_thread() -> None:
    """`support.replacing.replace_in` does it for one module of ours."""
    replacing = [
        f"{file.relative_to(TESTS)}: {match.group()}"
        for file in [*TESTS.rglob("test_*.py"), *TESTS.rglob("conftest.py")]
        if file != Path(__file__)
        for match in REPLACED.finditer(file.read_text())
    ]
    assert replacing == []
    assert REPLACED.search('monkeypatch.setattr(time, "sleep", pause)')
    assert REPLACED.search('monkeypatch.setattr(\n        "knafka.detached.os.kill", kill)')


def test_a_line_that_an_earlier_test_had_logged_is_logged_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for _ in range(2):
        kafka_client.log.warning("the same line of two tests")
    left_behind.let_through_again()
    kafka_client.log.warning("the same line of two tests")
    said = [each for each in caplog.messages if each == "the same line of two tests"]
    assert len(said) == 2
