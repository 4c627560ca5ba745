"""Compares a backtest of many archived events with the live reducer on the same events.

    python tools/bench/backtesting.py [--events 1000000] [--folder FOLDER]

Events are archived as Parquet, as Spark's Kafka source gives them: orders, payments and refunds,
four of them with one correlation key. The Sensor has a simple condition, `order && payment`, a
count in a window, an absence, and a condition without a correlation key. The reducer that a
Sensor's function runs plays the same events in this process. Both sides' firings are summed up in
one digest for each trigger; exits with 1 if these differ. Prints a table in Markdown.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import psutil

from bench import job_process
from knafka.core.documents import parse
from knafka.core.sensor.backtest import Backtest, PastEvent
from knafka.core.sensor.contract import Conditions
from knafka.core.sensor.records import correlation_of, trigger_of
from knafka_cli.shared import dead_letter_jobs

START: Final = 1_790_000_000_000
"""Time of the first event, in milliseconds since the Unix epoch."""
SPAN: Final = 1_000_000
"""Milliseconds from the first event to the last."""
PER_KEY: Final = 4
"""Mean number of events with the same `orderid`."""
SENSOR: Final[Mapping[str, Any]] = {
    "dependencies": [
        {"name": "order", "filters": [{"exact": {"type": "order"}}]},
        {"name": "payment", "filters": [{"exact": {"type": "payment"}}]},
        {"name": "refund", "filters": [{"exact": {"type": "refund"}}]},
    ],
    "triggers": [
        {"name": "every", "conditions": "refund"},
        {"name": "ship", "conditions": "order && payment", "correlation": "orderid"},
        {"name": "twice", "conditions": "2 of payment", "within": "PT10M",
         "correlation": "orderid"},
        {"name": "remind", "conditions": "order && !payment", "within": "PT5M",
         "correlation": "orderid"},
        {"name": "any", "conditions": "100 of order && refund"},
    ],
}  # fmt: skip

# Computes each row from its number, as `_past_events` does: both sides have the same events.
ARCHIVE: Final = """
SELECT 'bus' AS topic, 0 AS partition, id AS offset,
  timestamp_millis({start} + id * {span} DIV {count}) AS timestamp,
  CAST(repeat('x', 200) AS binary) AS value,
  transform(
    array(struct('ce_specversion', '1.0'), struct('ce_id', string(id)),
      struct('ce_source', '/bench'), struct('ce_orderid', string(id * 104729 % {keys})),
      struct('ce_type', CASE WHEN draw < 5 THEN 'order' WHEN draw < 9 THEN 'payment'
        ELSE 'refund' END)),
    each -> struct(each.col1 AS key, CAST(each.col2 AS binary) AS value)) AS headers
FROM (SELECT id, (id * 7 + id DIV {keys} * 3 + id % 977) % 10 AS draw FROM range({count}))
"""

WRITE: Final = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
spark.sql(sys.argv[1]).write.parquet(sys.argv[2])
spark.stop()
"""


def _past_events(count: int) -> Iterator[PastEvent]:
    """Yield the events of the archive, computed from their numbers as `ARCHIVE` does."""
    keys = _keys(count)
    for number in range(count):
        draw = (number * 7 + number // keys * 3 + number % 977) % 10
        attributes = {
            "specversion": "1.0",
            "id": str(number),
            "source": "/bench",
            "type": "order" if draw < 5 else "payment" if draw < 9 else "refund",
            "orderid": str(number * 104_729 % keys),
        }
        yield PastEvent(START + number * SPAN // count, attributes, b"")


def _keys(count: int) -> int:
    """Return the number of values of `orderid` among `count` events."""
    return max(1, count // PER_KEY)


def main() -> None:
    """Write the archive, run both sides, print their rows, and compare their firings; exits with 1
    if these differ."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, help="a temporary one if not given")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        root = Path(folder)
        _write_archive(options.events, root / "archive")
        print("| events | what | firings | s | CPU s | events/s | peak MiB |")
        print("| ---: | --- | ---: | ---: | ---: | ---: | ---: |", flush=True)
        job_digests = _job(options.events, root)
        reducer_digests = _reducer(options.events)
    if job_digests != reducer_digests:
        sys.exit(
            f"error: they fire differently: the job {job_digests}, the reducer {reducer_digests}"
        )
    print(
        "\nequal firings:", ", ".join(f"{name} {n:,}" for name, (n, _) in reducer_digests.items())
    )


def _write_archive(count: int, path: Path) -> None:
    """Write an archive of `count` events as Parquet."""
    _spark(WRITE, ARCHIVE.format(start=START, span=SPAN, count=count, keys=_keys(count)), str(path))


def _spark(script: str, *arguments: str) -> None:
    """Run a Python script in a process in which Spark works as in our jobs."""
    environment = {**os.environ, **dead_letter_jobs.spark_environment(lambda _: None)}
    subprocess.run([sys.executable, "-c", script, *arguments], env=environment, check=True)


def _job(count: int, root: Path) -> Mapping[str, tuple[int, str]]:
    """Run the backtest job on the archive, print its row, and return the digest of its firings, by
    trigger."""
    sensor, output = root / "sensor.json", root / "firings"
    sensor.write_text(json.dumps(SENSOR))
    command = [sys.executable, "-m", "knafka_jobs", "backtest", f"--sensor={sensor}"]
    command += [f"--archive={root / 'archive'}", f"--output={output}"]
    job = job_process.run(command, dead_letter_jobs.spark_environment(lambda _: None))
    if job.exit_code != 0:
        sys.exit(f"error: the job failed:\n{job.said[-4000:]}")
    summary = json.loads(job.answer)
    if summary["events"] != count:
        sys.exit(f"error: {summary['events']} events were read, and not {count}")
    firings = sum(summary["firings"].values())
    row = _row(count, "the job", firings, job.seconds, job.cpu_seconds, job.peak_bytes)
    print(row, flush=True)
    return _read_written_firings(output, root)


# Converts the Delta table that the job wrote to lines of JSON.
READ: Final = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.config(
    "spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension").config(
    "spark.sql.catalog.spark_catalog",
    "org.apache.spark.sql.delta.catalog.DeltaCatalog").getOrCreate()
rows = spark.read.format("delta").load(sys.argv[1])
rows.selectExpr("trigger", "correlation", "unix_millis(at) AS at", "events.id AS ids"
    ).write.json(sys.argv[2])
spark.stop()
"""


def _read_written_firings(output: Path, root: Path) -> Mapping[str, tuple[int, str]]:
    """Return the digest of the firings in the table that the job wrote, by trigger."""
    lines = root / "lines"
    _spark(READ, str(output), str(lines))

    def firings() -> Iterator[tuple[str, str]]:
        """Yield trigger and text of each firing in the table."""
        for file in lines.glob("*.json"):
            with file.open() as text:
                for line in text:
                    row = json.loads(line)
                    text_of_firing = _firing_text(row.get("correlation"), row["at"], row["ids"])
                    yield row["trigger"], text_of_firing

    return _digest_by_trigger(firings())


def _reducer(count: int) -> Mapping[str, tuple[int, str]]:
    """Play the events with the reducer of a Sensor's function, without Kafka; return the digest of
    its firings, by trigger."""
    process = psutil.Process()
    cpu, begun = sum(process.cpu_times()[:2]), time.monotonic()
    backtest = Backtest(parse(Conditions, SENSOR), lambda _: None)
    fired = 0

    def firings() -> Iterator[tuple[str, str]]:
        """Yield trigger and text of each firing of the reducer, and count them."""
        nonlocal fired
        for past_firing in backtest.play(_past_events(count)):
            fired += 1
            ids = [event.identity.partition(" ")[2] for event in past_firing.firing.events]
            yield (
                trigger_of(past_firing.key),
                _firing_text(correlation_of(past_firing.key), past_firing.at, ids),
            )

    digests = _digest_by_trigger(firings())
    seconds, cpu = time.monotonic() - begun, sum(process.cpu_times()[:2]) - cpu
    print(_row(count, "the reducer alone", fired, seconds, cpu, process.memory_info().rss))
    return digests


def _firing_text(correlation: str | None, time_ms: int, ids: list[str]) -> str:
    """Return a firing as text: its correlation key, its time and the ids of its events."""
    return f"{correlation} {time_ms} {' '.join(ids)}"


def _digest_by_trigger(firings: Iterator[tuple[str, str]]) -> Mapping[str, tuple[int, str]]:
    """Return by trigger the number of its firings, and a checksum that doesn't depend on their
    order."""
    counts: Counter[str] = Counter()
    sums: dict[str, int] = defaultdict(int)
    for trigger, firing_text in firings:
        counts[trigger] += 1
        digest = hashlib.blake2b(firing_text.encode(), digest_size=16).digest()
        sums[trigger] = (sums[trigger] + int.from_bytes(digest)) % 2**128
    return {name: (counts[name], f"{sums[name]:032x}") for name in sorted(counts)}


def _row(count: int, what: str, firings: int, seconds: float, cpu: float, peak: int) -> str:
    """Return a row of the table; `cpu` is in seconds, `peak` in bytes."""
    return (
        f"| {count:,} | {what} | {firings:,} | {seconds:.0f} | {cpu:.0f} | {count / seconds:,.0f} |"
        f" {peak // 2**20:,} |"
    )


if __name__ == "__main__":
    main()
