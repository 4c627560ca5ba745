"""The dead-letter jobs on this machine: each a process with a Spark of its own, in local mode.

The jobs are `knafka_jobs`, as they run on a cluster; here they get a Java, the jars that Spark
lacks and little memory. Not here: what they do, and importing Spark into the command line.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import stat
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import platformdirs

from knafka.core.errors import KnafkaError
from knafka_local.kafka.kafka_distribution import find_java, obtain_for_spark
from knafka_operator.decide.archive_manifests import s3_settings

DRIVER_MEMORY: Final = "1g"
"""For the driver, which in local mode does all the work: 1,000,000 records were tried with it."""

SPARK_CORES: Final = 2
JVM_FLAGS: Final = (
    "-XX:TieredStopAtLevel=1",  # the faster start of C1 alone: a job is over before C2 pays
    # C1 alone would get 48 MB: Spark's planner fills them, and then compiles the same code again
    # and again. No more is used than is compiled.
    "-XX:ReservedCodeCacheSize=240m",
    # Spark makes one method of what becomes of a record. Java would interpret one of more than
    # 8,000 bytes for ever: a fifth of a compaction's CPU was spent in it.
    "-XX:-DontCompileHugeMethods",
)

S3_SCHEME: Final = "s3a://"

JOB_PREFIX: Final = "knafka: "
"""What a job's own lines begin with; all others are Spark's."""
JOB_ERROR_PREFIX: Final = "error: "
"""What follows in the one that says why it failed."""

_VECTOR_MODULE: Final = "jdk.incubator.vector"

_WITHOUT_MODULE: Final = f"""\
#!/bin/sh
# PySpark asks for a module that this Java lacks, and that it works without.
for argument; do
  shift
  [ "$argument" = --add-modules={_VECTOR_MODULE} ] || set -- "$@" "$argument"
done
exec {{java}} "$@"
"""


class JobFailed(KnafkaError):
    """A job ended without doing what it was asked for."""


def are_available() -> bool:
    """Whether PySpark is installed."""
    return importlib.util.find_spec("pyspark") is not None


def run(arguments: Sequence[str], progress: Callable[[str], None]) -> str:
    """Run one job to its end; its lines go to `progress`, its answer, a line of JSON, comes back.

    Raises `JobFailed` with the job's own last words.
    """
    if not are_available():
        raise JobFailed(
            "the jobs need PySpark (430 MB, once): make jobs, or pip install 'knafka[jobs]' where "
            "Knafka came from pip"
        )
    progress("starting Spark")
    process = subprocess.Popen(
        [sys.executable, "-m", "knafka_jobs", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env={
            **os.environ,
            **environment(progress, s3=any(S3_SCHEME in word for word in arguments)),
        },
    )
    assert process.stdout is not None
    assert process.stderr is not None
    last = told = ""
    try:
        for line in process.stderr:
            last = line.strip() or last
            if line.startswith(f"{JOB_PREFIX}{JOB_ERROR_PREFIX}"):
                told = line.strip()
            if line.startswith(JOB_PREFIX):
                progress(line.removeprefix(JOB_PREFIX).strip())
        answer = process.stdout.read()
    finally:
        # Ctrl-C reaches the job too; whatever else ends us must not leave it behind.
        if process.poll() is None:
            process.terminate()
        process.wait()
        process.stdout.close()
        process.stderr.close()
    if process.returncode != 0:
        # Spark may have lines of its own behind the job's.
        problem = (told or last).removeprefix(JOB_PREFIX).removeprefix(JOB_ERROR_PREFIX)
        raise JobFailed(problem or f"the job ended with {process.returncode}")
    return answer.strip().rpartition("\n")[2]


def environment(progress: Callable[[str], None], *, s3: bool = False) -> dict[str, str]:
    """What PySpark's own launcher reads; with `s3` it can open tables at `s3a://`.

    Which S3 is in AWS_ENDPOINT_URL and AWS_REGION, as for all that speak S3; its keys Spark takes
    from the environment itself. Raises `LocalKafkaError` if Java or jars can't be had.
    """
    jars = ",".join(map(str, obtain_for_spark(s3=s3, progress=progress)))
    cache = platformdirs.user_cache_path("knafka")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.sql.warehouse.dir": str(cache / "spark-warehouse"),
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
    }
    if s3:
        where = (os.environ.get(name, "") for name in ("AWS_ENDPOINT_URL", "AWS_REGION"))
        settings |= s3_settings(*where)
    words = ["--master", f"local[{SPARK_CORES}]", "--driver-memory", DRIVER_MEMORY, "--jars", jars]
    words += ["--driver-java-options", " ".join(JVM_FLAGS)]
    for key, value in settings.items():
        words += ["--conf", f"{key}={value}"]
    return {
        "JAVA_HOME": str(java_home(find_java(), cache / "java")),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_SUBMIT_ARGS": shlex.join([*words, "pyspark-shell"]),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def java_home(java: Path, folder: Path) -> Path:
    """A JAVA_HOME that PySpark can start: that of `java`, or one in `folder` that leads to it."""
    modules = subprocess.run([java, "--list-modules"], capture_output=True, text=True, check=True)
    if _VECTOR_MODULE in modules.stdout:
        return java.resolve().parent.parent
    shim = folder / "bin" / "java"
    shim.parent.mkdir(parents=True, exist_ok=True)
    unfinished = shim.with_suffix(f".{os.getpid()}")
    unfinished.write_text(_WITHOUT_MODULE.format(java=shlex.quote(str(java))))
    unfinished.chmod(unfinished.stat().st_mode | stat.S_IXUSR)
    unfinished.replace(shim)
    return folder
