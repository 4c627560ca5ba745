"""The command line: help for everything, errors that say what to do, and exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from support.memory.admin import MemoryAdmin
from support.memory.log import MemoryLog
from typer.testing import CliRunner

from knafka.core.contract import Egress, Kafka, Sink
from knafka_cli import command_line
from knafka_cli.command_line import app
from knafka_cli.triggers.trigger_commands import _read_lags

QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart"
ORDER = {
    "specversion": "1.0",
    "id": "1",
    "source": "/shop",
    "type": "com.example.order.placed",
    "amount": 40,
}
COMMANDS = [
    [],
    ["up"],
    ["down"],
    ["check"],
    ["send"],
    ["token"],
    ["policy"],
    ["policy", "test"],
    ["status"],
    ["logs"],
    ["tail"],
    ["trace"],
    ["broker"],
    ["broker", "list"],
    ["trigger"],
    ["trigger", "test"],
    ["trigger", "match"],
    ["trigger", "list"],
    ["trigger", "pause"],
    ["trigger", "resume"],
    ["trigger", "rewind"],
    ["dead-letters"],
    ["dead-letters", "list"],
    ["dead-letters", "show"],
    ["dead-letters", "acknowledge"],
    ["dead-letters", "unacknowledge"],
    ["dead-letters", "cancel"],
    ["dead-letters", "events"],
    ["dead-letters", "export"],
    ["dead-letters", "compact"],
    ["dead-letters", "report"],
    ["dead-letters", "replay"],
    ["dead-letters", "purge"],
]
GROUPS = (["trigger"], ["broker"], ["policy"], ["dead-letters"])


def run(*arguments: str | Path, stdin: str | None = None) -> tuple[int, str]:
    """Exit code and all output of a command; 1 and the error for one of ours that `main` shows."""
    result = CliRunner().invoke(app, list(map(str, arguments)), input=stdin)
    error = f"\n{result.exception}" if result.exception else ""
    return result.exit_code, result.output + error


@cache
def help_of(*command: str) -> tuple[int, str]:
    """Exit code and output: what takes most of the time here, and three tests look at."""
    return run(*command, "--help")


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command) or "knafka")
def test_every_command_has_help(command: list[str]) -> None:
    code, output = help_of(*command)
    assert code == 0
    assert "Usage:" in output


@pytest.mark.parametrize("command", [each for each in COMMANDS if each and each not in GROUPS])
def test_the_help_of_every_command_ends_with_an_example_that_can_be_pasted(
    command: list[str],
) -> None:
    _, output = help_of(*command)
    *_, example = output.strip().splitlines()
    assert example.strip().startswith(f"Example: knafka {' '.join(command)}")


@pytest.mark.parametrize("command", [each for each in COMMANDS if each and each not in GROUPS])
def test_one_word_names_the_data_folder_in_every_command(command: list[str]) -> None:
    _, output = help_of(*command)
    assert ("--data-dir" in output) == (command != ["check"])


def test_the_data_of_an_event_is_not_taken_for_the_data_folder(tmp_path: Path) -> None:
    options: list[str | Path] = [
        "--data-dir",
        tmp_path,
        "--no-retry",
        "--url",
        "http://127.0.0.1:1/",
    ]
    code, output = run("send", "--data", "hello", *options)
    assert code == 1
    assert output.startswith("not sent")


def test_the_version_is_told() -> None:
    assert run("--version") == (0, "knafka 0.1.0\n")


def test_an_event_that_matches_is_exit_code_0() -> None:
    code, output = run("trigger", "test", "orders", json.dumps(ORDER), "-f", QUICKSTART)
    assert (code, output.split(":")[0]) == (0, "match")


@pytest.mark.conformance("KN-TRG-10")
def test_an_event_that_does_not_match_is_exit_code_1_with_the_clause_that_said_no(
    tmp_path: Path,
) -> None:
    """KN-TRG-10."""
    file = tmp_path / "event.json"
    file.write_text(json.dumps(ORDER))
    code, output = run("trigger", "test", "default/large-orders", file, "-f", QUICKSTART)
    assert code == 1
    assert "no match" in output
    assert "filters[0].cesql: " in output
    assert "amount" in output


def test_the_event_can_come_from_stdin() -> None:
    code, output = run(
        "trigger", "test", "payments", "-", "-f", QUICKSTART, stdin=json.dumps(ORDER)
    )
    assert code == 1
    assert "filters[0].prefix.type: the event has 'com.example.order.placed'" in output


@pytest.mark.parametrize(
    ("trigger", "event", "says"),
    [
        (
            "nobody",
            json.dumps(ORDER),
            "there is no Trigger default/nobody: there is default/orders",
        ),
        ("orders", "{}", "the attribute id is required"),
        ("orders", "no-such-file.json", "can't be read"),
    ],
    ids=["unknown trigger", "broken event", "no file"],
)
def test_what_cannot_be_asked_is_exit_code_2(trigger: str, event: str, says: str) -> None:
    code, output = run("trigger", "test", trigger, event, "-f", QUICKSTART)
    assert code == 2
    assert says in output


def test_triggers_are_listed_from_files() -> None:
    code, output = run("trigger", "list", "-f", QUICKSTART)
    assert code == 0
    _, first, *_ = output.splitlines()
    assert first.split("  ")[0] == "default/orders"
    assert "type=com.example.order.placed" in first
    assert "Service orders" in first


async def test_a_triggers_waiting_events_are_not_those_of_the_subscription_of_its_name() -> None:
    log = MemoryLog()
    egress = Egress(
        namespace="default", broker="shop", trigger="orders", topic="busy", group="trigger",
        dead_letter_topic="dead", kafka=Kafka(bootstrap_servers="k:1"),
        subscriber=Sink(url="http://there/"),
    )  # fmt: skip
    others = {"kind": "Subscription", "topic": "idle", "group": "subscription"}
    for topic in ("busy", "idle"):
        log.create(topic)
    for group, topic in (("trigger", "busy"), ("subscription", "idle")):
        await MemoryAdmin(log).ensure_committed(group, topic)
    log.store("busy", None, b"", [])
    lags = await _read_lags(MemoryAdmin(log), (egress, egress.model_copy(update=others)))
    assert lags == {"default/orders": 1}


def test_a_file_that_cannot_be_used_makes_the_list_fail(tmp_path: Path) -> None:
    text = (QUICKSTART / "quickstart.yaml").read_text()
    (tmp_path / "bad.yaml").write_text(text.replace("retry: 2", "retry: -2"))
    code, output = run("trigger", "list", "-f", tmp_path / "bad.yaml")
    assert code == 1
    assert "spec.delivery.retry" in output
    assert "default/orders" in output, "what can be used is listed all the same"


def test_who_would_get_an_event_is_told_for_every_trigger() -> None:
    code, output = run("trigger", "match", json.dumps(ORDER), "-f", QUICKSTART)
    assert code == 0
    answers = {line.split()[1]: line for line in output.splitlines()[1:]}
    assert answers["default/orders"].startswith("yes")
    assert "Service orders" in answers["default/orders"]
    assert answers["default/large-orders"].startswith("no")
    assert "amount >= 1000 is not true" in answers["default/large-orders"]
    assert "filters[0].prefix.type" in answers["default/payments"]


def test_an_event_that_nobody_would_get_is_exit_code_1() -> None:
    nobody = json.dumps({**ORDER, "type": "com.example.refund"})
    code, output = run("trigger", "match", nobody, "-f", QUICKSTART, "--broker", "default")
    assert code == 1
    assert "yes" not in output


def test_who_gets_an_event_of_a_broker_that_no_trigger_is_of_cannot_be_asked() -> None:
    code, output = run("trigger", "match", json.dumps(ORDER), "-f", QUICKSTART, "--broker", "x/y")
    assert code == 2
    assert "there is default/default" in output


def test_brokers_are_listed_from_files_with_their_triggers() -> None:
    code, output = run("broker", "list", "-f", QUICKSTART)
    assert code == 0
    assert output.splitlines()[1].split() == ["default/default", "3"]


def test_nothing_to_stop_is_no_failure(tmp_path: Path) -> None:
    assert run("down", "--data-dir", tmp_path) == (0, f"nothing runs on {tmp_path}\n")


@pytest.mark.parametrize(
    "command",
    [
        ["send"],
        ["status"],
        ["broker", "list"],
        ["tail"],
        ["trace", "1"],
        ["trigger", "list"],
        ["trigger", "rewind", "orders", "--to", "start"],
        ["dead-letters", "list"],
        ["dead-letters", "show", "orders"],
        ["dead-letters", "replay", "--id", "1"],
    ],
    ids=" ".join,
)
def test_where_nothing_runs_the_error_says_how_to_start(command: list[str], tmp_path: Path) -> None:
    code, output = run(*command, "--data-dir", tmp_path)
    assert code == 1
    assert "start it with `knafka up`" in output


@pytest.mark.parametrize(
    "options",
    [
        ["--data", "x", "--data-file", "-"],
        ["--file", "-", "--type", "t"],
        ["--extension", "novalue"],
        ["--count", "0"],
        ["--extension", "Bad_Name=1"],
    ],
    ids=" ".join,
)
def test_send_refuses_what_contradicts_itself(options: list[str]) -> None:
    code, _ = run("send", "--url", "http://127.0.0.1:1/", *options, stdin="")
    assert code == 2


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["purge", "--reason", "boredom"], "--reason"),
        (["purge", "--broker", "main"], "NAMESPACE/NAME"),
        (["replay", "--rate", "0"], "a number above 0"),
        (["replay", "--since", "soon"], "--since"),
        (["compact", "--keep-hours", "-1"], "0 or more"),
        (["compact", "--keep-hours", "inf"], "give a finite number"),
        (["compact", "--forget-resolved-days", "1000000"], "give at most 365,000"),
        (["compact", "--forget-unresolved-days", "1000000"], "give at most 365,000"),
        (["report", "--days", "1000000"], "give at most 365,000"),
        (["report", "--days", "inf"], "give at most 365,000"),
        (["replay", "--rate", "inf"], "give a finite number"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else "",
)
def test_what_a_job_can_not_be_asked_is_refused_before_it_starts(
    options: list[str], says: str
) -> None:
    code, output = run("dead-letters", *options)
    assert code == 2
    assert says in output


def test_a_url_that_is_none_is_exit_code_2() -> None:
    code, output = run("send", "--url", "not a url")
    assert code == 2
    assert "URL" in output


def test_an_event_that_nobody_takes_is_exit_code_1() -> None:
    code, output = run("send", "--url", "http://127.0.0.1:1/", "--no-retry")
    assert code == 1
    assert output.startswith("not sent")


@pytest.mark.slow
def test_an_error_is_one_line_on_stderr(tmp_path: Path) -> None:
    knafka = Path(sys.executable).with_name("knafka")
    ended = subprocess.run(
        [knafka, "send", "--data-dir", tmp_path], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1
    assert ended.stderr.startswith("knafka: nothing runs on ")
    assert ended.stderr.count("\n") == 1


def test_a_fault_of_ours_is_one_line_without_a_link(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command_line, "app", lambda: Sink(url="/x"))
    with pytest.raises(SystemExit, match="1"):
        command_line.main()
    said = capsys.readouterr().err
    assert said.startswith("knafka: Sink.url: invalid value: /x: want")
    assert "pydantic" not in said
    assert said.count("\n") == 1


def test_the_quickstart_has_no_problems_and_its_events_are_events() -> None:
    assert "knafka:" not in run("trigger", "list", "-f", QUICKSTART)[1]
    for line in (QUICKSTART / "events.ndjson").read_text().splitlines():
        code, _ = run("trigger", "test", "orders", line, "-f", QUICKSTART)
        assert code in (0, 1)
