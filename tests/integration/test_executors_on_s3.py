"""Executors and tables in a bucket, together: also if an executor is evicted in the middle.

Spark's `local-cluster` starts the executors as processes beside the driver, with all of a cluster's
scheduling, its transfer of blocks, and its loss of what an executor kept.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest
from support.gate import only_chaos
from support.kafka import Kafka
from support.letters import TRIGGERS, DeadLetters
from support.s3 import Bucket
from support.waiting import until

from knafka_cli.shared import dead_letter_jobs
from knafka_jobs.io.table_files import TableFiles

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]

EXECUTOR = "CoarseGrainedExecutorBackend"
NUMBER = 9_000
"""More events than a driver sends by itself (`replay_run.DRIVER_EVENTS`)."""

KEEP_ROWS = """
import sys
from pyspark.sql import functions as F
from knafka_jobs.io import kept_rows, session
from knafka_jobs.materialize import compute_rows
import psutil

root, = sys.argv[1:]
spark = session.start_session("test")
kept_rows.use_folder(spark, root)
rows = compute_rows(spark.range(0, 1000, 1, 8).withColumn("twice", F.col("id") * 2))
for process in psutil.Process().children(recursive=True):
    if any("CoarseGrainedExecutorBackend" in word for word in process.cmdline()):
        process.kill()
print(rows.agg(F.sum("twice")).first()[0])
kept_rows.remove_own(spark)
spark.stop()
"""


def with_executors(number: int) -> dict[str, str]:
    """The environment of a job with so many executors of one core, for tables in S3."""
    environment = dead_letter_jobs.spark_environment(lambda _: None, s3=True)
    words = shlex.split(environment["PYSPARK_SUBMIT_ARGS"])
    words[words.index("--master") + 1] = f"local-cluster[{number},1,1024]"
    environment["PYSPARK_SUBMIT_ARGS"] = shlex.join(
        ["--conf", "spark.executor.memory=1024m", *words]
    )
    return {**os.environ, **environment}


def run(command: list[str], environment: Mapping[str, str]) -> str:
    ended = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-4000:]
    return ended.stdout.strip().rpartition("\n")[2]


@pytest.fixture
def s3_environment(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in bucket.environment.items():
        monkeypatch.setenv(name, value)


@only_chaos
@pytest.mark.usefixtures("s3_environment")
def test_rows_that_a_job_keeps_are_there_after_all_its_executors_were_evicted(
    bucket: Bucket,
) -> None:
    """Spark's own `localCheckpoint` keeps them in the executors: the job failed."""
    root = f"{bucket.url}/kept"
    said = run([sys.executable, "-c", KEEP_ROWS, root], with_executors(2))
    assert said == str(sum(range(1000)) * 2)
    left = [file for file in (bucket.folder / "kept").rglob("*") if file.is_file()]
    assert left == [], "what was kept is removed"


@only_chaos
@pytest.mark.usefixtures("s3_environment")
def test_two_executors_table_each_dead_letter_once_in_a_bucket_if_one_is_evicted(
    kafka: Kafka, dead: DeadLetters, bucket: Bucket, tmp_path: Path
) -> None:
    """In one run, which ends well; then two executors replay each event once."""
    expected: Counter[tuple[str, str]] = Counter()
    for number in range(NUMBER):
        event = number * 2 % NUMBER if number % 3 else number
        trigger = TRIGGERS[event % 3]
        dead.add(trigger, event)
        expected[trigger, str(event)] += 1
    dead.flush()
    tables = f"{bucket.url}/{dead.namespace}"
    environment = with_executors(2)
    words = ["--tables", tables, "--broker", f"{dead.namespace}/main"]
    words += ["--bootstrap-servers", kafka.bootstrap_servers]
    job = [sys.executable, "-m", "knafka_jobs"]
    log = tmp_path / "log"
    with log.open("w") as output:
        compacting = subprocess.Popen(
            [*job, "compact", *words], env=environment, stdout=output, stderr=output
        )
    killed: list[int] = []

    def evict() -> bool:
        if "new dead letters" in log.read_text():
            for process in psutil.Process(compacting.pid).children(recursive=True):
                if any(EXECUTOR in word for word in process.cmdline()):
                    os.kill(process.pid, signal.SIGKILL)
                    killed.append(process.pid)
                    return True
        return compacting.poll() is not None

    try:
        asyncio.run(until(evict, 100))
        assert compacting.wait(400) == 0, log.read_text()[-4000:]
    finally:
        compacting.kill()
        compacting.wait()
    assert killed

    files = TableFiles(tables)
    rows = files.query('SELECT DISTINCT topic_id, "partition", "offset" FROM records', "records")
    assert len(rows) == NUMBER
    rows = files.query("SELECT trigger, id, failures FROM failures", "failures")
    assert {(row["trigger"], row["id"]): row["failures"] for row in rows} == expected

    answer = json.loads(run([*job, "replay", *words], environment))
    assert answer["sent"] == len(expected)
