"""The jobs as a command: what a person reads when one fails."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest

from knafka_jobs import __main__ as command
from knafka_jobs import session
from knafka_jobs.report import Change, ChangeKind


@pytest.fixture(autouse=True)
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "start", Mock())


def test_a_value_that_does_not_fit_a_report_is_one_line_without_a_link(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def report(*_: object) -> None:
        Change(kind=ChangeKind.NEW, failures=-1)

    monkeypatch.setattr(command, "report", report)
    assert command.main(["report", "--tables", "t"]) == command.FAILED
    said = capsys.readouterr().err
    assert said.startswith("knafka: error: Change.failures: ")
    assert "please report it" in said
    assert "http" not in said
    assert said.count("\n") == 1


def test_a_report_that_can_not_be_written_names_its_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(command, "report", Mock(**{"return_value.model_dump_json": lambda **_: ""}))
    (tmp_path / "file").touch()
    path = tmp_path / "file" / "report.json"
    assert command.main(["report", "--tables", "t", "--json", str(path)]) == command.FAILED
    said = capsys.readouterr().err
    assert said == f"knafka: error: {path} can't be written: File exists\n"
