"""Replays many events on the default heap, kills the replay several times, and checks that each
event is sent once.

    make bench-replay ARGS="--events 1000000 --kills 3"

Tables with that many unresolved failures are made, and a Kafka. `python -m knafka_jobs replay` is
started as the command line starts it, killed by SIGKILL after it has sent a part of them, and begun
again without its id; the last run ends by itself. Then every record of the replay topic is read:
each event is there once. Prints a table in Markdown; `peak MiB` is the resident memory of the JVM,
and of all Python processes beside it.

    make bench-replay ARGS="--events 300000 --executors 1 2 --runs 2"

With `--executors` nothing is killed: the events are replayed by so many executors in turns, each a
process of one core beside the driver; `--executor-cpus 0.4` limits each to so much of a core, as a
pod's `limits` do (as root, by a cgroup), so that a small machine has cores that are free. `sending`
is the time from the first event in the replay topic to the last one.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Final

import psutil

from bench import job_process
from bench.compaction import Start, limit_executor, remove_cgroups
from bench.jobs import MEBIBYTE, running_kafka
from bench.synthetic_tables import BROKER, TOPIC, TRIGGER, fill, today
from knafka.core import names
from knafka_cli.shared import dead_letter_jobs
from knafka_jobs.io import session
from knafka_jobs.io.delta import Tables
from knafka_jobs.io.kafka import KafkaClient
from knafka_jobs.io.kafka_connection import KafkaConnection
from knafka_jobs.topic_offsets import OffsetSpan

PARTITIONS: Final = 12
"""Partitions of the replay topic: as many as a Broker's topic might have."""


def main() -> None:
    """Measure replays by executors, or kill replays and check that each event is sent once; exits
    with 1 if one isn't."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--bytes", type=int, default=1024)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--executors", type=int, nargs="+", help="compare these numbers of them")
    parser.add_argument("--executor-cpus", type=float, help="limit each to so much of a core")
    parser.add_argument("--runs", type=int, default=1, help="of each number of executors")
    parser.add_argument("--folder", type=Path, help="for the tables; a temporary one if not given")
    options = parser.parse_args()
    environment = dead_letter_jobs.spark_environment(print)
    os.environ.update(environment)
    with (
        tempfile.TemporaryDirectory(dir=options.folder) as folder,
        running_kafka(Path(folder)) as servers,
    ):
        root = f"{folder}/tables"
        spark = session.start_session("bench")
        fill(Tables(spark, root), options.events, options.bytes, today())
        spark.stop()
        client = KafkaClient(KafkaConnection(servers))
        replays = names.replay_topic(*BROKER, TRIGGER)
        client.create_topic(TOPIC, 1, 1, {})
        client.create_topic(replays, PARTITIONS, 1, {})
        if options.executors:
            print("| executors | s | sending, s | events/s | CPU s | peak MiB |", flush=True)
            print("| ---: | ---: | ---: | ---: | ---: | ---: |", flush=True)
            for turn, number in product(range(options.runs), options.executors):
                start = Start(executors=number, executor_cpus=options.executor_cpus)
                replay_by(start, turn, root, servers, client, replays, options.events)
            return
        print(
            "| run | ended | s | JVM peak MiB | Python peak MiB | lay in the topic then |",
            flush=True,
        )
        print("| ---: | --- | ---: | ---: | ---: | ---: |", flush=True)
        for run in range(options.kills + 1):
            until = (
                None if run == options.kills else options.events * (run + 1) // (options.kills + 1)
            )
            replay_once(run, root, servers, client, replays, until)
        counts = read_all(client, replays)
        repeated = sum(count - 1 for count in counts.values())
        print(f"{len(counts):,} events of {options.events:,} are there, {repeated} more than once")
        if len(counts) != options.events or repeated:
            sys.exit(1)


def replay_once(
    run: int, root: str, servers: str, client: KafkaClient, topic: str, until: int | None
) -> None:
    """Run the replay; kill it once `until` records are in the topic, if `until` isn't None. Prints
    a row."""
    command = [sys.executable, "-m", "knafka_jobs", "replay", f"--tables={root}"]
    begun = time.monotonic()
    job = subprocess.Popen(
        [*command, f"--bootstrap-servers={servers}"],
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    peaks = Counter[str]()
    while job.poll() is None:
        for name, used in memory_of(job.pid).items():
            peaks[name] = max(peaks[name], used)
        if until is not None and lying(client, topic) >= until:
            os.killpg(job.pid, signal.SIGKILL)
            break
        time.sleep(0.2)
    output, _ = job.communicate()
    ended = "killed" if job.returncode < 0 else json.loads(output)
    seconds = time.monotonic() - begun
    peak = f"{peaks['java'] / MEBIBYTE:,.0f} | {peaks['python'] / MEBIBYTE:,.0f}"
    print(f"| {run} | {ended} | {seconds:.1f} | {peak} | {lying(client, topic):,} |", flush=True)


def replay_by(
    start: Start,
    turn: int,
    root: str,
    servers: str,
    client: KafkaClient,
    topic: str,
    events: int,
) -> None:
    """Replay all events by executors, after deleting all traces of earlier replays. Prints a
    row."""
    for table in ("sent", "replays"):
        shutil.rmtree(f"{root}/{table}", ignore_errors=True)
    ends = client.topics([topic])[topic].spans
    client.delete_before({(topic, number): span.end for number, span in ends.items()})
    growth: list[tuple[float, int]] = []

    def watch(process: psutil.Process) -> None:
        """Limit a process if it is an executor, and note how many events the topic has."""
        limit_executor(process, cpus=start.executor_cpus)
        if not growth or time.monotonic() - growth[-1][0] > 0.2:
            growth.append((time.monotonic(), lying(client, topic)))

    command = [sys.executable, "-m", "knafka_jobs", "replay", f"--tables={root}"]
    command += [f"--bootstrap-servers={servers}", f"--replay-id=by-{start.executors}-{turn}"]
    arguments = start.arguments(os.environ["PYSPARK_SUBMIT_ARGS"])
    job = job_process.run(command, {"PYSPARK_SUBMIT_ARGS": arguments}, watch)
    remove_cgroups()
    if job.exit_code != 0 or json.loads(job.answer)["sent"] != events:
        sys.exit(f"{job.answer}\n{job.said[-4000:]}")
    end = max(count for _, count in growth)
    first = next(moment for moment, count in growth if count)
    sending = next(moment for moment, count in growth if count == end) - first
    print(
        f"| {start.executors} | {job.seconds:.1f} | {sending:.1f} | {events / sending:,.0f} | "
        f"{job.cpu_seconds:.1f} | {job.peak_bytes / MEBIBYTE:,.0f} |",
        flush=True,
    )


def memory_of(pid: int) -> Counter[str]:
    """Return the resident bytes of a process and its descendants, as `java` and `python`."""
    resident = Counter[str]()
    try:
        processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return resident
    for process in processes:
        try:
            name = "java" if "java" in process.name() else "python"
            resident[name] += process.memory_info().rss
        except psutil.NoSuchProcess:
            pass
    return resident


def lying(client: KafkaClient, topic: str) -> int:
    """Return about how many events the topic has: the markers of their transactions are counted
    too."""
    spans = client.topics([topic])[topic].spans.values()
    return sum(span.end - span.start for span in spans)


def read_all(client: KafkaClient, topic: str) -> Counter[bytes]:
    """Return how often each event is in the topic, by the last part of its last header."""
    from knafka_jobs.io.kafka_records import KafkaRecords

    topic_info = client.topics([topic])[topic]
    records = KafkaRecords(client, {topic_info.id: topic})
    event_counts = Counter[bytes]()
    for partition, span in topic_info.spans.items():
        for message in records.messages(
            (topic_info.id, partition), OffsetSpan(span.start, span.end)
        ):
            event_counts[message.headers()[-1][1].rpartition(b"/")[2]] += 1
    return event_counts


if __name__ == "__main__":
    main()
