"""Programs: what is told of them while they start, serve, end, and start anew."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from support.waiting import stretched, until
from support.wire import get

from knafka.core.errors import InvalidDocument
from knafka_local.processes import children
from knafka_local.processes.programs import Identity, Program, Programs, program_of
from knafka_operator.model.conditions import Status
from knafka_operator.model.resources import Service

WHO = ("default", "worker")
SERVER = """
import os, socket
print("started")
listener = socket.create_server(("127.0.0.1", int(os.environ["PORT"])))
while True:
    connection, _ = listener.accept()
    if connection.recv(4096):
        connection.sendall(b"HTTP/1.1 200 OK\\r\\ncontent-length: 3\\r\\n\\r\\n" + b"%s")
    connection.close()
"""


def service(command: str | None) -> Service:
    annotations = {} if command is None else {"local.knafka.dev/command": command}
    return Service.model_validate(
        {
            "apiVersion": "serving.knative.dev/v1",
            "kind": "Service",
            "metadata": {"name": "worker"},
            "spec": {"template": {"metadata": {"annotations": annotations}}},
        },
        by_alias=True,
    )


@pytest.mark.parametrize(
    ("command", "says"),
    [(None, "no image runs here"), ("a 'b", "can't be read"), (" ", "say what to run")],
)
def test_a_command_that_says_nothing_is_refused_by_its_annotations_path(
    command: str | None, says: str
) -> None:
    with pytest.raises(InvalidDocument, match=says) as refused:
        program_of(service(command), Path())
    assert refused.value.path == "metadata.annotations.local.knafka.dev/command"


def test_sources_are_the_files_that_a_command_names_below_its_folder(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "main.py").touch()
    command = f"{sys.executable} --source code/main.py --target code"
    program = program_of(service(command), tmp_path)
    assert list(program.source_files()) == [tmp_path / "code" / "main.py"]


def test_an_inline_script_longer_than_a_files_name_is_no_source(tmp_path: Path) -> None:
    program = Program((sys.executable, "-c", "print('a')\n" * 100), tmp_path, {})
    assert list(program.source_files()) == []


class Told:
    """What was told of each program, last."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.last: dict[Identity, tuple[Status, str]] = {}
        self.printed: list[str] = []
        self.programs = Programs(
            folder, lambda line: None, lambda name, line: self.printed.append(line)
        )
        self.programs.report = self._report

    async def _report(self, who: Identity, serves: Status, why_not: str) -> None:
        self.last[who] = serves, why_not

    @property
    def status(self) -> Status | None:
        return self.last.get(WHO, (None, ""))[0]

    def write(self, answer: str) -> Program:
        """A program that answers so, in three letters."""
        (self.folder / "server.py").write_text(SERVER % answer)
        return Program((sys.executable, "server.py"), self.folder, {})

    async def answer(self) -> bytes:
        port = int(self.programs.url(WHO).rstrip("/").rpartition(":")[2])
        return await get(port)

    async def answers(self, text: bytes) -> bool:
        with suppress(OSError, EOFError):  # while it is started again
            return await self.answer() == text
        return False


@asynccontextmanager
async def told(folder: Path) -> AsyncIterator[Told]:
    found = Told(folder)
    try:
        yield found
    finally:
        await found.programs.close()


async def test_a_program_serves_once_its_port_is_open(tmp_path: Path) -> None:
    async with told(tmp_path) as it:
        await it.programs.run(WHO, it.write("one"))
        assert it.status is Status.UNKNOWN
        await until(lambda: it.status is Status.TRUE)
        assert await it.answer() == b"one"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("no-such-program",), "can't be started: .*No such file"),
        ((sys.executable, "-c", "raise SystemExit(3)"), "ended with code 3"),
        (("python", "\0"), "can't be started"),
    ],
)
async def test_a_program_that_can_not_start_says_why_and_keeps_saying_so(
    tmp_path: Path, arguments: tuple[str, ...], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children, "FIRST_RESTART_BACKOFF", 0.01)
    async with told(tmp_path) as it:
        await it.programs.run(WHO, Program(arguments, tmp_path, {}))
        await until(lambda: it.status is Status.FALSE)
        serves, why_not = it.last[WHO]
        assert serves is Status.FALSE
        assert re.search(says, why_not)


async def test_a_program_starts_anew_at_its_address_when_its_source_changes(tmp_path: Path) -> None:
    async with told(tmp_path) as it:
        program = it.write("one")
        await it.programs.run(WHO, program)
        await until(lambda: it.status is Status.TRUE)
        following = asyncio.create_task(it.programs.follow_sources())
        try:
            while it.printed.count("started") < 2:  # until it is watched, nobody says when
                it.write("two")
                await asyncio.sleep(1)
            await until(lambda: it.status is Status.TRUE)
            assert await it.answer() == b"two"
        finally:
            following.cancel()
            await asyncio.wait({following})


async def test_a_program_starts_anew_when_the_folder_of_its_source_was_replaced(
    tmp_path: Path,
) -> None:
    """`git checkout` of another branch, or `mv`, replaces a folder."""
    folder = tmp_path / "code"
    folder.mkdir()
    async with told(folder) as it:
        await it.programs.run(WHO, it.write("one"))
        await until(lambda: it.status is Status.TRUE)
        following = asyncio.create_task(it.programs.follow_sources())
        try:
            while it.printed.count("started") < 2:  # until it is watched, nobody says when
                it.write("two")
                await asyncio.sleep(1)
            folder.rename(tmp_path / "old")
            folder.mkdir()
            it.write("six")
            async with asyncio.timeout(stretched(20)):
                while not await it.answers(b"six"):  # noqa: ASYNC110  # its process tells nobody
                    await asyncio.sleep(0.05)
        finally:
            following.cancel()
            await asyncio.wait({following})
