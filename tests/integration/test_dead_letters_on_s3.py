"""Tables in a bucket of a real S3: nothing lost, nothing counted twice, and gone when forgotten."""

from __future__ import annotations

import os
import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from support.gate import only_chaos
from support.kafka import Kafka
from support.killed_jobs import STAGES, run_and_kill
from support.letters import TRIGGERS, DeadLetters, compacted, held
from support.s3 import Bucket
from support.tabled import words_in_store

from knafka_cli.shared import dead_letter_jobs
from knafka_jobs import commands
from knafka_jobs.command_options import CompactOptions, FailureSelection
from knafka_jobs.compact.compact_run import fold_leftovers, forget_expired
from knafka_jobs.io import delta
from knafka_jobs.io.delta import Tables
from knafka_jobs.io.kafka import KafkaClient
from knafka_jobs.io.table_files import TableFiles
from knafka_jobs.lookup.lookup_run import preview
from knafka_jobs.replay.purge_run import purge
from knafka_jobs.replay.replay_run import replay
from knafka_jobs.report.report_page import render_file
from knafka_jobs.report.report_run import make_report
from knafka_jobs.report.spark_engine import SparkEngine
from knafka_jobs.topic_offsets import BrokerName

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.timeout(1500),  # Spark starts for each kill
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # py4j leaves sockets open
]

KILLS = int(os.environ.get("KNAFKA_KILLS", "1"))
"""Of the compaction: first between its two writes; `make chaos` has ten, in all stages."""
NUMBER = 300
"""Dead letters that each run finds."""


@pytest.fixture
def tables(spark: SparkSession, bucket: Bucket, dead: DeadLetters) -> Tables:
    """In the bucket, whose place and keys this session knows."""
    conf = spark._jsc.hadoopConfiguration()
    given = {
        "endpoint": bucket.endpoint,
        "endpoint.region": bucket.environment["AWS_REGION"],
        "path.style.access": "true",
        "access.key": bucket.environment["AWS_ACCESS_KEY_ID"],
        "secret.key": bucket.environment["AWS_SECRET_ACCESS_KEY"],
    }
    for key, value in given.items():
        conf.set(f"fs.s3a.bucket.{bucket.name}.{key}", value)
    return Tables(spark, f"{bucket.url}/{dead.namespace}")


@only_chaos
def test_tables_in_a_bucket_have_each_dead_letter_once_and_none_that_is_forgotten(
    kafka: Kafka,
    dead: DeadLetters,
    client: KafkaClient,
    tables: Tables,
    bucket: Bucket,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in bucket.environment.items():
        monkeypatch.setenv(name, value)
    environment = dead_letter_jobs.spark_environment(lambda _: None, s3=True)
    command = ["compact", "--tables", tables.root, "--broker", f"{dead.namespace}/main"]
    command += ["--bootstrap-servers", kafka.bootstrap_servers, "--keep-hours", "0"]
    seed = random.randrange(1000)
    dice, log = random.Random(seed), tmp_path / "log"
    events = (KILLS + 1) * NUMBER * 2 // 3  # the last third fail once more
    expected: Counter[tuple[str, str]] = Counter()
    for run in range(KILLS + 1):
        for number in range(NUMBER):
            event = (run * NUMBER + number) % events
            dead.add(TRIGGERS[event % 3], event)
            expected[TRIGGERS[event % 3], str(event)] += 1
        dead.flush()
        if run < KILLS:
            run_and_kill(command, environment, log, STAGES[(run + 1) % 3], dice.uniform(0, 2.5))
    compacted(tables, client, dead)
    print(f"seed {seed}", log.read_text())

    topics = client.dead_letter_topics(BrokerName(dead.namespace, "main")).values()
    spans = {(topic.name, n): span for topic in topics for n, span in topic.spans.items()}
    positions = {(*where, offset) for where, span in spans.items() for offset in range(span.end)}
    in_table = held(tables)
    assert len(in_table) == len(positions) == (KILLS + 1) * NUMBER
    assert set(in_table) == positions
    rows = tables.read("failures").select("trigger", "id", "failures").collect()
    assert {(row["trigger"], row["id"]): row["failures"] for row in rows} == expected
    assert all(span.start == span.end for span in spans.values()), "all deleted from the topics"

    told = make_report(SparkEngine(tables), None, datetime.now(UTC))
    assert told.totals.failures == len(positions)
    (tmp_path / "page").write_text(render_file(told))
    commands.store_file(tables.spark, tables.root, tmp_path / "page", "reports/report.html")
    stored = bucket.folder / dead.namespace
    assert "<html" in (stored / "reports" / "report.html").read_text()

    without_spark = preview(TableFiles(tables.root), []).count
    assert without_spark == len(rows)
    one = FailureSelection(trigger="mail", id="3")
    assert replay(tables, client, one, "again", "me", None, lambda line: None).sent == 1
    assert replay(tables, client, one, "twice", "me", None, lambda line: None).sent == 0, (
        "on its way"
    )


@only_chaos
def test_no_object_of_a_bucket_has_what_was_purged_or_is_older_than_it_is_kept(
    dead: DeadLetters,
    client: KafkaClient,
    tables: Tables,
    bucket: Bucket,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for word in ("secret", "kept"):
        dead.add("mail", 1, word=word)
    dead.flush()
    compacted(tables, client, dead)
    dead.add("mail", 1, word="secret")
    dead.flush()
    compacted(tables, client, dead)
    words = partial(words_in_store, tables.spark, bucket.folder, tmp_path / "scratch")
    assert words() == {"secret", "kept"}

    secret = FailureSelection(id="secret")
    assert purge(tables, secret, True, partial(fold_leftovers, tables)) == 1
    assert words() == {"kept"}

    later = datetime.now(UTC) + timedelta(days=9)
    options = CompactOptions(forget_unresolved_days=5)
    assert forget_expired(tables, options, {}, later) == 1
    assert words() == set()


@only_chaos
def test_what_a_killed_run_left_in_a_bucket_is_erased_once_no_run_can_need_it(
    dead: DeadLetters, client: KafkaClient, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no lock: a file that no commit has named may be a run's that is about to."""
    dead.add("mail", 1)
    dead.flush()
    compacted(tables, client, dead)
    orphan, system = tables.file("records/day=2026-01-01/part-of-a-killed-run.parquet")
    system.create(orphan).close()
    tables.erase_unused_files("records")
    assert system.exists(orphan)
    monkeypatch.setattr(delta, "ORPHAN_AGE", timedelta(0))
    tables.erase_unused_files("records")
    assert not system.exists(orphan)
    assert tables.read("records").count() == 1
