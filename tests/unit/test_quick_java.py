"""The `java` in front of the machine's own: which program gets which archive of classes."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from support import quick_java

KAFKA = ("-Xmx256m", "kafka.Kafka", "server.properties")
FORMAT = ("kafka.tools.StorageTool", "format", "a b")
SPARK = ("-cp", "jars/*", "org.apache.spark.deploy.SparkSubmit", "pyspark-shell")
LAUNCHER = ("-cp", "jars/*", "org.apache.spark.launcher.Main", *SPARK[2:])


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """With a script in front of a Java that prints what it is asked."""
    java = tmp_path / "the machine's" / "java"
    java.parent.mkdir()
    java.write_text('#!/bin/sh\nprintf "%s|" "$@"\n')
    java.chmod(0o755)
    quick_java.write_script(tmp_path / "quick", java)
    return tmp_path / "quick"


def asked(home: Path, words: tuple[str, ...], **environment: str) -> tuple[str, ...]:
    """What the machine's Java is asked when the script is asked `words`."""
    command = [str(home / "bin" / "java"), *words]
    said = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=True
    )
    return tuple(said.stdout.split("|")[:-1])


@pytest.mark.parametrize(
    ("words", "name"), [(KAFKA, "kafka"), (FORMAT, "kafka"), (SPARK, "spark")], ids=str
)
def test_a_program_starts_with_the_classes_that_are_kept_of_it(
    home: Path, words: tuple[str, ...], name: str
) -> None:
    assert asked(home, words) == words, "there is none yet"
    archive = home / f"{name}.jsa"
    archive.touch()
    flags = (f"-XX:SharedArchiveFile={archive}", "-Xlog:disable")
    assert asked(home, words) == (*flags, *words)


def test_what_else_is_run_is_run_as_it_is(home: Path) -> None:
    for name in quick_java.ARCHIVES:
        (home / f"{name}.jsa").touch()
    for words in (LAUNCHER, ("-version",), ("-jar", "zipkin.jar")):
        assert asked(home, words) == words


def test_an_archive_is_written_beside_its_name_by_its_own_program(home: Path) -> None:
    flags = (f"-XX:ArchiveClassesAtExit={home}/spark.jsa.unfinished", "-Xlog:disable")
    assert asked(home, SPARK, **{quick_java.MAKE: "spark"}) == (*flags, *SPARK)
    assert asked(home, KAFKA, **{quick_java.MAKE: "spark"}) == KAFKA
