"""`knafka status`, `up --detach` and `down`: how it stands, started and ended from outside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.replacing import replace_in
from typer.testing import CliRunner

from knafka_cli.command_line import app
from knafka_cli.running import detached
from knafka_cli.running.detached import NotStarted, NotStopped
from knafka_client.state import snapshot_file
from knafka_client.state.installation import Installation, NotRunning, RunningState
from knafka_client.state.snapshot import BrokerRow, Snapshot, TriggerRow

NOW = Snapshot(
    "127.0.0.1:9092 (up)",
    (BrokerRow("default/shop", "http://127.0.0.1:8080/default/shop", 5, 1),),
    (
        TriggerRow(
            "default/orders",
            "shop",
            3,
            most_replicas=4,
            decision="3 events waiting; one dispatcher per 100",
        ),
    ),
)
STATE = RunningState(
    pid=os.getpid(), url="http://127.0.0.1:8080", bootstrap_servers="127.0.0.1:9092"
)


def knafka(*words: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(each) for each in words])
    return result.exit_code, result.output + (str(result.exception) if result.exception else "")


def test_the_status_is_what_was_written_last(tmp_path: Path) -> None:
    installation = Installation(tmp_path)
    with installation.hold_lock():
        snapshot_file.write_snapshot(installation, NOW)
        assert snapshot_file.read_snapshot(installation) == NOW
        code, output = knafka("status", "--data-dir", tmp_path)
    assert code == 0
    for text in ("127.0.0.1:9092 (up)", "default/shop", "3 events waiting", f"pid {os.getpid()}"):
        assert text in output


def test_the_status_fails_if_something_is_not_ready(tmp_path: Path) -> None:
    installation = Installation(tmp_path)
    broken = Snapshot("up", (), (TriggerRow("default/orders", refused="no address"),))
    with installation.hold_lock():
        snapshot_file.write_snapshot(installation, broken)
        code, output = knafka("status", "--json", "--data-dir", tmp_path)
    assert code == 1
    assert json.loads(output.splitlines()[0])["now"]["triggers"][0]["refused"] == "no address"


def test_what_is_starting_says_so(tmp_path: Path) -> None:
    installation = Installation(tmp_path)
    with installation.hold_lock():
        installation.write_state(STATE)
        with pytest.raises(NotRunning, match="starting"):
            snapshot_file.read_snapshot(installation)


def test_the_brokers_that_run_are_listed_with_their_urls(tmp_path: Path) -> None:
    installation = Installation(tmp_path)
    with installation.hold_lock():
        installation.write_state(STATE)
        snapshot_file.write_snapshot(installation, NOW)
        code, output = knafka("broker", "list", "--data-dir", tmp_path)
    assert code == 0
    assert output.splitlines()[1].split() == [
        "default/shop", "http://127.0.0.1:8080/default/shop", "0", "5", "1"
    ]  # fmt: skip


UP = """
import json, pathlib, sys, time
from knafka_client.state.installation import Installation
from knafka_client.state import snapshot_file
from knafka_client.state.snapshot import Snapshot
folder = next(each.partition("=")[2] for each in sys.argv if each.startswith("--data-dir="))
installation = Installation(pathlib.Path(folder))
print("starting Kafka", flush=True)
{then}
"""


@pytest.fixture
def fake_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What this file holds is run as `knafka up`."""
    script = tmp_path / "up.py"
    popen = subprocess.Popen

    def instead(words: list[str], **how: object) -> subprocess.Popen[bytes]:
        words = [sys.executable, str(script), *words[3:]]
        return popen(words, **how)  # type: ignore[call-overload, no-any-return]

    replace_in(monkeypatch, detached, "subprocess", Popen=instead)
    return script


def test_up_in_the_background_returns_once_all_is_up_and_down_ends_it(
    fake_up: Path, tmp_path: Path
) -> None:
    write = "snapshot_file.write_snapshot(installation, Snapshot('up'))"
    then = f"with installation.hold_lock():\n    {write}\n    time.sleep(60)"
    fake_up.write_text(UP.replace("{then}", then))
    code, output = knafka("up", "--detach", "--data-dir", tmp_path / "data")
    assert code == 0
    assert "starting Kafka" in output
    installation = Installation(tmp_path / "data")
    pid = installation.running_pid()
    assert f"in the background (pid {pid})" in output
    code, output = knafka("down", "--data-dir", tmp_path / "data")
    assert (code, output) == (0, f"stopped; everything is kept in {tmp_path / 'data'}\n")
    assert installation.running_pid() is None
    assert pid is not None
    os.waitpid(pid, 0)


def test_an_up_that_fails_in_the_background_says_what_it_said(
    fake_up: Path, tmp_path: Path
) -> None:
    fake_up.write_text(UP.replace("{then}", "print('knafka: the port is taken'); sys.exit(1)"))
    lines: list[str] = []
    installation = Installation(tmp_path / "data")
    words = [f"--data-dir={installation.data}"]
    with pytest.raises(NotStarted, match="ended with code 1"):
        detached.start(words, installation, lines.append)
    assert lines == ["starting Kafka", "knafka: the port is taken"]


def test_a_second_one_in_the_background_leaves_the_first_ones_log_alone(tmp_path: Path) -> None:
    installation = Installation(tmp_path)
    with installation.hold_lock():
        log = detached.log_file(installation)
        log.write_text("of the first\n")
        with pytest.raises(NotStarted, match=f"already .pid {os.getpid()}.: knafka down"):
            detached.start([], installation, print)
    assert log.read_text() == "of the first\n"


def test_one_that_does_not_stop_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installation = Installation(tmp_path)
    sent: list[tuple[int, int]] = []
    replace_in(monkeypatch, detached, "os", kill=lambda *words: sent.append(words))
    with installation.hold_lock(), pytest.raises(NotStopped, match=f"kill -9 {os.getpid()}"):
        detached.stop(installation, timeout=0.0)
    assert sent == [(os.getpid(), signal.SIGTERM)]
