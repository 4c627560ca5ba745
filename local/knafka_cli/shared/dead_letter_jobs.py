"""Runs the dead-letter jobs on this machine, each in a process with Spark in local mode.

They are the same jobs as on a cluster (`knafka_jobs`); here they get a Java, the jars that Spark
lacks and little memory. The command line itself never imports Spark.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import stat
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

import platformdirs

from knafka.core.errors import KnafkaError
from knafka_local.kafka.kafka_distribution import find_java, obtain_for_spark
from knafka_operator.archives.manifests import s3_settings

DRIVER_MEMORY: Final = "1g"
"""Memory of the driver, which does all the work in local mode; tested with 1,000,000 records."""
SPARK_CORES: Final = 2
"""Cores that a job uses."""
SPARK_JVM_FLAGS: Final = (
    "-XX:TieredStopAtLevel=1",  # the faster start of C1 alone: a job is over before C2 pays
    # With C1 alone the code cache would have 48 MB: Spark's planner fills it, and the same code is
    # compiled again and again. Only as much memory is used as there is compiled code.
    "-XX:ReservedCodeCacheSize=240m",
    # Spark generates one method for all steps of a record. Without this flag, Java never compiles a
    # method of more than 8,000 bytes: interpreting it took a fifth of a compaction's CPU.
    "-XX:-DontCompileHugeMethods",
)
"""Flags of the driver's JVM."""

S3_SCHEME: Final = "s3a://"
"""Beginning of the URIs of tables in an S3 store."""

JOB_PREFIX: Final = "knafka: "
"""Beginning of the job's own lines on stderr; all other lines are Spark's."""
JOB_ERROR_PREFIX: Final = "error: "
"""Text after `JOB_PREFIX` in the line that says why the job failed."""

_VECTOR_MODULE: Final = "jdk.incubator.vector"
"""A module that PySpark always requests from Java, and can do without."""

_JAVA_WITHOUT_MODULE: Final = f"""\
#!/bin/sh
# PySpark asks for a module that this Java lacks, and that it works without.
for argument; do
  shift
  [ "$argument" = --add-modules={_VECTOR_MODULE} ] || set -- "$@" "$argument"
done
exec {{java}} "$@"
"""
"""Text of a script `java` that calls the program `{java}` without PySpark's request for
`_VECTOR_MODULE`."""


class JobFailed(KnafkaError):
    """A job ended with an error; the text is the job's own message."""


def is_pyspark_installed() -> bool:
    """Whether PySpark is installed, which the jobs need."""
    return importlib.util.find_spec("pyspark") is not None


def run_job_process(arguments: Sequence[str], progress: Callable[[str], None]) -> str:
    """Run one job to its end; returns the job's result, one line of JSON.

    `arguments` are the job's name and its options, as on a command line. `progress` is called with
    each of the job's own lines on stderr, without `JOB_PREFIX`. Raises `JobFailed` with the job's
    error message, or if PySpark isn't installed, and `LocalKafkaError` if Java or a jar can't be
    obtained.
    """
    if not is_pyspark_installed():
        raise JobFailed(
            "the jobs need PySpark (430 MB, once): make jobs, or pip install 'knafka[jobs]' where "
            "Knafka came from pip"
        )
    # Spark needs the jars for S3 only if an option has a URI there, such as that of the tables.
    uses_s3 = any(S3_SCHEME in argument for argument in arguments)
    progress("starting Spark")
    process = subprocess.Popen(
        [sys.executable, "-m", "knafka_jobs", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env={**os.environ, **spark_environment(progress, s3=uses_s3)},
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        failure_text = _follow_job(process.stderr, progress)
        answer = process.stdout.read()
    finally:
        # Ctrl-C reaches the job by itself; if another error ends this command, the job must be
        # ended here.
        if process.poll() is None:
            process.terminate()
        process.wait()
        process.stdout.close()
        process.stderr.close()
    if process.returncode != 0:
        raise JobFailed(failure_text or f"the job ended with {process.returncode}")
    _, _, result = answer.strip().rpartition("\n")  # the last line
    return result


def _follow_job(lines: Iterable[str], progress: Callable[[str], None]) -> str:
    """Call `progress` with each of the job's own `lines` on stderr, until the job closes stderr.

    Returns the text to show if the job has failed: its own error, or else the last line on stderr;
    empty if there was no line.
    """
    last_line = job_error = ""
    for line in lines:
        last_line = line.strip() or last_line
        if line.startswith(f"{JOB_PREFIX}{JOB_ERROR_PREFIX}"):
            job_error = line.strip()
        if line.startswith(JOB_PREFIX):
            progress(line.removeprefix(JOB_PREFIX).strip())
    # The last line may be Spark's, so the job's own error has precedence.
    return (job_error or last_line).removeprefix(JOB_PREFIX).removeprefix(JOB_ERROR_PREFIX)


def spark_environment(progress: Callable[[str], None], *, s3: bool = False) -> dict[str, str]:
    """Return the environment variables that make PySpark's launcher start a local Spark with our
    jars.

    `s3` True: this Spark can open tables at `s3a://`. AWS_ENDPOINT_URL and AWS_REGION of this
    process name the S3 store, and Spark takes the keys from its own environment. `progress` is
    called with each message about a download. Raises `LocalKafkaError` if Java or a jar can't be
    obtained.
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
        endpoint = os.environ.get("AWS_ENDPOINT_URL", "")
        region = os.environ.get("AWS_REGION", "")
        settings |= s3_settings(endpoint, region)
    words = ["--master", f"local[{SPARK_CORES}]", "--driver-memory", DRIVER_MEMORY, "--jars", jars]
    words += ["--driver-java-options", " ".join(SPARK_JVM_FLAGS)]
    for key, value in settings.items():
        words += ["--conf", f"{key}={value}"]
    return {
        "JAVA_HOME": str(prepare_java_home(find_java(), cache / "java")),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_SUBMIT_ARGS": shlex.join([*words, "pyspark-shell"]),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def prepare_java_home(java: Path, folder: Path) -> Path:
    """Return a folder that PySpark can use as JAVA_HOME to run the program `java`.

    If `java` has the module that PySpark requests, return the home of `java`. Otherwise write a
    script into `folder` that calls `java` without the request, and return `folder`. Raises
    `OSError` or `subprocess.CalledProcessError` if `java` can't be run.
    """
    modules = subprocess.run([java, "--list-modules"], capture_output=True, text=True, check=True)
    if _VECTOR_MODULE in modules.stdout:
        return java.resolve().parent.parent
    shim = folder / "bin" / "java"
    shim.parent.mkdir(parents=True, exist_ok=True)
    # Written under another name first, so that no other process runs half a script.
    unfinished = shim.with_suffix(f".{os.getpid()}")
    unfinished.write_text(_JAVA_WITHOUT_MODULE.format(java=shlex.quote(str(java))))
    unfinished.chmod(unfinished.stat().st_mode | stat.S_IXUSR)
    unfinished.replace(shim)
    return folder
