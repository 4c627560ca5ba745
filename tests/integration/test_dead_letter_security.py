"""The dead-letter jobs on Kafka's real listeners: Spark's client and ours, by one Secret.

Issue 5, Running it: SASL and TLS from the same settings.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import pytest_asyncio
from confluent_kafka import Producer
from pyspark.sql import SparkSession
from support import secure_kafka
from support.secure_kafka import Authority, SecureKafka

from knafka.clients.kafka_admin import KafkaAdmin
from knafka.core import names
from knafka.core.dead_letter import Failure, Origin, dead_letter_of
from knafka.core.delivery import Reason
from knafka_jobs import __main__ as jobs
from knafka_jobs.compact import Options, compact
from knafka_jobs.errors import JobError
from knafka_jobs.failures import Selection
from knafka_jobs.replaying import purge, replay
from knafka_jobs.reporting import report
from knafka_jobs.storage import Tables
from knafka_jobs.topics import Connection, Topics
from knafka_local.kafka_distribution import KafkaDistribution

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(300),
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


def bury(kafka: SecureKafka, namespace: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap("PLAINTEXT")})
    for number in range(count):
        headers = [("ce_specversion", b"1.0"), ("ce_id", b"%d" % number)]
        headers += [("ce_source", b"/test"), ("ce_type", b"test")]
        now = time.time()
        failure = Failure("http://mail/", Reason.STATUS, 3, now - 1, now, 503, b"no")
        origin = Origin(namespace, "main", "mail", "broker", 0, number)
        told, value = dead_letter_of(headers, b"data", failure, origin)
        topic = names.dead_letter_topic(namespace, "main", "mail")
        producer.produce(topic, value, b"k", headers=told)  # type: ignore[arg-type]
    assert producer.flush(10) == 0


@pytest.mark.parametrize("kind", ["SASL_SSL", "SSL"])
async def test_compact_report_replay_and_purge_by_every_kind_of_security(
    secured: SecureKafka, admin: KafkaAdmin, spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    namespace = f"test{uuid.uuid4().hex[:8]}"
    await admin.ensure_topic(names.dead_letter_topic(namespace, "main", "mail"), 1, 1, {})
    bury(secured, namespace, COUNT)
    folder = tmp_path / "secret"
    kafka = secured.mounted(kind, folder)
    topics = Topics(Connection.from_folder(kafka.bootstrap_servers, folder))
    topics.reach()
    tables = Tables(spark, str(tmp_path / "tables"))
    options = Options((namespace, "main"), keep_hours=0)
    first = compact(tables, topics, options, lambda line: None)
    assert (first.records, first.folded, first.deleted) == (COUNT, COUNT, COUNT)
    assert replay(tables, topics, Selection(), "again", "me", None, lambda line: None) == COUNT
    sent = names.replay_topic(namespace, "main", "mail")
    await admin.ensure_committed(sent, sent)  # as its dispatcher does once all is delivered
    compact(tables, topics, options, lambda line: None)
    totals = report(tables, None, datetime.now(UTC)).totals
    assert (totals.failures, totals.unresolved) == (COUNT, 0)
    assert purge(tables, Selection(), unresolved=False, dry_run=False) == COUNT
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
        jobs._topics(jobs._parser().parse_args([*given, "--secret", str(folder)]))
    assert time.monotonic() - started < 10
