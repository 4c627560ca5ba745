"""A report in a real Kafka: written by the jobs' client, read by the console's."""

from __future__ import annotations

import uuid

import pytest
from support.kafka import Kafka
from support.reports import sample_groups, sample_report

from knafka.clients.kafka_connection import connection
from knafka.core import contract, names
from knafka_jobs.io.kafka import KafkaClient
from knafka_jobs.report import served
from knafka_jobs.report.document import Report
from knafka_local.console.reports import ReportTopics
from knafka_local.console.source import ArchiveName

pytestmark = pytest.mark.kafka


async def test_a_console_reads_the_last_report_whatever_its_size(
    kafka: Kafka, client: KafkaClient
) -> None:
    namespace = f"shop-{uuid.uuid4().hex[:8]}"
    about = {"namespace": namespace, "broker": "main"}
    small = sample_report(*sample_groups(2)).model_copy(update=about)
    large = sample_report(*sample_groups(3000)).model_copy(update=about)
    reached = connection(contract.Kafka(bootstrap_servers=kafka.bootstrap_servers))
    kept, other = ArchiveName(namespace, "kept"), ArchiveName(namespace, "other")
    topics = ReportTopics()
    assert await topics.last(reached, "main", kept) is None, "there is no topic yet"

    served.write(client, large, "other", replication=1)
    served.write(client, large, "kept", replication=-1)
    served.write(client, small, "kept", replication=1)
    value = await topics.last(reached, "main", kept)
    assert value is not None
    assert Report.model_validate_json(value) == small
    value = await topics.last(reached, "main", other)
    assert value is not None
    assert len(value) > served.MAX_RECORD, "it is compressed on its way"
    found = Report.model_validate_json(value)
    assert found.totals == large.totals
    assert found.cut is not None
    assert len(found.groups) + found.cut.groups == 3000
    assert await topics.last(reached, "main", ArchiveName(namespace, "nobody")) is None
    topic = names.reports_topic(namespace, "main")
    assert client.record_limit(topic) == served.MAX_RECORD
