"""Child processes: kept running, ended with all that is theirs, and never in each other's way."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from unittest.mock import create_autospec

import pytest
from support.waiting import until
from support.wire import get

from knafka_client.sockets import listen, port_of
from knafka_local.processes import children
from knafka_local.processes.children import Child, Command, Supervised, describe_exit
from knafka_local.supervisor import Supervisor, UpOptions
from knafka_local.view import View

SERVER = """
import os, socket, sys
listener = socket.socket(fileno=int(sys.argv[1]))
while True:
    connection, _ = listener.accept()
    connection.recv(4096)
    body = str(os.getpid()).encode()
    connection.sendall(b"HTTP/1.1 200 OK\\r\\ncontent-length: %d\\r\\n\\r\\n%b" % (len(body), body))
    connection.close()
"""

PRINTING = r"""
import os, sys, time
print("\N{RIGHTWARDS ARROW}")
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
print("one")
print("two")
"""


def python(code: str, log: Path, *arguments: str, patience: float = 10) -> Command:
    return Command((sys.executable, "-c", code, *arguments), log / "log", stop_timeout=patience)


@asynccontextmanager
async def running(
    command: Command, show: Callable[[str], None] = lambda line: None
) -> AsyncIterator[Child]:
    child = await Child.start(command, show)
    try:
        yield child
    finally:
        await child.stop()


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


def test_how_a_child_has_ended_is_said_in_words() -> None:
    assert describe_exit(3) == "ended with code 3"
    assert describe_exit(-9) == "was ended by SIGKILL"
    assert describe_exit(-35) == "was ended by signal 35", "a real-time signal has no name"


async def test_what_a_child_prints_is_shown_line_by_line_and_logged(tmp_path: Path) -> None:
    shown: list[str] = []
    command = python("print('one'); print('x' * 100_000); print('two')", tmp_path)
    async with running(command, shown.append) as child:
        assert await child.wait() == 0
        await until(lambda: len(shown) == 3)
    assert shown == ["one", "x" * children.LONGEST_LINE, "two"]
    assert (tmp_path / "log").read_text().startswith("one\nxxx")


@pytest.mark.parametrize("log", ["log", "/dev/full"])
async def test_a_child_prints_on_though_its_output_cannot_be_shown_or_written(
    tmp_path: Path, log: str
) -> None:
    shown: list[str] = []

    def show(line: str) -> None:
        shown.append(line)
        line.encode("latin-1")

    go_on = tmp_path / "go_on"
    arguments = (sys.executable, "-c", PRINTING, str(go_on))
    command = Command(arguments, tmp_path / log, {"PYTHONIOENCODING": "utf-8"})
    async with running(command, show) as child:
        await until(lambda: shown)
        go_on.touch()
        assert await child.wait() == 0
        await until(lambda: len(shown) == 3)
    assert shown == ["\N{RIGHTWARDS ARROW}", "one", "two"]


async def test_a_child_that_ignores_sigterm_is_killed_when_patience_ends(tmp_path: Path) -> None:
    shown: list[str] = []
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up'); time.sleep(60)"
    child = await Child.start(python(code, tmp_path, patience=0.1), shown.append)
    await until(lambda: shown == ["up"])
    await child.stop()
    assert await child.wait() == -signal.SIGKILL
    assert child not in Child.running


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
async def test_a_childs_own_children_end_with_it(tmp_path: Path) -> None:
    shown: list[str] = []
    code = "import subprocess, time; print(subprocess.Popen(['sleep', '60']).pid); time.sleep(60)"
    async with running(python(code, tmp_path), shown.append):
        await until(lambda: len(shown) == 1)
        assert is_alive(int(shown[0]))
    await until(lambda: not is_alive(int(shown[0])))


async def test_whoever_is_supervised_is_started_again_after_a_growing_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children, "FIRST_RESTART_BACKOFF", 0.01)
    said: list[str] = []
    supervised = Supervised(
        "it", lambda: Child.start(python("raise SystemExit(3)", tmp_path)), said.append
    )
    try:
        await until(lambda: len(said) == 3)
    finally:
        await supervised.stop()
    assert said == [
        f"it ended with code 3; starting it again in {wait} s" for wait in (0.01, 0.02, 0.04)
    ]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [(("no-such-program",), r"\[Errno 2\]"), (("true", "\0"), "embedded null byte")],
)
async def test_what_cannot_be_started_is_said_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], problem: str
) -> None:
    monkeypatch.setattr(children, "FIRST_RESTART_BACKOFF", 0.01)
    said: list[str] = []
    command = Command(arguments, tmp_path / "log")
    supervised = Supervised("it", lambda: Child.start(command), said.append)
    try:
        await until(lambda: len(said) == 2)
    finally:
        await supervised.stop()
    assert re.match(f"it can't be started: {problem}", said[0])


async def test_connections_wait_while_a_killed_child_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Issue 3, "What it must show", 1: after `kill -9` of the receiver the system heals."""
    monkeypatch.setattr(children, "FIRST_RESTART_BACKOFF", 0.2)
    said: list[str] = []
    with listen() as listener:
        command = Command(
            (sys.executable, "-c", SERVER, str(listener.fileno())),
            tmp_path / "log",
            listener=listener,
        )
        supervised = Supervised("the server", lambda: Child.start(command), said.append)
        try:
            first = await get(port_of(listener))
            os.kill(int(first), signal.SIGKILL)
            await until(lambda: len(said) == 1)
            second = await get(port_of(listener))
        finally:
            await supervised.stop()
    assert first != second
    assert said == ["the server was ended by SIGKILL; starting it again in 0.2 s"]


async def test_a_large_log_is_set_aside_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children, "MAX_LOG_BYTES", 3)
    for _ in range(2):
        async with running(
            Command((sys.executable, "-c", "print(12345)"), tmp_path / "it.log")
        ) as it:
            await it.wait()
    assert (tmp_path / "it.log").read_text() == "12345\n"
    assert (tmp_path / "it.log.old").read_text() == "12345\n"


def test_a_port_that_is_taken_is_an_os_error() -> None:
    with listen() as listener, pytest.raises(OSError, match="in use"):
        listen(port_of(listener))


async def test_a_knafka_up_that_ends_kills_no_child_that_was_there_before_it(
    tmp_path: Path,
) -> None:
    """It killed the Kafka that all tests of a process share."""
    sleeps = python("import time; time.sleep(600)", tmp_path)
    async with running(sleeps) as other:
        supervisor = Supervisor(UpOptions((), tmp_path / "data"), create_autospec(View))
        async with running(sleeps) as its_own:
            supervisor.kill()
            assert await its_own.wait() == -signal.SIGKILL
            assert other.is_running
