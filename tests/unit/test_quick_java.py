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


@pytest.fixture
def words_of_format(tmp_path: Path) -> tuple[str, ...]:
    """As `KafkaServer` has a folder formatted that is not there yet."""
    config = tmp_path / "server.properties"
    config.write_text(f"node.id=1\nlog.dirs={tmp_path}/topics\nlisteners=A://h:1,B://h:2\n")
    tool = ("-Xmx256m", "kafka.tools.StorageTool", "format")
    return (*tool, "--cluster-id=-c_1", f"--config={config}", "--ignore-formatted")


def test_a_new_folder_of_kafka_gets_what_its_tool_wrote_once(
    home: Path, tmp_path: Path, words_of_format: tuple[str, ...]
) -> None:
    assert asked(home, words_of_format) == words_of_format, "it wrote nothing yet"
    (home / quick_java.CHECKPOINT).write_bytes(b"\x00written")
    assert asked(home, words_of_format) == ()
    topics = tmp_path / "topics"
    assert (topics / quick_java.CHECKPOINT).read_bytes() == b"\x00written"
    assert (topics / "meta.properties").read_text().splitlines() == [
        "version=1",
        "node.id=1",
        "cluster.id=-c_1",
        "directory.id=-c_1",
    ]
    assert len(list(topics.iterdir())) == 2


@pytest.mark.parametrize("case", ["more arguments", "another node", "formatted", "odd", "no file"])
def test_what_is_not_a_new_folder_of_one_node_is_formatted_by_kafkas_tool(
    home: Path, tmp_path: Path, words_of_format: tuple[str, ...], case: str
) -> None:
    (home / quick_java.CHECKPOINT).touch()
    words, config = words_of_format, tmp_path / "server.properties"
    match case:
        case "more arguments":
            words = (*words, "--add-scram", "user")
        case "another node":
            config.write_text(config.read_text().replace("node.id=1", "node.id=2"))
        case "formatted":
            (tmp_path / "topics").mkdir()
            (tmp_path / "topics" / "meta.properties").touch()
        case "odd":
            config.write_text(config.read_text().replace("/topics", "/to pics"))
        case "no file":
            config.unlink()
    assert asked(home, words) == words
