"""Measures the jobs on tables of many sizes: does cost grow with what is new or with what is
stored?

    make bench-jobs ARGS="--stored 1000000 5000000 --new 100000"

A Kafka is started for what is new; what is stored is made of numbers (`synthetic_tables`): a dead
letter of `--bytes` for each failure, over 30 days. `--first` dead letters are compacted into empty
tables beside a plain copy of the same topic to Parquet. Then on each size: `--new` are compacted
and copied; the same where 1 in 100 is of an event that failed in the last day, and in all days; a
report by Spark; a replay of 1,000, sent to Kafka; and, as processes of their own without Spark, a
dry run of it, a dry run of everything, `list`, `show` and a report by DataFusion. Prints a table in
Markdown; `CPU s` is the JVM's, or that process's, which a machine that does other things changes
less than `s`; `MiB read` is what Spark's tasks read of files.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

import psutil
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pyspark.sql import SparkSession

from bench.synthetic_tables import BROKER, DAYS, TOPIC, TRIGGER, fill, moment_of, produce, today
from knafka.core import names
from knafka_cli.shared import dead_letter_jobs
from knafka_jobs.command_options import CompactOptions, FailureSelection
from knafka_jobs.compact.compact_run import compact
from knafka_jobs.io import session
from knafka_jobs.io.delta import Tables
from knafka_jobs.io.kafka import KafkaClient
from knafka_jobs.io.kafka_connection import KafkaConnection
from knafka_jobs.replay.replay_run import replay
from knafka_jobs.report.report_run import make_report
from knafka_jobs.report.spark_engine import SparkEngine
from knafka_jobs.topic_offsets import BrokerName
from knafka_local.kafka.kafka_distribution import obtain
from knafka_local.kafka.kafka_server import KafkaServer

REPLAYED: Final = 1000
LEAST_REPLAYED: Final = 900
"""Least number of events that a replay of `REPLAYED` sends: the compactions let some fail again
later."""
ONCE_MORE: Final = 100
"""One of so many new dead letters is of a failure that is stored already."""
REPEATED: Final = {
    0: "none of them repeated",
    1: "1 % of them repeated from the last day",
    DAYS: "1 % of them repeated from all days",
}
WARM_UP: Final = 20_000
MEBIBYTE: Final = 1 << 20


def main() -> None:
    """Measure the jobs on empty tables, then on tables of each size; prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--first", type=int, default=1_000_000)
    parser.add_argument("--stored", type=int, nargs="+", default=[1_000_000, 5_000_000, 50_000_000])
    parser.add_argument("--new", type=int, default=100_000)
    parser.add_argument("--bytes", type=int, default=1024)
    parser.add_argument(
        "--small-from",
        type=int,
        default=20_000_000,
        help="events of 32 bytes, and no report, where so many are stored",
    )
    parser.add_argument(
        "--repeated",
        type=int,
        nargs="+",
        choices=REPEATED,
        default=list(REPEATED),
        help="over how many days the failures lie that some of what is new repeats",
    )
    parser.add_argument("--folder", type=Path, help="for the tables; a temporary one if not given")
    options = parser.parse_args()
    os.environ.update(dead_letter_jobs.spark_environment(print))
    spark = session.start_session("bench")
    with (
        tempfile.TemporaryDirectory(dir=options.folder) as folder,
        running_kafka(Path(folder)) as servers,
    ):
        bench = Bench(spark, Path(folder), servers, options.repeated)
        bench.on_empty_tables(WARM_UP, options.bytes, told=False)
        print("| stored | job | s | CPU s | MiB read |", flush=True)
        print("| ---: | --- | ---: | ---: | ---: |", flush=True)
        if options.first:
            bench.on_empty_tables(options.first, options.bytes)
        for stored in options.stored:
            small = stored >= options.small_from
            bench.on_tables(stored, options.new, options.bytes, 32 if small else options.bytes)
    spark.stop()


class Bench:
    """Measures the jobs with one Spark session and one Kafka."""

    def __init__(
        self, spark: SparkSession, folder: Path, servers: str, repeated: Sequence[int]
    ) -> None:
        """`folder` is for tables; `repeated` are the keys of `REPEATED` to measure."""
        self._spark = spark
        self._folder = folder
        self._servers = servers
        self._repeated = repeated
        self._client = KafkaClient(KafkaConnection(servers))
        self._admin = AdminClient({"bootstrap.servers": servers})

    def on_empty_tables(self, new: int, size: int, *, told: bool = True) -> None:
        """Compact `new` dead letters of `size` bytes into empty tables, and copy their topic;
        prints a row for each if `told`."""
        with tempfile.TemporaryDirectory(dir=self._folder) as folder, self._topic():
            produce(self._servers, range(new), lambda _: size)
            tables = Tables(self._spark, f"{folder}/tables")
            for name, job in (
                (f"compact {new:,} new", lambda: self._compact(tables, new)),
                (f"plain copy of {new:,}", lambda: self._copy(f"{folder}/copy")),
            ):
                self._measure(0, name, job, told=told)

    def on_tables(self, stored: int, new: int, size: int, stored_size: int) -> None:
        """Measure all jobs on tables with `stored` dead letters of `stored_size` bytes, to which
        `new` of `size` bytes come; prints a row for each."""
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:
            tables, now = Tables(self._spark, f"{folder}/tables"), today()
            begun = time.monotonic()
            fill(tables, stored, stored_size, now)
            took = time.monotonic() - begun
            disk = sum(tables.size(name)[1] for name in ("records", "failures", "failure_days"))
            description = f"{stored:,} stored, {stored_size} bytes each, {disk / MEBIBYTE:,.0f} MiB"
            print(f"{description}, in {took:.0f} s", file=sys.stderr, flush=True)
            for turn, days in enumerate(self._repeated):
                with self._topic():
                    numbers = _numbers(stored + turn * new, new, stored, days)
                    produce(self._servers, numbers, lambda n: stored_size if n < stored else size)
                    name = f"compact {new:,} new, {REPEATED[days]}"
                    self._measure(stored, name, lambda: self._compact(tables, new))
                    if not days:
                        copy = partial(self._copy, f"{folder}/copy")
                        self._measure(stored, f"plain copy of {new:,}", copy)
            if size == stored_size:
                self._measure(
                    stored, "report", lambda: make_report(SparkEngine(tables), None, today())
                )
            self._ask(stored, tables, now)

    def _ask(self, stored: int, tables: Tables, now: datetime) -> None:
        """Measure the commands without Spark, for 1,000 events in the middle or for all, and a
        replay of these 1,000."""
        since, until = (
            moment_of(stored // 2 + offset, stored, now) - timedelta(microseconds=500)
            for offset in (0, REPLAYED)
        )
        period = (f"--since={since.isoformat()}", f"--until={until.isoformat()}")
        files = tuple(f"--{kind}={tables.root}/report.{kind}" for kind in ("html", "json"))
        for words in (
            ("replay", "--dry-run", *period),
            ("replay", "--dry-run"),
            ("list",),
            ("show", f"{BROKER[0]}/{TRIGGER}"),
            ("report", "--engine=datafusion", *files),
        ):
            command = [sys.executable, "-m", "knafka_cli", "dead-letters", *words]
            begun, cpu_before = time.monotonic(), _children_cpu_seconds()
            completed = subprocess.run(
                [*command, f"--tables={tables.root}"], check=True, capture_output=True, text=True
            )
            spent = _children_cpu_seconds() - cpu_before
            name = " ".join(word for word in words[:2] if "=" not in word)
            name += " of 1,000" if period[0] in words else ""
            _tell(stored, f"{name}, without Spark", time.monotonic() - begun, spent, None)
            if period[0] in words:
                event_count = int(
                    completed.stdout.rpartition(" would be sent")[0].rpartition("\n")[2]
                )
                assert LEAST_REPLAYED <= event_count <= REPLAYED, completed.stdout[-500:]
        selection = FailureSelection(since=since, until=until)

        def send() -> None:
            """Replay the selection, and check the number of events that were sent."""
            sent = replay(
                tables, self._client, selection, f"r{stored}", "bench", None, _silent
            ).sent
            assert LEAST_REPLAYED <= sent <= REPLAYED, sent

        with self._topic():  # a replay goes only to a Trigger whose dead-letter topic exists
            self._measure(stored, "replay of 1,000", send)

    def _compact(self, tables: Tables, new: int) -> None:
        """Compact the topic's dead letters, and check that they are `new`."""
        done = compact(tables, self._client, CompactOptions(BrokerName(*BROKER)), _silent)
        assert done.records == new, done

    def _copy(self, path: str) -> None:
        """Copy the topic to Parquet files at `path`, as a plain job of Spark."""
        kafka = self._spark.read.format("kafka").option("subscribe", TOPIC)
        kafka = kafka.options(**self._client.connection.for_spark()).option(
            "includeHeaders", "true"
        )
        kafka.load().write.parquet(path)

    def _measure(
        self, stored: int, name: str, job: Callable[[], Any], *, told: bool = True
    ) -> None:
        """Run a job, and print its row if `told`."""
        bytes_before, spent, begun = self._bytes_read(), self._cpu_seconds(), time.monotonic()
        job()
        seconds, spent = time.monotonic() - begun, self._cpu_seconds() - spent
        if told:
            _tell(stored, name, seconds, spent, self._bytes_read() - bytes_before)

    def _cpu_seconds(self) -> float:
        """Return the seconds of CPU that the JVM has used, which does all the work."""
        gateway: Any = self._spark.sparkContext._gateway
        return sum(psutil.Process(gateway.proc.pid).cpu_times()[:2])

    def _bytes_read(self) -> int:
        """Return the bytes that all stages of Spark have read until now."""
        executors = self._spark.sparkContext._jsc.sc().statusStore().executorList(False)
        return sum(int(executors.apply(n).totalInputBytes()) for n in range(executors.size()))

    @contextmanager
    def _topic(self) -> Iterator[None]:
        """Make the Trigger's dead-letter topic, as its dispatcher does, and delete it with its
        replay topic after the block."""
        self._admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result()
        try:
            yield
        finally:
            replays = names.replay_topic(*BROKER, TRIGGER)
            for deleted in self._admin.delete_topics([TOPIC, replays]).values():
                deleted.exception()
            while TOPIC in self._admin.list_topics(timeout=10).topics:
                time.sleep(0.1)


@contextmanager
def running_kafka(folder: Path) -> Iterator[str]:
    """Run a Kafka during the block, and yield its address. An event loop in a thread reads its
    output, or it would block."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    kafka = KafkaServer(obtain(), folder / "kafka")
    asyncio.run_coroutine_threadsafe(kafka.start(), loop).result()
    try:
        yield kafka.bootstrap_servers
    finally:
        asyncio.run_coroutine_threadsafe(kafka.stop(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


def _numbers(first: int, new: int, stored: int, days: int) -> Iterator[int]:
    """Yield `new` numbers of events from `first` on; with `days`, one in `ONCE_MORE` is of an event
    stored in the last `days` days."""
    late = stored * days // DAYS
    for index in range(new):
        again = bool(days) and index % ONCE_MORE == 0
        yield stored - 1 - index * 7919 % late if again else first + index


def _children_cpu_seconds() -> float:
    """Return the seconds of CPU that ended child processes have used."""
    return sum(psutil.Process().cpu_times()[2:4])


def _tell(stored: int, name: str, seconds: float, spent: float, read: int | None) -> None:
    """Print a row of the table; `spent` is CPU in seconds, `read` in bytes."""
    amount = "" if read is None else f"{read / MEBIBYTE:,.1f}"
    print(f"| {stored:,} | {name} | {seconds:.1f} | {spent:.1f} | {amount} |", flush=True)


def _silent(line: str) -> None:
    """Do nothing: stands for the function to which a job reports its progress."""


if __name__ == "__main__":
    main()
