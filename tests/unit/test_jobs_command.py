"""The jobs as a command: what a person reads when one fails."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from unittest.mock import Mock

import pytest
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from support.reports import sample_report

from knafka.core.delivery import Reason
from knafka_jobs import __main__ as program
from knafka_jobs import command_options, commands
from knafka_jobs.io import kept_rows, session
from knafka_jobs.io.delta import Tables, explain_spark_errors
from knafka_jobs.job_errors import JobError
from knafka_jobs.report.report_document import Change, ChangeKind
from knafka_jobs.topic_offsets import BrokerName


@pytest.fixture(autouse=True)
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "start_session", Mock())
    monkeypatch.setattr(kept_rows, "use_folder", Mock())
    monkeypatch.setattr(Tables, "check_layouts", Mock())
    monkeypatch.setattr(commands, "SparkEngine", Mock())
    monkeypatch.setattr(commands, "report_without_spark", Mock(return_value=None))


def test_a_value_that_does_not_fit_a_report_is_one_line_without_a_link(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def report(*_: object) -> None:
        Change(kind=ChangeKind.NEW, failures=-1)

    monkeypatch.setattr(commands, "make_report", report)
    assert program.main(["report", "--tables", "t"]) == program.FAILED
    said = capsys.readouterr().err
    assert said.startswith("knafka: error: Change.failures: ")
    assert "please report it" in said
    assert "http" not in said
    assert said.count("\n") == 1


def test_a_report_of_one_broker_compacts_its_dead_letters_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compacted, made = Mock(), Mock(side_effect=JobError("enough"))
    monkeypatch.setattr(commands, "compact", compacted)
    monkeypatch.setattr(commands, "connect", Mock())
    monkeypatch.setattr(commands, "make_report", made)
    asked = ["report", "--tables", "t", "--bootstrap-servers", "k:9092", "--compact"]
    assert program.main([*asked, "--broker", "shop/main"]) == program.FAILED
    assert compacted.call_args.args[2].broker == BrokerName("shop", "main")


def test_a_report_that_can_not_be_written_names_its_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(commands, "make_report", lambda *_: sample_report())
    (tmp_path / "file").touch()
    path = tmp_path / "file" / "report.json"
    assert program.main(["report", "--tables", "t", "--json", str(path)]) == program.FAILED
    said = capsys.readouterr().err
    assert said == f"knafka: error: {path} can't be written: File exists\n"


@pytest.mark.slow
@pytest.mark.parametrize("command", [[], ["compact"], ["report"], ["replay"], ["purge"]], ids=str)
def test_help_needs_no_spark(command: list[str]) -> None:
    """It takes a second to import, and may not be installed."""
    script = (
        "import sys; sys.modules['pyspark'] = None; from knafka_jobs.__main__ import main; "
        f"main([*{command}, '--help'])"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (said.returncode, said.stderr) == (0, "")
    assert "usage: knafka_jobs" in said.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["compact", "--tables", "t"],
        ["replay", "--tables", "t", "--bootstrap-servers", "a:1", "--rate", "0"],
        ["replay", "--tables", "t", "--bootstrap-servers", "a:1", "--replay-id", "a/b"],
        ["purge", "--tables", "t", "--broker", "main"],
        ["purge", "--tables", "t", "--reason", "boredom"],
        ["report"],
    ],
    ids=" ".join,
)
def test_what_can_not_be_asked_is_exit_code_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        program.main(arguments)
    assert ended.value.code == 2


def test_a_selection_is_read_as_it_was_said() -> None:
    said = ["--broker", "shop/main", "--reason", "status", "--code", "503", "--since", "2026-11-21"]
    given = command_options.parser().parse_args(["purge", "--tables", "t", *said])
    selection = command_options.FailureSelection.from_arguments(given)
    assert selection == command_options.FailureSelection(
        broker=BrokerName("shop", "main"),
        reason=Reason.STATUS,
        code=503,
        since=datetime(2026, 11, 21, tzinfo=UTC),
    )
    assert str(selection) == (
        "--broker shop/main --reason status --code 503 --since '2026-11-21 00:00:00+00:00'"
    )
    assert str(command_options.FailureSelection(summary="no --id 7", id="8")) == (
        "--summary 'no --id 7' --id 8"
    )


def test_without_jars_for_s3_it_says_where_they_are() -> None:
    class_name = "org.apache.hadoop.fs.s3a.S3AFileSystem"
    missing = Py4JError(f"java.lang.ClassNotFoundException: Class {class_name} not found")
    with pytest.raises(JobError, match=r"^Spark: Spark has no jars for s3a://.*archive-dead"):
        with explain_spark_errors("Spark"):
            raise missing
