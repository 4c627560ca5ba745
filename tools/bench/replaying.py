"""A replay of many events on the default heap, killed on its way: each event is sent once.

    make bench-replay ARGS="--events 1000000 --kills 3"

Tables with that many unresolved failures are made, and a Kafka. `python -m knafka_jobs replay` is
started as the command line starts it, killed by SIGKILL after it has sent a part of them, and begun
again without its id; the last run ends by itself. Then every record of the replay topic is read:
each event is there once. Prints a table in Markdown; `peak MiB` is the resident memory of the JVM,
and of all Python processes beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Final

import psutil

from bench.jobs import MEBIBYTE, running_kafka
from bench.synthetic_tables import BROKER, TOPIC, TRIGGER, fill, today
from knafka.core import names
from knafka_cli.shared import dead_letter_jobs
from knafka_jobs.io import session
from knafka_jobs.io.delta import Tables
from knafka_jobs.io.kafka import KafkaClient, KafkaConnection
from knafka_jobs.topic_offsets import OffsetSpan

PARTITIONS: Final = 12
"""Of the replay topic, as a Broker's topic might have."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--bytes", type=int, default=1024)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="for the tables; a temporary one if not given")
    given = parser.parse_args()
    environment = dead_letter_jobs.spark_environment(print)
    os.environ.update(environment)
    with (
        tempfile.TemporaryDirectory(dir=given.folder) as folder,
        running_kafka(Path(folder)) as servers,
    ):
        root = f"{folder}/tables"
        spark = session.start_session("bench")
        fill(Tables(spark, root), given.events, given.bytes, today())
        spark.stop()
        client = KafkaClient(KafkaConnection(servers))
        replays = names.replay_topic(*BROKER, TRIGGER)
        client.create(TOPIC, 1, 1, {})
        client.create(replays, PARTITIONS, 1, {})
        print(
            "| run | ended | s | JVM peak MiB | Python peak MiB | lay in the topic then |",
            flush=True,
        )
        print("| ---: | --- | ---: | ---: | ---: | ---: |", flush=True)
        for run in range(given.kills + 1):
            until = None if run == given.kills else given.events * (run + 1) // (given.kills + 1)
            replay_once(run, root, servers, client, replays, until)
        there = read_all(client, replays)
        twice = sum(count - 1 for count in there.values())
        print(f"{len(there):,} events of {given.events:,} are there, {twice} more than once")
        if len(there) != given.events or twice:
            sys.exit(1)


def replay_once(
    run: int, root: str, servers: str, client: KafkaClient, topic: str, until: int | None
) -> None:
    """One run, killed once so many records lie in the topic."""
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
    said, _ = job.communicate()
    ended = "killed" if job.returncode < 0 else json.loads(said)
    seconds = time.monotonic() - begun
    peak = f"{peaks['java'] / MEBIBYTE:,.0f} | {peaks['python'] / MEBIBYTE:,.0f}"
    print(f"| {run} | {ended} | {seconds:.1f} | {peak} | {lying(client, topic):,} |", flush=True)


def memory_of(pid: int) -> Counter[str]:
    found = Counter[str]()
    try:
        processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return found
    for process in processes:
        try:
            name = "java" if "java" in process.name() else "python"
            found[name] += process.memory_info().rss
        except psutil.NoSuchProcess:
            pass
    return found


def lying(client: KafkaClient, topic: str) -> int:
    """About how many events were sent: with the markers of their transactions."""
    spans = client.topics([topic])[topic].spans.values()
    return sum(span.end - span.start for span in spans)


def read_all(client: KafkaClient, topic: str) -> Counter[bytes]:
    """How often each event lies in the topic."""
    from knafka_jobs.io.kafka_records import KafkaRecords

    found = client.topics([topic])[topic]
    records = KafkaRecords(client, {found.id: topic})
    there = Counter[bytes]()
    for partition, span in found.spans.items():
        for message in records.messages((found.id, partition), OffsetSpan(span.start, span.end)):
            there[message.headers()[-1][1].rpartition(b"/")[2]] += 1
    return there


if __name__ == "__main__":
    main()
