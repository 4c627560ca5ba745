"""Policies on a laptop, by the commands of docs/how-to/secure.md as they are written there: real
Kafka, a real receiver, an issuer on loopback (issue 38)."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.gate import IN_CI, only_chaos

from knafka_client.sockets import free_port
from knafka_local.kafka.kafka_distribution import KafkaDistribution

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.skipif(sys.platform != "linux", reason="the local mode is tested on Linux"),
    pytest.mark.skipif(not IN_CI and shutil.which("curl") is None, reason="curl is not installed"),
]

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
PAGE = ROOT / "docs" / "how-to" / "secure.md"


def section() -> str:
    return PAGE.read_text().partition("### Try policies on this machine\n")[2].partition("\n## ")[0]


def commands() -> list[str]:
    """The section's, in order; one that goes on in the next line is one."""
    text = section().replace("\\\n", " ")
    return re.findall(r"(?m)^    ((?:knafka|curl) .*)$", text)


class Shell:
    """A terminal in a folder beside the examples; only ports are other ones."""

    def __init__(self, folder: Path) -> None:
        (folder / "examples").symlink_to(ROOT / "examples")
        self._folder = folder
        self._port = str(free_port())
        self._options = f"--port {self._port} --kafka-port {free_port()} --no-console"

    def run(self, command: str) -> tuple[int, str]:
        command = command.replace(":8080", f":{self._port}")
        if command.startswith("knafka up"):
            command += f" {self._options}"
        path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self._folder,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    def logs(self) -> str:
        return "".join(each.read_text() for each in (self._folder / ".knafka/logs").glob("*.log"))


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    made = Shell(tmp_path)
    yield made
    made.run("knafka down")


@only_chaos
@pytest.mark.integration
def test_policies_are_tried_by_the_commands_of_the_docs(
    shell: Shell, kafka_distribution: KafkaDistribution
) -> None:
    check, order, refund, up, *sends, curl, down = commands()
    assert shell.run(check)[0] == 0
    assert shell.run(order)[0] == 0
    code, refused = shell.run(refund)
    assert code == 1
    assert [line for line in refused.splitlines() if line not in section()] == []
    code, said = shell.run(up)
    assert (code, "senders must show a token" in said) == (0, True), said
    answers = [shell.run(each) for each in sends]
    assert [(code, said[:3]) for code, said in answers] == [
        (0, "202"),
        (1, "403"),
        (0, "202"),
        (1, "401"),
    ]
    assert "name a service account with --as" in answers[-1][1]
    assert "HTTP/1.1 202" in shell.run(curl)[1]
    assert re.search(r"eyJ[\w-]+\.eyJ", shell.logs()) is None, "no token is in a log"
    assert shell.run(down)[0] == 0
