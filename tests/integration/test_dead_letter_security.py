"""The dead-letter jobs on Kafka's real listeners: Spark's client and ours, by one Secret.

Issue 5, Running it: SASL and TLS from the same settings.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio
from pyspark.sql import SparkSession
from support import secure_kafka
from support.gate import only_chaos
from support.letters import DeadLetters
from support.secure_kafka import Authority, SecureKafka

from knafka.clients.kafka.admin.kafka_admin import KafkaAdmin
from knafka.core import names
from knafka_jobs import command_options, commands
from knafka_jobs.command_options import CompactOptions, FailureSelection
from knafka_jobs.compact.compact_run import compact, fold_leftovers
from knafka_jobs.io.delta import Tables
from knafka_jobs.io.kafka import KafkaClient
from knafka_jobs.io.kafka_connection import KafkaConnection
from knafka_jobs.job_errors import JobError
from knafka_jobs.replay.purge_run import purge
from knafka_jobs.replay.replay_run import replay
from knafka_jobs.report.report_run import make_report
from knafka_jobs.report.spark_engine import SparkEngine
from knafka_jobs.topic_offsets import BrokerName
from knafka_local.kafka.kafka_distribution import KafkaDistribution

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # py4j leaves sockets open
]

COUNT = 20


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def secured(
    kafka_distribution: KafkaDistribution, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[SecureKafka]:
    async with secure_kafka.running(kafka_distribution, tmp_path_factory.mktemp("kafka")) as kafka:
        yield kafka


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def admin(secured: SecureKafka) -> AsyncIterator[KafkaAdmin]:
    """One that needs no password."""
    made = KafkaAdmin({"bootstrap.servers": secured.bootstrap("PLAINTEXT")})
    yield made
    await made.close()


@pytest.mark.parametrize("kind", ["SASL_SSL", pytest.param("SSL", marks=only_chaos)])
async def test_compact_report_replay_and_purge_by_every_kind_of_security(
    secured: SecureKafka, admin: KafkaAdmin, spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    namespace = f"test{uuid.uuid4().hex[:8]}"
    dead = DeadLetters(secured.bootstrap("PLAINTEXT"), namespace)
    for number in range(COUNT):
        dead.add("mail", number)
    dead.flush()
    folder = tmp_path / "secret"
    kafka = secured.mounted(kind, folder)
    client = KafkaClient(KafkaConnection.from_folder(kafka.bootstrap_servers, folder))
    client.connect()
    tables = Tables(spark, str(tmp_path / "tables"))
    wanted = CompactOptions(BrokerName(namespace, "main"), keep_hours=0)
    first = compact(tables, client, wanted, lambda line: None)
    assert (first.records, first.folded, first.deleted) == (COUNT, COUNT, COUNT)
    assert (
        replay(tables, client, FailureSelection(), "again", "me", None, lambda line: None).sent
        == COUNT
    )
    sent = names.replay_topic(namespace, "main", "mail")
    await admin.ensure_committed(sent, sent)  # as its dispatcher does once all is delivered
    compact(tables, client, wanted, lambda line: None)
    totals = make_report(SparkEngine(tables), None, datetime.now(UTC)).totals
    assert (totals.failures, totals.unresolved) == (COUNT, 0)
    assert purge(tables, FailureSelection(), False, partial(fold_leftovers, tables)) == COUNT
    stored = [each for each in (tmp_path / "tables").rglob("*") if each.is_file()]
    assert not any(b"never-shown" in each.read_bytes() for each in stored), "no password is kept"


@pytest.mark.parametrize(
    ("kind", "changed", "why"),
    [
        ("SASL_SSL", {"password": "x"}, "authentication failed: "),
        ("SASL_SSL", {"ca_crt": Authority("other").certificate}, "certificate verify failed"),
        ("SSL", {"user_skip": "true"}, "Kafka refuses our certificate or misses one"),
    ],
    ids=["password", "CA", "client certificate"],
)
async def test_a_job_that_kafka_refuses_says_why_at_once(
    secured: SecureKafka, tmp_path: Path, kind: str, changed: dict[str, str | None], why: str
) -> None:
    folder = tmp_path / "secret"
    kafka = secured.mounted(kind, folder, **changed)
    given = ["compact", "--tables", "t", "--bootstrap-servers", kafka.bootstrap_servers]
    started = time.monotonic()
    with pytest.raises(JobError, match=f"Kafka did not answer: .*{why}"):
        commands.connect(command_options.parser().parse_args([*given, "--secret", str(folder)]))
    assert time.monotonic() - started < 10
