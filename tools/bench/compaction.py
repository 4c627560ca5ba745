"""Compares the compaction with a plain copy of the same topic, at growing sizes: time, memory,
bytes.

    export PYTHONPATH=tools
    python tools/bench/compaction.py --bootstrap-servers HOST:PORT [--records 1000000]
    python tools/bench/compaction.py --bootstrap-servers HOST:PORT --executors 1 2 --runs 3

Dead letters of 1 KiB are appended in steps (a quarter, a half, all of them); after each step the
compaction takes what is new, which shows whether its cost grows with what is new or with what is
stored. Then a new compaction takes everything at once, and Spark copies the same topic to Parquet,
as our jobs start Spark and with Java's own settings (C2), which change what CPU a process costs.

With `--executors` everything is taken at once by so many executors, processes of one core each
beside the driver (Spark's `local-cluster`), in turns; `--executor-cpus 0.5` limits each to half a
core, as a pod's `limits` do (as root, by a cgroup), so that a small machine has cores that are
free. Prints a table in Markdown.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Final

import psutil
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench import job_process
from knafka.core import names
from knafka.core.dead_letter import Failure, Origin, dead_letter_of
from knafka.core.delivery import Reason
from knafka_cli.shared import dead_letter_jobs

EVENT_BYTES: Final = 1024
TRIGGERS: Final = ("mail", "bill", "ship")
PARTITIONS: Final = 4
EXECUTOR_MIB: Final = 1024
CGROUPS: Final = Path("/sys/fs/cgroup/cpu")
CPU_PERIOD: Final = 100_000
"""Period of a cgroup's CPU quota, in microseconds: the one that Kubernetes sets."""

COPY: Final = """
import sys
from pyspark.sql import SparkSession

servers, topics, path = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
kafka = spark.read.format("kafka").option("kafka.bootstrap.servers", servers)
kafka = kafka.option("subscribe", topics).option("includeHeaders", "true")
kafka.load().write.parquet(path)
spark.stop()
"""


@dataclass(frozen=True, slots=True)
class Start:
    """How a job's Spark is started."""

    c2: bool = False
    """Whether Java compiles with C2, as by default; our jobs turn it off."""
    executors: int = 0
    """Number of executors beside the driver; 0: the driver does all by itself, with two cores."""
    executor_cpus: float | None = None
    """Cores that each executor may use; None: there is no limit."""

    def arguments(self, usual: str) -> str:
        """Return `PYSPARK_SUBMIT_ARGS` for this start; `usual` are those with which our jobs are
        started."""
        words = shlex.split(usual)
        if self.c2:
            words = [
                word.replace("-XX:TieredStopAtLevel=1", "-XX:TieredStopAtLevel=4") for word in words
            ]
        if self.executors:
            master = f"local-cluster[{self.executors},1,{EXECUTOR_MIB}]"
            words[words.index("--master") + 1] = master
            words = ["--conf", f"spark.executor.memory={EXECUTOR_MIB}m", *words]
        return shlex.join(words)


USUAL: Final = Start()


@dataclass(frozen=True, slots=True)
class Measured:
    """What one job took. The whole process is counted: Spark's start costs some seconds in each."""

    what: str
    records: int
    seconds: float
    cpu_seconds: float
    peak_bytes: int
    disk_bytes: int

    def __str__(self) -> str:
        mebibyte = 1024 * 1024
        return (
            f"| {self.what} | {self.records:,} | {self.seconds:.1f} | {self.cpu_seconds:.1f} | "
            f"{self.records / self.seconds:,.0f} | {self.peak_bytes // mebibyte:,} | "
            f"{self.disk_bytes // mebibyte:,} |"
        )


def main() -> None:
    """Run the benchmark; the topics are deleted in the end."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--bootstrap-servers", required=True)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--at-once", action="store_true", help="leave out the steps")
    parser.add_argument("--executors", type=int, nargs="+", help="compare these numbers of them")
    parser.add_argument("--executor-cpus", type=float, help="limit each to so much of a core")
    parser.add_argument("--runs", type=int, default=1, help="of each number of executors")
    parser.add_argument("--folder", type=Path, help="for the tables; a temporary one if not given")
    options = parser.parse_args()
    servers, total = options.bootstrap_servers, options.records
    namespace = f"bench{uuid.uuid4().hex[:8]}"
    with tempfile.TemporaryDirectory(dir=options.folder) as folder, _topics(servers, namespace):
        root = Path(folder)
        print("| job | records | s | CPU s | records/s | peak MiB | MiB on disk |")
        print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |", flush=True)
        if options.executors or options.at_once:
            _fill(servers, namespace, 0, total)
        if options.executors:
            for run, number in product(range(options.runs), options.executors):
                what, tables = f"compact by {number} executors", root / f"{number}-{run}"
                start = Start(executors=number, executor_cpus=options.executor_cpus)
                print(_compact(what, servers, namespace, tables, total, start), flush=True)
            return
        if not options.at_once:
            _compact_in_steps(servers, namespace, root / "steps", total)
        copy = [sys.executable, "-c", COPY, servers, ",".join(_names(namespace))]
        for jvm, start in (("", USUAL), (", with C2", Start(c2=True))):
            what, tables = f"compact all at once{jvm}", root / f"once{jvm}"
            print(_compact(what, servers, namespace, tables, total, start), flush=True)
            what, files = f"plain copy to Parquet{jvm}", root / f"copy{jvm}"
            print(_measure_job(what, [*copy, str(files)], files, total, start), flush=True)


def _compact_in_steps(servers: str, namespace: str, tables: Path, total: int) -> None:
    """Append `total` dead letters in three steps, and compact after each one; prints a row for
    each."""
    done = 0
    for goal in (total // 4, total // 2, total):
        _fill(servers, namespace, done, goal)
        what = f"compact what is new, {done:,} stored"
        print(_compact(what, servers, namespace, tables, goal - done), flush=True)
        done = goal
    print(_compact("compact, nothing new", servers, namespace, tables, 0), flush=True)


def _compact(
    what: str, servers: str, namespace: str, tables: Path, records: int, start: Start = USUAL
) -> Measured:
    """Run one compaction into `tables` and return what it took; exits if it has compacted another
    number than `records`. `what`: the name of its row."""
    job = [sys.executable, "-m", "knafka_jobs", "compact", "--tables", str(tables)]
    job += ["--bootstrap-servers", servers, "--broker", f"{namespace}/main"]
    return _measure_job(what, job, tables, records, start)


def _measure_job(
    what: str, command: list[str], folder: Path, records: int, start: Start = USUAL
) -> Measured:
    """Run a job that writes into `folder`, and return what it took; exits if it fails, or answers
    with another number than `records`."""
    environment = dead_letter_jobs.spark_environment(lambda line: None)
    arguments = start.arguments(environment["PYSPARK_SUBMIT_ARGS"])
    limit = partial(limit_executor, cpus=start.executor_cpus)
    job = job_process.run(command, {**environment, "PYSPARK_SUBMIT_ARGS": arguments}, limit)
    remove_cgroups()
    if job.exit_code != 0:
        sys.exit(f"{what} failed:\n{job.said[-4000:]}")
    if (
        job.answer.startswith("{")
        and (record_count := json.loads(job.answer)["records"]) != records
    ):
        sys.exit(f"{what}: {record_count} records instead of {records}")
    disk = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    return Measured(what, records, job.seconds, job.cpu_seconds, job.peak_bytes, disk)


def remove_cgroups() -> None:
    """Remove the cgroups of executors that have ended."""
    for group in CGROUPS.glob("knafka-bench-*"):
        with suppress(OSError):  # its executor still ends: the next call removes it
            group.rmdir()


def limit_executor(process: psutil.Process, cpus: float | None) -> None:
    """Limit a process to `cpus` cores by a new cgroup, if it is an executor without one; None: do
    nothing."""
    group = CGROUPS / f"knafka-bench-{process.pid}"
    if (
        cpus is None
        or group.exists()
        or not any("ExecutorBackend" in argument for argument in process.cmdline())
    ):
        return
    group.mkdir()
    (group / "cpu.cfs_period_us").write_text(str(CPU_PERIOD))
    (group / "cpu.cfs_quota_us").write_text(str(int(cpus * CPU_PERIOD)))
    (group / "cgroup.procs").write_text(str(process.pid))


def _names(namespace: str) -> list[str]:
    """Return the names of the dead-letter topics."""
    return [names.dead_letter_topic(namespace, "main", trigger) for trigger in TRIGGERS]


@contextmanager
def _topics(servers: str, namespace: str) -> Iterator[None]:
    """Make the dead-letter topics, and delete them after the block."""
    admin = AdminClient({"bootstrap.servers": servers})
    new = [NewTopic(name, PARTITIONS, 1) for name in _names(namespace)]
    for created in admin.create_topics(new).values():
        created.result()
    try:
        yield
    finally:
        for deleted in admin.delete_topics(_names(namespace)).values():
            deleted.exception()


def _fill(servers: str, namespace: str, start: int, end: int) -> None:
    """Write dead letters of the events with the numbers from `start` to `end` to the topics, in
    turn."""
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 50, "compression.type": "lz4"})
    reasons = [any_reason for any_reason in Reason if any_reason is not Reason.UNDECODABLE]
    for number in range(start, end):
        trigger = TRIGGERS[number % len(TRIGGERS)]
        reason = reasons[number % len(reasons)]
        status = 503 if reason is Reason.STATUS else None
        headers = [
            ("ce_specversion", b"1.0"),
            ("ce_id", b"%d" % number),
            ("ce_source", b"/bench/%d" % (number % 10)),
            ("ce_type", b"bench.%d" % (number % 20)),
            ("content-type", b"application/json"),
        ]
        failed_at = 1.79e9 + number / 100
        failure = Failure(
            f"http://{trigger}/", reason, 3, failed_at, failed_at + 1, status, b"not now"
        )
        origin = Origin(namespace, "main", trigger, "broker", number % 10, number)
        letter_headers, value = dead_letter_of(headers, os.urandom(EVENT_BYTES), failure, origin)
        while True:
            try:
                producer.produce(
                    names.dead_letter_topic(namespace, "main", trigger),
                    value,
                    b"%d" % (number % 1000),
                    headers=letter_headers,  # type: ignore[arg-type]
                )
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    producer.flush()


if __name__ == "__main__":
    main()
