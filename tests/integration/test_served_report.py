"""A report in a real Kafka: written by the jobs' client, read by the console's."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from support.gate import only_chaos
from support.kafka import Kafka
from support.letters import DeadLetters
from support.reports import sample_groups, sample_report

from knafka.clients.kafka.kafka_connection import connection_configuration
from knafka.core import contract, names
from knafka_console.model.source import ArchiveName
from knafka_console.sources.reports import ReportTopics
from knafka_jobs import pod
from knafka_jobs.io.kafka import KafkaClient
from knafka_jobs.report import announce, served_report
from knafka_jobs.report.report_document import Report

pytestmark = pytest.mark.kafka


@only_chaos
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # py4j leaves sockets open
def test_each_run_of_an_archive_serves_its_report_with_those_before_it(
    kafka: Kafka,
    client: KafkaClient,
    dead: DeadLetters,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pod, "REPORT_FOLDER", tmp_path / "report")
    words = [
        "archive", f"--tables={tmp_path / 'tables'}", "--report", "--archive=kept",
        f"--bootstrap-servers={kafka.bootstrap_servers}", f"--broker={dead.namespace}/main",
        f"--group={names.archive_group(dead.namespace, 'kept', 'uid')}",
        "--announce=http://127.0.0.1:1/",
    ]  # fmt: skip
    monkeypatch.setattr(announce, "ANNOUNCE_ATTEMPTS", 1)
    given = pod._pod_parser().parse_args(words)
    reached = connection_configuration(contract.Kafka(bootstrap_servers=kafka.bootstrap_servers))
    kept, made = ArchiveName(dead.namespace, "kept"), list[Report]()
    dead.add("mail", 1)
    dead.flush()
    for _ in range(2):
        found = pod.compact_and_run(spark, client, given, lambda _: None)["report"]
        assert found.keys() >= {"report", "notAnnounced"}, "nobody is there, and it is made"
        assert "notServed" not in found
        value = asyncio.run(ReportTopics().read_last(reached, "main", kept))
        assert value is not None
        made.append(Report.model_validate_json(value))
        assert made[-1].id == found["report"]
    first, second = made
    assert first.totals == second.totals
    (group,) = second.groups
    assert group.first_reported == first.made
    assert [(each.made, each.failures) for each in group.history] == [(first.made, 1)]


async def test_a_console_reads_the_last_report_whatever_its_size(
    kafka: Kafka, client: KafkaClient
) -> None:
    namespace = f"shop-{uuid.uuid4().hex[:8]}"
    about = {"namespace": namespace, "broker": "main"}
    small = sample_report(*sample_groups(2)).model_copy(update=about)
    large = sample_report(*sample_groups(3000)).model_copy(update=about)
    reached = connection_configuration(contract.Kafka(bootstrap_servers=kafka.bootstrap_servers))
    kept, other = ArchiveName(namespace, "kept"), ArchiveName(namespace, "other")
    topics = ReportTopics()
    assert await topics.read_last(reached, "main", kept) is None, "there is no topic yet"

    served_report.write_served_report(client, large, "other", replication=1)
    served_report.write_served_report(client, large, "kept", replication=-1)
    served_report.write_served_report(client, small, "kept", replication=1)
    value = await topics.read_last(reached, "main", kept)
    assert value is not None
    assert Report.model_validate_json(value) == small
    value = await topics.read_last(reached, "main", other)
    assert value is not None
    assert len(value) > served_report.MAX_BATCH_BYTES, "it is compressed on its way"
    found = Report.model_validate_json(value)
    assert found == large
    assert await topics.read_last(reached, "main", ArchiveName(namespace, "nobody")) is None
    topic = names.reports_topic(namespace, "main")
    assert client.record_limit(topic) == served_report.MAX_BATCH_BYTES
